"""Distribute the offsets that a backup reads over Spark tasks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from kbackup.types import OffsetRange, TopicPartition

PACK_PARTITIONS = 256  # partitions that share a task and its consumer, at most


def without(
    ranges: Iterable[OffsetRange], taken: Mapping[TopicPartition, Sequence[tuple[int, int]]]
) -> list[OffsetRange]:
    """Return `ranges` without the intervals (first, last), both inclusive and disjoint, that are `taken`."""
    remaining: list[OffsetRange] = []
    for offsets in ranges:
        at = offsets.start
        for first, last in sorted(taken.get(offsets.tp, ())):
            if first > at:
                remaining.append(offsets._replace(start=at, end=min(first, offsets.end)))
            at = max(at, last + 1)
        remaining.append(offsets._replace(start=min(at, offsets.end)))
    return [r for r in remaining if r.start < r.end]


def make_tasks(
    ranges: Iterable[OffsetRange], split_records: int, pack_records: int
) -> list[list[OffsetRange]]:
    """Distribute ranges over tasks.

    A range of more than `split_records` offsets is cut; ranges of fewer than `pack_records` share a task. `ranges` of
    one partition are neighbours; no task has two of them, since its consumer reads one range of a partition.
    Sizes are in offsets, since the records of a range are unknown before it is read. Big tasks come first, so that no
    long task runs alone at the end.
    """
    alone: list[list[OffsetRange]] = []
    packs: list[list[OffsetRange]] = []
    room = 0
    for offsets in ranges:
        size = offsets.end - offsets.start
        if size >= pack_records:
            alone += [[stretch] for stretch in _cut(offsets, split_records)]
        elif size > 0:
            if (
                not packs
                or size > room
                or len(packs[-1]) == PACK_PARTITIONS
                or packs[-1][-1].tp == offsets.tp
            ):
                packs.append([])
                room = pack_records
            packs[-1].append(offsets)
            room -= size
    return sorted(alone + packs, key=lambda task: -sum(r.end - r.start for r in task))


def _cut(offsets: OffsetRange, split_records: int) -> list[OffsetRange]:
    size = offsets.end - offsets.start
    count = -(-size // split_records)
    marks = [offsets.start + size * i // count for i in range(count + 1)]
    return [offsets._replace(start=a, end=b) for a, b in pairwise(marks)]
