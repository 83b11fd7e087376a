"""Opening the newest catalog and committing the next one, on a store in memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, Committed, commit, open_newest, read_catalog
from kbackup.archive.catalog.copies import without_expired
from kbackup.archive.catalog.documents import Catalog, Latest
from kbackup.archive.catalog.operations import add_point, begin_run, label_point
from kbackup.archive.catalog.retention import expire_points, expire_records, undo_expiration
from kbackup.archive.catalog.state import SCHEMAS, State
from kbackup.archive.catalog.tables import SEGMENTS, Rows
from kbackup.archive.models import dump, load
from kbackup.archive.query.overview import list_points, overview
from kbackup.archive.reader import Archive, open_archive
from kbackup.errors import CorruptError, NotFoundError, OutcomeUnknownError, UsageError
from kbackup.store.base import Store
from tests.support.exhaustive import sample
from tests.support.faulty_store import FaultyStore, lost_answer
from tests.support.made_segments import committed, state, target, write
from tests.support.memory_store import MemoryStore
from tests.unit.archive.catalog.rows import ARCHIVE, grown, new_point, open_run, point, segment, table

AUTHOR = Author("label", "", "test")


def archive(points: int = 3) -> MemoryStore:
    store = MemoryStore()
    commit(store, Committed(State(ARCHIVE), None), lambda _: grown(points), AUTHOR)
    return store


def labelled(name: str) -> Callable[[State], State]:
    return lambda state: label_point(state, name, 1)


def test_committed_state_is_opened() -> None:
    state = open_newest(archive(), ARCHIVE).state
    expected = grown(3)
    assert state.number == 1
    assert state.restore_points == expected.restore_points
    assert {name: rows.dicts() for name, rows in state.tables().items()} == {
        name: rows.dicts() for name, rows in expected.tables().items()
    }
    assert state.open_run == expected.open_run


def test_an_operation_that_changes_nothing_writes_nothing() -> None:
    store = archive()
    before = store.requests["PUT"]
    committed = open_newest(store, ARCHIVE)
    assert commit(store, committed, lambda state: state, AUTHOR) is committed
    assert store.requests["PUT"] == before


def test_a_commit_that_lost_the_race_is_made_on_the_newer_state() -> None:
    store = archive()
    old = open_newest(store, ARCHIVE)
    for name in ("a", "b"):  # both from the same state
        commit(store, old, labelled(name), AUTHOR)
    state = open_newest(store, ARCHIVE).state
    assert state.number == 3
    assert state.labels == {"a": 1, "b": 1}


def test_a_refusal_on_the_newer_state_writes_no_catalog() -> None:
    store = archive()
    old = open_newest(store, ARCHIVE)
    commit(store, old, labelled("a"), AUTHOR)
    base = commit(store, old, labelled("b"), AUTHOR)
    commit(store, base, lambda state: label_point(state, "a", None), AUTHOR)
    with pytest.raises(UsageError):
        commit(store, base, lambda state: label_point(state, "a", None), AUTHOR)
    assert open_newest(store, ARCHIVE).state.number == 4


def test_a_commit_whose_answer_was_lost_says_so_and_stands() -> None:
    inner = archive()
    store = FaultyStore(inner, lost_answer("put_new", layout.CATALOG + "*"))
    with pytest.raises(OutcomeUnknownError):
        commit(store, open_newest(store, ARCHIVE), labelled("a"), AUTHOR)
    assert open_newest(inner, ARCHIVE).state.labels == {"a": 1}


def test_a_hint_that_was_not_written_costs_nothing() -> None:
    inner = archive()
    store = FaultyStore(inner, lost_answer("put", layout.LATEST))
    commit(store, open_newest(store, ARCHIVE), labelled("a"), AUTHOR)
    assert open_newest(inner, ARCHIVE).state.number == 2


@pytest.mark.parametrize("hint", [0, 1, 2, 3])
def test_a_hint_may_lag(hint: int) -> None:
    store = archive()
    for name in ("a", "b"):
        commit(store, open_newest(store, ARCHIVE), labelled(name), AUTHOR)
    store.delete([layout.LATEST])
    if hint:
        store.put(layout.LATEST, dump(Latest(archive_id=ARCHIVE, number=hint)))
    assert open_newest(store, ARCHIVE).state.number == 3


def test_a_newest_catalog_that_is_lost_is_named() -> None:
    store = archive()
    commit(store, open_newest(store, ARCHIVE), labelled("a"), AUTHOR)
    store.delete([layout.catalog_key(2)])
    with pytest.raises(CorruptError, match=r"catalog/0000000002\.json is missing, catalog/latest\.json names"):
        open_newest(store, ARCHIVE)


def test_a_catalog_of_another_archive_is_refused() -> None:
    store = archive()
    with pytest.raises(CorruptError, match="belongs to archive"):
        open_newest(store, "b" * 32)


def test_each_table_that_is_missing_or_altered_is_named() -> None:
    store = archive()
    for entry in list(store.list(layout.TABLES)):
        data = store.get(entry.key)
        for damage in ("missing", "cut", "flipped"):
            if damage == "missing":
                store.delete([entry.key])
            else:
                store.put(entry.key, data[:-1] if damage == "cut" else bytes([data[0] ^ 1]) + data[1:])
            with pytest.raises(CorruptError, match=entry.key):
                read_all(store)
            store.put(entry.key, data)
    read_all(store)


def read_all(store: Store) -> State:
    state = open_newest(store, ARCHIVE).state
    for rows in state.tables().values():
        rows.dicts()
    return state


def test_every_table_is_written_before_the_catalog() -> None:
    store = FaultyStore(archive())
    commit(store, open_newest(store, ARCHIVE), lambda _: replace(grown(5), number=1), AUTHOR)
    keys = [key for operation, key in store.calls if operation == "put_new"]
    assert [key for key in keys if key.startswith(layout.CATALOG)] == keys[-1:]
    catalog = load(Catalog, store.get(keys[-1]), keys[-1])
    assert {ref.key for name in catalog.tables.__struct_fields__ for ref in getattr(catalog.tables, name)} == {
        *keys[:-1]
    }


@pytest.mark.exhaustive(keep=1)
@pytest.mark.parametrize("points", [10, 10_000, 100_000])
def test_an_archive_opens_with_eight_requests(points: int) -> None:
    points = min(points, sample(range(points + 1), 2)[-1])
    store = MemoryStore()
    rows = Rows(SCHEMAS["points"])
    base = Rows(SCHEMAS["points"]).append([point(1)._asdict() | {"documents": ["d"]}]).read()
    numbered = base.take([0] * points)
    index = SCHEMAS["points"].names.index("number")
    numbered = numbered.set_column(index, SCHEMAS["points"].field("number"), [list(range(1, points + 1))])
    for size in (points - points // 20 - 1, points // 20, 1):  # the chunks that single commits end in
        rows, numbered = rows.append(numbered.slice(0, size)), numbered.slice(size)
    state = State(ARCHIVE, next_point=points + 1, points=rows)
    one = table([segment("t", 0, 9)])
    added = one.append_column(SEGMENTS.field("point"), [[1]])
    life = {"topic": "t", "incarnation": 1, "topic_id": "id", "first": 1, "last": None, "retired": False}
    state = replace(
        state, segments=Rows(SEGMENTS).append(added), incarnations=Rows(SCHEMAS["incarnations"]).append([life])
    )
    commit(store, Committed(State(ARCHIVE), None), lambda _: state, AUTHOR)
    store.requests.clear()
    opened = open_newest(store, ARCHIVE).state
    assert len(opened.restore_points) == points
    assert opened.last_points() == {("t", 1): points}
    assert sum(store.requests.values()) <= 8, store.requests
    assert len(opened.points.chunks) == (1 if points == 10 else 3)


def test_a_swept_catalog_is_not_found() -> None:
    with pytest.raises(NotFoundError):
        read_catalog(archive(), 7, ARCHIVE)


def test_rows_stay_as_they_were_appended_and_commits_write_a_fraction() -> None:
    """A row at a time: at most three chunks, rows in order, and about 1/256 of the rows written anew with each."""
    rows, rewritten = Rows(SCHEMAS["points"]), 0
    total = 6000
    one = Rows(SCHEMAS["points"]).append([point(1)._asdict() | {"documents": ["d"]}]).read()
    index = SCHEMAS["points"].names.index("number")
    start = one.take([0] * 5000).set_column(index, SCHEMAS["points"].field("number"), [list(range(5000))])
    rows = rows.append(start)
    steps = sample(range(5000, total), 300)
    for number in range(5000, 5000 + len(steps)):
        after = rows.append(one.set_column(index, SCHEMAS["points"].field("number"), [[number]]))
        rewritten += sum(chunk.rows for chunk in after.chunks if chunk not in rows.chunks)
        assert len(after.chunks) <= 3
        rows = after
    assert rows.columns("number")[0] == list(range(5000 + len(steps)))
    assert rewritten / len(steps) < 64 + 5000 / 256 * 8


# Operations on archives of many topics take steps in proportion to the topics, counted by calls of functions.


FEW, MANY = 40, 160


def grown_linear(topics: int, points: int) -> State:
    """An archive of restore points that each have two more records of every topic."""
    state = begin_run(State(ARCHIVE), open_run("r"))
    for number in range(1, points + 1):
        new = [segment(f"t{n}", 2 * number - 2, 2 * number - 1) for n in range(topics)]
        names = {(f"t{n}", 1): f"id {n}" for n in range(topics)}
        state = add_point(state, "r", new_point(number, new, names))
    return state


def expired(state: State, topics: int) -> State:
    return expire_records(state, {(f"t{n}", 1, 0): 2 for n in range(topics)})


def of_copy(topics: int) -> Callable[[], State]:
    state = grown_linear(topics, 2)
    copy = expired(state, topics)
    return lambda: without_expired(state, copy)


def of_undo(topics: int) -> Callable[[], State]:
    before = replace(grown_linear(topics, 2), number=1)
    after = expire_points(before, [1])
    return lambda: undo_expiration(after, before, after)


def calls(work: Callable[[], State]) -> int:
    count = 0

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    work()  # what is read once is read
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("prepare", [of_copy, of_undo])
def test_steps_grow_with_topics(prepare: Callable[[int], Callable[[], State]]) -> None:
    few, many = calls(prepare(FEW)), calls(prepare(MANY))
    assert many < 1.5 * few * MANY / FEW, f"{few} calls for {FEW} topics, {many} for {MANY}: not in proportion"


# Count the requests that opening an archive makes where every table has as many chunks as there can be.


_CHUNKS, _POINTS = 3, 3
_MOST = 8


@pytest.fixture
def chunked() -> MemoryStore:
    """Restore points of one topic in an archive whose tables have three chunks each."""
    store = MemoryStore()
    for number in range(1, _POINTS + 1):
        segments = write(store, target(), range(10 * number - 10, 10 * number))
        topics = [state((0, 0, 10 * number), number=number)]
        archive, _ = committed(store, number, number - 1 or None, segments, topics)
    commit(store, archive.committed, _in_chunks, Author("label", "", "test"))
    return store


def _in_chunks(whole: State) -> State:
    tables: dict[str, Any] = {name: _three(name, rows) for name, rows in whole.tables().items()}
    return replace(whole, **tables)


def _three(name: str, rows: Rows) -> Rows:
    """The rows, or some of another topic where there are too few, in three chunks."""
    table = rows.read()
    if len(table) < _CHUNKS:
        table = pa.concat_tables([table, *[_other(name)] * (_CHUNKS - len(table))])
    ends = [0, *range(1, _CHUNKS), len(table)]
    parts = [Rows(rows.schema).append(table.slice(a, b - a)) for a, b in pairwise(ends)]
    return Rows(rows.schema, tuple(chunk for part in parts for chunk in part.chunks))


def _other(name: str) -> pa.Table:
    """A row that concerns nothing that the restore points have."""
    values: dict[str, object] = {"string": "x", "int32": 9, "int64": 9, "bool": True}
    row = {field.name: None if field.nullable else values[str(field.type)] for field in SCHEMAS[name]}
    return pa.Table.from_pylist([row], schema=SCHEMAS[name])


def _asked(store: MemoryStore, archive: Archive) -> int:
    assert all(len(rows.chunks) == _CHUNKS for rows in archive.state.tables().values())
    return sum(store.requests.values())


def test_opening_reads_one_table(chunked: MemoryStore) -> None:
    chunked.requests.clear()
    archive = open_archive(chunked)
    assert archive.restore_point("latest").number == _POINTS
    assert _asked(chunked, archive) == _MOST


def test_each_further_question_reads_the_tables_that_it_needs(chunked: MemoryStore) -> None:
    archive = open_archive(chunked)
    head = archive.restore_point("latest")
    chunked.requests.clear()
    assert sum(segment.count for segment in archive.segments(head)) == 10 * _POINTS
    assert _asked(chunked, archive) <= 2 * _CHUNKS, "segments and log starts"
    again = chunked.requests.total()
    archive.segments(head)
    assert chunked.requests.total() == again, "a table is read once"


def test_list_and_info_are_bounded_as_well(chunked: MemoryStore) -> None:
    chunked.requests.clear()
    assert len(list_points(open_archive(chunked))) == _POINTS
    listing = chunked.requests.total()
    assert listing <= _MOST - 1 + 2 * _CHUNKS, "and incarnations and losses, for what is damaged"
    chunked.requests.clear()
    assert overview(chunked, "latest").restore_point == _POINTS
    assert chunked.requests.total() <= _MOST + 2 + len(SCHEMAS) * _CHUNKS
