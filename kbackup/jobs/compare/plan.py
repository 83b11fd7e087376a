"""Plan a comparison of `verify --against`: partitions of the archive, and the cluster's offsets to read for each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pyarrow as pa

from kbackup.archive.reader import open_archive
from kbackup.archive.restores.finished import finished_restore
from kbackup.archive.restores.offset_map import by_partition
from kbackup.archive.restores.plan import RestorePlan, UnitRange, check_same_archive, check_same_target
from kbackup.config.jobs import Restore
from kbackup.errors import NoArchiveError, UsageError
from kbackup.jobs.compare.groups import NO_OFFSETS
from kbackup.jobs.compare.report import Against
from kbackup.jobs.compare.result import TargetOffsets
from kbackup.jobs.compare.task import ComparedPartition
from kbackup.jobs.restore.content import plan_restore, select_content
from kbackup.kafka.admin.cluster import Cluster
from kbackup.store.base import Store
from kbackup.types import TopicPartition

_SAME_OFFSETS = TargetOffsets(*(np.array([n], np.int64) for n in (0, 0, 1 << 62)))
"""Every record at its own offset."""


@dataclass(frozen=True)
class CompareRequest:
    """Options of a comparison.

    `options` select restore point, topics and names, or (`restore_id`) a restore. `exact`: records of the topics after
    the archive's last record are differences, too. `show` differences are named.
    """

    against: Against
    options: Restore
    groups: bool = False
    exact: bool = False
    show: int = 20


@dataclass
class ComparePlan:
    """Partitions to compare, and what is known before. `target_offsets` by target partition; None: unknown."""

    plan: RestorePlan
    target_offsets: dict[TopicPartition, TargetOffsets] | None
    isolation: str
    partitions: list[ComparedPartition] = field(default_factory=list)
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    unstamped: set[str] = field(default_factory=set)
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def plan_comparison(request: CompareRequest, store: Store, state: Store, cluster_id: str) -> ComparePlan:
    options = request.options
    if request.groups and not options.restore_id:
        raise UsageError("groups are compared by a restore's offset map", "give --restore-id")
    if request.against == "source":
        if options.restore_id:
            raise UsageError("a restore is compared with its target", "use --against target")
        if options.to_time or options.from_time or options.range:
            raise UsageError(
                "the source is compared with all of a restore point", "leave out times and ranges"
            )
        options = msgspec.structs.replace(options, map={}, map_regex=())
    elif options.restore_id:
        return _of_restore(options.restore_id, store, state, cluster_id)
    content = select_content(options, store)
    plan = plan_restore(msgspec.structs.replace(options, no_groups=True), content, cluster_id)
    if request.against == "target":
        return ComparePlan(plan, None, "read_committed")
    target_offsets = {part.tp: _SAME_OFFSETS for part in _all_partitions(plan)}
    return ComparePlan(plan, target_offsets, _isolation(store, plan.restore_point))


def _of_restore(restore_id: str, store: Store, state: Store, cluster_id: str) -> ComparePlan:
    plan, runs = finished_restore(state, restore_id)
    check_same_target(plan, cluster_id)
    check_same_archive(plan, store)
    return ComparePlan(plan, _restored_offsets(plan, runs), "read_committed")


def _restored_offsets(plan: RestorePlan, runs: pa.Table) -> dict[TopicPartition, TargetOffsets]:
    """Return the offset map of each target partition; an empty one where no record was restored."""
    bare = {part.tp: NO_OFFSETS for part in _all_partitions(plan)}
    return bare | {tp: TargetOffsets(*columns) for tp, columns in by_partition(runs)}


def _isolation(store: Store, restore_point: int) -> str:
    """Return the isolation level of the backup; a folder of the Java tool does not record it."""
    try:
        return open_archive(store).restore_point(restore_point).isolation_level
    except NoArchiveError:
        return "read_committed"


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
    compare_plan.findings += [
        f"topic {name} is not in the {against} cluster" for name in sorted(compare_plan.absent)
    ]
    parts = _all_partitions(compare_plan.plan)
    known = [p.tp for p in parts if p.target in topics and p.partition in topics[p.target].partitions]
    compare_plan.findings += [
        f"partition {p.tp} is not in the {against} cluster"
        for p in parts
        if p.target in topics and p.partition not in topics[p.target].partitions
    ]
    starts, compare_plan.ends = cluster.log_starts(known), cluster.log_ends(known, compare_plan.isolation)
    if against == "target":
        compare_plan.unstamped = _unstamped(cluster, topics)
    for part in parts:
        compare_plan.partitions.append(_compared(compare_plan, part, starts.get(part.tp, 0), against))


def _unstamped(cluster: Cluster, names: Iterable[str]) -> set[str]:
    """Return the topics whose records get the broker's time (LogAppendTime)."""
    types = cluster.one_config(names, "message.timestamp.type")
    return {topic for topic, value in types.items() if value == "LogAppendTime"}


def _compared(
    compare_plan: ComparePlan, part: UnitRange, log_start: int, against: Against
) -> ComparedPartition:
    end, first = compare_plan.ends.get(part.tp, 0), 0
    target_offsets = (
        compare_plan.target_offsets.get(part.tp, NO_OFFSETS)
        if compare_plan.target_offsets is not None
        else None
    )
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
    return ComparedPartition(
        part, first, min(start, end), end, part.target not in compare_plan.unstamped, target_offsets
    )
