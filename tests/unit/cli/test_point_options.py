"""One name selects a restore point and one a time, in every command; former names keep working."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from kbackup.cli import COMMANDS, cli

RENAMED = {"--backup": "--restore-point", "--at": "--to-time"}


def _commands(group: click.Group, context: click.Context, name: str = "") -> Iterator[tuple[str, click.Command]]:
    for part in group.list_commands(context):
        command = group.get_command(context, part)
        assert command is not None
        path = f"{name} {part}".strip()
        yield path, command
        if isinstance(command, click.Group):
            yield from _commands(command, click.Context(command), path)


EVERY = dict(_commands(cli, click.Context(cli)))


def _options(command: click.Command) -> list[click.Option]:
    return [param for param in command.params if isinstance(param, click.Option)]


@pytest.mark.parametrize("name", EVERY)
def test_former_names_set_the_same_parameter(name: str) -> None:
    command = EVERY[name]
    context = click.Context(command)
    for former, present in RENAMED.items():
        assert all(former not in option.opts for option in _options(command))
        for option in _options(command):
            if present in option.opts:
                assert option.name is not None
                assert command.make_parser(context).parse_args([former, "1"])[0][option.name] == "1"


@pytest.mark.parametrize("name", EVERY)
def test_help_and_completion_leave_out_former_names(name: str) -> None:
    command = EVERY[name]
    context = click.Context(command, info_name=name)
    words = command.get_help(context).replace(",", " ").split()
    completed = [item.value for item in command.shell_complete(context, "--")]
    assert not {*RENAMED} & {*words, *completed}


def test_which_commands_select() -> None:
    def having(option: str) -> set[str]:
        return {name for name, command in EVERY.items() if any(option in o.opts for o in _options(command))}

    read = {"info", "ls", "cat", "find", "groups show", "groups plan", "groups apply"}
    assert having("--to-time") == read | {"restore", "verify", "drill"}
    assert having("--restore-point") == having("--to-time") | {"copy", "migrate verify", "migrate bootstrap"}
    assert {*COMMANDS} <= {*EVERY}
