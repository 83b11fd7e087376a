"""The backup job: connect, take the lease, make a restore point."""

from __future__ import annotations

import time
from collections.abc import Callable

from kbackup.archive.catalog.run import WritingRun, begin_writing, open_or_create
from kbackup.archive.lease.hold import HeldLease
from kbackup.archive.query.selection import Selection, Selections
from kbackup.config.jobs import Backup
from kbackup.errors import RefusedError
from kbackup.jobs.backup import metering
from kbackup.jobs.backup.commit import refresh
from kbackup.jobs.backup.identity import check_cluster
from kbackup.jobs.backup.plan import Plan
from kbackup.jobs.backup.restore_point import capture_cluster, take
from kbackup.jobs.backup.run import BackupReport, Run
from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.client.client import Properties
from kbackup.metadata.sources import Sources
from kbackup.metrics.events import Listener, Phases
from kbackup.spark.tasks import Spark
from kbackup.store.base import Store
from kbackup.util.times import now

__all__ = ["BackupReport", "Plan", "backup", "begin", "begin_point", "connect"]


def backup(
    options: Backup,
    source: Properties,
    store: Store,
    spark: Spark,
    listener: Listener,
    show_plan: Callable[[Plan], None] = lambda plan: None,
    label: str = "",
) -> BackupReport:
    """Take one restore point of the cluster, with `label` (`points.check_label` permits it). Raises a `KbackupError`
    where no restore point was taken."""
    metering.backup_begins()
    phases = Phases(listener)
    started_at = now()
    with phases.step("connect"):
        cluster, cluster_id, brokers = connect(source)
        open_or_create(store)
    pause = time.sleep if options.wait else None
    with HeldLease(store, "kbackup backup", options.lease_seconds, pause) as lease:
        with phases.step("connect"):
            run = begin(options, source, store, cluster, cluster_id, brokers, lease)
        run.label = label
        captured = capture_cluster(run, phases, started_at, selections_of(options))
        show_plan(captured.plan)
        report = take(run, captured, phases, spark, listener, last=True)
        metering.backed_up(report)
        refresh(run, phases)
    return report


def selections_of(options: Backup) -> Selections:
    """Return the topics and groups that `options` select. `UsageError` for an invalid regular expression."""
    return Selections(
        Selection.of(options.topics, options.exclude_topics),
        Selection.of(options.groups, options.exclude_groups),
    )


def connect(source: Properties) -> tuple[Cluster, str, int]:
    """Return the source, its id, and the number of its brokers."""
    cluster = Cluster(source, "source")
    return cluster, *cluster.connect()


def begin(
    options: Backup,
    source: Properties,
    store: Store,
    cluster: Cluster,
    cluster_id: str,
    brokers: int,
    lease: HeldLease,
) -> Run:
    """Fence off every other run, and read what the newest restore point says."""
    writing = begin_point(options, store, cluster_id, lease)
    sources = Sources.of(source)
    head, interrupted = writing.archive.head, writing.interrupted
    run = Run(
        options, sources.kafka, writing, cluster, cluster_id, brokers, head, interrupted, sources=sources
    )
    if run.head is not None:
        run.groups, run.settings = run.archive.groups(run.head), run.archive.metadata(run.head)
    return run


def begin_point(options: Backup, store: Store, cluster_id: str, lease: HeldLease) -> WritingRun:
    """Fence off every other run. `RefusedError` for a copy, `MismatchError` for an archive of another cluster."""
    archive = open_or_create(store)
    if archive.state.origin is not None:
        raise RefusedError(
            f"archive {store.url} is a copy of {archive.state.origin.archive}",
            "back up to its source, or run 'kbackup promote' to make the copy an archive of its own",
        )
    check_cluster(archive.head, cluster_id, store.url, options.adopt_cluster)
    return begin_writing(store, lease, "backup", options.isolation_level)
