"""The Kafka cluster of a walk, without kbackup's own clients: what happens to topics, and what they hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from confluent_kafka.cimpl import NewPartitions, NewTopic

from scripts.soak.walk.oracle import Log, Record
from tests.support.truth import Position, commit, log_ends, positions, read_topic

_PATIENCE = 60.0  # s
GROUP = "walk"


@dataclass
class Cluster:
    bootstrap: str
    _admin: AdminClient = field(init=False)

    def __post_init__(self) -> None:
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def create(self, topic: str, partitions: int, compacted: bool = False) -> None:
        """Create a topic; of a compacted one, the brokers compact nothing."""
        config = {"cleanup.policy": "compact", "min.compaction.lag.ms": str(2**63 - 1)} if compacted else {}
        self._admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(30)
        self._wait_led(topic, partitions)

    def delete(self, topics: Sequence[str]) -> None:
        """Delete topics, and wait until the group has no offsets in them any more."""
        for future in self._admin.delete_topics(list(topics)).values():
            future.result(30)
        _wait(lambda: not set(topics) & set(self._admin.list_topics(timeout=30).topics))
        _wait(lambda: not any(topic in topics for topic, _ in positions(self.bootstrap, GROUP)))

    def add_partitions(self, topic: str, total: int) -> None:
        self._admin.create_partitions([NewPartitions(topic, total)])[topic].result(30)
        self._wait_led(topic, total)

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        """Move the log starts, as retention would."""
        places = [TopicPartition(topic, p, offset) for p, offset in before.items()]
        for future in self._admin.delete_records(places).values():
            future.result(30)

    def produce(self, topic: str, records: Sequence[tuple[int, Record]], transaction: bool | None = None) -> None:
        """Records with their partitions; in a transaction that is committed (True) or aborted (False)."""
        config: dict[str, Any] = {"bootstrap.servers": self.bootstrap, "linger.ms": 2, "log_level": 0}
        if transaction is not None:
            config["transactional.id"] = f"{topic}-{time.monotonic_ns()}"
        producer = Producer(config)
        if transaction is not None:
            producer.init_transactions(30)
            producer.begin_transaction()
        for partition, record in records:
            producer.produce(
                topic, record.value, record.key, partition, timestamp=record.timestamp, headers=list(record.headers)
            )
            producer.poll(0)
        if producer.flush(60):
            raise RuntimeError(f"the broker did not take the records of {topic}")
        if transaction is True:
            producer.commit_transaction(30)
        elif transaction is False:
            producer.abort_transaction(30)
        if transaction is not None:  # the coordinator answers before it has written the markers, which are read
            _wait(lambda: self.log_ends(topic) == log_ends(self.bootstrap, topic, "read_uncommitted"))

    def commit(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Put the group, which has no members, at offsets."""
        commit(self.bootstrap, GROUP, {(topic, p): Position(offset) for p, offset in offsets.items()})

    def log_starts(self, topic: str) -> dict[int, int]:
        return self._offsets(self._partitions(topic), OffsetSpec.earliest())

    def log_ends(self, topic: str) -> dict[int, int]:
        """The last stable offset of each partition."""
        return log_ends(self.bootstrap, topic)

    def log(self, topic: str) -> Log:
        """All that a consumer of committed records gets to see."""
        records = {
            partition: {r.offset: Record(r.timestamp or 0, r.key, r.value, tuple(r.headers)) for r in rows}
            for partition, rows in read_topic(self.bootstrap, topic).items()
        }
        committed = {p: at.offset for (name, p), at in positions(self.bootstrap, GROUP).items() if name == topic}
        return Log(records, self.log_starts(topic), self.log_ends(topic), committed)

    def _partitions(self, topic: str) -> list[TopicPartition]:
        found = self._admin.list_topics(topic, timeout=30).topics[topic].partitions
        return [TopicPartition(topic, partition) for partition in sorted(found)]

    def _offsets(self, partitions: Sequence[TopicPartition], spec: OffsetSpec) -> dict[int, int]:
        level = IsolationLevel.READ_COMMITTED
        futures = self._admin.list_offsets(dict.fromkeys(partitions, spec), isolation_level=level)
        return {tp.partition: future.result(30).offset for tp, future in futures.items()}

    def _wait_led(self, topic: str, partitions: int) -> None:
        """Until each partition has a leader that knows of it."""

        def led() -> bool:
            try:
                listed = self._partitions(topic)
                return len(listed) == partitions == len(self._offsets(listed, OffsetSpec.latest()))
            except (KafkaException, KeyError):
                return False

        _wait(led)


def _wait(true: Callable[[], bool]) -> None:
    until = time.monotonic() + _PATIENCE
    while not true():
        if time.monotonic() > until:
            raise RuntimeError("the cluster did not follow in time")
        time.sleep(0.05)
