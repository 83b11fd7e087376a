"""Pages of a partition's records, forwards and backwards, for those who leaf through them: bounded in records and in
bytes, with as few requests as the segments that they lie in allow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from kbackup.archive.query.content import ArchivedPartition
from kbackup.archive.query.window import Window
from kbackup.archive.segments.ranged import SegmentRanges
from kbackup.archive.segments.table import Segment
from kbackup.formats.rows import Row, rows
from kbackup.store.base import Store
from kbackup.types import RecordBlock

MOST = 1000
"""Records of a page, at most."""
ROOM = 8 << 20
"""Bytes of a page's records: once there are more, it ends. It may take another as much, or one record."""
SOUGHT = 256 << 20
"""Bytes of records that are looked at for a time in one go."""

_THREADS = 8


@dataclass(frozen=True, slots=True)
class Page:
    """Checked records in order of their offsets. `earlier`, `later`: whether there are others."""

    blocks: tuple[RecordBlock, ...]
    earlier: bool
    later: bool

    def rows(self) -> Iterator[Row]:
        for block in self.blocks:
            yield from rows(block)

    @property
    def first(self) -> int | None:
        return int(self.blocks[0].offsets[0]) if self.blocks else None

    @property
    def last(self) -> int | None:
        return int(self.blocks[-1].offsets[-1]) if self.blocks else None


class Sought(NamedTuple):
    """`matched`: `offset` is that of the record that was looked for; else the search goes on from there, or there is no
    such record (None)."""

    offset: int | None
    matched: bool


def page_from(store: Store, partition: ArchivedPartition, offset: int, most: int) -> Page:
    """Return the first records at or above `offset`, at most `most`."""
    wanted = [s for s in partition.segments if s.last >= offset]
    return _page(store, partition, offset, _parts(store, wanted, offset, min(most, MOST), back=False), False)


def page_before(store: Store, partition: ArchivedPartition, offset: int, most: int) -> Page:
    """Return the last records below `offset`, at most `most`."""
    wanted = [s for s in reversed(partition.segments) if s.first < offset]
    return _page(store, partition, offset, _parts(store, wanted, offset, min(most, MOST), back=True), True)


def offset_at(store: Store, partition: ArchivedPartition, time: int, start: int = 0) -> Sought:
    """Find the first record at or above offset `start` whose timestamp (ms) is `time` or later.

    Timestamps are in no order: of the segment with the first such record all is read, in blocks, and also everything
    before it where the archive has no timestamps of its segments (files of the Java tool).
    """
    window = Window(from_time=time, ranges=((start, 2**63 - 1),))
    looked = 0
    for segment in filter(window.may_hold, partition.segments):
        for block in SegmentRanges(store, segment).between(start, segment.last + 1):
            wanted, _ = window.cut(block)
            if len(wanted):
                return Sought(int(wanted.offsets[0]), True)
            looked += block.nbytes
            if looked >= SOUGHT:
                return Sought(int(block.offsets[-1]) + 1, False)
    return Sought(None, False)


class _Part(NamedTuple):
    """Records number `low` to `high` (exclusive) of a segment."""

    segment: Segment
    low: int
    high: int


def _parts(store: Store, segments: Iterable[Segment], offset: int, most: int, *, back: bool) -> list[_Part]:
    """Return what to read of `segments` (the nearest first), in order of offsets. Only the last one that is planned can
    have more than a page's bytes, and be cut short for it."""
    ranges: list[_Part] = []
    size = 0
    for segment in segments:
        edge = SegmentRanges(store, segment).number(offset)
        low, high = (max(0, edge - most), edge) if back else (edge, min(segment.count, edge + most))
        ranges.append(_Part(segment, low, high))
        most -= high - low
        size += min(segment.bytes, (high - low) * segment.largest)
        if not most or size >= ROOM:
            break
    return ranges[::-1] if back else ranges


def _page(store: Store, partition: ArchivedPartition, offset: int, parts: list[_Part], back: bool) -> Page:
    def read(part: _Part) -> list[RecordBlock]:
        return list(SegmentRanges(store, part.segment).fitting(part.low, part.high, ROOM, last=back))

    with ThreadPoolExecutor(_THREADS) as pool:
        blocks = tuple(block for some in pool.map(read, parts) for block in some)
    held = partition.segments
    first, last = (int(blocks[0].offsets[0]), int(blocks[-1].offsets[-1])) if blocks else (offset, offset - 1)
    return Page(blocks, bool(held) and held[0].first < first, bool(held) and held[-1].last > last)
