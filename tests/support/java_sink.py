"""The files that the Java tool's sink leaves when it is killed, and those after its next start."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from struct import pack

from tests.golden.java_archive import ROOT
from tests.unit.formats.reference import Record, encode_record

TORN = bytes.fromhex("00000000000001000000000000")
"""The beginning of a record."""
LAST = "orders.v1/segment_partition_000_from_offset_0000000123"
"""The last segment of a partition, without `_records` or `_index`."""


class KilledError(Exception):
    """The sink has written all that it could."""


class Sink:
    """One segment, written as the tool does it: a record, then its entry, each appended to its file. `room` is how many
    bytes it writes before it is killed."""

    def __init__(self, room: int) -> None:
        self.records, self.index, self.room = bytearray(b"\x01"), bytearray(b"\x01"), room
        self.whole: list[int] = []
        """Offsets of the records that are there to the last byte."""

    def write(self, records: Sequence[Record]) -> None:
        for record in records:
            start, data = len(self.records), encode_record(record)
            self._append(self.records, data)
            self.whole.append(record.offset)
            self._append(self.index, pack(">qqq", record.offset, start, len(data)))

    def _append(self, file: bytearray, data: bytes) -> None:
        file += data[: self.room]
        self.room -= len(data)
        if self.room < 0:
            raise KilledError

    def restart(self, records: Sequence[Record]) -> None:
        """Goes on after the last entry that it can read."""
        done = (len(self.index) - 1) // 24
        self.room = 1 << 30
        self.write(records[done:])


def torn_folder(folder: Path) -> Path:
    """The tool's archive after a kill that left one of everything, with all of its records still there."""
    shutil.copytree(ROOT / "archive", folder)
    _append(folder / f"{LAST}_records", TORN)
    _cut(folder / "payments/segment_partition_000_from_offset_0000000199_index", 5)
    _cut(folder / "audit_log/segment_partition_000_from_offset_0000000000_index", 24)
    (folder / "audit_log/segment_partition_001_from_offset_0000000000_index").unlink()
    (folder / "orders.v1/segment_partition_002_from_offset_0000000000_index").write_bytes(b"")
    (folder / "payments/index_partition_000").unlink()
    _cut(folder / "audit_log/index_partition_001", 3)
    (folder / "audit_log/consumer_offsets_partition_000").write_bytes(b"")
    return folder


FLAWS = {
    "audit_log/consumer_offsets_partition_000": "is empty: offsets of groups",
    "audit_log/segment_partition_000_from_offset_0000000000_index": "has no entry from record 19 on",
    "audit_log/segment_partition_001_from_offset_0000000000_index": "is missing: its records",
    "orders.v1/segment_partition_002_from_offset_0000000000_index": "is empty: its records",
    f"{LAST}_records": "has 13 bytes behind offset 130 that are no whole record",
    "payments/segment_partition_000_from_offset_0000000199_index": "ends within entry ",
    "payments/index_partition_000": "is missing",
}
"""The expected messages about such a folder, by file."""


def _append(path: Path, data: bytes) -> None:
    path.write_bytes(path.read_bytes() + data)


def _cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:-size])
