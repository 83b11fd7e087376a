"""Batches of logs, and windows that take several Fetches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError
from kafka.protocol.admin import DescribeProducersRequest, DescribeProducersResponse
from kafka.protocol.consumer import FetchRequest, FetchResponse
from kafka.protocol.metadata import MetadataRequest
from kafka.record.default_records import DefaultRecordBatchBuilder

from kbackup.kafka.control import logs
from kbackup.kafka.control.errors import RefusedRequestError
from kbackup.kafka.control.logs import (
    LogBatch,
    ReadableTopic,
    describe_producers,
    log_batches,
    log_windows,
    readable_topics,
)
from kbackup.kafka.control.unavailable import Unavailable, UnavailableError
from kbackup.types import TopicPartition
from tests.support.fake_broker import FakeCluster, fake_cluster

READ, DESCRIBE = 3, 8
"""Kafka's numbers of operations."""

ORDERS = [TopicPartition("orders", number) for number in range(3)]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with fake_cluster(nodes=2) as cluster:
        cluster.topics = {"orders": [1, 2, 1]}
        yield cluster


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked twice."""
    monkeypatch.setattr("kbackup.kafka.control.router.remedy_for", lambda error, change: None)


def batch_of(first: int, *, size: int = 10, epoch: int = 0) -> bytes:
    """The bytes of a batch with one record, at an offset."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    builder.append(0, 0, b"key", bytes(size), [])
    data = bytearray(builder.build())
    data[:8] = first.to_bytes(8, "big")
    data[12:16] = epoch.to_bytes(4, "big")
    return bytes(data)


class Logs:
    """Logs that a broker serves: one batch of one record at each offset, one batch at a time. `full` are partitions
    that a response has no room for while another one has something."""

    def __init__(self, ends: dict[TopicPartition, int], *, errors: dict[TopicPartition, int] | None = None) -> None:
        self.ends = ends
        self.errors = errors or {}
        self.full: set[TopicPartition] = set()
        self.size = 10

    def fetch(self, request: Any) -> Any:
        kind = FetchResponse.FetchableTopicResponse
        responses = []
        for topic in request.topics:
            partitions = []
            for each in topic.partitions:
                tp = TopicPartition(topic.topic, each.partition)
                records = b""
                if each.fetch_offset < self.ends.get(tp, 0) and tp not in self.full:
                    records = batch_of(each.fetch_offset, size=self.size)
                partitions.append(
                    kind.PartitionData(
                        partition_index=tp.partition,
                        error_code=self.errors.get(tp, 0),
                        high_watermark=0,
                        records=records,
                        aborted_transactions=[],
                    )
                )
            responses.append(kind(topic=topic.topic, partitions=partitions))
        self.full = set()
        return FetchResponse(error_code=0, responses=responses)


# The batch at an offset.


def test_the_batch_at_an_offset_is_asked_of_the_leader(cluster: FakeCluster) -> None:
    cluster.on(FetchRequest, Logs(dict.fromkeys(ORDERS, 10)).fetch)
    found = log_batches(cluster.router(), {ORDERS[0]: 7, ORDERS[1]: 3})
    assert not isinstance(found, Unavailable)
    assert {tp: (batch.first, batch.last) for tp, batch in found.items()} == {ORDERS[0]: (7, 7), ORDERS[1]: (3, 3)}
    (asked,) = cluster.asked(FetchRequest, node=2)
    assert [each.partition for each in asked.topics[0].partitions] == [1]
    assert asked.isolation_level == 1


def test_logs_that_give_no_answer_are_left_out_at_once(cluster: FakeCluster) -> None:
    cluster.topics["without leader"] = [-1]
    cluster.on(FetchRequest, Logs({ORDERS[0]: 10}).fetch)
    offsets = {
        ORDERS[0]: 7,
        ORDERS[1]: 3,  # behind the end of the log
        TopicPartition("no-such-topic", 0): 0,
        TopicPartition("without leader", 0): 0,
    }
    found = log_batches(cluster.router(), offsets)
    assert not isinstance(found, Unavailable)
    assert list(found) == [ORDERS[0]]


def test_a_log_that_an_answer_had_no_room_for_is_asked_for_again(cluster: FakeCluster) -> None:
    served = Logs(dict.fromkeys(ORDERS, 10))
    served.full = {ORDERS[2]}
    cluster.on(FetchRequest, served.fetch)
    found = log_batches(cluster.router(), {ORDERS[0]: 0, ORDERS[2]: 0})
    assert not isinstance(found, Unavailable)
    assert sorted(found) == [ORDERS[0], ORDERS[2]]


def test_a_batch_that_becomes_gigabytes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = DefaultRecordBatchBuilder(2, 1, False, -1, -1, -1, 1 << 20)
    builder.append(0, 0, b"key", bytes(100_000), [])
    batch = LogBatch(0, 0, 0, False, False, data=bytes(builder.build()))
    assert [(key, value) for _, key, value in batch.records()] == [(b"key", bytes(100_000))]
    monkeypatch.setattr(logs, "_MOST_PLAIN", 99_999)
    with pytest.raises(RefusedRequestError):
        list(batch.records())


# Windows of logs.


def windows(cluster: FakeCluster, ends: dict[TopicPartition, int], limit: int = 1 << 30) -> dict[Any, Any]:
    ranges = {tp: (0, end, 0) for tp, end in ends.items()}
    return log_windows(cluster.router(), ranges, limit, records={ORDERS[1]})


def test_a_window_is_read_on_until_it_is_complete(cluster: FakeCluster) -> None:
    cluster.on(FetchRequest, Logs(dict.fromkeys(ORDERS, 100)).fetch)
    found = windows(cluster, {ORDERS[0]: 3, ORDERS[1]: 2})
    assert {tp: [batch.first for batch in window.batches] for tp, window in found.items()} == {
        ORDERS[0]: [0, 1, 2],
        ORDERS[1]: [0, 1],
    }
    assert all(window.complete for window in found.values())
    assert all(batch.data == b"" for batch in found[ORDERS[0]].batches), "headers alone"
    assert [list(batch.records()) for batch in found[ORDERS[1]].batches] == [
        [(0, b"key", bytes(10))],
        [(1, b"key", bytes(10))],
    ]
    assert cluster.asked(FetchRequest)[0].isolation_level == 0


def test_after_a_number_of_bytes_windows_stay_incomplete(cluster: FakeCluster) -> None:
    served = Logs(dict.fromkeys(ORDERS, 1000))
    served.size = 1000
    cluster.on(FetchRequest, served.fetch)
    found = windows(cluster, {ORDERS[0]: 1000, ORDERS[1]: 1, ORDERS[2]: 1}, limit=5000)
    assert {tp: window.complete for tp, window in found.items()} == {
        ORDERS[0]: False,
        ORDERS[1]: True,  # of another broker
        ORDERS[2]: True,  # the small one comes first
    }
    assert len(found[ORDERS[0]].batches) < 6
    last = cluster.asked(FetchRequest, node=1)[-1]
    assert last.max_bytes < 5000, "no more is asked for than is left"


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("errors", "end", "words"),
    [({ORDERS[1]: int(KafkaError.OFFSET_OUT_OF_RANGE)}, 10, "reading orders-1"), ({}, 1, "reading orders-1")],
    ids=["refused", "not replicated"],
)
def test_a_log_that_can_not_be_read_is_an_error(
    errors: dict[TopicPartition, int], end: int, words: str, cluster: FakeCluster
) -> None:
    cluster.on(FetchRequest, Logs({ORDERS[0]: 10, ORDERS[1]: end}, errors=errors).fetch)
    with pytest.raises(UnavailableError, match=words) as raised:
        windows(cluster, {ORDERS[0]: 2, ORDERS[1]: 2})
    assert raised.value.unavailable.reason == "failed"


@pytest.mark.usefixtures("impatient")
def test_a_log_that_may_not_be_read_names_the_right(cluster: FakeCluster) -> None:
    denied = {ORDERS[1]: int(KafkaError.TOPIC_AUTHORIZATION_FAILED)}
    cluster.on(FetchRequest, Logs(dict.fromkeys(ORDERS, 10), errors=denied).fetch)
    with pytest.raises(UnavailableError, match="it takes Read on the topic") as raised:
        windows(cluster, {ORDERS[1]: 2})
    assert raised.value.unavailable.reason == "denied"


def test_a_window_goes_on_at_the_leader_that_a_log_moves_to(cluster: FakeCluster) -> None:
    served = Logs(dict.fromkeys(ORDERS, 10))
    answered = [0]

    def first_leader(request: Any) -> Any:
        answered[0] += 1
        if answered[0] == 2:
            cluster.topics["orders"][0] = 2
            served.errors = {ORDERS[0]: int(KafkaError.NOT_LEADER_FOR_PARTITION)}
        return served.fetch(request)

    def next_leader(request: Any) -> Any:
        served.errors = {}
        return served.fetch(request)

    cluster.on(FetchRequest, first_leader, node=1)
    cluster.on(FetchRequest, next_leader, node=2)
    found = windows(cluster, {ORDERS[0]: 3})
    assert [batch.first for batch in found[ORDERS[0]].batches] == [0, 1, 2]


def test_many_logs_are_read_in_several_rounds(cluster: FakeCluster) -> None:
    many = [TopicPartition("many", number) for number in range(2600)]
    cluster.topics = {"many": [1] * len(many)}
    cluster.on(FetchRequest, Logs(dict.fromkeys(many, 10)).fetch)
    found = windows(cluster, dict.fromkeys(many, 2))
    assert all(window.complete for window in found.values())
    logs_of_requests = [sum(len(t.partitions) for t in request.topics) for request in cluster.asked(FetchRequest)]
    assert max(logs_of_requests) == 500


# Producers.


def producers_of(error: Callable[[int], int]) -> Callable[[Any], Any]:
    topic_kind = DescribeProducersResponse.TopicResponse
    kind = topic_kind.PartitionResponse

    def answer(request: Any) -> Any:
        topics = []
        for topic in request.topics:
            partitions = []
            for number in topic.partition_indexes:
                state = kind.ProducerState(
                    producer_id=number,
                    producer_epoch=0,
                    last_sequence=0,
                    last_timestamp=0,
                    coordinator_epoch=0,
                    current_txn_start_offset=-1,
                )
                partitions.append(
                    kind(partition_index=number, error_code=error(number), error_message=None, active_producers=[state])
                )
            topics.append(topic_kind(name=topic.name, partitions=partitions))
        return DescribeProducersResponse(topics=topics)

    return answer


def test_leaders_list_the_producers_of_their_partitions(cluster: FakeCluster) -> None:
    cluster.on(DescribeProducersRequest, producers_of(lambda number: 0))
    found = describe_producers(cluster.router(), ORDERS)
    assert {tp: [each.producer_id for each in states] for tp, states in found.items()} == {
        tp: [tp.partition] for tp in ORDERS
    }
    assert len(cluster.asked(DescribeProducersRequest, node=1)) == 1


def test_one_partition_whose_producers_are_not_told_is_an_error(cluster: FakeCluster) -> None:
    denied = int(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    cluster.on(DescribeProducersRequest, producers_of(lambda number: denied if number == 1 else 0))
    with pytest.raises(UnavailableError, match=r"describing producers of orders-1.*it takes Read on the topic"):
        describe_producers(cluster.router(), ORDERS)


def test_brokers_before_kafka_2_8_describe_no_producers(cluster: FakeCluster) -> None:
    with pytest.raises(UnavailableError, match="too old") as raised:
        describe_producers(cluster.router(), ORDERS)
    assert raised.value.unavailable.reason == "not supported"


# Topics that are to be read.


def test_a_topic_is_readable_with_the_right_and_leaders(cluster: FakeCluster) -> None:
    cluster.topics = {"may read": [1, 2], "may not": [1], "without leader": [1, -1]}

    def with_rights(request: Any) -> Any:
        response = cluster.metadata(request)
        for topic in response.topics:
            topic.authorized_operations = {DESCRIBE} if topic.name == "may not" else {READ, DESCRIBE}
        return response

    cluster.on(MetadataRequest, with_rights)
    found = readable_topics(cluster.router(), ["may read", "may not", "without leader", "not there"])
    partitions = tuple(TopicPartition("may read", number) for number in range(2))
    assert found["may read"] == ReadableTopic(partitions, 0)
    assert found["may not"].error == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert found["without leader"].error == KafkaError.LEADER_NOT_AVAILABLE
    assert found["not there"] == ReadableTopic((), int(KafkaError.UNKNOWN_TOPIC_OR_PART))


@pytest.mark.usefixtures("impatient")
def test_a_cluster_that_is_gone_describes_no_topics(cluster: FakeCluster) -> None:
    for broker in cluster.brokers.values():
        broker.stop()
    with pytest.raises(UnavailableError, match="describing topics"):
        readable_topics(cluster.router(), ["orders"])
