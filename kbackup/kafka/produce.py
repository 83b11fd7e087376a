"""Produce record blocks: exactly once by transactions with committed progress, or at least once without them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaTopicPartition

from kbackup.errors import ClusterError, FencedError, UnreachableError
from kbackup.kafka import kernel
from kbackup.kafka.client import Connection, Properties
from kbackup.kafka.groups.calls import CommittedOffset, GroupCalls
from kbackup.kafka.kernel_protocol import (
    CAUSED_BY_ANOTHER,
    CommittedProgress,
    NotProvenError,
    Outlet,
    RefusedRecordError,
    Runs,
    Undelivered,
    resolve,
)
from kbackup.kafka.retry import COORDINATOR_NOT_READY, in_time
from kbackup.types import Int64Array, RecordBlock, TopicPartition
from kbackup.util.system import attempts

_NOT_YET = {*COORDINATOR_NOT_READY, KafkaError.UNSTABLE_OFFSET_COMMIT}
OFFSETS_SECONDS = 60.0  # s, for progress to be read, or to be added to a transaction


_COORDINATOR = 30.0  # s, for one to become ready
_PAUSE = 0.3  # s, before it is asked again


def committed_progress(consumer: Consumer, group: str, partitions: Sequence[TopicPartition]) -> list[CommittedOffset]:
    """Return the committed offsets of the progress group for `partitions`.

    Repeats the request while the coordinator is not ready, or still ends a transaction.
    """
    for _ in attempts(_COORDINATOR, _PAUSE):
        ((_, answer),) = GroupCalls(consumer, OFFSETS_SECONDS).committed([group], partitions, stable=True)
        if not isinstance(answer, KafkaError):
            return answer
        if answer.code() not in _NOT_YET:
            break
    raise KafkaException(answer)


# The properties of a producer of record blocks.


TUNING: dict[str, Any] = {
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 100,  # a flush does not wait for it
    "batch.size": 1 << 20,
    "batch.num.messages": 50_000,
    "queue.buffering.max.messages": 75_000,  # as `queue_kbytes`
    "message.max.bytes": 1_000_000_000,  # librdkafka's bound; the preflight checks the topic's own
    "compression.type": "lz4",
}


def queue_kbytes(batch_size: int, largest: int) -> int:
    """Return `queue.buffering.max.kbytes`: one and a half batches of `batch_size` bytes, but two records of `largest`.

    Of an idempotent producer one batch a partition is on its way at a time. While a second one is full, librdkafka's
    thread polls without a pause until the broker answers: a quarter of a restore's CPU (`scripts/bench`). A batch
    holds up to a third less of the bytes that the queue counts, because each record gets a head and headers.
    """
    return max(1, 3 * batch_size >> 11, largest >> 9)


TRANSACTION_SECONDS = 300.0  # s, for one to stay open
TRANSACTIONAL = {
    "transaction.timeout.ms": int(TRANSACTION_SECONDS * 1000),
    "message.timeout.ms": 300_000,
    # a producer that starts over from its bootstrap servers never finds its group's coordinator again
    "metadata.recovery.strategy": "none",
}


# Ask a broker which offsets of a partition hold records.


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
    """Return the offsets of records in [start, end), also of open and aborted transactions.

    `end` None: the current end of the log.
    """
    with connection.errors(f"reading back {tp}"):
        consumer = connection.consumer(_TUNING | {"group.id": group})
        try:
            return _read(connection, consumer, tp, start, end, timeout)
        finally:
            consumer.close()


def _read(
    connection: Connection, consumer: Consumer, tp: TopicPartition, start: int, end: int | None, timeout: float
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


# Producing record blocks to their partitions, exactly once, with the broker's word on where each record
# went.
#
# A producer belongs to one unit of a restore and carries its transactional id: a second one with the same id
# fences the first. Progress is the next source offset of each partition, committed to a group of the target in
# the transaction that carries the records, so that it is true or absent, never ahead or behind.


FENCED_RESTORE = ("another restore with the same id has taken over", "let that one finish; this one wrote nothing more")

_FENCED = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
_TIMEOUT = 300.0  # s, for one transaction call
_RETRY_HINT = "run the command again if the retries of the task fail too"
_LAST_WORDS = 1.0  # s; the delivery report of an earlier record says why no more records are accepted
_READ_BACK = 60.0  # s


class BlockProducer:
    """Sends record blocks. `transactional_id` None: idempotent, without transactions or progress. Close it after use.

    `largest` is the size of the largest record to come, in bytes: the queue has room for two of them. `fenced` is the
    message and the hint for the case that another producer with the same id has taken over. `outlet` is
    `kernel.message_outlet` for a producer that only starts.
    """

    def __init__(
        self,
        properties: Properties,
        transactional_id: str | None,
        progress_group: str,
        largest: int = 0,
        fenced: tuple[str, str] = FENCED_RESTORE,
        outlet: Callable[[Connection, Mapping[str, Any], str], Outlet] = kernel.outlet,
    ) -> None:
        self._fenced = fenced
        self._connection = Connection(properties, "target")
        self._transactional = transactional_id is not None
        extra: dict[str, Any] = {**TUNING, "allow.auto.create.topics": False}
        batch_size = int(str(properties.get("batch.size", TUNING["batch.size"])), 0)
        extra["queue.buffering.max.kbytes"] = queue_kbytes(batch_size, largest)
        if self._transactional:
            extra |= TRANSACTIONAL | {"transactional.id": transactional_id}
        self._group = progress_group
        self._outlet = outlet(self._connection, extra, progress_group)
        self._next: dict[TopicPartition, int | None] = {}
        self._open = self._given_up = False
        self._began = 0.0

    @property
    def moved(self) -> int:
        """The number of records with timestamp 0 that were sent with 1."""
        return self._outlet.moved

    def close(self) -> None:
        """Gives up what was not committed."""
        if self._given_up:
            return
        try:
            if self._open:
                self.abort()
        finally:
            self._outlet.close()

    def start(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, CommittedProgress]:
        """Fence whoever had this id before, end its transaction, and return the progress it left."""
        if not self._transactional:
            return {}
        with self._errors("starting transactions"):
            self._outlet.init(_TIMEOUT)
            consumer = self._connection.consumer({"group.id": self._group, "enable.auto.commit": False})
            try:
                committed = committed_progress(consumer, self._group, partitions)
                self._outlet.join(consumer)
            finally:
                consumer.close()
        # a note is written with the NUL byte behind it that confluent-kafka wants
        return {c.tp: CommittedProgress(c.offset, c.metadata.rstrip("\0")) for c in committed}

    def send(self, tp: TopicPartition, block: RecordBlock) -> None:
        """Queue a block's records for `tp`, in order; blocks while the queue is full.

        The block's memory must not change before `flush` is done. librdkafka takes a timestamp of 0 for 'now':
        such a record is sent with 1, and counted in `moved`.
        """
        if self._transactional and not self._open:
            self._begin()
        with self._errors("delivering records"):
            try:
                self._outlet.send(tp, block)
            except RefusedRecordError as refused:
                self._outlet.serve(_LAST_WORDS)
                self._check()
                raise self._undelivered(refused.lost) from refused
        self._check()

    def flush(self) -> dict[TopicPartition, Runs]:
        """Wait until every record is delivered; return the target offsets by partition."""
        with self._errors("delivering records"):
            undelivered = self._outlet.flush(_TIMEOUT)
        self._check()
        if undelivered:
            raise ClusterError(
                f"{self._connection.address} did not take {undelivered} records in {_TIMEOUT:.0f} s",
                "check that all brokers are running",
            )
        resolved = {tp: self._resolved(tp, runs) for tp, runs in self._outlet.taken().items()}
        self._next |= {tp: runs.next for tp, runs in resolved.items()}
        return resolved

    def commit(self, progress: Mapping[TopicPartition, CommittedProgress]) -> None:
        """End the transaction: the records since the last commit and their progress become visible
        together."""
        if not self._open:
            return
        with self._errors("committing a transaction"):
            self._add_progress(progress)
            self._outlet.commit(_TIMEOUT)
        self._open = False

    def commit_alone(self, progress: Mapping[TopicPartition, CommittedProgress]) -> None:
        """Commit progress in a transaction without records."""
        self._begin()
        self.commit(progress)

    def _begin(self) -> None:
        with self._errors("beginning a transaction"):
            self._outlet.begin()
        self._open, self._began = True, time.monotonic()

    def _add_progress(self, progress: Mapping[TopicPartition, CommittedProgress]) -> None:
        """Add progress to the transaction, with a timeout of our own.

        librdkafka's own timeout does not hold when the group's coordinator leaves the cluster meanwhile (its issue
        5511). This producer is then abandoned with its call still waiting; the next producer fences it.
        """
        if not in_time(partial(self._outlet.send_progress, progress, OFFSETS_SECONDS), OFFSETS_SECONDS + 10):
            self._open, self._given_up = False, True
            raise ClusterError(
                f"{self._connection.address} did not take the progress in {OFFSETS_SECONDS:.0f} s; "
                "the transaction is not committed",
                _RETRY_HINT,
            )

    def abort(self) -> None:
        self._open = False
        try:
            self._outlet.abort(_TIMEOUT)
        except KafkaException as raised:
            if not raised.args[0].fatal():  # a fenced producer has nothing left to abort
                raise self._connection.error(raised.args[0], "aborting a transaction") from raised

    def _resolved(self, tp: TopicPartition, runs: Runs) -> Runs:
        ask = partial(record_offsets, self._connection, self._group, tp, timeout=_READ_BACK)
        try:
            return resolve(runs, self._next.get(tp), ask)
        except NotProvenError as error:
            raise ClusterError(
                f"the broker did not report the offset of each record of {tp}; the transaction is not committed",
                _RETRY_HINT,
            ) from error

    def _check(self) -> None:
        """Raise an error for a record that was not delivered, of any partition."""
        lost = self._outlet.lost()
        if lost is not None:
            raise self._undelivered(lost)

    def _undelivered(self, lost: Undelivered) -> Exception:
        return self._failed(
            self._cause(lost.error), f"delivering the record of {lost.tp} from source offset {lost.source}"
        )

    def _cause(self, error: KafkaError) -> KafkaError:
        """Return the error that failed the transaction, where `error` only follows from it.

        A failed transaction drops its queued records; the next transaction call reports the cause. Beginning a
        transaction within another has no other effect.
        """
        if self._open and error.code() in CAUSED_BY_ANOTHER:
            try:
                self._outlet.begin()
            except KafkaException as raised:
                cause: KafkaError = raised.args[0]
                return error if cause.code() == KafkaError._STATE else cause
        return error

    def _failed(self, error: KafkaError, doing: str) -> Exception:
        last = self._connection.last
        if error.code() in _FENCED or (last is not None and last.code() in _FENCED):
            return self._aborted() or FencedError(*self._fenced)
        if error.code() == KafkaError.INVALID_RECORD:
            return ClusterError(
                f"{self._connection.address} failed {doing}: {error.str()}",
                "compare its timestamp with the topic's bounds (message.timestamp.after.max.ms, "
                "message.timestamp.before.max.ms), and check that it has a key if the topic is compacted",
            )
        return self._connection.error(error, doing)

    def _aborted(self) -> ClusterError | None:
        """Return the error of a transaction that was open for too long, which the coordinator aborts; else None."""
        took = time.monotonic() - self._began
        if not self._open or took < TRANSACTION_SECONDS:
            return None
        return ClusterError(
            f"{self._connection.address} aborted a transaction that was open for {took:.0f} s, longer than "
            f"transaction.timeout.ms ({TRANSACTION_SECONDS:.0f} s); nothing of it is committed",
            _RETRY_HINT,
        )

    def _errors(self, doing: str) -> _Errors:
        return _Errors(self, doing)


class _Errors:
    """Turns what confluent-kafka raises inside into kbackup's errors."""

    def __init__(self, producer: BlockProducer, doing: str) -> None:
        self._producer, self._doing = producer, doing

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, KafkaException):
            raise self._producer._failed(error.args[0], self._doing) from error
