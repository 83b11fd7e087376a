"""A copied command means what it was made of, and shows no control character."""

from __future__ import annotations

import subprocess

import pytest

from kbackup.util.text import kafka_command, kbackup_command, shell_line

HOSTILE = (
    *("orders", "", "-x", "=ls", "a b", "it's $(reboot) `reboot` \\", "$HOME", "gr\u00fc\u00dfe \U0001f389"),
    *(
        "a\nreboot\n",
        "\r\x1b[1A",
        "\x07" + "7",
        "'\n\\'",
        "\x7f",
        "\u202eab",
        "\U000e0001",
        "$(x)\n",
        "\udcff\n",
    ),
)


@pytest.mark.parametrize("word", HOSTILE, ids=ascii)
def test_a_shell_reads_the_word_that_was_meant(word: str) -> None:
    line = shell_line("printf", r"%s\0", word, f"{word}0")
    assert line.isprintable(), "a terminal shows it as it is"
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=True)
    assert done.stdout.split(b"\0")[:2] == [
        each.encode("utf-8", "surrogateescape") for each in (word, f"{word}0")
    ]


def test_commands_with_hostile_names_show_no_control_character() -> None:
    name = "g\n\x1b]0;x\x07"
    assert kbackup_command("groups", "apply", "--group", name).endswith(r"--group $'g\012\033]0;x\007'")
    assert kafka_command("kafka-topics", "h:1", "--topic", name).endswith(r"--topic $'g\012\033]0;x\007'")
