"""Reading an internal topic from its beginning to its present end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaTopicPartition

from kbackup.errors import UndecodableError, UnreachableError
from kbackup.kafka.client.client import Connection, Properties

_TUNING = {
    "group.id": "kbackup-mirror-reader",  # needed by librdkafka; nothing is ever committed
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
}
_BATCH = 1000
_WAIT = 0.1  # s
_QUIET = 30.0  # s without anything from a broker

T = TypeVar("T")


def read_records(
    properties: Properties, role: str, topic: str, decode: Callable[[bytes, bytes], T]
) -> Iterator[T]:
    """Yield the records of partition 0 that `decode` knows, in order; the others, and tombstones, are skipped as Java's
    readers skip them."""
    connection = Connection(properties, role)
    with connection.errors(f"reading topic {topic}"):
        consumer = connection.consumer(_TUNING)
        try:
            for key, value in _messages(connection, consumer, topic):
                try:
                    yield decode(key, value)
                except UndecodableError:
                    continue
        finally:
            consumer.close()


def _messages(connection: Connection, consumer: Consumer, topic: str) -> Iterator[tuple[bytes, bytes]]:
    consumer.assign([KafkaTopicPartition(topic, 0, 0)])
    until = time.monotonic() + _QUIET
    while time.monotonic() < until:
        for message in consumer.consume(_BATCH, _WAIT):
            error, key, value = message.error(), message.key(), message.value()
            if error is None:
                until = time.monotonic() + _QUIET
                if isinstance(key, bytes) and isinstance(value, bytes):
                    yield key, value
            elif error.code() == KafkaError._PARTITION_EOF:
                return
            elif not error.retriable():
                raise KafkaException(error)
    raise UnreachableError(
        f"{connection.address} sent nothing of topic {topic} for {_QUIET:.0f} s",
        "check that it is running and can be reached from here",
    )
