"""Produce record blocks: exactly once by transactions with committed progress, or at least once without them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import numpy as np
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaTopicPartition

from kbackup.errors import ClusterError, FencedError, KbackupError
from kbackup.kafka.client import READS_ALONE, Connection, Properties
from kbackup.kafka.control.errors import REFUSES_TOPIC
from kbackup.kafka.control.groups import stable_offsets
from kbackup.kafka.control.router import Router
from kbackup.kafka.record_clients import open_sink
from kbackup.native.contract import (
    CAUSED_BY_ANOTHER,
    CommittedProgress,
    NotProvenError,
    RecordSink,
    RefusedRecordError,
    Runs,
    Undelivered,
    resolve,
)
from kbackup.native.waiting import Waiting
from kbackup.types import CommittedOffset, Int64Array, RecordBlock, TopicPartition

OFFSETS_SECONDS = 60.0  # s, for progress to be added to a transaction
_OFFSETS_SLACK = 1 / 6  # of this time, by which librdkafka's own timeout ends before ours does

TUNING: dict[str, Any] = {
    "enable.idempotence": True,
    "acks": "all",
    # Batches fill meanwhile. A flush, and a queue that is full, send what is incomplete without waiting for this.
    "linger.ms": 100,
    "batch.size": 1 << 20,
    "batch.num.messages": 50_000,
    # One and a half batches, for the reason that `queue_kbytes` gives.
    "queue.buffering.max.messages": 75_000,
    "message.max.bytes": 1_000_000_000,  # librdkafka's bound; the preflight checks the topic's own
    "compression.type": "lz4",
}


_COMPRESSED_ANEW = 64
"""A broker that compresses a topic's batches by another codec may make them larger, by less than 1/64."""


def batch_size_for(properties: Properties, message_limit: int | None) -> int:
    """Return the `batch.size` with which no batch of several records is larger than `message_limit` bytes.

    `message_limit` is the least max.message.bytes of the topics to come, None if no topic takes less than a batch. A
    single record that is larger still goes out, in a batch of its own.
    """
    configured = str(properties.get("batch.size", TUNING["batch.size"]))
    # With base 0, as librdkafka reads numbers: 0x100000 is one.
    batch_size = int(configured, 0)
    if message_limit is None:
        return batch_size
    room = message_limit - message_limit // _COMPRESSED_ANEW
    return max(1, min(batch_size, room))


def queue_kbytes(batch_size: int, largest: int) -> int:
    """Return `queue.buffering.max.kbytes`: one and a half batches of `batch_size` bytes, but two records of `largest`.

    An idempotent producer has one batch per partition on its way at a time. While a second batch is full, librdkafka's
    thread polls without a pause until the broker answers: a quarter of a restore's CPU (`scripts/bench`). A batch
    holds up to a third less of the bytes that the queue counts, because each record gets a head and headers.
    """
    batches_and_a_half = 3 * batch_size // (2 << 10)
    two_records = 2 * largest >> 10
    return max(1, batches_and_a_half, two_records)


TRANSACTION_SECONDS = 300.0  # s, for one to stay open
TRANSACTIONAL = {
    "transaction.timeout.ms": int(TRANSACTION_SECONDS * 1000),
    "message.timeout.ms": 300_000,
    # A producer that starts over from its bootstrap servers never finds its group's coordinator again.
    "metadata.recovery.strategy": "none",
}


_TUNING = {
    **READS_ALONE,
    # What is read back is of a transaction that is still open.
    "isolation.level": "read_uncommitted",
    "fetch.wait.max.ms": 50,
}
_BATCH = 1000
_WAIT = 0.1  # s


def record_offsets(
    connection: Connection, group: str, tp: TopicPartition, start: int, end: int | None, timeout: float
) -> Int64Array:
    """Ask the broker which offsets in [start, end) hold records, also of open and aborted transactions.

    If `end` is None, the range goes to the current end of the log.
    """
    consuming = closing(connection.consumer(_TUNING | {"group.id": group}))
    with connection.errors(f"reading back {tp}"), consuming as consumer:
        if end is None:
            _, end = consumer.get_watermark_offsets(KafkaTopicPartition(*tp), timeout=timeout)
        if start >= end:
            return np.empty(0, np.int64)
        offsets: list[int] = []
        until = time.monotonic() + timeout
        consumer.assign([KafkaTopicPartition(*tp, start)])
        while time.monotonic() < until:
            for message in consumer.consume(_BATCH, _WAIT):
                error, offset = message.error(), message.offset()
                if error is None and offset is not None and offset < end:
                    offsets.append(offset)
                elif error is not None and error.code() != KafkaError._PARTITION_EOF and not error.retriable():
                    raise KafkaException(error)
                # The last record of the range ends the range. If the range ends with offsets that hold no record, such
                # as markers, only the report of the log's end, or a record past the range, tells.
                last = end if error is not None else end - 1
                if offset is not None and offset >= last:
                    return np.array(offsets, np.int64)
    raise connection.silent(f"did not give back {tp} from offset {start} to {end} in {timeout:.0f} s")


class RefusedTopicError(ClusterError):
    """The cluster takes no more records of `topic`, and trying again would not change that. Other topics are not
    concerned. Nothing of the open transaction is committed."""

    def __init__(self, topic: str, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.topic = topic


_REFUSAL_HINTS = {
    KafkaError.INVALID_RECORD: (
        "compare its timestamp with the topic's bounds (message.timestamp.after.max.ms, "
        "message.timestamp.before.max.ms), and check that it has a key if the topic is compacted"
    ),
    KafkaError.MSG_SIZE_TOO_LARGE: "raise max.message.bytes of the topic",
    KafkaError.RECORD_LIST_TOO_LARGE: "raise max.message.bytes or segment.bytes of the topic",
}
_REFUSAL_HINTS[KafkaError.INVALID_TIMESTAMP] = _REFUSAL_HINTS[KafkaError.INVALID_RECORD]

FENCED_RESTORE = ("another restore with the same id has taken over", "let that one finish; this one wrote nothing more")

_FENCED = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
_TIMEOUT = 300.0  # s, for one transaction call
_RETRY_HINT = "run the command again if the retries of the task fail too"
_FLUSH_SLICE = 1.0  # s, of a flush, between two looks whether a record was refused
_REASON_WAIT = 1.0  # s, for the delivery report of an earlier record, which has the reason of a refusal
_READ_BACK = 60.0  # s


class BlockProducer:
    """Sends record blocks. `transactional_id` None: idempotent, without transactions or progress. Close it after use.

    A producer belongs to one unit of a restore and carries its transactional id: a second one with the same id fences
    the first. Progress is the next source offset of each partition, committed to a group of the target in the
    transaction that carries the records, so that it is true or absent, never ahead or behind.

    `largest` is the size of the largest record to come, in bytes: the queue has room for two of them. `fenced` is the
    message and the hint for the case that another producer with the same id has taken over. `sink` is
    `open_message_sink` for a producer that only starts. `message_limit` is the least max.message.bytes of the
    topics to come, None where none is smaller than a batch. `compression` is the codec, unless the properties name
    one. `progress_seconds` is how long progress may take to be added to a transaction, `clock` gives the time in
    seconds.

    `unnamed_refusal` is the error of a transaction that was refused because of one topic, where the cluster does not
    say which one: whoever has several in it finds out by transactions with one topic each.
    """

    unnamed_refusal: KbackupError | None = None

    def __init__(
        self,
        properties: Properties,
        transactional_id: str | None,
        progress_group: str,
        largest: int = 0,
        fenced: tuple[str, str] = FENCED_RESTORE,
        sink: Callable[[Connection, Mapping[str, Any], str], RecordSink] = open_sink,
        message_limit: int | None = None,
        compression: str | None = None,
        progress_seconds: float = OFFSETS_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fenced = fenced
        batch_size = batch_size_for(properties, message_limit)
        # The size goes into the properties, which win over `extra`: a topic would refuse batches of a larger one.
        self._connection = Connection({**properties, "batch.size": str(batch_size)}, "target")
        self._transactional = transactional_id is not None
        extra: dict[str, Any] = {**TUNING, "allow.auto.create.topics": False}
        if compression is not None:
            extra["compression.type"] = compression
        kbytes = queue_kbytes(batch_size, largest)
        extra["queue.buffering.max.kbytes"] = kbytes
        self.room = (kbytes << 10) // 2
        """The size of the largest record that the queue has room for twice, in bytes."""
        if self._transactional:
            extra |= TRANSACTIONAL | {"transactional.id": transactional_id}
        self._group = progress_group
        self._progress_seconds = progress_seconds
        self._clock = clock
        self._sink = sink(self._connection, extra, progress_group)
        self._next: dict[TopicPartition, int | None] = {}
        self._open = False
        self._given_up = False
        self._began = 0.0

    @property
    def moved(self) -> int:
        """The number of records with timestamp 0 that were sent with 1."""
        return self._sink.moved

    def close(self) -> None:
        """Give up what was not committed."""
        # The sink is abandoned with a call that still waits: see `commit`.
        if self._given_up:
            return
        try:
            if self._open:
                self.abort()
        finally:
            self._sink.close()

    def start(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, CommittedProgress]:
        """Fence whoever had this id before, end its transaction, and return the progress it left."""
        if not self._transactional:
            return {}
        with self._errors("starting transactions"):
            self._sink.init(_TIMEOUT)
            committed = self._committed(partitions)
        progress: dict[TopicPartition, CommittedProgress] = {}
        for position in committed:
            # A note is written with a NUL byte behind it, which confluent-kafka wants.
            note = position.metadata.rstrip("\0")
            progress[position.tp] = CommittedProgress(position.offset, note)
        return progress

    def _committed(self, partitions: Sequence[TopicPartition]) -> list[CommittedOffset]:
        """Return the progress that the group has; `KafkaException` if its coordinator refuses to answer."""
        router = Router(self._connection)
        try:
            committed = stable_offsets(router, self._group, partitions)
        finally:
            router.close()
        if isinstance(committed, KafkaError):
            raise KafkaException(committed)
        return committed

    def send(self, tp: TopicPartition, block: RecordBlock) -> None:
        """Queue a block's records for `tp`, in order; blocks while the queue is full.

        The block's memory must not change before `flush` is done. librdkafka takes a timestamp of 0 for 'now':
        such a record is sent with 1, and counted in `moved`.
        """
        if self._transactional and not self._open:
            self._begin()
        with self._errors("delivering records"):
            try:
                self._sink.send(tp, block)
            except RefusedRecordError as refused:
                # Where the transaction has failed already, the delivery report of an earlier record says why, and may
                # be on its way.
                self._sink.serve(_REASON_WAIT)
                self._check()
                raise self._undelivered(refused.lost) from refused
        self._check()

    def flush(self) -> dict[TopicPartition, Runs]:
        """Wait until every record is delivered; return the target offsets by partition."""
        until = time.monotonic() + _TIMEOUT
        with self._errors("delivering records"):
            while undelivered := self._sink.flush(_FLUSH_SLICE):
                # After a refusal, the rest of its partition stays queued until the transaction is given up.
                if self._sink.lost() is not None or time.monotonic() >= until:
                    break
        self._check()
        if undelivered:
            raise ClusterError(
                f"{self._connection.address} did not take {undelivered} records in {_TIMEOUT:.0f} s",
                "check that all brokers are running",
            )
        delivered: dict[TopicPartition, Runs] = {}
        for tp, runs in self._sink.taken().items():
            delivered[tp] = self._with_all_offsets(tp, runs)
        # Set for all partitions or for none: the records to come lie at these offsets or after them.
        for tp, runs in delivered.items():
            self._next[tp] = runs.next
        return delivered

    def _with_all_offsets(self, tp: TopicPartition, runs: Runs) -> Runs:
        """Return where records went, with the target offsets that delivery reports lack; `ClusterError` without proof.

        A report lacks the offset if the broker had the batch already, and its first answer was lost.
        """
        ask = partial(record_offsets, self._connection, self._group, tp, timeout=_READ_BACK)
        try:
            return resolve(runs, self._next.get(tp), ask)
        except NotProvenError as error:
            raise ClusterError(
                f"the broker did not report the offset of each record of {tp}; the transaction is not committed",
                _RETRY_HINT,
            ) from error

    def commit(self, progress: Mapping[TopicPartition, CommittedProgress]) -> None:
        """End the transaction: the records since the last commit and their progress become visible together.

        Progress is added with a timeout of our own: librdkafka's does not hold when the group's coordinator leaves the
        cluster meanwhile (its issue 5511). This producer is then abandoned with its call still waiting; the next
        producer fences it.
        """
        if not self._open:
            return
        with self._errors("committing a transaction"):
            seconds = self._progress_seconds
            adding = Waiting(partial(self._sink.send_progress, progress, seconds))
            if not adding.ended(seconds + seconds * _OFFSETS_SLACK):
                self._open = False
                self._given_up = True
                raise ClusterError(
                    f"{self._connection.address} did not take the progress in {seconds:.0f} s; "
                    "the transaction is not committed",
                    _RETRY_HINT,
                )
            self._sink.commit(_TIMEOUT)
        self._open = False

    def commit_alone(self, progress: Mapping[TopicPartition, CommittedProgress]) -> None:
        """Commit progress in a transaction without records."""
        self._begin()
        self.commit(progress)

    def _begin(self) -> None:
        with self._errors("beginning a transaction"):
            self._sink.begin()
        self._open = True
        self._began = self._clock()

    def abort(self) -> None:
        """Drop the records since the last commit."""
        self._open = False
        try:
            self._sink.abort(_TIMEOUT)
        except KafkaException as raised:
            # A fenced producer, whose error is fatal, has nothing left to abort.
            if not raised.args[0].fatal():
                raise self._connection.error(raised.args[0], "aborting a transaction") from raised

    def _check(self) -> None:
        """Raise an error for a record that was not delivered, of any partition."""
        lost = self._sink.lost()
        if lost is not None:
            raise self._undelivered(lost)

    def _undelivered(self, lost: Undelivered) -> KbackupError:
        """Return the error for a record that was not delivered, or the error that failed the whole transaction."""
        if self._open and lost.error.code() in CAUSED_BY_ANOTHER:
            # A failed transaction drops its queued records. The next transaction call reports the cause, which may be a
            # record of another topic. To begin a transaction within another has no other effect than this report.
            try:
                self._sink.begin()
            except KafkaException as raised:
                cause: KafkaError = raised.args[0]
                # This code only says that a transaction is open: none has failed, and there is no other cause.
                if cause.code() != KafkaError._STATE:
                    return self._failed(cause, "delivering records")
        doing = f"delivering the record of {lost.tp} from source offset {lost.source}"
        return self._failed(lost.error, doing, lost.tp.topic)

    def _failed(self, error: KafkaError, doing: str, topic: str = "") -> KbackupError:
        """Return the error to raise. `topic` is '' if the error is of no single topic, or if the topic is not known."""
        failed = self._explained(error, doing)
        if error.code() not in REFUSES_TOPIC or isinstance(failed, FencedError):
            return failed
        if topic:
            hint = _REFUSAL_HINTS.get(error.code(), failed.hint)
            return RefusedTopicError(topic, failed.message, hint)
        self.unnamed_refusal = failed
        return failed

    def _explained(self, error: KafkaError, doing: str) -> KbackupError:
        last = self._connection.last
        is_fenced = error.code() in _FENCED or (last is not None and last.code() in _FENCED)
        if not is_fenced:
            return self._connection.error(error, doing)
        # The coordinator aborts a transaction that is open for too long, and then refuses its producer in the same
        # words as one that another producer has fenced. Only the time tells the two apart.
        took = self._clock() - self._began
        if not self._open or took < TRANSACTION_SECONDS:
            return FencedError(*self._fenced)
        return ClusterError(
            f"{self._connection.address} aborted a transaction that was open for {took:.0f} s, longer than "
            f"transaction.timeout.ms ({TRANSACTION_SECONDS:.0f} s); nothing of it is committed",
            _RETRY_HINT,
        )

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        """Turn what confluent-kafka raises inside into kbackup's errors."""
        try:
            yield
        except KafkaException as raised:
            raise self._failed(raised.args[0], doing) from raised
