"""Check that documents name all commands of which a statement is true."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator

import click
import pytest

from kbackup.cli import COMMANDS, cli
from tests.project.docs.documents import ROOT

CONTEXT = click.Context(cli, info_name="kbackup")


def _commands() -> Iterator[tuple[str, click.Command]]:
    for name in COMMANDS:
        command = cli.get_command(CONTEXT, name)
        assert command is not None
        yield name, command


def _with_option(option: str) -> set[str]:
    return {name for name, command in _commands() if any(option in p.opts for p in _params(command))}


def _params(command: click.Command) -> Iterator[click.Parameter]:
    """The parameters of a command, and those of the commands below it."""
    yield from command.params
    if isinstance(command, click.Group):
        for part in command.list_commands(CONTEXT):
            below = command.get_command(CONTEXT, part)
            assert below is not None, part
            yield from _params(below)


def _told(document: str, sentence: str) -> set[str]:
    """The commands in code between the two halves of a sentence ('…' stands between), in one point of a list."""
    before, after = (re.escape(half).replace(r"\ ", r"\s+") for half in sentence.split("…"))
    (found,) = re.findall(
        f"{before}((?:(?!\n- ).)*?){after}", (ROOT / document).read_text("utf-8"), re.DOTALL
    )
    return {text.split()[0] for text in re.findall(r"`([^`]+)`", found)}


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ("infra/docs/configuration.md", "Keep what … read of an archive's metadata"),
        ("infra/docs/security.md", "The metadata cache of … is a folder"),
        ("infra/docs/requests.md", "keeps objects of 64 KiB and more that … read"),
    ],
)
def test_commands_that_keep_metadata(document: str, sentence: str) -> None:
    assert _told(document, sentence) == _with_option("--cache")


def test_commands_without_spark() -> None:
    """The document names the commands whose modules can't start Spark, and two that need not."""
    modules = {
        name: importlib.import_module(f"kbackup.cli.{module.partition(':')[0]}")
        for name, (module, _) in COMMANDS.items()
    }
    without = {*COMMANDS} - _with_option("--master") | {"config"}
    single = {name: module for name, module in modules.items() if not hasattr(module, "__path__")}
    assert without & single.keys() == {n for n, m in single.items() if not hasattr(m, "spark_session")}
    told = _told("infra/docs/spark.md", "These commands start no Spark: … `check")
    assert told == without | {"restore", "verify"}


@pytest.mark.parametrize("name", COMMANDS)
def test_defaults(name: str) -> None:
    """Tables of options show the default of each option that has one."""
    document = (ROOT / "infra/docs/commands.md").read_text("utf-8")
    own, _, rest = document.partition(f"\n## kbackup {name}\n")[2].partition("\n## ")
    shared = rest[rest.index("Options of several commands\n") :]
    for option in dict(_commands())[name].params:
        if not isinstance(option, click.Option) or option.is_flag or option.count:
            continue
        if isinstance(option.default, str | int):
            (row,) = _rows_of(option, own) or _rows_of(option, shared)
            assert f"[default {option.default}" in row


def _rows_of(option: click.Option, text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("| `") and f"`{option.opts[-1]} " in line]


def test_every_command_that_opens_an_archive_has_a_role() -> None:
    """In the table of the policies for a bucket."""
    text = (ROOT / "infra/docs/security.md").read_text("utf-8")
    rows = re.findall(r"^\| \[[\w-]+\.json\]\(\.\./policies/[\w-]+\.json\) \| (.*?) \|", text, re.MULTILINE)
    assert len(rows) == len([*(ROOT / "infra" / "policies").glob("*.json")])
    documented = {code.removeprefix("kbackup ") for row in rows for code in re.findall(r"`([^`]+)`", row)}
    due = set(COMMANDS) - {"config", "completion", "help"}
    for name, command in _commands():
        if isinstance(command, click.Group):
            due = due - {name} | {f"{name} {part}" for part in command.list_commands(CONTEXT)}
    assert documented - {"--state"} == due - {"key generate", "migrate status"}
