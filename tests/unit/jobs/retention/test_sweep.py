"""Sweeps of stores that refuse deletes, lack objects in listings, or hold damaged catalogs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import timedelta

import pytest
from msgspec import structs

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, Committed, commit
from kbackup.archive.catalog.operations import end_run
from kbackup.archive.catalog.state import State
from kbackup.archive.catalog.sweep import Orphans, find_orphans, referred_keys
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import dump
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.run import WritingRun, begin_writing, open_or_create
from kbackup.errors import CorruptError, DeniedError, LeaseLostError, NoArchiveError, RefusedError
from kbackup.formats.index import decode_partition_index
from kbackup.jobs.points import history as history_of
from kbackup.jobs.points import label, pin, release
from kbackup.jobs.repair import repair
from kbackup.jobs.retention import undo
from kbackup.jobs.verify import verify
from kbackup.metrics.registry import Silent
from kbackup.store.base import Failed, ObjectInfo, Store
from kbackup.store.probe import store_time
from tests.support.crash_store import Crash, CrashStore, crashed
from tests.support.exhaustive import sample
from tests.support.expirations import (
    DAY,
    NOW,
    Seen,
    all_seen,
    build,
    check_whole,
    crashed_run,
    expired,
    meanwhile,
    objects_of,
)
from tests.support.faulty_store import FaultyStore, down
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


# Deletes wait for the grace time, whatever a writer forges.


@pytest.mark.exhaustive
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


@pytest.mark.exhaustive
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


# Expirations, pins and undos beside backups and each other.


@contextmanager
def backup_running(store: Store) -> Iterator[Callable[[], None]]:
    """A backup that has begun and holds the lease; the function ends it with restore point 10, of topic a."""
    history = History(store)
    history.topics = {t.name: t for t in open_archive(store).restore_point("latest").topics}
    began: list[WritingRun] = []

    def end() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tests.support.archives.HeldLease", lambda *_: nullcontext(lease))
            patch.setattr("tests.support.archives.begin_writing", lambda *_: began[0])
            history.run(10, {"a": 3, "b": "out", "c": "out"})

    with HeldLease(store, "kbackup backup", 60) as lease:
        began.append(begin_writing(store, lease, "backup"))
        yield end


@pytest.mark.exhaustive(keep=1)
@pytest.mark.parametrize("grace", [NOW, DAY])
def test_everything_but_segments_works_beside_a_backup(built: MemoryStore, grace: timedelta) -> None:
    store = built.copy()
    before = all_seen(open_archive(store))
    index = store.get("topics/a/index_partition_000")
    with backup_running(store) as end:
        pin(store, "8")
        pin(store, "7")
        release(store, "7")
        label(store, "8", "before-migration")
        report = expired(store, last=2, days=3, grace=grace)
        assert report.expiration is not None
        assert bool(report.deleted) == (grace == NOW)
        assert store.get("topics/a/index_partition_000") == index, "the backup holds the lease"
        end()
    archive = open_archive(store)
    assert [p.number for p in archive.restore_points] == [8, 9, 10]
    views = all_seen(archive)
    assert (views[8], {*archive.state.pins}, archive.state.labels) == (before[8], {8}, {"before-migration": 8})
    assert views[9].segments == tuple(s for s in views[10].segments if s in before[9].segments)
    assert len(views[10].segments) > len(views[9].segments)
    check_whole(store)
    first = next(s for s in views[10].segments if (s.topic, s.partition) == ("a", 0)).first
    assert decode_partition_index(store.get("topics/a/index_partition_000"), "")[0].start_offset == first
    if grace == DAY:
        undo(store, 60)
        assert {n: v for n, v in all_seen(open_archive(store)).items() if n != 10} == before
        check_whole(store)
    expired(store)
    check_whole(store, clean=True)


def test_an_undo_beside_a_backup(built: MemoryStore) -> None:
    store = built.copy()
    before = all_seen(open_archive(store))
    expired(store, last=1, days=2, grace=DAY)
    with backup_running(store) as end:
        undo(store, 60)
        end()
    views = all_seen(open_archive(store))
    assert {n: v for n, v in views.items() if n != 10} == before
    assert views[10].segments[:3] == before[9].segments[:3]
    check_whole(store)


def test_an_expiration_rebases_on_another_one(built: MemoryStore) -> None:
    store = built.copy()
    expired(meanwhile(store, lambda: expired(store, last=4, days=4)), last=1, days=3)
    archive = open_archive(store)
    assert [p.number for p in archive.restore_points] == [9]
    alone = built.copy()
    expired(alone, last=1, days=3)
    assert all_seen(archive) == all_seen(open_archive(alone))
    expired(store)
    check_whole(store, clean=True)


def test_a_pin_beside_an_expiration_holds(built: MemoryStore) -> None:
    store = built.copy()
    before = all_seen(open_archive(store))
    expired(meanwhile(store, lambda: pin(store, "5")), last=1)
    assert [p.number for p in open_archive(store).restore_points] == [5, 9]
    store = built.copy()
    with pytest.raises(RefusedError, match="a pinned restore point has records"):
        expired(meanwhile(store, lambda: pin(store, "5")), last=1, days=3)
    assert all_seen(open_archive(store)) == before
    check_whole(store)


def test_a_closed_run_commits_nothing(built: MemoryStore) -> None:
    """A writer slept until everything around its catalog was swept: even the number after its own is free again."""
    store = built.copy()
    with HeldLease(store, "kbackup backup", 60) as lease:
        slept = begin_writing(store, lease, "backup")
        store.delete([layout.LOCK])
        crashed_run(store)
        expired(store, last=2)
        pin(store, "8")
        expired(store, last=1)
        assert layout.catalog_key(slept.archive.state.number + 1) not in objects_of(store)
        slept.lease.check = lambda: None  # type: ignore[method-assign]
        with pytest.raises(LeaseLostError, match="closed by another writer"):
            slept.commit(lambda state: end_run(state, slept.run), "end", "")
    assert {*open_archive(store).state.pins} == {8}
    check_whole(store)


def test_a_pin_that_slept_holds_on_the_newest_catalog(built: MemoryStore) -> None:
    """Catalogs after the one that it read were swept: it must not take their place."""
    store = built.copy()

    def others() -> None:
        for name in ("one", "two", "three"):
            label(store, "9", name)
            expired(store)

    before = open_archive(store).state.number
    assert pin(meanwhile(store, others), "9").pinned == (9,)
    archive = open_archive(store)
    assert ({*archive.state.pins}, {*archive.state.labels}) == ({9}, {"one", "two", "three"})
    assert archive.state.number > before + 6
    expired(store)
    check_whole(store, clean=True)


# An expiration and an undo that crash at any write.


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.exhaustive(keep=2)
def test_a_crash_at_every_write(built: MemoryStore, after: bool) -> None:
    """The archive is whole at each moment, and the next run comes to the same end."""
    pinned = built.copy()
    pin(pinned, "3")

    def outcome(store: Store) -> tuple[object, ...]:
        archive = open_archive(store)
        keys = {entry.key for entry in store.list(layout.TOPICS) if "index_p" not in entry.key}
        points = {entry.key for entry in store.list(layout.POINTS)}
        return keys, points, all_seen(archive), archive.state.past_manifests, archive.state.starts

    counting = CrashStore(pinned.copy())
    before = all_seen(open_archive(counting))
    expired(counting, last=2, days=3)
    end = outcome(counting)
    assert counting.writes > 8
    for at in sample(range(1, counting.writes + 1)):
        inner = pinned.copy()
        dying = CrashStore(inner, at, after)
        with suppress(Crash):  # nothing follows the last delete
            expired(dying, last=2, days=3)
        assert dying.down
        inner.delete([layout.LOCK])  # it ran out
        check_whole(inner)
        archive = open_archive(inner)
        assert all_seen(archive) == (before if not archive.state.past_manifests else end[2])
        expired(inner, last=2, days=3)
        assert outcome(inner) == end
        expired(inner)  # tables of a catalog that was never created go when its number is given
        check_whole(inner, clean=True)


@pytest.mark.exhaustive
def test_a_crash_at_every_write_of_undo(built: MemoryStore) -> None:
    store = built.copy()
    before = all_seen(open_archive(store))
    expired(store, last=2, days=3, grace=DAY)
    after = all_seen(open_archive(store))
    for crash in crashed(store, lambda inner: undo(inner, 60)):
        check_whole(crash)
        views = all_seen(open_archive(crash))
        assert views in (before, after)
        if views == after:
            undo(crash, 60)
        assert all_seen(open_archive(crash)) == before
        check_whole(crash)


@pytest.mark.parametrize("then", ["backup", "expire"])
def test_the_next_run_writes_the_derived_files_of_a_crashed_one(built: MemoryStore, then: str) -> None:
    store = built.copy()
    fails = FaultyStore(store, down("put", "topics/*"))
    with pytest.raises(Exception, match="down"):
        expired(fails, last=2, days=3)
    check_whole(store)
    store.delete([layout.LOCK])
    if then == "expire":
        assert expired(store).expiration is None
    else:
        with HeldLease(store, "kbackup backup", 60) as lease:
            begin_writing(store, lease, "backup")
    assert decode_partition_index(store.get("topics/a/index_partition_000"), "")[0].start_offset == 20
    check_whole(store)


# Damage of any file that retention reads is found.


@pytest.mark.exhaustive
def test_damage_is_found(built: MemoryStore) -> None:
    """Nothing is taken for expired that was not."""
    store = built.copy()
    history = History(store)
    history.topics = {t.name: t for t in open_archive(store).restore_point("latest").topics}
    pin(store, "3")
    expired(store, last=3, days=4)
    history.run(10, {"a": 3, "b": 2, "c": "out"})
    expired(store, last=2)
    catalog = open_archive(store).committed.catalog
    assert catalog is not None
    refs = [getattr(catalog.tables, name)[0].key for name in catalog.tables.__struct_fields__]
    keys = [key for key in refs if key]
    manifests = [point.documents[0] for point in open_archive(store).restore_points]
    for key in (layout.catalog_key(catalog.number), *keys, *manifests):
        whole = store.get(key)
        middle = len(whole) // 2
        flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        for data in (None, b"", whole[:-2], flipped):
            with changed(store, key, data):
                report = verify(store, "all", True, lambda: None, Silent())  # type: ignore[arg-type, return-value]
                assert any(key in f"{f.file} {f.what}" for f in report.findings), (key, data)
                with pytest.raises(CorruptError, match=key):
                    use(store)
    check_whole(store)


def use(store: Store) -> None:
    archive = open_archive(store)
    all_seen(archive)
    history_of(archive)
    expired(store, last=1, confirm=False)


@contextmanager
def changed(store: Store, key: str, data: bytes | None) -> Iterator[None]:
    before = store.get(key)
    store.delete([key])
    if data is not None:
        store.put(key, data)
    yield
    store.put(key, before)


# Sweeps beside forged catalogs and wrong clocks: an age is what the store says of an object.


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
    assert not needed & {each.key for each in orphans.objects}, "they were let go just now, by the store's clock"
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
