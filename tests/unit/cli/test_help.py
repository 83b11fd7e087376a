"""The help of commands with many options: headings, rare options, and a width that a terminal has."""

from __future__ import annotations

import re

import pytest

from kbackup.cli.common.help import HEADINGS, RARE, SectionedCommand
from scripts.docs.commands import all_commands, visible
from tests.support.printed import Kbackup

SECTIONED = {
    name: command
    for name, command in all_commands().items()
    if isinstance(command, SectionedCommand) and len(visible(command.params)) > 15
}
LARGE = ["backup", "restore", "verify", "drill", "copy", "find", "mirror run"]


def sections_of(text: str) -> dict[str, list[str]]:
    """Return the names of the options below each heading of a help."""
    sections: dict[str, list[str]] = {}
    heading = ""
    for line in text.splitlines():
        if re.fullmatch(r"[A-Z][a-z ]+:", line):
            heading = line.rstrip(":")
            sections[heading] = []
        elif line.startswith("  -") and heading:
            sections[heading] += re.findall(r"(?<=[ ,])--[a-z0-9-]+", line.partition("   ")[0])
    return sections


@pytest.mark.parametrize("name", LARGE)
def test_large_commands_have_headings(name: str) -> None:
    assert name in SECTIONED


def test_the_help_of_a_restore_says_what_where_to_how_and_the_access_of_the_archive(kbackup: Kbackup) -> None:
    sections = sections_of(kbackup("restore", "--help").out)
    assert list(sections) == ["What", "Where to", "How", "The archive", "Output and configuration"]
    assert sections["What"][:4] == ["--restore-point", "--to-time", "--from-time", "--tz"]
    assert {"--bootstrap-server", "--target-config", "--map", "--topic-config"} <= set(sections["Where to"])
    assert sections["How"][:2] == ["--guide", "--dry-run"]
    assert sections["The archive"] == ["--archive", "--encryption-key"]


@pytest.mark.parametrize("name", SECTIONED)
def test_the_whole_help_has_every_option_once_and_the_short_one_none_that_is_rare(name: str, kbackup: Kbackup) -> None:
    options = visible(SECTIONED[name].params)
    every = sorted(long for option in options for long in option.opts if long.startswith("--"))
    whole = sections_of(kbackup(*name.split(), "--help-all").out)
    names = [option for section in whole.values() for option in section]
    negated = {long for option in options for long in option.secondary_opts}
    assert sorted(set(names) - negated - {"--help", "--help-all"}) == every
    shown = kbackup(*name.split(), "--help").out
    short = [option for section in sections_of(shown).values() for option in section]
    assert len(short) == len(set(short))
    assert not set(short) & set(RARE.split())
    assert set(short) < set(names)
    number = len(options) - len(set(short) - {"--help", "--help-all"})
    assert f"{number} more options" in " ".join(shown.split())


@pytest.mark.parametrize("option", ["--help", "--help-all"])
@pytest.mark.parametrize("name", SECTIONED)
def test_help_fits_into_eighty_columns(
    name: str, option: str, kbackup: Kbackup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = kbackup(*name.split(), option).out.splitlines()
    assert [line for line in lines if len(line) > 80 and not line.startswith("  Example: ")] == []


def test_every_name_of_the_help_is_an_option_of_a_command() -> None:
    names = set()
    for command in SECTIONED.values():
        for option in visible(command.params):
            names |= {option.name, option.opts[-1]}
    placed = {name for text in HEADINGS.values() for name in text.split()}
    assert placed | set(RARE.split()) <= names | {"--help", "--help-all"}


def test_help_of_another_command_shows_all_options_too(kbackup: Kbackup) -> None:
    assert kbackup("help", "--all", "restore").out == kbackup("restore", "--help-all").out


def test_a_command_with_few_options_has_no_headings(kbackup: Kbackup) -> None:
    out = kbackup("migrate", "status", "--help").out
    assert "\nOptions:\n" in out
    assert "--help-all" not in out
