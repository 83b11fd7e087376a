"""`kbackup unlock`: show the holder of an archive's lease, and break the lease."""

from __future__ import annotations

import sys

import click

from kbackup.archive.lease import SeenLease, break_lease, describe, inspect_lease
from kbackup.archive.models import Lease
from kbackup.cli.common.frame import Frame, pass_frame
from kbackup.cli.common.options import archive_argument, archive_option, common_options, s3_options
from kbackup.cli.common.session import archive_store
from kbackup.errors import RefusedError, UsageError


@click.command("unlock")
@archive_argument
@common_options
@archive_option
@click.option("--yes", is_flag=True, help="Break the lease without a question.")
@click.option("--force", is_flag=True, help="Break a live lease, too. Its run stops and commits nothing.")
@s3_options
@pass_frame
def command(frame: Frame, yes: bool, force: bool) -> None:
    """Show who holds an archive's lease, and break it.

    A dead lease has run out: the command asks, then breaks it. The next writer would also take it over. A live lease is
    refused (exit code 11). After a crash it is free at once on the same machine, else within
    backup.lease_seconds.

    --force breaks a live lease. Its run stops with exit code 11, and the next backup salvages its segments. Nobody gets
    the lease before that run must have noticed: for backup.lease_seconds, or until it would have run out.
    """
    store = archive_store(frame)
    seen = inspect_lease(store)
    document: dict[str, object] = {"archive": store.url, "state": seen.state if seen else "none"}
    document["lease"] = _fields(seen.lease) if seen else None
    if seen is None or seen.state == "released":
        frame.reporter.line(f"archive {store.url}: nobody holds the lease")
        frame.reporter.document(document | {"broken": False, "free_at": None})
        return
    _show(frame, seen)
    if seen.state == "dead" or force:
        _ask(seen, yes)
    broken = break_lease(store, seen, force=force, seconds=frame.config.backup.lease_seconds)
    until = "now" if broken.released else f"from {broken.expires_at} on"
    frame.reporter.line(f"the lease is broken; it is free {until}")
    frame.reporter.document(document | {"broken": True, "free_at": broken.expires_at})


def _show(frame: Frame, seen: SeenLease) -> None:
    condition = "has run out" if seen.state == "dead" else "is alive"
    frame.reporter.line(f"archive {frame.archive}: the lease of {describe(seen.lease)} {condition}")


def _ask(seen: SeenLease, yes: bool) -> None:
    """Ask whether to break the lease; return only if the answer is yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("unlock asks before it breaks a lease, and stdin is not a terminal", "give --yes")
    effect = " and stop the run that holds it" if seen.state == "alive" else ""
    if not click.confirm(f"break the lease{effect}?", err=True):
        raise RefusedError("the lease is not broken", "run 'kbackup unlock' again and answer yes")


def _fields(lease: Lease) -> dict[str, str | int]:
    names = ("command", "host", "pid", "acquired_at", "expires_at")
    return {name: getattr(lease, name) for name in names}
