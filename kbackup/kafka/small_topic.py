"""Small topics of one partition, which mirrors keep beside their data: read whole, and written with an answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Protocol, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as KafkaTopicPartition

from kbackup.errors import UndecodableError
from kbackup.kafka.client import READS_ALONE, Connection, Properties

_TUNING = {
    **READS_ALONE,
    "group.id": "kbackup-mirror-reader",  # needed by librdkafka; nothing is ever committed
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
}
_BATCH = 1000
_WAIT = 0.1  # s
_QUIET = 30.0  # s, without a record or the end of the topic

T = TypeVar("T")


class EncodedRecord(Protocol):
    """A record with its bytes."""

    @property
    def key(self) -> bytes: ...

    @property
    def value(self) -> bytes: ...


def read_records(properties: Properties, role: str, topic: str, decode: Callable[[bytes, bytes], T]) -> Iterator[T]:
    """Yield the records of partition 0 that `decode` knows, in order; the others, and tombstones, are skipped as Java's
    readers skip them."""
    connection = Connection(properties, role)
    with connection.errors(f"reading topic {topic}"), closing(connection.consumer(_TUNING)) as consumer:
        for key, value in _messages(connection, consumer, topic):
            try:
                yield decode(key, value)
            except UndecodableError:
                continue


def _messages(connection: Connection, consumer: Consumer, topic: str) -> Iterator[tuple[bytes, bytes]]:
    consumer.assign([KafkaTopicPartition(topic, 0, 0)])
    until = time.monotonic() + _QUIET
    while time.monotonic() < until:
        for message in consumer.consume(_BATCH, _WAIT):
            error = message.error()
            if error is None:
                until = time.monotonic() + _QUIET
                key, value = message.key(), message.value()
                if isinstance(key, bytes) and isinstance(value, bytes):
                    yield key, value
            elif error.code() == KafkaError._PARTITION_EOF:
                return
            elif not error.retriable():
                raise KafkaException(error)
    raise connection.silent(f"sent nothing of topic {topic} for {_QUIET:.0f} s")


_SLACK = 5.0  # s, for librdkafka to report a record that timed out


class RecordWriter:
    """An idempotent producer for partition 0 of small topics; `timeout` in s is for each record. Only `abort` may
    be called in another thread."""

    def __init__(self, properties: Properties, role: str, timeout: float = 60.0) -> None:
        self._connection = Connection(properties, role)
        self._timeout = timeout
        self._producer: Producer | None = None
        self._failed: list[KafkaError] = []

    def write(self, topic: str, records: Iterable[EncodedRecord], timestamp: int | None = None) -> int:
        """Write `records` and wait until brokers have them; returns their number. `timestamp` in ms, default now.

        Raises where one was not written. Others may have been, before it and after it.
        """
        stamp = int(time.time() * 1000) if timestamp is None else timestamp
        doing = f"writing to topic {topic}"
        with self._connection.errors(doing):
            try:
                count, waiting = self._send(topic, records, stamp)
            except BaseException:
                # The error may be fatal to the producer: the next call begins with a new one.
                self.close()
                raise
        if self._failed or waiting:
            # `close` purges the queue, which adds failures: the first one is the reason.
            first_failure = self._failed[0] if self._failed else None
            self.close()
            if first_failure is not None:
                raise self._connection.error(first_failure, doing)
            raise self._connection.silent(f"did not answer {doing}")
        return count

    def abort(self) -> None:
        """Fail what is being written."""
        producer = self._producer
        if producer is not None:
            producer.purge(blocking=False)

    def close(self) -> None:
        """Drop what is not written yet; idempotent."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            producer.flush(_SLACK)

    def _send(self, topic: str, records: Iterable[EncodedRecord], timestamp: int) -> tuple[int, int]:
        """Return how many records were produced, and for how many of them no delivery report came."""
        if self._producer is None:
            tuning = {"enable.idempotence": True, "message.timeout.ms": int(self._timeout * 1000)}
            self._producer = self._connection.producer(tuning)
        producer = self._producer
        self._failed.clear()
        count = 0
        for record in records:
            count += 1
            while True:
                try:
                    producer.produce(topic, record.value, record.key, 0, timestamp=timestamp, on_delivery=self._note)
                except BufferError:
                    # The queue is full, until a delivery report comes.
                    producer.poll(0.1)
                else:
                    producer.poll(0)
                    break
        waiting = producer.flush(self._timeout + _SLACK)
        return count, waiting

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed.append(error)
