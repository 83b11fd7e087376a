"""Rows of tables as segments: as Spark brings them, and only what can be records of Kafka."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from kbackup.archive.query.selection import Selection
from kbackup.archive.segments.read import read_segment
from kbackup.archive.segments.rows import to_export_batch
from kbackup.archive.segments.table import Segment, from_batches
from kbackup.errors import CorruptError, UsageError, from_text
from kbackup.formats.stream import scan
from kbackup.jobs.importing.rows import TableRange, WriteSegments, table_ranges
from tests.support.memory_store import MemoryStore
from tests.unit.formats.reference import Record, decode_records, encode_record


def records(*offsets: int) -> list[Record]:
    return [Record(n, 0, n, b"key", b"value" * 9, [("h", None)]) for n in offsets]


def rows(topic: str, partition: int, *offsets: int) -> pa.RecordBatch:
    block = scan(b"".join(map(encode_record, records(*offsets))), name="test")
    return to_export_batch(block, topic, partition, "segment", 2, 3, 1)


def together(*batches: pa.RecordBatch) -> pa.RecordBatch:
    (whole,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return whole


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def write(store: MemoryStore, *batches: pa.RecordBatch) -> list[Segment]:
    return from_batches(WriteSegments(store, 300, "none")(iter(batches)))


def read(store: MemoryStore, segments: list[Segment]) -> dict[tuple[str, int], list[Record]]:
    records: dict[tuple[str, int], list[Record]] = {}
    for segment in segments:
        for block in read_segment(store, segment):
            records.setdefault((segment.topic, segment.partition), []).extend(
                decode_records(block.data.tobytes())
            )
    return records


def test_partitions_within_and_across_batches(store: MemoryStore) -> None:
    segments = write(
        store,
        together(rows("a", 0, *range(20)), rows("a", 1, 3, 7)),
        rows("a", 1, 9, 11),
        together(rows("a", 1, 12), rows("b", 1, 0)),
    )
    assert len(segments) > 3
    assert {s.incarnation for s in segments} == {1}
    assert read(store, segments) == {
        ("a", 0): records(*range(20)),
        ("a", 1): records(3, 7, 9, 11, 12),
        ("b", 1): records(0),
    }


def test_an_attempt_again_takes_the_place_of_the_one_before(store: MemoryStore) -> None:
    write(store, rows("a", 0, *range(30)), rows("a", 10, 1))
    segments = write(store, rows("a", 0, *range(40)))
    assert read(store, segments) == {("a", 0): records(*range(40))}
    assert store.stat("topics/a/segment_partition_010_from_offset_0000000001_records").size  # another's


def test_no_rows(store: MemoryStore) -> None:
    assert write(store) == []
    assert write(store, rows("a", 0, 1).slice(1)) == []


@pytest.mark.parametrize(
    "batches",
    [
        [rows("a", 0, 1, 2).take(pa.array([0, 1, 1]))],
        [rows("a", 0, 1, 2), rows("a", 0, 2, 3)],
        [rows("a", 0, 1).set_column(6, "timestampType", pa.array([7], pa.int32()))],
    ],
    ids=["twice in a batch", "twice in two", "unknown type"],
)
def test_rows_that_are_no_records(store: MemoryStore, batches: list[pa.RecordBatch]) -> None:
    with pytest.raises(RuntimeError) as raised:
        write(store, *batches)
    error = from_text(str(raised.value))
    assert isinstance(error, CorruptError)
    assert "a-0" in error.message
    assert not [entry.key for entry in store.list()]


def test_the_newest_incarnation_of_what_is_selected() -> None:
    sums = [
        ("a", 1, 0, 9, 0, 8, 3, 4, 0),
        ("a", 2, 1, 5, 0, 8, 3, 6, 0),
        ("a", 2, 0, 2, 3, 8, None, 5, 0),  # somebody's own rows
        ("b", 1, 0, 9, 0, 8, 3, 4, 0),
        ("c", None, 0, 9, 0, 8, 3, None, 9),
    ]
    assert table_ranges(sums, Selection.of(["a"], [])) == [
        TableRange("a", 2, 0, 2, 3, 8, 0, 5),
        TableRange("a", 2, 1, 5, 0, 8, 3, 6),
    ]


@pytest.mark.parametrize(
    "row",
    [
        (None, 1, 0, 1, 7, 7, 3, 4, 1),
        ("a", None, 0, 1, 7, 7, 3, 4, 1),
        ("a", 1, None, 1, 7, 7, 3, 4, 1),
        ("a", 1, 0, 1, None, None, 3, 4, 1),
        ("a", 1, 0, 1, 7, 7, 3, None, 1),
    ],
)
def test_rows_without_what_each_record_has(row: tuple[Any, ...]) -> None:
    with pytest.raises(CorruptError, match=r"1 rows.* lack what every record has"):
        table_ranges([("a", 1, 0, 9, 0, 8, 3, 4, 0), row], Selection.of(["a"], []))
    with pytest.raises(UsageError, match="no topic orders with records in the Delta tables"):
        table_ranges([("a", 1, 0, 9, 0, 8, 3, 4, 0)], Selection.of(["a", "orders"], []))
