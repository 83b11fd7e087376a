"""The backup job: connect, take the lease, make a restore point."""

from __future__ import annotations

from collections.abc import Callable

from kbackup import metrics
from kbackup.archive import layout
from kbackup.archive.commit import open_or_create, read_intent, refresh_derived, seal_unfinished
from kbackup.archive.expire import is_cut_off
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import now
from kbackup.archive.reader import Archive
from kbackup.archive.settle import is_settled, settle
from kbackup.config.models import Backup
from kbackup.errors import RefusedError
from kbackup.jobs.backup_commit import refresh
from kbackup.jobs.backup_round import look, take
from kbackup.jobs.backup_run import BackupReport, Run, Spark
from kbackup.jobs.identity import check_cluster
from kbackup.jobs.listen import Listener, Phases
from kbackup.jobs.plan import Plan
from kbackup.kafka.admin import Cluster
from kbackup.kafka.client import Properties
from kbackup.store.base import Store

__all__ = ["BackupReport", "Spark", "backup", "begin", "connect"]


def backup(
    options: Backup,
    source: Properties,
    store: Store,
    spark: Spark,
    listener: Listener,
    show_plan: Callable[[Plan], None] = lambda plan: None,
) -> BackupReport:
    """One restore point from what the cluster holds now; raises a `KbackupError` when there is none in the end."""
    metrics.backup_begins()
    phases = Phases(listener)
    started_at = now()
    with phases.step("connect"):
        cluster, cluster_id, brokers = connect(source)
        archive = open_or_create(store)
    with HeldLease(store, "kbackup backup", options.lease_seconds) as lease:
        with phases.step("connect"):
            run = begin(options, source, archive, cluster, cluster_id, brokers, lease)
        captured = look(run, phases, started_at)
        show_plan(captured.plan)
        report = take(run, captured, phases, spark, listener)
        metrics.backed_up(report)
        refresh(run, phases)
    return report


def connect(source: Properties) -> tuple[Cluster, str, int]:
    """The source, its id, and how many brokers it has."""
    cluster = Cluster(source, "source")
    return cluster, *cluster.connect()


def begin(
    options: Backup,
    source: Properties,
    archive: Archive,
    cluster: Cluster,
    cluster_id: str,
    brokers: int,
    lease: HeldLease,
) -> Run:
    """Seals what is unfinished, and finds out where the archive stands. `RefusedError` for a copy that was cut off:
    what is gone there says of the next numbers as well that they are. `MismatchError` for an archive of another
    cluster."""
    if is_cut_off(archive):
        raise RefusedError(
            f"{archive.store.url} is a copy that was cut off: its newest restore points are not there yet",
            "run the same 'kbackup copy' again; where its source is lost, "
            "'kbackup expire --keep-last 1000000 --confirm' makes an archive of what is there",
        )
    check_cluster(archive.head, cluster_id, archive.store.url, options.adopt_cluster)
    seal_unfinished(archive, lease.owner)
    _repair_derived(archive, lease)
    head = archive.head
    last = max((run.seq for run in archive.runs), default=0)
    # also those that the newest restore point took over from: one that only slept may have written since
    since = (head.parent or 0) if head is not None else 0
    abandoned = {seal.seq for seal in archive.abandoned if seal.seq > since}
    unfinished = [
        read_intent(archive, run.seq)
        for run in archive.runs
        if run.seq in abandoned and layout.INTENT in run.files
    ]
    return Run(options, source, archive, cluster, cluster_id, brokers, lease, last + 1, head, unfinished)


def _repair_derived(archive: Archive, lease: HeldLease) -> None:
    """Where a crash fell between a commit, or an expiration, and its derived files."""
    head = archive.head
    if head is None:
        return
    files = next(run.files for run in archive.runs if run.seq == head.seq)
    if layout.REFRESHED not in files:
        refresh_derived(archive, head, check=lease.check)
    if not is_settled(archive):
        settle(archive, lease.check)
