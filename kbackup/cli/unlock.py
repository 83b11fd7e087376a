"""`kbackup unlock`: show the holder of an archive's lease, and break the lease."""

from __future__ import annotations

import sys

import click

from kbackup.archive.lease import break_lease, describe, inspect_lease
from kbackup.archive.models import Lease
from kbackup.cli.common.command_context import CommandContext
from kbackup.cli.common.options import archive_command
from kbackup.cli.common.session import archive_store
from kbackup.errors import RefusedError, UsageError


@archive_command(
    "unlock",
    click.option("--yes", is_flag=True, help="Break the lease without a question."),
    click.option("--force", is_flag=True, help="Break a live lease, too. Its run stops and commits nothing."),
    argument=True,
    example="kbackup unlock",
)
def command(context: CommandContext, yes: bool, force: bool) -> None:
    """Show who holds an archive's lease, and break it.

    A dead lease has run out: the command asks, then breaks it. The next writer would also take it over. A live lease is
    refused (exit code 11). After a crash it is free at once on the same machine, else within
    backup.lease_seconds.

    --force breaks a live lease. Its run stops with exit code 11, and the next backup salvages its segments. The lease
    stays taken until that run must have noticed: for backup.lease_seconds, or until it would have run out.
    """
    store, reporter = archive_store(context), context.reporter
    seen = inspect_lease(store)
    state = seen.state if seen is not None else "none"
    lease = seen.lease if seen is not None else None
    document: dict[str, object] = {"archive": store.url, "state": state, "lease": lease_fields(lease)}
    if seen is None or seen.state == "released":
        reporter.line(f"archive {store.url}: nobody holds the lease")
        reporter.document(document | {"broken": False, "free_at": None})
        return
    condition = "has run out" if seen.state == "dead" else "is alive"
    reporter.line(f"archive {context.archive}: the lease of {describe(seen.lease)} {condition}")
    # A live lease is refused below without --force: no question is asked that would be in vain.
    if (seen.state == "dead" or force) and not yes:
        effect = " and stop the run that holds it" if seen.state == "alive" else ""
        _ask(effect)
    broken = break_lease(store, seen, force=force, seconds=context.config.backup.lease_seconds)
    until = "now" if broken.released else f"from {broken.expires_at} on"
    reporter.line(f"the lease is broken; it is free {until}")
    reporter.document(document | {"broken": True, "free_at": broken.expires_at})


def _ask(effect: str) -> None:
    """Ask whether to break the lease; return only if the answer is yes."""
    if not sys.stdin.isatty():
        raise UsageError("unlock asks before it breaks a lease, and stdin is not a terminal", "give --yes")
    if not click.confirm(f"break the lease{effect}?", err=True):
        raise RefusedError("the lease is not broken", "run 'kbackup unlock' again and answer yes")


def lease_fields(lease: Lease | None) -> dict[str, str | int] | None:
    """Return a lease as `--json` prints it."""
    if lease is None:
        return None
    return {
        "command": lease.command,
        "host": lease.host,
        "pid": lease.pid,
        "acquired_at": lease.acquired_at,
        "expires_at": lease.expires_at,
    }
