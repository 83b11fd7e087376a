"""Validate leader epochs: ask whether a log was truncated since a record was read from it (KIP-320).

The broker keeps where each leader epoch ended, also where compaction took the records. librdkafka asks for that
(OffsetForLeaderEpoch) when a partition is assigned at an offset with a leader epoch, before its first fetch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka import TopicPartition as KafkaTopicPartition

from kbackup.kafka.client.client import Connection, Properties
from kbackup.types import TopicPartition

_BATCH = 500  # partitions that are assigned together
_WAIT = 0.1  # s

_TUNING = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",  # or else librdkafka seeks to where the epoch ended and tells nothing
    "allow.auto.create.topics": False,
    "isolation.level": "read_uncommitted",
    "fetch.wait.max.ms": 10,
    "fetch.message.max.bytes": 1024,  # the answer counts, not the records
    "queued.min.messages": 1,
    "check.crcs": False,
}

_TRUNCATED = KafkaError(KafkaError._LOG_TRUNCATION).str()


class EpochPosition(NamedTuple):
    """The offset behind a record, and that record's leader epoch."""

    offset: int
    leader_epoch: int


class Validation(NamedTuple):
    """Partitions whose log was truncated below their position, and partitions that gave no answer in time."""

    truncated: frozenset[TopicPartition]
    unanswered: frozenset[TopicPartition]


def validate_epochs(
    properties: Properties, positions: Mapping[TopicPartition, EpochPosition], group: str, timeout: float
) -> Validation:
    """Ask the source cluster whether each log still has `positions`.

    `timeout` bounds the whole, in seconds. A broker without the API (before Kafka 2.1) counts as one that confirms.
    """
    if not positions:
        return Validation(frozenset(), frozenset())
    connection = Connection(properties, "source")
    consumer = connection.consumer(_TUNING | {"group.id": group})
    until = time.monotonic() + timeout
    answers: dict[TopicPartition, bool] = {}
    try:
        with connection.errors("validating leader epochs"):
            asked = list(positions.items())
            for at in range(0, len(asked), _BATCH):
                answers |= _validate_batch(consumer, dict(asked[at : at + _BATCH]), until)
    finally:
        consumer.close()
    truncated = frozenset(tp for tp, cut in answers.items() if cut)
    return Validation(truncated, frozenset(positions.keys() - answers.keys()))


def _validate_batch(
    consumer: Consumer, positions: Mapping[TopicPartition, EpochPosition], until: float
) -> dict[TopicPartition, bool]:
    """Return, for each log that answered before `until`, whether it was truncated."""
    consumer.assign(
        [KafkaTopicPartition(*tp, at.offset, leader_epoch=at.leader_epoch) for tp, at in positions.items()]
    )
    answers: dict[TopicPartition, bool] = {}
    while len(answers) < len(positions) and time.monotonic() < until:
        for message in consumer.consume(len(positions), _WAIT):
            answers |= {tp: cut for tp, cut in _answer(message) if tp in positions}
    return answers


def _answer(message: Message) -> Iterator[tuple[TopicPartition, bool]]:
    """Yield whether a log was truncated, by a record, the log's end or an error.

    librdkafka fetches only after the validation of the epoch has succeeded.
    """
    topic, partition, error = message.topic(), message.partition(), message.error()
    if topic is None or partition is None:
        return
    if error is None or error.code() == KafkaError._PARTITION_EOF:
        yield TopicPartition(topic, partition), False
    elif error.code() == KafkaError._AUTO_OFFSET_RESET:
        # otherwise the position is out of range: the validation has succeeded, and retention took the record
        yield TopicPartition(topic, partition), _TRUNCATED in error.str()
