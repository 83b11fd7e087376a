"""Partitions whose last stable offset is late when the wait for transactions gives up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from kafka.protocol.admin import DescribeProducersRequest, DescribeProducersResponse
from kafka.protocol.consumer import FetchRequest, FetchResponse, ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.metadata import MetadataRequest
from kafka.record.default_records import DefaultRecordBatchBuilder

from kbackup.kafka.control.cluster import Cluster
from kbackup.kafka.transactions import STATE, CutBegun, OpenTransaction, TransactionCut
from kbackup.types import TopicPartition
from tests.support.fake_broker import FakeCluster, fake_cluster

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
ENDS = {FIRST: 10, SECOND: 20}
STABLE = {FIRST: 3, SECOND: 4}
READ_COMMITTED = 1
MAY_READ = {3}
"""Kafka's number of the operation READ."""


@dataclass
class Logs:
    """What the broker answers of the logs of topic orders, which end at `ENDS`.

    `stable` are answers to questions for last stable offsets, one after the other; the last answer stays. `open` are
    the transactions of partitions: producer id and first offset, -1 for a producer that has none open."""

    stable: list[dict[TopicPartition, int]]
    open: dict[TopicPartition, list[tuple[int, int]]] = field(default_factory=dict)
    looks: list[set[TopicPartition]] = field(default_factory=list)

    def list_offsets(self, request: Any) -> Any:
        partitions = [
            TopicPartition(topic.name, p.partition_index) for topic in request.topics for p in topic.partitions
        ]
        ends: dict[TopicPartition, int] = ENDS
        if request.isolation_level == READ_COMMITTED:
            ends = self.stable[min(len(self.looks), len(self.stable) - 1)]
            self.looks.append(set(partitions))
        entry = ListOffsetsResponse.ListOffsetsTopicResponse
        topics = []
        for tp in partitions:
            answer = entry.ListOffsetsPartitionResponse(
                partition_index=tp.partition, error_code=0, timestamp=-1, offset=ends.get(tp, 0), leader_epoch=0
            )
            topics.append(entry(name=tp.topic, partitions=[answer]))
        return ListOffsetsResponse(throttle_time_ms=0, topics=topics)

    def producers(self, request: Any) -> Any:
        topic_kind = DescribeProducersResponse.TopicResponse
        kind = topic_kind.PartitionResponse
        topics = []
        for topic in request.topics:
            for number in topic.partition_indexes:
                states = []
                for producer_id, first in self.open.get(TopicPartition(topic.name, number), []):
                    state = kind.ProducerState(
                        producer_id=producer_id,
                        producer_epoch=0,
                        last_sequence=0,
                        last_timestamp=1_000,
                        coordinator_epoch=0,
                        current_txn_start_offset=first,
                    )
                    states.append(state)
                partition = kind(partition_index=number, error_code=0, error_message=None, active_producers=states)
                topics.append(topic_kind(name=topic.name, partitions=[partition]))
        return DescribeProducersResponse(topics=topics)

    def fetch(self, request: Any) -> Any:
        kind = FetchResponse.FetchableTopicResponse
        topics = []
        for topic in request.topics:
            for each in topic.partitions:
                end = ENDS[TopicPartition(topic.topic, each.partition)]
                partition = kind.PartitionData(
                    partition_index=each.partition,
                    error_code=0,
                    high_watermark=end,
                    records=plain_batch(each.fetch_offset, end),
                    aborted_transactions=[],
                )
                topics.append(kind(topic=topic.topic, partitions=[partition]))
        return FetchResponse(error_code=0, responses=topics)


def plain_batch(first: int, end: int) -> bytes:
    """Return a batch of records without transaction, with the offsets from `first` to `end`."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    for number in range(end - first):
        builder.append(number, 0, b"key", b"value", [])
    data = bytearray(builder.build())
    data[:8] = first.to_bytes(8, "big")
    return bytes(data)


@pytest.fixture
def brokers() -> Iterator[FakeCluster]:
    """One broker, on which transactions have been begun before."""
    with fake_cluster() as cluster:
        cluster.topics = {"orders": [1, 1], STATE: [1]}

        def readable(request: Any) -> Any:
            response = cluster.metadata(request)
            for topic in response.topics:
                topic.authorized_operations = MAY_READ
            return response

        cluster.on(MetadataRequest, readable)
        yield cluster


def cut(brokers: FakeCluster, logs: Logs, settling: float = 0.1) -> TransactionCut:
    """Return the cut of a backup that waits for no transaction."""
    brokers.on(ListOffsetsRequest, logs.list_offsets)
    brokers.on(DescribeProducersRequest, logs.producers)
    brokers.on(FetchRequest, logs.fetch)
    begun = CutBegun(Cluster({"bootstrap.servers": brokers.bootstrap}, "source"), {}, settling)
    found = begun.close(STABLE, wait=0)
    assert isinstance(found, TransactionCut), found
    return found


def test_partitions_with_an_open_transaction_are_not_looked_at_again(brokers: FakeCluster) -> None:
    logs = Logs([STABLE], open={FIRST: [(1, 3)], SECOND: [(2, 4)]})

    found = cut(brokers, logs, settling=60)

    assert found.ends == STABLE
    assert found.open == (OpenTransaction(FIRST, 1, 3, 1_000), OpenTransaction(SECOND, 2, 4, 1_000))
    assert logs.looks == [{FIRST, SECOND}], "the look of the wait that gives up"


def test_a_partition_whose_transaction_has_ended_is_looked_at_until_it_is_in_time(brokers: FakeCluster) -> None:
    in_time = {FIRST: 10, SECOND: 4}
    logs = Logs([STABLE, STABLE, in_time], open={SECOND: [(2, 4)]})

    found = cut(brokers, logs, settling=60)

    assert found.ends == in_time
    assert found.open == (OpenTransaction(SECOND, 2, 4, 1_000),)
    assert len(logs.looks) == 3


def test_an_open_transaction_that_ends_meanwhile_leaves_its_partition_in_time(brokers: FakeCluster) -> None:
    found = cut(brokers, Logs([STABLE, ENDS], open={SECOND: [(2, 4)]}))

    assert found.ends == ENDS
    assert found.open == ()


def test_a_partition_that_stays_late_without_a_reason_ends_at_its_last_stable_offset(brokers: FakeCluster) -> None:
    late = {FIRST: 3, SECOND: 20}

    found = cut(brokers, Logs([STABLE, late]))

    assert found.ends == late
    assert found.open == (OpenTransaction(FIRST, -1, 3, -1, "not stable"),)


def test_only_transactions_that_began_below_the_end_explain_a_late_partition(brokers: FakeCluster) -> None:
    late = {FIRST: 3, SECOND: 20}
    logs = Logs([late], open={FIRST: [(1, -1), (2, 9), (3, 10)], SECOND: [(4, 5)]})

    found = cut(brokers, logs)

    assert found.open == (OpenTransaction(FIRST, 2, 9, 1_000),)
