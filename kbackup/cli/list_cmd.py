"""`kbackup list`: list the restore points of an archive."""

from __future__ import annotations

import click

from kbackup.archive.lease import describe, holder
from kbackup.archive.models import Lease
from kbackup.archive.query.java import is_java_archive
from kbackup.archive.query.overview import PointOverview, list_points
from kbackup.archive.reader import open_archive
from kbackup.cli.common.frame import Frame, pass_frame
from kbackup.cli.common.options import archive_argument, archive_option, cache_option, common_options, s3_options
from kbackup.cli.common.output import Cell, Column, Reporter, human_age
from kbackup.cli.common.session import cached_archive_store
from kbackup.errors import NoArchiveError, UsageError
from kbackup.util.text import human_size, plural


@click.command("list")
@archive_argument
@common_options
@archive_option
@click.option("--label", "label", metavar="NAME", help="List the restore point with this label alone.")
@cache_option
@s3_options
@pass_frame
def command(frame: Frame, label: str | None) -> None:
    """List an archive's restore points, and who is writing to it."""
    store = cached_archive_store(frame)
    try:
        archive = open_archive(store)
    except NoArchiveError:
        if is_java_archive(store):
            raise NoArchiveError(
                f"the folder of the Java tool at {store.url} has no restore points",
                "run 'kbackup info' to show its content, or 'kbackup restore' to restore it",
            ) from None
        raise
    if label is not None and label not in archive.state.labels:
        raise UsageError(f"no restore point has label {label!r}", "run 'kbackup list' to see all labels")
    points = [p for p in list_points(archive) if label is None or label in p.labels]
    lease, let_go = holder(store), archive.state.let_go
    _show(points, let_go, lease, frame.reporter)
    frame.reporter.document(
        {
            "archive": store.url,
            "archive_id": archive.info.id,
            "restore_points": points,
            "let_go": let_go,
            "held_by": _held_by(lease),
        }
    )


def _held_by(lease: Lease | None) -> dict[str, str | int] | None:
    if lease is None:
        return None
    names = ("command", "host", "pid", "acquired_at", "expires_at")
    return {name: getattr(lease, name) for name in names}


def _show(points: list[PointOverview], let_go: int, lease: Lease | None, reporter: Reporter) -> None:
    reporter.table(
        (
            *("number", "committed at", "age", "topics", "partitions", "new records", "bytes", "stored"),
            *(Column("groups", optional=True), Column("losses", optional=True, alarming=True)),
            *(Column("warnings", optional=True), Column("damaged", optional=True, alarming=True)),
            *(Column("kept", optional=True), Column("labels", optional=True)),
        ),
        map(_cells, points),
    )
    if let_go:
        reporter.note(f"{plural(let_go, 'restore point')} expired or lost; see 'kbackup log'")
    if lease is not None:
        reporter.note(f"locked by {describe(lease)}")


def _cells(point: PointOverview) -> tuple[Cell, ...]:
    return (
        point.number,
        point.committed_at,
        human_age(point.committed_at),
        point.topics,
        point.partitions,
        point.records,
        human_size(point.bytes),
        human_size(point.stored_bytes),
        point.groups,
        point.losses,
        point.warnings,
        point.damaged or None,
        "pinned" if point.pinned else None,
        ", ".join(point.labels) or None,
    )
