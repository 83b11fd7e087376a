"""Reading many segments side by side: units of work of about the same size, and their records as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from kbackup.archive.segments.read import SegmentRanges, read_segment
from kbackup.archive.segments.rows import to_table_batch
from kbackup.archive.segments.table import Segment, rows_of
from kbackup.archive.segments.window import EVERYTHING, Window
from kbackup.formats.block import slice_block
from kbackup.store.base import Store
from kbackup.types import RecordBlock
from kbackup.util.system import cut

PART_BYTES = 32 << 20  # small ranges are packed into one unit up to this
CUT_BYTES = 256 << 20
"""A larger segment is cut into ranges, and only a segment that is read whole is held against its checksum. So this is
twice the usual size of a segment."""
BATCH_BYTES = 4 << 20  # bytes of records that become one table, where one record is not more

_OPENING = 1 << 20  # bytes that the opening of one more segment counts as
_NEAR = 1 << 20  # two selected spans of offsets are read at once if no more bytes than this lie between them


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """The records of `segment` with `start` <= offset < `stop` that lie in `window`. `bytes` estimates how much has to
    be read for them."""

    segment: Segment
    start: int
    stop: int
    window: Window
    bytes: int

    @property
    def whole(self) -> bool:
        return self.start <= self.segment.first and self.stop > self.segment.last


@dataclass(frozen=True, slots=True)
class ReadUnit:
    """The ranges that one task reads, in order. It can be pickled."""

    ranges: Iterable[SegmentRange]


@dataclass(frozen=True, slots=True)
class WholeSegments:
    """All records of some segments, each of which becomes a range when it is read."""

    segments: Sequence[Segment]

    def __iter__(self) -> Iterator[SegmentRange]:
        for segment in self.segments:
            if segment.count:
                yield SegmentRange(segment, segment.first, segment.last + 1, EVERYTHING, segment.bytes)


def whole_units(segments: Sequence[Segment], part_bytes: int = PART_BYTES) -> list[ReadUnit]:
    """Return all records of segments as units of work, in the same order. No segment is cut: each is held against its
    checksum."""
    # The opening of an object takes as long as so many bytes.
    sizes = (size + _OPENING for (size,) in rows_of(segments, "bytes"))
    slices = cut(sizes, part_bytes, len(segments))
    return [ReadUnit(WholeSegments(segments[part])) for part in slices]


def plan_reads(
    segments: Iterable[Segment],
    window_of: Callable[[Segment], Window] = lambda segment: EVERYTHING,
    *,
    part_bytes: int = PART_BYTES,
    cut_bytes: int = CUT_BYTES,
) -> list[ReadUnit]:
    """Return the segments that may hold records in their window as units of work, in the same order. A segment that has
    to be read as a whole and has at most `cut_bytes` is one range; a larger one is cut at offsets. Of a segment that is
    not needed as a whole, the selected offsets alone are read."""
    units: list[ReadUnit] = []
    gathered: list[SegmentRange] = []
    size = 0
    for segment in segments:
        for each in _ranges_of(segment, window_of(segment), cut_bytes):
            if gathered and size + each.bytes + _OPENING > part_bytes:
                units.append(ReadUnit(tuple(gathered)))
                gathered, size = [], 0
            gathered.append(each)
            size += each.bytes + _OPENING
    if gathered:
        units.append(ReadUnit(tuple(gathered)))
    return units


def read_unit(store: Store, unit: ReadUnit, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the unit's records in columns of `rows.SCHEMA`, in batches of about `BATCH_BYTES`. Every record is checked.
    The `CorruptError` for a segment that was read whole and has another checksum comes at the segment's end, when its
    records have gone out: they must not count unless all of the unit came."""
    for each in unit.ranges:
        segment = each.segment
        for block in read_batches(store, each):
            yield to_table_batch(block, segment.topic, segment.partition, segment.key, columns)


def read_batches(store: Store, segment_range: SegmentRange) -> Iterator[RecordBlock]:
    """Yield the range's records in blocks of about `BATCH_BYTES`."""
    for block in read_range(store, segment_range):
        ends = block.positions + block.lengths
        first = 0
        while first < len(block):
            edge = int(block.positions[first]) + BATCH_BYTES
            fitting = int(np.searchsorted(ends, edge, side="right"))
            stop = max(fitting, first + 1)  # a record larger than that is alone
            yield slice_block(block, first, stop)
            first = stop


def read_range(store: Store, segment_range: SegmentRange) -> Iterator[RecordBlock]:
    """Yield the range's records as blocks with at least one record."""
    segment = segment_range.segment
    if segment_range.whole:
        blocks = read_segment(store, segment)
    else:
        blocks = SegmentRanges(store, segment).between(segment_range.start, segment_range.stop)
    for block in blocks:
        selected, _ = segment_range.window.cut(block)
        if len(selected):
            yield selected


def _ranges_of(segment: Segment, window: Window, cut_bytes: int) -> Iterator[SegmentRange]:
    """Yield the ranges of a segment that hold its records in `window`, each with at most about `cut_bytes`."""
    if not segment.count or not window.may_hold(segment):
        return
    offsets = segment.last + 1 - segment.first
    for start, stop in _selected_spans(segment, window):
        # Bytes are estimated as if they were spread evenly over the offsets, and rounded up.
        size = -(-segment.bytes * (stop - start) // offsets)
        cuts = -(-size // cut_bytes)
        edges = [start + (stop - start) * n // cuts for n in range(cuts + 1)]
        for low, high in pairwise(edges):
            if low < high:
                yield SegmentRange(segment, low, high, window, -(-size // cuts))


def _selected_spans(segment: Segment, window: Window) -> list[tuple[int, int]]:
    """Return the segment's offsets in the window, joined where few records lie between them."""
    first, end = segment.first, segment.last + 1
    near = _NEAR * (end - first) // segment.bytes
    spans: list[tuple[int, int]] = []
    for low, high in window.ranges_in(segment):
        start, stop = max(low, first), min(high, end)
        if start >= stop:
            continue
        if spans and start - spans[-1][1] <= near:
            start = spans.pop()[0]
        spans.append((start, stop))
    return spans
