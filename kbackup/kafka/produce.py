"""Producing record blocks to their partitions, exactly once, with the broker's word on where each record
went.

A producer belongs to one unit of a restore and carries its transactional id: a second one with the same id
fences the first. Progress is the next source offset of each partition, committed to a group of the target in
the transaction that carries the records, so that it is true or absent, never ahead or behind.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaTopicPartition

from kbackup.errors import ClusterError, FencedError
from kbackup.formats.record import decode
from kbackup.kafka.client import COORDINATOR_NOT_READY, Connection, Properties
from kbackup.kafka.waiting import in_time
from kbackup.types import Int64Array, RecordBlock, TopicPartition

_TUNING = {
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 5,
    "batch.size": 1 << 20,
    "batch.num.messages": 100_000,
    "queue.buffering.max.messages": 500_000,
    "queue.buffering.max.kbytes": 64 << 10,
    "message.max.bytes": 1_000_000_000,  # librdkafka's bound; the preflight checks the topic's own
    "compression.type": "lz4",
}
_TRANSACTIONAL = {
    "transaction.timeout.ms": 300_000,
    "message.timeout.ms": 300_000,
    # a producer that starts over from its bootstrap servers never finds its group's coordinator again
    "metadata.recovery.strategy": "none",
}
_FENCED = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
_CAUSED_BY_ANOTHER = {
    KafkaError._INVALID_DIFFERENT_RECORD,
    KafkaError._PURGE_QUEUE,
    KafkaError._PURGE_INFLIGHT,
}
_TIMEOUT = 300.0  # s, for one transaction call
_OFFSETS = 60.0  # s, for progress to be added to a transaction
_COORDINATOR = 30.0  # s, for one to become ready
_PAUSE = 0.3  # s, before it is asked again
_LAST_WORDS = 1.0  # s; why no more records are taken is said by the delivery report of an earlier one


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Where records went: int64[n] each; record `source + i` is at `target + i` for 0 <= i < `count`."""

    source: Int64Array
    target: Int64Array
    count: Int64Array


class Progress(NamedTuple):
    """`next` is the source offset from which to go on; `note` is what was committed with it."""

    next: int
    note: str


@dataclass
class _Deliveries:
    """What one partition sent and got back since the last commit, in order; `failed` is the number of the
    record that `error` is about."""

    sources: list[Int64Array] = field(default_factory=list)
    targets: list[int | None] = field(default_factory=list)
    error: KafkaError | None = None
    failed: int = 0
    reports: int = 0

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.targets.append(message.offset())
        elif self.error is None or self.error.code() in _CAUSED_BY_ANOTHER:
            self.error, self.failed = error, self.reports
        self.reports += 1


class BlockProducer:
    """`transactional_id` None: idempotent but without transactions or progress. Close it after use."""

    def __init__(self, properties: Properties, transactional_id: str | None, progress_group: str) -> None:
        self._connection = Connection(properties, "target")
        self._transactional = transactional_id is not None
        extra: dict[str, Any] = dict(_TUNING)
        if self._transactional:
            extra |= _TRANSACTIONAL | {"transactional.id": transactional_id}
        self._group = progress_group
        self._producer = self._connection.producer(extra)
        self._deliveries: dict[TopicPartition, _Deliveries] = {}
        self._open = False
        self.moved = 0

    def close(self) -> None:
        """Gives up what was not committed."""
        if self._open:
            self.abort()
        if not self._transactional:
            self._producer.purge()

    def start(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Progress]:
        """Fence whoever had this id before, end its transaction, and return the progress it left."""
        if not self._transactional:
            return {}
        with self._transaction("starting transactions"):
            self._producer.init_transactions(_TIMEOUT)
            consumer = self._connection.consumer({"group.id": self._group, "enable.auto.commit": False})
            try:
                asked = [KafkaTopicPartition(tp.topic, tp.partition) for tp in partitions]
                found = _committed(consumer, asked)
                # once, and now: this waits without end in a consumer whose broker was restarted meanwhile
                self._membership = consumer.consumer_group_metadata()
            finally:
                consumer.close()
        return {
            TopicPartition(p.topic, p.partition): Progress(p.offset, p.metadata or "")
            for p in found
            if p.offset >= 0
        }

    def send(self, tp: TopicPartition, block: RecordBlock) -> None:
        """Queue a block's records for `tp`, in order; blocks while the queue is full.

        librdkafka takes a timestamp of 0 for 'now': such a record is sent with 1, and counted in `moved`.
        """
        if self._transactional and not self._open:
            with self._transaction("beginning a transaction"):
                self._producer.begin_transaction()
            self._open = True
        deliveries = self._deliveries.setdefault(tp, _Deliveries())
        deliveries.sources.append(block.offsets)
        batch = decode(block)
        kinds = batch.column("timestamp_type").to_numpy()
        stamps = batch.column("timestamp").to_numpy(zero_copy_only=False)
        stamps = np.where(kinds >= 0, stamps, -1).astype(np.int64)
        zero = stamps == 0
        self.moved += int(zero.sum())
        stamps = np.where(zero, 1, stamps).tolist()
        keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
        headers = _headers(batch.column("headers"))
        produce, poll = self._producer.produce, self._producer.poll
        topic, partition = tp
        for i, (key, value, stamp, some) in enumerate(zip(keys, values, stamps, headers, strict=True)):
            while True:
                try:
                    produce(
                        topic, value, key, partition, on_delivery=deliveries, timestamp=stamp, headers=some
                    )
                    break
                except BufferError:
                    poll(0.1)
                except KafkaException as raised:
                    poll(_LAST_WORDS)
                    self._check()
                    raise self._failed(
                        raised.args[0], f"delivering the record of {tp} from source offset {block.offsets[i]}"
                    ) from raised
        poll(0)
        self._check()

    def flush(self) -> dict[TopicPartition, Runs]:
        """Wait until every record is delivered; returns where they went, by partition."""
        with self._transaction("delivering records"):
            left = self._producer.flush(_TIMEOUT)
        self._check()
        if left:
            raise ClusterError(
                f"{self._connection.address} did not take {left} records in {_TIMEOUT:.0f} s",
                "is a broker down?",
            )
        runs = {tp: _runs(tp, deliveries) for tp, deliveries in self._deliveries.items()}
        self._deliveries = {}
        return runs

    def commit(self, progress: Mapping[TopicPartition, Progress]) -> None:
        """End the transaction: the records since the last commit and their progress become visible
        together."""
        if not self._open:
            return
        offsets = [
            KafkaTopicPartition(tp.topic, tp.partition, at.next, metadata=at.note)
            for tp, at in progress.items()
        ]
        with self._transaction("committing a transaction"):
            self._add_progress(offsets)
            self._producer.commit_transaction(_TIMEOUT)
        self._open = False

    def _add_progress(self, offsets: list[KafkaTopicPartition]) -> None:
        """librdkafka's own timeout does not hold where the group's coordinator left the cluster meanwhile
        (its issue 5511): then this producer is given up with its call still waiting; the next one fences it."""
        send = partial(self._producer.send_offsets_to_transaction, offsets, self._membership, _OFFSETS)
        if not in_time(send, _OFFSETS + 10):
            self._open = False
            raise ClusterError(
                f"{self._connection.address} did not take the progress in {_OFFSETS:.0f} s",
                "nothing of it is committed; the task begins this part anew",
            )

    def abort(self) -> None:
        self._open = False
        self._deliveries = {}
        try:
            self._producer.abort_transaction(_TIMEOUT)
        except KafkaException as raised:
            if not raised.args[0].fatal():  # a fenced producer has nothing left to abort
                raise self._connection.error(raised.args[0], "aborting a transaction") from raised

    def _check(self) -> None:
        """Raises for a record that was not delivered, whichever partition it was of."""
        for tp, deliveries in self._deliveries.items():
            if deliveries.error is not None:
                source = np.concatenate(deliveries.sources)[deliveries.failed]
                raise self._failed(
                    deliveries.error, f"delivering the record of {tp} from source offset {source}"
                )

    def _failed(self, error: KafkaError, doing: str) -> Exception:
        last = self._connection.last
        if error.code() in _FENCED or (last is not None and last.code() in _FENCED):
            return FencedError(
                "another restore with the same id has taken over",
                "let that one finish; this one wrote nothing more",
            )
        if error.code() == KafkaError.INVALID_RECORD:
            return ClusterError(
                f"{self._connection.address} failed {doing}: {error.str()}",
                "is its timestamp out of the topic's bounds (message.timestamp.after.max.ms, "
                "message.timestamp.before.max.ms), or has it no key where the topic is compacted?",
            )
        return self._connection.error(error, doing)

    def _transaction(self, doing: str) -> _TransactionErrors:
        return _TransactionErrors(self, doing)


def _committed(consumer: Consumer, asked: list[KafkaTopicPartition]) -> list[KafkaTopicPartition]:
    """What the progress group has committed; a coordinator that is not ready yet is asked again."""
    until = time.monotonic() + _COORDINATOR
    while True:
        try:
            found = consumer.committed(asked, timeout=60)
        except KafkaException as raised:
            if raised.args[0].code() not in COORDINATOR_NOT_READY or time.monotonic() > until:
                raise
            time.sleep(_PAUSE)
            continue
        for partition in found:
            if partition.error is not None:
                raise KafkaException(partition.error)
        return found


class _TransactionErrors:
    """Turns what the transaction calls raise into kbackup's errors."""

    def __init__(self, producer: BlockProducer, doing: str) -> None:
        self._producer, self._doing = producer, doing

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, KafkaException):
            raise self._producer._failed(error.args[0], self._doing) from error


def _headers(column: Any) -> Iterable[list[tuple[str, str | bytes | None]]]:
    """Header lists, one a record; the same empty one for all when no record has any."""
    if len(column.flatten()) == 0:
        return repeat([], len(column))
    return [[(h["key"], h["value"]) for h in some] for some in column.to_pylist()]


def _runs(tp: TopicPartition, deliveries: _Deliveries) -> Runs:
    sources = np.concatenate(deliveries.sources)
    if len(deliveries.targets) != len(sources) or any(t is None or t < 0 for t in deliveries.targets):
        raise ClusterError(
            f"the broker did not say where each record of {tp} went",
            "nothing is committed; the task begins this part anew",
        )
    targets = np.array(deliveries.targets, np.int64)
    breaks = np.flatnonzero((np.diff(sources) != 1) | (np.diff(targets) != 1)) + 1
    starts = np.concatenate([[0], breaks]).astype(np.int64)
    counts = np.diff(np.concatenate([starts, [len(sources)]])).astype(np.int64)
    return Runs(sources[starts], targets[starts], counts)
