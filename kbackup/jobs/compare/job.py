"""The job of `verify --against`: compare a cluster with an archive, record by record.

The archive's records come from a restore (its plan and offset map), from a restore point as it would be restored, or
from a restore point whose source cluster is compared.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from operator import attrgetter

import msgspec
import numpy as np
import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.models import SHARE
from kbackup.archive.query.java import open_archive_or_folder, readable
from kbackup.archive.restores.journal import RestoreJournal
from kbackup.archive.restores.offset_map import How, runs_by_partition
from kbackup.archive.restores.plan import (
    RestorePlan,
    UnitRange,
    check_not_erased,
    check_same_archive,
    check_same_target,
    check_segments_there,
    with_segments,
)
from kbackup.archive.segments.read import superseded_gaps
from kbackup.archive.segments.table import sum_of
from kbackup.archive.segments.window import NO_GAPS, Gaps, joined, pieces
from kbackup.config.models import Restore
from kbackup.errors import UsageError
from kbackup.formats.block import select_records
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
from kbackup.jobs.finding_kinds import unread_group
from kbackup.jobs.newer import LiveCluster, NewerRecords, newer_in_source, newer_sentences
from kbackup.jobs.replay import ahead, read_range
from kbackup.jobs.restore.plan import UNIT_BYTES, UNIT_PARTITIONS, plan_restore, select_content
from kbackup.jobs.restore.request import RestoreRequest
from kbackup.jobs.restore.resume import check_same_transform
from kbackup.jobs.schemas.records import checked_schemas, missing_schemas
from kbackup.jobs.schemas.rewrite import SchemaRewrite
from kbackup.jobs.transform import Transform, transform_of, with_schemas
from kbackup.kafka.client import Properties
from kbackup.kafka.consume import RangeReader
from kbackup.kafka.control.cluster import Cluster
from kbackup.metrics.registry import Phases, ProgressListener
from kbackup.schemas.base import RegistryOptions
from kbackup.spark.tasks import ProgressSender, Spark, pack, run_counted
from kbackup.store.base import Store
from kbackup.types import OffsetRange, Offsets, RecordBlock, TopicPartition

_AHEAD = 1  # blocks of the archive that wait while one is compared


@dataclass(frozen=True, slots=True)
class ComparedPartition:
    """A partition of the archive from source offset `first` on, and the offsets [`start`, `end`) of the target. The two
    are equal if the target partition does not exist. `target_offsets` is as in `PartitionComparer`. `held` are offsets
    of the source that the restore point leaves to the next one, or whose records were erased in the archive."""

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
    """The function of all tasks. `role` is the role of the cluster. With `restored`, the cluster's records come from a
    restore. `timeout` is in seconds, as in `RangeReader`."""

    cluster: Properties = field(repr=False)
    role: str
    isolation: str
    restored: bool
    store: Store
    show: int
    timeout: float
    schemas: SchemaRewrite | None = None
    transform: Transform | None = None

    def __call__(self, task: tuple[ComparedPartition, ...], progress: ProgressSender) -> Iterator[Comparison]:
        group = layout.reader_group("verify", uuid.uuid4().hex)
        reader = RangeReader(self.cluster, self.isolation, group, self.timeout, role=self.role)
        with closing(reader):
            for compared in task:
                part = compared.archived
                archived = Side(self._archived(part), compared.first, stamps=compared.stamps, restored=self.restored)
                # A restore's target never had what was superseded. The source may still have it.
                segments = () if self.restored else part.segments
                superseded = superseded_gaps(self.store, segments)
                present = Side(topic_blocks(reader, compared, superseded), compared.start, stamps=compared.stamps)
                with closing(archived), closing(present):
                    comparer = PartitionComparer(archived, present, compared.target_offsets, self.show, progress.add)
                    result = comparer.run(part.topic, part.partition, part.target)
                yield result

    def _archived(self, part: UnitRange) -> Open:
        def blocks(start: int) -> Iterator[RecordBlock]:
            for piece in read_range(self.store, part, start, schemas=self.schemas, transform=self.transform):
                if piece.block is not None:
                    yield piece.block

        return lambda start: ahead(blocks(start), _AHEAD)


def topic_blocks(reader: RangeReader, compared: ComparedPartition, superseded: Gaps = NO_GAPS) -> Open:
    """Return a function that reads the target's records, without those in the gaps `superseded`; `reader` reads one
    partition at a time."""

    def blocks(start: int) -> Iterator[RecordBlock]:
        offsets = OffsetRange(*compared.archived.tp, start, compared.end)
        for _, block in reader.read([offsets]):
            for piece in pieces(block, compared.held):
                is_outside = superseded.outside(piece.offsets)
                others = piece if is_outside.all() else select_records(piece, is_outside)
                if len(others):
                    yield others

    return blocks


# Check that consumer groups have committed the offsets that follow from a restore's offset map.

_NOTHING = np.empty(0, np.int64)
NO_OFFSETS = TargetOffsets(_NOTHING, _NOTHING, _NOTHING)


def check_groups(
    cluster: Cluster,
    plan: RestorePlan,
    target_offsets: Mapping[TopicPartition, TargetOffsets],
    ends: Mapping[TopicPartition, int],
) -> tuple[tuple[GroupOffsetCheck, ...], list[str]]:
    """Compare every planned offset with the committed offset on the target. Returns the checks, and a finding for each
    group that can't be read. `target_offsets` and `ends` (log ends, as consumers see them) are by target partition."""
    names = {topic.source: topic.target for topic in plan.topics}
    groups = [group.target for group in plan.groups]
    share_groups = {group.target for group in plan.groups if group.type == SHARE}
    committed, failed = cluster.groups.committed(groups, share_groups)
    checks: list[GroupOffsetCheck] = []
    for group in plan.groups:
        if group.target in failed:
            continue
        positions = {offset.tp: offset.offset for offset in committed.get(group.target, [])}
        for offset in group.offsets:
            tp = TopicPartition(names[offset.topic], offset.partition)
            due, how = due_offset(target_offsets.get(tp, NO_OFFSETS), offset.offset)
            position = positions.get(tp)
            is_right = position is not None and is_right_position(position, due, how, ends.get(tp, 0))
            check = GroupOffsetCheck(
                group=group.target,
                source_group=group.source,
                topic=tp.topic,
                partition=tp.partition,
                committed=offset.offset,
                due=due,
                found=position,
                how=how,
                ok=is_right,
            )
            checks.append(check)
    unread = [unread_group(group, why) for group, why in sorted(failed.items())]
    return tuple(checks), unread


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
    """Return whether a position is the due one. Past the last record, any offset up to the log end is right:
    transaction markers lie between the last record and the log end."""
    if how in ("log end", "empty"):
        return due <= position <= end
    return position == due


# Plan a comparison of `verify --against`: partitions of the archive, and the cluster's offsets to read for each.

_ZERO = np.zeros(1, np.int64)
_SAME_OFFSETS = TargetOffsets(_ZERO, _ZERO, np.array([1 << 62], np.int64))  # every record at its own offset


@dataclass(frozen=True)
class CompareRequest:
    """The options of a comparison. `options` select a restore point, topics and names, or a restore by `restore_id`.
    With `exact`, records of the topics after the archive's last record are differences, too. `show` differences are
    named."""

    against: Against
    options: Restore
    groups: bool = False
    exact: bool = False
    show: int = 20


@dataclass
class ComparePlan:
    """The partitions to compare, and what is known before. `target_offsets` are by target partition, None if they are
    unknown. `schemas` has the ids that the restored records have in place of the archived ones, `transform` the
    function that they went through."""

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
    transform: Transform | None = None
    held: dict[TopicPartition, Offsets] = field(default_factory=dict)
    newer: tuple[NewerRecords, ...] = ()


def find_newer(plan: RestorePlan, live: LiveCluster, store: Store, state: Store) -> tuple[NewerRecords, ...]:
    """Return the topics with records that the restore point lacks, if the cluster is the source of the restore
    point. `state` has the documents of restores."""
    sources = {topic.source for topic in plan.topics}
    return newer_in_source(live, open_archive_or_folder(store), plan.restore_point, sources, state)


def plan_comparison(request: CompareRequest, store: Store, state: Store, cluster_id: str) -> ComparePlan:
    options = request.options
    _check_options(request)
    if request.against == "target" and options.restore_id:
        return _plan_of_restore(store, state, options.restore_id, cluster_id, transform_of(options.transform))
    if request.against == "source":
        # The source's topics have the names that the archive has, whatever a restore would call them, and its records
        # went through no transform.
        options = msgspec.structs.replace(options, map={}, map_regex=(), transform=None)
    asked = RestoreRequest.of(msgspec.structs.replace(options, no_groups=True))
    plan = plan_restore(asked, select_content(asked, store), cluster_id)
    if request.against == "target":
        transform = with_schemas(asked.transform, open_archive_or_folder(store), plan.restore_point)
        return ComparePlan(plan, None, "read_committed", transform=transform)
    return _plan_of_source(store, plan)


def _check_options(request: CompareRequest) -> None:
    options = request.options
    if request.groups and not options.restore_id:
        raise UsageError("groups are compared by a restore's offset map", "give --restore-id")
    if request.against == "target":
        return
    if options.restore_id:
        raise UsageError("a restore is compared with its target", "use --against target")
    if options.to_time or options.from_time or options.range or options.skip or options.where:
        raise UsageError(
            "the source is compared with all of a restore point", "leave out times, ranges and other windows"
        )


def _plan_of_restore(
    store: Store, state: Store, restore_id: str, cluster_id: str, transform: Transform | None
) -> ComparePlan:
    """Plan to compare the result of a restore. `MismatchError` unless its records went through `transform`."""
    plan, runs = RestoreJournal(state, restore_id).finished()
    plan = with_segments(state, plan)
    check_same_target(plan, cluster_id)
    archive = open_archive_or_folder(store)
    check_same_archive(plan, archive)
    check_not_erased(plan, archive)
    check_segments_there(plan, archive)
    check_same_transform(plan, transform)
    transform = with_schemas(transform, archive, plan.restore_point)
    return ComparePlan(plan, restored_offsets(plan, runs), "read_committed", transform=transform)


def _plan_of_source(store: Store, plan: RestorePlan) -> ComparePlan:
    """Plan to compare the cluster that was backed up, read with the isolation level of its backup."""
    offsets = {part.tp: _SAME_OFFSETS for part in _all_partitions(plan)}
    archive = open_archive_or_folder(store)
    if archive is None:  # a folder of the Java tool does not record the isolation level
        return ComparePlan(plan, offsets, "read_committed")
    point = archive.restore_point(plan.restore_point)
    held: dict[TopicPartition, Offsets] = {}
    for topic in point.topics:
        for partition in topic.partitions:
            place = (topic.name, topic.incarnation, partition.partition)
            absent = [*partition.held, *archive.state.erased_offsets(place)]
            held[TopicPartition(topic.name, partition.partition)] = joined(absent)
    return ComparePlan(plan, offsets, point.isolation_level, held=held)


def restored_offsets(plan: RestorePlan, runs: pa.Table) -> dict[TopicPartition, TargetOffsets]:
    """Return the offset map of each target partition; an empty one where no record was restored."""
    offsets = {part.tp: NO_OFFSETS for part in _all_partitions(plan)}
    for tp, columns in runs_by_partition(runs).items():
        offsets[tp] = TargetOffsets(*columns)
    return offsets


def _all_partitions(plan: RestorePlan) -> list[UnitRange]:
    """Return all partitions of the plan, also the empty ones: the target may have records in them."""
    parts = {part.tp: part for part in plan.ranges}
    for topic in plan.topics:
        for number in range(topic.partitions):
            empty = UnitRange(topic=topic.source, partition=number, target=topic.target, segments=())
            parts.setdefault(empty.tp, empty)
    return list(parts.values())


def inspect_cluster(compare_plan: ComparePlan, cluster: Cluster, against: Against) -> None:
    """Add to the plan the offsets to read of each partition of the cluster, and its missing topics."""
    names = [t.target for t in compare_plan.plan.topics]
    topics = cluster.topics(names)
    compare_plan.absent = set(names) - topics.keys()
    compare_plan.findings += [f"topic {name} is not in the {against} cluster" for name in sorted(compare_plan.absent)]
    parts = _all_partitions(compare_plan.plan)
    known: list[TopicPartition] = []
    for part in parts:
        if part.target not in topics:
            continue  # that is a finding already
        if part.partition in topics[part.target].partitions:
            known.append(part.tp)
        else:
            compare_plan.findings.append(f"partition {part.tp} is not in the {against} cluster")
    starts = cluster.log_starts(known)
    compare_plan.ends = cluster.log_ends(known, compare_plan.isolation)
    if against == "target":
        types = cluster.one_config(topics, "message.timestamp.type")
        compare_plan.unstamped = {topic for topic, value in types.items() if value == "LogAppendTime"}
    compare_plan.partitions += [_compared(compare_plan, p, starts.get(p.tp, 0), against) for p in parts]


def _compared(compare_plan: ComparePlan, part: UnitRange, log_start: int, against: Against) -> ComparedPartition:
    end = compare_plan.ends.get(part.tp, 0)
    first = 0
    offsets = compare_plan.target_offsets
    target_offsets = offsets.get(part.tp, NO_OFFSETS) if offsets is not None else None
    start = log_start
    if against == "source":
        first, end = _archived_range(compare_plan, part, log_start, end)
        start = first
    elif target_offsets is not None and len(target_offsets.target) and compare_plan.plan.into_existing:
        # else the topic was empty: a record before the first restored record is an extra record
        start = max(log_start, int(target_offsets.target.min()))
    stamps = part.target not in compare_plan.unstamped
    held = compare_plan.held.get(part.tp, ())
    return ComparedPartition(part, first, min(start, end), end, stamps, target_offsets, held)


def _archived_range(compare_plan: ComparePlan, part: UnitRange, log_start: int, log_end: int) -> tuple[int, int]:
    """Return the offsets of a source partition that the archive and the log both reach. Add a note if the log lacks
    some of what was archived."""
    if not part.segments:
        return log_start, log_start
    begin = part.segments[0].first
    if log_start > begin:
        compare_plan.notes.append(
            f"{part.tp}: what was archived before offset {log_start} is no longer in the source: not compared"
        )
    first = max(begin, log_start)
    end = min(log_end, part.segments[-1].last + 1)
    return first, max(first, end)


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
        live = LiveCluster(cluster, cluster_id, properties)
        compare_plan.newer = find_newer(compare_plan.plan, live, store, state)
        if registry is not None:
            archive, is_source = open_archive_or_folder(store), request.against == "source"
            compare_plan.findings += missing_schemas(registry, is_source, archive, compare_plan.plan, state)
        if request.against == "target" and request.options.restore_id:
            compare_plan.schemas = checked_schemas(compare_plan.plan, store, state, registry)
    with phases.step("compare"):
        partitions = [p for p in compare_plan.partitions if p.archived.segments or p.start < p.end]
        # big partitions alone, small ones together, as a restore has them; the biggest first
        partitions.sort(key=attrgetter("bytes"), reverse=True)
        tasks = pack(partitions, attrgetter("bytes"), UNIT_BYTES, UNIT_PARTITIONS)
        work = CompareWork(
            cluster=properties,
            role=request.against,
            isolation=compare_plan.isolation,
            restored=request.against == "target",
            store=readable(store, compare_plan.plan.archive_id),
            show=request.show,
            timeout=_TIMEOUT,
            schemas=compare_plan.schemas,
            transform=compare_plan.transform,
        )
        expected = sum(sum_of(p.archived.segments, "count") for p in partitions)
        results = run_counted(spark, tasks, work, listener, expected)
        results.sort(key=attrgetter("target", "partition"))
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
    for check in checks:
        if not check.ok:
            findings.append(_group_finding(check))
    notes = [*compare_plan.notes, *newer_sentences(compare_plan.newer, plan.restore_point)]
    for name in sorted(compare_plan.unstamped):
        notes.append(f"topic {name} has the broker's own timestamps (LogAppendTime): they were left out")
    for result in results:
        if result.after and not request.exact:
            notes.append(
                f"{result.target}-{result.partition}: {result.after:,} records from offset {result.after_from} on came "
                "after the last one of the archive: not compared"
            )
    topics = topics_of(plan.topics, results, compare_plan.unstamped, compare_plan.absent, request.exact)
    # A partition that only has records after the archive's last one is listed as well, whether that is wrong or not.
    listed = [result for result in results if is_wrong(result, True)]
    return AgainstReport(
        against=request.against,
        cluster_id=cluster_id,
        archive=url,
        archive_id=plan.archive_id,
        restore_point=plan.restore_point,
        restore_id=request.options.restore_id if request.against == "target" else None,
        topics=topics,
        partitions=fewer_named(listed, request.show),
        groups=checks,
        partitions_compared=len(compare_plan.partitions),
        findings=tuple(findings),
        notes=tuple(notes),
        seconds=dict(seconds),
        newer=compare_plan.newer,
        **totals(results),
    )


def _group_finding(check: GroupOffsetCheck) -> str:
    found = "nothing" if check.found is None else f"offset {check.found}"
    return f"group {check.group} has {found} in {check.topic}-{check.partition}, not offset {check.due} ({check.how})"
