"""The records encoding once more, one record at a time and as plainly as possible, to compare with."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
from hypothesis import strategies as st

from kbackup.types import RECORDS

Header = tuple[str, bytes | None]


class Record(NamedTuple):
    offset: int
    kind: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: list[Header]


def a_record(
    offset: int,
    *,
    kind: int = 0,
    timestamp: int | None = 5,
    key: bytes | None = b"k",
    value: bytes | None = b"v",
    headers: Sequence[Header] = (),
) -> Record:
    """A record; the one of whom a test says nothing but its offset is usual in everything else."""
    return Record(offset, kind, timestamp, key, value, list(headers))


def _field(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def encode_record(record: Record) -> bytes:
    head = struct.pack(">qi", record.offset, record.kind)
    time = b"" if record.timestamp is None else struct.pack(">q", record.timestamp)
    headers = [_field(key.encode()) + _field(value) for key, value in record.headers]
    count = struct.pack(">i", len(headers))
    return head + time + _field(record.key) + _field(record.value) + count + b"".join(headers)


def decode_records(data: bytes) -> list[Record]:
    """All records of `data` (no magic byte), which must be whole."""
    at = 0

    def take(form: str) -> int:
        nonlocal at
        at += struct.calcsize(form)
        return int(struct.unpack_from(form, data, at - struct.calcsize(form))[0])

    def field() -> bytes | None:
        nonlocal at
        length = take(">i")
        at += max(length, 0)
        return None if length < 0 else data[at - length : at]

    records = []
    while at < len(data):
        offset, kind = take(">q"), take(">i")
        timestamp = take(">q") if kind >= 0 else None
        key, value = field(), field()
        headers = [((field() or b"").decode(), field()) for _ in range(take(">i"))]
        records.append(a_record(offset, kind=kind, timestamp=timestamp, key=key, value=value, headers=headers))
    return records


def to_batch(records: list[Record]) -> pa.RecordBatch:
    rows = [
        {
            "offset": r.offset,
            "timestamp_type": r.kind,
            "timestamp": r.timestamp,
            "key": r.key,
            "value": r.value,
            "headers": [{"key": key, "value": value} for key, value in r.headers],
        }
        for r in records
    ]
    return pa.RecordBatch.from_pylist(rows, schema=RECORDS)


def from_batch(batch: pa.RecordBatch) -> list[Record]:
    return [
        a_record(
            row["offset"],
            kind=row["timestamp_type"],
            timestamp=row["timestamp"],
            key=row["key"],
            value=row["value"],
            headers=[(header["key"], header["value"]) for header in row["headers"]],
        )
        for row in batch.to_pylist()
    ]


# Hypothesis strategies for records.


_INT64 = st.integers(-(2**63), 2**63 - 1)
_OCTETS = st.none() | st.binary(max_size=40)
_HEADERS: st.SearchStrategy[list[Header]] = st.lists(
    st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), _OCTETS), max_size=4
)


@st.composite
def _contents(draw: st.DrawFn) -> Record:
    kind = draw(st.sampled_from([-2, -1, 0, 1]))
    timestamp = draw(_INT64) if kind >= 0 else None
    return a_record(0, kind=kind, timestamp=timestamp, key=draw(_OCTETS), value=draw(_OCTETS), headers=draw(_HEADERS))


@st.composite
def records(draw: st.DrawFn, min_size: int = 0, max_size: int = 60) -> list[Record]:
    """Records with increasing offsets, of all four timestamp types, few and many with headers. Up to five different
    ones in any order, with gaps: to draw each anew made the tests four times slower."""
    kinds = draw(st.lists(_contents(), min_size=1, max_size=5))
    order = draw(st.binary(min_size=min_size, max_size=max_size))
    offset = draw(st.integers(-1, 2**50))
    made = []
    for octet in order:
        offset += 1 + (octet >> 4) ** 4
        made.append(kinds[octet % len(kinds)]._replace(offset=offset))
    return made
