"""The Kafka cluster of a walk, by confluent-kafka alone: what happens to topics, and what they hold."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from confluent_kafka.cimpl import NewPartitions, NewTopic

from scripts.soak.walk.oracle import Log, Record

_PATIENCE = 60.0  # s
GROUP = "walk"


@dataclass
class Cluster:
    bootstrap: str
    _admin: AdminClient = field(init=False)

    def __post_init__(self) -> None:
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def create(self, topic: str, partitions: int) -> None:
        self._admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
        self._wait_led(topic, partitions)

    def delete(self, topics: Sequence[str]) -> None:
        """Delete topics, and wait until the group has no offsets in them any more."""
        partitions = [tp for topic in topics for tp in self._partitions(topic)]
        for future in self._admin.delete_topics(list(topics)).values():
            future.result(30)
        _wait(lambda: not set(topics) & set(self._admin.list_topics(timeout=30).topics))
        with self._consumer() as consumer:
            _wait(lambda: all(tp.offset < 0 for tp in _committed(consumer, partitions)))

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
        if transaction is not None:
            self._wait_for_markers(topic)

    def _wait_for_markers(self, topic: str) -> None:
        """Wait until the transaction's end can be read: the coordinator answers before it has written the markers."""
        whole = IsolationLevel.READ_UNCOMMITTED
        _wait(lambda: self.log_ends(topic) == self._offsets(self._partitions(topic), OffsetSpec.latest(), whole))

    def commit(self, topic: str, positions: Mapping[int, int]) -> None:
        """Put the group, which has no members, at offsets."""
        places = [TopicPartition(topic, p, offset) for p, offset in positions.items()]
        with self._consumer() as consumer:
            consumer.commit(offsets=places, asynchronous=False)

    def log_starts(self, topic: str) -> dict[int, int]:
        return self._offsets(self._partitions(topic), OffsetSpec.earliest())

    def log_ends(self, topic: str) -> dict[int, int]:
        """The last stable offset of each partition."""
        return self._offsets(self._partitions(topic), OffsetSpec.latest())

    def log(self, topic: str) -> Log:
        """All that a consumer of committed records gets to see."""
        partitions = self._partitions(topic)
        starts = self._offsets(partitions, OffsetSpec.earliest())
        ends = self._offsets(partitions, OffsetSpec.latest())
        records: dict[int, dict[int, Record]] = {tp.partition: {} for tp in partitions}
        with self._consumer() as consumer:
            committed = _committed(consumer, partitions)
            positions = {tp.partition: tp.offset for tp in committed if tp.offset >= 0}
            consumer.assign([TopicPartition(topic, p, start) for p, start in starts.items()])
            open_partitions, until = set(starts), time.monotonic() + _PATIENCE
            while open_partitions:
                if time.monotonic() > until:
                    raise RuntimeError(f"no end of {topic}, partitions {sorted(open_partitions)}")
                for message in consumer.consume(1000, 0.1):
                    partition, error = message.partition() or 0, message.error()
                    if error is None:
                        headers: Any = tuple(message.headers() or ())
                        record = Record(message.timestamp()[1], message.key(), message.value(), headers)
                        records[partition][message.offset() or 0] = record
                    elif error.code() == KafkaError._PARTITION_EOF:
                        open_partitions.discard(partition)
                    else:
                        raise KafkaException(error)
        return Log(records, starts, ends, positions)

    @contextmanager
    def _consumer(self) -> Iterator[Consumer]:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": GROUP,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 20,
                "log_level": 0,
            }
        )
        try:
            yield consumer
        finally:
            consumer.close()

    def _partitions(self, topic: str) -> list[TopicPartition]:
        found = self._admin.list_topics(topic, timeout=30).topics[topic].partitions
        return [TopicPartition(topic, partition) for partition in sorted(found)]

    def _offsets(
        self, partitions: Sequence[TopicPartition], spec: OffsetSpec, isolation: IsolationLevel | None = None
    ) -> dict[int, int]:
        level = isolation or IsolationLevel.READ_COMMITTED
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


def _committed(consumer: Consumer, partitions: list[TopicPartition]) -> list[TopicPartition]:
    """Return the group's offsets. The first request makes the broker create the topic of offsets, which takes time."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            return consumer.committed(partitions, timeout=30)
        except KafkaException as error:
            if not error.args[0].retriable() and error.args[0].code() != KafkaError.NOT_COORDINATOR:
                raise
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def _wait(true: Any) -> None:
    until = time.monotonic() + _PATIENCE
    while not true():
        if time.monotonic() > until:
            raise RuntimeError("the cluster did not follow in time")
        time.sleep(0.05)
