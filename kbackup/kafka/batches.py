"""Record batches as Kafka stores them (magic 2), made of archived records without a Python object a record."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from awscrt.checksums import crc32c

from kbackup.errors import CorruptError
from kbackup.formats.block import heads
from kbackup.types import Bytes, Int64Array, RecordBlock

_ZSTD = 4
"""The codec as a batch's attributes name it."""
_CODEC = pa.Codec("zstd", compression_level=1)
"""Not lz4: a broker reads its frames only where their blocks are independent of one another, and pyarrow's are not."""

_TRANSACTIONAL = 1 << 4
"""The bit of the attributes that says that a batch belongs to a transaction."""

_FRAME = struct.Struct(">qiibI")
"""Base offset, bytes that follow, leader epoch, magic, and the checksum of all that comes behind it."""
_HEAD = struct.Struct(">hiqqqhii")
"""Attributes, last offset delta, first and greatest timestamp, producer id and epoch, first sequence, records."""

_BEFORE_LENGTH_ENDS = 12  # bytes of the frame that its length does not count
_MAGIC = 2
_NO_EPOCH = -1
SEQUENCES = 1 << 31
"""Sequences begin again at 0 behind the greatest int32."""


class Producer(NamedTuple):
    """A producer's id and epoch, as a broker gave them."""

    id: int
    epoch: int


@dataclass(frozen=True)
class ProducedBatch:
    """An encoded batch of `records` records."""

    data: bytes
    records: int


@dataclass(frozen=True)
class BatchBody:
    """The records of a batch, compressed, with what its head says of them. A head is put before it by `batch`."""

    data: bytes
    records: int
    first_timestamp: int
    greatest_timestamp: int

    def batch(self, producer: Producer, sequence: int, *, transactional: bool = False) -> ProducedBatch:
        """Return the batch of a producer whose first record has this sequence. It may have any size: it is cut to 31
        bits, as Kafka does it."""
        attributes = _ZSTD | (_TRANSACTIONAL if transactional else 0)
        head = _HEAD.pack(
            attributes,
            self.records - 1,
            self.first_timestamp,
            self.greatest_timestamp,
            producer.id,
            producer.epoch,
            sequence % SEQUENCES,
            self.records,
        )
        checksum = crc32c(self.data, crc32c(head))
        length = _FRAME.size - _BEFORE_LENGTH_ENDS + len(head) + len(self.data)
        # The broker sets base offset and leader epoch: the checksum leaves both out.
        frame = _FRAME.pack(0, length, _NO_EPOCH, _MAGIC, checksum)
        return ProducedBatch(frame + head + self.data, self.records)


def bodies(block: RecordBlock, most_bytes: int, first: int = 0) -> Iterator[BatchBody]:
    """Yield the records of a block, from number `first` on, in bodies of up to `most_bytes` before compression, at
    least one record each. `CorruptError` for a record that is not what its index says."""
    ends = block.positions + block.lengths
    while first < len(block):
        limit = block.positions[first] + most_bytes
        last = max(first + 1, int(np.searchsorted(ends, limit, side="right")))
        yield _body(block.data, block.positions, block.lengths, first, last)
        first = last


def repeated(record: bytes, count: int) -> BatchBody:
    """Return a body of one archived record, `count` times."""
    data = np.frombuffer(record, np.uint8)
    positions = np.zeros(count, np.int64)
    lengths = np.full(count, len(record), np.int64)
    return _body(data, positions, lengths, 0, count)


def _body(data: Bytes, positions: Int64Array, lengths: Int64Array, first: int, last: int) -> BatchBody:
    # Here, because numba takes half a second to load: drivers import this module, and make no batch.
    from kbackup.native.batch_kernel import ROOM_OF_RECORD, write_records

    archived = int(lengths[first:last].sum())
    # A header has eight bytes of lengths in the archive, and up to ten in a batch.
    out = np.empty(archived + archived // 4 + ROOM_OF_RECORD * (last - first), np.uint8)
    times = np.zeros(2, np.int64)
    size = write_records(data, positions, lengths, first, last, out, times)
    _check_written(size)
    compressed = _CODEC.compress(out[:size].data, asbytes=True)
    return BatchBody(compressed, last - first, int(times[0]), int(times[1]))


def _check_written(size: int) -> None:
    """Raise `CorruptError` if a kernel returned the number of a damaged record in place of a size."""
    if size < 0:
        raise CorruptError(
            f"record {-1 - size} of a block is not what the index says", "run 'kbackup verify' to find what is damaged"
        )


# Batches of a log that is read, as a broker sends them: with the offsets that the records have.

_EPOCH_UNKNOWN = -1
_LOG_APPEND_TYPE = 1
_MOST_DELTA = (1 << 31) - 1
_CHECKSUM_AT = 17
_CHECKED_FROM = 21
"""Where a batch has its checksum, and where what it checks begins."""


class EpochStart(NamedTuple):
    """The first offset that is of a leader epoch."""

    offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, eq=False)
class LogBatches:
    """Encoded batches of a log, one behind the other. Batch `i` ends before byte `ends[i]` of `data`, and its last
    record has the offset `lasts[i]`."""

    data: bytes | bytearray
    ends: Int64Array
    lasts: Int64Array

    @property
    def nbytes(self) -> int:
        return len(self.data)

    def from_offset(self, offset: int, most_bytes: int) -> tuple[memoryview, int] | None:
        """Return the batches from the one that has `offset` or the next record, as far as they fit into `most_bytes`
        and at least one; and the last offset in them. None if all records lie below `offset`."""
        first = int(np.searchsorted(self.lasts, offset))
        if first == len(self.lasts):
            return None
        begin = int(self.ends[first - 1]) if first else 0
        fitting = int(np.searchsorted(self.ends, begin + most_bytes, side="right"))
        stop = max(first + 1, fitting)
        end = int(self.ends[stop - 1])
        return memoryview(self.data)[begin:end], int(self.lasts[stop - 1])


_SCRATCH = threading.local()


def load_batch_kernel() -> None:
    """Load the kernel that writes batches, which takes half a second."""
    import kbackup.native.batch_kernel  # noqa: F401


def log_batches(block: RecordBlock, epochs: Sequence[EpochStart], most_bytes: int) -> LogBatches:
    """Return a block's records as batches of up to `most_bytes`, or of one record that is larger. `epochs` are the
    leader epochs of the log, in order; they may be unknown. `CorruptError` for a record that is not what its index
    says."""
    # Here, because numba takes half a second to load.
    from kbackup.native.batch_kernel import HEAD_BYTES, ROOM_OF_RECORD, write_log_batches

    cuts = _log_cuts(block, epochs, most_bytes)
    batches = len(cuts) - 1
    known = np.full(batches, _EPOCH_UNKNOWN, np.int64)
    if epochs:
        starts = np.array([start.offset for start in epochs], np.int64)
        # With one more in front, for what lies before the first known epoch.
        numbers = np.array([_EPOCH_UNKNOWN, *(start.leader_epoch for start in epochs)], np.int64)
        known = numbers[np.searchsorted(starts, block.offsets[cuts[:-1]], side="right")]
    room = block.nbytes + block.nbytes // 4 + ROOM_OF_RECORD * len(block) + HEAD_BYTES * batches
    out = _scratch(room)
    ends = np.empty(batches, np.int64)
    times = np.empty(2, np.int64)
    size = write_log_batches(block.data, block.positions, block.lengths, cuts, known, out, ends, times)
    _check_written(size)
    data = bytearray(out[:size].data)
    view = memoryview(data)
    begin = 0
    for end in ends.tolist():
        checksum = crc32c(view[begin + _CHECKED_FROM : end])
        struct.pack_into(">I", data, begin + _CHECKSUM_AT, checksum)
        begin = end
    lasts = block.offsets[cuts[1:] - 1]
    return LogBatches(data, ends, lasts)


def _scratch(size: int) -> Bytes:
    """Return memory that the calling thread uses again and again: to take fresh pages costs as much as to fill them."""
    room: Bytes | None = getattr(_SCRATCH, "room", None)
    if room is None or len(room) < size:
        room = np.empty(size, np.uint8)
        if size <= _LARGEST_SCRATCH:
            _SCRATCH.room = room
    return room


_LARGEST_SCRATCH = 16 << 20


def _log_cuts(block: RecordBlock, epochs: Sequence[EpochStart], most_bytes: int) -> Int64Array:
    """Return the number of the first record of each batch, and the number of records.

    A batch is of one leader epoch, of one kind of timestamp, and where brokers set the timestamps, of one timestamp:
    clients take the batch's."""
    head = heads(block.data, block.positions)
    is_appended = head["type"] == _LOG_APPEND_TYPE
    changes = is_appended[1:] != is_appended[:-1]
    if is_appended.any():
        times = head["timestamp"]
        changes |= is_appended[1:] & (times[1:] != times[:-1])
    edges = set((np.flatnonzero(changes) + 1).tolist())
    for start in epochs:
        edges.add(int(np.searchsorted(block.offsets, start.offset)))
    edges.discard(0)
    edges.add(len(block))
    ends = block.positions + block.lengths
    cuts = [0]
    first = 0
    for edge in sorted(edges):
        while first < edge:
            fitting = int(np.searchsorted(ends, block.positions[first] + most_bytes, side="right"))
            near = int(np.searchsorted(block.offsets, block.offsets[first] + _MOST_DELTA, side="right"))
            first = min(edge, near, max(first + 1, fitting))
            cuts.append(first)
    return np.array(cuts, np.int64)


def empty_log_batch(first: int, last: int, leader_epoch: int = _EPOCH_UNKNOWN) -> bytes:
    """Return a batch without records that covers the offsets `first` to `last`: the form in which brokers send offsets
    whose records are gone. A reader goes on behind it."""
    head = _HEAD.pack(0, min(last - first, _MOST_DELTA), _NO_TIME, _NO_TIME, -1, -1, -1, 0)
    length = _FRAME.size - _BEFORE_LENGTH_ENDS + len(head)
    return _FRAME.pack(first, length, leader_epoch, _MAGIC, crc32c(head)) + head


_NO_TIME = -1
