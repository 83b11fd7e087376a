"""Actors of the interleaving checker: the archive's own code with a small model of what reads Kafka.

Topic t has one partition and a record an offset. A segment's object tells its first and last offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import cast

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, commit, open_catalog, read_catalog
from kbackup.archive.catalog.copies import follow_source
from kbackup.archive.catalog.documents import Derived, Link, Origin
from kbackup.archive.catalog.operations import add_point, end_run, may_salvage
from kbackup.archive.catalog.retention import expire_points
from kbackup.archive.catalog.state import State
from kbackup.archive.catalog.sweep import (
    commit_sweep,
    commit_undo,
    delete_orphans,
    find_orphans,
    last_expiration,
    referred_keys,
)
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import Groups, Manifest, Metadata, PartitionState, TopicState, load
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.run import Draft, WritingRun, begin_writing, open_or_create, put_capture, put_manifest
from kbackup.archive.segments.read import crc_of
from kbackup.archive.segments.table import Segment
from kbackup.errors import AlreadyExistsError, NotFoundError, RefusedError
from kbackup.store.base import Store
from tests.support.memory_store import MemoryStore
from tests.unit.archive.catalog.interleaving import Actor, Report, SteppedStore, Visible, explore, repeatable

AT = "2026-01-01T00:00:00.000Z"
FOLDER = layout.topic_dir("t")


class NoLease:
    """Nobody is stopped by a lease: the worst that can happen to one."""

    def check(self) -> None: ...


LEASE = cast(HeldLease, NoLease())


def segment_bytes(first: int, last: int) -> bytes:
    return f"{first}-{last}:".encode() + b"x" * (last - first + 1)


def key_of(first: int, spare: int = 0) -> str:
    return layout.records_key(FOLDER, 0, first, "none", spare)


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
    return Segment(
        "t", 1, 0, first, last, last - first + 1, len(data), len(data),
        first * 1000, last * 1000, 1, crc_of(data), "", key,
    )  # fmt: skip


def backup(store: Store, end: int, cut: int = 2) -> None:
    """A backup of offsets up to `end` in segments of `cut` records, as `jobs.backup`, `jobs.recover` and
    `jobs.backup_task` do it."""
    writing = begin_writing(store, LEASE, "backup")
    archive = writing.archive
    head = archive.head
    start = head.topics[0].partitions[0].end if head is not None else 0
    end = max(start, end)
    taken = _recover(writing, start, end) if writing.interrupted else []
    segments: list[Segment] = []
    at = start
    since, salvage = writing.since, may_salvage(archive.state)
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
    draft = Draft(
        number=number, started_at=AT, committed_at=AT, topics=[topic], segments=segments, captures=[own],
        groups=0, captured_topics=1, captured_partitions=1,
    )  # fmt: skip
    _, new = put_manifest(writing, draft)

    def operation(state: State) -> State:
        return end_run(add_point(state, writing.run, new), writing.run)

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


def pass_orphan(store: Store, key: str, spare: int) -> int:
    """The spare number of the name beside an orphan that is of no use."""
    return spare + 1


def write_segments(
    store: Store, at: int, end: int, cut: int, since: Callable[[], float], salvage: bool = True
) -> Iterator[Segment]:
    spare = 0
    while at < end:
        last = min(at + cut, end) - 1
        data, key = segment_bytes(at, last), key_of(at, spare)
        try:
            store.put_new(key, data)
            segment = _segment(at, last, data, key)
        except AlreadyExistsError:
            own = salvage and store.stat(key).modified >= since()
            found = read_whole(store, key) if own else None
            if found is None or found.last >= end:
                spare = pass_orphan(store, key, spare)
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
        elif operation.kind in ("backup", "copy") and fence:
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


def torn() -> MemoryStore:
    """A run died, and the last segment that it wrote is damaged."""
    return interrupted(6, 2, 4, data=b"torn")


SCENARIOS: dict[str, tuple[Callable[[], MemoryStore], list[Actor], Visible]] = {
    "two writers": (lambda: made(2, 4), [backup_to(6), backup_to(7, 1)], commits_and_segments),
    "two writers and their hints": (lambda: made(2), [backup_to(4), backup_to(4)], hints_too),
    "two writers after an interrupted one": (
        lambda: interrupted(8, 2, 4), [backup_to(8), backup_to(9)], commits_and_segments,
    ),
    "two writers after an interrupted one whose segment is damaged": (
        torn, [backup_to(8), backup_to(8, 1)], commits_and_segments,
    ),
    "three writers": (
        lambda: made(2), [backup_to(4), backup_to(4), backup_to(4)],
        commits_and_segments,
    ),
    "two writers after an interrupted one whose segment is damaged, and a sweeper": (
        torn, [backup_to(6), backup_to(8), sweeper], sweeper_beside,
    ),
    "a writer and a sweeper": (expired(1, 2), [backup_to(8), sweeper], sweeper_beside),
    "a writer after an interrupted one, and a sweeper": (
        lambda: interrupted(8, 2, 4), [backup_to(9), sweeper], sweeper_beside,
    ),
    "two writers and a sweeper": (expired(1), [backup_to(7), backup_to(8), sweeper], deletes_of_sweeper),
    "a writer and an expirer": (lambda: made(2, 4, 6), [backup_to(8), expirer(1, 2)], commits_and_segments),
    "a writer and two expirers": (
        lambda: made(2, 4, 6), [backup_to(8), expirer(1), expirer(1, 2)], commits_and_segments,
    ),
    "an undo and a sweeper": (expired(1), [undo, sweeper], writes_and_reads),
    "an expirer, an undo and a sweeper": (expired(1), [expirer(2), undo, sweeper], commits_and_segments),
    "two undos": (expired(1), [undo, undo], commits_and_segments),
    "a reader and a sweeper": (expired(1), [reader, sweeper], writes_and_reads),
    "a reader, an expirer and a sweeper": (
        expired(1), [lambda store: read_newest(store, 3), expirer(2), sweeper],
        reads_too,
    ),
    "a reader, an undo that is expired again, and a sweeper": (
        expired(1), [reader, undo_and_expire, sweeper],
        reads_too,
    ),
    "a copy, a writer": (lambda: made(2, 4), [copy_to_new, backup_to(6)], writes_and_reads),
    "a copy, an expirer and a sweeper": (
        expired(1), [copy_to_new, expirer(2), sweeper],
        reads_too,
    ),
}  # fmt: skip
