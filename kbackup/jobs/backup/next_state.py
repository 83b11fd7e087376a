"""Compute the archive's next topic states from a run's plan and segments. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from kbackup.archive.models import Groups, LastRecord, Manifest, Metadata, PartitionState, TopicState
from kbackup.archive.segments.table import Segment
from kbackup.jobs.backup.plan import PartitionPlan, Plan
from kbackup.types import TopicPartition


@dataclass
class _Added:
    """Records that a run added to a partition, and the offset of the last one (-1: none)."""

    records: int = 0
    bytes: int = 0
    last: int = -1


def next_states(
    number: int,
    plan: Plan,
    segments: Sequence[Segment],
    lasts: Mapping[TopicPartition, LastRecord] = MappingProxyType({}),
) -> tuple[TopicState, ...]:
    """Return the new vector of archived offsets: the captured partitions, and the others unchanged. `lasts` are the
    last records that this run read."""
    added: dict[TopicPartition, _Added] = defaultdict(_Added)
    for segment in segments:
        sums = added[TopicPartition(segment.topic, segment.partition)]
        sums.records += segment.count
        sums.bytes += segment.bytes
        sums.last = max(sums.last, segment.last)
    captured = [
        TopicState(
            name=topic.name,
            id=topic.id,
            incarnation=topic.incarnation,
            captured=number,
            state="present",
            partitions=tuple(
                _partition(p, added[tp], lasts.get(tp))
                for p in topic.partitions
                for tp in [TopicPartition(topic.name, p.partition)]
            ),
        )
        for topic in plan.topics
    ]
    return tuple(sorted([*captured, *plan.carried], key=lambda t: t.name))


def _partition(plan: PartitionPlan, added: _Added, last: LastRecord | None) -> PartitionState:
    before = plan.before
    if added.last < 0:
        last = before.last if before is not None else None
    elif last is not None and last.offset != added.last:
        last = None  # the last segment was taken over, not read
    return PartitionState(
        partition=plan.partition,
        start=before.start if before is not None else plan.start,
        end=plan.end,
        log_start=plan.live.start,
        log_end=plan.live.high,
        records=added.records + (before.records if before is not None else 0),
        bytes=added.bytes + (before.bytes if before is not None else 0),
        last=last,
    )


def says_more(plan: Plan, parent: Manifest | None) -> bool:
    """Return whether a restore point of `plan` differs from `parent` in topics, records or losses."""
    if parent is None or plan.losses:
        return True
    return _vector(next_states(parent.number, plan, ())) != _vector(parent.topics)


def _vector(topics: Sequence[TopicState]) -> list[tuple[object, ...]]:
    return [
        (t.name, t.id, t.incarnation, t.state, [(p.partition, p.start, p.end) for p in t.partitions])
        for t in topics
    ]


def same_groups(one: Groups, other: Groups) -> bool:
    """Return whether both captures have the same groups with the same committed offsets, whatever their time."""

    def stand(groups: Groups) -> tuple[object, ...]:
        return {g.group: (g.type, g.offsets) for g in groups.groups}, set(groups.not_carried)

    return stand(one) == stand(other)


def same_settings(one: Metadata, other: Metadata) -> bool:
    """Return whether both captures are equal but for their time and the next producer id.

    Each new producer raises this id.
    """

    def timeless(metadata: Metadata) -> Metadata:
        return msgspec.structs.replace(metadata, captured_at="", checksum="", next_producer_id=None)

    return timeless(one) == timeless(other)
