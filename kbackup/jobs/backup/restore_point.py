"""Make one restore point, step by step. The new catalog version is the commit; readers see nothing before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from kbackup.archive import layout
from kbackup.archive.catalog.operations import may_salvage, next_incarnation, reserve_incarnations
from kbackup.archive.query.selection import Selections
from kbackup.archive.secrets import as_archived
from kbackup.archive.segments.table import Segment
from kbackup.jobs.backup.commit import commit, report
from kbackup.jobs.backup.identity import check_identity, check_same_topics
from kbackup.jobs.backup.log_check import compare_logs, of_another_history
from kbackup.jobs.backup.plan import Plan, make_plan
from kbackup.jobs.backup.ranges import make_tasks, without
from kbackup.jobs.backup.run import BackupReport, Captured, Read, Run
from kbackup.jobs.backup.salvage import recover
from kbackup.jobs.backup.task import BackupWork, LastRead
from kbackup.jobs.capture import cluster as capture
from kbackup.jobs.metadata.read import with_sources
from kbackup.kafka import kernel
from kbackup.kafka.consume.read import Vanished
from kbackup.kafka.kernel import Kernel
from kbackup.metrics.events import Listener, Phases
from kbackup.spark.tasks import Spark, run_counted
from kbackup.store import for_writing
from kbackup.types import TopicPartition


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
