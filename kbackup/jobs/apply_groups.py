"""Setting consumer groups on the target to the records they stood at in the source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from kbackup.archive.models import Part
from kbackup.jobs.remap import How, OffsetMap
from kbackup.jobs.restore_plan import PlannedGroup, RestorePlan
from kbackup.kafka.admin import Cluster
from kbackup.kafka.group_admin import Committed
from kbackup.types import Int64Array, TopicPartition


class GroupOffsetResult(Part, frozen=True, kw_only=True):
    """`source` was committed for the archived partition, `target` is where that record is now."""

    topic: str
    partition: int
    source: int
    target: int
    how: How


class GroupResult(Part, frozen=True, kw_only=True):
    """`applied` is False for a group that was left alone; `why` says the reason."""

    source: str
    group: str
    status: Literal["applied", "left alone", "refused"]
    why: str = ""
    offsets: tuple[GroupOffsetResult, ...]


def offset_maps(plan: RestorePlan, whole: pa.Table, cluster: Cluster) -> dict[TopicPartition, OffsetMap]:
    """The maps of the partitions in which groups stand, by target partition."""
    targets = {t.source: t.target for t in plan.topics}
    wanted = {TopicPartition(targets[o.topic], o.partition) for g in plan.groups for o in g.offsets}
    runs: dict[TopicPartition, tuple[Int64Array, Int64Array, Int64Array]] = {}
    for tp in wanted:
        own = whole.filter((pc.field("topic") == tp.topic) & (pc.field("partition") == tp.partition))
        source, target, count = (own.column(name).to_numpy() for name in ("source", "target", "count"))
        runs[tp] = source, target, count
    ends = cluster.log_ends(wanted, "read_committed")
    last = {tp: int(target[-1] + count[-1]) for tp, (_, target, count) in runs.items() if len(target)}
    return {tp: OffsetMap(*runs[tp], _next(last.get(tp), ends[tp], plan.transactions)) for tp in wanted}


def _next(after: int | None, end: int, marked: bool) -> int:
    """The target's next offset: that `after` the last restored record, or after the marker behind it. What
    others have written there meanwhile is not skipped."""
    if after is None or (marked and end == after + 1):
        return end
    return after


def apply_groups(
    cluster: Cluster, plan: RestorePlan, maps: Mapping[TopicPartition, OffsetMap]
) -> tuple[GroupResult, ...]:
    """Each group's offsets, remapped and committed; a group with live members is left alone."""
    live = cluster.groups.members([g.target for g in plan.groups])
    targets = {t.source: t.target for t in plan.topics}
    return tuple(_apply(cluster, group, targets, maps, live[group.target]) for group in plan.groups)


def _apply(
    cluster: Cluster,
    group: PlannedGroup,
    targets: Mapping[str, str],
    maps: Mapping[TopicPartition, OffsetMap],
    members: int,
) -> GroupResult:
    offsets: list[GroupOffsetResult] = []
    commits: list[Committed] = []
    for committed in group.offsets:
        tp = TopicPartition(targets[committed.topic], committed.partition)
        mapped = maps[tp].map(committed.offset)
        offsets.append(
            GroupOffsetResult(
                topic=tp.topic,
                partition=tp.partition,
                source=committed.offset,
                target=mapped.offset,
                how=mapped.how,
            )
        )
        # the source's leader epoch says nothing about the target's log: consumers would take it for a truncation
        commits.append(Committed(tp, mapped.offset, None, committed.metadata))
    if members:
        why = f"it has {members} live member(s)"
        return GroupResult(
            source=group.source, group=group.target, status="left alone", why=why, offsets=tuple(offsets)
        )
    refused = cluster.groups.commit(group.target, commits)
    return GroupResult(
        source=group.source,
        group=group.target,
        status="refused" if refused else "applied",
        why=refused,
        offsets=tuple(offsets),
    )


def not_applied(results: Sequence[GroupResult]) -> list[str]:
    return [f"group {r.group} was {r.status}: {r.why}" for r in results if r.status != "applied"]
