"""Reading segments back: every byte checked against checksum, index and descriptor on its way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from awscrt import checksums

from kbackup.archive import layout
from kbackup.archive.segments import Segment
from kbackup.archive.writer import Target, greatest, least
from kbackup.errors import AlreadyExistsError, CorruptError, NotFoundError
from kbackup.formats.frames import decompress
from kbackup.formats.index import SegmentIndex, decode_index, encode_index
from kbackup.formats.stream import blocks
from kbackup.store.base import Store
from kbackup.types import RecordBlock

_HINT = "the archive is damaged here; 'kbackup verify' lists every finding"


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


def read_records(store: Store, segment: Segment, index: SegmentIndex | None) -> Iterator[RecordBlock]:
    """The same by an index that is read already; with None the records are walked one by one."""
    chunks = _checked(store, segment)
    if layout.compression_of(segment.key) == "zstd":
        chunks = decompress(chunks, segment.key)
    yield from blocks(chunks, index, name=segment.key)


def _checked(store: Store, segment: Segment) -> Iterator[bytes]:
    """The stored bytes, with their checksum verified at the end."""
    crc = 0
    try:
        for chunk in store.open_range(segment.key, 0, segment.stored):
            crc = checksums.crc64nvme(chunk, crc)
            yield chunk
    except NotFoundError as error:
        raise CorruptError(f"file {segment.key} is missing", _HINT) from error
    if segment.crc and f"{crc:016x}" != segment.crc:
        raise CorruptError(f"file {segment.key} is not what its manifest says (checksum)", _HINT)


def adopt(store: Store, target: Target, key: str) -> Segment:
    """The descriptor of a records object that another attempt wrote: read back whole; its index is written
    when it is missing.

    `CorruptError` where the object or its index is not a whole segment.
    """
    info = store.stat(key)
    crc = 0

    def watched() -> Iterator[bytes]:
        nonlocal crc
        for chunk in store.open_range(key, 0, info.size):
            crc = checksums.crc64nvme(chunk, crc)
            yield chunk

    chunks: Iterable[bytes] = watched()
    if layout.compression_of(key) == "zstd":
        chunks = decompress(chunks, key)
    parts: list[SegmentIndex] = []
    low: int | None = None
    high: int | None = None
    largest, size = 0, 1
    for block in blocks(chunks, _index_if_there(store, key), name=key):
        parts.append(SegmentIndex(block.offsets, block.positions + size, block.lengths))
        size += block.nbytes
        low, high = least(low, block.min_timestamp), greatest(high, block.max_timestamp)
        largest = max(largest, block.largest)
    if not parts:
        raise CorruptError(f"file {key} has no record", "it is no segment of this tool")
    index = encode_index(_joined(parts))
    return Segment(
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
        crc=f"{crc:016x}",
        index_crc=_publish_index(store, layout.index_key_of(key), index),
        key=key,
    )


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


def _publish_index(store: Store, key: str, index: bytes) -> str:
    try:
        store.put_new(key, index)
    except AlreadyExistsError as error:
        if store.get(key) != index:
            raise CorruptError(f"file {key} disagrees with its records", _HINT) from error
    return crc_of(index)


def _existing(store: Store, key: str) -> bytes:
    try:
        return store.get(key)
    except NotFoundError as error:
        raise CorruptError(f"file {key} is missing", _HINT) from error
