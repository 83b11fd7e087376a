"""Plan the offsets that each consumer group gets on a target. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from kbackup.archive.models import GroupOffset, Member
from kbackup.archive.restores.plan import PlannedGroup
from kbackup.archive.restores.remap import How, Mapped
from kbackup.kafka.groups.admin import Committed
from kbackup.types import TopicPartition


class Map(Protocol):
    def map(self, committed: int) -> Mapped: ...


class GroupOffsetResult(Member, frozen=True, kw_only=True):
    """`source` was committed for the archived partition, `target` is where that record is in `topic`, which is the
    target's."""

    topic: str
    partition: int
    source: int
    target: int
    how: How


class OffsetPlan(GroupOffsetResult, frozen=True, kw_only=True):
    """`leader_epoch` and `metadata` go with the offset."""

    leader_epoch: int | None = None
    metadata: str = ""

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def committed(self) -> Committed:
        return Committed(self.tp, self.target, self.leader_epoch, self.metadata)


class GroupPlan(Member, frozen=True, kw_only=True):
    """`skipped` names the offsets that the group can't get, each with the reason."""

    source: str
    group: str
    offsets: tuple[OffsetPlan, ...]
    skipped: tuple[str, ...] = ()


def plan_groups(
    groups: Sequence[PlannedGroup],
    targets: Mapping[str, str],
    maps: Mapping[TopicPartition, Map],
    unusable: Mapping[TopicPartition, str],
) -> tuple[GroupPlan, ...]:
    """Plan the offsets of each group on the target. `targets` are the topics' new names, `maps` and `unusable` (with
    the reason) are by target partition."""
    return tuple(_plan(group, targets, maps, unusable) for group in groups)


def _plan(
    group: PlannedGroup,
    targets: Mapping[str, str],
    maps: Mapping[TopicPartition, Map],
    unusable: Mapping[TopicPartition, str],
) -> GroupPlan:
    offsets: list[OffsetPlan] = []
    skipped: list[str] = []
    for committed in group.offsets:
        tp = TopicPartition(targets[committed.topic], committed.partition)
        if tp in unusable:
            skipped.append(unusable[tp])
        else:
            offsets.append(_offset(tp, committed, maps[tp].map(committed.offset)))
    return GroupPlan(source=group.source, group=group.target, offsets=tuple(offsets), skipped=tuple(skipped))


def _offset(tp: TopicPartition, committed: GroupOffset, mapped: Mapped) -> OffsetPlan:
    return OffsetPlan(
        topic=tp.topic,
        partition=tp.partition,
        source=committed.offset,
        target=mapped.offset,
        how=mapped.how,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
    )


def with_epochs(
    plans: Sequence[GroupPlan], epochs: Mapping[TopicPartition, int | None], same_log: bool
) -> tuple[GroupPlan, ...]:
    """Set the leader epochs of the target's log: its current one where the group had committed one.

    A source's epoch is of another log: a consumer that checks it against the target's log finds an end of that epoch
    before its offset, takes that for a truncation, and resets. In the `same_log` an unchanged offset keeps its epoch.
    """

    def offset(planned: OffsetPlan) -> OffsetPlan:
        if planned.leader_epoch is None or (same_log and planned.how == "exact"):
            return planned
        return msgspec.structs.replace(planned, leader_epoch=epochs[planned.tp])

    return tuple(
        msgspec.structs.replace(plan, offsets=tuple(offset(o) for o in plan.offsets)) for plan in plans
    )


def wants_epoch(plans: Sequence[GroupPlan]) -> set[TopicPartition]:
    """Return the partitions whose current leader epoch `with_epochs` may need."""
    return {o.tp for plan in plans for o in plan.offsets if o.leader_epoch is not None}
