"""Levels have colors on a terminal alone, and the words are the same without them."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest

from kbackup import cli
from kbackup.cli.common.colors import colored
from kbackup.cli.common.output import Reporter
from kbackup.store import open_store
from tests.support.archives import make_archive
from tests.support.printed import Terminal

_COLOR = re.compile(r"\x1b\[[0-9]+m")


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal with colors."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("ok", "\x1b[32mok\x1b[0m"),
        ("warning", "\x1b[33mwarning\x1b[0m"),
        ("critical", "\x1b[31mcritical\x1b[0m"),
        ("FAILED  ", "\x1b[31mFAILED\x1b[0m  "),
        ("guard", "guard"),
    ],
)
def test_a_level_has_its_color_on_a_terminal(word: str, expected: str, screen: Terminal) -> None:
    assert colored(word, screen) == expected


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("NO_COLOR", "false"), ("TERM", "dumb")])
def test_a_user_can_switch_colors_off(name: str, value: str, screen: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    assert colored("critical", screen) == "critical"


def test_an_empty_NO_COLOR_leaves_colors_on(screen: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: N802
    monkeypatch.setenv("NO_COLOR", "")
    assert colored("critical", screen) != "critical"


def test_a_pipe_gets_no_colors() -> None:
    assert colored("critical", io.StringIO()) == "critical"


def test_a_status_is_the_same_with_and_without_colors(
    tmp_path: Path, screen: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = str(tmp_path / "archive")
    make_archive(open_store(archive))
    monkeypatch.setattr(sys, "stdout", screen)
    cli.main(["status", archive])
    with_colors = screen.getvalue()
    screen.seek(0)
    screen.truncate()
    monkeypatch.setenv("NO_COLOR", "1")
    cli.main(["status", archive])
    without = screen.getvalue()
    assert with_colors.startswith("\x1b[31mcritical\x1b[0m: ")
    assert "\x1b" not in without
    # The age of the restore point may be another one by a minute.
    assert _COLOR.sub("", with_colors).splitlines()[1:] == without.splitlines()[1:]


def test_a_check_colors_its_word_and_nothing_of_what_others_named(
    screen: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", screen)
    reporter = Reporter()
    reporter.check("FAILED", "archive: \x1b[2Jopen", "no answer", "check the address")
    assert screen.getvalue() == (
        "\x1b[31mFAILED\x1b[0m   archive: \\x1b[2Jopen: no answer\n           hint: check the address\n"
    )
    assert reporter.summary == "           hint: check the address", "a notification gets plain words"
