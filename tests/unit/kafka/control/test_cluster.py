"""What jobs ask of a cluster as a whole."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import KafkaError
from kafka.protocol.admin import DescribeConfigsRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.sasl import SaslHandshakeRequest, SaslHandshakeResponse

from kbackup.errors import KbackupError, UnreachableError
from kbackup.kafka.control.cluster import BrokerAdmin, Cluster, ClusterBrokers
from tests.support.fake_broker import FakeCluster
from tests.unit.kafka.control.test_configs import Configs

NOWHERE = "127.0.0.1:1"


def connected(brokers: FakeCluster) -> Cluster:
    return Cluster({"bootstrap.servers": brokers.bootstrap, "log_level": "0"}, "target")


def admin(brokers: FakeCluster) -> BrokerAdmin:
    return BrokerAdmin({"bootstrap.servers": brokers.bootstrap}, "source")


def test_a_connection_returns_the_cluster_and_how_many_brokers_it_has(brokers: FakeCluster) -> None:
    assert connected(brokers).connect() == ("fake", 2)


def test_a_cluster_that_is_not_there_has_fifteen_seconds(clock: list[float]) -> None:
    with pytest.raises(UnreachableError, match=f"target cluster at {NOWHERE} did not answer: .*Connection refused"):
        Cluster({"bootstrap.servers": NOWHERE, "log_level": "0"}, "target").connect()
    assert 14 <= sum(clock) <= 15


def test_a_cluster_that_starts_is_waited_for(
    brokers: FakeCluster, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = connected(brokers)
    for broker in brokers.brokers.values():
        broker.stop()

    def start(pause: float) -> None:
        clock.append(pause)
        if len(clock) == 3:
            brokers.brokers[2].start()

    monkeypatch.setattr("kbackup.kafka.control.router.time.sleep", start)
    assert cluster.connect() == ("fake", 2)
    assert len(clock) == 3


def test_a_refused_login_shows_at_once(brokers: FakeCluster, clock: list[float]) -> None:
    def refuse(request: object) -> Any:
        return SaslHandshakeResponse(error_code=KafkaError.UNSUPPORTED_SASL_MECHANISM, mechanisms=["OTHER"])

    brokers.on(SaslHandshakeRequest, refuse)
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "u"}
    secret = {"sasl.password": "not-to-be-seen"}
    cluster = Cluster({"bootstrap.servers": brokers.bootstrap, "log_level": "0", **login, **secret}, "target")
    with pytest.raises(UnreachableError, match="denied access") as raised:
        cluster.connect()
    assert "not-to-be-seen" not in str(raised.value)
    assert clock == []


def test_a_round_trip_is_what_a_small_request_takes(brokers: FakeCluster) -> None:
    answer = brokers.metadata

    def slowly(request: Any) -> Any:
        time.sleep(0.05)
        return answer(request)

    brokers.on(MetadataRequest, slowly)
    assert 0.05 <= connected(brokers).round_trip("orders") < 5
    assert ["orders"] in [[topic.name for topic in request.topics or ()] for request in brokers.asked(MetadataRequest)]


def test_no_answer_is_no_round_trip(brokers: FakeCluster, clock: list[float]) -> None:
    cluster = connected(brokers)
    for broker in brokers.brokers.values():
        broker.stop()
    assert cluster.round_trip("orders") == 0.0


def test_the_error_of_a_topic_is_raised_or_returned(brokers: FakeCluster) -> None:
    """As the caller of many topics needs it."""
    denied = [KafkaError.TOPIC_AUTHORIZATION_FAILED] * 4
    brokers.on(DescribeConfigsRequest, Configs(b=denied))
    cluster = connected(brokers)
    _, unread = cluster.readable_topic_configs(["a", "b"])
    assert unread.keys() == {"b"}
    assert cluster.readable_config(["a", "b"], "retention.ms") == {}
    for ask in (cluster.topic_configs, cluster.all_topic_configs):
        with pytest.raises(KbackupError, match="configs of topic b"):
            ask(["a", "b"])
    denied[:] = [KafkaError.TOPIC_AUTHORIZATION_FAILED]
    with pytest.raises(KbackupError, match="configs of topic b"):
        cluster.one_config(["a", "b"], "retention.ms")


# Brokers.


def test_brokers_are_described_by_one_request(brokers: FakeCluster) -> None:
    brokers.topics = {"orders": [1, -1], "clicks": [2]}
    one, two = (f"127.0.0.1:{broker.port}" for broker in brokers.brokers.values())
    assert admin(brokers).brokers() == ClusterBrokers(
        cluster_id="fake", addresses={1: one, 2: two}, assigned=frozenset({1, 2}), offline=("orders-1",)
    )
    assert len(brokers.asked(MetadataRequest)) == 1
