"""The commit of a catalog: beside other writers, on a store that fails, and its tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

from kbackup.archive import layout
from kbackup.archive.catalog.commit import FAR, Author, Committed, commit, open_later, open_newest, read_catalog
from kbackup.archive.catalog.copies import without_expired
from kbackup.archive.catalog.documents import Catalog, Derived
from kbackup.archive.catalog.operations import add_point, begin_run, end_run, label_point, pin_points
from kbackup.archive.catalog.points import list_points
from kbackup.archive.catalog.retention import expire_points, expire_records, undo_expiration
from kbackup.archive.catalog.state import SCHEMAS, State
from kbackup.archive.catalog.tables import SEGMENTS, Rows
from kbackup.archive.derived import refresh_derived
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import load
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.run import WritingRun, begin_writing, check_written, open_or_create
from kbackup.errors import (
    AlreadyExistsError,
    CorruptError,
    LeaseLostError,
    NotFoundError,
    OutcomeUnknownError,
    StoreError,
    UnreachableError,
    UsageError,
)
from kbackup.formats.index import decode_partition_index
from kbackup.library.reading import ArchiveReader
from kbackup.store.base import Buffer, Store
from kbackup.store.file import FileStore
from kbackup.store.wrappers import GuardedStore
from tests.support.exhaustive import sample
from tests.support.faulty_store import Fault, FaultyStore, down, lost_answer
from tests.support.key_files import Stores
from tests.support.made_segments import TOPIC, a_segment, committed, state, target, write
from tests.support.memory_store import MemoryStore
from tests.unit.archive.catalog.rows import ARCHIVE, grown, new_point, open_run, point, table

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
        with pytest.raises(LeaseLostError, match="another writer has ended this run"):
            first.commit(ending(first), "backup", "too late")
        assert open_archive(store).state.next_point == 1
        second.commit(ending(second), "backup", "in time")
        with pytest.raises(LeaseLostError, match="another writer has ended this run"):
            first.commit(ending(first), "backup", "still too late")
        with writing(store) as third:
            assert not third.interrupted, "there is nothing left to take over"
    assert open_archive(store).state.next_point == 2


class Overtaken(FaultyStore):
    """`Store`; just before the first catalog is created, somebody else is at work."""

    def __init__(self, inner: Store, meanwhile: Callable[[], object]) -> None:
        super().__init__(inner)
        self.meanwhile: Callable[[], object] | None = meanwhile

    def put_new(self, key: str, data: Buffer) -> str:
        meanwhile = self.meanwhile
        if meanwhile is not None and layout.parse_catalog_key(key) is not None:
            self.meanwhile = None
            meanwhile()
        return super().put_new(key, data)


def test_commit_just_before_the_fence_stays(store: FaultyStore) -> None:
    """The run that is fenced off commits just before the fence; the fence goes on from its catalog."""
    with writing(store) as first:
        slow = Overtaken(store, lambda: first.commit(ending(first), "backup", "in time"))
        with HeldLease(slow, "kbackup test", 60) as lease:
            second = begin_writing(slow, lease, "backup")
    assert slow.meanwhile is None
    assert second.archive.state.next_point == 2
    newest = open_archive(store).state.number
    assert newest == second.archive.state.number == first.archive.state.number + 1


def test_an_operation_that_changes_nothing_writes_nothing(store: FaultyStore) -> None:
    archive, _ = committed(store, 1)
    before = {e.key: e.etag for e in store.list()}
    done = commit(store, archive.committed, lambda s: label_point(s, "a", None) if s.labels else s, AUTHOR)
    assert done is archive.committed
    assert {e.key: e.etag for e in store.list()} == before


def test_an_operation_that_refuses_writes_nothing(store: FaultyStore) -> None:
    archive, _ = committed(store, 1)
    before = {e.key: e.etag for e in store.list()}
    with pytest.raises(UsageError, match="restore point 7 does not exist"):
        commit(store, archive.committed, lambda s: label_point(s, "a", 7), AUTHOR)
    assert {e.key: e.etag for e in store.list()} == before


def label(name: str) -> Callable[[State], State]:
    return lambda state: label_point(state, name, 1)


def test_of_two_commits_at_once_none_is_lost(store: FaultyStore) -> None:
    archive, _ = committed(store, 1)
    first = commit(store, archive.committed, label("a"), AUTHOR)
    second = commit(store, archive.committed, label("b"), AUTHOR)
    assert second.state.number == first.state.number + 1
    assert open_archive(store).state.labels == {"a": 1, "b": 1}
    assert second.catalog is not None
    assert first.catalog is not None
    assert second.catalog.previous is not None
    assert second.catalog.previous.checksum == first.catalog.checksum


def test_a_commit_that_is_never_the_first_gives_up(store: FaultyStore) -> None:
    archive, _ = committed(store, 1)

    def overtaken(state: State) -> State:
        commit(store, Committed(state, None), lambda s: label_point(s, f"l{s.number}", 1), AUTHOR)
        return pin_points(state, [1], "2026-01-01T00:00:00.000Z")

    with pytest.raises(StoreError, match="changed during each of 100 commits"):
        commit(store, archive.committed, overtaken, AUTHOR)
    assert open_archive(store).state.pins == {}


def test_a_commit_whose_answer_is_lost_is_not_called_a_success(store: FaultyStore) -> None:
    archive, _ = committed(store, 1)
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
                commit(store, open_newest(store, archive.info.id), label(f"other-{n}"), AUTHOR)
            raise AlreadyExistsError(key)

    archive, _ = committed(store, 1)
    calls: list[int] = []

    def operation(state: State) -> State:
        calls.append(state.number)
        return next_number(state)

    done = commit(Retrying(store), archive.committed, operation, AUTHOR)
    assert (done.state.number, done.state.next_point) == (archive.state.number + 1, 3)
    assert calls == [archive.state.number]
    newest = open_archive(store).state
    assert (newest.number, newest.next_point) == (done.state.number + others, 3)


@pytest.mark.parametrize("fault", [down, lost_answer])
def test_a_commit_stands_without_its_hint(fault: Callable[..., Fault], store: FaultyStore) -> None:
    archive, _ = committed(store, 1)
    store.faults.append(fault("put", layout.LATEST))
    done = commit(store, archive.committed, label("a"), AUTHOR)
    assert open_archive(store).state.number == done.state.number


def test_tables_are_written_before_the_catalog_that_refers_to_them(store: FaultyStore) -> None:
    committed(store, 1, segments=write(store, target(), range(9)), topics=[state((0, 0, 9), number=1)])
    store.faults.append(down("put_new", "tables/*"))
    with pytest.raises(UnreachableError):
        committed(store, 2, segments=write(store, target(), range(9, 12)), topics=[state((0, 0, 12), number=2)])
    assert [p.number for p in open_archive(store).restore_points] == [1]
    store.faults.clear()
    committed(store, 2, segments=write(store, target(), range(12, 15)), topics=[state((0, 0, 15), number=2)])
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
    extra_zeros = write(store, target(1)._replace(extra_zeros=1), range(4))  # an orphan had the plain name
    first = write(store, target(), range(10)) + extra_zeros
    topics = [state((0, 0, 10), (1, 0, 4), (2, 0, 0), number=1)]
    archive, _ = committed(store, 1, segments=first, topics=topics, offsets={"g": 7, "h": 0, "share": 3})
    names = _index(store, 0)
    assert names == [(layout.segment_stem(0, s.first), s.first) for s in first if s.partition == 0]
    assert len(names) > 1
    assert _index(store, 1) == [(layout.stem_of(s.key), s.first) for s in extra_zeros]
    assert _index(store, 2) == []
    assert json.loads(store.get(f"topics/{TOPIC}/consumer_offsets_partition_000")) == {"g": 7, "h": 0}
    assert json.loads(store.get(f"topics/{TOPIC}/consumer_offsets_partition_001")) == {}
    mark = load(Derived, store.get(layout.DERIVED), layout.DERIVED)
    assert mark.catalog == archive.state.number


def test_only_what_was_touched_is_written_again(store: FaultyStore) -> None:
    first = write(store, target(), range(10)) + write(store, target(1), range(4))
    committed(store, 1, segments=first, topics=[state((0, 0, 10), (1, 0, 4), number=1)])
    second = write(store, target(1), range(4, 9))
    store.calls.clear()
    committed(store, 2, segments=second, topics=[state((0, 0, 10), (1, 0, 9), number=2)])
    written = [key for operation, key in store.calls if operation == "put"]
    assert [key for key in written if "/index_" in key] == [f"topics/{TOPIC}/index_partition_001"]
    assert [start for _, start in _index(store, 1)] == [s.first for s in [*first, *second] if s.partition == 1]
    assert written[-1] == layout.DERIVED, "said last, when all is done"


def test_group_files_that_did_not_change_are_left_alone(store: FaultyStore) -> None:
    first = write(store, target(), range(10))
    topics = [state((0, 0, 10), (1, 0, 0), number=1)]
    committed(store, 1, segments=first, topics=topics, offsets={"g": 7})
    store.calls.clear()
    committed(store, 2, segments=[], topics=topics, offsets={"g": 9})
    written = [key for operation, key in store.calls if operation == "put" and key.startswith(layout.TOPICS)]
    assert written == [], "the topic was not captured again"
    store.calls.clear()
    committed(store, 3, segments=[], topics=[state((0, 0, 10), (1, 0, 0), number=3)], offsets={"g": 9})
    written = [key for operation, key in store.calls if operation == "put" and key.startswith(layout.TOPICS)]
    assert f"topics/{TOPIC}/consumer_offsets_partition_000" in written
    assert not [key for key in written if "/index_" in key]
    assert json.loads(store.get(f"topics/{TOPIC}/consumer_offsets_partition_000")) == {"g": 9}
    store.calls.clear()
    committed(store, 4, segments=[], topics=[state((0, 0, 10), (1, 0, 0), (2, 0, 0), number=4)], offsets={"g": 9})
    written = [key for operation, key in store.calls if operation == "put" and key.startswith(layout.TOPICS)]
    files = [f"topics/{TOPIC}/{name}_partition_002" for name in ("consumer_offsets", "index")]
    assert sorted(written) == files, "captured again, with the same groups"


def test_derived_files_that_a_crash_left_behind_are_written_by_the_next_run(store: FaultyStore) -> None:
    committed(store, 1, segments=write(store, target(), range(10)), topics=[state((0, 0, 10), number=1)])
    store.faults.append(down("put", "topics/*"))
    with pytest.raises(UnreachableError):
        committed(store, 2, segments=write(store, target(), range(10, 19)), topics=[state((0, 0, 19), number=2)])
    store.faults.clear()
    assert [p.number for p in open_archive(store).restore_points] == [1, 2]
    assert [start for _, start in _index(store, 0) if start >= 10] == []
    with HeldLease(store, "kbackup test", 60) as lease:
        begin_writing(store, lease, "backup")
    archive = open_archive(store)
    assert [start for _, start in _index(store, 0)] == [s.first for s in archive.added(0, 2)]


def test_without_the_lease_no_derived_file_is_written(store: FaultyStore) -> None:
    def lost() -> None:
        raise LeaseLostError("it is lost", "")

    archive, _ = committed(store, 1, segments=write(store, target(), range(9)), topics=[state((0, 0, 9), number=1)])
    store.delete([layout.DERIVED])
    before = [(e.key, e.etag) for e in store.list()]
    with pytest.raises(LeaseLostError):
        refresh_derived(Archive(GuardedStore(store, lost), archive.info, archive.committed))
    assert [(e.key, e.etag) for e in store.list()] == before


def _index(store: FaultyStore, partition: int) -> list[tuple[str, int]]:
    key = f"topics/{TOPIC}/index_partition_{partition:03d}"
    return [(entry.name, entry.start_offset) for entry in decode_partition_index(store.get(key), key)]


def grown_archive(points: int = 3) -> MemoryStore:
    store = MemoryStore()
    commit(store, Committed(State(ARCHIVE), None), lambda _: grown(points), AUTHOR)
    return store


def test_committed_state_is_opened() -> None:
    state = open_newest(grown_archive(), ARCHIVE).state
    expected = grown(3)
    assert state.number == 1
    assert state.restore_points == expected.restore_points
    assert {name: rows.dicts() for name, rows in state.tables().items()} == {
        name: rows.dicts() for name, rows in expected.tables().items()
    }
    assert state.open_run == expected.open_run


def test_an_open_archive_looks_for_a_newer_catalog_by_one_list() -> None:
    store = grown_archive()
    opened = open_newest(store, ARCHIVE)
    store.requests.clear()
    assert open_later(store, opened) is opened
    assert store.requests == {"LIST": 1}


def test_an_open_archive_reads_a_newer_catalog_alone() -> None:
    store = grown_archive()
    opened = open_newest(store, ARCHIVE)
    newer = commit(store, opened, label("a"), AUTHOR)
    store.requests.clear()
    assert open_later(store, opened).state.number == newer.state.number
    assert store.requests == {"LIST": 1, "GET": 1}, "not latest.json, nor a table"


def test_an_archive_that_was_open_without_a_catalog_gets_its_first_one() -> None:
    assert open_later(grown_archive(), Committed(State(ARCHIVE), None)).state.number == 1


def test_an_open_archive_finds_the_newest_catalog_after_a_sweep_of_its_own() -> None:
    store = grown_archive()
    opened = open_newest(store, ARCHIVE)
    newer = commit(store, opened, label("a"), AUTHOR)
    store.delete([layout.catalog_key(opened.state.number)])
    assert open_later(store, opened).state.number == newer.state.number


def test_an_open_archive_does_not_go_back() -> None:
    store = grown_archive()
    opened = open_newest(store, ARCHIVE)
    newer = commit(store, opened, label("a"), AUTHOR)
    store.delete([layout.catalog_key(newer.state.number)])
    with pytest.raises(CorruptError, match=r"latest\.json names it"):
        open_later(store, newer)


@pytest.mark.parametrize(("number", "is_given"), [(1 + FAR, True), (2 + FAR, False)])
def test_an_unreadable_catalog_counts_unless_no_run_gave_it_its_number(number: int, is_given: bool) -> None:
    store = grown_archive()
    store.put_new(layout.catalog_key(number), b"junk")
    if is_given:
        with pytest.raises(CorruptError, match=layout.catalog_key(number)):
            open_newest(store, ARCHIVE)
    else:
        assert open_newest(store, ARCHIVE).state.number == 1


def test_a_commit_counts_though_an_object_has_a_number_that_no_run_gave() -> None:
    store = grown_archive()
    store.put_new(layout.catalog_key(2 * FAR), b"junk")
    made = commit(store, open_newest(store, ARCHIVE), next_number, AUTHOR)
    assert made.state.number == open_newest(store, ARCHIVE).state.number == 2, "it is not committed once more"


def test_a_refusal_on_the_newer_state_writes_no_catalog() -> None:
    store = grown_archive()
    old = open_newest(store, ARCHIVE)
    commit(store, old, label("a"), AUTHOR)
    base = commit(store, old, label("b"), AUTHOR)
    commit(store, base, lambda state: label_point(state, "a", None), AUTHOR)
    with pytest.raises(UsageError):
        commit(store, base, lambda state: label_point(state, "a", None), AUTHOR)
    assert open_newest(store, ARCHIVE).state.number == 4


def test_each_table_that_is_missing_or_altered_is_named() -> None:
    store = grown_archive()
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
    store = FaultyStore(grown_archive())
    commit(store, open_newest(store, ARCHIVE), lambda _: replace(grown(5), number=1), AUTHOR)
    keys = [key for operation, key in store.calls if operation == "put_new"]
    assert [key for key in keys if key.startswith(layout.CATALOG)] == keys[-1:]
    catalog = load(Catalog, store.get(keys[-1]), keys[-1])
    assert {ref.key for name in catalog.tables.__struct_fields__ for ref in getattr(catalog.tables, name)} == {
        *keys[:-1]
    }


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
    one = table([a_segment("t", 0, 9)])
    added = one.append_column(SEGMENTS.field("point"), [[1]])
    life = {"topic": "t", "incarnation": 1, "topic_id": "id", "first": 1, "last": None, "retired": False}
    state = replace(
        state, segments=Rows(SEGMENTS).append(added), incarnations=Rows(SCHEMAS["incarnations"]).append([life])
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
        read_catalog(grown_archive(), 7, ARCHIVE)


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


# Operations on archives of many topics take steps in proportion to the topics, counted by calls of functions.


FEW, MANY = 40, 160


def grown_linear(topics: int, points: int) -> State:
    """An archive of restore points that each have two more records of every topic."""
    state = begin_run(State(ARCHIVE), open_run("r"))
    for number in range(1, points + 1):
        new = [a_segment(f"t{n}", 2 * number - 2, 2 * number - 1) for n in range(topics)]
        names = {(f"t{n}", 1): f"id {n}" for n in range(topics)}
        state = add_point(state, *new_point(number, new, names))
    return state


def expired(state: State, topics: int) -> State:
    return expire_records(state, {(f"t{n}", 1, 0): 2 for n in range(topics)})


def of_copy(topics: int) -> Callable[[], State]:
    state = grown_linear(topics, 2)
    copy = expired(state, topics)
    return lambda: without_expired(state, copy)


def of_undo(topics: int) -> Callable[[], State]:
    before = replace(grown_linear(topics, 2), number=1)
    after = expire_points(before, [1])
    return lambda: undo_expiration(after, before, after)


def calls(work: Callable[[], State]) -> int:
    count = 0

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    work()  # what is read once is read
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("prepare", [of_copy, of_undo])
def test_steps_grow_with_topics(prepare: Callable[[int], Callable[[], State]]) -> None:
    few, many = calls(prepare(FEW)), calls(prepare(MANY))
    assert many < 1.5 * few * MANY / FEW, f"{few} calls for {FEW} topics, {many} for {MANY}: not in proportion"


# Count the requests that opening an archive makes where every table has as many chunks as there can be.


_CHUNKS, _POINTS = 3, 3
_MOST = 8


@pytest.fixture
def chunked() -> MemoryStore:
    """Restore points of one topic in an archive whose tables have three chunks each."""
    store = MemoryStore()
    for number in range(1, _POINTS + 1):
        segments = write(store, target(), range(10 * number - 10, 10 * number))
        topics = [state((0, 0, 10 * number), number=number)]
        archive, _ = committed(store, number, segments=segments, topics=topics)
    commit(store, archive.committed, _in_chunks, Author("label", "", "test"))
    return store


def _in_chunks(whole: State) -> State:
    tables: dict[str, Any] = {name: _three(name, rows) for name, rows in whole.tables().items()}
    return replace(whole, **tables)


def _three(name: str, rows: Rows) -> Rows:
    """The rows, or some of another topic where there are too few, in three chunks."""
    table = rows.read()
    if len(table) < _CHUNKS:
        table = pa.concat_tables([table, *[_other(name)] * (_CHUNKS - len(table))])
    ends = [0, *range(1, _CHUNKS), len(table)]
    parts = [Rows(rows.schema).append(table.slice(a, b - a)) for a, b in pairwise(ends)]
    return Rows(rows.schema, tuple(chunk for part in parts for chunk in part.chunks))


def _other(name: str) -> pa.Table:
    """A row that concerns nothing that the restore points have."""
    values: dict[str, object] = {"string": "x", "int32": 9, "int64": 9, "bool": True}
    row = {field.name: None if field.nullable else values[str(field.type)] for field in SCHEMAS[name]}
    return pa.Table.from_pylist([row], schema=SCHEMAS[name])


def _asked(store: MemoryStore, archive: Archive) -> int:
    assert all(len(rows.chunks) == _CHUNKS for rows in archive.state.tables().values())
    return sum(store.requests.values())


def test_opening_reads_one_table(chunked: MemoryStore) -> None:
    chunked.requests.clear()
    archive = open_archive(chunked)
    assert archive.restore_point("latest").number == _POINTS
    assert _asked(chunked, archive) == _MOST


def test_each_further_question_reads_the_tables_that_it_needs(chunked: MemoryStore) -> None:
    archive = open_archive(chunked)
    head = archive.restore_point("latest")
    chunked.requests.clear()
    assert sum(segment.count for segment in archive.segments(head)) == 10 * _POINTS
    assert _asked(chunked, archive) <= 2 * _CHUNKS, "segments and log starts"
    again = chunked.requests.total()
    archive.segments(head)
    assert chunked.requests.total() == again, "a table is read once"


def test_list_and_info_are_bounded_as_well(chunked: MemoryStore) -> None:
    chunked.requests.clear()
    assert len(list_points(open_archive(chunked).state)) == _POINTS
    listing = chunked.requests.total()
    assert listing <= _MOST - 1 + 2 * _CHUNKS, "and incarnations and losses, for what is damaged"
    chunked.requests.clear()
    assert ArchiveReader(chunked, "latest").overview().restore_point == _POINTS
    assert chunked.requests.total() <= _MOST + 2 + len(SCHEMAS) * _CHUNKS
