"""Cut the work of a round into slots, and count what the slots committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from kbackup.archive.restores.flow_map.slots import slot_of
from kbackup.jobs.mirror.apply.applied import PartitionApplied
from kbackup.jobs.mirror.apply.pending import Pending
from kbackup.jobs.mirror.apply.session import Session
from kbackup.jobs.mirror.apply.slots import SlotTask
from kbackup.jobs.mirror.flow import AppliedPosition, RemoteTopic
from kbackup.types import TopicPartition


def tasks_to_produce(session: Session, pending: Pending, topics: Sequence[RemoteTopic]) -> list[SlotTask]:
    """Return the work by slot, the largest first."""
    by_slot: dict[int, list[TopicPartition]] = {}
    for remote in pending.ranges:
        by_slot.setdefault(slot_of(remote, session.flow.slots), []).append(remote)
    every = session.partitions(topics, pending.ranges)
    tasks = [
        SlotTask(
            slot,
            tuple(each for tp in remotes for each in pending.ranges[tp]),
            tuple(every[slot]),
            tuple(tp for tp in every[slot] if tp in session.noted),
            session.map.slot(slot).head,
            topic_ids=session.topic_ids_of(every[slot]),
        )
        for slot, remotes in by_slot.items()
    ]
    return sorted(tasks, key=lambda t: -sum(s.bytes for each in t.ranges for s in each.segments))


def tasks_to_begin(
    session: Session, topics: Sequence[RemoteTopic], begins: Mapping[TopicPartition, AppliedPosition]
) -> list[SlotTask]:
    """Return a task without records for each slot of `begins`, to commit the positions there."""
    by_slot: dict[int, dict[TopicPartition, AppliedPosition]] = {}
    for tp, position in begins.items():
        by_slot.setdefault(slot_of(tp, session.flow.slots), {})[tp] = position
    every = session.partitions(topics, begins)
    return [
        SlotTask(
            slot,
            (),
            tuple(every[slot]),
            tuple(tp for tp in every[slot] if tp in session.noted),
            session.map.slot(slot).head,
            positions,
            session.topic_ids_of(every[slot]),
        )
        for slot, positions in by_slot.items()
    ]


def tasks_to_refresh(session: Session, topics: Sequence[RemoteTopic]) -> list[SlotTask]:
    """Return a task without records for each slot that has a position, to commit its positions again."""
    known = {slot_of(tp, session.flow.slots) for tp in session.noted}
    committed = session.noted.keys() - session.uncommitted.keys()
    return [
        SlotTask(
            slot,
            (),
            tuple(partitions),
            tuple(tp for tp in partitions if tp in committed),
            session.map.slot(slot).head,
            topic_ids=session.topic_ids_of(partitions),
        )
        for slot, partitions in session.partitions(topics).items()
        if slot in known
    ]


def count_applied(pending: Pending, runs: pa.Table) -> Mapping[TopicPartition, PartitionApplied]:
    """Return the records that the round committed to each partition; bytes and timestamps as the segments' descriptors
    have them."""
    records: dict[TopicPartition, int] = {}
    columns = (runs.column(name).to_pylist() for name in ("topic", "partition", "count"))
    for topic, partition, count in zip(*columns, strict=True):
        tp = TopicPartition(topic, partition)
        records[tp] = records.get(tp, 0) + count
    applied: dict[TopicPartition, PartitionApplied] = {}
    for tp, count in records.items():
        segments = [s for each in pending.ranges.get(tp, ()) for s in each.segments]
        oldest = [s.min_timestamp for s in segments if s.min_timestamp is not None]
        newest = [s.max_timestamp for s in segments if s.max_timestamp is not None]
        applied[tp] = PartitionApplied(
            count, sum(s.bytes for s in segments), min(oldest, default=None), max(newest, default=None)
        )
    return applied
