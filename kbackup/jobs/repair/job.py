"""The repair job: an archive that has lost files, as whole as it can be made from what is there.

The newest whole catalog is the base. Restore points that it lacks come back where their documents are whole, damaged
segments become losses, and what follows from the catalog is written anew. Nothing that is whole is deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kbackup.archive import layout
from kbackup.archive.catalog.recovery import lose_segments
from kbackup.archive.catalog.run import WritingRun
from kbackup.archive.lease.hold import HeldLease
from kbackup.archive.reader import Archive
from kbackup.archive.repair.base import find_base, read_documents
from kbackup.archive.repair.mend import Mender
from kbackup.jobs.repair.commit import commit_repair, new_losses, refresh_derived_files, warnings_of
from kbackup.jobs.repair.rebuild import add_new_points, damaged_segments, mend_indexes, rebuild_state
from kbackup.jobs.repair.report import Mended, RepairJob, RepairReport
from kbackup.jobs.repair.root_files import (
    archive_info,
    check_archive_there,
    damaged_lease,
    replace_corrupt_lease,
)
from kbackup.metrics.events import Listener, Phases
from kbackup.store.base import Store
from kbackup.store.dry import DryStore
from kbackup.store.guarded import GuardedStore

__all__ = ["RepairReport", "repair"]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def repair(
    store: Store,
    confirm: bool,
    read_data: bool,
    lease_seconds: float,
    spark: Callable[[], SparkSession],
    listener: Listener,
) -> RepairReport:
    """Repair an archive; without `confirm` nothing is written. With `read_data` every segment is read back and held
    against its checksum; else against its size. `NoArchiveError` where there is nothing of an archive."""
    if not confirm:
        dry = DryStore(store)
        lease = HeldLease(dry, "kbackup repair", lease_seconds)  # not taken
        return _repair(RepairJob(store, dry, confirm, read_data, spark, listener), lease)
    keys = [entry.key for entry in store.list()]
    check_archive_there(store, keys)
    mended = damaged_lease(store, keys)
    replace_corrupt_lease(store)
    with HeldLease(store, "kbackup repair", lease_seconds) as lease:
        guarded = GuardedStore(store, lease.check)
        job = RepairJob(store, guarded, confirm, read_data, spark, listener)
        job.mended += mended
        return _repair(job, lease)


def _repair(job: RepairJob, lease: HeldLease) -> RepairReport:
    phases = Phases(job.listener)
    with phases.step("list objects"):
        entries = list(job.store.list())
        job.sizes = {entry.key: entry.size for entry in entries}
        job.modified = {entry.key: entry.modified for entry in entries}
        check_archive_there(job.store, list(job.sizes))
    with phases.step("restore points"):
        job.mended += damaged_lease(job.store, job.sizes)
        documents = read_documents(job.store, job.sizes)
        info = archive_info(job, documents)
        base = find_base(job.store, job.sizes, info.id)
        job.mended += [Mended(key, "replaced: its rows come from elsewhere") for key in base.files]
        if base.committed.catalog is not None:
            job.mended += [
                Mended(layout.catalog_key(number), "left behind: a new catalog follows")
                for number in base.lost
            ]
        job.mended += [Mended(key, "left out: nothing needs it any more") for key in base.past]
    archive = Archive(job.store, info, base.committed)
    writing = WritingRun(archive, job.plain, lease, "repair")
    with phases.step("read segments"):
        damaged = damaged_segments(job, base.state)
        state, manifests = rebuild_state(job, base, documents, damaged)
        after = lose_segments(state, damaged)
        job.losses += [row["message"] for row in new_losses(base.state, after)]
    with phases.step("commit"):
        mender = Mender(writing, documents, manifests)
        after = add_new_points(job, writing, base, mender.mend(after), mender.manifests, documents)
        job.losses += mender.losses
        job.mended += [Mended(key, "made anew") for key in mender.made]
        commit_repair(job, writing, base, after)
        mend_indexes(job, after)
        refresh_derived_files(job, writing.archive)
    return RepairReport(
        job.store.url,
        info.id,
        job.confirm,
        job.read_data,
        catalog=base.committed.catalog.number if base.committed.catalog is not None else None,
        restored=tuple(sorted(job.restored)),
        lost=tuple(sorted(job.lost)),
        new_point=max(job.new_points, default=None),
        losses=tuple(job.losses),
        warnings=(*warnings_of(base, len(after.restore_points)), *job.warnings),
        mended=tuple(sorted(set(job.mended))),
        segments=sum(manifest.totals.segments for manifest in job.new_points.values()),
        records=sum(manifest.totals.records for manifest in job.new_points.values()),
        seconds=phases.seconds,
    )
