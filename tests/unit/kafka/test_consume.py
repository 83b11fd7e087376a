"""The truncation of logs as read from librdkafka's answers on leader epochs."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, Message
from confluent_kafka import TopicPartition as KafkaTopicPartition

from kbackup.kafka.client import Connection
from kbackup.kafka.consume import EpochPosition, Validation, validate_epochs
from kbackup.types import TopicPartition

SOURCE = {"bootstrap.servers": "b:1"}
TRUNCATED = "Partition log truncation detected at offset 10: Local: Partition log truncation detected (broker 1)"
RETENTION = "fetch failed due to requested offset not available: Broker: Offset out of range (broker 1)"


class Consumer:
    """Answers for each assigned partition with what `errors` has for it (None: a record), or not at all."""

    def __init__(self, errors: dict[TopicPartition, KafkaError | None]) -> None:
        self._errors = errors
        self.assigned: list[list[tuple[str, int, int, int | None]]] = []
        self.closed = False
        self._messages: list[Message] = []

    def assign(self, partitions: list[KafkaTopicPartition]) -> None:
        self.assigned.append([(p.topic, p.partition, p.offset, p.leader_epoch) for p in partitions])
        asked = [TopicPartition(p.topic, p.partition) for p in partitions]
        answers = [Message(topic=tp[0], partition=tp[1], error=self._errors[tp]) for tp in asked if tp in self._errors]
        self._messages = [Message(error=KafkaError(KafkaError._ALL_BROKERS_DOWN)), *answers]

    def consume(self, _number: int, _timeout: float) -> list[Message]:
        messages, self._messages = self._messages, []
        return messages

    def close(self) -> None:
        self.closed = True


def validate(
    monkeypatch: pytest.MonkeyPatch,
    consumer: Consumer,
    positions: dict[TopicPartition, EpochPosition],
    timeout: float = 60,
) -> Validation:
    """`timeout` is short where a partition gives no answer."""
    tuning: list[dict[str, Any]] = []

    def made(_: Connection, extra: dict[str, Any]) -> Consumer:
        tuning.append(extra)
        return consumer

    monkeypatch.setattr(Connection, "consumer", made)
    validation = validate_epochs(SOURCE, positions, "group", timeout)
    assert [(t["group.id"], t["auto.offset.reset"]) for t in tuning] == [("group", "error")]
    assert consumer.closed
    return validation


def test_only_a_truncation_counts_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    tps = [TopicPartition("orders", p) for p in range(6)]
    consumer = Consumer(
        {
            tps[0]: None,
            tps[1]: KafkaError(KafkaError._PARTITION_EOF),
            tps[2]: KafkaError(KafkaError._AUTO_OFFSET_RESET, TRUNCATED),
            tps[3]: KafkaError(KafkaError._AUTO_OFFSET_RESET, RETENTION),
            tps[4]: KafkaError(KafkaError.LEADER_NOT_AVAILABLE),
        }
    )
    found = validate(monkeypatch, consumer, dict.fromkeys(tps, EpochPosition(10, 4)), 0.5)
    assert found == Validation(frozenset({tps[2]}), frozenset(tps[4:]))
    assert consumer.assigned == [[("orders", p, 10, 4) for p in range(6)]]


def test_partitions_are_assigned_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    positions = {TopicPartition("orders", p): EpochPosition(p, 4) for p in range(1200)}
    consumer = Consumer(dict.fromkeys(positions))
    assert validate(monkeypatch, consumer, positions) == Validation(frozenset(), frozenset())
    assert [len(batch) for batch in consumer.assigned] == [500, 500, 200]


def test_nothing_to_validate_connects_to_nobody() -> None:
    assert validate_epochs({}, {}, "group", 1.0) == Validation(frozenset(), frozenset())
