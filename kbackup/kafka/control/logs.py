"""The record batches of logs as brokers have them, with the markers and aborted records that consumers skip.

Only the leader of a partition answers for its log. What is read here is little: the batch at an offset, or the batches
of a window of offsets. Records of a backup are read by librdkafka.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import pyarrow as pa
from confluent_kafka import KafkaError

from kbackup.kafka.control.connection import BrokerConnection
from kbackup.kafka.control.errors import NOT_LET_IN, RefusedRequestError, RequestError
from kbackup.kafka.control.messages import DefaultRecordBatch, DescribeProducersRequest, FetchRequest
from kbackup.kafka.control.router import Answers, Leaders, Question, Router, metadata_request, numbers_by_topic
from kbackup.kafka.control.settings import Address
from kbackup.kafka.control.unavailable import Unavailable, UnavailableError
from kbackup.types import TopicPartition

_TOPICS_BY_NAME = 9
"""The last version of Metadata that names topics alone."""

_LOGS_BY_NAME = 12
"""The last version of Fetch that names topics; later ones have their ids."""

_LOGS_AT_ONCE = 500
"""Logs in one Fetch."""

_FETCHES_AT_ONCE = 4
"""Requests of one round of reading: what they bring may go beyond a limit of bytes."""

_MOST_BYTES = 50 << 20
"""Of an answer to Fetch."""

_MOST_PLAIN = 512 << 20
"""Of a batch, uncompressed: some bytes of a hostile broker's could be many GiB."""

_NO_BATCH = (
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError._NOENT,
)
"""Errors of logs that have no batch to show, or nobody to show it."""

_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1
_MAY_READ = 3
"""Kafka's number for Read among the operations on a topic that we may do."""

_BATCH_HEADER = struct.Struct(">qiibIhiqqqhii")
_BEFORE_LENGTH = 12  # bytes of a batch that its length doesn't count
_MAGIC, _CODEC, _TRANSACTIONAL, _CONTROL = 2, 0x07, 0x10, 0x20
_ATTRIBUTES = 22  # the byte of a batch that has its codec
_CODECS: Mapping[int, Literal["gzip", "lz4", "zstd"]] = {1: "gzip", 3: "lz4", 4: "zstd"}


class LogBatch(NamedTuple):
    """Offsets `first` to `last`. `control`: markers of transactions. `aborted`: a marker that aborts, or records of an
    aborted transaction, where they were read as committed. `timestamp` is the newest, in ms."""

    first: int
    last: int
    leader_epoch: int
    control: bool
    aborted: bool
    transactional: bool = False
    producer_id: int = -1
    producer_epoch: int = -1
    timestamp: int = -1
    data: bytes = b""

    def records(self) -> Iterator[tuple[int, bytes, bytes | None]]:
        """Yield offset, key and value of each record, if the batch has its data. Raise `RefusedRequestError` for a
        codec that kbackup can't read, and for a batch that grows beyond measure."""
        for record in DefaultRecordBatch(_uncompressed(self.data)):
            yield record.offset, record.key or b"", record.value


def _uncompressed(batch: bytes) -> bytearray:
    """Return the bytes of a batch without compression. kafka-python's own way needs a library for most codecs, and
    gives hostile bytes all the memory that they ask for."""
    data = bytearray(batch)
    codec = data[_ATTRIBUTES] & _CODEC
    if not codec:
        return data
    if codec not in _CODECS:
        raise RefusedRequestError(KafkaError.UNSUPPORTED_COMPRESSION_TYPE)
    data[_ATTRIBUTES] &= ~_CODEC
    body = pa.BufferReader(bytes(data[_BATCH_HEADER.size :]))
    # One byte more than is allowed tells that there are too many, and no more than that is ever unpacked.
    plain = pa.CompressedInputStream(body, _CODECS[codec]).read(_MOST_PLAIN + 1)
    if len(plain) > _MOST_PLAIN:
        raise RefusedRequestError(KafkaError.MSG_SIZE_TOO_LARGE)
    data[_BATCH_HEADER.size :] = plain
    return data


def batches_of(data: bytes, aborted: Sequence[tuple[int, int]]) -> Iterator[LogBatch]:
    """Yield the batches of a log's bytes that are whole. `aborted`: producer ids, with the first offsets of their
    aborted transactions."""
    at = 0
    while len(data) - at >= _BATCH_HEADER.size:
        first, length, leader_epoch, magic, _, attributes, delta, _, timestamp, producer, epoch, *_ = (
            _BATCH_HEADER.unpack_from(data, at)
        )
        whole = data[at : at + _BEFORE_LENGTH + length]
        # A broker cuts what it sends at a number of bytes: the last batch may be a part of one.
        if magic != _MAGIC or len(whole) < _BEFORE_LENGTH + length:
            return
        last = first + delta
        is_control = bool(attributes & _CONTROL)
        if is_control:
            # The marker itself says whether the transaction was aborted or committed.
            is_aborted = next(DefaultRecordBatch(whole)).abort
        else:
            # Exact for the first batch of an answer, which is all that `log_batches` takes: behind the marker of an
            # aborted transaction, the same producer may have committed another one.
            is_aborted = any(each == producer and start <= last for each, start in aborted)
        yield LogBatch(
            first=first,
            last=last,
            leader_epoch=leader_epoch,
            control=is_control,
            aborted=is_aborted,
            transactional=bool(attributes & _TRANSACTIONAL),
            producer_id=producer,
            producer_epoch=epoch,
            timestamp=timestamp,
            data=whole,
        )
        at += len(whole)


@dataclass
class LogWindow:
    """The batches from `position` up to `end`, and on to the next marker of each producer with a transaction open
    there, and to `reach`. The next batch is read at `position`."""

    position: int
    end: int
    reach: int = 0
    batches: list[LogBatch] = field(default_factory=list)
    _open: set[int] = field(default_factory=set)

    @property
    def complete(self) -> bool:
        return self.position >= max(self.end, self.reach) and not self._open

    def add(self, batch: LogBatch) -> None:
        self.batches.append(batch)
        self.position = batch.last + 1
        # A producer has one transaction at a time: the next marker is the end of what is open. Transactions that begin
        # behind the window don't matter, else the window might never be complete.
        if batch.control:
            self._open.discard(batch.producer_id)
        elif batch.transactional and batch.first < self.end:
            self._open.add(batch.producer_id)


def log_batches(
    router: Router, offsets: Mapping[TopicPartition, int]
) -> Mapping[TopicPartition, LogBatch] | Unavailable:
    """Return the batch of each log that has the offset given, or else the next batch.

    Logs that give no answer are left out; `Unavailable` where no broker lets us in."""
    windows = {tp: LogWindow(offset, 0, offset + 1) for tp, offset in offsets.items()}
    reader = _WindowReader(router, windows, size=1 << 10, isolation=_READ_COMMITTED)
    # A log that is empty at the offset, or has no leader, is not waited for.
    refused = reader.read(final=_NO_BATCH)
    for error in refused.values():
        if error.code() in NOT_LET_IN:
            return Unavailable.of(error, "reading", router.connection)
    return {tp: window.batches[0] for tp, window in windows.items() if window.complete}


def log_windows(
    router: Router,
    ranges: Mapping[TopicPartition, tuple[int, int, int]],
    limit: int,
    records: Container[TopicPartition],
) -> dict[TopicPartition, LogWindow]:
    """Return the batches of logs in ranges of offsets: first offset, end and reach of a `LogWindow`. The batches of
    `records` have their data, others their headers alone.

    After some `limit` bytes of a broker, the rest of its windows stay incomplete. Raise `UnavailableError` if a log
    can't be read."""

    def length(tp: TopicPartition) -> int:
        start, end, _ = ranges[tp]
        return end - start

    windows: dict[TopicPartition, LogWindow] = {}
    # The small ones come first: a large one may use up the limit.
    for tp in sorted(ranges, key=length):
        start, end, reach = ranges[tp]
        windows[tp] = LogWindow(start, end, reach)
    reader = _WindowReader(router, windows, size=1 << 20, isolation=_READ_UNCOMMITTED, limit=limit, records=records)
    refused = reader.read()
    # The first one is enough: its message says what is missing, a right for instance.
    for tp, error in refused.items():
        unavailable = Unavailable.of(error, f"reading {tp}", router.connection)
        raise UnavailableError(unavailable)
    return windows


class _WindowReader:
    """Fetches windows of logs, some `size` bytes of each at a time, until they are complete or there are too many
    bytes."""

    def __init__(
        self,
        router: Router,
        windows: Mapping[TopicPartition, LogWindow],
        size: int,
        isolation: int,
        limit: int | None = None,
        records: Container[TopicPartition] = (),
    ) -> None:
        self._router = router
        self._windows = windows
        self._size = size
        self._isolation = isolation
        self._limit = limit
        self._records = records
        self._asked: dict[TopicPartition, Address] = {}
        self._received: dict[Address, int] = defaultdict(int)

    def read(self, final: Iterable[int] = ()) -> dict[TopicPartition, KafkaError]:
        """Read all windows; return the errors of logs that can't be read. Errors whose codes are `final` are not asked
        about again."""
        question = Question[TopicPartition, None](
            self._request, self._answers, at_once=_LOGS_AT_ONCE, newest=_LOGS_BY_NAME
        )
        leaders = Leaders(self._router)
        codes = tuple(final)
        refused: dict[TopicPartition, KafkaError] = {}
        waiting = list(self._windows)
        while waiting:
            now = waiting[: _LOGS_AT_ONCE * _FETCHES_AT_ONCE]
            _, failed = self._router.ask_each(now, question, leaders, final=codes)
            refused |= failed
            # What is not complete yet comes last, so that one endless log doesn't keep others waiting.
            later = waiting[len(now) :] + now
            waiting = [tp for tp in later if tp not in refused and self._is_due(tp)]
        return refused

    def _is_due(self, tp: TopicPartition) -> bool:
        """Return whether more of a log is to be read."""
        if self._windows[tp].complete:
            return False
        broker = self._asked.get(tp)
        return self._limit is None or broker is None or self._received[broker] < self._limit

    def _request(self, broker: BrokerConnection, batch: list[TopicPartition]) -> Any:
        kind = FetchRequest.FetchTopic
        room = min(len(batch) * self._size, _MOST_BYTES)
        if self._limit is not None:
            # When the limit is used up, a broker still returns the first batch of one log.
            room = max(1, min(room, self._limit - self._received[broker.address]))
        by_topic: dict[str, list[Any]] = defaultdict(list)
        for tp in batch:
            self._asked[tp] = broker.address
            position = self._windows[tp].position
            partition = kind.FetchPartition(
                partition=tp.partition, fetch_offset=position, partition_max_bytes=self._size
            )
            by_topic[tp.topic].append(partition)
        topics = [kind(topic=name, partitions=partitions) for name, partitions in by_topic.items()]
        # The broker answers at once, even if it has nothing: `ask_each` decides whether that is waited for.
        return FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=room, isolation_level=self._isolation, topics=topics)

    def _answers(self, response: Any, batch: list[TopicPartition]) -> Answers[TopicPartition, None]:
        """Add what was read to the windows."""
        without_batches: list[TopicPartition] = []
        has_content = False
        for topic in response.responses:
            for each in topic.partitions:
                tp = TopicPartition(topic.topic, each.partition_index)
                if each.error_code:
                    has_content = True
                    yield tp, KafkaError(each.error_code)
                    continue
                batches = _batches_in(each)
                if not batches:
                    without_batches.append(tp)
                    continue
                has_content = True
                self._add(tp, batches)
                yield tp, None
        for tp in without_batches:
            if has_content:
                # The response had no room for this log. It counts as answered, and is asked for in the next round.
                yield tp, None
            else:
                # There was room: all of these logs are read as far as replicas have them.
                yield tp, KafkaError(KafkaError.OFFSET_NOT_AVAILABLE)

    def _add(self, tp: TopicPartition, batches: Iterable[LogBatch]) -> None:
        window = self._windows[tp]
        for batch in batches:
            self._received[self._asked[tp]] += len(batch.data)
            if tp not in self._records:
                # Windows may be large: only headers are kept where nobody asks for records.
                batch = batch._replace(data=b"")
            window.add(batch)


def _batches_in(partition: Any) -> list[LogBatch]:
    """Return the whole batches that a response to Fetch has of a partition."""
    aborted = [(each.producer_id, each.first_offset) for each in partition.aborted_transactions or ()]
    data = bytes(partition.records or b"")
    return list(batches_of(data, aborted))


# Producers, and the logs that brokers keep for themselves.


def describe_producers(router: Router, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, list[Any]]:
    """Return the producers of each partition, as Kafka's response to DescribeProducers has them. Raise
    `UnavailableError` if a leader doesn't tell."""
    question = Question[TopicPartition, list[Any]](_producers_request, _producers)
    answers, refused = router.ask_each(partitions, question, Leaders(router))
    for tp, error in refused.items():
        unavailable = Unavailable.of(error, f"describing producers of {tp}", router.connection)
        raise UnavailableError(unavailable)
    return answers


def _producers_request(broker: BrokerConnection, partitions: list[TopicPartition]) -> Any:
    kind = DescribeProducersRequest.TopicRequest
    numbers_of = numbers_by_topic(partitions)
    topics = [kind(name=name, partition_indexes=numbers) for name, numbers in numbers_of.items()]
    return DescribeProducersRequest(topics=topics)


def _producers(response: Any, partitions: list[TopicPartition]) -> Answers[TopicPartition, list[Any]]:
    for topic in response.topics:
        for each in topic.partitions:
            tp = TopicPartition(topic.name, each.partition_index)
            if each.error_code:
                yield tp, KafkaError(each.error_code)
            else:
                yield tp, list(each.active_producers)


@dataclass(frozen=True, slots=True)
class ReadableTopic:
    """The partitions of a topic that is to be read. `error` is Kafka's code for why it can't be, 0 if it can."""

    partitions: tuple[TopicPartition, ...]
    error: int


def readable_topics(router: Router, names: Sequence[str]) -> dict[str, ReadableTopic]:
    """Return each of these topics, with why it can't be read. Raise `UnavailableError` if no broker answers."""
    request = metadata_request(names, rights=True)
    try:
        response = router.ask(request, newest=_TOPICS_BY_NAME)
    except RequestError as error:
        unavailable = Unavailable.of(error.kafka_error(), "describing topics", router.connection)
        raise UnavailableError(unavailable) from error
    found = {}
    for topic in response.topics:
        partitions = [TopicPartition(topic.name, each.partition_index) for each in topic.partitions]
        found[topic.name] = ReadableTopic(tuple(partitions), _why_not_readable(topic))
    return found


def _why_not_readable(topic: Any) -> int:
    """Return Kafka's code for why a topic can't be read, 0 if it can."""
    if topic.error_code:
        return int(topic.error_code)
    for partition in topic.partitions:
        if partition.error_code:
            return int(partition.error_code)
    if _MAY_READ not in (topic.authorized_operations or ()):
        return int(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    return 0
