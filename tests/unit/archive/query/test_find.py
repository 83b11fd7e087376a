"""Searching finds what a plain look at each record finds, in order, and stops when it is told to."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.archive.query import find as module
from kbackup.archive.query.browse import PartitionRecords, catalogue
from kbackup.archive.query.content import ArchivedPartition
from kbackup.archive.query.find import Part, Pattern, find, to_search
from kbackup.archive.segments.window import EVERYTHING, Window
from kbackup.archive.segments.writer import PartitionWriter, SegmentTarget
from kbackup.errors import CorruptError, UsageError
from kbackup.formats.record import Row, rows
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from tests.support.archives import T0, make_archive
from tests.support.faulty_store import FaultyStore
from tests.support.memory_store import MemoryStore
from tests.support.plain_records import Plain, block_of

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
    with pytest.raises(UsageError, match=r"^a\( can't be looked for: Invalid regular expression"):
        Pattern("a(", regex=True).require()
    Pattern("a(").require()
    with pytest.raises(UsageError, match="can't be looked for"):
        Pattern("\udcff").require()


@pytest.fixture(scope="module")
def made() -> MemoryStore:
    store = MemoryStore()
    make_archive(store)
    return store


def everything(store: Store) -> list[tuple[str, ArchivedPartition]]:
    return [(t.name, p) for t in catalogue(store).topics for p in t.partitions]


def places(matches: Iterator[PartitionRecords]) -> list[tuple[str, int, int]]:
    return [(*f.tp, int(o)) for f in matches for o in f.block.offsets]


@pytest.mark.parametrize("piece", [1, 300, 1 << 20])
def test_in_order_however_it_is_cut(made: MemoryStore, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PIECE", piece)
    seen: list[tuple[int, int]] = []
    found = places(find(made, everything(made), Pattern("key 0"), EVERYTHING, lambda r, b: seen.append((r, b))))
    orders = [o for o in (*range(10), 15, *range(17, 40)) if o % 3 == 0]
    assert found == [
        *(("clicks", 0, o) for o in range(0, 20, 3)),
        *(("orders", 0, o) for o in orders),
        *(("orders", 1, o) for o in range(0, 12, 3)),
    ]
    assert sum(r for r, _ in seen) == sum(to_search(p, EVERYTHING)[0] for _, p in everything(made)) == 66


def test_in_a_window(made: MemoryStore) -> None:
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
