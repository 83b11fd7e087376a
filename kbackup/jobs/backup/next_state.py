"""Compute the archive's next topic states from a run's plan and segments. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from kbackup.archive.models import (
    EpochEnd,
    Groups,
    LastRecord,
    Manifest,
    Metadata,
    PartitionState,
    TopicState,
)
from kbackup.archive.segments.last_record import FEW
from kbackup.archive.segments.table import Segment
from kbackup.jobs.backup.plan import PartitionPlan, Plan
from kbackup.types import TopicPartition

_EPOCHS = 8  # of a partition that a manifest remembers


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
    lasts: Mapping[TopicPartition, tuple[LastRecord, ...]] = MappingProxyType({}),
    compacted: Collection[str] = (),
) -> tuple[TopicState, ...]:
    """Return the new vector of archived offsets: the captured partitions, and the others unchanged. `lasts` are the
    last records that this run read; `compacted` are the topics that remember more than one of them."""
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
                _partition(p, added[tp], lasts.get(tp, ()), FEW if topic.name in compacted else 1)
                for p in topic.partitions
                for tp in [TopicPartition(topic.name, p.partition)]
            ),
        )
        for topic in plan.topics
    ]
    return tuple(sorted([*captured, *plan.carried], key=lambda t: t.name))


def _partition(plan: PartitionPlan, added: _Added, read: Sequence[LastRecord], few: int) -> PartitionState:
    before = plan.before
    known = (*before.tail, before.last) if before is not None and before.last is not None else ()
    epochs = before.epochs if before is not None else ()
    if added.last < 0:
        records = known
    elif not read or read[-1].offset != added.last:
        records = ()  # the last segment was taken over, not read
    else:
        records = (*known, *read) if added.records == len(read) else tuple(read)
    last = records[-1] if records else None
    epoch = known[-1].leader_epoch if known else None
    if epoch is not None and (last is None or last.leader_epoch != epoch):
        epochs = (*epochs, EpochEnd(leader_epoch=epoch, offset=known[-1].offset))[-_EPOCHS:]
    return PartitionState(
        partition=plan.partition,
        start=before.start if before is not None else plan.start,
        end=plan.end,
        log_start=plan.live.start,
        log_end=plan.live.high,
        records=added.records + (before.records if before is not None else 0),
        bytes=added.bytes + (before.bytes if before is not None else 0),
        last=last,
        tail=records[-few:-1],
        epochs=epochs,
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
