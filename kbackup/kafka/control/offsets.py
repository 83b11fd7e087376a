"""Where the logs of partitions begin and end, and where their leader epochs ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from confluent_kafka import KafkaError

from kbackup.kafka.control.connection import BrokerConnection
from kbackup.kafka.control.deadline import Deadline
from kbackup.kafka.control.errors import PAUSE_SECONDS, REQUEST_SECONDS, remedy_for
from kbackup.kafka.control.messages import ListOffsetsRequest, OffsetForLeaderEpochRequest
from kbackup.kafka.control.router import Answers, Leaders, Question, Router
from kbackup.types import TopicPartition

_LATEST, _EARLIEST = -1, -2
"""What ListOffsets takes for a timestamp."""

_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1
"""Isolation levels."""

_FIRST_WITH_ISOLATION = 2
"""The first version of ListOffsets that has an isolation level (brokers since 0.11)."""

_FIRST_FOR_CONSUMERS = 2
"""The first version of OffsetForLeaderEpoch for a client that is no broker (brokers since 2.1)."""

_CONSUMER = -1
"""The id of a replica that is none."""


class LogOffset(NamedTuple):
    """An offset of a log, and the leader epoch of the record before it; None if the broker doesn't return that."""

    offset: int
    leader_epoch: int | None


class EpochPosition(NamedTuple):
    """The offset behind a record, and that record's leader epoch."""

    offset: int
    leader_epoch: int


class Validation(NamedTuple):
    """Partitions whose log was truncated below their position, and partitions that gave no answer in time."""

    truncated: frozenset[TopicPartition]
    unanswered: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class LogOffsets:
    """Asks the leaders of partitions for offsets. Every method raises `UnreachableError` or `ClusterError`, naming a
    partition, if one of them has no answer."""

    router: Router

    def log_starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        found = self._offsets(partitions, _EARLIEST, _READ_UNCOMMITTED)
        return {tp: each.offset for tp, each in found.items()}

    def log_ends(self, partitions: Iterable[TopicPartition], isolation: str) -> dict[TopicPartition, int]:
        """Return the last stable offset of each partition for 'read_committed', else its high watermark."""
        level = _READ_COMMITTED if isolation == "read_committed" else _READ_UNCOMMITTED
        found = self._offsets(partitions, _LATEST, level)
        return {tp: each.offset for tp, each in found.items()}

    def high_watermarks(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogOffset]:
        """Return each partition's high watermark and current leader epoch."""
        return self._offsets(partitions, _LATEST, _READ_UNCOMMITTED)

    def _offsets(
        self, partitions: Iterable[TopicPartition], timestamp: int, isolation: int
    ) -> dict[TopicPartition, LogOffset]:
        def request(broker: BrokerConnection, batch: list[TopicPartition]) -> Any:
            return _list_offsets(batch, timestamp, isolation)

        # An older request would leave the isolation level out: its answer is the high watermark.
        oldest = _FIRST_WITH_ISOLATION if isolation == _READ_COMMITTED else 1
        question = Question[TopicPartition, LogOffset](request, _listed_offsets, oldest=oldest)
        each_once = sorted({*partitions})
        answers, refused = self.router.ask_each(each_once, question, Leaders(self.router))
        for tp, error in refused.items():
            raise self.router.connection.error(error, f"asking for offsets of {tp}")
        return answers


def _list_offsets(partitions: Sequence[TopicPartition], timestamp: int, isolation: int) -> Any:
    kind = ListOffsetsRequest.ListOffsetsTopic
    by_topic: dict[str, list[Any]] = defaultdict(list)
    for topic, partition in partitions:
        asked = kind.ListOffsetsPartition(partition_index=partition, current_leader_epoch=-1, timestamp=timestamp)
        by_topic[topic].append(asked)
    topics = [kind(name=name, partitions=asked) for name, asked in by_topic.items()]
    return ListOffsetsRequest(
        replica_id=_CONSUMER, isolation_level=isolation, topics=topics, timeout_ms=int(REQUEST_SECONDS * 1000)
    )


def _listed_offsets(response: Any, batch: list[TopicPartition]) -> Answers[TopicPartition, LogOffset]:
    for topic in response.topics:
        for each in topic.partitions:
            tp = TopicPartition(topic.name, each.partition_index)
            if each.error_code:
                yield tp, KafkaError(each.error_code)
            elif each.offset < 0:
                # No error, and no offset: the leader is going away. A log that ended at -1 would count as cut.
                yield tp, KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
            else:
                epoch = each.leader_epoch if each.leader_epoch >= 0 else None
                yield tp, LogOffset(each.offset, epoch)


def validate_epochs(router: Router, positions: Mapping[TopicPartition, EpochPosition], seconds: float) -> Validation:
    """Ask the leaders whether each log still has `positions`, or was truncated since (KIP-320).

    A broker keeps where each leader epoch ended, also where compaction took the records. A log was truncated if the
    epoch of a position ends before it, or if the broker doesn't know such an epoch any more. `seconds` bound the
    whole. A broker without the request (before Kafka 2.1) counts as one that confirms.
    """

    def request(broker: BrokerConnection, batch: list[TopicPartition]) -> Any:
        return _epoch_ends_request(batch, positions)

    question = Question[TopicPartition, int](request, _epoch_ends, oldest=_FIRST_FOR_CONSUMERS)
    call = Deadline(seconds)
    ends: dict[TopicPartition, int] = {}
    waiting = sorted(positions)
    confirmed: set[TopicPartition] = set()
    while waiting and call.remaining() > PAUSE_SECONDS:
        answers, refused = router.ask_each(waiting, question, Leaders(router), seconds=call.remaining())
        ends |= answers
        waiting = []
        for tp, error in refused.items():
            if error.code() == KafkaError.UNSUPPORTED_VERSION:
                confirmed.add(tp)
            elif remedy_for(error, change=False) is not None:
                # A leader may take longer to be elected than the router waits for one.
                waiting.append(tp)
    truncated = {tp for tp, end in ends.items() if end < positions[tp].offset}
    unanswered = positions.keys() - ends.keys() - confirmed
    return Validation(frozenset(truncated), frozenset(unanswered))


def _epoch_ends_request(partitions: Sequence[TopicPartition], positions: Mapping[TopicPartition, EpochPosition]) -> Any:
    kind = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    topics: dict[str, list[Any]] = defaultdict(list)
    for tp in partitions:
        epoch = positions[tp].leader_epoch
        asked = kind.OffsetForLeaderPartition(partition=tp.partition, current_leader_epoch=-1, leader_epoch=epoch)
        topics[tp.topic].append(asked)
    entries = [kind(topic=name, partitions=asked) for name, asked in topics.items()]
    return OffsetForLeaderEpochRequest(replica_id=_CONSUMER, topics=entries)


def _epoch_ends(response: Any, batch: list[TopicPartition]) -> Answers[TopicPartition, int]:
    """Yield where the epoch of each position ended, -1 if the broker doesn't know the epoch."""
    for topic in response.topics:
        for each in topic.partitions:
            tp = TopicPartition(topic.topic, each.partition)
            if each.error_code:
                yield tp, KafkaError(each.error_code)
            elif each.leader_epoch < 0:
                yield tp, -1
            else:
                yield tp, each.end_offset
