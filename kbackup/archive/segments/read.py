"""Reading segments back: every byte checked against checksum, index and descriptor on its way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from awscrt import checksums

from kbackup.archive import layout
from kbackup.archive.segments.fetch import SPAN, Span, even, fetched
from kbackup.archive.segments.table import Segment
from kbackup.errors import CorruptError, NotFoundError
from kbackup.formats.frames import decompress
from kbackup.formats.index import SegmentIndex, decode_index
from kbackup.formats.magic import Buffer
from kbackup.formats.stream import block_of, blocks, record_cuts
from kbackup.store.base import Store
from kbackup.types import Bytes, RecordBlock

_HINT = "run 'kbackup verify', which lists every finding"


def crc_of(data: bytes) -> str:
    return f"{checksums.crc64nvme(data):016x}"


def read_index(store: Store, segment: Segment) -> SegmentIndex:
    """Read the segment's index, and check it against the descriptor."""
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
    if sum(map(len, blocks)) != segment.count or (offsets[:1] + offsets[-1:]) != [
        segment.first,
        segment.last,
    ]:
        raise CorruptError(f"file {segment.key} does not have the records that the catalog promises", _HINT)
    yield from blocks


def read_records(store: Store, segment: Segment, index: SegmentIndex | None) -> Iterator[RecordBlock]:
    """Yield the segment's records by an index that was read before; without one (None) record by record."""
    stored = StoredRecords(store, segment.key, segment.stored, segment.bytes)
    try:
        yield from stored.blocks(index)
    except NotFoundError as error:
        raise CorruptError(f"file {segment.key} is missing", _HINT) from error
    if segment.crc and f"{stored.crc:016x}" != segment.crc:
        raise CorruptError(f"file {segment.key} is not what its manifest says (checksum)", _HINT)


class StoredRecords:
    """A records object of `size` bytes, `plain` of them when it is not compressed (None: not known).

    `crc` is the CRC-64/NVME of the bytes that were read, in order, so far."""

    def __init__(self, store: Store, key: str, size: int, plain: int | None = None) -> None:
        self._store, self._key, self._size, self._plain = store, key, size, plain
        self.crc = 0

    def blocks(self, index: SegmentIndex | None) -> Iterator[RecordBlock]:
        """Yield all records, checked."""
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


def _existing(store: Store, key: str) -> bytes:
    try:
        return store.get(key)
    except NotFoundError as error:
        raise CorruptError(f"file {key} is missing", _HINT) from error
