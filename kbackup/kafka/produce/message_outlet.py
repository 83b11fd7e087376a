"""confluent-kafka's `Producer` as an outlet for `BlockProducer`: a call and a callback a record. It produces wherever
confluent-kafka runs, and is what the kernel is compared with.

Header names with NUL bytes are cut at the first one by confluent-kafka, which does not tell.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaTopicPartition

from kbackup.formats.record import decode
from kbackup.kafka.client.client import Connection
from kbackup.kafka.groups.binding import client_of, lib
from kbackup.kafka.produce.bootstrap import Bootstrap, await_connection
from kbackup.kafka.produce.outlet import Progress, RefusedRecordError, Undelivered, cause
from kbackup.kafka.produce.runs import UNKNOWN, Runs, runs_of
from kbackup.types import Int64Array, RecordBlock, TopicPartition

_WAIT = 0.1  # s
_FULL_WAIT, _FLUSH = 0.02, 0.001  # s


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
        self.targets.append(UNKNOWN if error is not None or offset is None else offset)

    def lost(self, tp: TopicPartition) -> list[Undelivered]:
        if not self.errors:
            return []
        sources = np.concatenate(self.sources)
        return [Undelivered(error, tp, int(sources[at])) for error, at in self.errors.values()]

    def runs(self) -> Runs:
        return runs_of(np.concatenate(self.sources), np.array(self.targets, np.int64))


class MessageOutlet:
    """See `outlet.Outlet`."""

    def __init__(self, connection: Connection, tuning: Mapping[str, Any]) -> None:
        self._producer = connection.producer(tuning)
        add = partial(lib.rd_kafka_brokers_add, client_of(self._producer))
        self._bootstrap = Bootstrap(connection.properties["bootstrap.servers"], add)
        self._deliveries: dict[TopicPartition, _Deliveries] = {}
        self.moved = 0

    def init(self, timeout: float) -> None:
        await_connection(client_of(self._producer), timeout)
        self._producer.init_transactions(timeout)

    def join(self, consumer: Consumer) -> None:
        # once, and now: this waits without end in a consumer whose broker was restarted meanwhile
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
        zero = stamps == 0
        self.moved += int(zero.sum())
        stamps = np.where(zero, 1, stamps).tolist()
        keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
        headers = _headers(batch.column("headers"))
        produce = self._producer.produce
        topic, partition = tp
        for i, (key, value, stamp, some) in enumerate(zip(keys, values, stamps, headers, strict=True)):
            while True:
                try:
                    produce(
                        topic, value, key, partition, on_delivery=deliveries, timestamp=stamp, headers=some
                    )
                    break
                except BufferError:
                    if not len(self._producer):  # no room even in an empty queue
                        full = Undelivered(KafkaError(KafkaError._QUEUE_FULL), tp, int(block.offsets[i]))
                        raise RefusedRecordError(full) from None
                    self._wait()
                except KafkaException as raised:
                    lost = Undelivered(raised.args[0], tp, int(block.offsets[i]))
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
        return cause([lost for tp, deliveries in self._deliveries.items() for lost in deliveries.lost(tp)])

    def flush(self, timeout: float) -> int:
        until = time.monotonic() + timeout
        with self._fatal_errors():
            while (left := self._producer.flush(_WAIT)) and time.monotonic() < until:
                self._bootstrap.watch(left)
        return left

    def taken(self) -> dict[TopicPartition, Runs]:
        deliveries, self._deliveries = self._deliveries, {}
        return {tp: each.runs() for tp, each in deliveries.items()}

    def send_progress(self, progress: Mapping[TopicPartition, Progress], timeout: float) -> None:
        offsets = [
            KafkaTopicPartition(tp.topic, tp.partition, at.next, metadata=at.note)
            for tp, at in progress.items()
        ]
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
        """confluent-kafka raises a fatal error in between callbacks, and calls the next one all the same, which makes
        a `SystemError` of it, or loses it altogether."""
        try:
            yield
        except SystemError as raised:
            if isinstance(raised.__cause__, KafkaException):
                raise raised.__cause__ from None
            raise KafkaException(self._fatal_error()) from raised

    def _fatal_error(self) -> KafkaError:
        """Return the error that ended the producer for good, as its transaction calls report it."""
        try:
            self._producer.abort_transaction(0)
        except KafkaException as said:
            error: KafkaError = said.args[0]
            if error.fatal():
                return error
        return KafkaError(KafkaError._FATAL, "the client has failed for good", True)


def _headers(column: Any) -> Iterable[list[tuple[str, str | bytes | None]]]:
    """Header lists, one a record; the same empty one for all when no record has any."""
    if len(column.flatten()) == 0:
        return repeat([], len(column))
    return [[(h["key"], h["value"]) for h in some] for some in column.to_pylist()]
