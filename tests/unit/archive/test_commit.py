"""Commits of catalogs: fences, races, lost answers; and the derived files that follow."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, Committed, commit, open_newest
from kbackup.archive.catalog.documents import Derived
from kbackup.archive.catalog.operations import end_run, label_point, pin_points
from kbackup.archive.catalog.state import State
from kbackup.archive.derived import refresh_derived
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import load
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.run import WritingRun, begin_writing, check_written, open_or_create
from kbackup.errors import (
    AlreadyExistsError,
    LeaseLostError,
    OutcomeUnknownError,
    StoreError,
    UnreachableError,
    UsageError,
)
from kbackup.formats.index import decode_partition_index
from kbackup.store.base import Buffer
from kbackup.store.file import FileStore
from kbackup.store.wrappers import GuardedStore
from tests.support.encrypted_stores import Stores
from tests.support.faulty_store import FaultyStore, down, lost_answer
from tests.support.made_segments import TOPIC, committed, state, target, write

AUTHOR = Author("label", "another run", "a test")


def test_an_archive_is_made_once(store: FaultyStore) -> None:
    first = open_or_create(store)
    assert open_or_create(store).info == first.info == open_archive(store).info


def test_two_that_make_it_at_once_end_in_one(store: FaultyStore) -> None:
    """The other one was faster, between our look and our put."""

    class Slow(FaultyStore):
        def put_new(self, key: str, data: Buffer) -> str:
            open_or_create(store)
            return store.put_new(key, bytes(data))

    assert open_or_create(Slow(store.inner)).info == open_archive(store).info


def test_an_archive_whose_making_is_in_doubt_is_no_archive_of_ours_yet(store: FaultyStore) -> None:
    store.faults.append(lost_answer("put_new", layout.ARCHIVE))
    with pytest.raises(OutcomeUnknownError):
        open_or_create(store)
    assert open_or_create(store).restore_points == (), "the next run uses what is there"


@contextmanager
def writing(store: FaultyStore) -> Iterator[WritingRun]:
    """A run whose lease was lost afterwards, without its knowledge: only the fence keeps it from committing."""
    open_or_create(store)
    with HeldLease(store, "kbackup test", 60) as lease:
        run = begin_writing(store, lease, "backup")
    run.archive = Archive(store, run.archive.info, run.archive.committed)
    yield run


def next_number(state: State) -> State:
    return replace(state, next_point=state.next_point + 1)


def ending(run: WritingRun) -> Callable[[State], State]:
    return lambda state: end_run(next_number(state), run.run)


def test_a_later_run_closes_an_earlier_one_for_good(store: FaultyStore) -> None:
    with writing(store) as first, writing(store) as second:
        assert (first.interrupted, second.interrupted) == (False, True)
        with pytest.raises(LeaseLostError, match="this run was closed by another writer"):
            first.commit(ending(first), "backup", "too late")
        assert open_archive(store).state.next_point == 1
        second.commit(ending(second), "backup", "in time")
        with pytest.raises(LeaseLostError, match="this run was closed by another writer"):
            first.commit(ending(first), "backup", "still too late")
        with writing(store) as third:
            assert not third.interrupted, "there is nothing left to take over"
    assert open_archive(store).state.next_point == 2


def test_commit_just_before_the_fence_stays(store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run that is fenced off commits just before the fence; the fence goes on from its catalog."""
    with writing(store) as first:
        stale = open_archive(store)
        first.commit(ending(first), "backup", "in time")
        monkeypatch.setattr("kbackup.archive.run.open_archive", lambda _: stale)
        with HeldLease(store, "kbackup test", 60) as lease:
            second = begin_writing(store, lease, "backup")
    assert second.archive.state.next_point == 2
    assert open_archive(store).state.number == stale.state.number == first.archive.state.number + 1


def test_an_operation_that_changes_nothing_writes_nothing(store: FaultyStore) -> None:
    archive, _ = committed(store, 1, None)
    before = {e.key: e.etag for e in store.list()}
    done = commit(store, archive.committed, lambda s: label_point(s, "a", None) if s.labels else s, AUTHOR)
    assert done is archive.committed
    assert {e.key: e.etag for e in store.list()} == before


def test_an_operation_that_refuses_writes_nothing(store: FaultyStore) -> None:
    archive, _ = committed(store, 1, None)
    before = {e.key: e.etag for e in store.list()}
    with pytest.raises(UsageError, match="restore point 7 does not exist"):
        commit(store, archive.committed, lambda s: label_point(s, "a", 7), AUTHOR)
    assert {e.key: e.etag for e in store.list()} == before


def label(name: str) -> Callable[[State], State]:
    return lambda state: label_point(state, name, 1)


def test_of_two_commits_at_once_none_is_lost(store: FaultyStore) -> None:
    archive, _ = committed(store, 1, None)
    first = commit(store, archive.committed, label("a"), AUTHOR)
    second = commit(store, archive.committed, label("b"), AUTHOR)
    assert second.state.number == first.state.number + 1
    assert open_archive(store).state.labels == {"a": 1, "b": 1}
    assert second.catalog is not None
    assert first.catalog is not None
    assert second.catalog.previous is not None
    assert second.catalog.previous.checksum == first.catalog.checksum


def test_a_commit_that_is_never_the_first_gives_up(store: FaultyStore) -> None:
    archive, _ = committed(store, 1, None)

    def overtaken(state: State) -> State:
        commit(store, Committed(state, None), lambda s: label_point(s, f"l{s.number}", 1), AUTHOR)
        return pin_points(state, [1], "2026-01-01T00:00:00.000Z")

    with pytest.raises(StoreError, match="changed during each of 100 commits"):
        commit(store, archive.committed, overtaken, AUTHOR)
    assert open_archive(store).state.pins == {}


def test_a_commit_whose_answer_is_lost_is_not_called_a_success(store: FaultyStore) -> None:
    archive, _ = committed(store, 1, None)
    store.faults.append(lost_answer("put_new", "catalog/*"))
    with pytest.raises(OutcomeUnknownError):
        commit(store, archive.committed, label("a"), AUTHOR)
    assert open_archive(store).state.labels == {"a": 1}, "here it had taken effect"


@pytest.mark.parametrize("others", [0, 1])
def test_a_commit_that_finds_itself_is_made_once(others: int, store: FaultyStore) -> None:
    """The client of the store tries again after a lost answer, and is told of the catalog that it made itself; another
    commit may have followed it."""

    class Retrying(FaultyStore):
        def put_new(self, key: str, data: Buffer) -> str:
            store.put_new(key, bytes(data))
            if not key.startswith(layout.CATALOG):
                return ""
            for n in range(others):
                commit(store, open_newest(store, archive.info.id), label(f"other {n}"), AUTHOR)
            raise AlreadyExistsError(key)

    archive, _ = committed(store, 1, None)
    calls: list[int] = []

    def operation(state: State) -> State:
        calls.append(state.number)
        return next_number(state)

    done = commit(Retrying(store), archive.committed, operation, AUTHOR)
    assert (done.state.number, done.state.next_point) == (archive.state.number + 1, 3)
    assert calls == [archive.state.number]
    newest = open_archive(store).state
    assert (newest.number, newest.next_point) == (done.state.number + others, 3)


def test_a_commit_stands_without_its_hint(store: FaultyStore) -> None:
    archive, _ = committed(store, 1, None)
    store.faults.append(down("put", layout.LATEST))
    done = commit(store, archive.committed, label("a"), AUTHOR)
    assert open_archive(store).state.number == done.state.number


def test_tables_are_written_before_the_catalog_that_refers_to_them(store: FaultyStore) -> None:
    committed(store, 1, None, write(store, target(), range(9)), [state((0, 0, 9), number=1)])
    store.faults.append(down("put_new", "tables/*"))
    with pytest.raises(UnreachableError):
        committed(store, 2, 1, write(store, target(), range(9, 12)), [state((0, 0, 12), number=2)])
    assert [p.number for p in open_archive(store).restore_points] == [1]
    store.faults.clear()
    committed(store, 2, 1, write(store, target(), range(12, 15)), [state((0, 0, 15), number=2)])
    assert [p.number for p in open_archive(store).restore_points] == [1, 2]


def test_a_run_that_only_began_leaves_nothing_to_take_over(store: FaultyStore) -> None:
    with writing(store) as run:
        run.archive.store.put(layout.point_key(1, run.run, layout.GROUPS), b"whatever")
        run.end()
        assert open_archive(store).state.open_run is None
    assert not open_archive(store).restore_points


# A restore point is not made of segments that its directory lacks.


def test_a_segment_that_is_not_in_the_directory_ends_the_commit(tmp_path: Path) -> None:
    """A task may have written it to the disk of another machine."""
    store = FileStore(tmp_path)
    first, second = write(store, target(threshold=200), range(8))[:2]
    check_written(store, [first, second])
    (tmp_path / second.key).write_bytes(b"short")
    with pytest.raises(StoreError, match=f"{second.key} has 5 bytes, not {second.stored}"):
        check_written(store, [first, second])
    (tmp_path / second.key).unlink()
    with pytest.raises(StoreError, match=f"{second.key} is not there"):
        check_written(store, [first, second])


def test_an_encrypted_segment_has_the_size_of_its_plain_bytes(tmp_path: Path) -> None:
    store = Stores(tmp_path).store
    check_written(store, write(store, target(), range(8)))


# Derived files follow from the restore point that a run committed.


def test_derived_files_follow_from_the_restore_point(store: FaultyStore) -> None:
    spare = write(store, target(1)._replace(spare=1), range(4))  # an orphan had the plain name
    first = write(store, target(), range(10)) + spare
    topics = [state((0, 0, 10), (1, 0, 4), (2, 0, 0), number=1)]
    archive, _ = committed(store, 1, None, first, topics, {"g": 7, "h": 0})
    names = _index(store, 0)
    assert names == [(layout.segment_stem(0, s.first), s.first) for s in first if s.partition == 0]
    assert len(names) > 1
    assert _index(store, 1) == [(layout.stem_of(s.key), s.first) for s in spare]
    assert _index(store, 2) == []
    assert json.loads(store.get(f"topics/{TOPIC}/consumer_offsets_partition_000")) == {"g": 7, "h": 0}
    assert json.loads(store.get(f"topics/{TOPIC}/consumer_offsets_partition_001")) == {}
    mark = load(Derived, store.get(layout.DERIVED), layout.DERIVED)
    assert mark.catalog == archive.state.number


def test_only_what_was_touched_is_written_again(store: FaultyStore) -> None:
    first = write(store, target(), range(10)) + write(store, target(1), range(4))
    committed(store, 1, None, first, [state((0, 0, 10), (1, 0, 4), number=1)])
    second = write(store, target(1), range(4, 9))
    store.calls.clear()
    committed(store, 2, 1, second, [state((0, 0, 10), (1, 0, 9), number=2)])
    written = [key for operation, key in store.calls if operation == "put"]
    assert [key for key in written if "/index_" in key] == [f"topics/{TOPIC}/index_partition_001"]
    assert [start for _, start in _index(store, 1)] == [s.first for s in [*first, *second] if s.partition == 1]
    assert written[-1] == layout.DERIVED, "said last, when all is done"


def test_group_files_that_did_not_change_are_left_alone(store: FaultyStore) -> None:
    first = write(store, target(), range(10))
    topics = [state((0, 0, 10), (1, 0, 0), number=1)]
    committed(store, 1, None, first, topics, {"g": 7})
    store.calls.clear()
    committed(store, 2, 1, [], topics, {"g": 9})
    written = [key for operation, key in store.calls if operation == "put" and key.startswith(layout.TOPICS)]
    assert written == [], "the topic was not captured again"
    store.calls.clear()
    committed(store, 3, 2, [], [state((0, 0, 10), (1, 0, 0), number=3)], {"g": 9})
    written = [key for operation, key in store.calls if operation == "put" and key.startswith(layout.TOPICS)]
    assert f"topics/{TOPIC}/consumer_offsets_partition_000" in written
    assert not [key for key in written if "/index_" in key]
    assert json.loads(store.get(f"topics/{TOPIC}/consumer_offsets_partition_000")) == {"g": 9}
    store.calls.clear()
    committed(store, 4, 3, [], [state((0, 0, 10), (1, 0, 0), (2, 0, 0), number=4)], {"g": 9})
    written = [key for operation, key in store.calls if operation == "put" and key.startswith(layout.TOPICS)]
    files = [f"topics/{TOPIC}/{name}_partition_002" for name in ("consumer_offsets", "index")]
    assert sorted(written) == files, "captured again, with the same groups"


def test_derived_files_that_a_crash_left_behind_are_written_by_the_next_run(store: FaultyStore) -> None:
    committed(store, 1, None, write(store, target(), range(10)), [state((0, 0, 10), number=1)])
    store.faults.append(down("put", "topics/*"))
    with pytest.raises(UnreachableError):
        committed(store, 2, 1, write(store, target(), range(10, 19)), [state((0, 0, 19), number=2)])
    store.faults.clear()
    assert [p.number for p in open_archive(store).restore_points] == [1, 2]
    assert _index(store, 0)[-1][1] < 10
    with HeldLease(store, "kbackup test", 60) as lease:
        begin_writing(store, lease, "backup")
    archive = open_archive(store)
    assert [start for _, start in _index(store, 0)] == [s.first for s in archive.added(0, 2)]


def test_without_the_lease_no_derived_file_is_written(store: FaultyStore) -> None:
    def lost() -> None:
        raise LeaseLostError("it is lost", "")

    archive, _ = committed(store, 1, None, write(store, target(), range(9)), [state((0, 0, 9), number=1)])
    store.delete([layout.DERIVED])
    before = [(e.key, e.etag) for e in store.list()]
    with pytest.raises(LeaseLostError):
        refresh_derived(Archive(GuardedStore(store, lost), archive.info, archive.committed))
    assert [(e.key, e.etag) for e in store.list()] == before


def _index(store: FaultyStore, partition: int) -> list[tuple[str, int]]:
    key = f"topics/{TOPIC}/index_partition_{partition:03d}"
    return [(entry.name, entry.start_offset) for entry in decode_partition_index(store.get(key), key)]
