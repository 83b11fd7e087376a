"""Put rewritten segments in the place of others, and note which records are gone. Pure.

Segments are written once. A rewrite writes new ones, and one commit swaps them in: from then on nobody reads the old
ones, and a sweep deletes them after its grace time. An erasure writes single segments anew without some records, a
merge writes several as one, and a compaction leaves out what no kept restore point needs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kbackup.archive import layout
from kbackup.archive.catalog.operations import check_open
from kbackup.archive.catalog.state import ErasedRange, RewrittenRow, State
from kbackup.archive.catalog.tables import Rows, segment_rows
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.window import ranges_of
from kbackup.errors import RefusedError
from kbackup.types import IncarnationPartition, Int64Array

NOTHING_ERASED: Int64Array = np.empty(0, np.int64)
"""The erased offsets of a swap that keeps every record."""


@dataclass(frozen=True, slots=True)
class Swap:
    """Adjacent segments of a partition, in order, and what stands in their place: the `new` one, or None where no
    record is left. `erased` are the offsets of the records that it lacks because they were erased: int64, rising. A
    compacted one lacks superseded records as well."""

    old: tuple[Segment, ...]
    new: Segment | None
    erased: Int64Array

    @property
    def incarnation_partition(self) -> IncarnationPartition:
        return self.old[0].incarnation_partition

    @property
    def lost_records(self) -> int:
        """How many records are gone: erased and superseded ones."""
        remaining = self.new.count if self.new is not None else 0
        return sum(old.count for old in self.old) - remaining

    @property
    def lost_bytes(self) -> int:
        """The bytes of plain records files that are gone, magic bytes included where files are."""
        remaining = self.new.bytes if self.new is not None else 0
        return sum(old.bytes for old in self.old) - remaining


def erase_segments(state: State, run: str, rewrite: int, swaps: Sequence[Swap]) -> State:
    """Put segments without the erased records in the place of single ones. `RefusedError` if one of these was merged
    with others since: the records would stay."""
    check_open(state, run)
    searched = {old.key for swap in swaps for old in swap.old}
    merged = searched.intersection(row.key for row in state.rewrites)
    if merged:
        raise RefusedError(
            f"segment {min(merged)} was rewritten while its records were searched; nothing was erased",
            "run the command again",
        )
    return swap_segments(state, rewrite, swaps)


def swap_segments(state: State, rewrite: int, swaps: Sequence[Swap]) -> State:
    """Put new segments in the place of old ones, and note the records that they lack. `rewrite` is the number in the
    new names. What the state does not permit any more stays out, and the segment that was made for it is an orphan:
    where an old segment has expired meanwhile, was found damaged or was rewritten, where a restore point ends between
    two old ones, or needs records that a compacted one lacks, or another segment lies there.
    """
    points = _points_of(state, swaps)
    divided = _divided(state, swaps)
    present = [swap for swap in swaps if swap.old[0].key not in divided and _may_swap(state, swap, points)]
    if not present:
        return state
    catalog = state.number + 1
    new_segments: list[Segment] = []
    new_points: list[int] = []
    erased: list[ErasedRange] = []
    rewritten: list[RewrittenRow] = []
    for swap in present:
        place = swap.incarnation_partition
        if swap.new is not None:
            new_segments.append(swap.new)
            new_points.append(points[swap.old[-1].key])
        for start, end in ranges_of(swap.erased):
            erased.append(ErasedRange(*place, start, end, catalog, rewrite))
        rewritten += _rewritten_rows(swap, points, catalog)
    added = segment_rows(new_segments, new_points)
    swapped = {row.key for row in rewritten}
    remaining = state.segments.without("key", swapped)
    return replace(
        state,
        # The new objects may be older than catalogs that do not refer to them: this one decides in a sweep as well.
        reinstated=catalog,
        segments=remaining.append(added),
        erased=state.erased.append(erased),
        rewritten=state.rewritten.append(rewritten),
    )


def _points_of(state: State, swaps: Sequence[Swap]) -> dict[str, int]:
    """Return the restore point that added each old segment, by its key; nothing of one that is not listed."""
    old_keys: set[str] = set()
    for swap in swaps:
        old_keys.update(old.key for old in swap.old)
    points: dict[str, int] = {}
    for key, point in state.segments.rows("key", "point"):
        if key in old_keys:
            points[key] = point
    return points


def _divided(state: State, swaps: Sequence[Swap]) -> set[str]:
    """Return the first keys of the swaps between whose old segments there is another one, as a repair may add it."""
    several = [swap for swap in swaps if len(swap.old) > 1]
    if not several:
        return set()
    places = {swap.incarnation_partition for swap in several}
    firsts: dict[IncarnationPartition, list[int]] = defaultdict(list)
    for topic, incarnation, partition, first in state.segments.rows("topic", "incarnation", "partition", "first"):
        if (topic, incarnation, partition) in places:
            firsts[topic, incarnation, partition].append(first)
    divided: set[str] = set()
    for place in places:
        firsts[place].sort()
    for swap in several:
        own = firsts[swap.incarnation_partition]
        inside = bisect_right(own, swap.old[-1].last) - bisect_left(own, swap.old[0].first)
        if inside > len(swap.old):
            divided.add(swap.old[0].key)
    return divided


def _may_swap(state: State, swap: Swap, points: Mapping[str, int]) -> bool:
    """Return whether all old segments of a swap are listed, every restore point has all of them or none, and none needs
    what was superseded."""
    if not all(old.key in points for old in swap.old):
        return False
    numbers = np.array([points[old.key] for old in swap.old], np.int64)
    # A restore point has the segments up to its own number. These rise, and no restore point is between two of them.
    is_rising = bool((np.diff(numbers) >= 0).all())
    # What was superseded is needed by those with the segments that are older than the one the new segment was made for.
    oldest = layout.compacted_of(swap.new.key) if swap.new is not None else 0
    last = max(int(numbers[-1]), oldest)
    before_first, before_last = np.searchsorted(state.numbers, [numbers[0], last])
    return is_rising and before_first == before_last


def _rewritten_rows(swap: Swap, points: Mapping[str, int], catalog: int) -> list[RewrittenRow]:
    """Return the rows of the segments that a swap replaces. The last one has what is gone of all of them: a restore
    point counts the segments together or not at all."""
    rows: list[RewrittenRow] = []
    for old in swap.old:
        is_last = old is swap.old[-1]
        row = RewrittenRow(
            *swap.incarnation_partition,
            point=points[old.key],
            first=old.first,
            last=old.last,
            records=swap.lost_records if is_last else 0,
            bytes=swap.lost_bytes if is_last else 0,
            catalog=catalog,
            key=old.key,
        )
        rows.append(row)
    return rows


def segments_without_erased(state: State, erasing: State) -> Rows:
    """Return the segments of `state` without those that have records which `erasing` knows as erased, by a later
    rewrite than the one that wrote the segment."""
    if not len(erasing.erased):
        return state.segments

    def has_nothing_erased(topic: str, incarnation: int, partition: int, first: int, last: int, key: str) -> bool:
        return erasing.erased_in((topic, incarnation, partition), first, last, key) is None

    return state.segments.where(has_nothing_erased, "topic", "incarnation", "partition", "first", "last", "key")
