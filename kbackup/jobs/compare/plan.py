"""What `verify --against` compares with what: the parts of a plan, and the offsets of a cluster that belong to them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pyarrow as pa

from kbackup.archive.reader import open_archive
from kbackup.archive.restores.finished import finished_restore
from kbackup.archive.restores.offset_map import by_partition
from kbackup.archive.restores.plan import RestorePlan, UnitPart, check_same_archive, check_same_target
from kbackup.config.jobs import Restore
from kbackup.errors import NoArchiveError, UsageError
from kbackup.jobs.compare.groups import NOWHERE
from kbackup.jobs.compare.report import Against
from kbackup.jobs.compare.result import Places
from kbackup.jobs.compare.task import ComparedPart
from kbackup.jobs.restore.content import plan_restore, select_content
from kbackup.kafka.admin.cluster import Cluster
from kbackup.store.base import Store
from kbackup.types import TopicPartition

_EVERYWHERE = Places(*(np.array([n], np.int64) for n in (0, 0, 1 << 62)))
"""Every record at its own offset."""


@dataclass(frozen=True)
class Asked:
    """What to compare. `options` choose restore point, topics and names, or (`restore_id`) a restore. `exact`: what
    the topics have after the archive's last record is a difference, too. `show` differences are named."""

    against: Against
    options: Restore
    groups: bool = False
    exact: bool = False
    show: int = 20


@dataclass
class Truth:
    """What is compared with what. `places` by target partition, None where nobody knows."""

    plan: RestorePlan
    places: dict[TopicPartition, Places] | None
    isolation: str
    parts: list[ComparedPart] = field(default_factory=list)
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    unstamped: set[str] = field(default_factory=set)
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def truth_of(asked: Asked, store: Store, state: Store, cluster_id: str) -> Truth:
    options = asked.options
    if asked.groups and not options.restore_id:
        raise UsageError("groups are compared by a restore's offset map", "give --restore-id")
    if asked.against == "source":
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
    if asked.against == "target":
        return Truth(plan, None, "read_committed")
    places = {part.tp: _EVERYWHERE for part in _every_part(plan)}
    return Truth(plan, places, _isolation(store, plan.restore_point))


def _of_restore(restore_id: str, store: Store, state: Store, cluster_id: str) -> Truth:
    plan, runs = finished_restore(state, restore_id)
    check_same_target(plan, cluster_id)
    check_same_archive(plan, store)
    return Truth(plan, _places(plan, runs), "read_committed")


def _places(plan: RestorePlan, runs: pa.Table) -> dict[TopicPartition, Places]:
    """By target partition."""
    bare = {part.tp: NOWHERE for part in _every_part(plan)}
    return bare | {tp: Places(*columns) for tp, columns in by_partition(runs)}


def _isolation(store: Store, restore_point: int) -> str:
    """What the archive was read with; a folder of the Java tool doesn't say."""
    try:
        return open_archive(store).restore_point(restore_point).isolation_level
    except NoArchiveError:
        return "read_committed"


def _every_part(plan: RestorePlan) -> list[UnitPart]:
    """The parts of all partitions, also of those that hold no record."""
    parts = {part.tp: part for unit in plan.units for part in unit}
    bare = (
        UnitPart(topic=topic.source, partition=number, target=topic.target, segments=())
        for topic in plan.topics
        for number in range(topic.partitions)
    )
    return [*parts.values(), *(part for part in bare if part.tp not in parts)]


def look(truth: Truth, cluster: Cluster, against: Against) -> None:
    """What the cluster has of the topics, and which offsets of it are to be read."""
    names = [t.target for t in truth.plan.topics]
    there = cluster.topics(names)
    truth.absent = set(names) - there.keys()
    truth.findings += [f"topic {name} is not in the {against} cluster" for name in sorted(truth.absent)]
    parts = _every_part(truth.plan)
    known = [p.tp for p in parts if p.target in there and p.partition in there[p.target].partitions]
    truth.findings += [
        f"partition {p.tp} is not in the {against} cluster"
        for p in parts
        if p.target in there and p.partition not in there[p.target].partitions
    ]
    starts, truth.ends = cluster.log_starts(known), cluster.log_ends(known, truth.isolation)
    if against == "target":
        truth.unstamped = _unstamped(cluster, there)
    for part in parts:
        truth.parts.append(_compared(truth, part, starts.get(part.tp, 0), against))


def _unstamped(cluster: Cluster, names: Iterable[str]) -> set[str]:
    """Topics to whose records the broker gives its own time."""
    found = cluster.one_config(names, "message.timestamp.type")
    return {topic for topic, value in found.items() if value == "LogAppendTime"}


def _compared(truth: Truth, part: UnitPart, log_start: int, against: Against) -> ComparedPart:
    end, first = truth.ends.get(part.tp, 0), 0
    places = truth.places.get(part.tp, NOWHERE) if truth.places is not None else None
    start = log_start
    if against == "source":
        begin = part.segments[0].first if part.segments else 0
        first = start = max(begin, log_start)
        end = max(start, min(end, part.segments[-1].last + 1)) if part.segments else start
        if log_start > begin and part.segments:
            truth.notes.append(
                f"{part.tp}: what was archived before offset {log_start} is no longer in the source: not compared"
            )
    elif places is not None and len(places.target) and truth.plan.into_existing:
        # else the topic was empty: what stands before the first restored record is one too many
        start = max(log_start, int(places.target.min()))
    return ComparedPart(part, first, min(start, end), end, part.target not in truth.unstamped, places)
