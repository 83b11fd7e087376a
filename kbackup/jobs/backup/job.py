"""Committing a restore point, and what follows from it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from kbackup.archive import layout
from kbackup.archive.catalog.operations import (
    add_point,
    end_run,
    label_point,
    may_salvage,
    next_incarnation,
    reserve_incarnations,
)
from kbackup.archive.catalog.state import State
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import Capture, Loss, Manifest
from kbackup.archive.new_point import Draft, check_written, new_point, put_manifest
from kbackup.archive.query.selection import Selection, Selections
from kbackup.archive.run import WritingRun, begin_writing, open_or_create
from kbackup.archive.secrets import as_archived
from kbackup.archive.segments.table import Segment
from kbackup.config.models import Backup
from kbackup.errors import KbackupError, RefusedError
from kbackup.jobs import capture
from kbackup.jobs.backup import run as metering
from kbackup.jobs.backup.log_check import compare_logs, is_compacted, of_another_history
from kbackup.jobs.backup.plan import (
    Plan,
    held_back,
    make_plan,
    make_tasks,
    next_states,
    retention_loss,
    same_groups,
    same_settings,
    without,
)
from kbackup.jobs.backup.run import (
    BackupReport,
    Captured,
    Read,
    Run,
    check_cluster,
    check_identity,
    check_same_topics,
)
from kbackup.jobs.backup.task import BackupWork, LastRead, recover
from kbackup.jobs.capture import settings_warnings
from kbackup.jobs.metadata import with_sources
from kbackup.kafka import kernel
from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.client import Properties
from kbackup.kafka.consume import Vanished
from kbackup.kafka.kernel import Kernel
from kbackup.metadata.sources import Sources
from kbackup.metrics.registry import Listener, Phases
from kbackup.spark.tasks import Spark, run_counted
from kbackup.store import for_writing
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from kbackup.util.times import now


def commit(
    run: Run,
    captured: Captured,
    read: Read,
    last: bool,
) -> Manifest:
    """Commit the restore point of a capture. Afterwards `run` continues from it, and has ended if this is the `last`
    restore point."""
    plan, groups, segments = captured.plan, captured.groups, read.segments
    writing, number = run.writing, run.writing.next_point
    check_written(writing.store, segments)
    losses: list[Loss] = [*plan.losses, *(retention_loss(v.tp, v.start, v.end) for v in read.vanished)]
    not_carried = [
        f"group {group} is not in this restore point: {why}" for group, why in groups.not_carried.items()
    ]
    compacted = {t.name for t in captured.settings.topics if is_compacted(t.configs.get("cleanup.policy"))}
    topics = next_states(number, plan, segments, read.lasts, compacted)
    older = {t.captured for t in topics} - {number}
    draft = Draft(
        number=number,
        started_at=captured.started_at,
        committed_at=now(),
        cluster_id=run.cluster_id,
        isolation_level=run.options.isolation_level,
        topics=topics,
        segments=segments,
        losses=losses,
        warnings=(*plan.warnings, *not_carried, *settings_warnings(captured.settings)),
        captures=(
            *(c for c in (run.head.captures if run.head is not None else ()) if c.number in older),
            _capture(run, captured, number),
        ),
        groups=len(groups.groups),
        captured_topics=len(plan.topics),
        captured_partitions=sum(len(t.partitions) for t in plan.topics),
    )
    manifest, ref = put_manifest(writing, draft)
    new = new_point(manifest, ref, segments)

    def operation(state: State) -> State:
        added = add_point(state, writing.run, new)
        added = label_point(added, run.label, number) if run.label else added
        return end_run(added, writing.run) if last else added

    records = manifest.totals.records
    writing.commit(operation, "backup", f"restore point {number}: {records} records added")
    run.head, run.groups, run.settings = manifest, captured.groups, captured.settings
    run.interrupted = False
    return manifest


def _capture(run: Run, captured: Captured, number: int) -> Capture:
    """Write the documents of the capture. A document that equals the newest restore point's is not written again."""
    old = (
        next((c for c in run.head.captures if c.number == run.head.number), None)
        if run.head is not None
        else None
    )
    writing = run.writing
    if old is not None and run.groups is not None and same_groups(run.groups, captured.groups):
        groups = old.groups
    else:
        groups = writing.put_document(number, layout.GROUPS, captured.groups)
    if old is not None and run.settings is not None and same_settings(run.settings, captured.settings):
        metadata = old.metadata
    else:
        metadata = writing.put_document(number, layout.METADATA, captured.settings)
    return Capture(number=number, started_at=captured.started_at, groups=groups, metadata=metadata)


def refresh(run: Run, phases: Phases) -> None:
    """Write what follows from the restore point just taken."""
    try:
        with phases.step("refresh derived files"):
            run.writing.refresh_derived()
    except KbackupError as error:
        raise type(error)(
            f"restore point {run.parent} is committed, but not all derived files are written: {error.message}",
            f"the next backup writes them; {error.hint}",
        ) from error


def report(run: Run, manifest: Manifest, captured: Captured, phases: Phases) -> BackupReport:
    return BackupReport(
        restore_point=manifest.number,
        parent=manifest.previous,
        committed_at=manifest.committed_at,
        archive=run.archive.store.url,
        totals=manifest.totals,
        topics=manifest.topics,
        losses=manifest.losses,
        warnings=manifest.warnings,
        held_back=len(held_back(captured.plan)),
        damage=captured.damage,
        seconds=phases.seconds,
    )


# Make one restore point, step by step. The new catalog version is the commit; readers see nothing before it.


def capture_cluster(
    run: Run,
    phases: Phases,
    started_at: str,
    selections: Selections,
    choose: Callable[[Plan], Plan] = lambda plan: plan,
    later: bool = False,
) -> Captured:
    """Capture the cluster and plan what to archive.

    `choose` may hold partitions of the plan back. `later`: selected groups, and topics that regular expressions
    select, may be created later.
    """
    options, cluster = run.options, run.cluster
    with phases.step("discover"):
        topics, existing = capture.discover(cluster, selections.topics, run.head, later)
    with phases.step("capture groups"):
        # before the end offsets, so that no group points past what is archived
        groups = capture.groups(cluster, selections.groups, set(topics), run.groups, later)
    with phases.step("resolve ranges"):
        live = capture.live_topics(cluster, topics, options.isolation_level)
        names = [group.group for group in groups.groups]
        reading = capture.read_brokers(cluster, topics, run.cluster_id, names)
        whole = with_sources(reading, run.brokers, run.sources)
        settings = as_archived(whole.metadata, run.archive.info)  # which is what the next run compares with
    with phases.step("compare logs"):
        check_identity(run.head, live, options.adopt_topics)
        diverged, warnings = compare_logs(run, live)
    with phases.step("plan"):
        numbers = partial(next_incarnation, run.archive.state)
        plan = make_plan(run.head, live, existing, numbers, diverged)
        plan = choose(replace(plan, warnings=(*plan.warnings, *warnings, *whole.warnings)))
    return Captured(started_at, plan, groups, settings, whole.damage)


def take(
    run: Run, captured: Captured, phases: Phases, spark: Spark, listener: Listener, *, last: bool = False
) -> BackupReport:
    """Commit a restore point of the capture, without its derived files (`refresh`). `last`: the run ends with it."""
    plan = captured.plan
    with phases.step("plan"):
        reserve(run, plan)
    with phases.step("run"):
        recovered = recover(run, plan, spark, lambda segments: of_another_history(run, segments))
        read = _read(run, plan, recovered, spark, listener)
    with phases.step("commit"):
        check_same_topics(run.cluster, plan)
        manifest = commit(run, captured, read, last)
    return report(run, manifest, captured, phases)


def reserve(run: Run, plan: Plan) -> None:
    """Give new incarnations their numbers before the first segment is written in their folders."""
    lives = run.archive.state.lives
    new = {(t.name, t.incarnation): t.id for t in plan.topics if (t.name, t.incarnation) not in lives}
    if new:
        run.writing.commit(
            lambda state: reserve_incarnations(state, run.writing.run, new),
            "begin",
            f"backup found {len(new)} new topics",
        )


def _read(run: Run, plan: Plan, taken: Sequence[Segment], spark: Spark, listener: Listener) -> Read:
    intervals: dict[TopicPartition, list[tuple[int, int]]] = {}
    for segment in taken:
        intervals.setdefault(TopicPartition(segment.topic, segment.partition), []).append(
            (segment.first, segment.last)
        )
    ranges = without(plan.ranges, intervals)
    tasks = make_tasks(ranges, run.options.split_records, run.options.pack_records)
    if not tasks:
        return Read(taken)
    expected = sum(r.end - r.start for r in ranges)
    read = {r.topic for r in ranges}
    work = BackupWork(
        source=run.source,
        store=for_writing(run.writing.plain),
        isolation=run.options.isolation_level,
        group=layout.reader_group("backup", run.writing.run),
        segment_bytes=run.options.segment_bytes,
        compression=run.options.compression,
        poll_timeout=run.options.poll_timeout_seconds,
        incarnations={t.name: t.incarnation for t in plan.topics if t.name in read},
        since=run.writing.since(),
        salvage=may_salvage(run.archive.state),
    )
    results = run_counted(spark, tasks, work, listener, expected)
    kernel.say(r for r in results if isinstance(r, Kernel))
    segments = [r for r in results if isinstance(r, Segment)]
    lasts = sorted((r for r in results if isinstance(r, LastRead)), key=lambda r: r.records[-1].offset)
    return Read(
        [*taken, *segments],
        [r for r in results if isinstance(r, Vanished)],
        {r.tp: r.records for r in lasts},
    )


# The backup job: connect, take the lease, make a restore point.


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
