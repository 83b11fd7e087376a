"""Pages of records: just those that are wanted, with the requests that they cost."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kbackup.archive import layout
from kbackup.archive.query import find as module
from kbackup.archive.query.browse import (
    ROOM,
    Catalogue,
    Limit,
    Page,
    PartitionRecords,
    Sought,
    offset_at,
    page_before,
    page_from,
    records,
    tail,
)
from kbackup.archive.query.content import ArchivedPartition
from kbackup.archive.query.find import Part, Pattern, find, search, to_search
from kbackup.archive.segments import read
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.window import EVERYTHING, Window
from kbackup.archive.segments.writer import PartitionWriter, SegmentTarget
from kbackup.errors import CorruptError, UsageError
from kbackup.formats import frames
from kbackup.formats.frames import encode_seek_table
from kbackup.formats.record import Row, rows
from kbackup.library.reading import ArchiveReader
from kbackup.store.base import Store
from kbackup.store.file import FileStore
from kbackup.types import TopicPartition
from tests.golden.java_archive import ROOT as JAVA
from tests.support import made_segments as making
from tests.support.archives import T0, make_archive
from tests.support.faulty_store import (
    ORDERS,
    Counting,
    FaultyStore,
    encrypting,
    offsets,
    one,
    partition_of,
    partition_with,
)
from tests.support.memory_store import MemoryStore
from tests.support.plain_records import Plain, block_of


@pytest.fixture(scope="module")
def made() -> MemoryStore:
    store = MemoryStore()
    make_archive(store)
    return store


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
def test_a_window_of_offsets_gives_its_records_in_order(
    made: MemoryStore, start: int, end: int, most: int | None
) -> None:
    window = Window(ranges=((start, end),) if start < end else ())
    found = offsets(records(made, "orders", partition_of(made, "orders"), window, most))
    assert found == [o for o in ORDERS if start <= o < end][:most]


@given(st.integers(-2, 45), st.integers(-2, 45), st.none() | st.integers(1, 40))
def test_a_window_of_times_gives_its_records_in_order(
    made: MemoryStore, start: int, end: int, most: int | None
) -> None:
    window = Window(from_time=T0 + start * 1000, to_time=T0 + end * 1000)
    found = offsets(records(made, "orders", partition_of(made, "orders"), window, most))
    assert found == [o for o in ORDERS if start <= o <= end][:most]


@given(st.integers(1, 60))
def test_a_tail_gives_the_last_records_of_a_partition(made: MemoryStore, most: int) -> None:
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


# Rows of archived records: of any archive, of an earlier restore point, and of damaged segments.


def test_rows_are_the_records() -> None:
    """Also header keys that are no text, nulls, and records that nobody knows the time of."""
    given_ = [
        Plain(b"k", None, headers=((b"\xff", b"1"), (b"", None))),
        Plain(None, b"", kind=-1),
        Plain(b"\xc3", b"v", kind=1, timestamp=-5),
        Plain(b"", b"v", kind=-2),
    ]
    assert list(rows(block_of(given_))) == [
        Row(n, r.kind, r.timestamp if r.kind >= 0 else None, r.key, r.value, r.headers) for n, r in enumerate(given_)
    ]


def test_of_an_earlier_restore_point(made: MemoryStore) -> None:
    earlier: Catalogue = ArchiveReader(made, "1").catalogue("orders")
    assert [t.name for t in earlier.topics] == ["orders"]
    assert offsets(records(made, "orders", earlier.partition("orders", 0))) == list(range(10))


def test_missing_partitions_and_topics(made: MemoryStore) -> None:
    with pytest.raises(UsageError, match=r"there is no topic order in restore point 2; did you mean orders\?"):
        ArchiveReader(made).catalogue("order")
    with pytest.raises(UsageError, match="topic orders has no partition 3 in restore point 2"):
        partition_of(made, "orders", 3)


@pytest.mark.parametrize("end", ["_index", "_records"])
def test_a_damaged_segment_is_named(end: str) -> None:
    store = MemoryStore()
    make_archive(store)
    partition = partition_of(store, "orders")
    key = partition.segments[0].key.replace("_records", end)
    data = store.get(key)
    store.put(key, data[:1] + b"\x7f" * (len(data) - 1))
    with pytest.raises(CorruptError, match=key.rpartition("/")[2]):
        list(records(store, "orders", partition, one(0), 1))
    store.delete([key])
    with pytest.raises(CorruptError, match=f"{key} is missing"):
        list(records(store, "orders", partition, one(0), 1))


# Records are read in small units, whatever the size of a segment or a record.


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_segment_goes_by_in_small_pieces(compression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every piece has whole records and at most so many bytes, and no byte of a frame is read twice."""
    monkeypatch.setattr(read, "SPAN", 4000)
    monkeypatch.setattr(read, "_GATHERED", 24 * 64)
    monkeypatch.setattr(frames.FrameCompressor.__init__, "__defaults__", (1, 1000))
    store = Counting(MemoryStore())
    segments = making.write(store, making.target(threshold=1 << 20, compression=compression), range(1000))
    store.read.clear()
    records_read = list(records(store, "orders", partition_with(segments)))
    assert offsets(iter(records_read)) == list(range(1000))
    assert len(records_read) > 10
    assert max(f.block.nbytes for f in records_read) <= 4000
    ranges = [(start, start + length) for key, start, length in store.read if key == segments[0].key]
    if compression == "none":
        (begin, _), *_, (_, end) = ranges
        assert (begin, end) == (1, segments[0].bytes)
    else:
        (tail_start, _), *ranges = sorted(ranges, key=lambda r: -r[1])[1:]  # the seek table, in two looks
        ranges.reverse()
        (begin, _), *_, (_, end) = ranges
        assert (begin, end) == (0, tail_start)
    assert all(stop == start for (_, stop), (start, _) in pairwise(ranges))


def test_a_record_larger_than_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "SPAN", 100)
    store = MemoryStore()
    block = block_of([Plain(b"a", b"x" * 5000), Plain(None, None), Plain(b"", b"")])
    with PartitionWriter(store, SegmentTarget("orders", 1, 0, 1 << 20, "zstd")) as writer:
        segments = [*writer.append(block), *writer.finish()]
    records_read = [row for f in records(store, "orders", partition_with(segments)) for row in rows(f.block)]
    assert [(r.key, r.value) for r in records_read] == [(b"a", b"x" * 5000), (None, None), (b"", b"")]


def test_frames_that_hold_more_than_they_should() -> None:
    """A seek table that says little of a frame that gives a lot: it is refused, not unpacked to its end."""
    store = MemoryStore()
    (segment,) = making.write(store, making.target(threshold=1 << 20, compression="zstd"), range(10))
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 24))
    data = bomb + encode_seek_table([(len(bomb), segment.bytes)])
    store.delete([segment.key])
    store.put(segment.key, data)
    bad = replace(segment, stored=len(data))
    with pytest.raises(CorruptError, match=f"goes past plain byte {segment.bytes}"):
        list(records(store, "orders", partition_with([bad]), one(3)))


# Leafing through a partition, both ways.


def page_offsets(page: Page) -> list[int]:
    return [row.offset for row in page.rows()]


@given(st.integers(-1, 45), st.integers(1, 40))
def test_pages_go_on_in_both_directions(made: MemoryStore, offset: int, most: int) -> None:
    partition = partition_of(made, "orders")
    after = page_from(made, partition, offset, most)
    before = page_before(made, partition, offset, most)
    assert page_offsets(after) == [o for o in ORDERS if o >= offset][:most]
    assert page_offsets(before) == [o for o in ORDERS if o < offset][-most:]
    assert after.earlier == any(o < offset for o in ORDERS)
    assert after.later == (len([o for o in ORDERS if o >= offset]) > most)
    assert before.later == any(o >= offset for o in ORDERS)
    assert before.earlier == (len([o for o in ORDERS if o < offset]) > most)


@given(st.integers(1, 9))
def test_leafing_meets_every_record_once(made: MemoryStore, most: int) -> None:
    partition = partition_of(made, "clicks")
    ahead: list[int] = []
    page = page_from(made, partition, 0, most)
    ahead += page_offsets(page)
    while page.later:
        assert page.last is not None
        page = page_from(made, partition, page.last + 1, most)
        ahead += page_offsets(page)
    back: list[int] = []
    page = page_before(made, partition, 1 << 62, most)
    back = page_offsets(page)
    while page.earlier:
        assert page.first is not None
        page = page_before(made, partition, page.first, most)
        back = [*page_offsets(page), *back]
    assert ahead == back == list(range(20))


def many(store: Store, *gaps: tuple[int, int], count: int = 30_000) -> list[Segment]:
    gone = {offset for start, end in gaps for offset in range(start, end)}
    wanted = [o for o in range(count) if o not in gone]
    return making.write(store, making.target(threshold=1 << 30), wanted)


def written(store: Store, value: bytes, count: int) -> list[Segment]:
    """Write one segment of records with this value."""
    block = block_of([Plain(b"k", value) for _ in range(count)])
    with PartitionWriter(store, SegmentTarget("large", 1, 0, 1 << 30, "none")) as writer:
        return [*writer.append(block), *writer.finish()]


def test_a_page_is_a_small_read() -> None:
    """Without gaps an index entry for each record of it, and the records; before an offset, too."""
    store = Counting(MemoryStore())
    partition = partition_with(many(store))
    for turn, offset in ((page_from, 20_000), (page_before, 20_050)):
        store.read.clear()
        page = turn(store, partition, offset, 50)
        assert page_offsets(page) == list(range(20_000, 20_050))
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
            page_offsets(page_from(store, partition_with(segments), offset, 3))
            == [o for o in existing if o >= offset][:3]
        )
        assert (
            page_offsets(page_before(store, partition_with(segments), offset, 3))
            == [o for o in existing if o < offset][-3:]
        )
        assert len(store.read) <= 30
        assert sum(size for key, _, size in store.read if key.endswith("_index")) <= 2 * 14 * 16 * 24


def test_a_page_ends_with_its_room() -> None:
    """In bytes, and goes on after that; one record it always has."""
    store = MemoryStore()
    partition = partition_with(many(store, count=100))
    limit = Limit(room=500, segments=1)
    some = page_from(store, partition, 40, 30, limit)
    assert 1 < len(page_offsets(some)) < 30
    assert min(page_offsets(some)) == 40
    assert sum(block.nbytes for block in some.blocks) <= 500
    assert some.later
    assert max(page_offsets(page_before(store, partition, 40, 30, limit))) == 39
    least = Limit(room=1, segments=1)
    assert page_offsets(page_from(store, partition, 40, 30, least)) == [40]
    assert page_offsets(page_before(store, partition, 40, 30, least)) == [39]
    # Without a limit the page has as much room as any: less than these records take.
    large = partition_with(written(store, b"v" * 1_000_000, 20))
    whole = page_from(store, large, 0, 20)
    assert sum(block.nbytes for block in whole.blocks) + 1_000_000 > ROOM
    assert whole.later


def test_many_small_segments_are_one_page() -> None:
    store = Counting(MemoryStore())
    segments = making.write(store, making.target(threshold=1), range(40))
    assert len(segments) == 40
    assert page_offsets(page_before(store, partition_with(segments), 30, 20)) == list(range(10, 30))
    assert len(store.read) == 40, "an index and the records of each, and no others"


@given(st.integers(-1, 45), st.integers(0, 45))
def test_the_first_record_of_a_time(made: MemoryStore, second: int, start: int) -> None:
    wanted = [o for o in ORDERS if o >= max(second, start)]
    found = offset_at(made, partition_of(made, "orders"), T0 + second * 1000, start)
    assert found == (Sought(wanted[0], True) if wanted else Sought(None, False))


def test_a_search_for_a_time_gives_up_and_goes_on() -> None:
    """In files of the Java tool, whose segments have no timestamps: each is looked into."""
    store = MemoryStore()
    segments = making.write(store, making.target(threshold=400), range(50))
    untimed = [replace(segment, min_timestamp=None, max_timestamp=None) for segment in segments]
    partition = partition_with(untimed)
    # Each record: also the first one of a segment, at which a search goes on that gave up before it.
    for wanted in range(50):
        steps, found = 0, Sought(0, False)
        while not found.matched:
            assert found.offset is not None
            steps, found = steps + 1, offset_at(store, partition, 1000 + wanted, found.offset, most_bytes=1)
        assert found == Sought(wanted, True)
        assert (steps > 2) == (wanted > segments[1].last)


def test_an_empty_partition_and_a_folder_of_the_java_tool_have_pages(made: MemoryStore) -> None:
    empty = page_from(made, ArchivedPartition(0, 0, 0, ()), 0, 10)
    assert (page_offsets(empty), empty.first, empty.last, empty.earlier, empty.later) == ([], None, None, False, False)
    java = FileStore(JAVA / "archive")
    whole = ArchiveReader(java).catalogue()
    assert whole.restore_point is None
    assert sum(p.records for t in whole.topics for p in t.partitions) == 385
    for topic in whole.topics:
        for partition in topic.partitions:
            read = [row.offset for found in records(java, topic.name, partition) for row in rows(found.block)]
            assert page_offsets(page_from(java, partition, 0, 1000)) == read
            assert len(read) == partition.records


# Searching finds what a plain look at each record finds, in order, and stops when it is told to.


ANYWHERE = TopicPartition("t", 0)

fields = st.none() | st.binary(max_size=6) | st.text("abAB\xff.", max_size=6).map(str.encode)
headers = st.lists(st.tuples(fields.map(lambda f: f or b""), fields), max_size=3).map(tuple)
plains = st.builds(Plain, fields, fields, st.sampled_from([-2, -1, 0, 1]), st.just(T0), headers)


def plainly(row: Row, part: Part, pattern: re.Pattern[bytes]) -> bool:
    of = {"key": [row.key], "value": [row.value], "headers": [field for header in row.headers for field in header]}
    return any(field is not None and pattern.search(field) for field in of[part])


@given(
    st.lists(plains, min_size=1, max_size=40),
    st.text("abAB\xff.", min_size=1, max_size=2),
    st.booleans(),
    st.lists(st.sampled_from(module.PARTS), unique=True, min_size=1),
)
def test_patterns_match_like_a_plain_search(given_: list[Plain], text: str, ignore: bool, parts: list[Part]) -> None:
    block = block_of(given_)
    pattern = re.compile(re.escape(text.encode()), re.IGNORECASE if ignore else 0)
    due = [any(plainly(row, part, pattern) for part in parts) for row in rows(block)]
    assert Pattern(text, ignore_case=ignore, fields=tuple(parts))(ANYWHERE, block).tolist() == due
    escaped = re.escape(text)
    assert Pattern(escaped, regex=True, ignore_case=ignore, fields=tuple(parts))(ANYWHERE, block).tolist() == due


@pytest.mark.parametrize(
    ("text", "expected"), [("^ab", [0]), ("^b$", [1]), ("^$", [2]), (r"\xff", [3]), ("(?i)^AB", [0]), ("z|b", [0, 1])]
)
def test_regular_expressions_see_one_field(text: str, expected: list[int]) -> None:
    block = block_of([Plain(b"ab", b"x"), Plain(b"b", b"x"), Plain(b"x", b""), Plain(None, b"\xff")])
    assert Pattern(text, regex=True)(ANYWHERE, block).nonzero()[0].tolist() == expected


def test_invalid_expressions_are_refused() -> None:
    with pytest.raises(UsageError, match=r"^a\( can't be searched for: Invalid regular expression"):
        Pattern("a(", regex=True).require()
    Pattern("a(").require()
    with pytest.raises(UsageError, match="can't be searched for"):
        Pattern("\udcff").require()


def everything(store: Store) -> list[tuple[str, ArchivedPartition]]:
    return [(t.name, p) for t in ArchiveReader(store).catalogue().topics for p in t.partitions]


def places(matches: Iterator[PartitionRecords]) -> list[tuple[str, int, int]]:
    return [(*f.tp, int(o)) for f in matches for o in f.block.offsets]


@pytest.mark.parametrize("piece", [1, 300, 1 << 20])
def test_in_order_however_it_is_cut(made: MemoryStore, piece: int) -> None:
    seen: list[int] = []
    found: list[tuple[str, int, int]] = []
    units = search(made, everything(made), Pattern("key 0"), EVERYTHING, lambda r, b: seen.append(r), unit_bytes=piece)
    for unit in units:
        found += places(iter(unit.matches))
    orders = [o for o in (*range(10), 15, *range(17, 40)) if o % 3 == 0]
    assert found == [
        *(("clicks", 0, o) for o in range(0, 20, 3)),
        *(("orders", 0, o) for o in orders),
        *(("orders", 1, o) for o in range(0, 12, 3)),
    ]
    assert sum(seen) == sum(to_search(p, EVERYTHING)[0] for _, p in everything(made)) == 66
    assert (len(seen) > 10) == (piece < 1 << 20)


def test_a_search_keeps_to_its_window(made: MemoryStore) -> None:
    window = Window(from_time=T0 + 9000, to_time=T0 + 30_000, ranges=((8, 25),))
    found = places(find(made, everything(made)[1:2], Pattern("key 0"), window, lambda r, b: None))
    assert found == [("orders", 0, o) for o in (9, 15, 18, 21, 24)]


def large(segments: int) -> tuple[FaultyStore, ArchivedPartition]:
    store = FaultyStore(MemoryStore())
    block = block_of([Plain(b"k", b"v" * 50) for _ in range(segments * 10)])
    with PartitionWriter(store, SegmentTarget("t", 1, 0, 900, "none")) as writer:
        made = [*writer.append(block), *writer.finish()]
    return store, ArchivedPartition(0, 0, len(block), tuple(made))


def test_search_stops_when_its_reader_closes_it() -> None:
    store, partition = large(100)
    assert len(partition.segments) > 80
    store.calls.clear()
    with closing(find(store, [("t", partition)], Pattern("v"), EVERYTHING, lambda r, b: None)) as found:
        next(found)
    asked = {key for operation, key in store.calls if operation == "open_range"}
    assert len(asked) <= 2 * (module._THREADS + module._THREADS // 2 + 1)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("find")]


def test_matches_before_damage_are_found() -> None:
    store, partition = large(10)
    bad = partition.segments[3]
    store.put(bad.key, b"\x01" + b"\x7f" * (bad.bytes - 1))
    matches: list[int] = []

    def search() -> None:
        for hit in find(store, [("t", partition)], Pattern("v"), EVERYTHING, lambda r, b: None):
            matches.extend(hit.block.offsets.tolist())

    with pytest.raises(CorruptError, match=bad.key):
        search()
    assert matches == list(range(bad.first))


def test_only_what_was_found_is_kept() -> None:
    store = MemoryStore()
    block = block_of([Plain(b"a" if n == 500 else b"b", b"v" * 1000) for n in range(1000)])
    with PartitionWriter(store, SegmentTarget("t", 1, 0, 1 << 30, "none")) as writer:
        made = [*writer.append(block), *writer.finish()]
    partition = ArchivedPartition(0, 0, 1000, tuple(made))
    (hit,) = find(store, [("t", partition)], Pattern("a", fields=("key",)), EVERYTHING, lambda r, b: None)
    assert hit.block.data.base is None
    assert hit.block.nbytes < 1100
