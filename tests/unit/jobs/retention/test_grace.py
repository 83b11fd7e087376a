"""Deletes wait for the grace time, whatever a writer forges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, Committed, commit
from kbackup.archive.catalog.state import State
from kbackup.archive.reader import Archive, open_archive
from tests.support.expirations import DAY, Seen, all_seen, build, check_whole, expired, objects_of
from tests.support.histories import History
from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.exhaustive(keep=2)


def test_grace() -> None:
    """Expired objects stay for readers until the grace time is over; then any run deletes them."""
    store = MemoryStore()
    history = build(store)
    old = history.archive
    before = all_seen(old)
    remaining = {key for key in objects_of(store) if key.startswith("topics/a/") and "0000000023" in key}
    first = expired(store, last=3, days=3, grace=DAY)
    assert first.expiration == old.state.number + 1
    assert first.deleted == 0, "all is young"
    store.age("", 2 * 24 * 3600.0)
    history.run(10, {"a": 3, "b": 2, "c": "out"})
    again = expired(store, last=2, grace=DAY)
    assert again.deleted > len(remaining) == 2, "of the first expiration, and of the crashed run"
    assert remaining.isdisjoint(objects_of(store))
    assert expired(store, grace=DAY).deleted == 0
    assert set(before) - set(all_seen(open_archive(store))) == {1, 2, 3, 4, 5, 7, 8}
    store.requests.clear()
    dry = expired(store, confirm=False)
    assert (dry.expiration, dry.deleted, dry.failed) == (None, 0, {})
    assert store.requests["LIST"] == 2, "catalogs and flows alone: it asks little of a large archive"
    third = expired(store)
    assert third.deleted > 10
    check_whole(store, clean=True)


def test_readers_within_the_grace_time_read_on() -> None:
    """Of each catalog that was the newest within the grace time, whatever was swept since."""
    store = MemoryStore()
    history = History(store)
    readers: list[tuple[Archive, dict[int, Seen]]] = []
    for number in range(1, 12):
        history.run(number, {"a": 3, "b": "anew" if number % 4 == 0 else 2})
        if number % 3 == 0:
            expired(store, last=3, days=4, grace=DAY)
        if number == 5:
            store.age("", 2 * 24 * 3600.0)
        if number > 4:
            readers.append((history.archive, all_seen(history.archive)))
    assert expired(store, last=2, days=2, grace=DAY).expiration is not None
    for old, before in readers:
        assert all_seen(Archive(store, old.info, old.committed)) == before
    check_whole(store)


def forged(store: MemoryStore, gap: int, operation: Callable[[State], State]) -> None:
    """A catalog with any content, `gap` numbers after the next, as a writer without the right to delete can make it."""
    archive = open_archive(store)
    base = Committed(replace(archive.state, number=archive.state.number + gap), archive.committed.catalog)
    commit(store, base, operation, Author("expire", "", "forged"))


def emptied(state: State) -> State:
    """Without all restore points but the newest, and all segments; swept, and with a high next number."""
    points = state.points.dicts()[-1:]
    return replace(
        state,
        swept=state.number,
        reinstated=state.number,
        next_point=1000,
        points=state.points.replace(points),
        segments=state.segments.replace([]),
    )


@pytest.mark.parametrize("gap", [0, 5])
def test_a_writer_can_have_nothing_deleted_before_the_grace_time_is_over(
    built: MemoryStore, monkeypatch: pytest.MonkeyPatch, gap: int
) -> None:
    """A writer without the right to delete can forge any time and any catalog: the store's times count."""
    store = built.copy()
    store.age("", 2 * 24 * 3600.0)
    expired(store, grace=DAY)
    before = {key for key in objects_of(store) if key.startswith((layout.TOPICS, layout.POINTS))}
    monkeypatch.setattr("kbackup.archive.catalog.commit.now", lambda: "2020-01-01T00:00:00.000Z")
    forged(store, gap, emptied)
    forged(store, 0, lambda state: replace(state, swept=state.number))
    monkeypatch.undo()
    assert expired(store, grace=DAY).deleted == 0
    assert {key for key in objects_of(store) if key.startswith((layout.TOPICS, layout.POINTS))} >= before
    store.age("", 2 * 24 * 3600.0)
    expired(store, grace=DAY)
    assert not objects_of(store).keys() >= before, "the forged state is the state"
