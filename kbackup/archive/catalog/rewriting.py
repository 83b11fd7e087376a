"""Put rewritten segments in the place of others, and note which records are gone. Pure.

Segments are written once. A rewrite writes new ones, and one commit swaps them in: from then on nobody reads the old
ones, and a sweep deletes them after its grace time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kbackup.archive.catalog.operations import check_open
from kbackup.archive.catalog.state import ErasedRange, RewrittenRow, State
from kbackup.archive.catalog.tables import Rows, segment_rows
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.window import ranges_of
from kbackup.types import Int64Array


@dataclass(frozen=True, slots=True)
class Swap:
    """A segment and what stands in its place: the `new` one, or None where no record is left. `erased` are the offsets
    of the records that the new one lacks: int64, rising."""

    old: Segment
    new: Segment | None
    erased: Int64Array

    @property
    def lost_bytes(self) -> int:
        """The bytes of plain records files that are gone, magic byte included where the file is."""
        remaining = self.new.bytes if self.new is not None else 0
        return self.old.bytes - remaining


def swap_segments(state: State, run: str, rewrite: int, swaps: Sequence[Swap]) -> State:
    """Put new segments in the place of old ones, and note the records that they lack. `rewrite` is the number in the
    new names. A segment that has expired meanwhile stays out: what was made of it is an orphan."""
    check_open(state, run)
    old_keys = {swap.old.key for swap in swaps}
    points: dict[str, int] = {}
    for key, point in state.segments.rows("key", "point"):
        if key in old_keys:
            points[key] = point
    present = [swap for swap in swaps if swap.old.key in points]
    if not present:
        return state
    catalog = state.number + 1
    new_segments: list[Segment] = []
    new_points: list[int] = []
    erased: list[ErasedRange] = []
    rewritten: list[RewrittenRow] = []
    for swap in present:
        place = swap.old.incarnation_partition
        point = points[swap.old.key]
        if swap.new is not None:
            new_segments.append(swap.new)
            new_points.append(point)
        for start, end in ranges_of(swap.erased):
            erased.append(ErasedRange(*place, start, end, catalog, rewrite))
        row = RewrittenRow(
            *place,
            point=point,
            first=swap.old.first,
            last=swap.old.last,
            records=len(swap.erased),
            bytes=swap.lost_bytes,
            catalog=catalog,
            key=swap.old.key,
        )
        rewritten.append(row)
    added = segment_rows(new_segments, new_points)
    remaining = state.segments.without("key", points)
    return replace(
        state,
        segments=remaining.append(added),
        erased=state.erased.append(erased),
        rewritten=state.rewritten.append(rewritten),
    )


def segments_without_erased(state: State, erasing: State) -> Rows:
    """Return the segments of `state` without those that have records which `erasing` knows as erased, by a later
    rewrite than the one that wrote the segment."""
    if not len(erasing.erased):
        return state.segments

    def has_nothing_erased(topic: str, incarnation: int, partition: int, first: int, last: int, key: str) -> bool:
        return erasing.erased_in((topic, incarnation, partition), first, last, key) is None

    return state.segments.where(has_nothing_erased, "topic", "incarnation", "partition", "first", "last", "key")
