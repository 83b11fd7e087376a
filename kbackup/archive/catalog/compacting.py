"""Choose what a compaction of an archive looks at, and what it leaves out. Pure.

A record is superseded if the archive has a later one with its key. Restore points need it if they end between the two.
The oldest restore point that is kept has all records up to its end, and so have all later ones: there each restores the
same latest record of each key without what was superseded by then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from kbackup.archive.catalog.merging import check_may_rewrite, damaged_starts, may_join, runs
from kbackup.archive.catalog.state import CompactedRow, State
from kbackup.archive.segments.table import Segment, ordered
from kbackup.types import Incarnation, IncarnationPartition, Int64Array

_WORTHWHILE = 0.2
"""The part of a partition's bytes that has to be new before it is looked at again, and the part of a segment's bytes
that has to be superseded before it is written anew: so what is read and written stays within five times of what is
gained."""
_ANY_SIZE = 1 << 62


@dataclass(frozen=True, slots=True)
class Candidate:
    """The segments of a partition, in order, that restore point `point` has: the oldest one that is kept. `joins` tells
    of each whether it may become one with the segment before it."""

    segments: tuple[Segment, ...]
    joins: tuple[bool, ...]
    point: int

    @property
    def incarnation_partition(self) -> IncarnationPartition:
        return self.segments[0].incarnation_partition

    @property
    def records(self) -> int:
        return sum(segment.count for segment in self.segments)

    @property
    def bytes(self) -> int:
        return sum(segment.bytes for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Compaction:
    """Adjacent segments of a partition, in order, that may become one without the records at the offsets `superseded`
    (int64, rising). Restore points before `point` need these."""

    segments: tuple[Segment, ...]
    superseded: Int64Array
    point: int


@dataclass(frozen=True, slots=True)
class Superseded:
    """The offsets of a partition's superseded records, rising, and their bytes in a records file. int64 both."""

    offsets: Int64Array
    lengths: Int64Array


def candidates(
    state: State,
    kept: Collection[int],
    ends: Mapping[IncarnationPartition, int],
    is_compacted: Callable[[Incarnation, int], bool],
) -> Iterator[Candidate]:
    """Yield the partitions in which a compaction looks for superseded records, in order.

    `kept` are the restore points that are listed or may be again, `ends` the offsets of partitions at which the next
    backup may add segments. `is_compacted` tells whether a topic keeps the latest record of each key alone, from a
    restore point on.
    """
    table = ordered([state.segments.read()])
    checked = table.segments.checked()
    numbers = sorted(kept)
    damaged = damaged_starts(state)
    for place, part in table.places.items():
        points = table.points[part]
        # The oldest restore point that has any of these segments.
        at = bisect_left(numbers, int(points.min()))
        if at == len(numbers) or not is_compacted(place[:2], numbers[at]):
            continue
        oldest = numbers[at]
        segments = checked[part]
        is_in_oldest = points <= oldest
        if place in ends:
            is_in_oldest &= segments.integers("last") < ends[place]
        if not _is_due(segments.integers("bytes"), points, is_in_oldest, state.compactions.get(place)):
            continue
        joins = may_join(table, part, [oldest], _ANY_SIZE, ends.get(place), damaged.get(place, ()))
        chosen: list[Segment] = []
        chosen_joins: list[bool] = []
        was_chosen = False
        for segment, is_in, joins_before in zip(segments, is_in_oldest.tolist(), joins, strict=True):
            if is_in:
                chosen.append(segment)
                chosen_joins.append(joins_before and was_chosen)
            was_chosen = is_in
        yield Candidate(tuple(chosen), tuple(chosen_joins), oldest)


def _is_due(sizes: Int64Array, points: Int64Array, is_in: np.ndarray, last: CompactedRow | None) -> bool:
    """Return whether enough bytes are new since a partition was last looked at."""
    total = int(sizes[is_in].sum())
    since = last.point if last is not None else 0
    new = int(sizes[is_in & (points > since)].sum())
    return new > 0 and new >= _WORTHWHILE * total


def compactions(candidate: Candidate, superseded: Superseded, largest: int) -> Iterator[Compaction]:
    """Yield which segments are written anew without their superseded records, together with their neighbours up to
    `largest` bytes. The first and the last record of each stay: so the new segment has the same place."""
    firsts = np.array([segment.first for segment in candidate.segments], np.int64)
    # Behind each segment's own records: how many are superseded by there, and how many bytes.
    edges = np.append(np.searchsorted(superseded.offsets, firsts), len(superseded.offsets))
    bytes_before = np.append(0, np.cumsum(superseded.lengths))
    sizes = np.array([segment.bytes for segment in candidate.segments], np.int64)
    gone = np.diff(bytes_before[edges])
    for run in runs(sizes - gone, candidate.joins, largest):
        if gone[run].sum() < _WORTHWHILE * sizes[run].sum():
            continue
        segments = candidate.segments[run]
        offsets = superseded.offsets[edges[run.start] : edges[run.stop]]
        is_inside = (offsets > segments[0].first) & (offsets < segments[-1].last)
        left_out = offsets[is_inside]
        if len(left_out):
            yield Compaction(segments, left_out, candidate.point)


def note_compaction(state: State, looked_at: Collection[Candidate]) -> State:
    """Note which partitions were looked through, so that the next compaction waits for new records."""
    check_may_rewrite(state)
    catalog = state.number + 1
    rows = [CompactedRow(*each.incarnation_partition, each.point, catalog) for each in looked_at]
    places = {row.incarnation_partition for row in rows}

    def is_other(topic: str, incarnation: int, partition: int) -> bool:
        return (topic, incarnation, partition) not in places

    others = state.compacted.where(is_other, "topic", "incarnation", "partition")
    return replace(state, compacted=others.append(rows))
