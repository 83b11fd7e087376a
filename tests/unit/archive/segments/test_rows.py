"""Rows of exported tables: where a record is from, and what a table has no place for."""

from __future__ import annotations

from datetime import date
from typing import Any

import pyarrow as pa

from kbackup.archive.segments.rows import to_export_batch
from kbackup.formats.stream import scan
from kbackup.types import RecordBlock
from tests.unit.formats.reference import Record, encode_record

YEAR_9999 = 253_402_300_799_999


def block_of(*sequence: Record) -> RecordBlock:
    return scan(b"".join(map(encode_record, sequence)), name="test")


def rows_of(block: RecordBlock) -> pa.RecordBatch:
    return to_export_batch(block, "orders", 3, "topics/orders/segment", 2, 12, 41)


def column(batch: pa.RecordBatch, name: str) -> list[Any]:
    return batch.column(name).to_pylist()


def stamped(offset: int, kind: int, timestamp: int | None) -> Record:
    return Record(offset, kind, timestamp, b"k", b"v", [])


def test_where_a_record_is_from() -> None:
    batch = rows_of(block_of(stamped(5, 0, 86_400_000), stamped(9, 1, 86_399_999)))
    assert column(batch, "topic") == ["orders"] * 2
    assert column(batch, "partition") == [3, 3]
    assert column(batch, "offset") == [5, 9]
    assert column(batch, "incarnation") == [2, 2]
    assert column(batch, "partitions") == [12, 12]
    assert column(batch, "restorePoint") == [41, 41]
    assert column(batch, "date") == [date(1970, 1, 2), date(1970, 1, 1)]


def test_times_that_a_table_has_no_place_for() -> None:
    block = block_of(
        stamped(0, 0, YEAR_9999),
        stamped(1, 0, YEAR_9999 + 1),
        stamped(2, 1, 2**63 - 1),
        stamped(3, 0, -1),
        stamped(4, -1, None),
        stamped(5, -2, None),
    )
    batch = rows_of(block)
    assert column(batch, "date") == [date(9999, 12, 31), None, None, None, None, None]
    assert [t is None for t in column(batch, "timestamp")] == [False, *[True] * 5]
    assert column(batch, "rawTimestamp") == [None, YEAR_9999 + 1, 2**63 - 1, -1, None, None]
    assert column(batch, "timestampType") == [0, 0, 1, 0, -1, 0]


def test_header_keys_that_are_no_text() -> None:
    good = encode_record(Record(0, 0, 1, b"k", None, [("ä", b"1"), ("", None)]))
    plain = encode_record(Record(1, 0, 1, None, b"v", [("ok", b"2"), ("zyx", b"3")]))
    odd = plain.replace(b"zyx", b"k\xff\xfe")
    block = scan(good + odd + encode_record(stamped(2, 0, 1)), name="test")
    batch = rows_of(block)
    assert column(batch, "headers")[1] == [{"key": "ok", "value": b"2"}, {"key": "k��", "value": b"3"}]
    assert column(batch, "rawHeaderKeys") == [None, [b"ok", b"k\xff\xfe"], None]
