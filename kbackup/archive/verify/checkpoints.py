"""Checkpoints against the manifests and segment tables that they were made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from kbackup.archive import layout
from kbackup.archive.checkpoints import HINT, bare, folded, read_head, read_points
from kbackup.archive.expired import gone_with
from kbackup.archive.models import Checkpoint, FoldedPart, Point
from kbackup.archive.segments import SCHEMA, Segment, from_batches, in_order
from kbackup.archive.verify.findings import Findings
from kbackup.archive.verify.points import Points, Sizes
from kbackup.store.base import Store

_THREADS = 8


def check_checkpoints(store: Store, points: Points, sizes: Sizes, findings: Findings) -> None:
    """Every checkpoint that is there and every part that one names; `points.whole` falls where a manifest is gone that
    one has seen."""
    found = Findings()
    heads = list(_heads(store, points, sizes, found))
    parts = {part for head in heads for part in head.parts}
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(lambda part: _check_points(store, part, points, sizes, found), parts))
        list(pool.map(lambda part: _check_segments(store, part, points, found), parts))
    if _names(sizes) == _names(entry.key for entry in store.list(layout.CHECKPOINTS)):
        findings.found |= found.found
    else:
        findings.note(layout.CHECKPOINTS, "could not be judged now: a backup writes there")


def _names(keys: Iterable[str]) -> set[str]:
    return {key for key in keys if key.startswith(layout.CHECKPOINTS)}


def _heads(store: Store, points: Points, sizes: Sizes, findings: Findings) -> Iterator[Checkpoint]:
    for key in sizes:
        parsed = layout.parse_checkpoint_key(key)
        if parsed is not None and parsed[1] == layout.CHECKPOINT:
            with findings.catching(key):
                yield read_head(store, parsed[0], points.archive_id)


def _check_points(store: Store, part: FoldedPart, points: Points, sizes: Sizes, findings: Findings) -> None:
    key = layout.checkpoint_key(part.last, layout.POINTS)
    found: dict[int, Point] | None = None
    with findings.catching(key, HINT):
        found = {point.seq: point for point in read_points(store, part, points.archive_id)}
    if found is None:
        return
    for seq in (seq for seq in found if gone_with(points.gone, seq) is None):
        manifest = layout.backup_key(seq, layout.MANIFEST)
        if manifest not in sizes:
            with findings.catching(manifest):
                store.stat(manifest)  # it may have come since the listing
                continue
            points.whole = False
        elif seq in points.closed and bare(points.closed[seq]) != found[seq]:
            findings.add(key, f"says something else of number {seq} than its manifest", HINT)
    for seq in points.closed.keys() - found.keys():
        if part.first <= seq <= part.last:
            findings.add(key, f"says nothing of number {seq}", HINT)


def _check_segments(store: Store, part: FoldedPart, points: Points, findings: Findings) -> None:
    key = layout.checkpoint_key(part.last, layout.SEGMENTS)
    found: dict[int, list[Segment]] = {}
    read = False
    with findings.catching(key, HINT):
        table = folded(store, part)
        rows = from_batches(table.select(SCHEMA.names).to_batches())
        for segment, seq in zip(rows, table.column("seq").to_numpy().tolist(), strict=True):
            found.setdefault(seq, []).append(segment)
        read = True
    if not read:
        return
    due = {seq: table for seq, table in points.added.items() if part.first <= seq <= part.last and table}
    known = points.added.keys() | (points.closed.keys() - {m.seq for m in points.committed})
    if points.expired is not None:  # up to there its own table counts
        known = {seq for seq in known if seq > points.expired.upto}
    for seq in sorted((due.keys() | found.keys()) & known):
        if sorted(found.get(seq, []), key=in_order) != sorted(due.get(seq, []), key=in_order):
            findings.add(key, f"has other segments than restore point {seq} added", HINT)
