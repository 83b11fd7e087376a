"""What readers and producers are promised (`native.contract`), by the compiled client and by the plain one.

Brokers are librdkafka's own, in memory. Differences between the two clients stand at the end.
"""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from confluent_kafka import KafkaError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kbackup.errors import CorruptError, UsageError
from kbackup.formats.fields import locate_fields
from kbackup.kafka.client import Connection
from kbackup.kafka.messages import MessageSink, MessageSource
from kbackup.kafka.record_clients import open_kernel_sink, open_message_sink
from kbackup.native.contract import CommittedProgress, FetchResult, RecordSink, RefusedRecordError, Source
from kbackup.native.source import KernelSource
from kbackup.types import OffsetRange, RecordBlock, TopicPartition
from tests.support.mock_cluster import PRODUCE, MockCluster, mock_cluster
from tests.support.plain_records import Plain, block_of
from tests.support.runs import rows

TOPIC, OTHER = TopicPartition("orders", 0), TopicPartition("others", 0)
SINKS: dict[str, Callable[..., RecordSink]] = {"compiled": open_kernel_sink, "plain": open_message_sink}
SOURCES: dict[str, Callable[..., Source]] = {"compiled": KernelSource, "plain": MessageSource}
CLIENTS = list(SINKS)
READING = {"group.id": "reader", "enable.partition.eof": True, "auto.offset.reset": "error", "fetch.wait.max.ms": 10}

ORDINARY = [
    Plain(b"key", b"value"),
    Plain(None, b"value"),
    Plain(b"key", None),
    Plain(None, None),
    Plain(b"", b""),
    Plain(b"key", b"value", timestamp=1),
    Plain(b"key", b"v" * 100_000),
    Plain(b"key", b"value", headers=((b"a", b"1"), (b"b", None), (b"a", b""), ("ü".encode(), b"\0\xff"))),
]
"""Records that every client passes on as they are."""


class Cluster(NamedTuple):
    """A mock cluster, and how a test makes clients of it."""

    mock: MockCluster
    client: str
    opened: list[RecordSink | Source]

    def sink(self, **settings: Any) -> RecordSink:
        tuning = {"enable.idempotence": True, "linger.ms": 1} | named(settings)
        sink = SINKS[self.client](self._connection("target"), tuning, "group")
        self.opened.append(sink)
        # librdkafka asks for a producer id when it has a connection. A record that comes before that waits for a timer
        # of half a second, once or twice.
        time.sleep(0.02)
        return sink

    def source(self, client: str = "") -> Source:
        source = SOURCES[client or self.client](self._connection("source"), READING)
        self.opened.append(source)
        return source

    def _connection(self, role: str) -> Connection:
        return Connection({"bootstrap.servers": self.mock.bootstrap}, role)


def named(settings: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "."): value for name, value in settings.items()}


@contextmanager
def opened_cluster(client: str) -> Iterator[Cluster]:
    with mock_cluster() as mock:
        cluster = Cluster(mock, client, [])
        try:
            yield cluster
        finally:
            for each in cluster.opened:
                each.close()


@pytest.fixture(params=CLIENTS)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with opened_cluster(request.param) as cluster:
        cluster.mock.create_topic(TOPIC.topic)
        cluster.mock.create_topic(OTHER.topic)
        yield cluster


def block_of_size(count: int, first: int = 0) -> RecordBlock:
    return block_of([Plain(b"k", b"v" * 100)] * count, range(first, first + count))


def deliver(sink: RecordSink, block: RecordBlock) -> None:
    sink.send(TOPIC, block)
    assert sink.flush(30) == 0


def deliver_ordinary_records(cluster: Cluster) -> None:
    """Write `ORDINARY` by the client that doesn't matter: both write the same, as `test_what_...` shows."""
    deliver(cluster.sink(), block_of(ORDINARY))


# Reading


def results_until(source: Source, is_last: Callable[[FetchResult], bool]) -> list[FetchResult]:
    results: list[FetchResult] = []
    until = time.monotonic() + 30
    while not (results and is_last(results[-1])):
        assert time.monotonic() < until, "the source gave nothing more"
        for result in source.take():
            results.append(result)
            if is_last(result):
                break
    return results


def read(source: Source, start: int, end: int) -> list[FetchResult]:
    """Return what a source gives of a range, up to the range's end."""
    source.start({TOPIC: OffsetRange(*TOPIC, start, end)})
    return results_until(source, lambda result: result.ended)


def blocks_of(results: list[FetchResult]) -> list[RecordBlock]:
    return [result.block for result in results if result.block is not None]


def bytes_of(results: list[FetchResult]) -> bytes:
    return b"".join(block.data.tobytes() for block in blocks_of(results))


def offsets_of(results: list[FetchResult]) -> list[int]:
    return [offset for block in blocks_of(results) for offset in block.offsets.tolist()]


def test_records_are_read_in_the_encoding_of_segments(cluster: Cluster) -> None:
    deliver_ordinary_records(cluster)
    results = read(cluster.source(), 0, len(ORDINARY))
    assert bytes_of(results) == block_of(ORDINARY).data.tobytes()
    for block in blocks_of(results):
        locate_fields(block, "what was read", 0)
    assert max(block.largest for block in blocks_of(results)) > 100_000
    assert min(block.min_timestamp or 0 for block in blocks_of(results)) == 1


def test_only_the_records_of_the_range_are_read(cluster: Cluster) -> None:
    deliver(cluster.sink(), block_of_size(100))
    assert offsets_of(read(cluster.source(), 17, 23)) == [17, 18, 19, 20, 21, 22]


def test_the_last_record_of_a_range_has_its_leader_epoch(cluster: Cluster) -> None:
    deliver(cluster.sink(), block_of_size(3))
    epochs = {result.leader_epoch for result in read(cluster.source(), 0, 3) if result.block is not None}
    assert epochs == {0}


def test_a_range_past_the_log_is_reported_as_the_end_of_the_partition(cluster: Cluster) -> None:
    deliver(cluster.sink(), block_of_size(3))
    source = cluster.source()
    source.start({TOPIC: OffsetRange(*TOPIC, 0, 10)})
    results = results_until(source, lambda result: result.report is not None)
    report = results[-1].report
    assert report is not None
    assert (results[-1].tp, report.error.code(), report.offset) == (TOPIC, KafkaError._PARTITION_EOF, 3)
    assert offsets_of(results) == [0, 1, 2]


def test_a_partition_goes_on_where_it_is_restarted(cluster: Cluster) -> None:
    deliver(cluster.sink(), block_of_size(50))
    source = cluster.source()
    source.start({TOPIC: OffsetRange(*TOPIC, 0, 50)})
    source.restart(TOPIC, 40)
    results = results_until(source, lambda result: result.ended)
    assert offsets_of(results)[-10:] == list(range(40, 50))


def test_one_source_reads_several_ranges_one_after_the_other(cluster: Cluster) -> None:
    deliver(cluster.sink(), block_of_size(20))
    source = cluster.source()
    assert offsets_of(read(source, 10, 15)) == list(range(10, 15))
    source.stop(TOPIC)
    assert offsets_of(read(source, 0, 5)) == list(range(5))


def test_watermarks_are_the_bounds_of_the_log(cluster: Cluster) -> None:
    deliver(cluster.sink(), block_of_size(5))
    assert cluster.source().watermarks(TOPIC, 30) == (0, 5)


def test_a_source_closes_with_messages_that_nobody_took(cluster: Cluster) -> None:
    deliver(cluster.sink(), block_of_size(5000))
    source = cluster.source()
    source.start({TOPIC: OffsetRange(*TOPIC, 0, 1)})
    results_until(source, lambda result: result.ended)


# Producing


@pytest.mark.parametrize("reader", CLIENTS)
def test_what_one_client_writes_both_read_alike(cluster: Cluster, reader: str) -> None:
    deliver(cluster.sink(), block_of(ORDINARY))
    results = read(cluster.source(reader), 0, len(ORDINARY))
    assert bytes_of(results) == block_of(ORDINARY).data.tobytes()


def test_records_without_a_create_time_are_written_without_one(cluster: Cluster) -> None:
    records = [Plain(b"k", b"v", -1), Plain(b"k", b"v", -2)]
    deliver(cluster.sink(), block_of(records))
    results = read(cluster.source(), 0, 2)
    assert bytes_of(results) == block_of([record.restored for record in records]).data.tobytes()
    assert [block.min_timestamp for block in blocks_of(results)] == [None]


def test_a_timestamp_of_0_is_written_as_1_and_counted(cluster: Cluster) -> None:
    sink = cluster.sink()
    deliver(sink, block_of([Plain(b"k", b"v", timestamp=n) for n in (0, 1, 2, 0)]))
    assert sink.moved == 2
    results = read(cluster.source(), 0, 4)
    assert bytes_of(results) == block_of([Plain(b"k", b"v", timestamp=n) for n in (1, 1, 2, 1)]).data.tobytes()


def test_delivery_reports_say_where_records_went(cluster: Cluster) -> None:
    sink = cluster.sink()
    for number in range(20):
        sink.send(TOPIC, block_of_size(50, 1000 + 50 * number))
        sink.send(OTHER, block_of_size(1, 3 * number))
    sink.send(TOPIC, block_of_size(0))
    assert sink.flush(30) == 0
    assert sink.lost() is None
    taken = sink.taken()
    assert rows(taken[TOPIC]) == [(1000, 0, 1000)]
    assert rows(taken[OTHER]) == [(3 * n, n, 1) for n in range(20)]
    assert sink.taken() == {}


def test_a_full_queue_is_waited_for(cluster: Cluster) -> None:
    sink = cluster.sink(queue_buffering_max_messages=7)
    deliver(sink, block_of([Plain(b"k", b"v", timestamp=n % 3) for n in range(500)]))
    assert rows(sink.taken()[TOPIC]) == [(0, 0, 500)]
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
def test_blocks_are_delivered_without_the_linger_time(
    cluster: Cluster, settings: dict[str, int], blocks: list[int]
) -> None:
    sink = cluster.sink(**settings)
    began = time.monotonic()
    for number, count in enumerate(blocks):
        sink.send(TOPIC, block_of_size(count, number))
    assert sink.flush(50) == 0
    assert rows(sink.taken()[TOPIC]) == [(0, 0, sum(blocks))]
    assert time.monotonic() - began < 50, "less than the linger time of one batch"


def test_a_batch_that_the_broker_has_already_is_delivered_without_an_offset(cluster: Cluster) -> None:
    """It was sent again after its answer had been lost."""
    sink = cluster.sink()
    deliver(sink, block_of_size(3))
    cluster.mock.fail(PRODUCE, KafkaError.DUPLICATE_SEQUENCE_NUMBER)
    deliver(sink, block_of_size(1, 3))
    deliver(sink, block_of_size(3, 4))
    assert sink.lost() is None
    assert rows(sink.taken()[TOPIC]) == [(0, 0, 3), (3, -1, 1), (4, 3, 3)]


def test_a_record_that_the_broker_refuses_is_named(cluster: Cluster) -> None:
    sink = cluster.sink(batch_num_messages=1)
    deliver(sink, block_of_size(2))
    cluster.mock.fail(PRODUCE, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    deliver(sink, block_of_size(1, 77))
    lost = sink.lost()
    assert lost is not None
    assert (lost.error.code(), lost.tp, lost.source) == (KafkaError.TOPIC_AUTHORIZATION_FAILED, TOPIC, 77)


@pytest.mark.parametrize(
    ("settings", "first", "code"),
    [
        ({"message_max_bytes": 2000}, 1, KafkaError.MSG_SIZE_TOO_LARGE),
        ({"queue_buffering_max_kbytes": 2}, 2000, KafkaError._QUEUE_FULL),
    ],
    ids=["larger than a message may be", "larger than the queue"],
)
def test_a_record_that_is_too_large_is_refused(
    cluster: Cluster, settings: dict[str, int], first: int, code: int
) -> None:
    sink = cluster.sink(**settings)
    records = [Plain(b"k", b"v" * first), Plain(b"k", b"v" * 3000, headers=((b"h", b"x"),))]
    with pytest.raises(RefusedRecordError) as raised:
        sink.send(TOPIC, block_of(records, [5, 9]))
    lost = raised.value.lost
    assert (lost.error.code(), lost.tp, lost.source) == (code, TOPIC, 9)


def test_an_aborted_transaction_leaves_no_trace_in_the_sink(cluster: Cluster) -> None:
    sink = cluster.sink(**{"transactional.id": "id"})
    sink.init(30)
    for commit in (True, False, True):
        sink.begin()
        sink.send(TOPIC, block_of_size(10))
        if not commit:
            sink.abort(30)
            assert sink.lost() is None
            assert sink.taken() == {}
            continue
        assert sink.flush(30) == 0
        assert int(sink.taken()[TOPIC].count.sum()) == 10
        sink.send_progress({TOPIC: CommittedProgress(10, "nöte"), OTHER: CommittedProgress(0, "")}, 30)
        sink.commit(30)


@pytest.mark.parametrize("client", CLIENTS)
def test_closing_gives_up_what_is_queued(client: str) -> None:
    """Nothing can be delivered, and nothing is waited for."""
    connection = Connection({"bootstrap.servers": "127.0.0.1:1", "log_level": "0"}, "target")
    with closing(SINKS[client](connection, {"enable.idempotence": True}, "group")) as sink:
        block = block_of_size(1000)
        memory = weakref.ref(block.data)
        sink.send(TOPIC, block)
        del block
        assert sink.flush(0.1) == 1000
    del sink
    gc.collect()
    assert memory() is None


# Damaged blocks


@pytest.fixture(scope="module", params=CLIENTS)
def any_sink(request: pytest.FixtureRequest) -> Iterator[RecordSink]:
    """A sink that many examples share."""
    with opened_cluster(request.param) as cluster:
        yield cluster.sink()


def complaint(call: Callable[[], object]) -> str | None:
    try:
        call()
    except CorruptError as error:
        return str(error)
    return None


field = st.none() | st.binary(max_size=12)
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=2).map(str.encode)
names = texts | st.binary(max_size=4)
plain = st.builds(
    Plain,
    field,
    field,
    st.sampled_from([-2, -1, 0, 1]),
    st.integers(0, 3),
    st.lists(st.tuples(names, field), max_size=3).map(tuple),
)
damage = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=3)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=st.lists(plain, min_size=1, max_size=6), damage=damage)
def test_damage_is_refused_where_the_codec_refuses_it(
    any_sink: RecordSink, records: list[Plain], damage: list[tuple[int, int]]
) -> None:
    block = block_of(records)
    data = block.data.copy()
    for at, octet in damage:
        data[at % len(data)] = octet
    block = replace(block, data=data)
    expected = complaint(lambda: locate_fields(block, "record block", 0))
    try:
        found = complaint(lambda: any_sink.send(TOPIC, block))
    except UsageError:  # a header's name that is not UTF-8: see the end of this module
        assert isinstance(any_sink, MessageSink)
        return
    assert found == expected


@pytest.mark.parametrize(
    ("column", "value"),
    [("positions", -1), ("positions", 1 << 62), ("lengths", -5), ("lengths", 1 << 62), ("lengths", 23)],
)
def test_an_index_that_points_outside_is_refused(any_sink: RecordSink, column: str, value: int) -> None:
    block = block_of([Plain(b"k", b"v" * 100)] * 3, range(3))
    changed = getattr(block, column).copy()
    changed[1] = value
    with pytest.raises(CorruptError):
        any_sink.send(TOPIC, replace(block, **{column: changed}))


def test_an_index_of_uneven_columns_is_refused(any_sink: RecordSink) -> None:
    block = block_of([Plain(b"k", b"v" * 100)] * 3, range(3))
    with pytest.raises(CorruptError, match="different lengths"):
        any_sink.send(TOPIC, replace(block, lengths=np.empty(0, np.int64)))


# Where the clients differ: names of headers. confluent-kafka takes and gives them as text that a NUL byte ends.


def written_name(client: str, name: bytes) -> bytes:
    """Return the name of a header as it is in the topic after `client` wrote it, read by the compiled client."""
    with opened_cluster(client) as cluster:
        cluster.mock.create_topic(TOPIC.topic)
        deliver(cluster.sink(), block_of([Plain(b"k", b"v", headers=((name, b"x"),))]))
        return name_in(bytes_of(read(cluster.source("compiled"), 0, 1)))


def read_name(client: str, name: bytes) -> bytes:
    """Return the name of a header as `client` reads it, written by the compiled client."""
    with opened_cluster("compiled") as cluster:
        cluster.mock.create_topic(TOPIC.topic)
        deliver(cluster.sink(), block_of([Plain(b"k", b"v", headers=((name, b"x"),))]))
        return name_in(bytes_of(read(cluster.source(client), 0, 1)))


def name_in(data: bytes) -> bytes:
    """Return the name of the only header, whose value is one byte, of the only record."""
    before = len(block_of([Plain(b"k", b"v")]).data)
    return data[before + 4 : -5]


def test_the_compiled_client_keeps_any_name_of_a_header() -> None:
    for name in (b"a\0b", b"\xff\xfe"):
        assert written_name("compiled", name) == name
        assert read_name("compiled", name) == name


def test_the_plain_client_cuts_the_name_of_a_header_at_a_nul_byte() -> None:
    assert written_name("plain", b"a\0b") == b"a"
    assert read_name("plain", b"a\0b") == b"a"


def test_the_plain_client_refuses_to_write_a_name_of_a_header_that_is_no_utf8() -> None:
    with pytest.raises(UsageError, match="a header key that is not UTF-8; use the native kernel"):
        written_name("plain", b"\xff\xfe")


def test_the_plain_client_names_the_record_whose_header_has_a_name_that_is_no_utf8() -> None:
    records = [Plain(b"k", b"v", headers=((name, b"x"),)) for name in (b"a", "ü".encode(), b"\xff\xfe", b"b")]
    with opened_cluster("compiled") as cluster:
        cluster.mock.create_topic(TOPIC.topic)
        deliver(cluster.sink(), block_of(records))
        with pytest.raises(UsageError) as raised:
            read(cluster.source("plain"), 0, len(records))
    assert raised.value.message == "the record of orders-0 at offset 2 has a header key that is not UTF-8"
    assert raised.value.hint.startswith("install the extra native")


def test_the_plain_client_reads_ranges_up_to_a_header_whose_name_is_no_utf8() -> None:
    records = [Plain(b"k", b"v"), Plain(b"k", b"v", headers=((b"\xff\xfe", b"x"),))]
    with opened_cluster("compiled") as cluster:
        cluster.mock.create_topic(TOPIC.topic)
        deliver(cluster.sink(), block_of(records))
        assert offsets_of(read(cluster.source("plain"), 0, 1)) == [0]
