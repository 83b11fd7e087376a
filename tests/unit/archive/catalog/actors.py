"""Actors of the interleaving checker: the archive's own code with a small model of what reads Kafka.

Topic t has one partition and a record an offset. A segment's object tells its first and last offset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, commit
from kbackup.archive.catalog.copies import follow_source
from kbackup.archive.catalog.documents import Link, Origin
from kbackup.archive.catalog.operations import add_point, end_run, may_salvage
from kbackup.archive.catalog.retention import expire_points
from kbackup.archive.catalog.state import State
from kbackup.archive.catalog.sweep import (
    commit_sweep,
    commit_undo,
    delete_orphans,
    find_orphans,
    last_expiration,
)
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import Capture, Groups, Manifest, Metadata, PartitionState, TopicState
from kbackup.archive.new_point import Draft, new_point, put_manifest
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.run import WritingRun, begin_writing
from kbackup.archive.segments.read import crc_of
from kbackup.archive.segments.table import Segment
from kbackup.errors import AlreadyExistsError, RefusedError
from kbackup.store.base import Store

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
    """A backup of offsets up to `end` in segments of `cut` records, as `jobs.backup.job` and
    `jobs.backup.task` do it."""
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
    own = Capture(
        number=number,
        started_at=AT,
        groups=writing.put_document(number, layout.GROUPS, Groups(captured_at=AT, groups=(), not_carried={})),
        metadata=writing.put_document(
            number, layout.METADATA, Metadata(captured_at=AT, cluster_id="c", brokers=1, topics=())
        ),
    )
    last = [*segments, *archive.segments(head)] if head is not None else segments
    partition = PartitionState(
        partition=0, start=0, end=end, log_start=0, log_end=end,
        records=sum(s.count for s in last), bytes=sum(s.bytes for s in last),
    )  # fmt: skip
    topic = TopicState(
        name="t", id="id", incarnation=1, captured=number, state="present", partitions=(partition,)
    )
    draft = Draft(
        number=number, started_at=AT, committed_at=AT, topics=[topic], segments=segments, captures=[own],
        groups=0, captured_topics=1, captured_partitions=1,
    )  # fmt: skip
    manifest, ref = put_manifest(writing, draft)
    new = new_point(manifest, ref, segments)

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
