"""Log starts, log ends and the ends of leader epochs, as the leaders of partitions return them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError
from kafka.protocol.consumer import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kafka.protocol.metadata import MetadataRequest

from kbackup.errors import ClusterError, UnreachableError
from kbackup.kafka.control.offsets import EpochPosition, LogOffset, LogOffsets, Validation, validate_epochs
from kbackup.types import TopicPartition
from tests.support.fake_broker import FakeCluster

TP = TopicPartition("orders", 0)
EARLIEST, LATEST = -2, -1
READ_UNCOMMITTED, READ_COMMITTED = 0, 1


class Logs:
    """Answers ListOffsets: with the next of `errors` or, when there is none left, with `offset` and `epoch`."""

    def __init__(self, *errors: int, offset: int = 7, epoch: int = 3) -> None:
        self.errors = list(errors)
        self.offset = offset
        self.epoch = epoch

    def __call__(self, request: Any) -> Any:
        entry = ListOffsetsResponse.ListOffsetsTopicResponse
        topics = []
        for topic in request.topics:
            partitions = [self._answer(entry, each.partition_index) for each in topic.partitions]
            topics.append(entry(name=topic.name, partitions=partitions))
        return ListOffsetsResponse(throttle_time_ms=0, topics=topics)

    def _answer(self, entry: Any, partition: int) -> Any:
        error = self.errors.pop(0) if self.errors else 0
        return entry.ListOffsetsPartitionResponse(
            partition_index=partition,
            error_code=error,
            timestamp=-1,
            offset=-1 if error else self.offset,
            leader_epoch=self.epoch,
        )


def asked_of(brokers: FakeCluster, node: int) -> list[tuple[str, int]]:
    """Return the partitions that a broker was asked about."""
    requests = brokers.asked(ListOffsetsRequest, node)
    return [(t.name, p.partition_index) for request in requests for t in request.topics for p in t.partitions]


def offsets(brokers: FakeCluster) -> LogOffsets:
    return LogOffsets(brokers.router())


def test_each_leader_is_asked_about_its_own_partitions(brokers: FakeCluster) -> None:
    brokers.topics = {"orders": [1, 2, 1], "clicks": [2]}
    brokers.on(ListOffsetsRequest, Logs())
    every = [TopicPartition("orders", p) for p in range(3)] + [TopicPartition("clicks", 0)]
    assert offsets(brokers).log_starts(every) == dict.fromkeys(every, 7)
    assert asked_of(brokers, 1) == [("orders", 0), ("orders", 2)]
    assert asked_of(brokers, 2) == [("clicks", 0), ("orders", 1)]


@pytest.mark.parametrize(
    ("ask", "timestamp", "isolation"),
    [
        (lambda logs: logs.log_starts([TP]), EARLIEST, READ_UNCOMMITTED),
        (lambda logs: logs.log_ends([TP], "read_uncommitted"), LATEST, READ_UNCOMMITTED),
        (lambda logs: logs.log_ends([TP], "read_committed"), LATEST, READ_COMMITTED),
    ],
    ids=["log start", "high watermark", "last stable offset"],
)
def test_an_offset_is_asked_for_as_kafka_names_it(
    brokers: FakeCluster, ask: Callable[[LogOffsets], object], timestamp: int, isolation: int
) -> None:
    brokers.topics = {"orders": [1]}
    brokers.on(ListOffsetsRequest, Logs())
    assert ask(offsets(brokers)) == {TP: 7}
    (request,) = brokers.asked(ListOffsetsRequest)
    assert request.isolation_level == isolation
    assert request.replica_id == -1
    assert request.topics[0].partitions[0].timestamp == timestamp


@pytest.mark.parametrize(("newest", "epoch"), [(11, 3), (3, None)], ids=["new", "without leader epochs"])
def test_high_watermarks_come_with_leader_epochs_where_brokers_return_them(
    brokers: FakeCluster, newest: int, epoch: int | None
) -> None:
    brokers.topics = {"orders": [1]}
    brokers.on(ListOffsetsRequest, Logs(), newest=newest)
    assert offsets(brokers).high_watermarks([TP]) == {TP: LogOffset(7, epoch)}


def test_a_broker_without_isolation_levels_is_not_asked_for_the_last_stable_offset(brokers: FakeCluster) -> None:
    """It would return the high watermark."""
    brokers.topics = {"orders": [1]}
    brokers.on(ListOffsetsRequest, Logs(), newest=1)
    with pytest.raises(ClusterError, match="asking for offsets of orders-0: the brokers are too old"):
        offsets(brokers).log_ends([TP], "read_committed")
    assert offsets(brokers).log_ends([TP], "read_uncommitted") == {TP: 7}


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    ],
)
def test_a_leader_is_looked_up_again(code: int, brokers: FakeCluster, clock: list[float]) -> None:
    brokers.topics = {"orders": [1]}

    def move(request: Any) -> Any:
        brokers.topics["orders"] = [2]
        return Logs(code)(request)

    brokers.on(ListOffsetsRequest, move, node=1)
    brokers.on(ListOffsetsRequest, Logs(), node=2)
    assert offsets(brokers).log_starts([TP]) == {TP: 7}
    assert len(clock) == 1


def test_only_what_was_refused_is_asked_again(brokers: FakeCluster, clock: list[float]) -> None:
    brokers.topics = {"orders": [1, 1]}
    brokers.on(ListOffsetsRequest, Logs(KafkaError.OFFSET_NOT_AVAILABLE))
    assert len(offsets(brokers).log_starts([TP, TopicPartition("orders", 1)])) == 2
    assert asked_of(brokers, 1) == [("orders", 0), ("orders", 1), ("orders", 0)]


def test_an_offset_that_is_none_is_asked_for_again(brokers: FakeCluster, clock: list[float]) -> None:
    """The answer, without an error, of a leader that goes away: a log that ends there would count as cut."""
    brokers.topics = {"orders": [1]}
    logs = Logs(offset=-1)

    def answer_later(request: Any) -> Any:
        response = logs(request)
        logs.offset = 7
        return response

    brokers.on(ListOffsetsRequest, answer_later)
    assert offsets(brokers).log_ends([TP], "read_committed") == {TP: 7}
    assert len(clock) == 1


def test_a_partition_gets_a_leader_while_it_is_waited_for(brokers: FakeCluster, clock: list[float]) -> None:
    brokers.topics = {"orders": [-1]}
    answer = brokers.metadata

    def elect(request: Any) -> Any:
        response = answer(request)
        if len(brokers.asked(MetadataRequest)) == 3:
            brokers.topics = {"orders": [2]}
        return response

    brokers.on(MetadataRequest, elect)
    brokers.on(ListOffsetsRequest, Logs())
    assert offsets(brokers).log_starts([TP]) == {TP: 7}
    assert len(clock) == 3


def test_a_leader_that_is_gone_is_replaced_by_the_next_one(brokers: FakeCluster, clock: list[float]) -> None:
    brokers.topics = {"orders": [2]}
    brokers.on(ListOffsetsRequest, Logs())
    logs = offsets(brokers)
    logs.log_starts([TP])
    brokers.brokers[2].stop()
    brokers.topics = {"orders": [1]}
    assert logs.log_starts([TP]) == {TP: 7}
    assert asked_of(brokers, 1) == [("orders", 0)]


@pytest.mark.parametrize(
    ("code", "seconds"),
    [
        (KafkaError.NOT_LEADER_FOR_PARTITION, 30),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, 10),
        (KafkaError.INVALID_REQUEST, 0),
    ],
)
def test_an_error_is_tried_again_as_long_as_it_may_pass(
    code: int, seconds: float, brokers: FakeCluster, clock: list[float]
) -> None:
    brokers.topics = {"orders": [1]}
    brokers.on(ListOffsetsRequest, Logs(*[code] * 1000))
    with pytest.raises(ClusterError, match="asking for offsets of orders-0"):
        offsets(brokers).log_starts([TP])
    assert seconds <= sum(clock) < seconds + 1


def test_partitions_without_leaders_are_a_cluster_that_does_not_answer(
    brokers: FakeCluster, clock: list[float]
) -> None:
    brokers.topics = {"orders": [-1]}
    brokers.on(ListOffsetsRequest, Logs())
    with pytest.raises(UnreachableError, match="did not answer asking for offsets of orders-0"):
        offsets(brokers).log_starts([TP])
    assert 30 <= sum(clock) < 31


# Leader epochs.


class Epochs:
    """Answers OffsetForLeaderEpoch: for each partition its (epoch, end offset), or an error."""

    def __init__(self, ends: dict[int, tuple[int, int] | int]) -> None:
        self.ends = ends

    def __call__(self, request: Any) -> Any:
        entry = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
        (topic,) = request.topics
        partitions = []
        for each in topic.partitions:
            end = self.ends[each.partition]
            error = end if isinstance(end, int) else 0
            epoch, offset = (-1, -1) if isinstance(end, int) else end
            answer = entry.EpochEndOffset(
                error_code=error, partition=each.partition, leader_epoch=epoch, end_offset=offset
            )
            partitions.append(answer)
        topics = [entry(topic=topic.topic, partitions=partitions)]
        return OffsetForLeaderEpochResponse(throttle_time_ms=0, topics=topics)


def at_ten(count: int) -> dict[TopicPartition, EpochPosition]:
    """Return the position behind offset 9, of epoch 4, in so many partitions."""
    return {TopicPartition("orders", p): EpochPosition(10, 4) for p in range(count)}


def numbers(partitions: frozenset[TopicPartition]) -> list[int]:
    return sorted(tp.partition for tp in partitions)


def test_a_log_was_truncated_where_its_epoch_ends_before_the_position(brokers: FakeCluster) -> None:
    brokers.topics = {"orders": [1, 1, 2, 2]}
    same, later, before, unknown = (4, 10), (4, 40), (4, 9), (-1, -1)
    brokers.on(OffsetForLeaderEpochRequest, Epochs({0: same, 1: later, 2: before, 3: unknown}))
    found = validate_epochs(brokers.router(), at_ten(4), 60)
    assert numbers(found.truncated) == [2, 3]
    assert found.unanswered == frozenset()
    (request,) = brokers.asked(OffsetForLeaderEpochRequest, node=1)
    assert request.replica_id == -1
    assert [(p.partition, p.leader_epoch) for p in request.topics[0].partitions] == [(0, 4), (1, 4)]


def test_an_earlier_epoch_that_ends_before_the_position_is_a_truncation(brokers: FakeCluster) -> None:
    """The log has none of the epoch's records any more, and the broker returns where the one before ended."""
    brokers.topics = {"orders": [1]}
    brokers.on(OffsetForLeaderEpochRequest, Epochs({0: (3, 8)}))
    assert numbers(validate_epochs(brokers.router(), at_ten(1), 60).truncated) == [0]


def test_a_leader_that_refuses_to_the_end_is_one_that_gave_no_answer(brokers: FakeCluster, clock: list[float]) -> None:
    brokers.topics = {"orders": [1, 1, 1]}
    moving, denied = KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.TOPIC_AUTHORIZATION_FAILED
    brokers.on(OffsetForLeaderEpochRequest, Epochs({0: (4, 10), 1: moving, 2: denied}))
    found = validate_epochs(brokers.router(), at_ten(3), 50)
    assert numbers(found.unanswered) == [1, 2]
    assert numbers(found.truncated) == []
    assert 49 <= sum(clock) <= 50, "an election may take longer than the router waits for it"


def test_a_broker_that_knows_no_leader_epochs_confirms_them(brokers: FakeCluster, clock: list[float]) -> None:
    brokers.topics = {"orders": [1, 2]}
    brokers.on(OffsetForLeaderEpochRequest, Epochs({1: (4, 9)}), node=2)
    brokers.on(OffsetForLeaderEpochRequest, Epochs({}), node=1, newest=1)
    found = validate_epochs(brokers.router(), at_ten(2), 60)
    assert found == Validation(frozenset({TopicPartition("orders", 1)}), frozenset())
    assert clock == []


def test_a_cluster_that_is_not_there_gives_no_answer_in_time(brokers: FakeCluster, clock: list[float]) -> None:
    router = brokers.router()
    for broker in brokers.brokers.values():
        broker.stop()
    assert numbers(validate_epochs(router, at_ten(2), 5).unanswered) == [0, 1]
    assert 4 <= sum(clock) <= 5


def test_nothing_to_validate_asks_nobody(brokers: FakeCluster) -> None:
    assert validate_epochs(brokers.router(), {}, 1.0) == Validation(frozenset(), frozenset())
    assert brokers.brokers[1].accepted == 0
