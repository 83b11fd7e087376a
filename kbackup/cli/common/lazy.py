"""Commands that are imported when they are called or asked for help."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import click


def load_command(module: str) -> click.Command:
    """Import a module and return its object `command`."""
    command: click.Command = importlib.import_module(module).command
    return command


class LazySubcommands(click.Group):
    """A group whose subcommand NAME is the object `command` of the module `package`.NAME, listed in the order given."""

    def __init__(self, *args: Any, package: str, subcommands: Sequence[str], **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.package = package
        self.subcommands = subcommands

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.subcommands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return load_command(f"{self.package}.{cmd_name}") if cmd_name in self.subcommands else None
