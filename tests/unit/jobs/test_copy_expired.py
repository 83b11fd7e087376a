"""Copies of archives that restore points and records went from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from kbackup.archive import layout
from kbackup.archive.content import content_of
from kbackup.archive.expire import is_cut_off
from kbackup.archive.lease import HeldLease
from kbackup.archive.reader import open_archive
from kbackup.config.models import Backup
from kbackup.errors import NoArchiveError, RefusedError
from kbackup.jobs import copy as copying
from kbackup.jobs.backup import begin
from kbackup.jobs.copy import CopyReport, copy_archive
from kbackup.jobs.expire import Expiry, expire
from kbackup.jobs.expire_policy import Policy
from kbackup.jobs.keep import keep
from kbackup.jobs.listen import Silent
from kbackup.store.base import Store
from tests.support.crash_store import Crash, CrashStore
from tests.support.exhaustive import sample
from tests.support.faulty_store import Operation
from tests.support.histories import History
from tests.support.memory_store import MemoryStore
from tests.unit.jobs.test_expire import all_seen, build, check_whole, expired

SCRATCH = timedelta(0)


def copied(source: Store, target: Store) -> CopyReport:
    return copy_archive(source, target, 60, Silent())


def made(reached: int = 0) -> tuple[MemoryStore, MemoryStore]:
    """An archive, and a copy of it as of restore point `reached`."""
    store, copy = MemoryStore(), MemoryStore()
    build(store, lambda seq: seq == reached and copied(store, copy))
    keep(store, "3", 60, undo=False)
    return store, copy


def objects(store: Store) -> set[str]:
    own = (layout.LOCK, layout.EXPIRATIONS, layout.PINS, layout.SCRATCH)
    return {e.key for e in store.list() if not e.key.startswith(own)}


@pytest.mark.parametrize("reached", [0, 1, 3, 5, 8, 9])
def test_a_copy_as_old_as_can_be_catches_up(reached: int) -> None:
    """It had come to restore point `reached` when others expired."""
    source, before = made(reached)
    expired(source, last=2, days=3)
    build_on = all_seen(open_archive(source))
    copied(source, before)
    assert all_seen(open_archive(before)) == build_on
    check_whole(before)
    assert objects(before) >= {k for k in objects(source) if not k.endswith(layout.REFRESHED)}
    assert copied(source, before).restore_points == ()
    expire(before, Expiry(Policy(), None, SCRATCH), 60, Silent(), confirm=True)
    check_whole(before, clean=True)
    assert all_seen(open_archive(before)) == build_on
    assert copied(source, before).restore_points == ()


@pytest.mark.exhaustive(keep=1)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_every_write(after: bool) -> None:
    source, partly = made(4)
    expired(source, last=2, days=3)
    due = all_seen(open_archive(source))
    counting = CrashStore(partly.copy())
    copied(source, counting)
    assert counting.writes > 30
    for at in sample(range(1, counting.writes + 1, 2)):
        inner = partly.copy()
        with pytest.raises(Crash):
            copied(source, CrashStore(inner, at, after))
        inner.delete([layout.LOCK])
        try:
            seen = all_seen(open_archive(inner))
            check_whole(inner)
        except NoArchiveError:
            seen = {}
        assert seen.items() <= due.items() or set(seen) == {1, 2, 3, 4}
        copied(source, inner)
        assert all_seen(open_archive(inner)) == due
        check_whole(inner)


@pytest.mark.exhaustive
def test_a_copy_has_restore_points_while_it_catches_up() -> None:
    """Of all that it had none is left: the first of those that are comes right after that is said."""
    source, partly = MemoryStore(), MemoryStore()
    build(source, lambda seq: seq == 4 and copied(source, partly))
    expired(source, last=2, days=3)
    counting = CrashStore(partly.copy())
    copied(source, counting)
    none = 0
    for at in range(1, counting.writes + 1):
        inner = partly.copy()
        with pytest.raises(Crash):
            copied(source, CrashStore(inner, at))
        points = [p.seq for p in open_archive(inner).restore_points]
        assert points in ([1, 2, 3, 4], [], [8], [8, 9])
        none += not points
    assert none == 1


def test_segments_that_are_left_are_looked_at_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    source = MemoryStore()
    build(source)
    expired(source, last=1)
    archive = open_archive(source)
    monkeypatch.setattr(copying, "SEGMENTS_AT_ONCE", 5)
    some = list(copying._segments(archive, archive.restore_points, 0))
    assert max(map(len, some)) == 5
    assert sorted(s.key for each in some for s in each) == sorted(archive.keys())


def others(source: Store) -> None:
    """One restore point, in the place of one that the source has made."""
    head = open_archive(source).head
    assert head is not None
    history = History(source, topics={t.name: t for t in head.topics})
    history.run(head.seq + 1, {t.name: 1 for t in head.topics})


def records(target: Store) -> None:
    assert expired(target, days=2).records > 0


@pytest.mark.parametrize("wrote", [others, records])
@pytest.mark.parametrize("again", [1, 2])
def test_a_copy_that_diverged_is_refused_whatever_expired_since(
    wrote: Callable[[Store], None], again: int
) -> None:
    """Nothing of it is overwritten, however often the source expired."""
    source, target = MemoryStore(), MemoryStore()
    build(source, lambda seq: seq == 4 and copied(source, target))
    wrote(target)
    before = {e.key: target.get(e.key) for e in target.list() if e.key != layout.LOCK}
    for last in range(again, 0, -1):
        expired(source, last=last)
    with pytest.raises(RefusedError, match=r"is no copy of .* of its own"):
        copied(source, target)
    assert {e.key: target.get(e.key) for e in target.list() if e.key != layout.LOCK} == before


def test_a_copy_that_let_go_of_what_went_from_the_source_as_well() -> None:
    source, target = MemoryStore(), MemoryStore()
    build(source, lambda seq: seq == 4 and copied(source, target))
    expired(target, last=1)
    for last in (2, 1):
        expired(source, last=last)
    copied(source, target)
    assert all_seen(open_archive(target)) == all_seen(open_archive(source))
    check_whole(target)


def test_a_copy_that_diverged_where_both_expired() -> None:
    """The copy's own is older than the source's newest."""
    source, target = made()
    copied(source, target)
    keep(source, "5", 60, undo=False)
    expired(target, last=2, days=5)
    expired(source, last=3)
    expired(source, last=2)
    before = open_archive(target).expired
    with pytest.raises(RefusedError, match=r"it has expirations/0000000001/expired\.json of its own"):
        copied(source, target)
    assert open_archive(target).expired == before


def test_a_copy_that_expired_by_itself_is_refused() -> None:
    source, target = made()
    copied(source, target)
    expired(target, last=1)
    with pytest.raises(RefusedError, match=r"no copy of .* expirations/0000000001/expired\.json of its own"):
        copied(source, target)
    expired(source, last=2)
    with pytest.raises(RefusedError, match="of its own"):
        copied(source, target)


def test_the_source_goes_on() -> None:
    source, target = made()
    expired(source, last=3, grace=timedelta(days=1))
    copied(source, target)
    assert all_seen(open_archive(target)) == all_seen(open_archive(source))
    expired(source, last=1, days=2)
    again = source.copy()
    copied(source, target)
    assert all_seen(open_archive(target)) == all_seen(open_archive(again))
    check_whole(target)


class Keys(CrashStore):
    """What it wrote, in order."""

    keys: list[str]

    def _before(self, operation: Operation, key: str) -> None:
        before = self.writes
        super()._before(operation, key)
        if self.writes > before:
            self.keys.append(key)


def cut_off(source: Store, partly: MemoryStore) -> Iterator[MemoryStore]:
    """Copies on the way from `partly`, that know of more than they have."""
    counting = Keys(partly.copy())
    counting.keys = []
    copied(source, counting)
    since = next(at for at, key in enumerate(counting.keys, 1) if key.endswith(layout.EXPIRED))
    for at in range(since + 1, len(counting.keys) + 1):
        inner = partly.copy()
        with pytest.raises(Crash):
            copied(source, CrashStore(inner, at))
        inner.delete([layout.LOCK])
        if not is_cut_off(open_archive(inner)):
            return
        yield inner


def test_no_backup_into_a_copy_that_was_cut_off() -> None:
    """Its restore point would be one of those that are gone."""
    source, partly = made(4)
    expired(source, last=2, days=3)
    for inner in cut_off(source, partly):
        before = {e.key: inner.get(e.key) for e in inner.list()}
        refused = pytest.raises(RefusedError, match="a copy that was cut off")
        with HeldLease(inner, "kbackup backup", 60) as lease, refused as raised:
            begin(Backup(), {}, open_archive(inner), None, "", 0, lease)  # type: ignore[arg-type]
        assert "run the same 'kbackup copy' again" in raised.value.hint
        inner.delete([layout.LOCK])
        assert {e.key: inner.get(e.key) for e in inner.list()} == before
        copied(source, inner)
        with HeldLease(inner, "kbackup backup", 60) as lease:
            run = begin(Backup(), {}, open_archive(inner), None, "", 0, lease)  # type: ignore[arg-type]
        assert run.seq == 10


@pytest.mark.parametrize(("last", "grace"), [(1, SCRATCH), (1000, SCRATCH), (1000, timedelta(days=1))])
def test_a_copy_that_was_cut_off_for_good_is_made_an_archive(last: int, grace: timedelta) -> None:
    """Whose source is lost: what had come is what it has, and backups go on where it ends."""
    source, partly = made(4)
    expired(source, last=2, days=2)
    found = 0
    for inner in cut_off(source, partly):
        found += 1
        archive = open_archive(inner)
        before = all_seen(archive)
        assert expired(inner).expiration is None, "asked for nothing, it stays a copy"
        report = expired(inner, last=last, grace=grace)
        assert report.expiration == 2
        archive = open_archive(inner)
        assert not is_cut_off(archive)
        assert all_seen(archive) == {n: each for n, each in before.items() if n == max(before) or last > 1}
        check_whole(inner)
        head = archive.head
        assert head is not None
        with HeldLease(inner, "kbackup backup", 60) as lease:
            run = begin(Backup(), {}, archive, None, "", 0, lease)  # type: ignore[arg-type]
        known = archive.keys()  # the backup clears up after unfinished runs
        known |= {layout.index_key_of(key) for key in known}
        inner.delete([e.key for e in inner.list("topics/") if "/segment_" in e.key and e.key not in known])
        history = History(inner, topics={t.name: t for t in head.topics})
        history.run(run.seq, {t.name: 3 for t in head.topics})
        after = open_archive(inner)
        assert after.restore_points[-1].seq == run.seq
        left = {s.key for s in all_seen(after)[run.seq].segments}
        assert len(left) > len(all_seen(archive)[head.seq].segments)
        check_whole(inner)
        expired(inner, last=2)
        check_whole(inner)
        with pytest.raises(RefusedError, match="of its own"):
            copied(source, inner)
    assert found == 2, "the manifests of 8 and 9 are still to come"


def test_a_log_start_beyond_what_a_copy_has_moves_back() -> None:
    """All records that it had went by age; the next backup's lie before where the source's log began."""
    source, partly = MemoryStore(), MemoryStore()
    build(source, lambda seq: seq == 4 and copied(source, partly))
    expired(source, days=2)
    inner = next(cut_off(source, partly))
    head = open_archive(inner).head
    assert head is not None
    assert head.seq == 4
    expired(inner, last=1)
    with HeldLease(inner, "kbackup backup", 60) as lease:
        seq = begin(Backup(), {}, open_archive(inner), None, "", 0, lease).seq  # type: ignore[arg-type]
    History(inner, topics={t.name: t for t in head.topics}).run(seq, {"a": 3, "b": "out", "c": "out"})
    archive = open_archive(inner)
    found = content_of(archive, archive.restore_point(seq), archive.restore_point(seq).topics)
    for before, now in zip(head.topics[0].partitions, found.topics[0].partitions, strict=True):
        assert (now.start, now.expired, now.records) == (before.end, before.records, 3)
    check_whole(inner)
