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
from kbackup.archive.segments.window import Gaps
from kbackup.errors import CorruptError, NotFoundError
from kbackup.formats import frames
from kbackup.formats.block import make_block
from kbackup.formats.fields import Buffer, check, corrupt
from kbackup.formats.index import ENTRY, SegmentIndex, decode_entries, decode_index
from kbackup.formats.stream import block_of, blocks, record_cuts
from kbackup.store.base import Store
from kbackup.types import Bytes, Int64Array, RecordBlock
from kbackup.util.system import BufferPool

FETCH_SPAN = 16 << 20
"""Bytes of a usual range: a request of the SDK takes up to 3 ms of CPU, a tenth of what these bytes take to check."""
_AHEAD = 2
_SMALL = 1 << 20  # bytes: a smaller range gets memory of its own; a buffer of the pool would be nearly empty
_POOL = BufferPool(FETCH_SPAN, keep=3)

Span = tuple[int, int]  # start and end of a range, in bytes


def fetched(store: Store, key: str, spans: Sequence[Span]) -> Iterator[tuple[Bytes, int]]:
    """Yield the bytes of each of `spans` and their CRC-64/NVME, in order. At most `_AHEAD` spans are fetched ahead.
    The memory of the bytes is not used again as long as anything refers to it. The object is written once, so all spans
    are of one version."""
    if len(spans) < 2:  # most segments are small: no threads for them
        for span in spans:
            yield _fetch(store, key, span)
        return
    remaining = iter(spans)
    waiting: deque[Future[tuple[Bytes, int]]] = deque()
    with ThreadPoolExecutor(_AHEAD, "fetch") as threads:
        try:
            while True:
                for span in islice(remaining, _AHEAD - len(waiting)):
                    waiting.append(threads.submit(_fetch, store, key, span))
                if not waiting:
                    return
                yield waiting.popleft().result()
        finally:
            # whoever stops reading need not wait for ranges that nobody will look at
            threads.shutdown(wait=False, cancel_futures=True)


def _fetch(store: Store, key: str, span: Span) -> tuple[Bytes, int]:
    start, stop = span
    length = stop - start
    pooled = _SMALL < length <= FETCH_SPAN
    data = _POOL.take()[:length] if pooled else np.empty(length, np.uint8)
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
    same_ends = not count or (index.offsets[0], index.offsets[-1]) == (segment.first, segment.last)
    if count != segment.count or not same_ends:
        raise CorruptError(
            f"file {key} has {count} records, the segment should have {segment.count} "
            f"from {segment.first} to {segment.last}",
            _HINT,
        )
    return index


def superseded_gaps(store: Store, segments: Iterable[Segment]) -> Gaps:
    """Return the gaps between the records of compacted segments, in order: offsets of superseded records, and offsets
    that had no record."""
    starts: list[Int64Array] = [np.empty(0, np.int64)]
    ends: list[Int64Array] = [np.empty(0, np.int64)]
    for segment in segments:
        if not layout.compacted_of(segment.key):
            continue
        offsets = read_index(store, segment).offsets
        before_gap = np.flatnonzero(np.diff(offsets) > 1)
        starts.append(offsets[before_gap] + 1)
        ends.append(offsets[before_gap + 1])
    return Gaps(np.concatenate(starts), np.concatenate(ends))


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
    """Yield the records of a small segment with one request. The index is not read: checksum and descriptor check as
    much as the index would. A segment without a known checksum is read by its index."""
    if not segment.crc:
        yield from read_segment(store, segment)
        return
    # all blocks before the first goes out: the checksum shows at the end, and no caller has to undo anything
    blocks = list(read_records(store, segment, None))
    found: tuple[int, int, int] | None = None
    if blocks:
        first = int(blocks[0].offsets[0])
        last = int(blocks[-1].offsets[-1])
        found = sum(map(len, blocks)), first, last
    if found != (segment.count, segment.first, segment.last):
        raise CorruptError(f"file {segment.key} does not have the records that the catalog promises", _HINT)
    yield from blocks


def read_records(store: Store, segment: Segment, index: SegmentIndex | None) -> Iterator[RecordBlock]:
    """Yield the segment's records by an index that was read before, or record by record if it is None."""
    stored = StoredRecords(store, segment.key, segment.stored, segment.bytes)
    with _required(segment.key):
        yield from stored.blocks(index)
    if segment.crc and f"{stored.crc:016x}" != segment.crc:
        raise CorruptError(f"file {segment.key} is not what its manifest says (checksum)", _HINT)


class StoredRecords:
    """A records object of `size` bytes, and of `plain` bytes once it is decompressed (None: not known). `crc` is the
    CRC-64/NVME of the bytes that were read so far, in order."""

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
        spans = [(start, min(start + FETCH_SPAN, self._size)) for start in starts]
        chunks: Iterable[Buffer] = self._read(spans)
        if packed:
            # Where the size is known nothing more is decompressed: a few bytes can become any number of them.
            most = self._plain
            if most is None and index is not None:
                most = index.file_size
            chunks = frames.decompress(chunks, self._key, most)
        yield from blocks(chunks, index, name=self._key, least=FETCH_SPAN)

    def _read(self, spans: Sequence[Span]) -> Iterator[Bytes]:
        for data, crc in fetched(self._store, self._key, spans):
            self.crc = combine_crc64nvme(self.crc, crc, len(data))
            yield data


# Records of one segment by ranged reads: a piece of its index, then the bytes of just those records.
#
# The checksum of a segment is over the whole object, so it says nothing of a part. Frames of `.zst` and encrypted
# objects carry checksums of their own; elsewhere a record must fill its index entry exactly. `kbackup verify` looks at
# every byte.

SPAN = 4 << 20  # bytes of records that are read at once, where one record is not more

_GATHERED = ENTRY << 15
"""Bytes of an index that are held at once: as a store gives them, they would make small pieces."""
_PROBED = 1 << 12  # entries of an index that are read at once where an offset is looked for


class SegmentRanges:
    """Reads parts of `segment`, each with one request for the index and one for every `SPAN` of records. Of a
    compressed segment the seek table is read as well, once. Memory holds `SPAN` bytes, or one record if it is larger
    (compressed: its frames)."""

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
            first, last = np.searchsorted(part.offsets, (start, stop)).tolist()
            last = min(last, first + remaining)
            yield from self._blocks(part, first, last)
            remaining -= last - first
            if not remaining or part.offsets[-1] >= stop - 1:
                return

    def numbered(self, low: int, high: int) -> Iterator[RecordBlock]:
        """Yield records number `low` (inclusive) to `high` (exclusive) of the segment."""
        for part in self._entries(low, high):
            yield from self._blocks(part, 0, len(part))

    def entries(self, low: int, high: int) -> SegmentIndex:
        """Return the entries of records number `low` (inclusive) to `high` (exclusive), in memory. Their positions are
        those in the segment."""
        parts = list(self._entries(low, high))
        return SegmentIndex(
            np.concatenate([part.offsets for part in parts]),
            np.concatenate([part.positions for part in parts]),
            np.concatenate([part.lengths for part in parts]),
        )

    def blocks(self, entries: SegmentIndex, first: int, stop: int) -> Iterator[RecordBlock]:
        """Yield the records of some of the `entries` that were read before: from entry `first` to `stop` (exclusive),
        in blocks of about `SPAN`."""
        yield from self._blocks(entries, first, stop)

    def last(self, most: int) -> Iterator[RecordBlock]:
        """Yield the last `most` records, or all of them."""
        return self.numbered(max(0, self._segment.count - most), self._segment.count)

    def fitting(self, low: int, high: int, room: int, *, last: bool = False) -> Iterator[RecordBlock]:
        """Yield the first of records number `low` to `high` (exclusive) that fit into `room` bytes, or the `last` of
        them; at least one record. The range is small: its entries are held in memory."""
        for part in self._entries(low, high):
            lengths = part.lengths[::-1] if last else part.lengths
            ends = np.cumsum(lengths)
            fit = int(np.searchsorted(ends, room, side="right"))
            count = max(1, fit)
            first = len(part) - count if last else 0
            yield from self._blocks(part, first, first + count)

    def number(self, offset: int) -> int:
        """Return the number of records below `offset`. If the offsets have no gaps, nothing is read for it; else the
        index is bisected, with a run of entries for each request."""
        low, high = self._bounds(offset)
        while low < high:
            start = max(low, (low + high - _PROBED) // 2)
            stop = min(high, start + _PROBED)
            below = 0
            for part in self._entries(start, stop):
                below += int(np.searchsorted(part.offsets, offset))
            if 0 < below < stop - start:
                return start + below
            if below:  # all of these entries are below: the record is behind them
                low = stop
            else:
                high = start
        return low

    def numbers(self, start: int, stop: int) -> tuple[int, int]:
        """Return a range of record numbers, from and to (exclusive), that includes all with `start` <= offset <
        `stop`."""
        return self._bounds(start)[0], self._bounds(stop)[1]

    def _bounds(self, offset: int) -> tuple[int, int]:
        """Return the least and the greatest number that the first record at or above `offset` can have; the number
        after the last record if there is none. Both are the same if no offset is missing."""
        segment = self._segment
        if offset <= segment.first:
            return 0, 0
        if offset > segment.last:
            return segment.count, segment.count
        # Offsets rise, so no more records than offsets lie between this one and either end of the segment.
        least = segment.count - 1 - (segment.last - offset)
        greatest = offset - segment.first
        return max(0, least), min(segment.count - 1, greatest)

    def _entries(self, low: int, high: int) -> Iterator[SegmentIndex]:
        """Yield entries `low` (inclusive) to `high` (exclusive) of the index, as they come. `CorruptError` unless the
        entries follow one another and stay within the segment."""
        segment = self._segment
        at = low
        position = 0  # where the next record begins; 0 before the first entries, which may be anywhere
        for data in _gathered(self._read(self._index_key, 1 + ENTRY * low, ENTRY * (high - low))):
            part = decode_entries(data, at, self._index_key)
            follows = not position or part.positions[0] == position
            within = (
                part.file_size <= segment.bytes
                and part.offsets[0] >= segment.first
                and part.offsets[-1] <= segment.last
            )
            if not follows or not within:
                damage = (
                    f"entries that are not of a segment of {segment.bytes} bytes with offsets {segment.first} to "
                    f"{segment.last}"
                )
                raise corrupt(self._index_key, 1 + ENTRY * at, damage, _HINT)
            at += len(part)
            position = part.file_size
            yield part

    def _blocks(self, part: SegmentIndex, first: int, stop: int) -> Iterator[RecordBlock]:
        """Yield the records of entries `first` to `stop` of the part, in blocks of about `SPAN`."""
        ends = part.positions + part.lengths
        while first < stop:
            start = int(part.positions[first])
            cut = self._cut(ends[:stop], start, first)
            length = int(ends[cut - 1]) - start
            data = np.frombuffer(self._plain(start, length), np.uint8)
            records = slice(first, cut)
            block = make_block(data, part.offsets[records], part.positions[records] - start, part.lengths[records])
            check(block, self._segment.key, start)
            yield block
            first = cut

    def _cut(self, ends: Int64Array, start: int, first: int) -> int:
        """Return the number behind the last record of a block that begins with record `first`, at byte `start`. `ends`
        are the ends of all records."""
        edge = start + SPAN
        if self._packed:
            # up to where a frame ends, so that no frame is read twice
            frames = self._frames.plain
            whole_frames = int(frames[np.searchsorted(frames, edge, side="right") - 1])
            if whole_frames > start:
                edge = whole_frames
        fitting = int(np.searchsorted(ends, edge, side="right"))
        return max(fitting, first + 1)  # a record that is larger is alone

    def cuts(self, entries: SegmentIndex) -> list[int]:
        """Return the number of the first of each block that `blocks` makes of all `entries`, and their number."""
        ends = entries.positions + entries.lengths
        cuts = [0]
        while cuts[-1] < len(entries):
            first = cuts[-1]
            cuts.append(self._cut(ends, int(entries.positions[first]), first))
        return cuts

    def _plain(self, start: int, length: int) -> bytes:
        """Return bytes of the records file as it is without compression."""
        key = self._segment.key
        if not self._packed:
            return b"".join(self._read(key, start, length))
        at, size, skip = self._frames.locate(start, length)
        edges = self._frames.plain
        # what the frames hold by the seek table: nothing more is decompressed
        most = int(edges[np.searchsorted(edges, start + length)]) - (start - skip)
        packed = b"".join(self._read(key, at, size))
        return frames.extract(packed, skip, length, key, most)

    @cached_property
    def _frames(self) -> frames.SeekTable:
        """The seek table, read at the end of the object with one request if frames have the usual size or more."""
        segment = self._segment
        key, stored = segment.key, segment.stored

        def read_end(size: int) -> bytes:
            return b"".join(self._read(key, stored - size, size))

        usual_frames = segment.bytes // frames.FRAME_SIZE + 1
        likely = min(stored, frames.table_size(usual_frames))
        end = read_end(likely)
        size = frames.seek_table_size(end, stored, key)
        if size > likely:
            end = read_end(size)
        table = frames.decode_seek_table(end, stored, key)
        if table.plain_size != segment.bytes:
            raise corrupt(key, stored - size, f"a seek table of {table.plain_size} plain bytes", _HINT)
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
