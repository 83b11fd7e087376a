"""Producing small records in order: heartbeats, checkpoints and offset syncs."""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaError, Message, Producer

from kbackup.errors import UnreachableError
from kbackup.kafka.client.client import Connection, Properties
from kbackup.kafka.mirror_records.codec import MirrorRecord

_SLACK = 5.0  # s, for librdkafka to report a record that timed out


class RecordWriter:
    """An idempotent producer for partition 0 of internal topics; `timeout` in s is for each record. Only `abort` may
    be called in another thread."""

    def __init__(self, properties: Properties, role: str, timeout: float = 60.0) -> None:
        self._connection = Connection(properties, role)
        self._timeout = timeout
        self._producer: Producer | None = None
        self._failed: list[KafkaError] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, topic: str, records: Iterable[MirrorRecord], timestamp: int | None = None) -> int:
        """Write `records` and wait until brokers have them; returns their number. `timestamp` in ms, default now.

        Raises where one was not written. Others may have been, before it and after it.
        """
        stamp = int(time.time() * 1000) if timestamp is None else timestamp
        doing = f"writing to topic {topic}"
        with self._connection.errors(doing):
            try:
                count, waiting = self._send(topic, records, stamp)
            except BaseException:
                self.close()  # the next call begins with a new producer: the error may be fatal
                raise
        failed = self._failed[:1]
        if failed or waiting:
            self.close()
        if failed:
            raise self._connection.error(failed[0], doing)
        if waiting:
            raise UnreachableError(
                f"{self._connection.address} did not answer {doing}",
                "check that it is running and can be reached from here",
            )
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

    def _send(self, topic: str, records: Iterable[MirrorRecord], timestamp: int) -> tuple[int, int]:
        """Return how many records were produced, and how many of them nothing was heard of."""
        producer = self._producer = self._producer or self._connection.producer(self._tuning())
        self._failed.clear()
        count = 0
        for record in records:
            self._produce(producer, topic, record, timestamp)
            count += 1
        return count, producer.flush(self._timeout + _SLACK)

    def _tuning(self) -> dict[str, object]:
        return {"enable.idempotence": True, "message.timeout.ms": int(self._timeout * 1000)}

    def _produce(self, producer: Producer, topic: str, record: MirrorRecord, timestamp: int) -> None:
        while True:
            try:
                producer.produce(
                    topic, record.value, record.key, partition=0, timestamp=timestamp, on_delivery=self._note
                )
            except BufferError:
                producer.poll(0.1)
            else:
                producer.poll(0)
                return

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed.append(error)
