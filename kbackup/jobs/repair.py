"""The repair job: what follows from restore points is made anew; where restore points are lost, there is a new one of
all that is whole.

Nothing that is whole is deleted or overwritten. Without `confirm` nothing at all is written, nor is the lease taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kbackup.archive import layout
from kbackup.archive.java import is_java_archive
from kbackup.archive.lease import HeldLease
from kbackup.archive.repair import derived
from kbackup.archive.repair.choose import LeftOut, choose
from kbackup.archive.repair.left import Left, look
from kbackup.archive.repair.scan import Damaged, ToScan, Whole, scan, to_scan
from kbackup.archive.verify.findings import ANOTHER_COPY, Finding, Findings
from kbackup.archive.verify.objects import check_present
from kbackup.errors import NoArchiveError
from kbackup.jobs.listen import Listener, Phases
from kbackup.jobs.progress import ProgressSender
from kbackup.jobs.repair_point import commit_points
from kbackup.jobs.repair_write import (
    Mended,
    free_the_lease,
    put_info,
    rebuild_checkpoints,
    set_aside,
    write_derived,
)
from kbackup.jobs.tasks import run_tasks
from kbackup.store.base import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE_BYTES = 64 << 20
"""So many are read without Spark, which takes longer to start."""
_TASK_BYTES = 64 << 20
_TASK_OBJECTS = 256
_THREADS = 4
_REBUILD = f"{ANOTHER_COPY}; with --rebuild there is a restore point without it"


@dataclass(frozen=True)
class RepairReport:
    """What was done, or (not `confirmed`) is to be done. `is_loss`: restore points or records are lost. `restore_point`
    is the number of a new one, `kept` the newest that stays, `lost` those that are known to have been and are no more.
    `left` could not be repaired."""

    archive: str
    archive_id: str
    confirmed: bool
    is_loss: bool = False
    restore_point: int | None = None
    kept: int | None = None
    lost: tuple[int, ...] = ()
    mended: tuple[Mended, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    losses: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    not_known: tuple[str, ...] = ()
    left: tuple[Finding, ...] = ()
    segments: int = 0
    records: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ScanWork:
    """A task: some objects, and what they are."""

    store: Store
    mend: bool

    def __call__(self, task: Sequence[ToScan], progress: ProgressSender) -> Iterator[Whole | Damaged]:
        for item in task:
            found = scan(self.store, item, self.mend)
            if isinstance(found, Whole):
                progress.add(found.segment.count, found.segment.bytes)
            yield found


@dataclass
class _Repair:
    """A repair at work."""

    store: Store
    confirm: bool
    rebuild: bool
    spark: Callable[[], SparkSession]
    listener: Listener
    phases: Phases
    check: Callable[[], None] = lambda: None
    owner: str = ""


def repair(
    store: Store,
    confirm: bool,
    rebuild: bool,
    lease_seconds: float,
    spark: Callable[[], SparkSession],
    listener: Listener,
) -> RepairReport:
    """With `rebuild` there is a new restore point in any case: one of what is whole. `NoArchiveError` where there is
    nothing of an archive."""
    job = _Repair(store, confirm, rebuild, spark, listener, Phases(listener))
    if not confirm:
        return _repair(job)
    _there_is_one(store, [entry.key for entry in store.list()])
    free_the_lease(store)
    with HeldLease(store, "kbackup repair", lease_seconds) as lease:
        job.check, job.owner = lease.check, lease.owner
        return _repair(job)


def _repair(job: _Repair) -> RepairReport:
    with job.phases.step("list objects"):
        sizes = {entry.key: entry.size for entry in job.store.list()}
        _there_is_one(job.store, list(sizes))
    with job.phases.step("restore points"):
        left = look(job.store, sizes)
    if left.is_broken or job.rebuild:
        return _new_point(job, left)
    return _mend(job, left)


def _there_is_one(store: Store, keys: Sequence[str]) -> None:
    if any(key == layout.ARCHIVE or key.startswith((layout.BACKUPS, layout.TOPICS)) for key in keys):
        return
    hint = (
        "it is a folder of the Java tool: see 'kbackup adopt'"
        if is_java_archive(store)
        else "check the address"
    )
    raise NoArchiveError(f"there is no archive at {store.url}", hint)


def _mend(job: _Repair, left: Left) -> RepairReport:
    """The catalogue is whole: what follows from it is made anew where it is not."""
    findings = Findings()
    segments = [s for table in left.points.added.values() for s in table]
    check_present(segments, left.sizes, findings)
    mended = put_info(job.store, left, job.confirm)
    with job.phases.step("segment indexes"):
        wanted = {segment.key for segment in derived.damaged_indexes(job.store, left)}
        scanned = _scan(job, [item for item in to_scan(left) if item.key in wanted])
        mended += [
            Mended(layout.index_key_of(w.segment.key), "rebuilt") for w in scanned if isinstance(w, Whole)
        ]
    damaged = {each.key: each.why for each in scanned if isinstance(each, Damaged)}
    with job.phases.step("derived files"):
        mended += write_derived(job.store, derived.damaged_files(job.store, left), job.confirm, job.check)
        mended += rebuild_checkpoints(job.store, left, job.confirm, job.check)
    done = {each.file for each in mended} | {layout.LOCK}
    records = {f.file: f.what for f in findings.found if not f.file.endswith("_index")} | damaged
    bad = left.findings | {Finding(key, what, _REBUILD) for key, what in records.items()}
    return RepairReport(
        job.store.url,
        left.archive_id,
        job.confirm,
        kept=left.kept[-1].seq if left.kept else None,
        mended=tuple(sorted(mended)),
        left=tuple(sorted(f for f in bad if f.file not in done)),
        segments=len(segments),
        records=sum(s.count for s in segments),
        seconds=job.phases.seconds,
    )


def _new_point(job: _Repair, left: Left) -> RepairReport:
    """Restore points are lost: all that is whole goes into a new one. Where some were expired none of the others is
    kept: what they stand on is in a table that knows nothing of a new one."""
    broken = left.is_broken
    with job.phases.step("read segments"):
        scanned = _scan(job, to_scan(left))
    if left.expirations:
        left.kept = []
    chosen = choose(left, scanned)
    mended = [
        Mended(layout.index_key_of(w.segment.key), "rebuilt")
        for w in scanned
        if isinstance(w, Whole) and w.index != "whole"
    ]
    mended += put_info(job.store, left, job.confirm)
    with job.phases.step("commit"):
        manifests = commit_points(job.store, left, chosen, job.confirm, job.owner, job.check)
    if job.confirm:
        with job.phases.step("set aside"):
            set_aside(job.store, manifests[-1].seq, chosen.left_out, left.sizes, job.check)
        sizes = {entry.key: entry.size for entry in job.store.list()}
        mended += _mend(job, look(job.store, sizes)).mended  # of the restore points that stay
    kept = chosen.kept[-1].seq if chosen.kept else None
    newest = manifests[-1]
    lost = manifests[0].repaired.restore_points if manifests[0].repaired is not None else ()
    return RepairReport(
        job.store.url,
        newest.archive_id,
        job.confirm,
        is_loss=broken or bool(lost or chosen.losses or chosen.left_out),
        restore_point=newest.seq,
        kept=kept,
        lost=lost,
        mended=tuple(sorted(set(mended))),
        left_out=tuple(sorted(chosen.left_out)),
        losses=tuple(loss.message for loss in chosen.losses),
        warnings=tuple(chosen.warnings),
        not_known=newest.repaired.not_known if newest.repaired is not None else (),
        segments=sum(map(len, chosen.segments.values())),
        records=sum(s.count for some in chosen.segments.values() for s in some),
        seconds=job.phases.seconds,
    )


def _scan(job: _Repair, items: Sequence[ToScan]) -> list[Whole | Damaged]:
    return read_back(items, ScanWork(job.store, job.confirm), job.spark, job.listener)


def read_back(
    items: Sequence[ToScan],
    work: Callable[[Sequence[ToScan], ProgressSender], Iterator[Whole | Damaged]],
    spark: Callable[[], SparkSession],
    listener: Listener,
) -> list[Whole | Damaged]:
    """What `work` finds of each of them: in this process where they are few, else on Spark."""
    if sum(item.size for item in items) <= HERE_BYTES:
        with ThreadPoolExecutor(_THREADS) as pool:
            some = pool.map(lambda item: list(work([item], ProgressSender(None, 0))), items)
            return [found for each in some for found in each]
    expected = sum(row.count for item in items for row in item.rows[:1])
    return run_tasks(
        spark(), _tasks(items), work, lambda records, size: listener.progress(records, size, expected)
    )


def _tasks(items: Sequence[ToScan]) -> list[tuple[ToScan, ...]]:
    tasks: list[list[ToScan]] = []
    room = 0
    for item in items:
        if not tasks or item.size > room or len(tasks[-1]) == _TASK_OBJECTS:
            tasks.append([])
            room = _TASK_BYTES
        tasks[-1].append(item)
        room -= item.size
    return sorted(map(tuple, tasks), key=lambda task: -sum(item.size for item in task))
