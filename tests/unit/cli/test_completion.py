"""The completion of commands and options in bash, and the scripts of all shells."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kbackup import cli


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PATH with the command kbackup."""
    folder = tmp_path_factory.mktemp("bin")
    file = folder / "kbackup"
    file.write_text(f'#!/bin/sh\nexec {sys.executable} -m kbackup "$@"\n')
    file.chmod(0o755)
    return folder


_SCRIPT = """
source <(kbackup completion bash)
declare -a COMPREPLY
for line in "$@"; do
    read -ra COMP_WORDS <<<"$line"
    [[ $line == *" " ]] && COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    COMPREPLY=()
    function=$(complete -p kbackup | sed 's/.*-F \\([^ ]*\\).*/\\1/')
    $function kbackup
    echo "${COMPREPLY[*]}"
done
"""


@pytest.mark.exhaustive
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_options_and_choices(commands: Path) -> None:
    lines = ["kbackup ba", "kbackup groups ", "kbackup help groups a", "kbackup restore --into-e"]
    lines += ["kbackup cat --output ", "kbackup backup --isolation-level read_c", "kbackup no-such --x"]
    done = subprocess.run(
        ["bash", "--norc", "-c", _SCRIPT, "bash", *lines],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={"PATH": f"{commands}:/usr/bin:/bin"},
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "backup",
        "show plan apply undo",
        "apply",
        "--into-existing",
        "text json hex",
        "read_committed",
        "",
    ]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_call_kbackup_by_its_variable(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    assert f"_KBACKUP_COMPLETE={shell}_complete" in capsys.readouterr().out


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", "tcsh"]) == 2
    assert "tcsh" in capsys.readouterr().err


def test_commands_are_completed_without_their_modules(commands: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "kbackup"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"COMP_WORDS": "kbackup r", "COMP_CWORD": "1", cli.COMPLETION_VARIABLE: "bash_complete"},
    )
    assert done.stdout.split() == [f"plain,{name}" for name in cli.COMMANDS if name.startswith("r")]
    assert "kbackup.cli.restore" not in done.stderr


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        ([], "Usage: kbackup [OPTIONS] COMMAND"),
        (["backup"], "Usage: kbackup backup [OPTIONS]"),
        (["groups", "plan"], "Usage: kbackup groups plan [OPTIONS]"),
    ],
)
def test_help_shows_what_the_option_shows(words: list[str], usage: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["help", *words]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(usage)
    assert cli.main([*words, "--help"]) == 0
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["restor"], "no such command: restor; did you mean restore?"),
        (["groups", "plans"], "plans"),
        (["backup", "now"], "kbackup backup has no command now\nhint: run 'kbackup help backup'"),
    ],
)
def test_help_of_a_command_that_is_not_there(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["help", *words]) == 2
    assert message in capsys.readouterr().err
