"""`kbackup mirror` and its subcommands."""

from __future__ import annotations

import click

from kbackup.cli.common.command_context import LazyGroup

SUBCOMMANDS = {name: f"{__name__}.{name}" for name in ("run", "status", "translate")}
"""`kbackup mirror FILE` is `kbackup mirror run FILE`."""

_DEFAULT = "run"


class _Mirror(LazyGroup):
    """Runs the flows of a file, unless its first argument is a subcommand."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in SUBCOMMANDS and args[0] not in ctx.help_option_names:
            args = [_DEFAULT, *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        names_command = args[0] in SUBCOMMANDS
        words = args if names_command else [_DEFAULT, *args]
        return super().resolve_command(ctx, words)


@click.group("mirror", _Mirror, subcommands=SUBCOMMANDS, epilog="Example: kbackup mirror mm2.properties")
def command() -> None:
    """Mirror topics, groups, configs and ACLs between clusters through an archive.

    'kbackup mirror mm2.properties' is short for 'kbackup mirror run mm2.properties'.
    """
