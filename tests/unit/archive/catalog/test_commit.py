"""Opening the newest catalog and committing the next one, on a store in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, Committed, commit, open_newest, read_catalog
from kbackup.archive.catalog.documents import Catalog, Latest
from kbackup.archive.catalog.operations import label_point
from kbackup.archive.catalog.state import SCHEMAS, State
from kbackup.archive.catalog.tables import SEGMENTS, Rows
from kbackup.archive.models import dump, load
from kbackup.errors import CorruptError, NotFoundError, OutcomeUnknownError, UsageError
from kbackup.store.base import Store
from tests.support.exhaustive import sample
from tests.support.faulty_store import FaultyStore, lost_answer
from tests.support.memory_store import MemoryStore
from tests.unit.archive.catalog.rows import ARCHIVE, grown, point, segment, table

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
    with pytest.raises(
        CorruptError, match=r"catalog/0000000002\.json is missing, catalog/latest\.json names"
    ):
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
    assert {
        ref.key for name in catalog.tables.__struct_fields__ for ref in getattr(catalog.tables, name)
    } == {*keys[:-1]}


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
        state,
        segments=Rows(SEGMENTS).append(added),
        incarnations=Rows(SCHEMAS["incarnations"]).append([life]),
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
