"""Sweeps beside forged catalogs and wrong clocks: an age is what the store says of an object."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from datetime import timedelta

import pytest
from msgspec import structs

from kbackup.archive import layout
from kbackup.archive.catalog.sweep import Orphans, find_orphans, referred_keys
from kbackup.archive.models import dump
from kbackup.archive.reader import open_archive
from kbackup.jobs.points import pin
from kbackup.jobs.retention import undo
from kbackup.store.base import ObjectInfo, Store
from kbackup.store.probe import store_time
from tests.support.expirations import DAY, build, check_whole, expired
from tests.support.faulty_store import FaultyStore
from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.exhaustive(keep=2)


def forge(store: Store, **members: object) -> None:
    """Write a catalog as whoever may write can: by default the next one, in which no restore point has a segment."""
    archive = open_archive(store)
    catalog = archive.committed.catalog
    assert catalog is not None
    members = {"number": catalog.number + 1, "previous": None, "swept": catalog.number, **members}
    forged = structs.replace(catalog, **members, tables=structs.replace(catalog.tables, segments=()))
    store.put(layout.catalog_key(forged.number), dump(forged))


@pytest.mark.parametrize("tables", [False, True], ids=["catalogs whole", "tables overwritten"])
@pytest.mark.parametrize("catalogs", [0, 3, 99], ids=["none", "some", "all"])
def test_no_forged_catalog_makes_a_sweep_delete_before_the_grace_time(
    tables: bool, catalogs: int, built: MemoryStore
) -> None:
    """A writer may commit any catalog, call any other one swept, and overwrite catalogs and tables: nothing that was
    written by then is deleted before the store's own times allow it."""
    store = built.copy()
    store.age("", 30 * 24 * 3600.0)
    committed = open_archive(store).committed
    newest, needed = committed.state.number, referred_keys(committed)
    assert committed.catalog is not None
    for ref in committed.catalog.tables.segments if tables else ():
        store.put(ref.key, b"overwritten")
    for number in range(max(1, newest - catalogs), newest + 1) if catalogs else ():
        forge(store, number=number, swept=number - 1)
    forge(store)
    orphans = sweep(store, DAY)
    assert not needed & {each.key for each in orphans.objects}, (
        "they were let go just now, by the store's clock"
    )
    if tables and not catalogs:
        assert orphans.unreadable == newest, "a catalog whose tables are others stops the sweep"


def sweep(store: Store, grace: timedelta) -> Orphans:
    """As `expire` sweeps."""
    archive = open_archive(store)
    cutoff = store_time(store, "check") - grace.total_seconds()
    return find_orphans(store, archive.committed, store.list(), cutoff)


def test_restored_points_stay_below_a_forged_catalog(built: MemoryStore) -> None:
    """The catalog of an undo counts, whatever a later one says of it."""
    store = built.copy()
    expired(store, last=2, grace=timedelta(days=900))
    store.age("", 5 * 24 * 3600.0)
    undo(store, 60)
    needed = referred_keys(open_archive(store).committed)
    forge(store, reinstated=0)
    assert not needed & {each.key for each in sweep(store, DAY).objects}


def test_a_replaced_catalog_of_the_grace_time_stops_a_sweep(built: MemoryStore) -> None:
    """The next catalog names its checksum."""
    store = built.copy()
    expired(store, last=2, grace=timedelta(days=900))
    store.age("", 5 * 24 * 3600.0)
    undo(store, 60)
    number = open_archive(store).state.number
    pin(store, "9")
    forge(store, number=number, reinstated=0)
    orphans = sweep(store, DAY)
    assert (orphans.objects, orphans.unreadable) == ((), number)


def test_an_orphan_that_was_written_within_the_grace_time_stays(built: MemoryStore) -> None:
    store = built.copy()
    store.age("", 5 * 24 * 3600.0)
    over = "topics/b/segment_partition_000_from_offset_0000000888_records"
    store.put(over, b"x")
    assert over not in {each.key for each in sweep(store, DAY).objects}
    store.age(over, 2 * 24 * 3600.0)
    assert over in {each.key for each in sweep(store, DAY).objects}


def test_ages_count_by_the_clock_of_the_store(built: MemoryStore) -> None:
    """A machine whose clock is days ahead deletes nothing earlier."""
    behind = MemoryStore(clock=lambda: 1e9)
    build(behind)
    assert expired(behind, last=2, grace=DAY).deleted == 0
    assert expired(behind, last=2).deleted > 0
    check_whole(behind, clean=True)


def test_a_sweep_streams_the_listing(built: MemoryStore) -> None:
    """Of a thousand objects that stay, no more than one is held."""
    store = built.copy()
    alive: list[weakref.ref[Probe]] = []
    most = 0

    class Probe(str):
        __slots__ = ("__weakref__",)

    class Streams(FaultyStore):
        def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
            nonlocal most
            for entry in self.inner.list(prefix, start_after):
                if prefix:
                    yield entry
                    continue
                key = Probe(entry.key)
                alive.append(weakref.ref(key))
                yield entry._replace(key=key)
                del key
                most = max(most, sum(ref() is not None for ref in alive))

    report = expired(Streams(store), last=9)
    assert len(alive) > 50
    assert most <= report.deleted + 3, "objects that stay are not collected"
