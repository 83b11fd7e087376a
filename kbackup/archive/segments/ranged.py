"""Records of one segment by ranged reads: a piece of its index, then the bytes of just those records.

What a checksum over a whole object guards is not known of a part of it: frames of `.zst` and encrypted objects carry
their own, elsewhere a record must fill its index entry exactly. Every byte is what `kbackup verify` looks at.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from kbackup.archive import layout
from kbackup.archive.segments.table import Segment
from kbackup.errors import CorruptError, NotFoundError
from kbackup.formats.block import make_block
from kbackup.formats.frames import FRAME_SIZE, SeekTable, decode_seek_table, extract, seek_table_size
from kbackup.formats.index import SegmentIndex, decode_entries
from kbackup.formats.layout import check
from kbackup.formats.magic import corrupt
from kbackup.formats.seek import table_size
from kbackup.store.base import Store
from kbackup.types import RecordBlock

SPAN = 4 << 20
"""Bytes of records that are read at once, where one record is not more."""

_ENTRY = 24
_GATHERED = _ENTRY << 15
"""Bytes of an index that are held at once: as a store gives them, they would make small pieces."""
_PROBED = 1 << 12
"""Entries of an index that are read at once where an offset is looked for."""
_HINT = "run 'kbackup verify', which lists every finding"


class SegmentRanges:
    """Reads parts of `segment`, each with one request for the index and one for every `SPAN` of records; of a
    compressed segment the seek table as well, once. Holds `SPAN` bytes, or one record (compressed: its frames)."""

    def __init__(self, store: Store, segment: Segment) -> None:
        self._store, self._segment = store, segment
        self._index_key = layout.index_key_of(segment.key)
        self._packed = layout.compression_of(segment.key) == "zstd"

    def between(self, start: int, stop: int, most: int | None = None) -> Iterator[RecordBlock]:
        """Yield the records with `start` <= offset < `stop`, the first `most` of them, as checked blocks."""
        low, high = self._bounds(start)
        end = self._bounds(stop)[1]
        remaining = self._segment.count if most is None else most
        for part in self._entries(low, min(end, high + remaining)):
            a, b = np.searchsorted(part.offsets, (start, stop)).tolist()
            b = min(b, a + remaining)
            yield from self._blocks(part, a, b)
            remaining -= b - a
            if not remaining or part.offsets[-1] >= stop - 1:
                return

    def numbered(self, low: int, high: int) -> Iterator[RecordBlock]:
        """Records number `low` (inclusive) to `high` (exclusive) of the segment."""
        for part in self._entries(low, high):
            yield from self._blocks(part, 0, len(part))

    def last(self, most: int) -> Iterator[RecordBlock]:
        """The last `most` records, or all of them."""
        return self.numbered(max(0, self._segment.count - most), self._segment.count)

    def fitting(self, low: int, high: int, room: int, *, last: bool = False) -> Iterator[RecordBlock]:
        """Yield the first of records number `low` to `high` (exclusive) that fit into `room` bytes, or the `last` ones;
        at least one record. The range is small: its entries are held in memory."""
        for part in self._entries(low, high):
            lengths = part.lengths[::-1] if last else part.lengths
            count = max(1, int(np.searchsorted(np.cumsum(lengths), room, side="right")))
            first = len(part) - count if last else 0
            yield from self._blocks(part, first, first + count)

    def number(self, offset: int) -> int:
        """Return the number of records below `offset`. Where there are no gaps nothing is read for it, else pieces of
        the index, each half as far away."""
        low, high = self._bounds(offset)
        while low < high:
            a = max(low, (low + high - _PROBED) // 2)
            b = min(high, a + _PROBED)
            below = sum(int(np.searchsorted(part.offsets, offset)) for part in self._entries(a, b))
            if 0 < below < b - a:
                return a + below
            low, high = (b, high) if below else (low, a)
        return low

    def numbers(self, start: int, stop: int) -> tuple[int, int]:
        """Return the numbers of records, from and to (exclusive), that include all with `start` <= offset < `stop`."""
        return self._bounds(start)[0], self._bounds(stop)[1]

    def _bounds(self, offset: int) -> tuple[int, int]:
        """Return the least and the greatest number that the first entry at or above `offset` can have (where there is
        none, the number after the last). Each offset is above the one before it. Both are the same where no offset is
        missing."""
        s = self._segment
        if offset <= s.first:
            return 0, 0
        if offset > s.last:
            return s.count, s.count
        return max(0, s.count - 1 - (s.last - offset)), min(s.count - 1, offset - s.first)

    def _entries(self, low: int, high: int) -> Iterator[SegmentIndex]:
        """Entries `low` (inclusive) to `high` (exclusive) of the index, as they come."""
        at, due = low, 0
        for data in _gathered(self._read(self._index_key, 1 + _ENTRY * low, _ENTRY * (high - low))):
            part = decode_entries(data, at, self._index_key)
            self._require_order(part, at, due)
            at, due = at + len(part), part.file_size
            yield part

    def _require_order(self, part: SegmentIndex, number: int, due: int) -> None:
        """Raise `CorruptError` unless the entries follow the entries before them and stay within the segment."""
        s = self._segment
        ends = part.file_size, int(part.offsets[0]), int(part.offsets[-1])
        if (due and part.positions[0] != due) or ends[0] > s.bytes or ends[1] < s.first or ends[2] > s.last:
            raise corrupt(
                self._index_key,
                1 + _ENTRY * number,
                f"entries that are not of a segment of {s.bytes} bytes with offsets {s.first} to {s.last}",
                _HINT,
            )

    def _blocks(self, part: SegmentIndex, first: int, stop: int) -> Iterator[RecordBlock]:
        """Entries `first` to `stop` of the part, in pieces of `SPAN`."""
        ends = part.positions + part.lengths
        while first < stop:
            start = int(part.positions[first])
            cut = max(int(np.searchsorted(ends[:stop], self._edge(start), side="right")), first + 1)
            length = int(ends[cut - 1]) - start
            data = np.frombuffer(self._plain(start, length), np.uint8)
            records = slice(first, cut)
            block = make_block(
                data, part.offsets[records], part.positions[records] - start, part.lengths[records]
            )
            check(block, self._segment.key, start)
            yield block
            first = cut

    def _edge(self, start: int) -> int:
        """Return the greatest end of a range from `start` on: an end of a frame, so that no frame is read twice."""
        if not self._packed:
            return start + SPAN
        edges = self._frames.plain
        edge = int(edges[np.searchsorted(edges, start + SPAN, side="right") - 1])
        return edge if edge > start else start + SPAN

    def _plain(self, start: int, length: int) -> bytes:
        key = self._segment.key
        if not self._packed:
            return b"".join(self._read(key, start, length))
        at, size, skip = self._frames.locate(start, length)
        edges = self._frames.plain
        most = int(edges[np.searchsorted(edges, start + length)]) - (start - skip)
        return extract(b"".join(self._read(key, at, size)), skip, length, key, most)

    @cached_property
    def _frames(self) -> SeekTable:
        """The seek table, at once where frames have the usual size or more."""
        s = self._segment
        likely = min(s.stored, table_size(s.bytes // FRAME_SIZE + 1))
        tail = self._tail(likely)
        size = seek_table_size(tail, s.stored, s.key)
        table = decode_seek_table(tail if size <= likely else self._tail(size), s.stored, s.key)
        if table.plain_size != s.bytes:
            raise corrupt(s.key, s.stored - size, f"a seek table of {table.plain_size} plain bytes", _HINT)
        return table

    def _tail(self, size: int) -> bytes:
        return b"".join(self._read(self._segment.key, self._segment.stored - size, size))

    def _read(self, key: str, start: int, length: int) -> Iterator[bytes]:
        try:
            yield from self._store.open_range(key, start, length)
        except NotFoundError as error:
            raise CorruptError(f"file {key} is missing", _HINT) from error


def _gathered(chunks: Iterator[bytes]) -> Iterator[bytearray]:
    """Yield whole entries, about `_GATHERED` bytes at a time."""
    gathered = bytearray()
    for chunk in chunks:
        gathered += chunk
        if len(gathered) >= _GATHERED:
            whole = len(gathered) - len(gathered) % _ENTRY
            yield gathered[:whole]
            gathered = gathered[whole:]
    if gathered:
        yield gathered
