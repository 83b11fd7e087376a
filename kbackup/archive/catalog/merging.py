"""Choose which adjacent segments of an archive may become one. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kbackup.archive.catalog.rewriting import Swap, swap_segments
from kbackup.archive.catalog.state import State
from kbackup.archive.segments.table import Ordered, Segment, Segments, ordered
from kbackup.errors import LockedError, RefusedError
from kbackup.types import IncarnationPartition, Int64Array

_BESIDE = ("backup", "import")
"""Runs that a merge goes on beside: they only add segments."""


@dataclass(frozen=True, slots=True)
class MergeSizes:
    """Segments whose records file is smaller than `below` are merged, to segments of `largest` bytes at most. Both are
    sizes of plain records files."""

    below: int
    largest: int


@dataclass(frozen=True, slots=True)
class Merge:
    """Adjacent segments of a partition, in order, that may become one."""

    segments: tuple[Segment, ...]

    @property
    def bytes(self) -> int:
        return sum(segment.bytes for segment in self.segments)

    @property
    def records(self) -> int:
        return sum(segment.count for segment in self.segments)


def plan_merges(
    state: State, kept: Collection[int], ends: Mapping[IncarnationPartition, int], sizes: MergeSizes
) -> list[Merge]:
    """Return what to merge, by partition and offset. No restore point of `kept` ends between the segments of a merge.

    `ends` are offsets of partitions at which the next backup may add segments: nothing from there on is merged. An
    incarnation without such offsets has ended.
    """
    table = ordered([state.segments.read()])
    numbers = sorted(kept)
    damaged = damaged_starts(state)
    merges: list[Merge] = []
    checked = table.segments.checked()
    for place, part in table.places.items():
        joined = may_join(table, part, numbers, sizes.below, ends.get(place), damaged.get(place, ()))
        for run in runs(checked.integers("bytes")[part], joined, sizes.largest):
            if run.stop - run.start > 1:
                segments = checked[part.start + run.start : part.start + run.stop]
                merges.append(Merge(tuple(segments)))
    return merges


def may_join(
    table: Ordered, part: slice, kept: Sequence[int], below: int, end: int | None, damaged: Sequence[int]
) -> list[bool]:
    """Return for each segment of a partition whether it may become one with the segment before it. `kept` are restore
    points, rising; segments from the offset `end` on stay, and those at the `damaged` offsets are lost."""
    segments: Segments = table.segments[part]
    firsts = segments.integers("first")
    lasts = segments.integers("last")
    answers = np.zeros(len(segments), np.bool_)
    is_small = segments.integers("bytes") < below
    if end is not None:
        is_small &= lasts < end
    points = table.points[part]
    # A later restore point may have added segments between those of an earlier one. Whoever has followed the archive up
    # to a restore point has the records of a merged segment up to some offset: for that, the numbers rise.
    is_rising = points[1:] >= points[:-1]
    # A restore point has the segments with numbers up to its own. So segments with as many kept restore points below
    # their number are in the same restore points.
    before = np.searchsorted(np.array(kept, np.int64), points)
    is_same = before[1:] == before[:-1]
    answers[1:] = is_small[1:] & is_small[:-1] & is_rising & is_same
    for start in damaged:
        # A segment that was between these two is lost. A copy may still have it.
        at = int(np.searchsorted(firsts, start))
        if at < len(answers):
            answers[at] = False
    return [bool(answer) for answer in answers]


def damaged_starts(state: State) -> dict[IncarnationPartition, list[int]]:
    """Return the first offsets of the segments of each partition that are lost by damage."""
    starts: dict[IncarnationPartition, list[int]] = defaultdict(list)
    for row in state.damage:
        loss = row.loss
        if loss.partition is not None and loss.start is not None:
            starts[loss.topic, row.incarnation, loss.partition].append(loss.start)
    return starts


def runs(sizes: Int64Array, joins: Sequence[bool], largest: int) -> Iterator[slice]:
    """Yield the numbers of segments that become one, all of them in order: one or more, with `largest` bytes at most
    where there are several."""
    start = 0
    total = 0
    for at, (size, joins_before) in enumerate(zip(sizes.tolist(), joins, strict=True)):
        if at and joins_before and total + size <= largest:
            total += size
            continue
        if at > start:
            yield slice(start, at)
        start = at
        total = size
    if len(joins) > start:
        yield slice(start, len(joins))


def check_may_rewrite(state: State) -> None:
    """Raise an error if nobody may merge segments at the moment: in a copy, and beside a run that takes segments out of
    the archive or puts them back."""
    if state.origin is not None:
        raise RefusedError(
            f"this archive is a copy of {state.origin.archive}", "rewrite there, then run 'kbackup copy' again"
        )
    opened = state.open_run
    if opened is not None and opened.command not in _BESIDE:
        raise LockedError(
            f"'kbackup {opened.command}' of {opened.host}, begun at {opened.started_at}, has not ended",
            "merge when it has ended; if it was interrupted, repeat it first",
        )


def begin_merge(state: State) -> State:
    """Take a number for a merge: that of the catalog in which nothing else changes. A later erasure has a higher one,
    so what this merge leaves behind if it is interrupted never counts as free of what was erased."""
    check_may_rewrite(state)
    # Another value: the same one would not be committed.
    return replace(state)


def merge_segments(state: State, rewrite: int, swept: int, swaps: Sequence[Swap]) -> State:
    """Put merged segments in the place of old ones, as `swap_segments` does. `rewrite` is the number of the merge, and
    `swept` what was swept when it began: a sweep since may have deleted new segments, to which nothing refers yet."""
    check_may_rewrite(state)
    if state.swept != swept:
        raise RefusedError(
            "a sweep has deleted orphans since the merge began, and perhaps merged segments with them",
            "run the command again",
        )
    return swap_segments(state, rewrite, swaps)
