"""The producer kernel against librdkafka's own mock brokers, which live in the client: reports, limits, damage."""

from __future__ import annotations

import ctypes
import gc
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from confluent_kafka import KafkaError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kbackup.errors import CorruptError
from kbackup.formats.fields import locate_fields
from kbackup.kafka.client import Connection
from kbackup.kafka.record_clients import open_kernel_sink
from kbackup.native.contract import CommittedProgress, RefusedRecordError
from kbackup.native.librdkafka import lib
from kbackup.native.sink import words_of
from kbackup.types import RecordBlock, TopicPartition
from tests.support.plain_records import Plain, block_of
from tests.support.runs import rows

Make = Callable[..., Any]
TP = TopicPartition("t", 0)
SETTINGS = {"enable.idempotence": True, "linger.ms": 1, "test.mock.num.brokers": 1}


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Any] = []

    def sink(**settings: Any) -> Any:
        connection = Connection({"bootstrap.servers": "mock:1"}, "target")
        tuning = SETTINGS | {name.replace("_", "."): value for name, value in settings.items()}
        made.append(open_kernel_sink(connection, tuning, "group"))
        return made[-1]

    yield sink
    for each in made:
        each.close()


def block_of_size(count: int, first: int = 0) -> RecordBlock:
    return block_of([Plain(b"k", b"v" * 100)] * count, range(first, first + count))


def push_errors(sink: Any, *codes: int) -> None:
    """Let the mock answer the next Produce requests with errors."""
    lib.rd_kafka_handle_mock_cluster.restype = ctypes.c_void_p
    lib.rd_kafka_handle_mock_cluster.argtypes = (ctypes.c_void_p,)
    cluster = lib.rd_kafka_handle_mock_cluster(sink._handle.client)
    push = lib.rd_kafka_mock_push_request_errors_array
    push.argtypes = (ctypes.c_void_p, ctypes.c_int16, ctypes.c_size_t, ctypes.c_void_p)
    push(cluster, 0, len(codes), (ctypes.c_int * len(codes))(*codes))


def went(sink: Any) -> list[tuple[int, int, int]]:
    """Deliver what was sent, and return where it went."""
    assert sink.flush(30) == 0
    return rows(sink.taken()[TP])


def test_a_sink_tells_where_records_went(make: Make) -> None:
    sink = make()
    other = TopicPartition("t", 1)
    for number in range(20):
        sink.send(TP, block_of_size(50, 1000 + 50 * number))
        sink.send(other, block_of_size(1, 3 * number))
    sink.send(TP, block_of_size(0))
    assert sink.flush(30) == 0
    assert sink.lost() is None
    taken = sink.taken()
    assert rows(taken[TP]) == [(1000, 0, 1000)]
    assert rows(taken[other]) == [(3 * n, n, 1) for n in range(20)]
    assert sink.taken() == {}


def test_memory_is_let_go_when_its_reports_are_in(make: Make) -> None:
    sink = make()
    block = block_of_size(1000)
    seen = weakref.ref(block.data)
    sink.send(TP, block)
    del block
    gc.collect()
    assert seen() is not None, "librdkafka reads from it still"
    until = time.monotonic() + 30
    while seen() is not None:
        assert time.monotonic() < until
        sink.serve(0.1)
    assert rows(sink.taken()[TP]) == [(0, 0, 1000)]


def test_a_queue_that_is_full(make: Make) -> None:
    sink = make(queue_buffering_max_messages=7)
    records = [Plain(b"k", b"v", timestamp=n % 3) for n in range(500)]
    sink.send(TP, block_of(records))
    assert len(sink._on_the_way) <= 1
    assert went(sink) == [(0, 0, 500)]
    assert sink.moved == 167, "each once, however often it was tried"


@pytest.mark.parametrize(
    ("settings", "blocks"),
    [
        ({"queue_buffering_max_messages": 7, "linger_ms": 60_000}, [100]),
        ({"linger_ms": 60_000}, [3]),
        ({"linger_ms": 300}, [1] * 100),
    ],
    ids=["incomplete batches go out when the queue is full", "a flush does not wait for more records", "many blocks"],
)
def test_blocks_are_delivered_at_once(make: Make, settings: dict[str, int], blocks: list[int]) -> None:
    sink = make(**settings)
    began = time.monotonic()
    for number, count in enumerate(blocks):
        sink.send(TP, block_of_size(count, number))
    assert went(sink) == [(0, 0, sum(blocks))]
    assert time.monotonic() - began < 50, "less than the linger time of one batch"


def test_delivered_without_an_offset(make: Make) -> None:
    """The broker has the batch already: it was sent again after its answer had been lost."""
    sink = make()
    sink.send(TP, block_of_size(3))
    assert sink.flush(30) == 0
    push_errors(sink, KafkaError.DUPLICATE_SEQUENCE_NUMBER)
    sink.send(TP, block_of_size(1, 3))
    assert sink.flush(30) == 0
    sink.send(TP, block_of_size(3, 4))
    assert sink.flush(30) == 0
    assert sink.lost() is None
    assert rows(sink.taken()[TP]) == [(0, 0, 3), (3, -1, 1), (4, 3, 3)]


def test_lost_records_are_named(make: Make) -> None:
    sink = make(batch_num_messages=1)
    sink.send(TP, block_of_size(2))
    assert sink.flush(30) == 0
    push_errors(sink, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    sink.send(TP, block_of_size(1, 77))
    assert sink.flush(30) == 0
    lost = sink.lost()
    assert (lost.error.code(), lost.tp, lost.source) == (KafkaError.TOPIC_AUTHORIZATION_FAILED, TP, 77)


@pytest.mark.parametrize(
    ("settings", "first", "code"),
    [
        ({"message_max_bytes": 2000}, 1, KafkaError.MSG_SIZE_TOO_LARGE),
        ({"queue_buffering_max_kbytes": 2}, 2000, KafkaError._QUEUE_FULL),
    ],
)
def test_a_record_that_librdkafka_does_not_take(make: Make, settings: dict[str, int], first: int, code: int) -> None:
    sink = make(**settings)
    records = [Plain(b"k", b"v" * first), Plain(b"k", b"v" * 3000, headers=((b"h", b"x"),))]
    with pytest.raises(RefusedRecordError) as raised:
        sink.send(TP, block_of(records, [5, 9]))
    lost = raised.value.lost
    assert (lost.error.code(), lost.tp, lost.source) == (code, TP, 9)


def test_a_committed_transaction_carries_records_and_progress(make: Make) -> None:
    sink = make(**{"transactional.id": "id"})
    sink.init(30)
    for commit in (True, False, True):
        sink.begin()
        sink.send(TP, block_of_size(10))
        if commit:
            assert sink.flush(30) == 0
            assert int(sink.taken()[TP].count.sum()) == 10
            sink.send_progress(
                {TP: CommittedProgress(10, "nöte"), TopicPartition("t", 1): CommittedProgress(0, "")}, 30
            )
            sink.commit(30)
        else:
            sink.abort(30)
            assert sink.lost() is None
            assert sink.taken() == {}


def test_closing_gives_up_what_is_queued() -> None:
    """Nothing can be delivered, and nothing is waited for."""
    connection = Connection({"bootstrap.servers": "127.0.0.1:1", "log_level": "0"}, "target")
    sink = open_kernel_sink(connection, {"enable.idempotence": True}, "group")
    block = block_of_size(1000)
    seen = weakref.ref(block.data)
    sink.send(TP, block)
    del block
    assert sink.flush(0.1) == 1000
    sink.close()
    del sink
    gc.collect()
    assert seen() is None


# The producer kernel with damaged blocks and error texts, against librdkafka's own mock brokers.


field = st.none() | st.binary(max_size=12)
plain = st.builds(
    Plain,
    field,
    field,
    st.sampled_from([-2, -1, 0, 1]),
    st.integers(0, 3),
    st.lists(st.tuples(st.binary(max_size=4), field), max_size=3).map(tuple),
)
damage = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=3)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=st.lists(plain, min_size=1, max_size=6), damage=damage)
def test_damage_is_refused_where_the_codec_refuses_it(
    sink: Any, records: list[Plain], damage: list[tuple[int, int]]
) -> None:
    block = block_of(records)
    data = block.data.copy()
    for at, octet in damage:
        data[at % len(data)] = octet
    block = replace(block, data=data)
    expected = complaint(lambda: locate_fields(block, "record block", 0))
    assert complaint(lambda: sink.send(TP, block)) == expected


def complaint(call: Callable[[], object]) -> str | None:
    try:
        call()
    except CorruptError as error:
        return str(error)
    return None


@pytest.fixture(scope="module")
def sink() -> Iterator[Any]:
    connection = Connection({"bootstrap.servers": "mock:1"}, "target")
    made = open_kernel_sink(connection, SETTINGS, "group")
    yield made
    made.close()


@pytest.mark.parametrize(
    ("column", "value"),
    [("positions", -1), ("positions", 1 << 62), ("lengths", -5), ("lengths", 1 << 62), ("lengths", 23)],
)
def test_an_index_that_points_outside(sink: Any, column: str, value: int) -> None:
    block = block_of([Plain(b"k", b"v" * 100)] * 3, range(3))
    changed = getattr(block, column).copy()
    changed[1] = value
    with pytest.raises(CorruptError):
        sink.send(TP, replace(block, **{column: changed}))


def test_an_index_of_uneven_columns(sink: Any) -> None:
    block = block_of([Plain(b"k", b"v" * 100)] * 3, range(3))
    with pytest.raises(CorruptError, match="different lengths"):
        sink.send(TP, replace(block, lengths=np.empty(0, np.int64)))


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        (b"Timestamp 7 is out of range\0\0", "Timestamp 7 is out of range"),
        (b"\0Timestamp", ""),
        (b"-\xf0\x9cl\xe9\x07\0", ""),
        (b"-@\x7f\0", ""),
        (b"I\0", ""),
    ],
)
def test_a_reason_that_was_freed_is_not_told(memory: bytes, words: str) -> None:
    assert words_of(memory) == words
