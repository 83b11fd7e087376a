"""An expiration and an undo that crash at any write."""

from __future__ import annotations

from contextlib import suppress

import pytest

from kbackup.archive import layout
from kbackup.archive.lease import HeldLease
from kbackup.archive.reader import open_archive
from kbackup.archive.run import begin_writing
from kbackup.formats.index import decode_partition_index
from kbackup.jobs.points import pin
from kbackup.jobs.retention import undo
from kbackup.store.base import Store
from tests.support.crash_store import Crash, CrashStore, crashed
from tests.support.exhaustive import sample
from tests.support.expirations import DAY, all_seen, check_whole, expired
from tests.support.faulty_store import FaultyStore, down
from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.exhaustive(keep=2)


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
