"""The brokers that other tests of this folder ask."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError
from kafka.protocol.admin import ListGroupsRequest, ListGroupsResponse
from kafka.protocol.metadata import MetadataRequest

from kbackup.kafka.control.errors import NOT_A_BROKER, RefusedRequestError, RequestError
from kbackup.types import TopicPartition
from tests.support.fake_broker import HangUp, fake_cluster


def test_brokers_answer_by_functions_and_keep_what_they_were_asked() -> None:
    with fake_cluster(nodes=2) as cluster:
        cluster.topics = {"orders": [1, 2]}
        cluster.features = {"metadata.version": 25}
        cluster.on(ListGroupsRequest, lambda request: ListGroupsResponse(error_code=0, groups=[]), node=2, newest=3)
        router = cluster.router()
        (topic,) = router.metadata(None).topics
        assert [partition.leader_id for partition in topic.partitions] == [1, 2]
        assert router.any_broker().features == {"metadata.version": 25}
        assert router.ask(ListGroupsRequest(), broker=2).groups == []
        assert [request.version for request in cluster.asked(ListGroupsRequest, node=2)] == [3]
        assert cluster.asked(ListGroupsRequest, node=1) == []
        assert len(cluster.asked(MetadataRequest)) == 1


def test_a_request_without_a_function_is_not_known() -> None:
    with fake_cluster() as cluster, pytest.raises(RefusedRequestError) as raised:
        cluster.router().ask(ListGroupsRequest())
    assert raised.value.code == KafkaError.UNSUPPORTED_VERSION


def test_a_broker_hangs_up_stops_and_comes_back() -> None:
    def hang_up(request: object) -> None:
        raise HangUp

    with fake_cluster() as cluster:
        cluster.on(ListGroupsRequest, hang_up)
        router = cluster.router()
        with pytest.raises(RequestError) as raised:
            router.ask(ListGroupsRequest(), change=True)
        assert raised.value.kafka_error().code() in (NOT_A_BROKER, KafkaError._TRANSPORT)
        broker = cluster.brokers[1]
        broker.stop()
        with pytest.raises(RequestError):
            router.ask(ListGroupsRequest(), seconds=0.1)
        broker.start()
        assert router.metadata([]).cluster_id == "fake"
        assert broker.accepted == 2


def test_an_error_of_a_function_fails_the_test() -> None:
    def fail(request: object) -> None:
        raise ValueError(TopicPartition("orders", 0))

    def use() -> None:
        with fake_cluster() as cluster:
            cluster.on(ListGroupsRequest, fail)
            cluster.router().ask(ListGroupsRequest(), change=True)

    with pytest.raises(ValueError, match="orders"):
        use()
