"""Read a segment's records: ranges fetched ahead by a few threads, checked, and cut at records."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from itertools import islice

import numpy as np
from awscrt.checksums import combine_crc64nvme, crc64nvme

from kbackup.archive import layout
from kbackup.archive.segments.table import Segment
from kbackup.errors import CorruptError, NotFoundError
from kbackup.formats import frames
from kbackup.formats.block import make_block
from kbackup.formats.fields import Buffer, check, corrupt
from kbackup.formats.index import ENTRY, SegmentIndex, decode_entries, decode_index
from kbackup.formats.stream import block_of, blocks, record_cuts
from kbackup.store.base import Store
from kbackup.types import Bytes, RecordBlock
from kbackup.util.system import BufferPool

FETCH_SPAN = 16 << 20
"""Bytes of a usual range: a request of the SDK takes up to 3 ms of CPU, a tenth of what these bytes take to check."""
_AHEAD = 2
_SMALL = 1 << 20
_POOL = BufferPool(FETCH_SPAN, keep=3)

Span = tuple[int, int]  # start and end of a range, in bytes


def fetched(store: Store, key: str, spans: Sequence[Span]) -> Iterator[tuple[Bytes, int]]:
    """Yield the bytes of each of `spans` and their CRC-64/NVME, in order. At most `_AHEAD` are fetched in advance. The
    bytes have memory of their own as long as anything refers to it. The object is written once, so that all spans are
    of one version."""
    if len(spans) < 2:
        yield from (_fetch(store, key, span) for span in spans)
        return
    remaining = iter(spans)
    waiting: deque[Future[tuple[Bytes, int]]] = deque()
    with ThreadPoolExecutor(_AHEAD, "fetch") as threads:
        try:
            while True:
                for wanted in islice(remaining, _AHEAD - len(waiting)):
                    waiting.append(threads.submit(_fetch, store, key, wanted))
                if not waiting:
                    return
                yield waiting.popleft().result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)


def _fetch(store: Store, key: str, span: Span) -> tuple[Bytes, int]:
    start, length = span[0], span[1] - span[0]
    data = _POOL.take()[:length] if _SMALL < length <= FETCH_SPAN else np.empty(length, np.uint8)
    crc = 0
    for piece in store.fill(key, start, data.data):
        crc = crc64nvme(piece, crc)  # here, where it is in the processor's cache: four times as fast
    return data, crc


# Reading segments back: every byte checked against checksum, index and descriptor on its way.

_HINT = "run 'kbackup verify', which lists every finding"


def crc_of(data: bytes) -> str:
    return f"{crc64nvme(data):016x}"


def read_index(store: Store, segment: Segment) -> SegmentIndex:
    """Read the segment's index, and check it against the descriptor."""
    key = layout.index_key_of(segment.key)
    with _required(key):
        data = store.get(key)
    if segment.index_crc and crc_of(data) != segment.index_crc:
        raise CorruptError(f"file {key} is not what its manifest says", _HINT)
    index = decode_index(data, key)
    count = len(index)
    if count != segment.count or (count and (index.offsets[0], index.offsets[-1]) != (segment.first, segment.last)):
        raise CorruptError(
            f"file {key} has {count} records, the segment should have {segment.count} "
            f"from {segment.first} to {segment.last}",
            _HINT,
        )
    return index


@contextmanager
def _required(key: str) -> Iterator[None]:
    try:
        yield
    except NotFoundError as error:
        raise CorruptError(f"file {key} is missing", _HINT) from error


def read_segment(store: Store, segment: Segment) -> Iterator[RecordBlock]:
    """Yield the segment's records in order. `CorruptError` at the first damage. A wrong checksum shows only at the end,
    when the blocks were already yielded: the caller must undo its work with them (a transaction is aborted)."""
    yield from read_records(store, segment, read_index(store, segment))


def read_small(store: Store, segment: Segment) -> Iterator[RecordBlock]:
    """Yield the records of a segment that is read with one request: its checksum and descriptor check as much as its
    index. Segments without a known checksum are read by their index."""
    if not segment.crc:
        yield from read_segment(store, segment)
        return
    blocks = list(read_records(store, segment, None))
    offsets = [int(block.offsets[at]) for block in (*blocks[:1], *blocks[-1:]) for at in (0, -1)]
    if sum(map(len, blocks)) != segment.count or (offsets[:1] + offsets[-1:]) != [segment.first, segment.last]:
        raise CorruptError(f"file {segment.key} does not have the records that the catalog promises", _HINT)
    yield from blocks


def read_records(store: Store, segment: Segment, index: SegmentIndex | None) -> Iterator[RecordBlock]:
    """Yield the segment's records by an index that was read before; without one (None) record by record."""
    stored = StoredRecords(store, segment.key, segment.stored, segment.bytes)
    with _required(segment.key):
        yield from stored.blocks(index)
    if segment.crc and f"{stored.crc:016x}" != segment.crc:
        raise CorruptError(f"file {segment.key} is not what its manifest says (checksum)", _HINT)


class StoredRecords:
    """A records object of `size` bytes, `plain` of them when it is not compressed (None: not known). `crc` is the
    CRC-64/NVME of the bytes that were read, in order, so far."""

    def __init__(self, store: Store, key: str, size: int, plain: int | None = None) -> None:
        self._store, self._key, self._size, self._plain = store, key, size, plain
        self.crc = 0

    def blocks(self, index: SegmentIndex | None) -> Iterator[RecordBlock]:
        """Yield all records, checked."""
        packed = layout.compression_of(self._key) == "zstd"
        if index is not None and index.file_size == self._size and not packed:
            # ranges that end where records end: their buffers are the blocks
            cuts = record_cuts(index, FETCH_SPAN)
            spans = [(start, end) for start, end, _ in cuts]
            for data, (start, _, records) in zip(self._read(spans), cuts, strict=True):
                yield from block_of(data, start, index, records, self._key)
            return
        starts = range(0, self._size, FETCH_SPAN)
        chunks: Iterable[Buffer] = self._read([(start, min(start + FETCH_SPAN, self._size)) for start in starts])
        if packed:
            most = self._plain if self._plain is not None or index is None else index.file_size
            chunks = frames.decompress(chunks, self._key, most)
        yield from blocks(chunks, index, name=self._key, least=FETCH_SPAN)

    def _read(self, spans: Sequence[Span]) -> Iterator[Bytes]:
        for data, crc in fetched(self._store, self._key, spans):
            self.crc = combine_crc64nvme(self.crc, crc, len(data))
            yield data


# Records of one segment by ranged reads: a piece of its index, then the bytes of just those records.
#
# What a checksum over a whole object guards is not known of a part of it: frames of `.zst` and encrypted objects
# carry their own, elsewhere a record must fill its index entry exactly. Every byte is what `kbackup verify` looks at.

SPAN = 4 << 20  # bytes of records that are read at once, where one record is not more

_GATHERED = ENTRY << 15
"""Bytes of an index that are held at once: as a store gives them, they would make small pieces."""
_PROBED = 1 << 12  # entries of an index that are read at once where an offset is looked for


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
        """Yield records number `low` (inclusive) to `high` (exclusive) of the segment."""
        for part in self._entries(low, high):
            yield from self._blocks(part, 0, len(part))

    def last(self, most: int) -> Iterator[RecordBlock]:
        """Yield the last `most` records, or all of them."""
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
        """Entries `low` (inclusive) to `high` (exclusive) of the index, as they come. `CorruptError` unless they follow
        one another and stay within the segment."""
        s, at, due = self._segment, low, 0
        for data in _gathered(self._read(self._index_key, 1 + ENTRY * low, ENTRY * (high - low))):
            part = decode_entries(data, at, self._index_key)
            ends = part.file_size, int(part.offsets[0]), int(part.offsets[-1])
            if (due and part.positions[0] != due) or ends[0] > s.bytes or ends[1] < s.first or ends[2] > s.last:
                damage = f"entries that are not of a segment of {s.bytes} bytes with offsets {s.first} to {s.last}"
                raise corrupt(self._index_key, 1 + ENTRY * at, damage, _HINT)
            at, due = at + len(part), part.file_size
            yield part

    def _blocks(self, part: SegmentIndex, first: int, stop: int) -> Iterator[RecordBlock]:
        """Entries `first` to `stop` of the part, in pieces of `SPAN`."""
        ends = part.positions + part.lengths
        while first < stop:
            start = int(part.positions[first])
            edge = start + SPAN
            if self._packed:  # an end of a frame, so that no frame is read twice
                frames = self._frames.plain
                last = int(frames[np.searchsorted(frames, edge, side="right") - 1])
                edge = last if last > start else edge
            cut = max(int(np.searchsorted(ends[:stop], edge, side="right")), first + 1)
            length = int(ends[cut - 1]) - start
            data = np.frombuffer(self._plain(start, length), np.uint8)
            records = slice(first, cut)
            block = make_block(data, part.offsets[records], part.positions[records] - start, part.lengths[records])
            check(block, self._segment.key, start)
            yield block
            first = cut

    def _plain(self, start: int, length: int) -> bytes:
        key = self._segment.key
        if not self._packed:
            return b"".join(self._read(key, start, length))
        at, size, skip = self._frames.locate(start, length)
        edges = self._frames.plain
        most = int(edges[np.searchsorted(edges, start + length)]) - (start - skip)
        return frames.extract(b"".join(self._read(key, at, size)), skip, length, key, most)

    @cached_property
    def _frames(self) -> frames.SeekTable:
        """The seek table, at once where frames have the usual size or more."""
        s = self._segment

        def tail(size: int) -> bytes:
            return b"".join(self._read(s.key, s.stored - size, size))

        likely = min(s.stored, frames.table_size(s.bytes // frames.FRAME_SIZE + 1))
        end = tail(likely)
        size = frames.seek_table_size(end, s.stored, s.key)
        table = frames.decode_seek_table(end if size <= likely else tail(size), s.stored, s.key)
        if table.plain_size != s.bytes:
            raise corrupt(s.key, s.stored - size, f"a seek table of {table.plain_size} plain bytes", _HINT)
        return table

    def _read(self, key: str, start: int, length: int) -> Iterator[bytes]:
        with _required(key):
            yield from self._store.open_range(key, start, length)


def _gathered(chunks: Iterator[bytes]) -> Iterator[bytearray]:
    """Yield whole entries, about `_GATHERED` bytes at a time."""
    gathered = bytearray()
    for chunk in chunks:
        gathered += chunk
        if len(gathered) >= _GATHERED:
            whole = len(gathered) - len(gathered) % ENTRY
            yield gathered[:whole]
            gathered = gathered[whole:]
    if gathered:
        yield gathered
