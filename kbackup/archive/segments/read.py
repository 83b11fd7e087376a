"""Reading segments back: every byte checked against checksum, index and descriptor on its way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from awscrt import checksums

from kbackup.archive import layout
from kbackup.archive.segments.fetch import SPAN, Span, even, fetched
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.writer import Target, greatest, least
from kbackup.errors import AlreadyExistsError, CorruptError, NotFoundError
from kbackup.formats.frames import decompress
from kbackup.formats.index import SegmentIndex, decode_index, encode_index
from kbackup.formats.magic import Buffer
from kbackup.formats.stream import block_of, blocks, record_cuts
from kbackup.store.base import Store
from kbackup.types import Bytes, RecordBlock

_HINT = "run 'kbackup verify', which lists every finding"


def crc_of(data: bytes) -> str:
    return f"{checksums.crc64nvme(data):016x}"


def read_index(store: Store, segment: Segment) -> SegmentIndex:
    """The segment's index, in agreement with its descriptor."""
    key = layout.index_key_of(segment.key)
    data = _existing(store, key)
    if segment.index_crc and crc_of(data) != segment.index_crc:
        raise CorruptError(f"file {key} is not what its manifest says", _HINT)
    index = decode_index(data, key)
    if len(index) != segment.count or (
        len(index) and (index.offsets[0], index.offsets[-1]) != (segment.first, segment.last)
    ):
        raise CorruptError(
            f"file {key} has {len(index)} records, the segment should have {segment.count} "
            f"from {segment.first} to {segment.last}",
            _HINT,
        )
    return index


def read_segment(store: Store, segment: Segment) -> Iterator[RecordBlock]:
    """The segment's records in order. `CorruptError` at the first thing that is wrong; a damaged checksum
    shows only at the end, when the blocks before have gone out: what is done with them must be undone by the
    caller (a transaction is)."""
    yield from read_records(store, segment, read_index(store, segment))


def read_small(store: Store, segment: Segment) -> Iterator[RecordBlock]:
    """The same of a segment that is held as a whole, with one request: its checksum and its descriptor say as much as
    its index. Segments whose checksum is not known are read by their index."""
    if not segment.crc:
        yield from read_segment(store, segment)
        return
    blocks = list(read_records(store, segment, None))
    offsets = [int(block.offsets[at]) for block in (*blocks[:1], *blocks[-1:]) for at in (0, -1)]
    if sum(map(len, blocks)) != segment.count or (offsets[:1] + offsets[-1:]) != [
        segment.first,
        segment.last,
    ]:
        raise CorruptError(f"file {segment.key} does not have the records that the catalog promises", _HINT)
    yield from blocks


def read_records(store: Store, segment: Segment, index: SegmentIndex | None) -> Iterator[RecordBlock]:
    """The same by an index that is read already; with None the records are walked one by one."""
    stored = _Stored(store, segment.key, segment.stored, segment.bytes)
    try:
        yield from stored.blocks(index)
    except NotFoundError as error:
        raise CorruptError(f"file {segment.key} is missing", _HINT) from error
    if segment.crc and f"{stored.crc:016x}" != segment.crc:
        raise CorruptError(f"file {segment.key} is not what its manifest says (checksum)", _HINT)


class _Stored:
    """A records object of `size` bytes, `plain` of them when it is not compressed (None: not known); `crc` is the
    CRC-64/NVME of what was read of it, in order, by now."""

    def __init__(self, store: Store, key: str, size: int, plain: int | None = None) -> None:
        self._store, self._key, self._size, self._plain = store, key, size, plain
        self.crc = 0

    def blocks(self, index: SegmentIndex | None) -> Iterator[RecordBlock]:
        """All of its records, checked."""
        packed = layout.compression_of(self._key) == "zstd"
        if index is not None and index.file_size == self._size and not packed:
            # ranges that end where records end: their buffers are the blocks
            cuts = record_cuts(index, SPAN)
            spans = [(start, end) for start, end, _ in cuts]
            for data, (start, _, records) in zip(self._read(spans), cuts, strict=True):
                yield from block_of(data, start, index, records, self._key)
            return
        chunks: Iterable[Buffer] = self._read(even(self._size))
        if packed:
            most = self._plain if self._plain is not None or index is None else index.file_size
            chunks = decompress(chunks, self._key, most)
        yield from blocks(chunks, index, name=self._key, least=SPAN)

    def _read(self, spans: Sequence[Span]) -> Iterator[Bytes]:
        for data, crc in fetched(self._store, self._key, spans):
            self.crc = checksums.combine_crc64nvme(self.crc, crc, len(data))
            yield data


def salvage_segment(store: Store, target: Target, key: str) -> Segment:
    """The descriptor of a records object that another attempt wrote: read back whole; its index is written
    when it is missing.

    `CorruptError` where the object or its index is not a whole segment.
    """
    segment, index = read_whole(store, target, key, _index_if_there(store, key))
    _publish_index(store, layout.index_key_of(key), index)
    return segment


def read_whole(store: Store, target: Target, key: str, by: SegmentIndex | None) -> tuple[Segment, bytes]:
    """The descriptor of a records object, and the bytes of its index: read back whole, by an index that may be its own,
    or without one. `CorruptError` where it is no whole segment, or not the one of that index."""
    info = store.stat(key)
    stored = _Stored(store, key, info.size)
    parts: list[SegmentIndex] = []
    low: int | None = None
    high: int | None = None
    largest, size = 0, 1
    for block in stored.blocks(by):
        parts.append(SegmentIndex(block.offsets, block.positions + size, block.lengths))
        size += block.nbytes
        low, high = least(low, block.min_timestamp), greatest(high, block.max_timestamp)
        largest = max(largest, block.largest)
    if not parts:
        raise CorruptError(f"file {key} has no record", "check which tool wrote it: no segment is empty")
    index = encode_index(_joined(parts))
    segment = Segment(
        topic=target.topic,
        incarnation=target.incarnation,
        partition=target.partition,
        first=int(parts[0].offsets[0]),
        last=int(parts[-1].offsets[-1]),
        count=sum(map(len, parts)),
        bytes=size,
        stored=info.size,
        min_timestamp=low,
        max_timestamp=high,
        largest=largest,
        crc=f"{stored.crc:016x}",
        index_crc=crc_of(index),
        key=key,
    )
    return segment, index


def _index_if_there(store: Store, records: str) -> SegmentIndex | None:
    """Reading by the index checks as much as walking record by record, thirty times as fast."""
    key = layout.index_key_of(records)
    try:
        return decode_index(store.get(key), key)
    except NotFoundError:
        return None


def _joined(parts: list[SegmentIndex]) -> SegmentIndex:
    return SegmentIndex(
        np.concatenate([p.offsets for p in parts]),
        np.concatenate([p.positions for p in parts]),
        np.concatenate([p.lengths for p in parts]),
    )


def _publish_index(store: Store, key: str, index: bytes) -> None:
    try:
        store.put_new(key, index)
    except AlreadyExistsError as error:
        if store.get(key) != index:
            raise CorruptError(f"file {key} disagrees with its records", _HINT) from error


def _existing(store: Store, key: str) -> bytes:
    try:
        return store.get(key)
    except NotFoundError as error:
        raise CorruptError(f"file {key} is missing", _HINT) from error
