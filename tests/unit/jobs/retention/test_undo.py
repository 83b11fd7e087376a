"""Undo an expiration: before and after sweeps, and beside other operations."""

from __future__ import annotations

import pytest

from kbackup.archive import layout
from kbackup.archive.reader import Archive, open_archive
from kbackup.errors import (
    RefusedError,
)
from kbackup.jobs.points import history as history_of
from kbackup.jobs.points import label, pin
from kbackup.jobs.retention import undo
from kbackup.store.base import Store
from tests.support.expirations import DAY, all_seen, build, check_whole, expired, meanwhile, objects_of
from tests.support.histories import History
from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.exhaustive(keep=2)


def test_undo_brings_everything_back(store: Store) -> None:
    history = build(store)
    label(store, "2", "before-migration")
    before = all_seen(history.archive)
    files = {k: v for k, v in objects_of(store).items() if k.startswith((layout.TOPICS, layout.POINTS))}
    expired(store, last=2, days=3, grace=DAY)
    assert open_archive(store).state.labels == {}
    report = undo(store, 60)
    assert report.restore_points == (1, 2, 3, 4, 5, 7)
    archive = open_archive(store)
    assert report.catalog == archive.state.number
    assert all_seen(archive) == before
    assert archive.state.labels == {"before-migration": 2}
    assert {
        k: v for k, v in objects_of(store).items() if k.startswith((layout.TOPICS, layout.POINTS))
    } == files, "byte for byte, and the derived files too"
    check_whole(store)
    with pytest.raises(RefusedError, match="no expiration"):
        undo(store, 60)
    history.run(10, {"a": 3, "b": 2, "c": "out"})
    expired(store, last=9)
    check_whole(store, clean=True)


def test_undo_of_several_goes_back_one_by_one(built: MemoryStore) -> None:
    store = built.copy()
    views = [all_seen(open_archive(store))]
    for last, days in ((6, None), (0, 5), (4, 3)):
        expired(store, last=last, days=days, grace=DAY)
        views.append(all_seen(open_archive(store)))
    pin(store, "9")
    views.pop()
    while views:
        undo(store, 60)
        assert all_seen(open_archive(store)) == views.pop()
        check_whole(store)
    with pytest.raises(RefusedError, match="no expiration"):
        undo(store, 60)


def test_undo_keeps_what_was_done_since(built: MemoryStore) -> None:
    store = built.copy()
    history = History(store)
    history.topics = {t.name: t for t in open_archive(store).restore_point("latest").topics}
    before = all_seen(open_archive(store))
    label(store, "2", "good")
    expired(store, last=2, days=3, grace=DAY)
    history.run(10, {"a": 3, "b": "anew", "c": "out"})
    label(store, "10", "good")
    pin(store, "10")
    undo(store, 60)
    archive = open_archive(store)
    assert archive.state.labels == {"good": 10}
    assert [*archive.state.pins] == [10]
    assert {n: v for n, v in all_seen(archive).items() if n != 10} == before
    check_whole(store)
    history.run(11, {"a": 3, "b": 1, "c": "out"})
    expired(store, last=3, days=2)
    check_whole(store, clean=True)


def test_undo_is_refused_after_a_sweep(built: MemoryStore) -> None:
    store = built.copy()
    expired(store, last=2, days=3)
    with pytest.raises(RefusedError, match="no expiration that can be undone"):
        undo(store, 60)
    assert [p.number for p in open_archive(store).restore_points] == [8, 9]
    assert open_archive(store).state.number in {row.catalog for row in history_of(open_archive(store))}


def test_a_sweep_keeps_what_an_undo_brought_back(built: MemoryStore) -> None:
    """A restore point that went, came back and went again within the grace time is in none of the oldest and the newest
    catalog; readers between may have it, and it may come back again."""
    store = built.copy()
    store.age("", 2 * 24 * 3600.0)
    expired(store, last=2, days=3, grace=DAY)
    store.age("", 23 * 3600.0)
    undo(store, 60)
    old = open_archive(store)
    before = all_seen(old)
    expired(store, last=4, grace=DAY)
    undo(store, 60)
    expired(store, last=2, days=3, grace=DAY)
    store.age(layout.catalog_key(old.state.number - 1), 2 * 3600.0)
    assert expired(store, grace=DAY).expiration is None
    assert all_seen(Archive(store, old.info, old.committed)) == before
    undo(store, 60)
    assert all_seen(open_archive(store)) == before
    check_whole(store)
    expired(store)
    check_whole(store, clean=True)


def test_an_undo_just_before_a_sweep_is_not_harmed(built: MemoryStore) -> None:
    store = built.copy()
    before = all_seen(open_archive(store))
    expired(store, last=2, days=3, grace=DAY)
    with pytest.raises(RefusedError, match="brought restore points back"):
        expired(meanwhile(store, lambda: undo(store, 60)))
    assert all_seen(open_archive(store)) == before
    check_whole(store)


def test_a_sweep_just_before_an_undo_wins(built: MemoryStore) -> None:
    store = built.copy()
    expired(store, last=2, days=3, grace=DAY)
    after = all_seen(open_archive(store))
    with pytest.raises(RefusedError, match="may be deleted"):
        undo(meanwhile(store, lambda: expired(store)), 60)
    assert all_seen(open_archive(store)) == after
    check_whole(store)
    expired(store)
    check_whole(store, clean=True)


def test_two_undos_at_once_are_one(built: MemoryStore) -> None:
    store = built.copy()
    before = all_seen(open_archive(store))
    expired(store, last=2, days=3, grace=DAY)
    assert undo(meanwhile(store, lambda: undo(store, 60)), 60).restore_points == (1, 2, 3, 4, 5, 7)
    assert all_seen(open_archive(store)) == before
    check_whole(store)


def test_an_undo_beside_another_expiration_is_refused(built: MemoryStore) -> None:
    """Both let go of segments: what the second one dropped must not be missing in restore points that come back."""
    for last, days in ((2, None), (0, 2)):
        store = built.copy()
        expired(store, last=4, days=4, grace=DAY)
        with pytest.raises(RefusedError, match="went since that expiration"):
            undo(meanwhile(store, lambda: expired(store, last=last, days=days, grace=DAY)), 60)  # noqa: B023
        check_whole(store)
