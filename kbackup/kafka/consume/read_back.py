"""Ask a broker which offsets of a partition hold records."""

from __future__ import annotations

import time

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaTopicPartition

from kbackup.errors import UnreachableError
from kbackup.kafka.client.client import Connection
from kbackup.types import Int64Array, TopicPartition

_TUNING = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_uncommitted",  # of a transaction that is still open
    "fetch.wait.max.ms": 50,
}
_BATCH = 1000
_WAIT = 0.1  # s


def record_offsets(
    connection: Connection, group: str, tp: TopicPartition, start: int, end: int | None, timeout: float
) -> Int64Array:
    """Return the offsets of records in [start, end), those of open and aborted transactions too.

    `end` None: the current end of the log.
    """
    with connection.errors(f"reading back {tp}"):
        consumer = connection.consumer(_TUNING | {"group.id": group})
        try:
            return _read(connection, consumer, tp, start, end, timeout)
        finally:
            consumer.close()


def _read(
    connection: Connection,
    consumer: Consumer,
    tp: TopicPartition,
    start: int,
    end: int | None,
    timeout: float,
) -> Int64Array:
    if end is None:
        _, end = consumer.get_watermark_offsets(KafkaTopicPartition(*tp), timeout=timeout)
    offsets: list[int] = []
    until = time.monotonic() + timeout
    if start >= end:
        return np.empty(0, np.int64)
    consumer.assign([KafkaTopicPartition(*tp, start)])
    while time.monotonic() < until:
        for message in consumer.consume(_BATCH, _WAIT):
            error, offset = message.error(), message.offset()
            if error is None and offset is not None and offset < end:
                offsets.append(offset)
            elif error is not None and error.code() != KafkaError._PARTITION_EOF and not error.retriable():
                raise KafkaException(error)
            if offset is not None and offset >= end - (error is None):
                return np.array(offsets, np.int64)
    raise UnreachableError(
        f"{connection.address} did not give back {tp} from offset {start} to {end} in {timeout:.0f} s",
        "check that it is running and can be reached from here",
    )
