"""Reading offset ranges as record blocks with one consumer.

The end of a range is reached by position: by a record at or past it, by the record just before it, or by the
broker's word that nothing more is there (EOF at or past it). Compaction, aborted transactions and control
records need no special case.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from confluent_kafka import TIMESTAMP_CREATE_TIME, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaTopicPartition

from kbackup.errors import ClusterError, UnreachableError
from kbackup.formats.record import encode
from kbackup.kafka.client import Connection, Properties
from kbackup.types import RECORDS, OffsetRange, RecordBlock, TopicPartition

_BATCH_BYTES = 8 << 20
_BATCH_RECORDS = 10_000
_WAIT = 0.1  # s; a batch that does not fill waits this long, so it bounds the delay at a range's end
_QUEUE_KBYTES = 32 << 10  # prefetched bytes of all partitions of a consumer, in KiB

_GONE = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
}

_TUNING = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "allow.auto.create.topics": False,
    "fetch.wait.max.ms": 50,
    "fetch.queue.backoff.ms": 10,
    "fetch.error.backoff.ms": 100,
    "queued.min.messages": 100_000,
    "check.crcs": True,
}


class Vanished(NamedTuple):
    """Records that were deleted at the source after they were planned and before they were read: [start,
    end)."""

    tp: TopicPartition
    start: int
    end: int


class _Part(NamedTuple):
    """A run of one partition's messages: the records that lie in its range, whether they reach its end, and what
    the consumer reports beside records."""

    tp: TopicPartition
    block: RecordBlock | None
    ended: bool
    reports: list[Message]


class RangeReader:
    """One consumer for a task's ranges. `vanished` collects what retention took while reading.

    `timeout` is how long, in seconds, nothing at all may happen before `UnreachableError`. Close it after use.
    """

    def __init__(
        self, properties: Properties, isolation: str, group: str, timeout: float, partitions: int = 1
    ) -> None:
        self._connection = Connection(properties, "source")
        self._timeout = timeout
        self.vanished: list[Vanished] = []
        self._consumer = self._connection.consumer(
            _TUNING
            | {
                "group.id": group,
                "isolation.level": isolation,
                "queued.max.messages.kbytes": max(1024, _QUEUE_KBYTES // max(1, partitions)),
            }
        )

    def close(self) -> None:
        self._consumer.close()

    def read(self, ranges: Sequence[OffsetRange]) -> Iterator[tuple[TopicPartition, RecordBlock]]:
        """Blocks of all `ranges` (at most one a partition) as they come, each partition's in order, until
        every end is reached."""
        waiting = {r.tp: r for r in ranges if r.start < r.end}
        positions = {tp: r.start for tp, r in waiting.items()}
        self._assign(positions)
        size = 500
        heard = time.monotonic()
        while waiting:
            count, parts = self._take(size, waiting)
            received, left = 0, len(waiting)
            for tp, block, ended, reports in parts:
                if tp not in waiting:
                    continue
                if block is not None:
                    received += block.nbytes
                    positions[tp] = int(block.offsets[-1]) + 1
                    yield tp, block
                if ended or self._handle(reports, waiting[tp], positions):
                    del waiting[tp]
            if received or len(waiting) < left:
                heard = time.monotonic()
            else:
                self._check_silence(heard, waiting)  # reports alone are no progress
            if received:
                size = int(min(max(_BATCH_BYTES * count // received, 10), _BATCH_RECORDS))

    def _take(self, size: int, waiting: dict[TopicPartition, OffsetRange]) -> tuple[int, list[_Part]]:
        """At most `size` messages: how many there were, and what became of them."""
        with self._connection.errors("a read"), _no_collections():
            messages = self._consumer.consume(size, _WAIT)
            found = [_part(tp, some, waiting[tp]) for tp, some in _by_partition(messages) if tp in waiting]
            return len(messages), found

    def _assign(self, positions: dict[TopicPartition, int]) -> None:
        with self._connection.errors("an assignment"):
            self._consumer.assign(
                [KafkaTopicPartition(tp.topic, tp.partition, at) for tp, at in positions.items()]
            )

    def _handle(
        self, messages: list[Message], wanted: OffsetRange, positions: dict[TopicPartition, int]
    ) -> bool:
        """What the consumer reports beside records; True when the range's end is reached by it."""
        for message in messages:
            error = message.error()
            assert error is not None  # noqa: S101 (selected by the caller)
            code = error.code()
            if code == KafkaError._PARTITION_EOF:
                end = message.offset()
                if end is not None and end >= wanted.end:
                    return True
            elif code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                if self._skip_vanished(wanted, positions):
                    return True
            elif code in _GONE or not error.retriable() or error.fatal():
                raise self._connection.error(error, f"reading {wanted}")
        return False

    def _skip_vanished(self, wanted: OffsetRange, positions: dict[TopicPartition, int]) -> bool:
        """The log starts past our position now: note the loss and go on at its start."""
        with self._connection.errors(f"asking where {wanted.tp} starts"):
            low, high = self._consumer.get_watermark_offsets(
                KafkaTopicPartition(*wanted.tp), timeout=self._timeout
            )
        at = positions[wanted.tp]
        if low <= at <= high:
            raise ClusterError(
                f"{wanted} can't be read at offset {at}", "the broker says it is out of range; try again"
            )
        if low < at:
            raise ClusterError(
                f"the log of {wanted.tp} was cut back to {high}, below offset {at} which was there before",
                "an unclean leader election? the next run reports what is lost",
            )
        self.vanished.append(Vanished(wanted.tp, at, min(low, wanted.end)))
        positions[wanted.tp] = low
        if low >= wanted.end:
            return True
        self._consumer.incremental_unassign([KafkaTopicPartition(*wanted.tp)])
        self._consumer.incremental_assign([KafkaTopicPartition(wanted.topic, wanted.partition, low)])
        return False

    def _check_silence(self, heard: float, waiting: dict[TopicPartition, OffsetRange]) -> None:
        if time.monotonic() - heard < self._timeout:
            return
        some = ", ".join(str(r) for r in list(waiting.values())[:3])
        said = f" ({self._connection.last.str()})" if self._connection.last is not None else ""
        raise UnreachableError(
            f"{self._connection.address} gave nothing for {self._timeout:.0f} s while reading {some}{said}",
            "is it running, and reachable from here?",
        )


def _by_partition(messages: list[Message]) -> Iterator[tuple[TopicPartition, list[Message]]]:
    """Messages grouped by partition, in order. librdkafka hands them over in runs of one partition."""
    for (topic, partition), some in groupby(messages, key=lambda m: (m.topic(), m.partition())):
        if topic is not None and partition is not None:
            yield TopicPartition(topic, partition), list(some)
        else:
            for message in some:
                error = message.error()
                if error is not None and error.fatal():
                    raise KafkaException(error)


@contextmanager
def _no_collections() -> Iterator[None]:
    """Without Python's cycle collector, which would walk over every message again and again: measured at a quarter of
    a backup task's CPU. Messages are in no cycle and go when they are let go."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _part(tp: TopicPartition, messages: list[Message], wanted: OffsetRange) -> _Part:
    records = [m for m in messages if m.error() is None]
    reports = [m for m in messages if m.error() is not None] if len(records) < len(messages) else []
    offsets = np.fromiter(map(Message.offset, records), np.int64, len(records))
    ended = bool(len(offsets) and offsets[-1] >= wanted.end - 1)
    keep = int(np.searchsorted(offsets, wanted.end))
    block = encode(_batch(records[:keep], offsets[:keep])) if keep else None
    return _Part(tp, block, ended, reports)


def _batch(messages: list[Message], offsets: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.RecordBatch:
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
