"""Segments as they are written: cut by the rule, write-once, and whole or not there."""

from __future__ import annotations

import io
import pickle
import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbackup.archive import layout
from kbackup.archive.catalog.tables import encode as encode_table
from kbackup.archive.segments.read import crc_of, read_segment
from kbackup.archive.segments.salvage import salvage_segment
from kbackup.archive.segments.table import (
    PLACE,
    ExpectedObject,
    Segment,
    Segments,
    bounds,
    chosen,
    decode_table,
    in_columns,
    in_order,
    objects_of,
    rows_of,
    starts_of,
    sum_of,
    unpaired,
    untimed,
    values_of,
    with_checked_key,
)
from kbackup.archive.segments.table import to_batch as to_batch_table
from kbackup.archive.segments.writer import PartitionWriter, SegmentTakenError
from kbackup.errors import CorruptError, StoreError, UnreachableError
from kbackup.formats.record import decode, encode
from kbackup.store.base import ObjectInfo
from tests.support.faulty_store import Fault, FaultyStore, down
from tests.support.made_segments import a_segment, block, records, target, write
from tests.support.memory_store import MemoryStore
from tests.unit.formats.reference import Record, encode_record, from_batch, to_batch
from tests.unit.formats.reference import records as any_records


def _cut(rows: list[Record], threshold: int) -> list[bytes]:
    """The rule of rotation, one record at a time: the check is made before a record is appended."""
    files: list[bytes] = []
    for row in rows:
        if not files or len(files[-1]) > threshold:
            files.append(b"\x01")
        files[-1] += encode_record(row)
    return files


@settings(max_examples=25)
@given(
    rows=any_records(min_size=1),
    threshold=st.integers(1, 600),
    pieces=st.lists(st.integers(1, 9), max_size=8),
    compression=st.sampled_from(["none", "zstd"]),
)
def test_written_records_are_read_back(rows: list[Record], threshold: int, pieces: list[int], compression: str) -> None:
    store = MemoryStore()
    to = target(3, threshold, compression)
    segments = []
    with PartitionWriter(store, to) as writer:
        rest = rows
        for size in [*pieces, len(rows)]:
            if rest[:size]:
                segments += writer.append(encode(to_batch(rest[:size])))
            rest = rest[size:]
        segments += writer.finish()
    back = [row for s in segments for b in read_segment(store, s) for row in from_batch(decode(b))]
    assert back == rows
    files = _cut(rows, threshold)
    assert [s.bytes for s in segments] == list(map(len, files))
    if compression == "none":
        assert [store.get(s.key) for s in segments] == files
    for s in segments:
        own = [r for r in rows if s.first <= r.offset <= s.last]
        stamps = [r.timestamp for r in own if r.timestamp is not None]
        assert (s.first, s.last, s.count) == (own[0].offset, own[-1].offset, len(own))
        assert (s.min_timestamp, s.max_timestamp) == (min(stamps, default=None), max(stamps, default=None))
        assert s.largest == max(len(encode_record(r)) for r in own)
        assert (s.stored, s.crc) == (len(store.get(s.key)), crc_of(store.get(s.key)))
        assert salvage_segment(store, to, s.key) == s, "what another attempt reads off the objects is the same"


def test_records_come_before_their_index(store: FaultyStore) -> None:
    (segment,) = write(store, target(threshold=1 << 20), range(5))
    commits = [key for operation, key in store.calls if operation == "commit"]
    assert commits == [segment.key, layout.index_key_of(segment.key)]


def test_a_segment_that_is_there_is_left_as_it_is(store: FaultyStore) -> None:
    (first,) = write(store, target(threshold=1 << 20), range(5))
    before = {e.key: store.get(e.key) for e in store.list()}
    with pytest.raises(SegmentTakenError) as taken:
        write(store, target(threshold=1 << 20), range(3))
    assert (taken.value.key, taken.value.first) == (first.key, 0)
    assert {e.key: store.get(e.key) for e in store.list()} == before
    assert not _unfinished(store)


def test_an_index_without_records_takes_the_name(store: FaultyStore) -> None:
    (segment,) = write(store, target(threshold=1 << 20), range(5))
    store.delete([segment.key])
    with pytest.raises(SegmentTakenError):
        write(store, target(threshold=1 << 20), range(5))


@pytest.mark.parametrize("first", [5, 12_345_678_901])
def test_a_padded_name_is_of_the_same_segment(store: FaultyStore, first: int) -> None:
    offsets = range(first, first + 5)
    plain, padded = (
        write(store, target(threshold=1 << 20)._replace(extra_zeros=zeros), offsets)[0] for zeros in (0, 2)
    )
    assert plain.key != padded.key
    assert replace(padded, key=plain.key) == plain
    assert layout.parse_segment(padded.key.rpartition("/")[2]) == (0, first, "records", 2, 0, 0)
    assert [s.key for s in map(with_checked_key, (plain, padded))] == [plain.key, padded.key]
    assert [re.search(layout.SPECIAL_NAME, s.key) is not None for s in (plain, padded)] == [False, True]
    assert from_batch(decode(next(read_segment(store, padded)))) == records(offsets)


@pytest.mark.parametrize("pattern", ["*_records", "*_index"])
def test_a_commit_that_fails_leaves_nothing_half(pattern: str, store: FaultyStore) -> None:
    store.faults.append(down("commit", pattern))
    with pytest.raises(UnreachableError, match="the store is down"):
        write(store, target(threshold=1 << 20), range(5))
    assert not _unfinished(store)
    remaining = [e.key for e in store.list()]
    store.faults.clear()
    if pattern == "*_records":
        assert remaining == []
        write(store, target(threshold=1 << 20), range(5))
    else:  # whole records without an index: the next attempt makes it
        assert [key.rpartition("_")[2] for key in remaining] == ["records"]
        segment = salvage_segment(store, target(), remaining[0])
        assert from_batch(decode(next(read_segment(store, segment)))) == records(range(5))


def test_an_answer_that_is_lost_is_found_by_the_next_attempt(store: FaultyStore) -> None:
    store.faults.append(Fault("commit", "*_records", StoreError("no answer"), after=True, times=1))
    with pytest.raises(StoreError, match="no answer"):
        write(store, target(threshold=1 << 20), range(5))
    with pytest.raises(SegmentTakenError) as taken:
        write(store, target(threshold=1 << 20), range(5))
    assert salvage_segment(store, target(), taken.value.key).count == 5


def test_a_writer_that_is_left_keeps_whole_segments_alone(store: FaultyStore) -> None:
    def give_up() -> None:
        with PartitionWriter(store, target(threshold=300)) as writer:
            done.extend(writer.append(block(range(20))))
            raise InterruptedError

    done: list[object] = []
    with pytest.raises(InterruptedError):
        give_up()
    assert len([e for e in store.list() if e.key.endswith("_records")]) == len(done) > 1
    assert not _unfinished(store)


def test_nothing_written_is_nothing_there(store: FaultyStore) -> None:
    with PartitionWriter(store, target()) as writer:
        assert writer.finish() == []
    assert list(store.list()) == []


def _unfinished(store: FaultyStore) -> list[Path]:
    return list(Path(store.url).rglob("*.part"))


# Segment tables: whole, and the four columns that partition indexes are made from.


def segments_of(table: pa.Table) -> list[Segment]:
    return [Segment(**row) for row in table.to_pylist()]


def table_of(segments: list[Segment]) -> bytes:
    return encode_table(pa.Table.from_batches([to_batch_table(segments)]))


def half_timed(topic: str, incarnation: int, partition: int, first: int) -> Segment:
    """A segment whose first timestamp is unknown."""
    last, times = first + 9, {"min_timestamp": None, "max_timestamp": first}
    return a_segment(topic, first, last, incarnation=incarnation, partition=partition, largest=100, **times)


SEGMENTS = st.lists(
    st.builds(
        half_timed,
        topic=st.sampled_from(["orders", "a", "ünï"]),
        incarnation=st.integers(1, 3),
        partition=st.integers(0, 3),
        first=st.integers(0, 1 << 62),
    ),
    unique_by=lambda s: s.key + str(s.incarnation),
)


@given(SEGMENTS)
def test_a_table_gives_back_what_it_was_made_of(segments: list[Segment]) -> None:
    assert segments_of(decode_table(table_of(segments), "x")) == segments


@given(st.lists(SEGMENTS, max_size=3))
def test_starts_are_those_of_all_tables_in_order(tables: list[list[Segment]]) -> None:
    expected: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    for s in sorted((s for table in tables for s in table), key=in_order):
        expected[s.topic, s.incarnation, s.partition].append(s.first)
    found = starts_of([decode_table(table_of(t), "x", columns=PLACE.names) for t in tables])
    assert {place: firsts.tolist() for place, firsts in found.items()} == expected


@given(SEGMENTS, st.data())
def test_parts_of_columns_are_the_segments_that_they_stand_for(segments: list[Segment], data: st.DataObject) -> None:
    bound = st.none() | st.integers(0, len(segments))
    part, inner = (slice(data.draw(bound), data.draw(bound)) for _ in range(2))
    columns = in_columns(decode_table(table_of(segments), "x"), np.arange(len(segments)))
    rows, values = Segments(columns, part, checked=True), segments[part]
    assert len(rows) == len(values)
    assert rows == values
    assert [*reversed(rows)] == values[::-1]
    assert rows[inner] == values[inner]
    assert [rows[n] for n in (0, -1) if values] == [values[n] for n in (0, -1) if values]
    assert pickle.loads(pickle.dumps(rows)) == tuple(values)
    with pytest.raises(IndexError):
        rows[len(values)]
    for each in (rows, values):
        assert sum_of(each, "largest") == 100 * len(values)
        assert bounds(each, "min_timestamp", "largest") == (None, 100 if values else None)
        assert bounds(each, "first", "last") == (
            min((s.first for s in values), default=None),
            max((s.last for s in values), default=None),
        )
        assert [*chosen(each, lambda s: s.partition > 1)] == [s for s in values if s.partition > 1]
        assert chosen(each, lambda s: True) is each
        assert list(untimed(each)) == values
        assert [*rows_of(each, "key", "first")] == [(s.key, s.first) for s in values]
        assert [records.key for records, _ in objects_of(each)] == [s.key for s in values]


@given(st.permutations("abcdef"), st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 2)), st.data())
def test_listed_and_due_objects_find_each_other_in_any_order(
    order: list[str], sizes: dict[str, int], data: st.DataObject
) -> None:
    due = {key: data.draw(st.integers(0, 2)) for key in order[: data.draw(st.integers(0, 6))]}
    listed = [ObjectInfo(key, size, "", 0.0) for key, size in sorted(sizes.items())]
    twice = (ExpectedObject(key, size, "") for key, size in due.items() for _ in range(data.draw(st.integers(1, 2))))
    extra, lacking = unpaired(listed, twice)
    assert extra.items() == sizes.items() - due.items()
    assert lacking.items() == due.items() - sizes.items()


@pytest.mark.parametrize("texts", [["a", "", "bc"], ["ä", "b", "€"], ["a", None], []])
def test_values_of_a_part_of_a_column(texts: list[str | None]) -> None:
    column = pa.array(["before", *texts, "after"]).slice(1, len(texts))
    assert values_of(column) == texts


@given(SEGMENTS, st.sets(st.sampled_from(["orders", "a", "none"])))
def test_a_table_is_read_for_some_topics(segments: list[Segment], topics: set[str]) -> None:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_batches([to_batch_table(segments)]), sink, row_group_size=2)
    found = decode_table(sink.getvalue(), "x", topics=topics)
    assert segments_of(found) == [s for s in segments if s.topic in topics]


def test_a_row_with_another_key_is_refused_when_it_is_used() -> None:
    rows = Segments(in_columns(decode_table(table_of([a_segment(key="topics/orders/0-0")]), "x"), np.arange(1)))
    assert sum_of(rows, "count") == 10
    with pytest.raises(CorruptError, match="file topics/orders/0-0 is named by the catalog where"):
        list(rows)


def test_other_tables_are_refused() -> None:
    with pytest.raises(CorruptError, match="file x is not a Parquet table"):
        decode_table(b"PAR1 no", "x")
    whole = table_of([a_segment()])
    with pytest.raises(CorruptError, match="file x is not a Parquet table"):
        decode_table(whole[: len(whole) // 2], "x")
    batch = to_batch_table([a_segment()]).select(PLACE.names)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_batches([batch]), sink)
    with pytest.raises(CorruptError, match="other columns"):
        decode_table(sink.getvalue().to_pybytes(), "x")
