"""Find compacted partitions whose deletions may have been compacted away before a backup read them. Pure.

Compaction removes a deletion (a record without a value) once `delete.retention.ms` has passed. A backup that reads
later than that has the key's older value and never sees that the key was deleted, so a restore brings the key back.
Two facts together are evidence: more time than that passed since the archive had all of the log, and offsets were
missing in what was read then. Without a missing offset every record was read, deletions included.

Superseded records, markers of transactions and aborted records leave the same gaps as deletions. The offsets do not
tell which of them it was; `recheck` compares the whole log with the archive and so finds out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from kbackup.archive.models import Manifest, PartitionState, TopicState, UnseenDeletions
from kbackup.archive.segments.table import Segment
from kbackup.jobs.backup.plan import PartitionPlan, Plan
from kbackup.kafka.consume import Vanished
from kbackup.types import Offsets, TopicPartition
from kbackup.util.times import ms_of

DEFAULT_RETENTION = 86_400_000
"""Kafka's default of delete.retention.ms."""


class Look(NamedTuple):
    """What a run read of a partition. All that was written before `since` was archived before the run.

    `missing` counts offsets that the run was to read and that had no record. `complete`: the run archived all that the
    log had when it was captured.
    """

    since: str
    missing: int
    complete: bool


def looks_of(
    plan: Plan,
    segments: Iterable[Segment],
    vanished: Iterable[Vanished],
    known: Mapping[TopicPartition, str],
    head: Manifest | None,
    started_at: str,
) -> dict[TopicPartition, Look]:
    """Return what the run that began at `started_at` read of each captured partition.

    `known` are times after the newest restore point `head` at which a follower found nothing new.
    """
    records = Counter[TopicPartition]()
    for segment in segments:
        records[TopicPartition(segment.topic, segment.partition)] += segment.count
    lost = Counter[TopicPartition]()
    for gone in vanished:
        lost[gone.tp] += gone.end - gone.start
    captured_at = _capture_times(head)
    looks: dict[TopicPartition, Look] = {}
    for topic in plan.topics:
        for partition in topic.partitions:
            tp = TopicPartition(topic.name, partition.partition)
            since = started_at  # of a partition that is new to the archive: nothing of it can come back
            if partition.before is not None:
                archived_at = partition.before.seen_at or captured_at.get(topic.name, started_at)
                since = max(archived_at, known.get(tp, ""))
            # What retention took while it was read is a loss of its own, and no gap of compaction.
            missing = _offsets_to_read(partition) - lost[tp] - records[tp]
            looks[tp] = Look(since, max(0, missing), is_complete(partition))
    return looks


def is_complete(partition: PartitionPlan) -> bool:
    """Return whether the run archives all that the log had when it was captured. Compaction does not reach what lies
    behind the last stable offset."""
    return partition.end >= partition.live.end and not partition.held


def _capture_times(head: Manifest | None) -> dict[str, str]:
    """Return when the capture of each topic of a restore point began."""
    if head is None:
        return {}
    began = {capture.number: capture.started_at for capture in head.captures}
    times: dict[str, str] = {}
    for topic in head.topics:
        if topic.captured in began:
            times[topic.name] = began[topic.captured]
    return times


def _offsets_to_read(partition: PartitionPlan) -> int:
    return partition.end - partition.first - _size(partition.skips)


def _size(ranges: Offsets) -> int:
    return sum(end - start for start, end in ranges)


def complete_looks(plan: Plan, started_at: str) -> dict[TopicPartition, str]:
    """Return, for a round without news, the time at which the archive had all of each complete partition."""
    complete: dict[TopicPartition, str] = {}
    for topic in plan.topics:
        for partition in topic.partitions:
            if is_complete(partition):
                complete[TopicPartition(topic.name, partition.partition)] = started_at
    return complete


def late_looks(
    looks: Mapping[TopicPartition, Look], retention: Mapping[str, int], read_at: str
) -> dict[TopicPartition, UnseenDeletions]:
    """Return the partitions of which deletions may be missing in what was read by `read_at`. `retention` has the
    delete.retention.ms of each topic."""
    late: dict[TopicPartition, UnseenDeletions] = {}
    for tp, look in looks.items():
        if look.missing and ms_of(read_at) - ms_of(look.since) > retention[tp.topic]:
            late[tp] = UnseenDeletions(offsets=look.missing, since=look.since)
    return late


def with_looks(
    topics: Sequence[TopicState],
    looks: Mapping[TopicPartition, Look],
    late: Mapping[TopicPartition, UnseenDeletions],
    started_at: str,
) -> tuple[TopicState, ...]:
    """Return the topics of a restore point with what their compacted partitions know of deletions. What an earlier
    restore point may have missed stays missed, until the partition is rechecked."""

    def updated(topic: str, state: PartitionState, before: Mapping[TopicPartition, UnseenDeletions]) -> PartitionState:
        tp = TopicPartition(topic, state.partition)
        look = looks.get(tp)
        if look is None:
            return state
        # A run that has not archived all of the log leaves the time as it was: what it left may be deleted meanwhile.
        seen_at = started_at if look.complete else look.since
        unseen = _joined(before.get(tp), late.get(tp))
        return msgspec.structs.replace(state, seen_at=seen_at, unseen=unseen)

    result: list[TopicState] = []
    for topic in topics:
        earlier: dict[TopicPartition, UnseenDeletions] = {}
        for state in topic.partitions:
            if state.unseen is not None:
                earlier[TopicPartition(topic.name, state.partition)] = state.unseen
        partitions = tuple(updated(topic.name, state, earlier) for state in topic.partitions)
        result.append(msgspec.structs.replace(topic, partitions=partitions))
    return tuple(result)


def _joined(one: UnseenDeletions | None, other: UnseenDeletions | None) -> UnseenDeletions | None:
    if one is None:
        return other
    if other is None:
        return one
    return UnseenDeletions(offsets=one.offsets + other.offsets, since=min(one.since, other.since))
