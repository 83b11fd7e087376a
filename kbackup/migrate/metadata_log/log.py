"""The files of a controller's metadata log: segments `<base offset>.log`, snapshots `<end offset>-<epoch>.checkpoint`.

A snapshot holds all that the records below its end offset add up to. A log is its newest snapshot and every record
from there on. Both kinds of files are record batches of Kafka's format 2: uncompressed, without producers and headers.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from awscrt.checksums import crc32c

from kbackup.errors import CorruptError, UnreachableError, UsageError
from kbackup.kafka.cursor import HINT, Cursor, Output, corrupt
from kbackup.migrate.metadata_log import codec
from kbackup.migrate.metadata_log.codec import MetadataRecord

PARTITION = "__cluster_metadata-0"

_START = struct.Struct(">qi")  # base offset, and the length: the bytes after it
_FRAME = struct.Struct(">qiibI")  # the same, epoch, magic, checksum
_BODY = struct.Struct(">hiqqqhii")
"""Attributes, last offset delta, first and last timestamp, the producer's id, epoch and sequence, number of records."""
_CONTROL_KEY = struct.Struct(">hh")  # version and type
_MAGIC = 2
_NO_PRODUCER = (-1, -1, -1)
_LEAST_LENGTH = _FRAME.size - _START.size + _BODY.size
_LARGEST = 1 << 30
_LEAST_RECORD = 7  # bytes, its length included
_COMPRESSION = 0x07
_CONTROL = 0x20

_SEGMENT = re.compile(r"([0-9]{20})\.log")
_SNAPSHOT = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")
_INDEX_ENTRY = 8  # bytes: an offset after the segment's first, and a position in it
_WHOLE = "copy the whole folder __cluster_metadata-0 of a controller, its newest .checkpoint first"
_TORN = "the file ends within a batch"


class LogRecord(NamedTuple):
    """A record at its offset. `epoch` is the leader's, `timestamp` in ms since the epoch."""

    offset: int
    epoch: int
    timestamp: int
    record: MetadataRecord


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

    `TornError` if the last one is cut off, as by a crash of the controller, or by a copy made while it wrote.
    `CorruptError` for all else that is no batch."""
    at = 0

    def read(count: int) -> bytes:
        data = file.read(count)
        if len(data) < count:
            raise corrupt(name, at, "the file became shorter while it was read")
        return data

    while at < size:
        if size - at < _START.size:
            raise TornError(at)
        # The length is held against the bytes that are there before anything is read by it.
        start = read(_START.size)
        _, length = _START.unpack(start)
        if not _LEAST_LENGTH <= length <= _LARGEST:
            raise corrupt(name, at, f"a batch says it has {length} bytes")
        if length > size - at - _START.size:
            raise TornError(at)
        yield decode_batch(start + read(length), name, at)
        at += _START.size + length


def decode_batch(data: bytes, name: str, position: int) -> Batch:
    """Decode one whole batch. `CorruptError` if its checksum or its records are wrong."""
    cursor = Cursor(data, name, position)
    base_offset, _, epoch, magic, checksum = cursor.unpack(_FRAME)
    if magic != _MAGIC:
        raise corrupt(name, position, f"a batch of format {magic}; {_MAGIC} is known")
    if crc32c(data[cursor.at :]) != checksum:
        raise corrupt(name, position, "the checksum of a batch is wrong")
    attributes, last, first_timestamp, timestamp, _, _, _, count = cursor.unpack(_BODY)
    if attributes & _COMPRESSION:
        raise corrupt(name, position, "a batch is compressed, which no metadata log is")
    # The count is held against the bytes before anything is made by it: a forged one would take all memory.
    if base_offset < 0 or last != count - 1 or not 0 < count <= cursor.remaining // _LEAST_RECORD:
        raise corrupt(name, position, f"a batch of {count} records, the last at {base_offset} + {last}")
    control = bool(attributes & _CONTROL)
    records: list[LogRecord] = []
    for number in range(count):
        record_timestamp, record = _decode(cursor, number, first_timestamp, control)
        records.append(LogRecord(base_offset + number, epoch, record_timestamp, record))
    cursor.finish("the last record of a batch")
    return Batch(position, base_offset, base_offset + last, epoch, timestamp, tuple(records))


def _decode(batch: Cursor, number: int, first_timestamp: int, control: bool) -> tuple[int, MetadataRecord]:
    size = batch.signed()
    cursor = batch.sub_cursor(size)
    cursor.take(1)  # attributes, unused
    timestamp = first_timestamp + cursor.signed(64)
    if cursor.signed() != number:
        cursor.fail(f"record {number} of a batch has another number")
    key = _sized(cursor)
    value = _sized(cursor)
    if value is None:
        cursor.fail("a record without a value")
    if cursor.signed() != 0 or cursor.remaining:
        cursor.fail("a record with headers, which no metadata log has")
    if not control:
        return timestamp, codec.decode_record(value)
    if key is None:
        cursor.fail("a control record without a key")
    _, kind = key.unpack(_CONTROL_KEY)
    return timestamp, codec.decode_control(kind, value)


def _sized(cursor: Cursor) -> Cursor | None:
    size = cursor.signed()
    return None if size == -1 else cursor.sub_cursor(size)


def encode_batch(base_offset: int, epoch: int, timestamp: int, records: Sequence[MetadataRecord]) -> bytes:
    """Return a batch of at least one record, all of them control records or none, as controllers write it."""
    attributes = _CONTROL if records[0].control else 0
    count = len(records)
    body = Output(_BODY.pack(attributes, count - 1, timestamp, timestamp, *_NO_PRODUCER, count))
    for number, record in enumerate(records):
        out = Output(b"\0")
        out.signed(0)  # all of a batch have its timestamp
        out.signed(number)
        if record.control:
            out.sized(_CONTROL_KEY.pack(0, record.number))
        else:
            out.signed(-1)
        out.sized(codec.encode_record(record))
        out.signed(0)
        body.sized(bytes(out))
    length = _FRAME.size - _START.size + len(body)
    return _FRAME.pack(base_offset, length, epoch, _MAGIC, crc32c(body)) + bytes(body)


class LogSnapshot(NamedTuple):
    """A snapshot's file. It stands for the records below `end_offset`."""

    end_offset: int
    epoch: int
    path: Path


@dataclass
class MetadataLog:
    """A folder `__cluster_metadata-0`, read by iterating over `snapshot_records` and then `later_records`.

    Once all is read, `end_offset` and `epoch` are known, and `torn` names the file and the byte where the log ends
    within a batch, if it does. Only the newest segment may. Records at the end may be ones that the quorum has not
    committed: no file says which."""

    folder: Path
    snapshot: LogSnapshot | None
    segments: list[tuple[int, Path]]
    end_offset: int = 0
    epoch: int = 0
    torn: str | None = None

    def snapshot_records(self) -> Iterator[LogRecord]:
        """Yield the newest snapshot's records. Their offsets are those within the snapshot."""
        if self.snapshot is not None:
            self.epoch = self.snapshot.epoch
            yield from read_snapshot(self.snapshot.path)

    def later_records(self, start: int | None = None) -> Iterator[LogRecord]:
        """Yield the records of the segments from `start` on, by default the snapshot's end. `CorruptError` if one is
        missing."""
        snapshot_end = 0 if self.snapshot is None else self.snapshot.end_offset
        if start is None:
            start = snapshot_end
        due = self._segments_from(start)
        end = min(start, due[0][0]) if due else 0
        epoch = 0
        for base_offset, path in due:
            if base_offset > end:
                raise CorruptError(f"{self.folder}: the records from offset {end} to {base_offset} are missing", _WHOLE)
            if base_offset < end:
                raise corrupt(path.name, 0, f"the segment before it ends at {end}")
            # Only in the newest segment can a batch be half written. In any other, half a batch is damage.
            _, newest_path = due[-1]
            for batch in self._batches(path, newest=path == newest_path):
                if batch.base_offset != end:
                    raise corrupt(path.name, batch.position, _gap(batch, end))
                # Leaders' epochs only grow along a log. One that falls is of files from two controllers, or two
                # clusters.
                if batch.epoch < epoch:
                    problem = f"a batch of epoch {batch.epoch} after one of {epoch}, as of another log"
                    raise corrupt(path.name, batch.position, problem)
                end = batch.last_offset + 1
                epoch = batch.epoch
                for record in batch.records:
                    if record.offset >= start:
                        yield record
        if self.snapshot is not None and end < snapshot_end:
            raise CorruptError(
                f"{self.folder}: the log ends at offset {end}, before its snapshot {self.snapshot.path.name}: "
                "later records are missing",
                _WHOLE,
            )
        self.end_offset = end
        if end > start:  # else the snapshot's epoch is the last one
            self.epoch = epoch

    def _segments_from(self, start: int) -> list[tuple[int, Path]]:
        """Return the segments that have records from `start` on. Each one ends where the next begins."""
        due: list[tuple[int, Path]] = []
        for number, segment in enumerate(self.segments):
            is_newest = number + 1 == len(self.segments)
            if is_newest or self.segments[number + 1][0] > start:
                due.append(segment)
        return due

    def _batches(self, path: Path, newest: bool) -> Iterator[Batch]:
        # A copy that was cut off between two batches looks whole. The index knows of later ones. It is read
        # before the batches: a running controller adds to both.
        indexed = _last_indexed(path)
        last = 0
        try:
            for batch in read_segment(path):
                last = batch.position
                yield batch
            if last < indexed:
                raise corrupt(path.name, last, f"the last batch, but the index has one at byte {indexed}")
        except TornError as torn:
            if not newest:
                raise corrupt(path.name, torn.position, _TORN) from None
            self.torn = f"{path.name}: byte {torn.position}"


def find_log(folder: Path) -> Path:
    """Return the folder of the log in `metadata.log.dir`, which may also be `__cluster_metadata-0` itself."""
    partition = folder / PARTITION
    with file_errors(folder):
        return partition if partition.is_dir() else folder


def read_identity(log: Path) -> dict[str, str]:
    """Return meta.properties beside a log, such as node.id and cluster.id; nothing where it was not copied."""
    path = log.parent / "meta.properties"
    with file_errors(path):
        text = path.read_text("utf-8", errors="replace") if path.is_file() else ""
    properties: dict[str, str] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.partition("=")
            properties[name.strip()] = value.strip()
    return properties


def open_log(folder: Path) -> MetadataLog:
    """Return the log in a folder: its newest snapshot, its segments. `UsageError` if there is neither."""
    snapshots: list[LogSnapshot] = []
    segments: list[tuple[int, Path]] = []
    paths: list[Path] = []
    with file_errors(folder):
        if folder.is_dir():
            paths = sorted(folder.iterdir())  # names have leading zeros, so they are in the order of their offsets
    for path in paths:
        snapshot = _SNAPSHOT.fullmatch(path.name)
        segment = _SEGMENT.fullmatch(path.name)
        if snapshot is not None:
            snapshots.append(LogSnapshot(int(snapshot[1]), int(snapshot[2]), path))
        elif segment is not None:
            segments.append((int(segment[1]), path))
    if not snapshots and not segments:
        raise UsageError(f"{folder}: no metadata log of a controller", "name a copy of __cluster_metadata-0")
    return MetadataLog(folder, max(snapshots, default=None), segments)


def read_segment(path: Path) -> Iterator[Batch]:
    """Yield a segment's batches. `TornError` if the last one is cut off."""
    with file_errors(path), path.open("rb") as file:
        yield from read_batches(file, path.name, path.stat().st_size)


def _last_indexed(path: Path) -> int:
    """Return the position of the last batch that a segment's index names; 0 without one, or if it was not copied."""
    index = path.with_suffix(".index")
    with file_errors(index):
        content = index.read_bytes() if index.is_file() else b""
    # A running controller's index is longer than its entries: zeros follow, and the last entry may end in zeros itself.
    entries = content.rstrip(b"\0")
    count = -(-len(entries) // _INDEX_ENTRY)
    end = count * _INDEX_ENTRY
    position = entries.ljust(end, b"\0")[end - 4 :]
    return int.from_bytes(position)


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Turn an error of the file system into `UnreachableError`."""
    try:
        yield
    except OSError as error:
        hint = "let kbackup's user read the files; if the controller has just deleted one, run again"
        raise UnreachableError(f"{path}: {error.strerror}", hint) from None


def read_snapshot(path: Path) -> Iterator[LogRecord]:
    """Yield the records of a snapshot, from its header to its footer. `CorruptError` if it is not whole."""
    match = _SNAPSHOT.fullmatch(path.name)
    epoch = int(match[2]) if match else None  # bootstrap.checkpoint has none in its name
    for batch in check_snapshot(read_segment(path), path.name, epoch):
        yield from batch.records


def check_snapshot(batches: Iterable[Batch], name: str, epoch: int | None = None) -> Iterator[Batch]:
    """Yield the batches of a snapshot: offsets from 0 without a gap, the header first, the footer last, one epoch.

    `CorruptError` for anything else. `epoch` is the one in the file's name."""
    # The footer is the only sign that a snapshot is whole: a copy that ends between two batches looks like one.
    end = 0
    last = ""
    try:
        for batch in batches:
            if batch.base_offset != end:
                raise corrupt(name, batch.position, _gap(batch, end))
            if epoch is not None and batch.epoch != epoch:
                raise corrupt(name, batch.position, f"a batch of epoch {batch.epoch} in a snapshot of epoch {epoch}")
            for offset, _, _, record in batch.records:
                is_header = record.name == "SnapshotHeaderRecord"
                if is_header != (offset == 0) or last == "SnapshotFooterRecord":
                    raise corrupt(name, batch.position, f"the snapshot has a {record.name} at offset {offset}")
                last = record.name
            end = batch.last_offset + 1
            yield batch
    except TornError as torn:
        raise corrupt(name, torn.position, _TORN) from None
    if last != "SnapshotFooterRecord":
        raise CorruptError(f"{name}: the snapshot has no footer", HINT)


def _gap(batch: Batch, end: int) -> str:
    return f"a batch at offset {batch.base_offset}, after the one that ends at {end}"
