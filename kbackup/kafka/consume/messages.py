"""confluent-kafka's message objects as a source of records for `RangeReader`: a Python object a record, and columns of
them at a time. It reads wherever confluent-kafka runs, and is what the kernel is compared with.

Header names with NUL bytes are cut at the first one by confluent-kafka, which does not tell.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, groupby
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import TIMESTAMP_CREATE_TIME, Message
from confluent_kafka import TopicPartition as KafkaTopicPartition

from kbackup.formats.record import encode
from kbackup.kafka.client.client import Connection
from kbackup.kafka.consume.source_protocol import FetchResult, Report
from kbackup.types import RECORDS, Int64Array, OffsetRange, TopicPartition

_BATCH_BYTES = 8 << 20
_BATCH_RECORDS = 10_000
_WAIT = 0.1  # s; a batch that does not fill waits this long, so it bounds the delay at a range's end


class MessageSource:
    """See `source_protocol.Source`."""

    def __init__(self, connection: Connection, tuning: Mapping[str, Any]) -> None:
        self._connection = connection
        self._consumer = connection.consumer(tuning)
        self._ranges: Mapping[TopicPartition, OffsetRange] = {}
        self._size = 500

    def start(self, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        self._ranges = ranges
        with self._connection.errors("an assignment"):
            self._consumer.assign([KafkaTopicPartition(*tp, r.start) for tp, r in ranges.items()])

    def restart(self, tp: TopicPartition, offset: int) -> None:
        self.stop(tp)
        with self._connection.errors("an assignment"):
            self._consumer.incremental_assign([KafkaTopicPartition(*tp, offset)])

    def stop(self, tp: TopicPartition) -> None:
        with self._connection.errors("an assignment"):
            self._consumer.incremental_unassign([KafkaTopicPartition(*tp)])

    def watermarks(self, tp: TopicPartition, timeout: float) -> tuple[int, int]:
        with self._connection.errors(f"asking where {tp} starts"):
            low, high = self._consumer.get_watermark_offsets(KafkaTopicPartition(*tp), timeout=timeout)
        return low, high

    def take(self) -> Iterator[FetchResult]:
        with self._connection.errors("a read"), _no_collections():
            messages = self._consumer.consume(self._size, _WAIT)
            results = [result for tp, some in _by_partition(messages) for result in self._results(tp, some)]
        received = sum(p.block.nbytes for p in results if p.block is not None)
        if received:
            self._size = int(min(max(_BATCH_BYTES * len(messages) // received, 10), _BATCH_RECORDS))
        yield from results

    def close(self) -> None:
        self._consumer.close()

    def _results(self, tp: TopicPartition | None, messages: list[Message]) -> Iterator[FetchResult]:
        requested = None if tp is None else self._ranges.get(tp)
        records = [m for m in messages if m.error() is None]
        if tp is not None and requested is not None and records:
            offsets = np.fromiter(map(Message.offset, records), np.int64, len(records))
            keep = int(np.searchsorted(offsets, requested.end))
            block = encode(_batch(records[:keep], offsets[:keep])) if keep else None
            epoch = records[keep - 1].leader_epoch() if keep else None
            yield FetchResult(
                tp, block, bool(offsets[-1] >= requested.end - 1), None, -1 if epoch is None else epoch
            )
        for message in messages:
            error, offset = message.error(), message.offset()
            if error is not None:
                yield FetchResult(tp, None, False, Report(error, -1 if offset is None else offset))


def _by_partition(messages: list[Message]) -> Iterator[tuple[TopicPartition | None, list[Message]]]:
    """Messages grouped by partition, in order. librdkafka hands them over in runs of one partition."""
    for (topic, partition), some in groupby(messages, key=lambda m: (m.topic(), m.partition())):
        named = topic is not None and partition is not None
        yield TopicPartition(topic, partition) if named else None, list(some)


@contextmanager
def _no_collections() -> Iterator[None]:
    """Switch Python's cycle collector off: it would walk over every message repeatedly, measured at a quarter of a
    backup task's CPU. Messages are in no cycle and are freed without it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _batch(messages: list[Message], offsets: Int64Array) -> pa.RecordBatch:
    """Message objects as `RECORDS`. A create time of -1 is the wire's word for 'none': type -2, as the Java
    tool has it."""
    pairs = chain.from_iterable(map(Message.timestamp, messages))
    stamps = np.fromiter(pairs, np.int64, 2 * len(messages)).reshape(-1, 2)
    kinds = stamps[:, 0] - 1
    kinds[(stamps[:, 0] == TIMESTAMP_CREATE_TIME) & (stamps[:, 1] == -1)] = -2
    timestamps = pa.array(stamps[:, 1], mask=kinds < 0)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(offsets),
            pa.array(kinds.astype(np.int8)),
            timestamps,
            pa.array(list(map(Message.key, messages)), pa.large_binary()),
            pa.array(list(map(Message.value, messages)), pa.large_binary()),
            _headers(messages),
        ],
        schema=RECORDS,
    )


def _headers(messages: list[Message]) -> pa.Array[Any]:
    # confluent-kafka gives lists of (key, value); its stubs allow dicts too, which only produce() takes
    every: list[Any] = [m.headers() for m in messages]
    kind: Any = RECORDS.field("headers").type
    starts = np.zeros(len(every) + 1, np.int32)
    np.cumsum([len(h) if h else 0 for h in every], out=starts[1:])
    flat = [pair for h in every if h for pair in h]
    items = pa.StructArray.from_arrays(
        [pa.array([k for k, _ in flat], pa.string()), pa.array([v for _, v in flat], pa.large_binary())],
        fields=list(kind.value_type),
    )
    lists: Any = pa.ListArray
    made: pa.Array[Any] = lists.from_arrays(pa.array(starts), items, type=kind)
    return made
