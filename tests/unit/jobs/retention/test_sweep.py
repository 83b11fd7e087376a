"""Sweeps of stores that refuse deletes, lack objects in listings, or hold damaged catalogs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta

import pytest

from kbackup.archive import layout
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.run import open_or_create
from kbackup.errors import (
    DeniedError,
    NoArchiveError,
    RefusedError,
)
from kbackup.jobs.points import label, pin, release
from kbackup.jobs.repair.job import repair
from kbackup.jobs.retention import undo
from kbackup.metrics.registry import Silent
from kbackup.store.base import Failed, ObjectInfo, Store
from tests.support.expirations import DAY, all_seen, check_whole, expired, objects_of
from tests.support.faulty_store import FaultyStore
from tests.support.histories import History
from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.exhaustive(keep=2)


def test_deletes_that_are_refused_are_told_and_tried_again(built: MemoryStore) -> None:
    store = built.copy()
    report = expired(Undeletable(store), last=2, days=3)
    assert report.failed
    assert set(report.failed.values()) == {"it is locked"}
    assert {e.key for e in store.list()} >= report.failed.keys()
    check_whole(store)
    longer = expired(store, grace=timedelta(days=900))
    assert (longer.deleted, longer.unreadable) == (0, None), "catalogs that could not be deleted are no harm"
    again = expired(store)
    assert again.deleted >= len(report.failed)
    check_whole(store, clean=True)


class Undeletable(FaultyStore):
    def delete(self, keys: Iterable[str]) -> list[Failed]:
        return [Failed(key, DeniedError("it is locked", "wait")) for key in keys]


def test_catalogs_that_can_not_be_deleted_stop_no_sweep(built: MemoryStore) -> None:
    """Object lock holds catalogs while tables that they refer to are deleted."""
    store = built.copy()

    class LockedCatalogs(FaultyStore):
        def delete(self, keys: Iterable[str]) -> list[Failed]:
            each = list(keys)
            locked = [key for key in each if key.startswith(layout.CATALOG)]
            failed = [Failed(key, DeniedError("it is locked", "wait")) for key in locked]
            return [*failed, *self.inner.delete([key for key in each if key not in locked])]

    assert expired(LockedCatalogs(store), last=5).failed
    again = expired(LockedCatalogs(store), last=4, grace=timedelta(days=900))
    assert again.unreadable is None
    check_whole(store)
    assert expired(store, last=2).failed == {}
    check_whole(store, clean=True)


def test_nothing_is_deleted_while_a_damaged_catalog_is_young(built: MemoryStore) -> None:
    """Nobody can tell what its readers have open."""
    store = built.copy()
    store.age("", 2 * 24 * 3600.0)
    old = open_archive(store).committed.catalog
    assert old is not None
    expired(store, last=4, grace=DAY)
    newest = open_archive(store).committed.catalog
    assert newest is not None
    store.delete([old.tables.points[-1].key])
    before = objects_of(store).keys()
    report = expired(store, last=2, grace=DAY)
    assert (report.deleted, report.unreadable) == (0, old.number)
    assert objects_of(store).keys() >= before
    store.age("", 2 * 24 * 3600.0)
    assert expired(store, grace=DAY).unreadable is None
    expired(store)
    assert [p.number for p in open_archive(store).restore_points] == [8, 9]
    check_whole(store, clean=True)


def test_a_sweep_passes_over_a_catalog_that_a_repair_replaced(built: MemoryStore) -> None:
    """As it was before the repair, nobody can open the archive; what the repair made stays whole. Nothing is deleted
    before the grace time of the repair is over."""
    store = built.copy()
    for last in (5, 4):
        expired(store, last=last, grace=DAY)
    store.age("", 2 * 24 * 3600.0)
    catalog = open_archive(store).committed.catalog
    assert catalog is not None
    store.delete([catalog.tables.segments[-1].key])
    assert repair(store, True, False, 60, lambda: None, Silent()).confirmed  # type: ignore[arg-type, return-value]
    views = all_seen(open_archive(store))
    report = expired(store, grace=DAY)
    assert (report.failed, report.deleted, report.unreadable) == ({}, 0, catalog.number)
    assert all_seen(open_archive(store)) == views
    check_whole(store)
    store.age("", 2 * 24 * 3600.0)
    assert expired(store, grace=DAY).unreadable is None
    expired(store)
    assert all_seen(open_archive(store)) == views
    check_whole(store)


class Forgetful(FaultyStore):
    """Leaves objects out of listings of the whole store."""

    def __init__(self, inner: Store, forgotten: str) -> None:
        super().__init__(inner)
        self.forgotten = forgotten

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
        return (e for e in super().list(prefix, start_after) if prefix or self.forgotten not in e.key)


@pytest.mark.parametrize("forgotten", ["points/0000000009", "catalog/", "topics/a", "tables/"])
def test_an_object_that_a_listing_lacks_costs_nothing(built: MemoryStore, forgotten: str) -> None:
    store = built.copy()
    old = open_archive(store)
    before = all_seen(old)
    expired(Forgetful(store, forgotten), last=2, grace=DAY)
    assert all_seen(Archive(store, old.info, old.committed)) == before
    check_whole(store)
    expired(store)
    check_whole(store, clean=True)


def test_sweep_spares_segments_that_the_next_backup_may_salvage(built: MemoryStore) -> None:
    store = built.copy()
    mine = "topics/a/segment_partition_000_from_offset_0000000888_records"
    over = "topics/b/segment_partition_000_from_offset_0000000888_records"
    new = "topics/new/segment_partition_000_from_offset_0000000000_records"
    foreign = "topics/b/notes.txt"
    for key in (mine, over, new, foreign):
        store.put(key, b"x")
    expired(store)
    left = {e.key for e in store.list(layout.TOPICS)}
    assert {mine, new, foreign} <= left
    assert over not in left, "that incarnation is over"


def test_expiration_never_empties_an_archive() -> None:
    store = MemoryStore()
    history = History(store)
    history.run(1, {"a": 3})
    history.run(2, {"a": 0})
    number = history.archive.state.number
    with pytest.raises(RefusedError, match="every record of the newest restore point, 2"):
        expired(store, days=0)
    assert open_archive(store).state.number == number
    assert expired(store, days=2, grace=DAY).expiration is None, "counted back from the newest restore point"
    assert expired(store, last=1).expiration == number + 1
    assert [p.number for p in open_archive(store).restore_points] == [2]


def test_where_there_is_no_archive_nothing_is_written() -> None:
    store = MemoryStore()
    for confirm in (False, True):
        with pytest.raises(NoArchiveError):
            expired(store, last=1, confirm=confirm)
    for command in (pin, release):
        with pytest.raises(NoArchiveError):
            command(store, "1")
    with pytest.raises(NoArchiveError):
        undo(store, 60)
    assert list(store.list()) == []
    open_or_create(store)
    with pytest.raises(NoArchiveError, match="no restore point"):
        expired(store, last=1)
    with pytest.raises(NoArchiveError, match="no restore point"):
        pin(store, "latest")
    with pytest.raises(RefusedError, match="no expiration"):
        undo(store, 60)
    with pytest.raises(NoArchiveError, match="no restore point"):
        label(store, "latest", "first")
