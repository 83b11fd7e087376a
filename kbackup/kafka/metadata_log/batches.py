"""Kafka's record batches of format 2, as controllers write them: uncompressed, without producers and headers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

from awscrt.checksums import crc32c

from kbackup.kafka.metadata_log.codec import Record, decode_control, decode_record, encode_record
from kbackup.kafka.metadata_log.cursor import Cursor, Output, corrupt

MAGIC = 2
_START = 12  # base offset and length: what the length doesn't count
_BODY = 49  # what a batch without records has after them
_CHECKED = 21  # where the bytes begin that the checksum covers
_COMPRESSION = 0x07
_CONTROL = 0x20
_LARGEST = 1 << 30
_LEAST_RECORD = 7  # bytes, its length included


class LogRecord(NamedTuple):
    """A record at its offset. `epoch` is the leader's, `timestamp` in ms since the epoch."""

    offset: int
    epoch: int
    timestamp: int
    record: Record


class Batch(NamedTuple):
    """A batch at a byte `position` of its file."""

    position: int
    base_offset: int
    last_offset: int
    epoch: int
    timestamp: int
    records: tuple[LogRecord, ...]


class TornError(Exception):
    """The file ends within a batch. `position` is where that batch begins."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


def read_batches(file: BinaryIO, name: str, size: int) -> Iterator[Batch]:
    """Yield the batches of the first `size` bytes of a file.

    `TornError` where the last one is cut off, as by a crash of the controller, or by a copy made while it wrote.
    `CorruptError` for all else that is no batch.
    """
    at = 0
    while at < size:
        if size - at < _START:
            raise TornError(at)
        start = _read(file, _START, name, at)
        length = Cursor(start, name, at, at=8).number("int32")
        if not _BODY <= length <= _LARGEST:
            raise corrupt(name, at, f"a batch says it has {length} bytes")
        if length > size - at - _START:
            raise TornError(at)
        yield decode_batch(start + _read(file, length, name, at), name, at)
        at += _START + length


def _read(file: BinaryIO, size: int, name: str, at: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise corrupt(name, at, "the file became shorter while it was read")
    return data


def decode_batch(data: bytes, name: str, position: int) -> Batch:
    """Decode one whole batch. `CorruptError` where its checksum or its records are wrong."""
    cursor = Cursor(data, name, position)
    base_offset, _, epoch = cursor.number("int64"), cursor.number("int32"), cursor.number("int32")
    magic, crc = cursor.number("int8"), cursor.number("uint32")
    if magic != MAGIC:
        raise corrupt(name, position, f"a batch of format {magic}; {MAGIC} is known")
    if crc32c(data[_CHECKED:]) != crc:
        raise corrupt(name, position, "the checksum of a batch is wrong")
    attributes, last = cursor.number("int16"), cursor.number("int32")
    first_timestamp, timestamp = cursor.number("int64"), cursor.number("int64")
    cursor.take(14)  # the producer's id, epoch and sequence
    count = cursor.number("int32")
    if attributes & _COMPRESSION:
        raise corrupt(name, position, "a batch is compressed, which no metadata log is")
    if base_offset < 0 or last != count - 1 or not 0 < count <= cursor.remaining // _LEAST_RECORD:
        raise corrupt(name, position, f"a batch of {count} records, the last at {base_offset} + {last}")
    records = tuple(
        LogRecord(base_offset + n, epoch, *_decode(cursor, n, first_timestamp, bool(attributes & _CONTROL)))
        for n in range(count)
    )
    if cursor.remaining:
        cursor.fail(f"{cursor.remaining} bytes follow the last record of a batch")
    return Batch(position, base_offset, base_offset + last, epoch, timestamp, records)


def _decode(batch: Cursor, number: int, first_timestamp: int, control: bool) -> tuple[int, Record]:
    cursor = batch.sub_cursor(batch.signed())
    cursor.take(1)  # attributes, unused
    timestamp = first_timestamp + cursor.signed(64)
    if cursor.signed() != number:
        cursor.fail(f"record {number} of a batch has another number")
    key, value = _sized(cursor), _sized(cursor)
    if value is None:
        cursor.fail("a record without a value")
    if cursor.signed() != 0 or cursor.remaining:
        cursor.fail("a record with headers, which no metadata log has")
    if not control:
        return timestamp, decode_record(value)
    if key is None:
        cursor.fail("a control record without a key")
    key.take(2)  # the key's version
    return timestamp, decode_control(key.number("int16"), value)


def _sized(cursor: Cursor) -> Cursor | None:
    size = cursor.signed()
    return None if size == -1 else cursor.sub_cursor(size)


def encode_batch(base_offset: int, epoch: int, timestamp: int, records: Sequence[Record]) -> bytes:
    """Return a batch of at least one record, all of them control records or none, as controllers write it."""
    control = records[0].control
    body = Output()
    body.number("int16", _CONTROL if control else 0)
    body.number("int32", len(records) - 1)
    body.number("int64", timestamp)
    body.number("int64", timestamp)
    body.number("int64", -1)  # no producer, …
    body.number("int16", -1)
    body.number("int32", -1)  # … so no sequence
    body.number("int32", len(records))
    for number, record in enumerate(records):
        body += _encode(number, record)
    batch = Output()
    batch.number("int64", base_offset)
    batch.number("int32", len(body) + _CHECKED - _START)
    batch.number("int32", epoch)
    batch.number("int8", MAGIC)
    batch.number("uint32", crc32c(bytes(body)))
    return bytes(batch + body)


def _encode(number: int, record: Record) -> bytes:
    value = encode_record(record)
    out = Output(b"\0")
    out.signed(0)  # all of a batch have its timestamp
    out.signed(number)
    if record.control:
        key = Output()
        key.number("int16", 0)
        key.number("int16", record.number)
        out.signed(len(key))
        out += key
    else:
        out.signed(-1)
    out.signed(len(value))
    out += value
    out.signed(0)
    sized = Output()
    sized.signed(len(out))
    return bytes(sized + out)
