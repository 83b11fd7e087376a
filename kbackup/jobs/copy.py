"""The copy job: an archive in another store, restore point by restore point, each wholly or not at all.

Objects are taken over as they are stored. The destination is an archive of the same id at each moment: a restore
point's segments are there before its manifest, and its manifest after those of all before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from kbackup.archive import layout
from kbackup.archive.commit import read_intent
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import Manifest, Point, load
from kbackup.archive.reader import Archive, in_place, open_archive
from kbackup.archive.segments import SCHEMA, Segment, from_batches
from kbackup.archive.settle import is_settled, settle
from kbackup.archive.transfer import THREADS, Due, missing, objects_of, put_same, send
from kbackup.errors import CorruptError
from kbackup.jobs.copy_beside import copy_beside, copy_keys
from kbackup.jobs.copy_claim import claim, to_copy
from kbackup.jobs.copy_derived import refresh
from kbackup.jobs.copy_expired import check_expired, is_due, put_expired
from kbackup.jobs.listen import Listener, Phases
from kbackup.store.base import Store
from kbackup.store.crypt.raw import stored

_BATCH = 64
"""Restore points whose segments go at the same time, and after which derived files are written."""
SEGMENTS_AT_ONCE = 10_000
"""So many of them are looked at and sent at a time."""


@dataclass(frozen=True)
class CopyReport:
    """`restore_points` are the numbers that were copied, `newest` is the newest one there now. `objects` and `bytes`
    (as they are stored) are what was sent of segments; `found` counts those of a copy that was cut off. `beside` are
    files of restores and drills."""

    archive: str
    destination: str
    archive_id: str
    restore_points: tuple[int, ...]
    newest: int | None
    objects: int
    bytes: int
    found: int
    beside: int
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass
class Copy:
    """A copy at work, and what it has done."""

    source: Archive
    target: Archive
    lease: HeldLease
    listener: Listener
    expected: int
    objects: int = 0
    bytes: int = 0
    found: int = 0
    records: int = 0
    plain: int = 0
    numbers: list[int] = field(default_factory=list)


def copy_archive(source: Store, target: Store, lease_seconds: float, listener: Listener) -> CopyReport:
    """What `source` has and `target` lacks, up to the newest restore point of this moment.

    Takes the lease of `target` and none of `source`, which is only read: backups may go on there. After a crash run it
    again. `RefusedError` where `target` is anything but a copy of `source`, older or as old.
    """
    phases = Phases(listener)
    with phases.step("open"):
        archive = open_archive(source)
        closed = [*archive.closed] if archive.restore_points else []
        claim(source, archive.info, target)
    with HeldLease(target, "kbackup copy", lease_seconds) as lease:
        with phases.step("compare"):
            copy_keys(source, target)
            there = open_archive(target)
            check_expired(archive, there)
            points = to_copy(closed, archive, there)
        copy = Copy(archive, there, lease, listener, sum(p.totals.records for p in points if p.totals))
        with phases.step("copy"):
            for batch in _batches(_catch_up(copy, points)):
                _copy_batch(copy, batch)
            refresh(there, lease.check)
        with phases.step("restores and drills"):
            beside = copy_beside(source, target, lease.check)
    return report(copy, beside, phases)


def report(copy: Copy, beside: int, phases: Phases) -> CopyReport:
    points = copy.target.restore_points
    return CopyReport(
        archive=copy.source.store.url,
        destination=copy.target.store.url,
        archive_id=copy.source.info.id,
        restore_points=tuple(copy.numbers),
        newest=points[-1].seq if points else None,
        objects=copy.objects,
        bytes=copy.bytes,
        found=copy.found,
        beside=beside,
        seconds=phases.seconds,
    )


def _batches(points: Sequence[Point]) -> Iterator[Sequence[Point]]:
    for at in range(0, len(points), _BATCH):
        yield points[at : at + _BATCH]


def _catch_up(copy: Copy, points: Sequence[Point]) -> Sequence[Point]:
    """What expired, and those of `points` that it counts with; the others are returned. What the copy has may be gone
    from its view by that, so segments go before it, and the first manifests right after it."""
    source, target = copy.source, copy.target
    due: list[Point] = []
    if source.expired is not None and is_due(source, target):
        upto = source.expired.upto
        due = [point for point in points if point.seq <= upto]
        _send(copy, due)
        put = partial(put_expired, source, target, copy.lease.check)
        for batch in _batches(due):
            commit_points(copy, batch, put if batch[0] == due[0] else None)
        if not due:
            put()
    if not is_settled(target):
        settle(target, copy.lease.check)
    return points[len(due) :]


def _copy_batch(copy: Copy, points: Sequence[Point]) -> None:
    """Segments, then the files beside the manifests, then the manifests in order, then what follows from them."""
    _send(copy, points)
    commit_points(copy, points)


def _send(copy: Copy, points: Sequence[Point]) -> None:
    committed = [point for point in points if point.status == "committed"]
    reached = copy.target.restore_points
    for segments in _segments(copy.source, committed, reached[-1].seq if reached else 0):
        copy_segments(copy, segments)


def commit_points(copy: Copy, points: Sequence[Point], before: Callable[[], None] | None = None) -> None:
    """What stands beside the manifests of `points`, whose segments are there, the manifests, and what follows. `before`
    is what else has to be there before the manifests."""
    with ThreadPoolExecutor(THREADS) as pool:
        manifests = list(pool.map(lambda point: _copy_parts(copy, point), points))
    if before is not None:
        before()
    for point, manifest in zip(points, manifests, strict=True):
        copy.lease.check()
        put_same(copy.target.store, layout.backup_key(point.seq, layout.MANIFEST), manifest)
        copy.numbers += [point.seq] if point.status == "committed" else []
    copy.target.forget()
    refresh(copy.target, copy.lease.check)


def _segments(archive: Archive, points: Sequence[Point], after: int) -> Iterator[list[Segment]]:
    """Those that the runs of `points` added, and those that are left of runs which are gone since restore point
    `after`, some at a time."""
    some: list[Segment] = []
    upto = archive.expired.upto if archive.expired is not None else 0
    if points and after < upto:
        for table in archive.tables(min(points[-1].seq, upto), SCHEMA.names, after):
            for at in range(0, len(table), SEGMENTS_AT_ONCE):
                yield from_batches(table.slice(at, SEGMENTS_AT_ONCE).to_batches())
    for point in (point for point in points if point.seq > upto):
        some += from_batches(archive.table(point).to_batches())
        if len(some) >= SEGMENTS_AT_ONCE:
            yield some
            some = []
    yield some


def copy_segments(copy: Copy, segments: Sequence[Segment]) -> None:
    due = {each: s for s in segments for each in objects_of(in_place(s))}
    copy.lease.check()
    left = missing(copy.target.store, list(due))
    copy.found += len(due) - len(left)

    def one(each: Due) -> tuple[Due, int]:
        copy.lease.check()
        return each, send(copy.source.store, copy.target.store, each)

    with ThreadPoolExecutor(THREADS) as pool:
        for each, size in pool.map(one, left):
            copy.objects, copy.bytes = copy.objects + 1, copy.bytes + size
            if each.key == due[each].key:
                copy.records, copy.plain = copy.records + due[each].count, copy.plain + due[each].bytes
                copy.listener.progress(copy.records, copy.plain, copy.expected)


def _copy_parts(copy: Copy, point: Point) -> bytes:
    """The files beside a manifest, whole and as it says; the manifest itself, as it is stored, is returned."""
    source, seq = copy.source, point.seq
    manifest = layout.backup_key(seq, layout.MANIFEST)
    said = source.store.get(manifest)
    if load(Manifest, said, manifest).checksum != point.checksum:
        raise CorruptError(
            f"file {manifest} is not the one that was read before", "which other tool writes it?"
        )
    read_intent(source, seq)
    parts = {layout.INTENT: source.store.get(layout.backup_key(seq, layout.INTENT))}
    parts |= {name: source.read_part(point, name) for name in sorted(point.files)}
    for name, data in parts.items():
        copy.lease.check()
        key = layout.backup_key(seq, name)
        put_same(copy.target.store, key, _as_stored(source.store, key, data))
    return _as_stored(source.store, manifest, said)


def _as_stored(store: Store, key: str, plain: bytes) -> bytes:
    raw = stored(store)
    return plain if raw is store else raw.get(key)
