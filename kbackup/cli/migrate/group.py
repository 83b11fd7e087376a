"""The command `kbackup migrate` and its subcommands."""

from __future__ import annotations

import importlib

import click

from kbackup.cli.options import common_options

SUBCOMMANDS = {
    "preflight": "preflight",
    "archive": "archive",
    "status": "status",
    "verify": "verify",
    "rollback": "rollback",
    "bootstrap": "bootstrap",
}
"""Subcommand: module of this package, with an object `command`; in the order of the runbook."""


class _Migrate(click.Group):
    """Imports a subcommand when it is called or asked for help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUBCOMMANDS:
            return None
        command: click.Command = importlib.import_module(
            f"kbackup.cli.migrate.{SUBCOMMANDS[cmd_name]}"
        ).command
        return command


@click.group("migrate", cls=_Migrate)
@common_options
def command() -> None:
    """Check, watch, archive and undo a cluster's migration from ZooKeeper to KRaft.

    Kafka itself moves the metadata (KIP-866); kbackup is no controller and moves nothing.
    """
