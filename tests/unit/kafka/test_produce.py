"""A producer whose only broker leaves itself out of metadata while it stops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from kbackup.errors import ClusterError, FencedError, KbackupError
from kbackup.kafka.client import Connection
from kbackup.kafka.produce import TUNING, BlockProducer, RefusedTopicError, batch_size_for, queue_kbytes
from kbackup.kafka.record_clients import open_sink
from kbackup.native import kernel
from kbackup.native.contract import (
    CommittedProgress,
    NotProvenError,
    RecordSink,
    Runs,
    Undelivered,
    join,
    resolve,
    runs_of,
)
from kbackup.types import Int64Array, RecordBlock, TopicPartition
from tests.support.mock_cluster import mock_cluster
from tests.support.plain_records import Plain, block_of
from tests.support.runs import rows

TP = TopicPartition("orders", 0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", ["native", "python"])
def test_a_producer_without_brokers_finds_them_again(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kernel.VARIABLE, way)
    kernel.selected_kernel.cache_clear()
    sinks: list[RecordSink] = []

    def opened(connection: Connection, tuning: Mapping[str, Any], group: str) -> RecordSink:
        sinks.append(open_sink(connection, tuning, group, silence=0.5))
        return sinks[-1]

    with mock_cluster() as cluster:
        cluster.create_topic("orders")
        properties = {"bootstrap.servers": cluster.bootstrap, "topic.metadata.refresh.interval.ms": "100"}
        producer = BlockProducer(properties, "id", "progress", sink=opened)
        # Not the producer's own start, which also asks for progress: librdkafka's broker of tests answers ApiVersions
        # to its own clients alone.
        (sink,) = sinks
        sink.init(60)
        producer.send(TP, block_of([Plain(b"k", b"v")] * 3))
        producer.flush()
        cluster.hide()
        assert sink.flush(1) == 0
        cluster.replace("orders", "id", "progress")
        producer.send(TP, block_of([Plain(b"k", b"v")] * 3, range(3, 6)))
        (runs,) = producer.flush().values()
        producer.commit({TP: CommittedProgress(6, "")})
        producer.close()
    kernel.selected_kernel.cache_clear()
    assert runs.next == 6


# A producer that is fenced: by another one, or by the coordinator, which aborted its long transaction.


class Fenced:
    """A sink whose transaction is refused at its end."""

    def __init__(self, code: int) -> None:
        self.code = code

    def begin(self) -> None: ...

    def send_progress(self, *_: object) -> None: ...

    def commit(self, timeout: float) -> None:
        raise KafkaException(KafkaError(self.code))


@pytest.mark.parametrize("code", [KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH])
@pytest.mark.parametrize(("took", "fenced"), [(299, True), (301, False)])
def test_a_transaction_that_ran_out_is_not_another_producers(code: int, took: int, fenced: bool) -> None:
    times = iter([1000.0, 1000.0 + took])
    sink: Any = Fenced(code)
    servers, fencing = {"bootstrap.servers": "nowhere:1"}, ("another one", "wait")
    producer = BlockProducer(servers, "id", "group", fenced=fencing, sink=lambda *_: sink, clock=lambda: next(times))
    with pytest.raises(ClusterError) as raised:
        producer.commit_alone({TopicPartition("t", 0): CommittedProgress(5, "note")})
    assert isinstance(raised.value, FencedError) is fenced
    expected = "another one" if fenced else "open for 301 s, longer than transaction.timeout.ms (300 s)"
    assert expected in raised.value.message


# A refusal that is about one topic. The others of the transaction can go on without it.


class Refusing:
    """A sink that could not deliver a record. `cause` is what the transaction failed by, if another one knows."""

    def __init__(self, lost: Undelivered, cause: int | None = None) -> None:
        self._lost, self._cause = lost, cause
        self._begun = False
        self._flushed = False

    def begin(self) -> None:
        if self._begun and self._cause is not None:
            raise KafkaException(KafkaError(self._cause))
        self._begun = True

    def send(self, tp: TopicPartition, block: RecordBlock) -> None: ...

    def flush(self, timeout: float) -> int:
        self._flushed = True
        return 0

    def lost(self) -> Undelivered | None:
        return self._lost if self._flushed else None


def failed_flush(sink: Any) -> tuple[BlockProducer, KbackupError]:
    """Return a producer whose records the `sink` could not deliver, and the error that it raises."""
    producer = BlockProducer({"bootstrap.servers": "nowhere:1"}, "id", "group", sink=lambda *_: sink)
    producer.send(TP, block_of([Plain(b"k", b"v")]))
    with pytest.raises(KbackupError) as raised:
        producer.flush()
    return producer, raised.value


@pytest.mark.parametrize(
    "code", [KafkaError.INVALID_RECORD, KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.TOPIC_AUTHORIZATION_FAILED]
)
def test_a_refused_record_names_the_topic_that_refuses_it(code: int) -> None:
    producer, error = failed_flush(Refusing(Undelivered(KafkaError(code), TP, 7)))
    assert isinstance(error, RefusedTopicError)
    assert error.topic == "orders"
    assert "orders-0 from source offset 7" in error.message
    assert producer.unnamed_refusal is None


def test_a_refusal_that_took_other_records_with_it_names_no_topic() -> None:
    """The record whose report came first may be of a topic that nothing is wrong with."""
    purged = Undelivered(KafkaError(KafkaError._PURGE_QUEUE), TP, 7)
    producer, error = failed_flush(Refusing(purged, cause=KafkaError.TOPIC_AUTHORIZATION_FAILED))
    assert not isinstance(error, RefusedTopicError)
    assert producer.unnamed_refusal is error
    assert "orders" not in error.message


@pytest.mark.parametrize("code", [KafkaError._MSG_TIMED_OUT, KafkaError._FENCED, KafkaError.GROUP_AUTHORIZATION_FAILED])
def test_an_error_of_the_whole_cluster_is_no_refusal_of_a_topic(code: int) -> None:
    producer, error = failed_flush(Refusing(Undelivered(KafkaError(code), TP, 7)))
    assert not isinstance(error, RefusedTopicError)
    assert producer.unnamed_refusal is None


# The sizes of a producer's batches and queue.


@pytest.mark.parametrize(
    ("given", "limit", "expected"),
    [
        ({}, None, 1 << 20),
        ({}, 8 << 20, 1 << 20),
        ({}, 128_000, 126_000),
        ({"batch.size": "5000"}, 128_000, 5000),
        ({"batch.size": "500000"}, 128_000, 126_000),
        ({}, 0, 1),
    ],
)
def test_a_batch_is_no_larger_than_the_topics_take(given: dict[str, str], limit: int | None, expected: int) -> None:
    assert batch_size_for(given, limit) == expected


@pytest.mark.parametrize("batch_size", [1 << 20, 4 << 20, 700, 5000])
def test_queue_is_less_than_two_batches(batch_size: int) -> None:
    assert batch_size < queue_kbytes(batch_size, 0) * 1024 < 2 * batch_size


def test_queue_has_room_for_the_largest_record_twice() -> None:
    largest = 20 << 20
    assert queue_kbytes(1 << 20, largest) * 1024 >= 2 * largest


def test_small_records_fill_less_than_two_batches_too() -> None:
    assert TUNING["queue.buffering.max.messages"] < 2 * TUNING["batch.num.messages"]


# Target offsets of records without complete delivery reports: only proven offsets are used.


def made(*targets: int) -> Runs:
    return runs_of(np.arange(len(targets), dtype=np.int64), np.array(targets, np.int64))


def never(start: int, end: int | None) -> Int64Array:
    pytest.fail("the broker was asked where nothing is in doubt")


def test_runs_break_where_either_side_does() -> None:
    sources = np.array([0, 1, 2, 5, 6, 7], np.int64)
    assert rows(runs_of(sources, np.array([9, 10, 12, 13, 14, 15], np.int64))) == [(0, 9, 2), (2, 12, 1), (5, 13, 3)]


def test_nothing_sent_gives_no_runs_and_no_next_offset() -> None:
    assert rows(join([])) == []
    assert rows(resolve(made(), None, never)) == []
    assert made().next is None


@pytest.mark.parametrize("unknown", [-1, -1001])
def test_a_gap_that_fits(unknown: int) -> None:
    runs = made(4, unknown, unknown, 7)
    assert rows(runs) == [(0, 4, 1), (1, -1, 2), (3, 7, 1)]
    assert rows(resolve(runs, None, never)) == [(0, 4, 4)]


def test_a_gap_at_the_start_fits_by_what_was_before() -> None:
    assert rows(resolve(made(-1, -1, 7), 5, never)) == [(0, 5, 3)]


@pytest.mark.parametrize(
    ("targets", "floor", "asked", "records"),
    [
        ((4, -1, 9), None, (5, 9), [5, 6]),  # more offsets than records, and not only ours
        ((4, -1, -1, 9), None, (5, 9), [6]),
        ((4, -1), None, (5, None), []),
        ((-1, 9), 5, (5, 9), [5, 8]),
        ((4, -1, 5), None, (5, 5), []),  # no place at all
    ],
)
def test_uncertain_runs_after_asking(
    targets: tuple[int, ...], floor: int | None, asked: tuple[int, int | None], records: list[int]
) -> None:
    def ask(start: int, end: int | None) -> Int64Array:
        assert (start, end) == asked
        return np.array(records, np.int64)

    with pytest.raises(NotProvenError):
        resolve(made(*targets), floor, ask)


def test_unknown_first_offset_is_not_proven() -> None:
    with pytest.raises(NotProvenError):
        resolve(made(-1, 5), None, never)


@given(
    gaps=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 2), st.booleans()), min_size=1, max_size=60),
    first=st.integers(0, 9),
)
def test_unknown_targets_are_resolved_by_what_the_log_holds(gaps: list[tuple[int, int, bool]], first: int) -> None:
    """Sources and targets with gaps, some targets unknown; the log holds these records alone."""
    sources = np.cumsum([a for a, _, _ in gaps])
    targets = first + np.cumsum([b for _, b, _ in gaps])
    told = np.where([known for _, _, known in gaps], targets, -1)
    cut = len(gaps) // 2
    runs = join([runs_of(sources[:cut], told[:cut]), runs_of(sources[cut:], told[cut:])])
    assert rows(runs) == rows(runs_of(sources, told))

    def ask(start: int, end: int | None) -> Int64Array:
        resolved: Int64Array = targets[(targets >= start) & (True if end is None else targets < end)]
        return resolved

    resolved = resolve(runs, 0, ask)
    assert rows(resolved) == rows(runs_of(sources, targets))
    assert resolved.next == targets[-1] + 1
