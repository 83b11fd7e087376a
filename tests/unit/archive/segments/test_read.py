"""Reading segments back, and taking over what another attempt left: nothing damaged gets through."""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from awscrt.checksums import crc64nvme
from hypothesis import given, settings
from hypothesis import strategies as st

from kbackup.archive import layout
from kbackup.archive.catalog.tables import SEGMENTS, Chunk, encode
from kbackup.archive.query.java import java_content, java_topics
from kbackup.archive.reader import open_archive
from kbackup.archive.restores import offset_map
from kbackup.archive.segments import parallel as parts
from kbackup.archive.segments import read
from kbackup.archive.segments.parallel import ReadUnit, plan_reads, read_unit
from kbackup.archive.segments.read import read_index, read_records, read_segment, read_small
from kbackup.archive.segments.rows import SCHEMA as PARALLEL_SCHEMA
from kbackup.archive.segments.rows import to_export_batch, to_table_batch
from kbackup.archive.segments.salvage import salvage_segment
from kbackup.archive.segments.table import SCHEMA, Segment, decode_table, read_bounded, to_batch
from kbackup.archive.segments.window import Window
from kbackup.archive.segments.writer import PartitionWriter
from kbackup.archive.verify.findings import check_segment
from kbackup.errors import CorruptError, UnreachableError
from kbackup.formats.record import decode
from kbackup.formats.record import encode as encode_fetch
from kbackup.formats.stream import scan
from kbackup.store.base import Store
from kbackup.store.file import FileStore
from kbackup.types import RecordBlock
from tests.golden.java_archive import PARTITIONS
from tests.golden.java_archive import ROOT as JAVA
from tests.support import made_segments as making
from tests.support.archives import T0, make_archive
from tests.support.faulty_store import Counting, FaultyStore, down, encrypting
from tests.support.made_segments import a_segment, target, write
from tests.support.memory_store import MemoryStore
from tests.support.plain_records import Plain, block_of
from tests.unit.formats.reference import Record, a_record, encode_record, from_batch
from tests.unit.formats.reference import records as any_records
from tests.unit.formats.reference import to_batch as to_batch_fetch

COMPRESSIONS = ["none", "zstd"]
Change = Callable[[bytes], bytes]


def _one(store: FaultyStore, compression: str = "none") -> Segment:
    (segment,) = write(store, target(threshold=1 << 20, compression=compression), range(50, 90))
    return segment


def _read(store: FaultyStore, segment: Segment) -> int:
    return sum(map(len, read_segment(store, segment)))


def _overwrite(store: FaultyStore, key: str, change: Change) -> None:
    store.put(key, change(store.get(key)))


def _flip(at: int) -> Change:
    return lambda data: data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


DAMAGE: dict[str, Change] = {
    "empty": lambda data: b"",
    "magic": _flip(0),
    "first record": _flip(5),
    "middle": lambda data: _flip(len(data) // 2)(data),
    "last byte": lambda data: _flip(len(data) - 1)(data),
    "cut by one": lambda data: data[:-1],
    "cut in half": lambda data: data[: len(data) // 2],
    "one byte more": lambda data: data + b"\0",
}


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize(
    ("which", "damage"),
    # what follows a records object's promised size is never read
    [
        (which, damage)
        for which in ("records", "index")
        for damage in DAMAGE
        if (which, damage) != ("records", "one byte more")
    ],
)
def test_no_damage_is_read_over(which: str, damage: str, compression: str, store: FaultyStore) -> None:
    segment = _one(store, compression)
    assert _read(store, segment) == 40
    key = segment.key if which == "records" else layout.index_key_of(segment.key)
    _overwrite(store, key, DAMAGE[damage])
    with pytest.raises(CorruptError) as raised:
        _read(store, segment)
    assert key in str(raised.value)
    assert raised.value.hint


def test_a_damaged_byte_that_still_reads_well_fails_by_its_checksum(store: FaultyStore) -> None:
    segment = _one(store)
    at = store.get(segment.key).index(b"vvvv")
    _overwrite(store, segment.key, _flip(at))
    with pytest.raises(CorruptError, match=r"is not what its manifest says \(checksum\)"):
        _read(store, segment)


def test_a_short_read_is_no_end(store: FaultyStore) -> None:
    segment = _one(store)
    store.short[segment.key] = segment.stored - 30
    with pytest.raises(CorruptError, match="wanted up to byte"):
        _read(store, segment)


def test_an_index_that_is_missing_or_of_another_segment(store: FaultyStore) -> None:
    segment = _one(store)
    for other in (replace(segment, count=39), replace(segment, first=49), replace(segment, last=90)):
        with pytest.raises(CorruptError, match=r"has 40 records, the segment should have"):
            read_index(store, other)
    store.delete([layout.index_key_of(segment.key)])
    with pytest.raises(CorruptError, match=r"_index is missing"):
        _read(store, segment)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("with_index", [True, False])
def test_taking_over_makes_the_segment_whole(with_index: bool, compression: str, store: FaultyStore) -> None:
    segment = _one(store, compression)
    index = store.get(layout.index_key_of(segment.key))
    if not with_index:
        store.delete([layout.index_key_of(segment.key)])
    assert salvage_segment(store, target(compression=compression), segment.key) == segment
    assert store.get(layout.index_key_of(segment.key)) == index
    assert _read(store, segment) == 40


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("with_index", [True, False])
@pytest.mark.parametrize("damage", ["empty", "magic", "cut by one", "cut in half", "one byte more"])
def test_damaged_segments_are_not_salvaged(damage: str, with_index: bool, compression: str, store: FaultyStore) -> None:
    segment = _one(store, compression)
    _overwrite(store, segment.key, DAMAGE[damage])
    if not with_index:
        store.delete([layout.index_key_of(segment.key)])
    with pytest.raises(CorruptError) as raised:
        salvage_segment(store, target(compression=compression), segment.key)
    assert segment.key in str(raised.value)
    assert with_index or layout.index_key_of(segment.key) not in {e.key for e in store.list()}


def test_segments_that_are_none_of_ours_are_not_taken_over(store: FaultyStore) -> None:
    key = layout.records_key(target().directory, 0, 0, "none")
    store.put_new(key, b"\x01")
    with pytest.raises(CorruptError, match="has no record"):
        salvage_segment(store, target(), key)
    segment = _one(store)
    index = layout.index_key_of(segment.key)
    good = store.get(index)
    for damage in ("empty", "magic", "first record", "middle", "cut by one", "one byte more"):
        store.put(index, DAMAGE[damage](good))
        with pytest.raises(CorruptError):
            salvage_segment(store, target(), segment.key)
    store.put(index, good)
    store.faults.append(down("open_range", "*_records"))
    with pytest.raises(UnreachableError):  # a store that fails is not damage
        salvage_segment(store, target(), segment.key)


def test_a_small_segment_is_read_without_its_index(store: FaultyStore) -> None:
    (segment,) = write(store, target(threshold=1 << 20), range(5, 40))
    store.calls.clear()
    (block,) = read_small(store, segment)
    assert block.offsets.tolist() == list(range(5, 40))
    assert store.calls == [("open_range", segment.key)]
    for wrong in (replace(segment, count=34), replace(segment, first=4), replace(segment, last=40)):
        with pytest.raises(CorruptError, match="does not have the records that the catalog promises"):
            list(read_small(store, wrong))
    with pytest.raises(CorruptError, match="is not what its manifest says"):
        list(read_small(store, replace(segment, crc="0" * 16)))
    unknown = replace(segment, crc="")
    assert len(next(iter(read_small(store, unknown)))) == 35


# Tables that are a few kilobytes in the store and gigabytes in memory are refused by their footer.


def honest(count: int, seed: int = 1) -> list[Segment]:
    """As alike as segments of one partition can be: of as many records, at the same distance in time."""
    crcs = np.random.default_rng(seed).integers(0, 1 << 62, (count, 2)).tolist()
    key = "topics/t/segment_partition_000_from_offset_{:010d}_records"
    size = 1 << 20
    return [
        a_segment(
            "t",
            first,
            first + 999,
            bytes=size,
            stored=size,
            min_timestamp=n,
            max_timestamp=n,
            largest=1024,
            crc=f"{crc:016x}",
            index_crc=f"{index_crc:016x}",
            key=key.format(first),
        )
        for n, (crc, index_crc) in enumerate(crcs)
        for first in (n * 1000,)
    ]


def bomb(rows: int, schema: pa.Schema = SCHEMA) -> bytes:
    """`rows` equal rows in a few kilobytes."""
    one = {field.name: pa.array(["x" * 64] if pa.types.is_string(field.type) else [0], field.type) for field in schema}
    arrays = [pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), one[field.name]) for field in schema]
    sink = io.BytesIO()
    pq.write_table(pa.table(arrays, names=schema.names).cast(schema), sink, compression="zstd")
    return sink.getvalue()


@pytest.mark.exhaustive(keep=1)
@pytest.mark.parametrize("count", [0, 1, 30_000])
def test_tables_that_are_written_are_read(count: int) -> None:
    table = pa.Table.from_batches([to_batch(honest(count))])
    table = table.append_column(SEGMENTS.field("point"), pa.array([7] * count, pa.int64()))
    assert Chunk(SEGMENTS, count, lambda: encode(table)).read().equals(table)


def test_more_rows_than_its_document_says() -> None:
    data = encode(pa.Table.from_batches([to_batch(honest(3))]))
    with pytest.raises(CorruptError, match="has 3 rows, its document says 2"):
        Chunk(SCHEMA, 2, lambda: data).read()


@pytest.mark.exhaustive
def test_more_rows_than_its_bytes_hold() -> None:
    data = bomb(2_000_000)
    assert len(data) < 200_000
    with pytest.raises(CorruptError, match=r"a table has 2000000 rows and .* it was not read"):
        decode_table(data, "a table", rows=2_000_000)


def test_an_offset_map_of_more_rows_than_its_bytes_hold() -> None:
    table = pa.table([pa.array(np.zeros(3_000_000, np.int64))], names=["source"])
    data = offset_map.encode(table, "restores/r/offsets.parquet")
    with pytest.raises(CorruptError, match=r"rows and .* uncompressed"):
        offset_map.decode(data, "restores/r/offsets.parquet", table.schema)


@pytest.mark.parametrize("long", [20_000, 1_000_000])
def test_one_long_name_in_every_row_is_not_decoded(long: int) -> None:
    rows = 10_000
    name = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x" * long]))
    columns = [name if pa.types.is_string(f.type) else pa.array([0] * rows, f.type) for f in SCHEMA]
    data = encode(pa.Table.from_arrays(columns, names=SCHEMA.names))
    assert len(data) < 100_000
    before = pa.total_allocated_bytes()
    with pytest.raises(CorruptError, match="compressed like that"):
        decode_table(data, "x")
    assert pa.total_allocated_bytes() - before < 1 << 20, "the long names were decoded"
    with pytest.raises(CorruptError, match="compressed like that"):
        read_bounded(data, "x", SCHEMA.names)


# Ranges that are read ahead, and the blocks that are made of them.


DATA = bytes(range(256)) * 40


def threads() -> int:
    return sum(thread.name.startswith("fetch") for thread in threading.enumerate())


@pytest.mark.parametrize("size", [1, 99, 5000, len(DATA), len(DATA) + 1])
def test_spans_come_in_order_with_their_checksums(size: int, store: FaultyStore) -> None:
    store.put("key", DATA)
    spans = [(start, min(start + size, len(DATA))) for start in range(0, len(DATA), size)][:200]
    found = list(read.fetched(store, "key", spans))
    assert [data.tobytes() for data, _ in found] == [DATA[start:end] for start, end in spans]
    assert [crc for _, crc in found] == [crc64nvme(DATA[start:end]) for start, end in spans]
    assert threads() == 0


def test_no_more_than_two_are_read_ahead_and_what_is_left_is_given_up(store: FaultyStore) -> None:
    store.put("key", DATA)
    store.calls.clear()
    reading = read.fetched(store, "key", [(n, n + 1) for n in range(100)])
    for taken in range(1, 4):
        next(reading)
        assert len(store.calls) <= taken + 2
    assert isinstance(reading, Iterator)
    reading.close()  # type: ignore[attr-defined]
    assert threads() == 0
    assert len(store.calls) <= 5


def test_errors_come_out_and_end_the_threads(store: FaultyStore) -> None:
    store.put("key", DATA)
    with pytest.raises(CorruptError, match="wanted up to byte"):
        list(read.fetched(store, "key", [(0, 5), (5, 10), (10, len(DATA) + 1), (0, 1)]))
    store.faults.append(down("open_range", "key"))
    with pytest.raises(UnreachableError):
        list(read.fetched(store, "key", [(0, 5), (5, 10)]))
    assert threads() == 0


def test_buffers_are_used_again_but_never_while_they_are_held(store: FaultyStore) -> None:
    size = 2 << 20
    store.put("key", b"".join(bytes([n]) * size for n in range(12)))
    before = read._POOL.allocated
    for n, (data, _) in enumerate(read.fetched(store, "key", [(n * size, n * size + size) for n in range(12)])):
        assert set(data[::997].tolist()) == {n}
    assert read._POOL.allocated - before <= 4, "one in use, two ahead, one that is being let go"


@settings(max_examples=40)
@given(
    rows=any_records(min_size=1),
    span=st.integers(1, 500),
    compression=st.sampled_from(["none", "zstd"]),
    indexed=st.booleans(),
)
def test_any_spans_give_the_records(rows: list[Record], span: int, compression: str, indexed: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read, "FETCH_SPAN", span)
        store = MemoryStore()
        with PartitionWriter(store, target(3, 1 << 20, compression)) as writer:
            writer.append(encode_fetch(to_batch_fetch(rows)))
            (segment,) = writer.finish()
        index = read_index(store, segment) if indexed else None
        fetched_bytes = list(read_records(store, segment, index))
        assert [row for block in fetched_bytes for row in from_batch(decode(block))] == rows
        assert check_segment(store, segment).findings == ()
        if indexed and compression == "none":
            longest = max(len(encode_record(row)) for row in rows)
            assert all(block.nbytes <= max(span, longest) for block in fetched_bytes)


# Records as tables, and pieces of work: nothing twice, nothing missing, and no more read than needed.


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
small = st.none() | st.binary(max_size=6)
plain = st.builds(
    Plain,
    small,
    small,
    st.sampled_from([-2, -1, 0, 1]),
    st.integers(0, 1 << 42) | st.sampled_from([0, 2**63 - 1]),
    st.lists(st.tuples(st.binary(max_size=3), small), max_size=3).map(tuple),
)


def expected(offset: int, record: Plain) -> dict[str, Any]:
    micros = min(record.timestamp, (2**63 - 1) // 1000) * 1000
    return {
        "key": record.key,
        "value": record.value,
        "topic": "töpic",
        "partition": 3,
        "offset": offset,
        "timestamp": micros if record.kind >= 0 else None,
        "timestampType": 0 if record.kind == -2 else record.kind,
        "headers": [{"key": k.decode(errors="replace"), "value": v} for k, v in record.headers] or None,
        "segment": "its key",
    }


@given(st.lists(plain, max_size=40))
def test_a_block_as_a_table(records: list[Plain]) -> None:
    block = block_of(records, range(5, 5 + len(records)))
    batch = to_table_batch(block, "töpic", 3, "its key")
    batch.validate(full=True)
    assert batch.schema.equals(PARALLEL_SCHEMA)
    table = pa.table(batch)
    at = PARALLEL_SCHEMA.names.index("timestamp")
    rows = table.set_column(at, "timestamp", table.column("timestamp").cast(pa.int64())).to_pylist()
    assert rows == [expected(5 + n, record) for n, record in enumerate(records)]
    some = to_table_batch(block, "töpic", 3, "its key", columns=["offset", "headers", "key"])
    assert some.to_pydict() == pa.table(batch).select(["offset", "headers", "key"]).to_pydict()


def test_a_damaged_block_is_none() -> None:
    block = block_of([Plain(b"key", b"value")])
    data = block.data.copy()
    data[12:16] = 0xFF
    with pytest.raises(CorruptError, match="its key"):
        to_table_batch(
            type(block)(data, block.offsets + 1, block.positions, block.lengths, None, None, block.largest),
            "t",
            0,
            "its key",
        )


def offsets_of(store: Store, planned: list[ReadUnit]) -> list[tuple[str, int, int]]:
    offsets: list[tuple[str, int, int]] = []
    for part in pickle.loads(pickle.dumps(planned)):
        for batch in read_unit(store, part, ["topic", "partition", "offset"]):
            assert batch.num_rows
            offsets += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return offsets


@pytest.fixture(scope="module")
def gappy() -> tuple[MemoryStore, list[Segment]]:
    store = MemoryStore()
    offsets = [*range(40), *range(60, 90), 500, *range(1000, 1100)]
    return store, making.write(store, making.target(threshold=2000), offsets)


OFFSETS = [*range(40), *range(60, 90), 500, *range(1000, 1100)]
edges = st.lists(st.integers(0, 1200), unique=True, max_size=8).map(sorted)


@given(
    edges,
    st.integers(100, 5000),
    st.integers(100, 5000),
    st.integers(0, 3000),
    st.none() | st.tuples(st.integers(900, 2200), st.integers(900, 2200)),
)
def test_planned_reads_cover_the_selected_records(
    gappy: tuple[MemoryStore, list[Segment]],
    edges: list[int],
    part_bytes: int,
    cut_bytes: int,
    near: int,
    times: tuple[int, int] | None,
) -> None:
    store, segments = gappy
    ranges = tuple(zip(edges[::2], edges[1::2], strict=False)) or None
    low, high = times if times else (None, None)
    window = Window(from_time=low, to_time=high, ranges=ranges)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "_OPENING", 50)
        patch.setattr(parts, "_NEAR", near)
        planned = plan_reads(segments, lambda _: window, part_bytes=part_bytes, cut_bytes=cut_bytes)
    expected = [
        o
        for o in OFFSETS
        if (ranges is None or any(a <= o < b for a, b in ranges))
        and (times is None or times[0] <= 1000 + o <= times[1])
    ]
    assert [o for _, _, o in offsets_of(store, planned)] == expected
    for part in planned:
        sizes = [piece.bytes for piece in part.ranges]
        assert len(sizes) == 1 or 0 < sum(sizes) <= part_bytes
        assert all(size <= cut_bytes + 1 for size in sizes)


@pytest.mark.parametrize("encrypted", [False, True])
def test_records_of_every_kind_of_segment(tmp_path: Path, encrypted: bool) -> None:
    """Plain and `.zst`, whole, cut, and by offset; the same records each time."""
    store: Store = encrypting(MemoryStore(), tmp_path) if encrypted else MemoryStore()
    make_archive(store)
    archive = open_archive(store)
    segments = archive.segments(archive.restore_point("latest"))
    assert {layout.compression_of(s.key) for s in segments} == {"none", "zstd"}
    expected = [
        *(("clicks", 0, o) for o in range(20)),
        *(("orders", 0, o) for o in [*range(10), 15, *range(17, 40)]),
        *(("orders", 1, o) for o in range(12)),
    ]
    assert offsets_of(store, plan_reads(segments)) == expected
    assert offsets_of(store, plan_reads(segments, part_bytes=1, cut_bytes=300)) == expected
    narrow = Window(ranges=((4, 6), (18, 19)), from_time=T0 + 5000)
    found = offsets_of(store, plan_reads(segments, lambda _: narrow))
    assert found == [("clicks", 0, 5), ("clicks", 0, 18), ("orders", 0, 5), ("orders", 0, 18), ("orders", 1, 5)]


def test_bytes_that_are_read() -> None:
    """Of a segment that is wanted whole each byte, once; of one record an entry of the index and itself; of what can't
    hold any, nothing."""
    store = Counting(MemoryStore())
    segments = making.write(store, making.target(threshold=20_000), range(2000))
    assert len(segments) > 3
    store.read.clear()
    assert len(offsets_of(store, plan_reads(segments))) == 2000
    assert sum(length for key, _, length in store.read if key.endswith("_records")) == sum(s.bytes for s in segments)
    store.read.clear()
    planned = plan_reads(segments, lambda _: Window(ranges=((1234, 1235),)))
    assert offsets_of(store, planned) == [("orders", 0, 1234)]
    assert [length < 100 for _, _, length in store.read] == [True, True]
    store.calls.clear()
    assert plan_reads(segments, lambda _: Window(from_time=10_000)) == []
    assert plan_reads(segments, lambda _: Window(ranges=((5000, 6000),))) == []
    assert store.calls == []


def test_batches_keep_to_their_limit_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "BATCH_BYTES", 500)
    store = MemoryStore()
    segments = making.write(store, making.target(threshold=1 << 20), range(200))
    (part,) = plan_reads(segments)
    sizes = [batch.num_rows for batch in read_unit(store, part, ["offset"])]
    assert sum(sizes) == 200
    assert max(sizes) <= 10


def test_a_folder_of_the_java_tool() -> None:
    store = FileStore(JAVA / "archive")
    content = java_content(store, java_topics(store))
    offsets: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for part in plan_reads([s for topic in content.topics for s in topic.segments]):
        for batch in read_unit(store, part, PARALLEL_SCHEMA.names):
            for row in batch.to_pylist():
                offsets.setdefault((row["topic"], row["partition"]), []).append(row)
    held = {(p.topic, p.number): p.truth() for p in PARTITIONS}
    assert offsets.keys() == {tp for tp, records in held.items() if records}
    for tp, rows in offsets.items():
        for row, record in zip(rows, held[tp], strict=True):
            assert (row["offset"], row["key"], row["value"]) == (record.offset, record.key, record.value)
            assert [(h["key"], h["value"]) for h in row["headers"] or []] == record.headers
            at = None if record.timestamp is None else EPOCH + timedelta(milliseconds=record.timestamp)
            assert row["timestamp"] == at
            assert row["timestampType"] == (0 if record.kind == -2 else record.kind)


def test_columns_are_as_numpy_has_them() -> None:
    block = block_of([Plain(b"k", None, 1, 7)], [2**62])
    batch = to_table_batch(block, "t", 2**31 - 1, "s", columns=["partition", "offset", "timestampType"])
    assert [int(np.asarray(c)[0]) for c in batch.columns] == [2**31 - 1, 2**62, 1]


# Rows of exported tables: where a record is from, and what a table has no place for.


YEAR_9999 = 253_402_300_799_999


def exported_block(*sequence: Record) -> RecordBlock:
    return scan(b"".join(map(encode_record, sequence)), name="test")


def rows_of(block: RecordBlock) -> pa.RecordBatch:
    return to_export_batch(block, "orders", 3, "topics/orders/segment", 2, 12, 41)


def column(batch: pa.RecordBatch, name: str) -> list[Any]:
    return batch.column(name).to_pylist()


def stamped(offset: int, kind: int, timestamp: int | None) -> Record:
    return a_record(offset, kind=kind, timestamp=timestamp)


def test_where_a_record_is_from() -> None:
    batch = rows_of(exported_block(stamped(5, 0, 86_400_000), stamped(9, 1, 86_399_999)))
    same = {"topic": "orders", "partition": 3, "incarnation": 2, "partitions": 12, "restorePoint": 41}
    assert {name: column(batch, name) for name in same} == {name: [value] * 2 for name, value in same.items()}
    assert column(batch, "offset") == [5, 9]
    assert column(batch, "date") == [date(1970, 1, 2), date(1970, 1, 1)]


def test_times_that_a_table_has_no_place_for() -> None:
    block = exported_block(
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
    good = encode_record(a_record(0, timestamp=1, value=None, headers=[("ä", b"1"), ("", None)]))
    plain = encode_record(a_record(1, timestamp=1, key=None, headers=[("ok", b"2"), ("zyx", b"3")]))
    odd = plain.replace(b"zyx", b"k\xff\xfe")
    block = scan(good + odd + encode_record(stamped(2, 0, 1)), name="test")
    batch = rows_of(block)
    assert column(batch, "headers")[1] == [{"key": "ok", "value": b"2"}, {"key": "k��", "value": b"3"}]
    assert column(batch, "rawHeaderKeys") == [None, [b"ok", b"k\xff\xfe"], None]
