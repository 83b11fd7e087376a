"""`kbackup keep`, `release`, `label`, `promote` and `log`: mark restore points, and show their history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from kbackup.archive.reader import open_archive
from kbackup.cli.common.command_context import CommandContext
from kbackup.cli.common.completion import archived
from kbackup.cli.common.options import archive_command, cache_option
from kbackup.cli.common.session import archive_store, cached_archive_store
from kbackup.cli.common.tables import Column, human_age
from kbackup.errors import UsageError

if TYPE_CHECKING:
    from kbackup.archive.catalog.state import HistoryRow

_point_argument = click.argument("restore_point", metavar="N|LABEL|latest", shell_complete=archived("points"))


@archive_command("keep", _point_argument, example="kbackup keep 41")
def keep_command(context: CommandContext, restore_point: str) -> None:
    """Pin a restore point, so that neither it nor its records expire.

    'kbackup list' shows pins, 'kbackup release' removes them. A backup may run at the same time.
    """
    from kbackup.jobs.points import pin

    report = pin(archive_store(context), restore_point)
    state = "is pinned" if report.changed else "was pinned already"
    context.reporter.line(f"restore point {report.restore_point} {state}")
    context.reporter.document(report)


@archive_command("release", _point_argument, example="kbackup release 41")
def release_command(context: CommandContext, restore_point: str) -> None:
    """Remove the pin of a restore point. The next 'kbackup expire' may expire it."""
    from kbackup.jobs.points import release

    report = release(archive_store(context), restore_point)
    context.reporter.line(f"restore point {report.restore_point} is no longer pinned")
    context.reporter.document(report)


@archive_command(
    "label",
    click.argument("restore_point", metavar="N|LABEL|latest", required=False, shell_complete=archived("points")),
    click.argument("label", metavar="NAME", required=False),
    click.option("--remove", metavar="NAME", shell_complete=archived("labels"), help="Remove this label."),
    example="kbackup label 41 before-migration",
)
def label_command(context: CommandContext, restore_point: str | None, label: str | None, remove: str | None) -> None:
    """Give a restore point a label: 'kbackup label 41 before-migration'.

    Options that take a restore point's number also take its label. A label of another restore point moves. A backup may
    run at the same time.
    """
    from kbackup.jobs import points

    if remove is not None:
        if restore_point is not None:
            raise UsageError("--remove and a restore point exclude each other", "give --remove NAME alone")
        report = points.remove_label(archive_store(context), remove)
        context.reporter.line(f"label {remove} is removed")
    elif restore_point is None or label is None:
        raise UsageError("a restore point or a label is missing", "give both, for instance: kbackup label 41 NAME")
    else:
        report = points.label(archive_store(context), restore_point, label)
        context.reporter.line(f"restore point {report.restore_point} has label {label}")
    context.reporter.document(report)


@archive_command("promote", argument=True, example="kbackup promote s3://other-region/kafka")
def promote_command(context: CommandContext) -> None:
    """Make a copy an independent archive, also when its origin is lost.

    Backups into it are then allowed, and 'kbackup copy' from the origin refused.
    """
    from kbackup.jobs.copy import promote

    report = promote(archive_store(context))
    context.reporter.line(f"{report.archive} is an independent archive; it was a copy of {report.origin}")
    context.reporter.document(report)


_HISTORY: Sequence[Column[HistoryRow]] = (
    Column("catalog", "catalog"),
    Column("at", "at"),
    Column("age", "at", human_age),
    Column("what", "kind", importance=2),
    Column("by", "by", importance=1),
    Column("result", "summary", prose=True),
)
"""The columns of `kbackup log`."""


@archive_command(
    "log",
    click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Show the newest N entries."),
    cache_option,
    argument=True,
    example="kbackup log --limit 10",
)
def log_command(context: CommandContext, limit: int | None) -> None:
    """Show the history of an archive: backups, expirations, pins, repairs and copies, with time, user and result."""
    from kbackup.jobs.points import history

    store = cached_archive_store(context)
    rows = history(open_archive(store), limit)
    context.reporter.table(_HISTORY, rows)
    context.reporter.document({"archive": store.url, "history": [row._asdict() for row in rows]})
