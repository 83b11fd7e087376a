"""Set consumer groups on the target to the same records as in the source. Their committed offsets are captured
before (`groups_before`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pyarrow as pa

from kbackup.archive.models import GroupOffset, Member
from kbackup.archive.restores.offset_map import by_partition
from kbackup.archive.restores.plan import PlannedGroup, RestorePlan
from kbackup.archive.restores.remap import OffsetMap
from kbackup.jobs.groups.before import By, Captures, capture, resumed
from kbackup.jobs.groups.plan import (
    GroupOffsetResult,
    GroupPlan,
    OffsetPlan,
    plan_groups,
    wants_epoch,
    with_epochs,
)
from kbackup.kafka.admin.cluster import Cluster
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from kbackup.util.commands import kbackup_command
from kbackup.util.text import plural


class GroupResult(Member, frozen=True, kw_only=True):
    """The outcome of a group; `why` is the reason where it was not set. `left_out` names offsets that it
    can't get, each with the reason."""

    source: str
    group: str
    status: Literal["applied", "left alone", "refused"]
    why: str = ""
    offsets: tuple[GroupOffsetResult, ...]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class TargetMaps:
    """By target partition: the offset maps, and the reason where a partition has no usable one."""

    maps: dict[TopicPartition, OffsetMap]
    unusable: dict[TopicPartition, str] = field(default_factory=dict)


def restore_groups(
    cluster: Cluster, state: Store, plan: RestorePlan, whole: pa.Table
) -> tuple[GroupResult, ...]:
    """Set the groups of a restore, by its whole offset map; captured before."""
    plans = plan_by_map(cluster, plan, plan.groups, whole)
    captures = Captures(state, plan.restore_id)
    return set_groups(cluster, captures, "restore", plan.target_cluster_id, plans)[0]


def plan_by_map(
    cluster: Cluster,
    plan: RestorePlan,
    groups: Sequence[PlannedGroup],
    whole: pa.Table,
    unusable: Mapping[TopicPartition, str] | None = None,
) -> tuple[GroupPlan, ...]:
    """Plan the offsets of `groups` on the target of the restore `plan`, by the offset map `whole`."""
    targets = {t.source: t.target for t in plan.topics}
    partitions = {TopicPartition(targets[o.topic], o.partition) for g in groups for o in g.offsets}
    target_maps = offset_maps(cluster, plan, partitions - (unusable or {}).keys(), whole)
    plans = plan_groups(groups, targets, target_maps.maps, {**target_maps.unusable, **(unusable or {})})
    return with_epochs(plans, cluster.leader_epochs(wants_epoch(plans)), same_log=False)


def offset_maps(
    cluster: Cluster, plan: RestorePlan, partitions: Iterable[TopicPartition], whole: pa.Table
) -> TargetMaps:
    """Return the offset maps of target partitions, as their logs are now."""
    there = cluster.topics({tp.topic for tp in partitions})
    unusable: dict[TopicPartition, str] = {}
    usable: list[TopicPartition] = []
    for tp in sorted(partitions):
        if tp.topic in there and tp.partition in there[tp.topic].partitions:
            usable.append(tp)
        else:
            unusable[tp] = f"{tp} is not on the target"
    starts, ends = cluster.log_starts(usable), cluster.log_ends(usable, "read_committed")
    maps: dict[TopicPartition, OffsetMap] = {}
    runs, none = dict(by_partition(whole)), np.empty(0, np.int64)
    for tp in usable:
        source, target, count = runs.get(tp, (none, none, none))
        after = int(target[-1] + count[-1]) if len(target) else None
        if after is not None and after > ends[tp]:
            unusable[tp] = f"{tp} ends at {ends[tp]}, and was restored up to {after}: it was made anew since"
            continue
        following = _next(after, starts[tp], ends[tp], plan)
        maps[tp] = OffsetMap(source, target, count, following, starts[tp])
    return TargetMaps(maps, unusable)


def _next(after: int | None, start: int, end: int, plan: RestorePlan) -> int:
    """Return the target's next offset: `after` the last restored record, or after the marker behind it. Records
    that others have written since are not skipped, unless they were there before (`into_existing`)."""
    if after is None:
        return end if plan.into_existing else start
    return end if plan.transactions and end == after + 1 else after


def set_groups(
    cluster: Cluster, captures: Captures, by: By, cluster_id: str, plans: Sequence[GroupPlan]
) -> tuple[tuple[GroupResult, ...], int]:
    """Commit the planned offsets, after the groups' own are captured. Return the results and the capture's number, 0
    where nothing was written. A group with live members is left alone."""
    writes = {p.group: tuple(map(_write, p.offsets)) for p in plans if p.offsets}
    members, refused = cluster.groups.members(writes)
    alone = {group: f"it has {plural(n, 'live member')}" for group, n in members.items() if n}
    before, unread = capture(cluster, {g: writes[g] for g, n in members.items() if not n})
    if by == "restore":
        earlier = [group for known in captures.every() if known.by == by for group in known.groups]
        before = resumed(before, earlier)
    number = captures.write(by, cluster_id, before) if before else 0
    going = {group.group for group in before}
    commits = {p.group: [o.committed for o in p.offsets] for p in plans if p.group in going}
    refused |= unread | {g: why for g, why in cluster.groups.commit_all(commits).items() if why}
    return tuple(_result(p, alone.get(p.group, ""), refused.get(p.group, "")) for p in plans), number


def _write(planned: OffsetPlan) -> GroupOffset:
    return GroupOffset(
        topic=planned.topic,
        partition=planned.partition,
        offset=planned.target,
        leader_epoch=planned.leader_epoch,
        metadata=planned.metadata,
    )


def _result(plan: GroupPlan, alone: str, refused: str) -> GroupResult:
    why = refused or alone or ("" if plan.offsets else "it gets no offset")
    return GroupResult(
        source=plan.source,
        group=plan.group,
        status="refused" if refused else "left alone" if why else "applied",
        why=why,
        offsets=tuple(
            GroupOffsetResult(**{name: getattr(o, name) for name in GroupOffsetResult.__struct_fields__})
            for o in plan.offsets
        ),
        left_out=plan.skipped,
    )


def not_applied(results: Sequence[GroupResult], *options: str) -> list[str]:
    """Return what was not set, each with the command that sets it. `options` are those of that `groups apply`."""
    return [
        *(_not_set(result, options) for result in results if result.status != "applied"),
        *(f"group {r.group} lacks an offset: {why}" for r in results for why in r.left_out),
    ]


def _not_set(result: GroupResult, options: Sequence[str]) -> str:
    message = f"group {result.group} was not set: {result.why}"
    if not result.offsets:
        return message
    renamed = () if result.group == result.source else ("--map-group", f"{result.source}={result.group}")
    command = kbackup_command("groups", "apply", *options, "--group", result.source, *renamed)
    first = "stop it" if result.status == "left alone" else "mend the cause"
    return f"{message}; {first}, then: {command}"
