"""Records that restore points promise and that no segment has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from kbackup.archive import layout
from kbackup.archive.catalog.operations import loss_row
from kbackup.archive.catalog.state import LogStart, State
from kbackup.archive.models import Loss, Manifest, PartitionState
from kbackup.archive.repair.attribution import Starts, damaged_ranges, partitions_of
from kbackup.archive.repair.base import Sizes
from kbackup.errors import CorruptError, NotFoundError
from kbackup.formats.index import decode_partition_index
from kbackup.store.base import Store
from kbackup.types import IncarnationPartition


def named_starts(store: Store, sizes: Sizes) -> dict[IncarnationPartition, list[int]]:
    """Return the first offsets that partition indexes name; without damaged indexes, whose names and offsets don't
    agree."""
    starts_by_partition: dict[IncarnationPartition, list[int]] = {}
    for key in sizes:
        parsed = layout.parse_topic_key(key)
        partition = layout.parse_partition_index(parsed[1]) if parsed is not None else None
        if parsed is not None and partition is not None:
            with suppress(CorruptError, NotFoundError):
                entries = decode_partition_index(store.get(key), key)
                starts = [entry.start_offset for entry in entries]
                names = [layout.parse_segment(f"{entry.name}_index") for entry in entries]
                if [name and name[:2] for name in names] == [(partition, start) for start in starts]:
                    starts_by_partition[*parsed[0], partition] = starts
    return starts_by_partition


def missing_segments(state: State, manifests: Mapping[int, Manifest], named: Starts) -> list[dict[str, Any]]:
    """Return rows of `tables.LOSSES` for records that restore points promise and no segment has: segments that a
    partition index names, and between two restore points fewer records than their manifests count."""
    names = ("topic", "incarnation", "partition", "first", "last", "count", "point")
    sums: dict[IncarnationPartition, list[tuple[int, int]]] = defaultdict(list)
    firsts: dict[IncarnationPartition, set[int]] = defaultdict(set)
    columns = state.segments.columns(*names)
    for topic, incarnation, partition, first, _, count, point in zip(*columns, strict=True):
        row_key = (topic, incarnation, partition)
        sums[row_key].append((point, count))
        firsts[row_key].add(first)
    damaged = damaged_ranges(state)
    rows: list[dict[str, Any]] = []
    for key, states in partitions_of(manifests).items():
        start = state.starts[key].start if key in state.starts else 0
        holes = list(damaged.get(key, ()))
        last = max(p.end for _, p in states)
        starts = [first for first in named.get(key, ()) if start <= first < last]
        for first, end in zip(starts, [*starts[1:], last], strict=False):
            if first not in firsts[key] and not any(a <= first <= b for a, b in holes):
                point = next(number for number, p in states if p.end > first)
                rows.append(_hole(point, key, first, end, "the segment is missing or damaged"))
                holes.append((first, end - 1))
        rows += _uncounted(key, states, state.starts.get(key), sums[key], holes)
    return rows


def _uncounted(
    key: IncarnationPartition,
    states: Sequence[tuple[int, PartitionState]],
    log_start: LogStart | None,
    sums: Sequence[tuple[int, int]],
    holes: Sequence[tuple[int, int]],
) -> Iterable[dict[str, Any]]:
    start, let_go = (log_start.start, log_start.records) if log_start is not None else (0, 0)
    lacking = 0
    for number, p in states:
        if p.end <= start:
            continue
        missing = p.records - let_go - sum(count for point, count in sums if point <= number)
        first, start = max(start, p.start), p.end
        explained = any(a < p.end and first <= b for a, b in holes)
        if missing > lacking and not explained:
            yield _hole(number, key, first, p.end, "some of these records are missing")
        lacking = max(lacking, missing)


def _hole(point: int, key: IncarnationPartition, start: int, end: int, why: str) -> dict[str, Any]:
    message = f"offsets {start} to {end - 1} of {key[0]}-{key[2]}: {why}"
    loss = Loss(kind="damaged", topic=key[0], partition=key[2], start=start, end=end, message=message)
    return loss_row(point, key[1], loss)
