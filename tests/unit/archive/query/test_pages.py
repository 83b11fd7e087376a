"""Leafing through a partition, both ways."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.archive import layout
from kbackup.archive.query import browse
from kbackup.archive.query.browse import Page, Sought, offset_at, page_before, page_from
from kbackup.archive.query.content import ArchivedPartition
from kbackup.archive.segments import read
from kbackup.archive.segments.table import Segment
from kbackup.store.base import Store
from kbackup.store.file import FileStore
from tests.golden.java_archive import ROOT as JAVA
from tests.support import made_segments as making
from tests.support.archives import T0, make_archive
from tests.support.browsing import ORDERS, Counting, partition_of, partition_with
from tests.support.memory_store import MemoryStore


def offsets(page: Page) -> list[int]:
    return [row.offset for row in page.rows()]


@pytest.fixture(scope="module")
def made() -> MemoryStore:
    store = MemoryStore()
    make_archive(store)
    return store


@given(st.integers(-1, 45), st.integers(1, 40))
def test_pages_both_ways(made: MemoryStore, offset: int, most: int) -> None:
    partition = partition_of(made, "orders")
    after = page_from(made, partition, offset, most)
    before = page_before(made, partition, offset, most)
    assert offsets(after) == [o for o in ORDERS if o >= offset][:most]
    assert offsets(before) == [o for o in ORDERS if o < offset][-most:]
    assert after.earlier == any(o < offset for o in ORDERS)
    assert after.later == (len([o for o in ORDERS if o >= offset]) > most)
    assert before.later == any(o >= offset for o in ORDERS)
    assert before.earlier == (len([o for o in ORDERS if o < offset]) > most)


@given(st.integers(1, 9))
def test_leafing_meets_every_record_once(made: MemoryStore, most: int) -> None:
    partition = partition_of(made, "clicks")
    ahead: list[int] = []
    page = page_from(made, partition, 0, most)
    ahead += offsets(page)
    while page.later:
        assert page.last is not None
        page = page_from(made, partition, page.last + 1, most)
        ahead += offsets(page)
    back: list[int] = []
    page = page_before(made, partition, 1 << 62, most)
    back = offsets(page)
    while page.earlier:
        assert page.first is not None
        page = page_before(made, partition, page.first, most)
        back = [*offsets(page), *back]
    assert ahead == back == list(range(20))


def many(store: Store, *gaps: tuple[int, int], count: int = 30_000) -> list[Segment]:
    gone = {offset for start, end in gaps for offset in range(start, end)}
    wanted = [o for o in range(count) if o not in gone]
    return making.write(store, making.target(threshold=1 << 30), wanted)


def test_a_page_is_a_small_read() -> None:
    """Without gaps an index entry for each record of it, and the records; before an offset, too."""
    store = Counting(MemoryStore())
    partition = partition_with(many(store))
    for turn, offset in ((page_from, 20_000), (page_before, 20_050)):
        store.read.clear()
        page = turn(store, partition, offset, 50)
        assert offsets(page) == list(range(20_000, 20_050))
        (index, _, entries), (records, _, size) = store.read
        assert (index, entries) == (layout.index_key_of(records), 24 * 50)
        assert size == page.blocks[0].nbytes


def test_an_offset_is_found_among_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "_PROBED", 16)
    store = Counting(MemoryStore())
    segments = many(store, (10, 9_000), (9_500, 29_000))
    existing = [*range(10), *range(9_000, 9_500), *range(29_000, 30_000)]
    for offset in (0, 5, 10, 8_999, 9_000, 9_250, 9_499, 9_500, 20_000, 29_001, 29_999):
        store.read.clear()
        assert (
            offsets(page_from(store, partition_with(segments), offset, 3))
            == [o for o in existing if o >= offset][:3]
        )
        assert (
            offsets(page_before(store, partition_with(segments), offset, 3))
            == [o for o in existing if o < offset][-3:]
        )
        assert len(store.read) <= 30
        assert sum(size for key, _, size in store.read if key.endswith("_index")) <= 2 * 14 * 16 * 24


def test_a_page_ends_with_its_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bytes, and goes on after that; one record it always has."""
    store = MemoryStore()
    partition = partition_with(many(store, count=100))
    monkeypatch.setattr(browse, "ROOM", 500)
    some = page_from(store, partition, 40, 30)
    assert 1 < len(offsets(some)) < 30
    assert offsets(some)[0] == 40
    assert sum(block.nbytes for block in some.blocks) <= 500
    assert some.later
    assert offsets(page_before(store, partition, 40, 30))[-1] == 39
    monkeypatch.setattr(browse, "ROOM", 1)
    assert offsets(page_from(store, partition, 40, 30)) == [40]
    assert offsets(page_before(store, partition, 40, 30)) == [39]


def test_many_small_segments_are_one_page() -> None:
    store = Counting(MemoryStore())
    segments = making.write(store, making.target(threshold=1), range(40))
    assert len(segments) == 40
    assert offsets(page_before(store, partition_with(segments), 30, 20)) == list(range(10, 30))
    assert len(store.read) == 40, "an index and the records of each, and no others"


@given(st.integers(-1, 45), st.integers(0, 45))
def test_the_first_record_of_a_time(made: MemoryStore, second: int, start: int) -> None:
    wanted = [o for o in ORDERS if o >= max(second, start)]
    found = offset_at(made, partition_of(made, "orders"), T0 + second * 1000, start)
    assert found == (Sought(wanted[0], True) if wanted else Sought(None, False))


def test_a_search_for_a_time_gives_up_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    monkeypatch.setattr(browse, "SOUGHT", 1)
    monkeypatch.setattr(read, "SPAN", 400)
    partition = partition_with(many(store, count=50))
    steps, found = 0, Sought(0, False)
    while not found.matched:
        assert found.offset is not None
        steps, found = steps + 1, offset_at(store, partition, 1000 + 40, found.offset)
    assert found == Sought(40, True)
    assert steps > 2


def test_empty_and_foreign(made: MemoryStore) -> None:
    empty = page_from(made, ArchivedPartition(0, 0, 0, ()), 0, 10)
    assert (offsets(empty), empty.first, empty.last, empty.earlier, empty.later) == (
        [],
        None,
        None,
        False,
        False,
    )
    java = FileStore(JAVA / "archive")
    for topic in java.list_dirs():
        partition = partition_of(java, topic)
        page = page_from(java, partition, 0, 1000)
        assert len(offsets(page)) == partition.records
