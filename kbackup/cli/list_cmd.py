"""`kbackup list`: the restore points of an archive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import click

from kbackup.archive.expired import read_pins
from kbackup.archive.java import is_java_archive
from kbackup.archive.lease import describe, holder
from kbackup.archive.models import Lease
from kbackup.archive.overview import ExpiredPoints, PointOverview, expired_points, list_points
from kbackup.archive.reader import open_archive
from kbackup.cli.caching import looked_into
from kbackup.cli.frame import Frame, pass_frame
from kbackup.cli.human import human_size, plural
from kbackup.cli.options import archive_argument, archive_option, cache_option, common_options, s3_options
from kbackup.cli.output import Reporter
from kbackup.errors import NoArchiveError


@click.command("list")
@archive_argument
@common_options
@archive_option
@click.option("--all", "everything", is_flag=True, help="Also numbers of runs that committed nothing.")
@cache_option
@s3_options
@pass_frame
def command(frame: Frame, everything: bool) -> None:
    """List an archive's restore points, and who is writing to it at this moment."""
    store = looked_into(frame)
    try:
        archive = open_archive(store)
    except NoArchiveError:
        if is_java_archive(store):
            raise NoArchiveError(
                f"the folder of the Java tool at {store.url} has no restore points",
                "'kbackup info' shows what it holds, 'kbackup restore' restores it as it is",
            ) from None
        raise
    pins = read_pins(store, archive.info.id)
    points = [
        replace(p, pinned=p.number in pins)
        for p in list_points(archive)
        if everything or p.status == "committed"
    ]
    lease, expired = holder(store), expired_points(archive)
    _show(points, expired, lease, frame.reporter)
    frame.reporter.document(
        {
            "archive": store.url,
            "archive_id": archive.info.id,
            "restore_points": points,
            "expired": expired,
            "held_by": _held_by(lease),
        }
    )


def _held_by(lease: Lease | None) -> dict[str, str | int] | None:
    if lease is None:
        return None
    names = ("command", "host", "pid", "acquired_at", "expires_at")
    return {name: getattr(lease, name) for name in names}


def _show(
    points: list[PointOverview], expired: Sequence[ExpiredPoints], lease: Lease | None, reporter: Reporter
) -> None:
    any_pinned = any(p.pinned for p in points)
    reporter.table(
        (
            *("number", "committed at", "parent", "topics", "partitions", "new records"),
            *("bytes", "stored", "groups", "losses", "warnings"),
            *(["kept"] if any_pinned else []),
        ),
        [
            (
                p.number,
                p.committed_at or p.status,
                p.parent,
                p.topics,
                p.partitions,
                p.records,
                human_size(p.bytes) if p.bytes is not None else None,
                human_size(p.stored_bytes) if p.stored_bytes is not None else None,
                p.groups,
                len(p.losses),
                len(p.warnings),
                *(["pinned" if p.pinned else None] if any_pinned else []),
            )
            for p in points
        ],
    )
    for some in expired:
        count = plural(some.restore_points, "restore point")
        reporter.note(f"{count} from {some.after + 1} to {some.last} expired on {some.expired_at}")
    if lease is not None:
        reporter.note(f"locked by {describe(lease)}")
