"""Pages of several partitions together: in order of time, each record once, with few objects read."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from kbackup.archive import layout
from kbackup.archive.query import together as module
from kbackup.archive.query.content import ArchivedPartition
from kbackup.archive.query.together import Position, TogetherPage, position_at, together_before, together_from
from kbackup.archive.segments.writer import SegmentTarget
from kbackup.store.base import Store
from tests.support.archives import write_block
from tests.support.faulty_store import Counting
from tests.support.memory_store import MemoryStore
from tests.support.plain_records import Plain, block_of

Log = Sequence[int | None]
"""The times of the records of a partition, in order of their offsets; None is a record without a time."""
Place = tuple[int, int]
"""A record by its partition and its offset."""


def archived(store: Store, logs: Sequence[Log], segment_bytes: int = 200) -> list[ArchivedPartition]:
    """Write a topic whose partitions have records of these times, a few in each segment."""
    partitions: list[ArchivedPartition] = []
    for number, log in enumerate(logs):
        records = [Plain(b"key", b"value", -1 if time is None else 0, time or 0) for time in log]
        target = SegmentTarget("orders", 1, number, segment_bytes, "none")
        segments = write_block(store, target, block_of(records)) if records else []
        partitions.append(ArchivedPartition(number, 0, len(log), tuple(segments)))
    return partitions


def in_order(logs: Sequence[Log]) -> list[Place]:
    """Return all records in the order of pages: a record counts as late as the latest one before it in its log."""
    places: list[tuple[float, int, int]] = []
    for number, log in enumerate(logs):
        latest = float("-inf")
        for offset, time in enumerate(log):
            latest = max(latest, float("-inf") if time is None else time)
            places.append((latest, number, offset))
    return [(number, offset) for _, number, offset in sorted(places)]


def places(page: TogetherPage) -> list[Place]:
    return [(placed.partition, placed.row.offset) for placed in page.rows]


def leaf_forwards(store: Store, partitions: Sequence[ArchivedPartition], most: int) -> list[TogetherPage]:
    pages = [together_from(store, partitions, {}, most)]
    while pages[-1].later:
        pages.append(together_from(store, partitions, pages[-1].end, most))
    return pages


def leaf_backwards(store: Store, partitions: Sequence[ArchivedPartition], most: int) -> list[TogetherPage]:
    """Return pages from the last to the first, as they are read."""
    pages = [together_before(store, partitions, {}, most)]
    while pages[-1].earlier:
        pages.append(together_before(store, partitions, pages[-1].start, most))
    return pages


TIMES = st.none() | st.integers(0, 9)
"""Few times for many records: many of them are equal, and many are earlier than the record before."""
LOGS = st.lists(st.lists(TIMES, max_size=12), min_size=1, max_size=4)


@given(LOGS, st.integers(1, 9))
def test_leafing_forwards_meets_every_record_once_in_order_of_time(logs: list[Log], most: int) -> None:
    store = MemoryStore()
    pages = leaf_forwards(store, archived(store, logs), most)
    met = [place for page in pages for place in places(page)]
    assert met == in_order(logs)
    assert all(len(page.rows) <= most for page in pages)


@given(LOGS, st.integers(1, 9))
def test_leafing_backwards_meets_every_record_once(logs: list[Log], most: int) -> None:
    store = MemoryStore()
    pages = leaf_backwards(store, archived(store, logs), most)
    met = [place for page in reversed(pages) for place in places(page)]
    assert sorted(met) == sorted(in_order(logs))
    for number, log in enumerate(logs):
        offsets = [offset for partition, offset in met if partition == number]
        assert offsets == list(range(len(log))), f"partition {number} keeps the order of its log"


@given(LOGS, st.integers(1, 9), st.integers(1, 9), st.data())
def test_the_page_before_ends_where_this_one_begins(
    logs: list[Log], most: int, other: int, data: st.DataObject
) -> None:
    """Whatever the sizes of pages are: a reader may change them, and turn at any page."""
    store = MemoryStore()
    partitions = archived(store, logs)
    page = data.draw(st.sampled_from(leaf_forwards(store, partitions, most)))
    before = together_before(store, partitions, page.start, other)
    assert before.end == page.start
    assert before.earlier == any(before.start.values())
    assert {*places(before)} | {*places(page)} == {
        (number, offset) for number, end in page.end.items() for offset in range(before.start[number], end)
    }


def test_an_earlier_time_does_not_overtake_the_records_before_it() -> None:
    store = MemoryStore()
    partitions = archived(store, [[10, 50, 20, 60], [30, 40, 70]])
    page = together_from(store, partitions, {}, 10)
    assert places(page) == [(0, 0), (1, 0), (1, 1), (0, 1), (0, 2), (0, 3), (1, 2)]


def test_a_page_reads_a_bounded_number_of_objects() -> None:
    """An index and the records of each segment, of as many segments as a page may read, and nothing else."""
    store = Counting(MemoryStore())
    partitions = archived(store, [range(number, 900, 6) for number in range(6)], segment_bytes=1)
    assert len(partitions[0].segments) == 150, "a segment for each record"
    share = module.SEGMENTS // 6
    for turn in (together_from, together_before):
        store.read.clear()
        page = turn(store, partitions, {}, 500)
        objects = {key for key, _, _ in store.read}
        assert len(page.rows) >= share, "as far as one partition was read"
        assert len(objects) == 2 * 6 * share
        assert len(store.read) == len(objects), "each with one request"


def test_partitions_share_the_segments_of_a_page() -> None:
    store = Counting(MemoryStore())
    log = [1, 2, 3, 4, 5]
    partitions = archived(store, [log] * module.PARTITIONS, segment_bytes=1)
    page = together_from(store, partitions, {}, 500)
    share = module.SEGMENTS // module.PARTITIONS
    assert share < len(log)
    assert len({key for key, _, _ in store.read}) == 2 * module.SEGMENTS
    # The first partition ends the page: its next record is not read, and may be earlier than those of others.
    assert len(page.rows) == (share - 1) * module.PARTITIONS + 1
    assert page.later


def test_large_records_end_a_page_early() -> None:
    store = Counting(MemoryStore())
    value = b"x" * 100_000
    partitions = []
    for number in range(module.PARTITIONS):
        target = SegmentTarget("orders", 1, number, 1 << 30, "none")
        segments = write_block(store, target, block_of([Plain(b"key", value, 0, time) for time in range(10)]))
        partitions.append(ArchivedPartition(number, 0, 10, tuple(segments)))
    store.read.clear()
    page = together_from(store, partitions, {}, 50)
    records = sum(length for key, _, length in store.read if not key.endswith(layout.index_key_of("")))
    assert page.rows
    assert records < 2 * module.PARTITIONS * len(value)


def test_a_time_is_the_position_of_its_first_record_in_each_partition() -> None:
    store = MemoryStore()
    partitions = archived(store, [[10, 50, 20, 60], [30, 40, 70], [], [5, 6]])
    found = position_at(store, partitions, 45, {})
    assert found.found
    assert found.position == {0: 1, 1: 2, 2: 0, 3: 2}
    page = together_from(store, partitions, found.position, 10)
    assert places(page) == [(0, 1), (0, 2), (0, 3), (1, 2)]
    assert page.earlier


def test_a_search_for_a_time_goes_on_where_it_stopped() -> None:
    """A partition whose record was found stays there."""
    store = MemoryStore()
    # Segments of two records, each with one of the time: none of them can be left out by its newest time.
    partitions = archived(store, [[9, 1, 9, 1, 1, 9], [9, 9]], segment_bytes=80)
    assert len(partitions[0].segments) == 3
    first = position_at(store, partitions, 9, {0: 3}, most_bytes=1)
    assert first.position == {0: 4, 1: 0}
    assert not first.found
    second = position_at(store, partitions, 9, first.position, most_bytes=1 << 20)
    assert second.position == {0: 5, 1: 0}
    assert second.found


def test_partitions_without_records_have_an_empty_page() -> None:
    store = MemoryStore()
    page = together_from(store, archived(store, [[], []]), {}, 10)
    assert (page.rows, page.earlier, page.later) == ((), False, False)
    position: Position = {0: 0, 1: 0}
    assert page.start == page.end == position
