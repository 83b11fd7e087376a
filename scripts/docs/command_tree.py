"""The commands of the command line as click's objects."""

from __future__ import annotations

import click

from kbackup.cli import COMMANDS, cli


def all_commands() -> dict[str, click.Command]:
    """Return every command by its name, also those below a group."""
    commands: dict[str, click.Command] = {}
    context = click.Context(cli, info_name="kbackup")
    for name in COMMANDS:
        command = commands[name] = _subcommand(cli, context, name)
        commands |= {f"{name} {part}": below for part, below in subcommands(command).items()}
    return commands


def subcommands(command: click.Command) -> dict[str, click.Command]:
    """Return the commands below a group by their names; none below another command."""
    if not isinstance(command, click.Group):
        return {}
    context = click.Context(command)
    return {part: _subcommand(command, context, part) for part in command.list_commands(context)}


def _subcommand(group: click.Group, context: click.Context, name: str) -> click.Command:
    command = group.get_command(context, name)
    assert command is not None, name
    return command
