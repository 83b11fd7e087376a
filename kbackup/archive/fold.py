"""Writing checkpoints (`checkpoints` says what they are for), as the last thing that follows from a commit.

Parts are merged like the digits of a binary counter: there are few of them, and a row is written again only as
often as the archive has doubled since.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kbackup.archive import layout
from kbackup.archive.checkpoints import Covered, bare, folded
from kbackup.archive.models import (
    Checkpoint,
    FileSum,
    FoldedPart,
    FoldedPoints,
    Manifest,
    Point,
    dump,
    file_sum,
)
from kbackup.archive.reader import Archive
from kbackup.archive.segments import encode_folded, rows_where
from kbackup.errors import AlreadyExistsError, CorruptError, NotFoundError
from kbackup.store.base import Store

EVERY = 16
"""Restore points from one checkpoint to the next: as many manifests as are read at once."""
FULL = 500_000
"""Rows of a part that is not merged any more, so that memory stays bounded (some 200 bytes a row)."""


def fold(archive: Archive, manifest: Manifest, check: Callable[[], None], every: int = EVERY) -> None:
    """Write a checkpoint at `manifest`, the newest restore point, if there are `every` since the last; `check` is
    called before each write. What a crash left undone is made by the next run."""
    closed = archive.closed  # finds out whether the checkpoint counts
    covered = archive.covered
    since = covered.seq if covered is not None else 0
    new = [point for point in closed if since < point.seq <= manifest.seq]
    # groups and metadata alone are those of a number that is gone where a copy came from
    open_runs = [
        run
        for run in archive.runs
        if run.seq <= manifest.seq
        and layout.INTENT in run.files
        and layout.MANIFEST not in run.files
        and not archive.is_given_up(run.seq)
    ]
    if sum(point.status == "committed" for point in new) < every or open_runs:
        return
    old = list(covered.checkpoint.parts) if covered is not None else []
    part, points = _write_part(archive, old, new, check)
    checkpoint = Checkpoint(archive_id=archive.info.id, seq=manifest.seq, parts=(*old, part))
    check()
    _publish(archive.store, layout.checkpoint_key(manifest.seq, layout.CHECKPOINT), dump(checkpoint))
    kept = tuple(p for p in (covered.points if covered is not None else ()) if p.seq < part.first)
    archive.covered = Covered(checkpoint, (*kept, *points))
    archive.forget()
    check()
    _clear(archive.store, checkpoint, covered.checkpoint if covered is not None else None)


def _write_part(
    archive: Archive, old: list[FoldedPart], new: Sequence[Point], check: Callable[[], None]
) -> tuple[FoldedPart, list[Point]]:
    """A part of `new` and of those of `old` that it merges, which it takes off the list; without rows that the newest
    expiration accounts for."""
    upto = archive.expired.upto if archive.expired is not None else 0
    tables = [archive.unfolded(point for point in new if point.seq > upto)]
    rows = len(new) + sum(map(len, tables))
    first, last = old[-1].last + 1 if old else 1, new[-1].seq
    while old and old[-1].rows <= rows <= FULL:
        try:
            table = folded(archive.store, old[-1])
        except (CorruptError, NotFoundError):
            table = archive.unfolded(archive.points_of(old[-1]))
        tables.append(rows_where(table, table.column("seq").to_numpy() > upto))
        merged = old.pop()
        rows, first = rows + merged.rows, merged.first
    points = [bare(point) for point in archive.closed if first <= point.seq <= last]
    document = FoldedPoints(archive_id=archive.info.id, points=tuple(points))
    check()
    sums = [
        _put(archive.store, layout.checkpoint_key(last, layout.POINTS), dump(document, indent=-1)),
        _put(archive.store, layout.checkpoint_key(last, layout.SEGMENTS), encode_folded(tables)),
    ]
    return FoldedPart(first=first, last=last, rows=rows, points=sums[0], segments=sums[1]), points


def _put(store: Store, key: str, data: bytes) -> FileSum:
    _publish(store, key, data)
    return file_sum(data)


def _publish(store: Store, key: str, data: bytes) -> None:
    """Create; what a run that crashed here left, or what was damaged, is replaced where it is something else."""
    try:
        store.put_new(key, data)
    except AlreadyExistsError:
        if store.get(key) != data:
            store.put(key, data)


def _clear(store: Store, newest: Checkpoint, before: Checkpoint | None) -> None:
    """Older checkpoints go, but for the one before: somebody may be reading it. What a locked bucket does not let
    go yet is tried again next time."""
    kept = [newest, before] if before is not None else [newest]
    keys = {layout.checkpoint_key(each.seq, layout.CHECKPOINT) for each in kept}
    keys |= {
        layout.checkpoint_key(part.last, name)
        for each in kept
        for part in each.parts
        for name in (layout.POINTS, layout.SEGMENTS)
    }
    ours = {layout.CHECKPOINT, layout.POINTS, layout.SEGMENTS}
    old = []
    for entry in store.list(layout.CHECKPOINTS):
        parsed = layout.parse_checkpoint_key(entry.key)
        if parsed and parsed[0] < newest.seq and parsed[1] in ours and entry.key not in keys:
            old.append(entry.key)
    store.delete(old)
