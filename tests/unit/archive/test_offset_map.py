"""The offset map, put together from what several attempts committed."""

from __future__ import annotations

import io
from functools import reduce
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.archive import layout
from kbackup.archive.restores import offset_map as offset_maps
from kbackup.archive.restores.map_parts import (
    Cut,
    MapPart,
    MapPartName,
    MappedUnit,
    around,
    committed_names,
    in_order,
    read_map_parts,
)
from kbackup.archive.restores.offset_map import SCHEMA, OffsetMap, decode, joined, runs_by_partition, runs_table
from kbackup.errors import AlreadyExistsError, CorruptError, NotFoundError
from kbackup.native.contract import runs_of
from kbackup.types import TopicPartition
from tests.support.faulty_store import FaultyStore
from tests.support.map_parts import a_map_part, write_map

TP = TopicPartition("orders", 3)


def run(source: int, target: int, count: int, tp: TopicPartition = TP) -> pa.Table:
    return runs_table({tp: (np.array([source]), np.array([target]), np.array([count]))})


def rows(table: pa.Table) -> list[tuple[int, int, int]]:
    return [(r["source"], r["target"], r["count"]) for r in table.to_pylist()]


def committed(store: FaultyStore, unit: int, last: MapPartName | None) -> tuple[list[tuple[int, int, int]], Cut]:
    parts = list(read_map_parts(store, "r", [(unit, committed_names(store, "r", unit, last))]))
    return [row for part in parts for row in rows(part.runs)], reduce(Cut.plus, (part.cut for part in parts), Cut())


def rows_of(store: FaultyStore, unit: int, last: MapPartName | None) -> list[tuple[int, int, int]]:
    found, _ = committed(store, unit, last)
    return found


@pytest.mark.parametrize("name", [MapPartName("a", 0), MapPartName("0f-3", 12), MapPartName("x" * 32, 10**6)])
def test_names_are_read_back(name: MapPartName) -> None:
    assert MapPartName.parse(str(name)) == name


@pytest.mark.parametrize("text", ["", "-", "-1", "a-", "a", "a-b", "a--1 "])
def test_a_note_that_is_none_of_ours(text: str) -> None:
    assert MapPartName.parse(text) is None


def test_the_parts_of_committed_transactions_and_no_others(store: FaultyStore) -> None:
    """Three attempts; each leaves a last part whose transaction was never committed."""
    for number in range(3):
        a_map_part(store, MapPartName("one", number), run(number, 100 + number, 1))
    for number in range(3):
        a_map_part(store, MapPartName("two", number), run(2 + number, 200 + number, 1), previous=MapPartName("one", 1))
    a_map_part(store, MapPartName("three", 0), run(3, 300, 9), previous=MapPartName("two", 0))
    a_map_part(store, MapPartName("other", 0), run(0, 900, 1), unit=1)

    assert rows_of(store, 0, MapPartName("one", 1)) == [(0, 100, 1), (1, 101, 1)]
    assert rows_of(store, 0, MapPartName("three", 0)) == [(0, 100, 1), (1, 101, 1), (2, 200, 1), (3, 300, 9)]
    assert rows_of(store, 1, MapPartName("other", 0)) == [(0, 900, 1)]
    assert committed(store, 0, None) == ([], Cut())


def test_cuts_of_committed_parts_are_summed(store: FaultyStore) -> None:
    a_map_part(store, MapPartName("one", 0), run(0, 100, 1), cut=Cut(1, 30, 2))
    a_map_part(store, MapPartName("one", 1), run(1, 101, 1), cut=Cut(7, 7, 7))
    a_map_part(store, MapPartName("two", 0), run(1, 200, 4), previous=MapPartName("one", 0), cut=Cut(4, 90, 0))
    _, cut = committed(store, 0, MapPartName("two", 0))
    assert cut == Cut(5, 120, 2)


def test_parts_keep_what_a_transform_left_out_by_topic(store: FaultyStore) -> None:
    first, second = Cut(left_out=(("a", 2), ("b", 1))), Cut(left_out=(("b", 4),))
    a_map_part(store, MapPartName("one", 0), run(0, 100, 1), cut=first)
    a_map_part(store, MapPartName("one", 1), run(1, 101, 1), cut=second)
    _, cut = committed(store, 0, MapPartName("one", 1))
    assert cut == Cut(left_out=(("a", 2), ("b", 5)))


def test_a_part_is_never_written_twice(store: FaultyStore) -> None:
    a_map_part(store, MapPartName("one", 0), run(0, 100, 1))
    with pytest.raises(AlreadyExistsError):
        a_map_part(store, MapPartName("one", 0), run(0, 555, 1))
    assert rows_of(store, 0, MapPartName("one", 0)) == [(0, 100, 1)]


def test_a_part_that_is_gone_is_an_error(store: FaultyStore) -> None:
    a_map_part(store, MapPartName("one", 1), run(0, 100, 1))
    with pytest.raises(NotFoundError):
        committed(store, 0, MapPartName("one", 1))


def test_the_whole_map_has_all_parts(store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_maps, "_ROWS", 2)
    parts = [run(0, 3, 4, TopicPartition("a", 12)), run(9, 1, 1, TP._replace(partition=1)), run(4, 0, 3), run(50, 7, 2)]
    written = write_map(store, "r", [MapPart(runs, Cut(1, n, 0)) for n, runs in enumerate(parts)])
    key = layout.restore_key("r", layout.OFFSETS)
    assert decode(store.get(key), key) == pa.concat_tables(parts)
    assert pq.ParquetFile(io.BytesIO(store.get(key))).num_row_groups == 2
    assert (written.records, written.cut) == ({"a": 4, "orders": 6}, Cut(4, 6, 0))
    assert [column.tolist() for column in written.runs[TP]] == [[4, 50], [0, 7], [3, 2]]
    assert write_map(store, "none", []) == ({}, Cut(), {})


def test_units_are_mapped_in_order_of_partition(store: FaultyStore) -> None:
    """Small partitions share a unit, between whose partitions lie those of others."""
    a, b, c, d, e = (TopicPartition("t", n) for n in range(5))
    parts = {0: [[(c, 0), (c, 5)], [(c, 9)]], 1: [[(e, 0)], [(a, 0), (e, 7)], [(d, 1)]], 2: [[(b, 3)]]}
    units = []
    for number, of_unit in parts.items():
        names = [MapPartName("x", n) for n in range(len(of_unit))]
        for name, rows_of in zip(names, of_unit, strict=True):
            runs = pa.concat_tables([run(source, source, 1, tp) for tp, source in rows_of])
            a_map_part(store, name, runs, unit=number, cut=Cut(1, 0, 0))
        units.append(MappedUnit(number, sorted({tp for some in of_unit for tp, _ in some}), names))
    written = write_map(store, "r", in_order(store, "r", units))
    key = layout.restore_key("r", layout.OFFSETS)
    table = decode(store.get(key), key)
    found = [(r["partition"], r["source"]) for r in table.to_pylist()]
    assert found == [(0, 0), (1, 3), (2, 0), (2, 5), (2, 9), (3, 1), (4, 0), (4, 7)]
    assert (written.records, written.cut) == ({"t": 8}, Cut(6, 0, 0))


def test_a_map_without_records_is_read_back(store: FaultyStore) -> None:
    write_map(store, "r", [])
    key = layout.restore_key("r", layout.OFFSETS)
    assert decode(store.get(key), key).equals(SCHEMA.empty_table())


def test_runs_that_stand_apart_are_one_partitions() -> None:
    table = pa.concat_tables([run(0, 0, 1), run(0, 9, 1, TopicPartition("other", 0)), run(5, 1, 2)])
    assert [column.tolist() for column in runs_by_partition(table)[TP]] == [[0, 5], [0, 1], [1, 2]]


def test_a_map_that_is_cut_changed_or_not_in_its_place(store: FaultyStore) -> None:
    write_map(store, "r", [MapPart(run(0, 0, 1))])
    key = layout.restore_key("r", layout.OFFSETS)
    data = store.get(key)
    for changed in (data[:-5], b"", data + b"x", data[:40] + b"?" + data[41:]):
        with pytest.raises(CorruptError, match="does not match its own checksum"):
            decode(changed, key)
    with pytest.raises(CorruptError, match=r"belongs at .restores/r/offsets\.parquet"):
        decode(data, layout.restore_key("other", layout.OFFSETS))


# The rule of the remap against its definition, word by word.


def offset_map(*runs: tuple[int, int, int], end: int) -> OffsetMap:
    source, target, count = (
        (np.array(column, np.int64) for column in zip(*runs, strict=True)) if runs else (np.empty(0, np.int64),) * 3
    )
    return OffsetMap(source, target, count, end)


@pytest.mark.parametrize(
    ("committed", "target", "how"),
    [
        (0, 100, "log start"),
        (10, 100, "exact"),
        (14, 104, "exact"),
        (15, 106, "next record"),
        (19, 106, "next record"),
        (20, 106, "exact"),
        (22, 109, "log end"),
        (99, 109, "log end"),
    ],
)
def test_each_case_by_hand(committed: int, target: int, how: str) -> None:
    found = offset_map((10, 100, 5), (20, 106, 2), end=109).map(committed)
    assert found == (target, how)


def test_an_empty_partition_gives_the_targets_next_offset() -> None:
    assert offset_map(end=7).map(3) == (7, "empty")


@given(
    gaps=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), max_size=40),
    committed=st.integers(0, 130),
    first=st.integers(0, 5),
)
def test_target_is_the_first_restored_record_at_or_after_the_committed_offset(
    gaps: list[tuple[int, int]], committed: int, first: int
) -> None:
    sources = (first + np.cumsum([0, *(a for a, _ in gaps)])).tolist()
    targets = np.cumsum([3, *(b for _, b in gaps)]).tolist()
    runs = runs_of(np.array(sources, np.int64), np.array(targets, np.int64))
    found = OffsetMap(runs.source, runs.target, runs.count, targets[-1] + 5).map(committed)
    wanted = next((t for s, t in zip(sources, targets, strict=True) if s >= committed), targets[-1] + 5)
    assert found.offset == wanted
    assert int(runs.count.sum()) == len(sources)


@given(
    gaps=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=40),
    committed=st.lists(st.integers(0, 130), max_size=4),
    cuts=st.lists(st.integers(0, 40), max_size=3),
)
def test_runs_around_offsets_map_these_as_all_runs_do(
    gaps: list[tuple[int, int]], committed: list[int], cuts: list[int]
) -> None:
    sources, targets = (np.cumsum(column, dtype=np.int64) for column in zip(*gaps, strict=True))
    runs = runs_of(sources, targets)
    every, end = (runs.source, runs.target, runs.count), int(runs.target[-1] + runs.count[-1])
    edges = sorted({0, len(runs.source), *(c for c in cuts if c < len(runs.source))})
    pieces = [(every[0][a:b], every[1][a:b], every[2][a:b]) for a, b in pairwise(edges)]
    kept = joined({TP: [around(piece, np.array(committed, np.int64)) for piece in pieces]})[TP]
    for offset in committed:
        assert OffsetMap(*kept, end).map(offset) == OffsetMap(*every, end).map(offset)
