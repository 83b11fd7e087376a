"""The job of `verify --against`: compare a cluster with an archive, record by record.

The archive's records come from a restore (its plan and offset map), from a restore point as it would be restored, or
from a restore point whose source cluster is compared.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

import msgspec
import numpy as np
import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.models import SHARE
from kbackup.archive.query.java import open_archive_or_folder, readable
from kbackup.archive.restores.journal import RestoreJournal
from kbackup.archive.restores.offset_map import How, runs_by_partition
from kbackup.archive.restores.plan import RestorePlan, UnitRange, check_same_archive, check_same_target, with_segments
from kbackup.archive.segments.table import sum_of
from kbackup.archive.segments.window import pieces
from kbackup.config.models import Restore
from kbackup.errors import UsageError
from kbackup.jobs.compare.partition import Open, PartitionComparer, Side, TargetOffsets
from kbackup.jobs.compare.report import (
    Against,
    AgainstReport,
    Comparison,
    GroupOffsetCheck,
    fewer_named,
    findings_of,
    is_wrong,
    topics_of,
    totals,
)
from kbackup.jobs.newer import NewerRecords, newer_in_source, newer_sentences
from kbackup.jobs.replay import ahead, read_range
from kbackup.jobs.restore.plan import UNIT_BYTES, UNIT_PARTITIONS, plan_restore, select_content
from kbackup.jobs.restore.request import RestoreRequest
from kbackup.jobs.schemas.records import checked_schemas, missing_schemas
from kbackup.jobs.schemas.rewrite import SchemaRewrite
from kbackup.kafka.client import Properties
from kbackup.kafka.consume import RangeReader
from kbackup.kafka.control.cluster import Cluster
from kbackup.metrics.registry import Phases, ProgressListener
from kbackup.schemas.base import RegistryOptions
from kbackup.spark.tasks import ProgressSender, Spark, pack, run_counted
from kbackup.store.base import Store
from kbackup.types import OffsetRange, Offsets, TopicPartition

_AHEAD = 1  # blocks of the archive that wait while one is compared


@dataclass(frozen=True, slots=True)
class ComparedPartition:
    """A partition of the archive from source offset `first` on, and the offsets [`start`, `end`) of the target. `start`
    = `end` where the target partition does not exist. `target_offsets` as in `PartitionComparer`. `held` are offsets of
    the source that the restore point leaves to the next one."""

    archived: UnitRange
    first: int
    start: int
    end: int
    stamps: bool
    target_offsets: TargetOffsets | None
    held: Offsets = ()

    @property
    def bytes(self) -> int:
        return sum_of(self.archived.segments, "bytes")


@dataclass(frozen=True)
class CompareWork:
    """Function of all tasks. `role` is the cluster's; `restored`: the cluster's records come from a restore. `timeout`
    in seconds, as `RangeReader` has it."""

    cluster: Properties = field(repr=False)
    role: str
    isolation: str
    restored: bool
    store: Store
    show: int
    timeout: float
    schemas: SchemaRewrite | None = None

    def __call__(self, task: tuple[ComparedPartition, ...], progress: ProgressSender) -> Iterator[Comparison]:
        group = layout.reader_group("verify", uuid.uuid4().hex)
        reader = RangeReader(self.cluster, self.isolation, group, self.timeout, role=self.role)
        with closing(reader):
            for compared in task:
                part = compared.archived
                archived = Side(self._archived(part), compared.first, stamps=compared.stamps, restored=self.restored)
                present = Side(topic_blocks(reader, compared), compared.start, stamps=compared.stamps)
                with closing(archived), closing(present):
                    comparer = PartitionComparer(archived, present, compared.target_offsets, self.show, progress.add)
                    result = comparer.run(part.topic, part.partition, part.target)
                yield result

    def _archived(self, part: UnitRange) -> Open:
        pieces = partial(read_range, self.store, part, schemas=self.schemas)
        return lambda start: ahead((piece.block for piece in pieces(start) if piece.block is not None), _AHEAD)


def topic_blocks(reader: RangeReader, compared: ComparedPartition) -> Open:
    """Return a function that reads the target's records; `reader` reads one partition at a time."""
    tp, end, held = compared.archived.tp, compared.end, compared.held
    return lambda start: (
        piece for _, block in reader.read([OffsetRange(*tp, start, end)]) for piece in pieces(block, held)
    )


# Check that consumer groups have committed the offsets that follow from a restore's offset map.

NO_OFFSETS = TargetOffsets(*(np.empty(0, np.int64) for _ in range(3)))


def check_groups(
    cluster: Cluster,
    plan: RestorePlan,
    target_offsets: Mapping[TopicPartition, TargetOffsets],
    ends: Mapping[TopicPartition, int],
) -> tuple[tuple[GroupOffsetCheck, ...], list[str]]:
    """Compare every planned offset with the committed offset on the target. Returns the checks, and a finding for each
    group that can't be read. `target_offsets` and `ends` (log ends, as consumers see them) are by target partition."""
    names = {t.source: t.target for t in plan.topics}
    share = {g.target for g in plan.groups if g.type == SHARE}
    committed, failed = cluster.groups.committed([g.target for g in plan.groups], share)
    checks: list[GroupOffsetCheck] = []
    for group in plan.groups:
        if group.target in failed:
            continue
        positions = {c.tp: c.offset for c in committed.get(group.target, [])}
        for offset in group.offsets:
            tp = TopicPartition(names[offset.topic], offset.partition)
            due, how = due_offset(target_offsets.get(tp, NO_OFFSETS), offset.offset)
            position = positions.get(tp)
            checks.append(
                GroupOffsetCheck(
                    group=group.target,
                    source_group=group.source,
                    topic=tp.topic,
                    partition=tp.partition,
                    committed=offset.offset,
                    due=due,
                    found=position,
                    how=how,
                    ok=position is not None and is_right_position(position, due, how, ends.get(tp, 0)),
                )
            )
    return tuple(checks), [f"group {group} can't be read: {why}" for group, why in sorted(failed.items())]


def due_offset(target_offsets: TargetOffsets, committed: int) -> tuple[int, How]:
    """Return the target offset of the first restored record at or after source offset `committed`. After the last
    restored record: the offset that follows the last record."""
    if not len(target_offsets.source):
        return 0, "empty"
    at = int(np.searchsorted(target_offsets.source, committed, side="right")) - 1
    if at < 0:
        return int(target_offsets.target[0]), "log start"
    into = committed - int(target_offsets.source[at])
    if into < target_offsets.count[at]:
        return int(target_offsets.target[at]) + into, "exact"
    if at + 1 < len(target_offsets.source):
        return int(target_offsets.target[at + 1]), "next record"
    return int(target_offsets.target[at] + target_offsets.count[at]), "log end"


def is_right_position(position: int, due: int, how: How, end: int) -> bool:
    """Compare a position with the due one; past the last record any offset up to the log end is right. Transaction
    markers lie between the last record and the log end."""
    return due <= position <= end if how in ("log end", "empty") else position == due


# Plan a comparison of `verify --against`: partitions of the archive, and the cluster's offsets to read for each.

_SAME_OFFSETS = TargetOffsets(*(np.array([n], np.int64) for n in (0, 0, 1 << 62)))  # every record at its own offset


@dataclass(frozen=True)
class CompareRequest:
    """Options of a comparison. `options` select restore point, topics and names, or (`restore_id`) a restore. `exact`:
    records of the topics after the archive's last record are differences, too. `show` differences are named."""

    against: Against
    options: Restore
    groups: bool = False
    exact: bool = False
    show: int = 20


@dataclass
class ComparePlan:
    """Partitions to compare, and what is known before. `target_offsets` by target partition; None: unknown. `schemas`
    are the ids that the restored records have in place of the archived ones."""

    plan: RestorePlan
    target_offsets: dict[TopicPartition, TargetOffsets] | None
    isolation: str
    partitions: list[ComparedPartition] = field(default_factory=list)
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    unstamped: set[str] = field(default_factory=set)
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    schemas: SchemaRewrite | None = None
    held: dict[TopicPartition, Offsets] = field(default_factory=dict)
    newer: tuple[NewerRecords, ...] = ()


def find_newer(plan: RestorePlan, cluster: Cluster, cluster_id: str, store: Store) -> tuple[NewerRecords, ...]:
    """Return the topics with records that the restore point lacks, if the cluster is the one that it was taken of."""
    sources = {topic.source for topic in plan.topics}
    return newer_in_source(cluster, cluster_id, open_archive_or_folder(store), plan.restore_point, sources)


def plan_comparison(request: CompareRequest, store: Store, state: Store, cluster_id: str) -> ComparePlan:
    options = request.options
    if request.groups and not options.restore_id:
        raise UsageError("groups are compared by a restore's offset map", "give --restore-id")
    if request.against == "source":
        if options.restore_id:
            raise UsageError("a restore is compared with its target", "use --against target")
        if options.to_time or options.from_time or options.range or options.skip or options.where:
            raise UsageError(
                "the source is compared with all of a restore point", "leave out times, ranges and other windows"
            )
        options = msgspec.structs.replace(options, map={}, map_regex=())
    elif options.restore_id:
        plan, runs = RestoreJournal(state, options.restore_id).finished()
        plan = with_segments(state, plan)
        check_same_target(plan, cluster_id)
        check_same_archive(plan, open_archive_or_folder(store))
        return ComparePlan(plan, restored_offsets(plan, runs), "read_committed")
    asked = RestoreRequest.of(msgspec.structs.replace(options, no_groups=True))
    plan = plan_restore(asked, select_content(asked, store), cluster_id)
    if request.against == "target":
        return ComparePlan(plan, None, "read_committed")
    archive = open_archive_or_folder(store)  # a folder of the Java tool does not record it
    point = archive.restore_point(plan.restore_point) if archive is not None else None
    isolation = point.isolation_level if point is not None else "read_committed"
    held = {TopicPartition(t.name, p.partition): p.held for t in (point.topics if point else ()) for p in t.partitions}
    return ComparePlan(plan, {part.tp: _SAME_OFFSETS for part in _all_partitions(plan)}, isolation, held=held)


def restored_offsets(plan: RestorePlan, runs: pa.Table) -> dict[TopicPartition, TargetOffsets]:
    """Return the offset map of each target partition; an empty one where no record was restored."""
    bare = {part.tp: NO_OFFSETS for part in _all_partitions(plan)}
    return bare | {tp: TargetOffsets(*columns) for tp, columns in runs_by_partition(runs).items()}


def _all_partitions(plan: RestorePlan) -> list[UnitRange]:
    """Return all partitions of the plan, also the empty ones."""
    parts = {part.tp: part for unit in plan.units for part in unit}
    bare = (
        UnitRange(topic=topic.source, partition=number, target=topic.target, segments=())
        for topic in plan.topics
        for number in range(topic.partitions)
    )
    return [*parts.values(), *(part for part in bare if part.tp not in parts)]


def inspect_cluster(compare_plan: ComparePlan, cluster: Cluster, against: Against) -> None:
    """Add to the plan the offsets to read of each partition of the cluster, and its missing topics."""
    names = [t.target for t in compare_plan.plan.topics]
    topics = cluster.topics(names)
    compare_plan.absent = set(names) - topics.keys()
    compare_plan.findings += [f"topic {name} is not in the {against} cluster" for name in sorted(compare_plan.absent)]
    parts = _all_partitions(compare_plan.plan)
    known: list[TopicPartition] = []
    for part in parts:
        if part.target in topics and part.partition in topics[part.target].partitions:
            known.append(part.tp)
        elif part.target in topics:
            compare_plan.findings.append(f"partition {part.tp} is not in the {against} cluster")
    starts, compare_plan.ends = cluster.log_starts(known), cluster.log_ends(known, compare_plan.isolation)
    if against == "target":
        types = cluster.one_config(topics, "message.timestamp.type")
        compare_plan.unstamped = {topic for topic, value in types.items() if value == "LogAppendTime"}
    compare_plan.partitions += [_compared(compare_plan, p, starts.get(p.tp, 0), against) for p in parts]


def _compared(compare_plan: ComparePlan, part: UnitRange, log_start: int, against: Against) -> ComparedPartition:
    end, first = compare_plan.ends.get(part.tp, 0), 0
    offsets = compare_plan.target_offsets
    target_offsets = offsets.get(part.tp, NO_OFFSETS) if offsets is not None else None
    start = log_start
    if against == "source":
        begin = part.segments[0].first if part.segments else 0
        first = start = max(begin, log_start)
        end = max(start, min(end, part.segments[-1].last + 1)) if part.segments else start
        if log_start > begin and part.segments:
            compare_plan.notes.append(
                f"{part.tp}: what was archived before offset {log_start} is no longer in the source: not compared"
            )
    elif target_offsets is not None and len(target_offsets.target) and compare_plan.plan.into_existing:
        # else the topic was empty: a record before the first restored record is an extra record
        start = max(log_start, int(target_offsets.target.min()))
    stamps, held = part.target not in compare_plan.unstamped, compare_plan.held.get(part.tp, ())
    return ComparedPartition(part, first, min(start, end), end, stamps, target_offsets, held)


# The phases of the job.

_TIMEOUT = 60.0  # s without anything from the cluster


def verify_against(
    request: CompareRequest,
    properties: Properties,
    store: Store,
    state: Store,
    spark: Spark,
    listener: ProgressListener,
    registry: RegistryOptions | None = None,
) -> AgainstReport:
    """Compare the cluster of `properties`, and its schema registry, with the archive; `state` has the plans and offset
    maps of restores."""
    phases = Phases(listener)
    with phases.step("connect"):
        cluster = Cluster(properties, request.against)
        cluster_id, _ = cluster.connect()
    with phases.step("plan"):
        compare_plan = plan_comparison(request, store, state, cluster_id)
        inspect_cluster(compare_plan, cluster, request.against)
        compare_plan.newer = find_newer(compare_plan.plan, cluster, cluster_id, store)
        if registry is not None:
            archive, is_source = open_archive_or_folder(store), request.against == "source"
            compare_plan.findings += missing_schemas(registry, is_source, archive, compare_plan.plan, state)
        if request.against == "target" and request.options.restore_id:
            compare_plan.schemas = checked_schemas(compare_plan.plan, store, state, registry)
    with phases.step("compare"):
        partitions = [p for p in compare_plan.partitions if p.archived.segments or p.start < p.end]
        # big partitions alone, small ones together, as a restore has them; the biggest first
        partitions.sort(key=lambda p: -p.bytes)
        tasks = pack(partitions, lambda p: p.bytes, UNIT_BYTES, UNIT_PARTITIONS)
        work = CompareWork(
            cluster=properties,
            role=request.against,
            isolation=compare_plan.isolation,
            restored=request.against == "target",
            store=readable(store, compare_plan.plan.archive_id),
            show=request.show,
            timeout=_TIMEOUT,
            schemas=compare_plan.schemas,
        )
        expected = sum(sum_of(p.archived.segments, "count") for p in partitions)
        results = run_counted(spark, tasks, work, listener, expected)
        results.sort(key=lambda r: (r.target, r.partition))
    checks: tuple[GroupOffsetCheck, ...] = ()
    if request.groups:
        with phases.step("groups"):
            offsets = compare_plan.target_offsets or {}
            checks, unread = check_groups(cluster, compare_plan.plan, offsets, compare_plan.ends)
            compare_plan.findings += unread
    return _report(request, store.url, cluster_id, compare_plan, results, checks, phases.seconds)


def _report(
    request: CompareRequest,
    url: str,
    cluster_id: str,
    compare_plan: ComparePlan,
    results: Sequence[Comparison],
    checks: tuple[GroupOffsetCheck, ...],
    seconds: Mapping[str, float],
) -> AgainstReport:
    plan = compare_plan.plan
    findings = [*compare_plan.findings, *findings_of(results, request.exact)]
    findings += [
        f"group {c.group} has {'nothing' if c.found is None else f'offset {c.found}'} in {c.topic}-{c.partition}, "
        f"due is {c.due} ({c.how})"
        for c in checks
        if not c.ok
    ]
    notes = [
        *compare_plan.notes,
        *newer_sentences(compare_plan.newer, plan.restore_point),
        *(
            f"topic {name} has the broker's own timestamps (LogAppendTime): they were left out"
            for name in sorted(compare_plan.unstamped)
        ),
        *(
            f"{r.target}-{r.partition}: {r.after:,} records from offset {r.after_from} on came after the last one of "
            "the archive: not compared"
            for r in results
            if r.after and not request.exact
        ),
    ]
    return AgainstReport(
        against=request.against,
        cluster_id=cluster_id,
        archive=url,
        archive_id=plan.archive_id,
        restore_point=plan.restore_point,
        restore_id=request.options.restore_id if request.against == "target" else None,
        topics=topics_of(plan.topics, results, compare_plan.unstamped, compare_plan.absent, request.exact),
        partitions=fewer_named([r for r in results if is_wrong(r, True)], request.show),
        groups=checks,
        partitions_compared=len(compare_plan.partitions),
        findings=tuple(findings),
        notes=tuple(notes),
        seconds=dict(seconds),
        newer=compare_plan.newer,
        **totals(results),
    )
