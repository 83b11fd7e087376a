"""The archive's own code as actors whose steps are calls of one store in memory, and a checker of interleavings."""

from __future__ import annotations

import builtins
import hashlib
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import numpy as np
import pyarrow as pa
from greenlet import GreenletExit, getcurrent, greenlet

from kbackup.archive import layout
from kbackup.archive import reader as readers
from kbackup.archive import run as runs
from kbackup.archive.catalog import commit as commits
from kbackup.archive.catalog import sweep, tables
from kbackup.archive.catalog.commit import Author, commit, open_catalog, read_catalog
from kbackup.archive.catalog.copies import follow_source
from kbackup.archive.catalog.documents import Derived, Link, Origin
from kbackup.archive.catalog.merging import (
    Merge,
    MergeSizes,
    begin_merge,
    check_may_rewrite,
    merge_segments,
    plan_merges,
)
from kbackup.archive.catalog.operations import add_point, end_run, may_salvage
from kbackup.archive.catalog.retention import expire_points
from kbackup.archive.catalog.rewriting import NOTHING_ERASED, Swap, erase_segments
from kbackup.archive.catalog.state import State
from kbackup.archive.catalog.sweep import (
    commit_sweep,
    commit_undo,
    delete_orphans,
    find_orphans,
    last_expiration,
    referred_keys,
    undoable_points,
)
from kbackup.archive.catalog.tables import encode
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import Groups, Manifest, Metadata, PartitionState, TopicState, dump, load
from kbackup.archive.reader import Archive, open_archive, refuse_if_swept
from kbackup.archive.run import TOOL, WritingRun, begin_writing, open_or_create, put_capture, put_manifest, totals_of
from kbackup.archive.segments.read import crc_of
from kbackup.archive.segments.table import Segment, decode_table, in_table
from kbackup.errors import AlreadyExistsError, KbackupError, NotFoundError, RefusedError
from kbackup.store.base import Buffer, Failed, ObjectInfo, Store
from tests.support.made_segments import a_segment
from tests.support.memory_store import MemoryStore

Actor = Callable[["SteppedStore"], object]
Visible = Callable[[str, str], bool]
"""Tell whether a call (method, key) is a step. Calls that no other actor can observe or disturb need not be."""


class SteppedStore(MemoryStore):
    """A store whose calls hand over to the scheduler first, inside of an actor."""

    scheduler: Scheduler | None = None

    def _step(self, method: str, key: str, call: Callable[[], Any]) -> Any:
        actor = getcurrent()
        if self.scheduler is None or not isinstance(actor, SteppedActor):
            return call()
        if self.scheduler.visible(method, key):
            self.scheduler.main.switch()
        try:
            answer = call()
        except KbackupError as error:
            actor.told(method, key, type(error).__name__)
            raise
        actor.told(method, key, answer)
        return answer

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        return self._step("get", key, lambda: super(SteppedStore, self).get_with_etag(key))  # type: ignore[no-any-return]

    def stat(self, key: str) -> ObjectInfo:
        return self._step("stat", key, lambda: super(SteppedStore, self).stat(key))  # type: ignore[no-any-return]

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
        page = self._step("list", prefix, lambda: [*super(SteppedStore, self).list(prefix, start_after)])
        return iter(page)

    def put(self, key: str, data: Buffer) -> str:
        return self._step("put", key, lambda: super(SteppedStore, self).put(key, data))  # type: ignore[no-any-return]

    def put_new(self, key: str, data: Buffer) -> str:
        return self._step("put_new", key, lambda: super(SteppedStore, self).put_new(key, data))  # type: ignore[no-any-return]

    def delete(self, keys: Iterable[str]) -> builtins.list[Failed]:
        """A step a key: a process may die between any two."""
        failed: builtins.list[Failed] = []
        for key in keys:
            failed += self._step("delete", key, lambda k=key: super(SteppedStore, self).delete([k]))  # type: ignore[misc]
        return failed

    @classmethod
    def of(cls, store: MemoryStore, clock: Callable[[], float]) -> SteppedStore:
        """A copy of `store`, whose next objects have the times of `clock`."""
        made = cls("memory://stepped", clock)
        made._objects, made._keys = dict(store._objects), [*store._keys]
        return made

    def content(self) -> int:
        return hash(frozenset((k, bytes(o.data), o.modified) for k, o in self._objects.items()))


class SteppedActor(greenlet):  # type: ignore[misc]  # greenlet has no types
    def __init__(self, name: str, work: Callable[[], object]) -> None:
        super().__init__(self._body)
        self.name, self.work = name, work
        self.numbers = 0
        self.answers = 0
        self.error: BaseException | None = None

    def _body(self) -> None:
        try:
            self.work()
        except KbackupError as error:
            self.error = error

    def told(self, method: str, key: str, answer: object) -> None:
        self.answers = hash((self.answers, method, key, _value(answer)))


def _value(answer: object) -> object:
    """Without etags, which count the writes of a store."""
    if isinstance(answer, ObjectInfo):
        return answer.key, answer.size, answer.modified
    if isinstance(answer, builtins.list):
        return tuple(map(_value, answer))
    return answer[0] if isinstance(answer, tuple) else None if isinstance(answer, str) else answer


class Scheduler:
    """One execution: actors that wait for their next step."""

    def __init__(self, store: SteppedStore, actors: Sequence[Actor], visible: Visible) -> None:
        self.store, self.visible = store, visible
        self.main = getcurrent()
        store.scheduler = self
        self.actors = [SteppedActor(f"{n}", lambda work=work: work(store)) for n, work in enumerate(actors)]  # type: ignore[misc]
        for actor in self.actors:
            actor.switch()  # up to its first step

    def step(self, number: int) -> None:
        self.actors[number].switch()

    def waiting(self) -> builtins.list[int]:
        return [n for n, actor in enumerate(self.actors) if not actor.dead]

    def position(self) -> tuple[object, ...]:
        return (self.store.content(), *((a.answers, a.dead) for a in self.actors))

    def ends(self) -> tuple[str, ...]:
        """Return how each actor ended: the class of its error, or ''."""
        return tuple(type(a.error).__name__ if a.error else "" for a in self.actors)

    def close(self) -> None:
        self.store.scheduler = None
        for actor in self.actors:
            if not actor.dead:
                actor.throw(GreenletExit)


# Tokens, times and threads that make executions repeat.


def _one_by_one(function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    return [function(item) for item in items]


_files: dict[object, Any] = {}
"""Parquet files of tables, and tables of files: they are the same in a thousand executions."""


def _encode(rows: pa.Table) -> bytes:
    key = (str(rows.schema), str(rows.to_pydict()))
    if key not in _files:
        _files[key] = encode(rows)
    return _files[key]  # type: ignore[no-any-return]


def _decode(
    data: bytes, name: str, schema: pa.Schema, columns: Sequence[str] | None, rows: int, topics: Collection[str] | None
) -> pa.Table:
    key = (data, name, columns and (*columns,), rows, topics and frozenset(topics))
    if key not in _files:
        _files[key] = decode_table(data, name, schema, columns, rows, topics)
    return _files[key]  # type: ignore[no-any-return]


def _mark_derived(archive: Archive, _write: object) -> None:
    mark = Derived(archive_id=archive.info.id, catalog=archive.state.number)
    archive.store.put(layout.DERIVED, dump(mark))


_outside = [0]


def _uuid4() -> SimpleNamespace:
    actor = getcurrent()
    if isinstance(actor, SteppedActor):
        actor.numbers += 1
        text = f"{actor.name}:{actor.numbers}"
    else:
        _outside[0] += 1
        text = f"outside:{_outside[0]}"
    return SimpleNamespace(hex=hashlib.md5(text.encode(), usedforsecurity=False).hexdigest())


@contextmanager
def repeatable() -> Iterator[None]:
    """Tokens, times and threads of the archive's code as executions need them. Of the derived files `derived.json` is
    written alone: the others follow from the catalog that it names."""
    uuids = SimpleNamespace(uuid4=_uuid4)
    with (
        mock.patch.object(runs, "uuid", uuids),
        mock.patch.object(commits, "uuid", uuids),
        mock.patch.object(runs, "now", return_value="2026-01-01T00:00:00.000Z"),
        mock.patch.object(commits, "now", return_value="2026-01-01T00:00:00.000Z"),
        mock.patch.object(runs, "refresh_derived", _mark_derived),
        mock.patch.object(tables, "encode", _encode),
        mock.patch.object(tables, "decode_table", _decode),
        mock.patch.object(readers, "in_threads", _one_by_one),
        mock.patch.object(sweep, "in_threads", _one_by_one),
    ):
        yield


# A checker of interleavings: the archive's own code as actors whose steps are calls of one store in memory.
# An execution replays a schedule: which actor makes the next call. From each state every actor is tried. A state is the
# store's content, with what each actor was answered so far: an actor's future follows from these, so a state that was
# visited is not explored again. Actors that are never scheduled again are those that crashed: the invariants and the
# epilogue (later runs, a sweep) are checked in every state, which is a crash of every actor at every step.
# Random tokens are numbered by actor, so that executions repeat. Thread pools work one call after the other.


@dataclass
class Report:
    """`interleavings` are complete schedules that the visited states stand for."""

    complete: bool = False
    """True where every schedule was explored; else those with the most changes of actor remain."""
    executions: int = 0
    states: int = 0
    interleavings: int = 0
    seconds: float = 0.0
    ends: set[tuple[str, ...]] = field(default_factory=set)
    """The ends of the actors, each time that all had ended: the class of an error, or ''."""

    def __str__(self) -> str:
        return (
            f"{self.interleavings} interleavings, {self.states} states, {self.executions} executions, "
            f"{self.seconds:.1f} s, {'all' if self.complete else 'bounded'}"
        )


class ViolationError(AssertionError):
    """An invariant does not hold after `schedule`."""

    def __init__(self, schedule: Sequence[int], why: object) -> None:
        super().__init__(f"{why}\nafter steps of actors {''.join(map(str, schedule))}")


@dataclass
class StateChecker:
    """Check each state once, and hand a copy of it (of each one in `every`) to the epilogue."""

    check: Callable[[SteppedStore], object]
    epilogue: Callable[[MemoryStore], None]
    every: int
    passed: set[int] = field(default_factory=set)

    def check_state(self, scheduler: Scheduler, schedule: Sequence[int]) -> None:
        store, content = scheduler.store, scheduler.store.content()
        if content in self.passed:
            return
        self.passed.add(content)
        scheduler.store.scheduler = None
        try:
            self.check(store)
            if len(self.passed) % self.every == 0:
                self.epilogue(store.copy())
        except (AssertionError, KbackupError) as error:
            raise ViolationError(schedule, error) from error
        finally:
            store.scheduler = scheduler


def explore(
    make: Callable[[], tuple[SteppedStore, Sequence[Actor]]],
    check: Callable[[SteppedStore], object],
    epilogue: Callable[[MemoryStore], None] = lambda store: None,
    visible: Visible = lambda method, key: True,
    limit: int = 1_000_000,
    every: int = 1,
) -> Report:
    """Every interleaving of the actors that `make` makes beside their store. `check` reads a store in every state and
    raises; `epilogue` is handed a copy of the store of every state (of each one in `every`) and may change it."""
    report, began = Report(), time.monotonic()
    paths: dict[object, list[object]] = {}
    ended: set[object] = set()
    stack = deque[tuple[int, ...]]([()])  # schedules with the fewest changes of actor first
    checker = StateChecker(check, epilogue, every)

    with repeatable():
        while stack and report.executions < limit:
            prefix = stack.popleft()
            store, actors = make()
            scheduler = Scheduler(store, actors, visible)
            report.executions += 1
            try:
                for number in prefix[:-1]:
                    scheduler.step(number)
                schedule = [*prefix[:-1]]
                before: object = scheduler.position()
                following: int | None = prefix[-1] if prefix else None
                if following is None:
                    checker.check_state(scheduler, schedule)
                    paths[before] = []
                    stack += [(n,) for n in scheduler.waiting()]
                while following is not None:
                    schedule.append(following)
                    try:
                        scheduler.step(following)
                    except AssertionError as error:
                        raise ViolationError(schedule, error) from error
                    here = scheduler.position()
                    paths[before].append(here)
                    if here in paths:
                        break
                    paths[here] = []
                    checker.check_state(scheduler, schedule)
                    waiting = scheduler.waiting()
                    if not waiting:
                        ended.add(here)
                        report.ends.add(scheduler.ends())
                        break
                    goes_on = following if following in waiting else waiting[0]
                    stack += [(*schedule, n) for n in waiting if n != goes_on]
                    following, before = goes_on, here
            finally:
                scheduler.close()
    report.complete = not stack
    report.states = len(paths)
    report.interleavings = _count(paths, ended)
    report.seconds = time.monotonic() - began
    return report


def _count(paths: dict[object, list[object]], ended: set[object]) -> int:
    """Count the paths that lead from the first state to one where all actors have ended. Steps only go on: no path is a
    circle."""
    counts: dict[object, int] = dict.fromkeys(ended, 1)
    first = next(iter(paths))
    stack = [first]
    while stack:
        state = stack[-1]
        missing = [each for each in paths[state] if each not in counts]
        if state in counts or not missing:
            counts.setdefault(state, sum(counts[each] for each in paths[state]))
            stack.pop()
        else:
            stack += missing
    return counts[first]


AT = "2026-01-01T00:00:00.000Z"
FOLDER = layout.topic_dir("t")


class NoLease:
    """Nobody is stopped by a lease: the worst that can happen to one."""

    def check(self) -> None: ...


LEASE = cast(HeldLease, NoLease())


def segment_bytes(first: int, last: int) -> bytes:
    return f"{first}-{last}:".encode() + b"x" * (last - first + 1)


def key_of(first: int, extra_zeros: int = 0) -> str:
    return layout.records_key(FOLDER, 0, first, "none", extra_zeros)


def read_whole(store: Store, key: str) -> Segment | None:
    """A segment by its object; None where it is damaged."""
    data = store.get(key)
    try:
        first, last = map(int, data.partition(b":")[0].split(b"-"))
    except ValueError:
        return None
    if data != segment_bytes(first, last) or not layout.is_records_key(key, FOLDER, 0, first):
        return None
    return _segment(first, last, data, key)


def _segment(first: int, last: int, data: bytes, key: str) -> Segment:
    size = len(data)
    return a_segment("t", first, last, bytes=size, stored=size, largest=1, crc=crc_of(data), index_crc="", key=key)


def backup(store: Store, end: int, cut: int = 2) -> None:
    """A backup of offsets up to `end` in segments of `cut` records, as `jobs.backup`, `jobs.recover` and
    `jobs.backup_task` do it."""
    writing = begin_writing(store, LEASE, "backup")
    with refuse_if_swept(writing.archive):
        take_point(writing, end, cut)


def take_point(writing: WritingRun, end: int, cut: int) -> None:
    archive = writing.archive
    head = archive.head
    start = head.topics[0].partitions[0].end if head is not None else 0
    end = max(start, end)
    taken = _recover(writing, start, end) if writing.interrupted else []
    segments: list[Segment] = []
    at = start
    since, salvage = (lambda: writing.since), may_salvage(archive.state)
    for segment in taken:
        segments += write_segments(writing.plain, at, segment.first, cut, since, salvage)
        segments.append(segment)
        at = segment.last + 1
    segments += write_segments(writing.plain, at, end, cut, since, salvage)
    number = writing.next_point
    metadata = Metadata(captured_at=AT, cluster_id="c", brokers=1, topics=())
    own = put_capture(writing, number, AT, Groups(captured_at=AT, groups=(), not_carried={}), metadata)
    last = [*segments, *archive.segments(head)] if head is not None else segments
    partition = PartitionState(
        partition=0, start=0, end=end, log_start=0, log_end=end,
        records=sum(s.count for s in last), bytes=sum(s.bytes for s in last),
    )  # fmt: skip
    topic = TopicState(name="t", id="id", incarnation=1, captured=number, state="present", partitions=(partition,))
    manifest = Manifest(
        archive_id=writing.archive_id, number=number, run=writing.run, previous=writing.previous, tool=TOOL,
        started_at=AT, committed_at=AT, totals=totals_of(segments, topics=1, partitions=1, groups=0),
        captures=(own,), topics=(topic,),
    )  # fmt: skip
    manifest, added = put_manifest(writing, manifest), in_table(segments)

    def operation(state: State) -> State:
        return end_run(add_point(state, manifest, added), writing.run)

    writing.commit(operation, "backup", "test")
    writing.refresh_derived()


def _recover(writing: WritingRun, start: int, end: int) -> list[Segment]:
    archive = writing.archive
    store, known = archive.store, archive.keys()
    kept: list[Segment] = []
    at = start
    for entry in list(store.list(FOLDER)):
        name = layout.parse_segment(entry.key.rpartition("/")[2])
        if name is None or entry.key in known or name.start < start:
            continue
        segment = read_whole(store, entry.key) if may_salvage(archive.state) else None
        if segment is not None and segment.first >= at and segment.last < end:
            kept.append(segment)
            at = segment.last + 1
    return kept


def pass_orphan(store: Store, key: str, extra_zeros: int) -> int:
    """The extra zeros of the name beside an orphan that is of no use."""
    return extra_zeros + 1


def write_segments(
    store: Store, at: int, end: int, cut: int, since: Callable[[], float], salvage: bool = True
) -> Iterator[Segment]:
    extra_zeros = 0
    while at < end:
        last = min(at + cut, end) - 1
        data, key = segment_bytes(at, last), key_of(at, extra_zeros)
        try:
            store.put_new(key, data)
            segment = _segment(at, last, data, key)
        except AlreadyExistsError:
            own = salvage and store.stat(key).modified >= since()
            found = read_whole(store, key) if own else None
            if found is None or found.last >= end:
                extra_zeros = pass_orphan(store, key, extra_zeros)
                continue
            segment = found
        yield segment
        at = segment.last + 1


def read_newest(store: Store, name: str | int = "latest") -> None:
    """Open the archive and read a restore point byte for byte; any error is a violation."""
    try:
        archive = open_archive(store)
        read_point(archive, archive.restore_point(name))
    except Exception as error:
        raise AssertionError(f"a reader failed: {type(error).__name__}: {error}") from error


def read_point(archive: Archive, manifest: Manifest) -> None:
    for capture in manifest.captures:
        archive.read_document(capture.groups)
        archive.read_document(capture.metadata)
    partition = manifest.topics[0].partitions[0]
    at = partition.start
    for segment in archive.segments(manifest):
        assert segment.first == at, f"restore point {manifest.number} lacks offset {at}"
        data = archive.store.get(segment.key)
        assert crc_of(data) == segment.crc, f"{segment.key} has other bytes than were committed"
        at = segment.last + 1
    assert at == partition.end, f"restore point {manifest.number} lacks offsets from {at}"


def expire(store: Store, *numbers: int) -> None:
    archive = open_archive(store)

    def operation(state: State) -> State:
        return expire_points(state, [n for n in numbers if state.point(n) is not None])

    commit(store, archive.committed, operation, Author("expire", "", "test"))


def undo(store: Store) -> None:
    archive = open_archive(store)
    number = last_expiration(store, archive.committed)
    if number is not None:
        commit_undo(store, archive.committed, number)


def rewrite(store: Store) -> None:
    """As `jobs.erase` does it, for the first segment: another object of the same offsets takes its place."""
    writing = begin_writing(store, LEASE, "erase")
    head = writing.archive.head
    assert head is not None
    old = writing.archive.segments(head)[0]
    key = layout.records_key(FOLDER, 0, old.first, "none", rewrite=writing.began)
    store.put_new(key, segment_bytes(old.first, old.last))
    swap = Swap((old,), replace(old, key=key), np.empty(0, np.int64))

    def operation(state: State) -> State:
        return end_run(erase_segments(state, writing.run, writing.began, [swap]), writing.run)

    writing.commit(operation, "erase", "test")
    writing.refresh_derived()


def merge(store: Store) -> None:
    """As `jobs.rewrite` does it: one object takes the place of several, with the same offsets."""
    archive = open_archive(store)
    with refuse_if_swept(archive):
        merge_opened(archive)


def compact(store: Store) -> None:
    """As a merge of single segments, and the names say from which restore point on they have all that is needed."""
    archive = open_archive(store)
    with refuse_if_swept(archive):
        oldest = min(kept_points(archive))
        chosen = chosen_compactions(archive, oldest)
        merge_opened(archive, lambda _: chosen, oldest)


def merge_opened(archive: Archive, choose: Callable[[Archive], list[Merge]] | None = None, oldest: int = 0) -> None:
    store = archive.store
    choose = choose or chosen_merges
    check_may_rewrite(archive.state)
    if not choose(archive):
        return
    archive.move(commit(store, archive.committed, begin_merge, Author("rewrite", "", "test")))
    number, swept = archive.state.number, archive.state.swept
    swaps: list[Swap] = []
    for each in choose(archive):
        first, last = each.segments[0].first, each.segments[-1].last
        compacted = max(oldest, *(layout.compacted_of(old.key) for old in each.segments))
        key = layout.records_key(FOLDER, 0, first, "none", rewrite=number, compacted=compacted)
        data = segment_bytes(first, last)
        store.put_new(key, data)
        swaps.append(Swap(each.segments, _segment(first, last, data, key), NOTHING_ERASED))

    def operation(state: State) -> State:
        return merge_segments(state, number, swept, swaps)

    commit(store, archive.committed, operation, Author("rewrite", "", "test"))


def kept_points(archive: Archive) -> set[int]:
    return {*archive.state.numbers.tolist()} | undoable_points(archive.store, archive.committed)


def chosen_compactions(archive: Archive, oldest: int) -> list[Merge]:
    """The segments of the oldest restore point that is kept."""
    head = archive.head
    assert head is not None
    ends = {place: partition.unbroken for place, partition in head.partitions().items()}
    return [
        Merge((segment,)) for segment in archive.added(0, oldest) if segment.last < ends[segment.incarnation_partition]
    ]


def chosen_merges(archive: Archive) -> list[Merge]:
    head = archive.head
    assert head is not None
    kept = kept_points(archive)
    ends = {place: partition.unbroken for place, partition in head.partitions().items()}
    return plan_merges(archive.state, kept, ends, MergeSizes(below=1000, largest=10_000))


def sweep_once(store: Store, cutoff: float) -> None:
    """As `jobs.expire` sweeps: what was let go before `cutoff`."""
    archive = open_archive(store)
    objects = list(store.list())
    orphans = find_orphans(store, archive.committed, objects, cutoff)
    commit_sweep(store, archive.committed, orphans, Author("sweep", "", "test"))
    delete_orphans(store, orphans)


def copy(source: Store, target: Store, keep: bool = False) -> None:
    """As `jobs.copy`: what the source's newest catalog refers to and the copy lacks."""
    archive = open_archive(source)
    writing = begin_writing(target, LEASE, "copy")
    catalog = archive.committed.catalog
    assert catalog is not None
    link = Link(number=catalog.number, checksum=catalog.checksum)
    origin = Origin(archive="memory://source", catalog=link)

    def goal(state: State) -> State:
        return follow_source(state, archive.state, writing.run, origin, keep)

    before = writing.archive.state
    after = goal(before)
    known = {*before.segments.columns("key")[0]}
    for key in after.segments.columns("key")[0]:
        if key not in known:
            _send(source, target, key)
    for point in after.restore_points:
        if before.point(point.number) is None:
            for key in point.documents:
                _send(source, target, key)
    writing.commit(goal, "copy", "test")
    writing.end()


def _send(source: Store, target: Store, key: str) -> None:
    data = source.get(key)
    try:
        target.put_new(key, data)
    except AlreadyExistsError as error:
        if target.get(key) != data:
            raise RefusedError(f"file {key} is damaged", "delete it by hand") from error


# Invariants of every state of an archive, and the epilogue that follows from each.


def check(store: Store) -> Archive:
    """Check the invariants of every state of the store."""
    archive = open_archive(store)
    state = archive.state
    for point in archive.restore_points:
        read_point(archive, archive.manifest(point))
    listed = {p.number for p in state.restore_points}
    assert listed | {*state.past_manifests} == {*range(1, state.next_point)}, "a restore point is gone"
    assert not listed & {*state.past_manifests}
    try:
        mark = load(Derived, store.get(layout.DERIVED), layout.DERIVED)
        assert mark.catalog <= state.number, "derived.json names a catalog that does not exist"
    except NotFoundError:
        pass
    _check_fences(store, state)
    for key, added in state.segments.rows("key", "point"):
        lacking = [number for number in listed if added <= number < layout.compacted_of(key)]
        assert not lacking, f"restore point {min(lacking)} needs superseded records that {key} lacks"
    return archive


def _check_fences(store: Store, state: State) -> None:
    """Each run that committed segments had the last fence before."""
    fence = ""
    for number in range(1, state.number + 1):
        try:
            operation = read_catalog(store, number, state.archive_id).operation
        except NotFoundError:
            fence = ""
            continue
        if operation.kind == "begin":
            fence = operation.run
        elif operation.kind in ("backup", "copy", "erase") and fence:
            assert operation.run == fence, f"catalog {number} is of a run that was closed"


def finish(end: int, now: float) -> Callable[[MemoryStore], None]:
    """The epilogue: another backup, and a sweep with the grace time over; nothing but the archive is left then."""

    def epilogue(store: MemoryStore) -> None:
        store._clock = lambda: now
        backup(store, end)
        check(store)
        sweep_once(store, now + 1)
        archive = check(store)
        expected = referred_keys(archive.committed) | {
            layout.ARCHIVE, layout.LATEST, layout.DERIVED, layout.partition_index_key(FOLDER, 0),
            layout.group_offsets_key(FOLDER, 0),
        }  # fmt: skip
        number = archive.state.number
        before = open_catalog(store, number - 1, archive.info.id) if archive.state.swept else None
        kept = {layout.catalog_key(number)}
        if before is not None:  # the sweep's own commit came after its look
            kept |= {layout.catalog_key(number - 1)} | referred_keys(before)
        left = {e.key for e in store.list()} - expected - kept
        assert not left, f"orphans are left: {sorted(left)}"

    return epilogue


# Archives in memory at which scenarios begin.


def made(*ends: int) -> MemoryStore:
    """An archive with a restore point for each of `ends`."""
    store = MemoryStore(clock=lambda: 0.0)
    open_or_create(store)
    store.delete([e.key for e in store.list("check")])
    for end in ends:
        backup(store, end)
    return store


def interrupted(end: int, *ends: int, data: bytes = b"") -> MemoryStore:
    """The same, with a run that died when it had written segments up to `end`; `data`: the last one is this."""
    store = made(*ends)
    at = ends[-1]
    begin_writing(store, LEASE, "backup")
    for segment in write_segments(store, at, end, 2, lambda: 0.0):
        at = segment.first
    if data:
        store.put(key_of(at), data)
    return store


def empty_copy(source: Store, clock: Callable[[], float] = lambda: 0.0) -> MemoryStore:
    store = MemoryStore(clock=clock)
    store.put_new(layout.ARCHIVE, source.get(layout.ARCHIVE))
    return store


def copy_to_new(source: Store) -> None:
    """A copy to an empty address, that must succeed and be whole."""
    try:
        target = empty_copy(source)
        copy(source, target)
        check(target)
    except Exception as error:
        raise AssertionError(f"a copy failed: {type(error).__name__}: {error}") from error


# Scenarios of the interleaving checker: actors, the calls that are their steps, and where they begin.


NOW = 1000.0
GRACE_BEGAN = 500.0
"""Bases are made at time 0, actors run at `NOW`: what was let go in a base has no grace time left."""


def commits_and_segments(method: str, key: str) -> bool:
    """The calls of writers that another writer can observe or disturb: all others are of keys of one run alone."""
    return method in ("list", "delete") or (method == "put_new" and not key.startswith(layout.TABLES))


def deletes_of_sweeper(method: str, key: str) -> bool:
    return method in ("list", "delete") or (method == "put_new" and key.startswith(layout.CATALOG))


def reads_too(method: str, key: str) -> bool:
    return deletes_of_sweeper(method, key) or (method == "get" and key.startswith((layout.TABLES, layout.TOPICS)))


def hints_too(method: str, key: str) -> bool:
    return commits_and_segments(method, key) or key in (layout.LATEST, layout.DERIVED)


def writes_and_reads(method: str, key: str) -> bool:
    """A sweeper disturbs readers and sees every file."""
    return key not in (layout.ARCHIVE, layout.LATEST, layout.DERIVED)


def sweeper_beside(method: str, key: str) -> bool:
    return commits_and_segments(method, key) or (method == "get" and key.startswith(layout.TOPICS))


def run(
    base: Callable[[], MemoryStore],
    actors: Sequence[Actor],
    visible: Visible = commits_and_segments,
    limit: int = 1_000_000,
    every: int = 10,
) -> Report:
    with repeatable():
        began = base()

    def make() -> tuple[SteppedStore, Sequence[Actor]]:
        return SteppedStore.of(began, lambda: NOW), actors

    return explore(make, check, finish(10, 2 * NOW), visible, limit, every)


def backup_to(end: int, cut: int = 2) -> Actor:
    return lambda store: backup(store, end, cut)


def sweeper(store: Store) -> None:
    sweep_once(store, GRACE_BEGAN)


def sweeper_without_grace(store: Store) -> None:
    """What the actors beside it write is old enough for it, too."""
    sweep_once(store, NOW)


def expirer(*numbers: int) -> Actor:
    return lambda store: expire(store, *numbers)


def undo_and_expire(store: Store) -> None:
    undo(store)
    expire(store, 1)


def reader(store: Store) -> None:
    read_newest(store)


def expired(*numbers: int) -> Callable[[], MemoryStore]:
    def base() -> MemoryStore:
        store = made(2, 4, 6)
        expire(store, *numbers)
        return store

    return base


def made_and_expired(*numbers: int) -> MemoryStore:
    return expired(*numbers)()


def mergeable() -> MemoryStore:
    """Restore points have expired, and can't come back: segments of the first ones can be merged."""
    store = made_and_expired(1, 2)
    sweep_once(store, GRACE_BEGAN)
    return store


def merged() -> MemoryStore:
    """Segments were merged: the sweeper may delete the old ones."""
    store = mergeable()
    merge(store)
    return store


def rewritten() -> MemoryStore:
    """A segment was written anew: the sweeper may delete the old one."""
    store = made(2, 4)
    rewrite(store)
    return store


def rewrite_interrupted() -> MemoryStore:
    """A rewriter died when it had written its segment."""
    store = made(2, 4)
    writing = begin_writing(store, LEASE, "erase")
    key = layout.records_key(FOLDER, 0, 0, "none", rewrite=writing.began)
    store.put(key, segment_bytes(0, 1))
    return store


def torn() -> MemoryStore:
    """A run died, and the last segment that it wrote is damaged."""
    return interrupted(6, 2, 4, data=b"torn")


@dataclass(frozen=True)
class Scenario:
    """`actors` by their names, who begin with a copy of the archive `base`. Calls that `visible` tells are steps."""

    base: Callable[[], MemoryStore]
    actors: Mapping[str, Actor]
    visible: Visible

    def explore(self, limit: int) -> Report:
        """Run interleavings; a violation names the actors that its schedule has by number."""
        try:
            return run(self.base, [*self.actors.values()], self.visible, limit)
        except ViolationError as error:
            error.add_note(f"the actors from 0 on: {', '.join(self.actors)}")
            raise


SCENARIOS = {
    "a merge and a writer": Scenario(
        base=mergeable, actors={"merge": merge, "writer to 8": backup_to(8)}, visible=commits_and_segments
    ),
    "a merge, a writer and a sweeper without a grace time": Scenario(
        base=mergeable,
        actors={"merge": merge, "writer to 8": backup_to(8), "sweeper": sweeper_without_grace},
        visible=deletes_of_sweeper,
    ),
    "two merges and a sweeper without a grace time": Scenario(
        base=mergeable,
        actors={"first merge": merge, "second merge": merge, "sweeper": sweeper_without_grace},
        visible=commits_and_segments,
    ),
    "a merge, a rewriter and a sweeper": Scenario(
        base=mergeable, actors={"merge": merge, "rewriter": rewrite, "sweeper": sweeper}, visible=commits_and_segments
    ),
    "a merge, a reader and a sweeper": Scenario(
        base=merged, actors={"merge": merge, "reader": reader, "sweeper": sweeper}, visible=reads_too
    ),
    "a merge, a reader and a sweeper of what was merged": Scenario(
        base=mergeable, actors={"merge": merge, "reader": reader, "sweeper": sweeper}, visible=reads_too
    ),
    "a merge, an undo and a sweeper": Scenario(
        base=lambda: made_and_expired(1),
        actors={"merge": merge, "undo": undo, "sweeper": sweeper},
        visible=commits_and_segments,
    ),
    "a merge, an undo that is expired again, and a sweeper": Scenario(
        base=lambda: made_and_expired(1, 2),
        actors={"merge": merge, "undo": undo_and_expire, "sweeper": sweeper_without_grace},
        visible=commits_and_segments,
    ),
    "a merge and an expirer": Scenario(
        base=lambda: made(2, 4, 6), actors={"merge": merge, "expirer": expirer(1, 2)}, visible=commits_and_segments
    ),
    "a merge and a copy": Scenario(
        base=mergeable, actors={"merge": merge, "copy": copy_to_new}, visible=writes_and_reads
    ),
    "a compaction, a writer and a sweeper without a grace time": Scenario(
        base=mergeable,
        actors={"compaction": compact, "writer to 8": backup_to(8), "sweeper": sweeper_without_grace},
        visible=commits_and_segments,
    ),
    "a compaction, an undo and a sweeper": Scenario(
        base=lambda: made_and_expired(1),
        actors={"compaction": compact, "undo": undo, "sweeper": sweeper},
        visible=commits_and_segments,
    ),
    "a compaction, a rewriter and a merge": Scenario(
        base=mergeable,
        actors={"compaction": compact, "rewriter": rewrite, "merge": merge},
        visible=commits_and_segments,
    ),
    "a compaction and an expirer": Scenario(
        base=lambda: made(2, 4, 6),
        actors={"compaction": compact, "expirer": expirer(1, 2)},
        visible=commits_and_segments,
    ),
    "a rewriter and a writer": Scenario(
        base=lambda: made(2, 4), actors={"rewriter": rewrite, "writer to 6": backup_to(6)}, visible=commits_and_segments
    ),
    "two rewriters and a sweeper": Scenario(
        base=rewritten,
        actors={"first rewriter": rewrite, "second rewriter": rewrite, "sweeper": sweeper},
        visible=commits_and_segments,
    ),
    "a rewriter after an interrupted one, and a sweeper": Scenario(
        base=rewrite_interrupted, actors={"rewriter": rewrite, "sweeper": sweeper}, visible=commits_and_segments
    ),
    "a rewriter, a reader and a sweeper": Scenario(
        base=rewritten, actors={"rewriter": rewrite, "reader": reader, "sweeper": sweeper}, visible=reads_too
    ),
    "a rewriter, an undo and a sweeper": Scenario(
        base=lambda: made_and_expired(1),
        actors={"rewriter": rewrite, "undo": undo_and_expire, "sweeper": sweeper},
        visible=commits_and_segments,
    ),
    "a rewriter and an expirer": Scenario(
        base=lambda: made(2, 4, 6), actors={"rewriter": rewrite, "expirer": expirer(1, 2)}, visible=commits_and_segments
    ),
    "two writers": Scenario(
        base=lambda: made(2, 4),
        actors={"writer to 6": backup_to(6), "writer to 7 in ones": backup_to(7, 1)},
        visible=commits_and_segments,
    ),
    "two writers and their hints": Scenario(
        base=lambda: made(2), actors={"writer to 4": backup_to(4), "other writer to 4": backup_to(4)}, visible=hints_too
    ),
    "two writers after an interrupted one": Scenario(
        base=lambda: interrupted(8, 2, 4),
        actors={"writer to 8": backup_to(8), "writer to 9": backup_to(9)},
        visible=commits_and_segments,
    ),
    "two writers after an interrupted one whose segment is damaged": Scenario(
        base=torn,
        actors={"writer to 8": backup_to(8), "writer to 8 in ones": backup_to(8, 1)},
        visible=commits_and_segments,
    ),
    "three writers": Scenario(
        base=lambda: made(2),
        actors={"first writer": backup_to(4), "second writer": backup_to(4), "third writer": backup_to(4)},
        visible=commits_and_segments,
    ),
    "two writers after an interrupted one whose segment is damaged, and a sweeper": Scenario(
        base=torn,
        actors={"writer to 6": backup_to(6), "writer to 8": backup_to(8), "sweeper": sweeper},
        visible=sweeper_beside,
    ),
    "a writer and a sweeper": Scenario(
        base=expired(1, 2), actors={"writer": backup_to(8), "sweeper": sweeper}, visible=sweeper_beside
    ),
    "a writer after an interrupted one, and a sweeper": Scenario(
        base=lambda: interrupted(8, 2, 4), actors={"writer": backup_to(9), "sweeper": sweeper}, visible=sweeper_beside
    ),
    "two writers and a sweeper": Scenario(
        base=expired(1),
        actors={"writer to 7": backup_to(7), "writer to 8": backup_to(8), "sweeper": sweeper},
        visible=deletes_of_sweeper,
    ),
    "a writer and an expirer": Scenario(
        base=lambda: made(2, 4, 6),
        actors={"writer": backup_to(8), "expirer": expirer(1, 2)},
        visible=commits_and_segments,
    ),
    "a writer and two expirers": Scenario(
        base=lambda: made(2, 4, 6),
        actors={"writer": backup_to(8), "expirer of 1": expirer(1), "expirer of 1 and 2": expirer(1, 2)},
        visible=commits_and_segments,
    ),
    "an undo and a sweeper": Scenario(
        base=expired(1), actors={"undo": undo, "sweeper": sweeper}, visible=writes_and_reads
    ),
    "an expirer, an undo and a sweeper": Scenario(
        base=expired(1), actors={"expirer": expirer(2), "undo": undo, "sweeper": sweeper}, visible=commits_and_segments
    ),
    "two undos": Scenario(base=expired(1), actors={"undo": undo, "other undo": undo}, visible=commits_and_segments),
    "a reader and a sweeper": Scenario(
        base=expired(1), actors={"reader": reader, "sweeper": sweeper}, visible=writes_and_reads
    ),
    "a reader, an expirer and a sweeper": Scenario(
        base=expired(1),
        actors={"reader of 3": lambda store: read_newest(store, 3), "expirer": expirer(2), "sweeper": sweeper},
        visible=reads_too,
    ),
    "a reader, an undo that is expired again, and a sweeper": Scenario(
        base=expired(1),
        actors={"reader": reader, "undo, then expirer": undo_and_expire, "sweeper": sweeper},
        visible=reads_too,
    ),
    "a copy, a writer": Scenario(
        base=lambda: made(2, 4), actors={"copy": copy_to_new, "writer": backup_to(6)}, visible=writes_and_reads
    ),
    "a copy, an expirer and a sweeper": Scenario(
        base=expired(1), actors={"copy": copy_to_new, "expirer": expirer(2), "sweeper": sweeper}, visible=reads_too
    ),
}
