"""Records by confluent-kafka's message objects, where the compiled kernel can't be used. How the two differ stands in
`native/README.md`.

confluent-kafka cuts header names at the first NUL byte, and reports nothing, when it reads as when it writes.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, groupby, repeat
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import TIMESTAMP_CREATE_TIME, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaTopicPartition

from kbackup.errors import UsageError
from kbackup.formats.record import decode, encode
from kbackup.kafka.client import Connection
from kbackup.native import contract
from kbackup.native.contract import CommittedProgress, FetchResult, RefusedRecordError, Runs, Undelivered
from kbackup.native.library import await_connection, client_of, lib
from kbackup.types import RECORDS, Int64Array, OffsetRange, RecordBlock, TopicPartition

_BATCH_BYTES = 8 << 20
_LEAST_BATCH_RECORDS, _BATCH_RECORDS = 10, 10_000
_WAIT = 0.1  # s; a batch that does not fill waits this long, so it bounds the delay at a range's end


class HeaderKeyError(UsageError):
    """A record has a header key that confluent-kafka can't convert. The native kernel reads it."""


class MessageSource:
    """See `contract.Source`."""

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
        # Python's cycle collector would walk over every message repeatedly, measured at a quarter of a backup task's
        # CPU. Messages are in no cycle and are freed without it.
        is_collecting = gc.isenabled()
        gc.disable()
        try:
            with self._connection.errors("a read"):
                messages = self._consumer.consume(self._size, _WAIT)
                results: list[FetchResult] = []
                # librdkafka hands messages over in runs of one partition
                for (topic, partition), run in groupby(messages, key=_partition_of):
                    results += self._results(topic, partition, list(run))
        finally:
            if is_collecting:
                gc.enable()
        received = sum(result.block.nbytes for result in results if result.block is not None)
        if received:
            # the next batch takes as many messages as make `_BATCH_BYTES` if they are as large as these
            size = _BATCH_BYTES * len(messages) // received
            self._size = min(max(size, _LEAST_BATCH_RECORDS), _BATCH_RECORDS)
        yield from results

    def close(self) -> None:
        self._consumer.close()

    def _results(self, topic: str | None, partition: int | None, messages: list[Message]) -> Iterator[FetchResult]:
        """Yield the records of one partition that lie in its range, and then the events that came among them."""
        tp = None
        requested = None
        if topic is not None and partition is not None:
            tp = TopicPartition(topic, partition)
            requested = self._ranges.get(tp)
        records = [message for message in messages if message.error() is None]
        if tp is not None and requested is not None and records:
            yield _result_of(tp, requested, records)
        for message in messages:
            error, offset = message.error(), message.offset()
            if error is not None:
                report = contract.Report(error, -1 if offset is None else offset)
                yield FetchResult(tp, None, False, report)


def _partition_of(message: Message) -> tuple[str | None, int | None]:
    return message.topic(), message.partition()


def _result_of(tp: TopicPartition, requested: OffsetRange, records: list[Message]) -> FetchResult:
    offsets = np.fromiter(map(Message.offset, records), np.int64, len(records))
    ended = bool(offsets[-1] >= requested.end - 1)
    keep = int(np.searchsorted(offsets, requested.end))
    if not keep:
        return FetchResult(tp, None, ended, None)
    block = encode(_batch(records[:keep], offsets[:keep]))
    epoch = records[keep - 1].leader_epoch()
    return FetchResult(tp, block, ended, None, -1 if epoch is None else epoch)


def _batch(messages: list[Message], offsets: Int64Array) -> pa.RecordBatch:
    """Return messages as `RECORDS`."""
    pairs = chain.from_iterable(map(Message.timestamp, messages))
    types, stamps = np.fromiter(pairs, np.int64, 2 * len(messages)).reshape(-1, 2).T
    # The binding counts types of timestamps from 0 for none, the format from -1.
    kinds = types - 1
    # On the wire a create time of -1 says that there is none. Segments have type -2 for it, as the Java tool writes it.
    kinds[(types == TIMESTAMP_CREATE_TIME) & (stamps == -1)] = -2
    keys = list(map(Message.key, messages))
    values = list(map(Message.value, messages))
    kind_column = pa.array(kinds.astype(np.int8))
    stamp_column = pa.array(np.ascontiguousarray(stamps), mask=kinds < 0)
    key_column = pa.array(keys, pa.large_binary())
    value_column = pa.array(values, pa.large_binary())
    columns: list[pa.Array[Any]] = [
        pa.array(offsets),
        kind_column,
        stamp_column,
        key_column,
        value_column,
        _header_column(messages),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RECORDS)


def _header_column(messages: list[Message]) -> pa.Array[Any]:
    """Return the headers of messages, laid out by hand: one array of all headers, and where those of each message
    begin in it."""
    every = _headers_of(messages)
    # Comprehensions: a loop over the messages costs a backup without headers 4 % of this path.
    counts = [len(headers) if headers else 0 for headers in every]
    pairs = [pair for headers in every if headers for pair in headers]
    names = [name for name, _ in pairs]
    values = [value for _, value in pairs]
    starts = np.zeros(len(messages) + 1, np.int32)
    np.cumsum(counts, out=starts[1:])
    column: Any = RECORDS.field("headers").type
    arrays: list[pa.Array[Any]] = [pa.array(names, pa.string()), pa.array(values, pa.large_binary())]
    headers_of_all = pa.StructArray.from_arrays(arrays, fields=list(column.value_type))
    lists: Any = pa.ListArray
    made: pa.Array[Any] = lists.from_arrays(pa.array(starts), headers_of_all, type=column)
    return made


def _headers_of(messages: list[Message]) -> list[Any]:
    """Return the headers of each message; `HeaderKeyError` for a header key that is not UTF-8."""
    # confluent-kafka gives lists of (key, value); its stubs allow dicts too, which only produce() takes
    every: list[Any] = []
    try:
        # A list that is extended keeps what it had before an error, and so its length tells which message failed.
        # Asking each again would not: confluent-kafka frees the headers of a message that it could not convert.
        every.extend(map(Message.headers, messages))
    except (SystemError, UnicodeDecodeError) as raised:
        # The binding returns a value and leaves the error set, of which the interpreter makes a `SystemError`.
        if not isinstance(raised.__cause__ or raised, UnicodeDecodeError):
            raise
        failed = messages[len(every)]
        raise HeaderKeyError(
            f"the record of {failed.topic()}-{failed.partition()} at offset {failed.offset()} has a header key that "
            "is not UTF-8",
            "install the extra native, and leave KBACKUP_KERNEL unset: the native kernel reads any header key",
        ) from None
    return every


# confluent-kafka's `Producer` as a sink for `BlockProducer`, with one call and one callback per record. It produces
# wherever confluent-kafka runs, and is what the kernel is compared with.

_FULL_WAIT = 0.02  # s, for delivery reports while the queue is full
_FLUSH = 0.001  # s; a flush only starts what the linger time would hold back


@dataclass
class _Deliveries:
    """The deliveries of one partition, in order; and the first of each kind of error, with its record's number."""

    sources: list[Int64Array] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    errors: dict[int, tuple[KafkaError, int]] = field(default_factory=dict)

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        offset = message.offset()
        if error is not None:
            self.errors.setdefault(error.code(), (error, len(self.targets)))
        self.targets.append(contract.UNKNOWN if error is not None or offset is None else offset)

    def lost(self, tp: TopicPartition) -> list[Undelivered]:
        if not self.errors:
            return []
        sources = np.concatenate(self.sources)
        lost: list[Undelivered] = []
        for error, number in self.errors.values():
            lost.append(Undelivered(error, tp, int(sources[number])))
        return lost

    def runs(self) -> Runs:
        return contract.runs_of(np.concatenate(self.sources), np.array(self.targets, np.int64))


class MessageSink:
    """See `contract.RecordSink`."""

    def __init__(
        self, connection: Connection, tuning: Mapping[str, Any], group: str, silence: float = contract.SILENCE_SECONDS
    ) -> None:
        self._connection = connection
        self._group = group
        self._producer = connection.producer(tuning)
        add = partial(lib.rd_kafka_brokers_add, client_of(self._producer))
        self._bootstrap = contract.Bootstrap(connection.properties["bootstrap.servers"], add, silence)
        self._deliveries: dict[TopicPartition, _Deliveries] = {}
        self.moved = 0

    def init(self, timeout: float) -> None:
        await_connection(client_of(self._producer), timeout)
        self._producer.init_transactions(timeout)
        settings = {"group.id": self._group, "enable.auto.commit": False}
        with closing(self._connection.consumer(settings)) as consumer:
            # Once, and now: this waits without end in a consumer whose broker was restarted meanwhile.
            self._membership = consumer.consumer_group_metadata()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, tp: TopicPartition, block: RecordBlock) -> None:
        batch = decode(block)
        deliveries = self._deliveries.setdefault(tp, _Deliveries())
        deliveries.sources.append(block.offsets)
        kinds = batch.column("timestamp_type").to_numpy()
        stamps = batch.column("timestamp").to_numpy(zero_copy_only=False)
        stamps = np.where(kinds >= 0, stamps, -1).astype(np.int64)
        # librdkafka takes a timestamp of 0 for 'now'.
        is_zero = stamps == 0
        self.moved += int(is_zero.sum())
        stamps = np.where(is_zero, 1, stamps).tolist()
        keys = batch.column("key").to_pylist()
        values = batch.column("value").to_pylist()
        headers = _headers_to_send(batch)
        produce = self._producer.produce
        topic, partition = tp
        rows = zip(keys, values, stamps, headers, strict=True)
        for number, (key, value, stamp, own_headers) in enumerate(rows):
            while True:
                try:
                    produce(topic, value, key, partition, on_delivery=deliveries, timestamp=stamp, headers=own_headers)
                    break
                except BufferError:
                    # No room even in an empty queue: waiting would not help.
                    if not len(self._producer):
                        full = Undelivered(KafkaError(KafkaError._QUEUE_FULL), tp, int(block.offsets[number]))
                        raise RefusedRecordError(full) from None
                    self._wait()
                except KafkaException as raised:
                    lost = Undelivered(raised.args[0], tp, int(block.offsets[number]))
                    raise RefusedRecordError(lost) from raised
        self.serve(0)

    def serve(self, wait: float) -> None:
        with self._fatal_errors():
            self._producer.poll(wait)

    def _wait(self) -> None:
        """Take the delivery reports that come. While none comes, batches that are not full go out as well."""
        queued = len(self._producer)
        self.serve(_FULL_WAIT)
        if len(self._producer) == queued:
            with self._fatal_errors():
                self._producer.flush(_FLUSH)
        self._bootstrap.watch(len(self._producer))

    def lost(self) -> Undelivered | None:
        lost: list[Undelivered] = []
        for tp, deliveries in self._deliveries.items():
            lost += deliveries.lost(tp)
        return contract.cause(lost)

    def flush(self, timeout: float) -> int:
        until = time.monotonic() + timeout
        with self._fatal_errors():
            undelivered = self._producer.flush(_WAIT)
            while undelivered and time.monotonic() < until:
                self._bootstrap.watch(undelivered)
                undelivered = self._producer.flush(_WAIT)
        return undelivered

    def taken(self) -> dict[TopicPartition, Runs]:
        taken = {tp: deliveries.runs() for tp, deliveries in self._deliveries.items()}
        self._deliveries = {}
        return taken

    def send_progress(self, progress: Mapping[TopicPartition, CommittedProgress], timeout: float) -> None:
        offsets: list[KafkaTopicPartition] = []
        for (topic, partition), committed in progress.items():
            offsets.append(KafkaTopicPartition(topic, partition, committed.next, metadata=committed.note))
        self._producer.send_offsets_to_transaction(offsets, self._membership, timeout)

    def commit(self, timeout: float) -> None:
        with self._fatal_errors():
            self._producer.commit_transaction(timeout)

    def abort(self, timeout: float) -> None:
        self._deliveries = {}
        with self._fatal_errors():
            self._producer.abort_transaction(timeout)

    def close(self) -> None:
        self._producer.purge()

    @contextmanager
    def _fatal_errors(self) -> Iterator[None]:
        """Raise the fatal error of the client where confluent-kafka raises a bare `SystemError`.

        confluent-kafka raises a fatal error in between callbacks and calls the next callback all the same. This makes a
        `SystemError` of the fatal error, or loses it altogether.
        """
        try:
            yield
        except SystemError as raised:
            if isinstance(raised.__cause__, KafkaException):
                raise raised.__cause__ from None
            error = KafkaError(KafkaError._FATAL, "the client has failed for good", True)
            try:
                # This fails too, and reports the error that ended the producer.
                self._producer.abort_transaction(0)
            except KafkaException as reported:
                if reported.args[0].fatal():
                    error = reported.args[0]
            raise KafkaException(error) from raised


def _headers_to_send(batch: pa.RecordBatch) -> Iterable[list[tuple[str, str | bytes | None]]]:
    """Return the headers of each record as confluent-kafka takes them."""
    column: Any = batch.column("headers")
    # Most blocks have none, and then need no list for each record.
    if not len(column.flatten()):
        return repeat([], len(batch))
    # Comprehensions, as this makes a tuple for each header of each record.
    return [[(header["key"], header["value"]) for header in headers] for headers in column.to_pylist()]
