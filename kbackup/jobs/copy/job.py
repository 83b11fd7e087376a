"""The copy job: an archive in another store, as of one catalog of its source.

Objects are copied as they are stored. The destination is a whole archive at each moment: segments and documents come
first, then one commit takes over the source's state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from kbackup.archive.catalog.copies import begin_copy, check_lineage, follow_source, only_point
from kbackup.archive.catalog.documents import IsolationLevel, Link, Origin
from kbackup.archive.catalog.run import WritingRun, begin_writing
from kbackup.archive.catalog.state import Point, State
from kbackup.archive.lease.hold import HeldLease
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.segments.key_check import with_checked_key
from kbackup.archive.segments.table import SCHEMA, Segment, from_batches
from kbackup.archive.segments.transfer import THREADS, Due, missing, objects_of, put_same, send
from kbackup.errors import RefusedError
from kbackup.jobs.copy.destination import claim
from kbackup.jobs.copy.promote import promote
from kbackup.jobs.copy.sidecars import check_keys, copy_beside, copy_keys
from kbackup.metrics.events import Listener, Phases
from kbackup.store.base import Store
from kbackup.store.crypt.raw import stored

__all__ = ["CopyReport", "copy_archive", "promote"]

SEGMENTS_AT_ONCE = 10_000
"""So many segments are compared and sent at a time."""


@dataclass(frozen=True)
class CopyReport:
    """`restore_points` are the numbers that were copied, `dropped` those that the source let go and the copy no longer
    has, `newest` is the newest one there now. `objects` and `bytes` (as they are stored) are what was sent of
    segments; `found` counts those of an interrupted copy. `beside` are files of restores and drills."""

    archive: str
    destination: str
    archive_id: str
    restore_points: tuple[int, ...]
    dropped: tuple[int, ...]
    newest: int | None
    objects: int
    bytes: int
    found: int
    beside: int
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass
class _Copy:
    """A copy at work, and what it has sent. `expected` counts records."""

    source: Archive
    writing: WritingRun
    listener: Listener
    expected: int
    objects: int = 0
    bytes: int = 0
    present: int = 0
    records: int = 0
    plain: int = 0


def copy_archive(
    source: Store,
    target: Store,
    lease_seconds: float,
    listener: Listener,
    *,
    point: str | None = None,
    keep: bool = False,
) -> CopyReport:
    """Bring `target` up to the newest catalog of `source`, or with `point` up to that restore point alone.

    With `keep`, restore points that the source let go stay in the copy. Takes the lease of `target` and none of
    `source`, which is only read: backups may go on there. `RefusedError` where `target` is anything but empty or a
    copy of the same history.
    """
    phases = Phases(listener)
    with phases.step("open"):
        archive = open_archive(source)
        ours = archive.state
        if point is not None:
            manifest = archive.restore_point(point)
            ours = only_point(archive.state, manifest.number, manifest.topics)
        claim(source, archive.info, target)
    with HeldLease(target, "kbackup copy", lease_seconds) as lease:
        with phases.step("compare"):
            check_keys(source, target)
            copy_keys(source, target)
            there = open_archive(target)
            _check(there, archive.state, ours, target.url)
            level: IsolationLevel = min(ours.isolation_levels, default="read_committed")
            writing = begin_writing(target, lease, "copy", level)
            began = partial(begin_copy, run=writing.run, source=archive.state, address=archive.store.url)
            writing.commit(began, "copy", f"a copy of {archive.store.url} began")
            before = writing.archive.state
            goal = partial(_goal, source=ours, archive=archive, run=writing.run, keep=keep)
            after = goal(before)
            due = list(_new_segments(before, after))
        copy = _Copy(archive, writing, listener, sum(s.count for s in due))
        with phases.step("copy"):
            for at in range(0, len(due), SEGMENTS_AT_ONCE):
                _copy_segments(copy, due[at : at + SEGMENTS_AT_ONCE])
            known = {(p.number, p.manifest) for p in before.restore_points}
            new = [p for p in after.restore_points if (p.number, p.manifest) not in known]
            _copy_documents(copy, new)
            numbers = tuple(p.number for p in new)
            writing.commit(goal, "copy", f"{len(numbers)} restore points copied from {archive.store.url}")
            writing.refresh_derived()
        with phases.step("restores and drills"):
            beside = copy_beside(source, writing.store) if point is None else 0
        writing.end()
    return _report(copy, target, before, after, numbers, beside, phases.seconds)


def _report(
    copy: _Copy,
    target: Store,
    before: State,
    after: State,
    numbers: tuple[int, ...],
    beside: int,
    seconds: dict[str, float],
) -> CopyReport:
    newest = after.newest
    return CopyReport(
        archive=copy.source.store.url,
        destination=target.url,
        archive_id=copy.source.info.id,
        restore_points=numbers,
        dropped=tuple(p.number for p in before.restore_points if after.point(p.number) is None),
        newest=newest.number if newest is not None else None,
        objects=copy.objects,
        bytes=copy.bytes,
        found=copy.present,
        beside=beside,
        seconds=seconds,
    )


def _check(there: Archive, source: State, ours: State, url: str) -> None:
    """Raise `RefusedError` where `there` can't become `ours`, which is `source` or a restore point of it."""
    check_lineage(there.state, source, url)
    numbers = {p.number for p in there.restore_points}
    if (
        ours is not source
        and there.state.next_point > 1
        and numbers != {p.number for p in ours.restore_points}
    ):
        raise RefusedError(f"{url} has other restore points already", "copy to an empty address")


def _goal(state: State, source: State, archive: Archive, run: str, keep: bool) -> State:
    catalog = archive.committed.catalog
    link = Link(number=source.number, checksum=catalog.checksum if catalog is not None else "")
    return follow_source(state, source, run, Origin(archive=archive.store.url, catalog=link), keep)


def _new_segments(before: State, after: State) -> Iterator[Segment]:
    """The segments that the copy will have and does not have yet."""
    known = set(before.segments.columns("key")[0])
    for segment in from_batches(after.segments.read(SCHEMA.names).to_batches()):
        if segment.key not in known:
            yield with_checked_key(segment)


def _copy_segments(copy: _Copy, segments: Sequence[Segment]) -> None:
    target = copy.writing.store
    due = {each: s for s in segments for each in objects_of(s)}
    lacking = missing(target, list(due))
    copy.present += len(due) - len(lacking)

    def one(each: Due) -> tuple[Due, int]:
        return each, send(copy.source.store, target, each)

    with ThreadPoolExecutor(THREADS) as pool:
        for each, size in pool.map(one, lacking):
            copy.objects, copy.bytes = copy.objects + 1, copy.bytes + size
            if each.key == due[each].key:
                copy.records, copy.plain = copy.records + due[each].count, copy.plain + due[each].bytes
                copy.listener.progress(copy.records, copy.plain, copy.expected)


def _copy_documents(copy: _Copy, points: Sequence[Point]) -> None:
    """Copy the documents of restore points, each checked against the reference to it."""
    archive, target = copy.source, copy.writing.store

    def check(point: Point) -> None:
        manifest = archive.manifest(point)
        for capture in manifest.captures:
            archive.read_document(capture.groups)
            archive.read_document(capture.metadata)

    def send_document(key: str) -> None:
        put_same(target, key, stored(archive.store).get(key))

    keys = list(dict.fromkeys(key for point in points for key in point.documents))
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(check, points))
        list(pool.map(send_document, keys))
