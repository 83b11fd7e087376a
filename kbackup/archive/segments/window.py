"""Which records of a partition are selected: by their timestamps, by their offsets, or both. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from kbackup.archive.models import Member
from kbackup.archive.segments.table import Segment
from kbackup.formats.block import heads, select_records, slice_block
from kbackup.types import Int64Array, Offsets, RecordBlock

MOST = 2**63 - 1
EVERY_OFFSET: Offsets = ((0, MOST),)


def joined(ranges: Iterable[tuple[int, int]]) -> Offsets:
    """Return the same offsets as disjoint, rising ranges."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        elif low < high:
            merged.append((low, high))
    return tuple(merged)


def ranges_of(offsets: Int64Array) -> Offsets:
    """Return rising offsets as ranges. Offsets between two of them stay out."""
    if not len(offsets):
        return ()
    breaks = np.flatnonzero(np.diff(offsets) > 1)
    firsts = offsets[np.concatenate(([0], breaks + 1))]
    lasts = offsets[np.concatenate((breaks, [len(offsets) - 1]))]
    return tuple(zip(firsts.tolist(), (lasts + 1).tolist(), strict=True))


def without(ranges: Offsets, skipped: Iterable[tuple[int, int]]) -> Offsets:
    """Return `ranges` without the offsets in `skipped`, which are disjoint and rising as well."""
    rest: list[tuple[int, int]] = []
    for start, end in ranges:
        for low, high in skipped:
            if high <= start or end <= low:
                continue
            if start < low:
                rest.append((start, low))
            start = high
        if start < end:
            rest.append((start, end))
    return tuple(rest)


def common(one: Offsets, other: Offsets) -> Offsets:
    """Return the offsets that are in both. Each has disjoint, rising ranges, of which there may be a million: both are
    walked side by side, once."""
    found: list[tuple[int, int]] = []
    i = j = 0
    while i < len(one) and j < len(other):
        low = max(one[i][0], other[j][0])
        high = min(one[i][1], other[j][1])
        if low < high:
            found.append((low, high))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


def pieces(block: RecordBlock, skipped: Offsets) -> Iterator[RecordBlock]:
    """Yield the parts of a block between the offsets in `skipped`; the block as it is if nothing is skipped."""
    if not skipped:
        yield block
        return
    offsets = np.array(skipped, np.int64).ravel()
    edges = np.searchsorted(block.offsets, offsets).tolist()
    start = 0
    for skip_from, skip_to in zip(edges[::2], edges[1::2], strict=True):
        if start < skip_from:
            yield slice_block(block, start, skip_from)
        start = skip_to
    if start < len(block):
        yield slice_block(block, start, len(block))


class Gaps(NamedTuple):
    """Offsets from each of `starts` to the same of `ends` (exclusive), disjoint and rising. int64 both."""

    starts: Int64Array
    ends: Int64Array

    def outside(self, offsets: Int64Array) -> npt.NDArray[np.bool_]:
        """Return which of some offsets are in none of the gaps."""
        if not len(self.starts):
            return np.ones(len(offsets), np.bool_)
        before = np.searchsorted(self.starts, offsets, side="right") - 1
        # Before the first gap `before` is -1, the last one: offsets there are smaller than any start.
        is_inside = (before >= 0) & (offsets < self.ends[before])
        return ~is_inside


NO_GAPS = Gaps(np.empty(0, np.int64), np.empty(0, np.int64))


class Window(Member, frozen=True, kw_only=True):
    """A selection of records by timestamps `from_time` <= t <= `to_time` (ms since the epoch) and offsets in one of
    `ranges`. None is no bound. A record without a timestamp is in no window that has a bound in time: nobody knows when
    it was written.

    `where` is an expression of jq that a record must satisfy as well. `cut` does not test it: whoever reads the records
    does."""

    from_time: int | None = None
    to_time: int | None = None
    ranges: Offsets | None = None
    where: str | None = None

    @property
    def timed(self) -> bool:
        return self.from_time is not None or self.to_time is not None

    @property
    def nothing(self) -> bool:
        """True if the partition is not asked for at all."""
        return self.ranges == ()

    def at_offsets(self, start: int | None, end: int | None) -> Window:
        """Return the window of these times, limited to offsets from `start` to `end` (exclusive); None is no bound."""
        if not start and end is None:
            return self
        ranges = ((start or 0, MOST if end is None else end),)
        return replace(self, ranges=ranges)

    def inside(self, other: Window) -> Window:
        """Return this window, limited to the offsets of `other`."""
        if other.ranges is None:
            return self
        if self.ranges is None:
            return replace(self, ranges=other.ranges)
        return replace(self, ranges=common(self.ranges, other.ranges))

    def may_hold(self, segment: Segment) -> bool:
        """Return whether a record of the segment can lie in the window, by its descriptor. A segment without timestamps
        may: the Java tool's files don't record them."""
        if not self._offsets(segment):
            return False
        low, high = segment.min_timestamp, segment.max_timestamp
        early = high is not None and self.from_time is not None and high < self.from_time
        late = low is not None and self.to_time is not None and low > self.to_time
        return not early and not late

    def ranges_in(self, segment: Segment) -> Offsets:
        """Return the selected ranges of offsets, which may reach beyond a segment; without any, the segment's own."""
        if self.ranges is None:
            return ((segment.first, segment.last + 1),)
        return self.ranges

    def at_most(self, segment: Segment) -> int:
        """Return the greatest number of records of a segment that can lie in the window."""
        if not self.may_hold(segment):
            return 0
        return min(segment.count, self._offsets(segment))

    def counts(self, segment: Segment) -> bool:
        """Return whether `at_most` is the exact number: no record needs to be read for it."""
        if not self.may_hold(segment):
            return True
        if self.timed or self.where is not None:
            return False
        span = segment.last + 1 - segment.first
        return segment.count == span or self._offsets(segment) == span

    def _offsets(self, segment: Segment) -> int:
        """Return how many of the offsets that the segment spans are in the window."""
        first, end = segment.first, segment.last + 1
        if self.ranges is None:
            return end - first
        return sum(min(b, end) - max(a, first) for a, b in self._near(first, end))

    def _near(self, first: int, end: int) -> Offsets:
        """Return the ranges that have some of the offsets from `first` to `end` (exclusive). A window may have a
        million ranges, one for each record that is left out: so they are searched, not walked."""
        ranges = self.ranges or ()
        low = bisect_right(ranges, first, key=_end_of)
        high = bisect_left(ranges, end, low, key=_start_of)
        return ranges[low:high]

    def clip(self, low: int | None, high: int | None) -> tuple[int | None, int | None]:
        """Return bounds on the timestamps of the records in the window, where all have timestamps between `low` and
        `high`."""
        if low is None or high is None:
            return low, high
        if self.from_time is not None:
            low = max(low, self.from_time)
        if self.to_time is not None:
            high = min(high, self.to_time)
        return low, high

    def cut(self, block: RecordBlock) -> tuple[RecordBlock, int]:
        """Return the block's records in the window, and how many were left out only because they have no timestamp."""
        if not len(block):
            return block, 0
        selected = np.ones(len(block), np.bool_)
        if self.ranges is not None:
            near = self._near(int(block.offsets[0]), int(block.offsets[-1]) + 1)
            # Ranges are disjoint and rise: an offset with an odd number of edges at or below it is in one of them.
            edges = np.array(near, np.int64).ravel()
            passed = np.searchsorted(edges, block.offsets, side="right")
            selected &= passed % 2 == 1
        untimed = 0
        if self.timed:
            head = heads(block.data, block.positions)
            timed = head["type"] >= 0
            untimed = int(np.count_nonzero(selected & ~timed))
            selected &= timed
            if self.from_time is not None:
                selected &= head["timestamp"] >= self.from_time
            if self.to_time is not None:
                selected &= head["timestamp"] <= self.to_time
        return select_records(block, selected), untimed


def _start_of(offsets: tuple[int, int]) -> int:
    return offsets[0]


def _end_of(offsets: tuple[int, int]) -> int:
    return offsets[1]


EVERYTHING = Window()


class Choice(Member, frozen=True, kw_only=True):
    """The restore points that a window in time or in offsets selected, and why.

    `skipped` are ranges that are left out, `where` an expression of jq for the records. `as_of` is the restore point
    whose topics and configs were chosen; `groups_as_of` is the restore point whose groups were chosen, captured at
    `groups_captured_at`. Each is null if there is none. `notes` are the reasons. `left_out` names what holds records in
    the window and is not restored, and how far the archive does not reach into the window."""

    from_time: int | None = None
    to_time: int | None = None
    ranges: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    where: str | None = None
    as_of: int | None = None
    groups_as_of: int | None = None
    groups_captured_at: str | None = None
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
