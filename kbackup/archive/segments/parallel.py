"""Reading many segments side by side: pieces of work of about the same size, and their records as tables."""

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

PART_BYTES = 32 << 20  # small pieces are packed together up to this
CUT_BYTES = 256 << 20
"""A larger segment is cut. What is read whole is held against its checksum: twice what a segment usually has."""
BATCH_BYTES = 4 << 20  # bytes of records that become one table, where one record is not more

_OPENING = 1 << 20  # bytes that the opening of one more segment counts as
_NEAR = 1 << 20  # offsets that are wanted are read at once where no more bytes than this lie between them


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """The records of `segment` with `start` <= offset < `stop` that lie in `window`. `bytes` estimates what has to be
    read."""

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
        return (SegmentRange(s, s.first, s.last + 1, EVERYTHING, s.bytes) for s in self.segments if s.count)


def whole_units(segments: Sequence[Segment], part_bytes: int = PART_BYTES) -> list[ReadUnit]:
    """Return all records of segments as units of work, in the same order. None is cut: each is held against its
    checksum."""
    sizes = (size + _OPENING for (size,) in rows_of(segments, "bytes"))
    return [ReadUnit(WholeSegments(segments[part])) for part in cut(sizes, part_bytes, len(segments))]


def plan_reads(
    segments: Iterable[Segment],
    window_of: Callable[[Segment], Window] = lambda segment: EVERYTHING,
    *,
    part_bytes: int = PART_BYTES,
    cut_bytes: int = CUT_BYTES,
) -> list[ReadUnit]:
    """Return the segments that may hold records in their window as units of work, in the same order. A segment that has
    to be read as a whole and has at most `cut_bytes` is one piece; larger ones are cut at offsets, and of others the
    records that are wanted are read alone."""
    parts: list[ReadUnit] = []
    gathered: list[SegmentRange] = []
    size = 0
    for segment in segments:
        for piece in _pieces(segment, window_of(segment), cut_bytes):
            if gathered and size + piece.bytes + _OPENING > part_bytes:
                parts.append(ReadUnit(tuple(gathered)))
                gathered, size = [], 0
            gathered.append(piece)
            size += piece.bytes + _OPENING
    return [*parts, ReadUnit(tuple(gathered))] if gathered else parts


def read_unit(store: Store, part: ReadUnit, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the part's records in columns of `rows.SCHEMA`, in batches of about `BATCH_BYTES`. Every record is checked.
    `CorruptError` for a segment that was read whole and has another checksum comes at its end, when its records have
    gone out: they must not count unless all of the part came."""
    for piece in part.ranges:
        s = piece.segment
        for block in read_batches(store, piece):
            yield to_table_batch(block, s.topic, s.partition, s.key, columns)


def read_batches(store: Store, piece: SegmentRange) -> Iterator[RecordBlock]:
    """Yield the piece's records in blocks of about `BATCH_BYTES`."""
    for block in read_range(store, piece):
        ends = block.positions + block.lengths
        first = 0
        while first < len(block):
            edge = int(block.positions[first]) + BATCH_BYTES
            stop = max(int(np.searchsorted(ends, edge, side="right")), first + 1)
            yield slice_block(block, first, stop)
            first = stop


def read_range(store: Store, piece: SegmentRange) -> Iterator[RecordBlock]:
    """Yield the piece's records as blocks with at least one."""
    blocks = (
        read_segment(store, piece.segment)
        if piece.whole
        else SegmentRanges(store, piece.segment).between(piece.start, piece.stop)
    )
    for block in blocks:
        wanted, _ = piece.window.cut(block)
        if len(wanted):
            yield wanted


def _pieces(segment: Segment, window: Window, cut_bytes: int) -> Iterator[SegmentRange]:
    if not segment.count or not window.may_hold(segment):
        return
    first, end = segment.first, segment.last + 1
    near = _NEAR * (end - first) // segment.bytes
    spans: list[tuple[int, int]] = []  # the selected offsets, joined where few records lie between them
    for low, high in window.ranges if window.ranges is not None else ((first, end),):
        start, stop = max(low, first), min(high, end)
        if start >= stop:
            continue
        if spans and start - spans[-1][1] <= near:
            start = spans.pop()[0]
        spans.append((start, stop))
    for start, stop in spans:
        size = -(-segment.bytes * (stop - start) // (end - first))
        cuts = -(-size // cut_bytes)
        edges = [start + (stop - start) * n // cuts for n in range(cuts + 1)]
        for low, high in pairwise(edges):
            if low < high:
                yield SegmentRange(segment, low, high, window, -(-size // cuts))
