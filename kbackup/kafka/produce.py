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


_COMPRESSED_ANEW = 64
"""A broker that compresses a topic's batches by another codec may make them larger, by less than 1/64."""


def batch_size_for(properties: Properties, message_limit: int | None) -> int:
    """Return the `batch.size` by which a whole batch is no larger than `message_limit` bytes, the least
    max.message.bytes of the topics to come (None: no topic has less than a batch). A record that is larger alone still
    goes out, in a batch of its own."""
    wanted = int(str(properties.get("batch.size", TUNING["batch.size"])), 0)
    if message_limit is None:
        return wanted
    room = message_limit - message_limit // _COMPRESSED_ANEW
    return max(1, min(wanted, room))


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


_TUNING = {
    **READS_ALONE,
    "isolation.level": "read_uncommitted",  # of a transaction that is still open
    "fetch.wait.max.ms": 50,
}
_BATCH = 1000
_WAIT = 0.1  # s


def record_offsets(
    connection: Connection, group: str, tp: TopicPartition, start: int, end: int | None, timeout: float
) -> Int64Array:
    """Ask the broker which offsets in [start, end) hold records, also of open and aborted transactions.

    `end` None: the current end of the log.
    """
    with (
        connection.errors(f"reading back {tp}"),
        closing(connection.consumer(_TUNING | {"group.id": group})) as consumer,
    ):
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
    raise connection.silent(f"did not give back {tp} from offset {start} to {end} in {timeout:.0f} s")


class RefusedTopicError(ClusterError):
    """The cluster takes no more records of `topic`, and trying again would not change that. Other topics are not
    concerned. Nothing of the open transaction is committed."""

    def __init__(self, topic: str, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.topic = topic


_REFUSES_TOPIC = {
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.POLICY_VIOLATION,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
}
"""Answers to a record, to its partition's first place in a transaction, or to its progress, that concern its topic
alone."""

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
_LAST_WORDS = 1.0  # s; the delivery report of an earlier record says why no more records are accepted
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
    one.

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
    ) -> None:
        self._fenced = fenced
        batch_size = batch_size_for(properties, message_limit)
        # the properties win over `extra`, and a batch that the topic refuses helps nobody
        self._connection = Connection({**properties, "batch.size": str(batch_size)}, "target")
        self._transactional = transactional_id is not None
        extra: dict[str, Any] = {**TUNING, "allow.auto.create.topics": False}
        if compression is not None:
            extra["compression.type"] = compression
        kbytes = queue_kbytes(batch_size, largest)
        self.room = (kbytes << 10) // 2
        """The size of the largest record that the queue has room for twice, in bytes."""
        extra["queue.buffering.max.kbytes"] = kbytes
        if self._transactional:
            extra |= TRANSACTIONAL | {"transactional.id": transactional_id}
        self._group = progress_group
        self._sink = sink(self._connection, extra, progress_group)
        self._next: dict[TopicPartition, int | None] = {}
        self._open = self._given_up = False
        self._began = 0.0

    @property
    def moved(self) -> int:
        """The number of records with timestamp 0 that were sent with 1."""
        return self._sink.moved

    def close(self) -> None:
        """Gives up what was not committed."""
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
        # a note is written with the NUL byte behind it that confluent-kafka wants
        return {c.tp: CommittedProgress(c.offset, c.metadata.rstrip("\0")) for c in committed}

    def _committed(self, partitions: Sequence[TopicPartition]) -> list[CommittedOffset]:
        """Return the progress that the group has; raise `KafkaException` where it is not told."""
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
                self._sink.serve(_LAST_WORDS)
                self._check()
                raise self._undelivered(refused.lost) from refused
        self._check()

    def flush(self) -> dict[TopicPartition, Runs]:
        """Wait until every record is delivered; return the target offsets by partition."""
        until = time.monotonic() + _TIMEOUT
        with self._errors("delivering records"):
            while undelivered := self._sink.flush(_FLUSH_SLICE):
                # after a refusal, what is still queued of its partition stays so until the transaction is given up
                if self._sink.lost() is not None or time.monotonic() >= until:
                    break
        self._check()
        if undelivered:
            raise ClusterError(
                f"{self._connection.address} did not take {undelivered} records in {_TIMEOUT:.0f} s",
                "check that all brokers are running",
            )
        resolved = {}
        for tp, runs in self._sink.taken().items():
            ask = partial(record_offsets, self._connection, self._group, tp, timeout=_READ_BACK)
            try:
                resolved[tp] = resolve(runs, self._next.get(tp), ask)
            except NotProvenError as error:
                raise ClusterError(
                    f"the broker did not report the offset of each record of {tp}; the transaction is not committed",
                    _RETRY_HINT,
                ) from error
        self._next |= {tp: runs.next for tp, runs in resolved.items()}
        return resolved

    def commit(self, progress: Mapping[TopicPartition, CommittedProgress]) -> None:
        """End the transaction: the records since the last commit and their progress become visible together.

        Progress is added with a timeout of our own: librdkafka's does not hold when the group's coordinator leaves the
        cluster meanwhile (its issue 5511). This producer is then abandoned with its call still waiting; the next
        producer fences it.
        """
        if not self._open:
            return
        with self._errors("committing a transaction"):
            adding = Waiting(partial(self._sink.send_progress, progress, OFFSETS_SECONDS))
            if not adding.ended(OFFSETS_SECONDS + 10):
                self._open, self._given_up = False, True
                raise ClusterError(
                    f"{self._connection.address} did not take the progress in {OFFSETS_SECONDS:.0f} s; "
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
        self._open, self._began = True, time.monotonic()

    def abort(self) -> None:
        self._open = False
        try:
            self._sink.abort(_TIMEOUT)
        except KafkaException as raised:
            if not raised.args[0].fatal():  # a fenced producer has nothing left to abort
                raise self._connection.error(raised.args[0], "aborting a transaction") from raised

    def _check(self) -> None:
        """Raise an error for a record that was not delivered, of any partition."""
        lost = self._sink.lost()
        if lost is not None:
            raise self._undelivered(lost)

    def _undelivered(self, lost: Undelivered) -> KbackupError:
        """Return the error that failed the transaction, where the record's error only follows from it.

        A failed transaction drops its queued records; the next transaction call reports the cause, which may be a
        record of another topic. Beginning a transaction within another has no other effect.
        """
        error, topic = lost.error, lost.tp.topic
        doing = f"delivering the record of {lost.tp} from source offset {lost.source}"
        if self._open and error.code() in CAUSED_BY_ANOTHER:
            try:
                self._sink.begin()
            except KafkaException as raised:
                if raised.args[0].code() != KafkaError._STATE:
                    error, topic, doing = raised.args[0], "", "delivering records"
        return self._failed(error, doing, topic)

    def _failed(self, error: KafkaError, doing: str, topic: str = "") -> KbackupError:
        """Return the error to raise; `topic` is the one that it is about, if it is about one topic and that is
        known."""
        failed = self._explained(error, doing)
        if error.code() not in _REFUSES_TOPIC or isinstance(failed, FencedError):
            return failed
        if topic:
            return RefusedTopicError(topic, failed.message, _REFUSAL_HINTS.get(error.code(), failed.hint))
        self.unnamed_refusal = failed
        return failed

    def _explained(self, error: KafkaError, doing: str) -> KbackupError:
        last = self._connection.last
        if error.code() in _FENCED or (last is not None and last.code() in _FENCED):
            took = time.monotonic() - self._began
            if not self._open or took < TRANSACTION_SECONDS:
                return FencedError(*self._fenced)
            return ClusterError(  # the coordinator aborts a transaction that is open for too long
                f"{self._connection.address} aborted a transaction that was open for {took:.0f} s, longer than "
                f"transaction.timeout.ms ({TRANSACTION_SECONDS:.0f} s); nothing of it is committed",
                _RETRY_HINT,
            )
        return self._connection.error(error, doing)

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        """Turn what confluent-kafka raises inside into kbackup's errors."""
        try:
            yield
        except KafkaException as raised:
            raise self._failed(raised.args[0], doing) from raised
