"""Expirations, pins and undos beside backups and each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta

import pytest

from kbackup.archive import layout
from kbackup.archive.catalog.operations import end_run
from kbackup.archive.lease import HeldLease
from kbackup.archive.reader import open_archive
from kbackup.archive.run import WritingRun, begin_writing
from kbackup.errors import (
    LeaseLostError,
    RefusedError,
)
from kbackup.formats.index import decode_partition_index
from kbackup.jobs.points import label, pin, release
from kbackup.jobs.retention import undo
from kbackup.store.base import Store
from tests.support.expirations import (
    DAY,
    NOW,
    all_seen,
    check_whole,
    crashed_run,
    expired,
    meanwhile,
    objects_of,
)
from tests.support.histories import History
from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.exhaustive(keep=2)


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
    assert (views[8], {*archive.state.pins}, archive.state.labels) == (
        before[8],
        {8},
        {"before-migration": 8},
    )
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
