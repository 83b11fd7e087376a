"""The backup job: a page of named steps. The manifest is the commit; everything before it is invisible to readers."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kbackup import __version__
from kbackup.archive import layout
from kbackup.archive.commit import (
    open_or_create,
    publish,
    put_part,
    read_intent,
    refresh_derived,
    seal_unfinished,
)
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import (
    Groups,
    Intent,
    IntentTopic,
    Loss,
    Manifest,
    Metadata,
    TopicState,
    Totals,
    dump,
    now,
)
from kbackup.archive.reader import Archive
from kbackup.archive.segments import Segment, encode_segments
from kbackup.config.models import Backup
from kbackup.errors import KbackupError
from kbackup.jobs import capture
from kbackup.jobs.backup_task import BackupWork
from kbackup.jobs.listen import Listener, Phases
from kbackup.jobs.plan import Plan, make_plan, make_tasks, retention_loss, without
from kbackup.jobs.recover import Recovered, recover
from kbackup.jobs.select import Selection
from kbackup.jobs.state import next_states, totals
from kbackup.jobs.tasks import run_tasks
from kbackup.kafka import kernel
from kbackup.kafka.admin import Cluster
from kbackup.kafka.client import Properties
from kbackup.kafka.kernel import Kernel
from kbackup.kafka.read import Vanished
from kbackup.store.base import Store
from kbackup.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Spark = Callable[[], "SparkSession"]


@dataclass(frozen=True)
class BackupReport:
    """What a run did. `seconds` are by step."""

    restore_point: int
    parent: int | None
    archive: str
    totals: Totals
    topics: tuple[TopicState, ...]
    losses: tuple[Loss, ...]
    warnings: tuple[str, ...]
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass
class _Run:
    """One run while it is under way."""

    options: Backup
    source: Properties
    archive: Archive
    cluster: Cluster
    cluster_id: str
    brokers: int
    lease: HeldLease
    seq: int
    parent: Manifest | None
    started_at: str
    unfinished: list[Intent]

    @property
    def run_id(self) -> str:
        return self.lease.owner


def backup(
    options: Backup, source: Properties, store: Store, spark: Spark, listener: Listener
) -> BackupReport:
    """One restore point from what the cluster holds now; raises a `KbackupError` when there is none in the end."""
    phases = Phases(listener)
    started_at = now()
    with phases.step("connect"):
        cluster = Cluster(source, "source")
        cluster_id, brokers = cluster.connect()
        archive = open_or_create(store)
    with HeldLease(store, "kbackup backup", options.lease_seconds) as lease:
        with phases.step("connect"):
            seal_unfinished(archive, lease.owner)
            _repair_derived(archive, lease)
            run = _begin(options, source, archive, cluster, lease, started_at, cluster_id, brokers)
        with phases.step("discover"):
            topics, existing = capture.discover(
                cluster, Selection.of(options.topics, options.exclude_topics), run.parent
            )
        with phases.step("capture groups"):
            # before the end offsets, so that no group points past what is archived
            groups = capture.groups(
                cluster, Selection.of(options.groups, options.exclude_groups), set(topics)
            )
        with phases.step("resolve ranges"):
            live = capture.live_topics(cluster, topics, options.isolation_level)
            metadata = capture.metadata(cluster, topics, cluster_id, brokers)
        with phases.step("plan"):
            plan = make_plan(run.parent, live, existing)
            _write_intent(run, plan)
        with phases.step("run"):
            recovered = recover(archive, plan, run.unfinished, options.isolation_level, spark, lease.check)
            segments, vanished = _read(run, plan, recovered.segments, spark, listener)
        with phases.step("commit"):
            capture.check_same_topics(cluster, plan)
            manifest = _commit(run, plan, segments, vanished, groups, metadata, recovered)
        with phases.step("refresh derived files"):
            _refresh(run, manifest, segments)
    return _report(store, manifest, phases)


def _begin(
    options: Backup,
    source: Properties,
    archive: Archive,
    cluster: Cluster,
    lease: HeldLease,
    started_at: str,
    cluster_id: str,
    brokers: int,
) -> _Run:
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
    return _Run(
        options, source, archive, cluster, cluster_id, brokers, lease, last + 1, head, started_at, unfinished
    )


def _repair_derived(archive: Archive, lease: HeldLease) -> None:
    """Where a crash fell between a commit and its derived files."""
    head = archive.head
    if head is None:
        return
    files = next(run.files for run in archive.runs if run.seq == head.seq)
    if layout.REFRESHED not in files:
        refresh_derived(archive, head, check=lease.check)


def _write_intent(run: _Run, plan: Plan) -> None:
    intent = Intent(
        archive_id=run.archive.info.id,
        seq=run.seq,
        parent=run.parent.seq if run.parent is not None else None,
        run_id=run.run_id,
        host=socket.gethostname(),
        started_at=run.started_at,
        isolation_level=run.options.isolation_level,
        topics=tuple(IntentTopic(name=t.name, id=t.id, incarnation=t.incarnation) for t in plan.topics),
    )
    run.lease.check()
    run.archive.store.put_new(layout.backup_key(run.seq, layout.INTENT), dump(intent))


def _read(
    run: _Run, plan: Plan, taken: Sequence[Segment], spark: Spark, listener: Listener
) -> tuple[list[Segment], list[Vanished]]:
    intervals: dict[TopicPartition, list[tuple[int, int]]] = {}
    for segment in taken:
        intervals.setdefault(TopicPartition(segment.topic, segment.partition), []).append(
            (segment.first, segment.last)
        )
    ranges = without(plan.ranges, intervals)
    tasks = make_tasks(ranges, run.options.split_records, run.options.pack_records)
    if not tasks:
        return list(taken), []
    expected = sum(r.end - r.start for r in ranges)
    work = BackupWork(
        source=run.source,
        store=run.archive.store,
        isolation=run.options.isolation_level,
        group=f"kbackup-backup-{run.run_id}",
        segment_bytes=run.options.segment_bytes,
        compression=run.options.compression,
        poll_timeout=run.options.poll_timeout_seconds,
        incarnations={t.name: t.incarnation for t in plan.topics},
        since=run.archive.store.stat(layout.backup_key(run.seq, layout.INTENT)).modified,
    )
    results = run_tasks(
        spark(), tasks, work, lambda records, size: listener.progress(records, size, expected)
    )
    kernel.say(r for r in results if isinstance(r, Kernel))
    segments = [r for r in results if isinstance(r, Segment)]
    return [*taken, *segments], [r for r in results if isinstance(r, Vanished)]


def _commit(
    run: _Run,
    plan: Plan,
    segments: Sequence[Segment],
    vanished: Sequence[Vanished],
    groups: Groups,
    metadata: Metadata,
    recovered: Recovered,
) -> Manifest:
    losses = [*plan.losses, *(retention_loss(v.tp, v.start, v.end) for v in vanished)]
    not_carried = [f"group {group} is not carried: {why}" for group, why in groups.not_carried.items()]
    files = {
        layout.SEGMENTS: put_part(run.archive, run.seq, layout.SEGMENTS, encode_segments(segments)),
        layout.GROUPS: put_part(run.archive, run.seq, layout.GROUPS, dump(groups)),
        layout.METADATA: put_part(run.archive, run.seq, layout.METADATA, dump(metadata)),
    }
    manifest = Manifest(
        status="committed",
        archive_id=run.archive.info.id,
        seq=run.seq,
        parent=run.parent.seq if run.parent is not None else None,
        run_id=run.run_id,
        tool=f"kbackup {__version__}",
        started_at=run.started_at,
        committed_at=now(),
        cluster_id=run.cluster_id,
        isolation_level=run.options.isolation_level,
        topics=next_states(run.seq, plan, segments),
        losses=tuple(losses),
        warnings=(*plan.warnings, *recovered.warnings, *not_carried),
        totals=totals(plan, segments, len(groups.groups)),
        files=files,
    )
    run.lease.check()
    publish(run.archive, manifest)
    return manifest


def _refresh(run: _Run, manifest: Manifest, segments: Sequence[Segment]) -> None:
    try:
        touched = _touched(run.parent, manifest, segments)
        refresh_derived(run.archive, manifest, touched, run.parent, run.lease.check)
    except KbackupError as error:
        raise type(error)(
            f"restore point {manifest.seq} is committed, but not all derived files are refreshed: {error.message}",
            f"the next backup does that; {error.hint}",
        ) from error


def _touched(
    parent: Manifest | None, manifest: Manifest, segments: Sequence[Segment]
) -> set[tuple[str, int, int]]:
    """Partitions whose index changed: those with new segments, and those that are new to the archive."""
    before = {
        (t.name, t.incarnation, p.partition) for t in (parent.topics if parent else ()) for p in t.partitions
    }
    now_there = {(t.name, t.incarnation, p.partition) for t in manifest.topics for p in t.partitions}
    return {(s.topic, s.incarnation, s.partition) for s in segments} | (now_there - before)


def _report(store: Store, manifest: Manifest, phases: Phases) -> BackupReport:
    assert manifest.totals is not None  # noqa: S101 (a committed manifest has them)
    return BackupReport(
        restore_point=manifest.seq,
        parent=manifest.parent,
        archive=store.url,
        totals=manifest.totals,
        topics=manifest.topics,
        losses=manifest.losses,
        warnings=manifest.warnings,
        seconds=phases.seconds,
    )
