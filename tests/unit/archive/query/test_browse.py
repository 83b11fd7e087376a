"""Pages of records: just those that are wanted, with the requests that they cost."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.archive import layout
from kbackup.archive.query.browse import records, tail
from kbackup.archive.segments.window import Window
from kbackup.formats.record import rows
from tests.support import made_segments as making
from tests.support.archives import T0, make_archive
from tests.support.browsing import ORDERS, Counting, encrypting, offsets, one, partition_of, partition_with
from tests.support.memory_store import MemoryStore


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize(
    ("topic", "offset", "requests"),
    [
        ("orders", 5, ["index", "records"]),
        ("orders", 18, ["index", "records"]),  # in a segment with a gap
        ("clicks", 13, ["index", "records.zst", "records.zst"]),  # the seek table as well
    ],
)
def test_one_record_costs_two_or_three_requests(
    tmp_path: Path, topic: str, offset: int, requests: list[str], encrypted: bool
) -> None:
    plain = MemoryStore()
    make_archive(encrypting(plain, tmp_path) if encrypted else plain)
    below = Counting(plain)
    store = Counting(encrypting(below, tmp_path) if encrypted else below)
    partition = partition_of(store, topic)
    assert store.of_topics() == [], "metadata alone tells where it is"
    metadata = [key for _, key in store.calls]
    assert len(metadata) == len(set(metadata)), "each file once"
    assert not [key for key in metadata if key.endswith((layout.GROUPS, layout.METADATA))]
    (found,) = records(store, topic, partition, one(offset), 1)
    (row,) = rows(found.block)
    assert (row.offset, row.value) == (offset, b"value %d of 0 " % offset * 6)
    assert store.of_topics() == [("open_range", what) for what in requests]
    # below, what an object begins with is read once before its first range
    beginnings = len(set(requests)) if encrypted else 0
    assert len(below.of_topics()) == len(requests) + beginnings


def test_a_record_among_many_is_a_small_read() -> None:
    """Of a segment without gaps one entry of the index is read, and the record's bytes; of one with gaps at most as
    many entries as offsets are missing."""
    store = Counting(MemoryStore())
    dense = making.write(store, making.target(threshold=1 << 20), range(5000))
    gappy = making.write(store, making.target(1, threshold=1 << 20), [*range(4000), *range(4100, 5100)])
    for segments, offset, entries in ((dense, 4321, 1), (gappy, 4321, 101)):
        store.read.clear()
        (found,) = records(store, "orders", partition_with(segments), one(offset), 1)
        assert [row.key for row in rows(found.block)] == [b"key-4321"]
        (_, _, index), (_, _, record) = store.read
        assert index <= 24 * entries
        assert record == found.block.nbytes


@given(st.integers(0, 45), st.integers(0, 45), st.none() | st.integers(1, 40))
def test_ranges_of_offsets(made: MemoryStore, start: int, end: int, most: int | None) -> None:
    window = Window(ranges=((start, end),) if start < end else ())
    found = offsets(records(made, "orders", partition_of(made, "orders"), window, most))
    assert found == [o for o in ORDERS if start <= o < end][:most]


@given(st.integers(-2, 45), st.integers(-2, 45), st.none() | st.integers(1, 40))
def test_times(made: MemoryStore, start: int, end: int, most: int | None) -> None:
    window = Window(from_time=T0 + start * 1000, to_time=T0 + end * 1000)
    found = offsets(records(made, "orders", partition_of(made, "orders"), window, most))
    assert found == [o for o in ORDERS if start <= o <= end][:most]


@given(st.integers(1, 60))
def test_tails(made: MemoryStore, most: int) -> None:
    assert offsets(tail(made, "orders", partition_of(made, "orders"), most)) == ORDERS[-most:]
    assert offsets(tail(made, "clicks", partition_of(made, "clicks"), most)) == list(range(20))[-most:]


def test_a_tail_reads_what_it_shows(made: MemoryStore) -> None:
    store = Counting(made)
    partition = partition_of(store, "orders")
    assert offsets(tail(store, "orders", partition, 1)) == [39]
    assert [key for key, _, _ in store.read] == [
        layout.index_key_of(partition.segments[-1].key),
        partition.segments[-1].key,
    ]
