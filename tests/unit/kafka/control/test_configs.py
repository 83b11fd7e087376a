"""Configs of topics and of brokers, as brokers describe them."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError
from kafka.protocol.admin import DescribeConfigsRequest, DescribeConfigsResponse

from kbackup.errors import ClusterError, KbackupError, UnreachableError
from kbackup.kafka.control.configs import TopicConfigs, broker_configs, configs_of_some_broker
from tests.support.fake_broker import FakeCluster, HangUp

SET_ON_TOPIC, SET_ON_BROKER, STATIC, DEFAULT = 1, 2, 4, 5
TOPIC, BROKER = 2, 4

RESULT = DescribeConfigsResponse.DescribeConfigsResult


def config(name: str, value: str | None, source: int, *, sensitive: bool = False) -> Any:
    return RESULT.DescribeConfigsResourceResult(
        name=name,
        value=value,
        read_only=False,
        config_source=source,
        is_sensitive=sensitive,
        synonyms=[],
        documentation=None,
    )


class Configs:
    """Answers DescribeConfigs: each resource with `entries`, or with the next of its errors."""

    def __init__(self, *entries: Any, **errors: list[int]) -> None:
        self.entries = entries
        self.errors = errors

    def __call__(self, request: Any) -> Any:
        results = [self._result(resource) for resource in request.resources]
        return DescribeConfigsResponse(throttle_time_ms=0, results=results)

    def _result(self, resource: Any) -> Any:
        errors = self.errors.get(resource.resource_name)
        code = errors.pop(0) if errors else 0
        keys = resource.configuration_keys
        entries = [entry for entry in self.entries if keys is None or entry.name in keys]
        return RESULT(
            error_code=code,
            error_message=None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=[] if code else entries,
        )


MIXED = [
    config("retention.ms", "1000", SET_ON_TOPIC),
    config("cleanup.policy", "compact", SET_ON_TOPIC),
    config("secret", None, SET_ON_TOPIC, sensitive=True),
    config("max.message.bytes", "1048588", DEFAULT),
    config("leader.replication.throttled.replicas", "", STATIC),
]


def topics(brokers: FakeCluster) -> TopicConfigs:
    return TopicConfigs(brokers.router())


def test_own_configs_of_a_topic_are_those_set_on_it(brokers: FakeCluster) -> None:
    brokers.on(DescribeConfigsRequest, Configs(*MIXED))
    configs, unread = topics(brokers).own(["b", "a"])
    own = {"cleanup.policy": "compact", "retention.ms": "1000"}
    assert [*configs.items()] == [("a", own), ("b", own)]
    assert [*configs["a"]] == ["cleanup.policy", "retention.ms"]
    assert unread == {}


def test_every_config_of_a_topic_has_defaults_and_no_secrets(brokers: FakeCluster) -> None:
    brokers.on(DescribeConfigsRequest, Configs(*MIXED))
    (configs,) = topics(brokers).all(["a"]).values()
    assert configs == {
        "retention.ms": "1000",
        "cleanup.policy": "compact",
        "max.message.bytes": "1048588",
        "leader.replication.throttled.replicas": "",
    }


def test_one_config_is_all_that_is_asked_for(brokers: FakeCluster) -> None:
    brokers.on(DescribeConfigsRequest, Configs(*MIXED))
    assert topics(brokers).one(["a"], "max.message.bytes") == ({"a": "1048588"}, {})
    assert topics(brokers).one(["a"], "no.such.config") == ({"a": None}, {})
    for request in brokers.asked(DescribeConfigsRequest):
        (resource,) = request.resources
        assert len(resource.configuration_keys) == 1


def test_a_topic_whose_configs_are_hidden_is_an_error_of_its_own(brokers: FakeCluster) -> None:
    denied = [KafkaError.TOPIC_AUTHORIZATION_FAILED] * 2
    brokers.on(DescribeConfigsRequest, Configs(*MIXED, b=denied))
    configs, unread = topics(brokers).own(["a", "b"])
    assert configs.keys() == {"a"}
    assert "it takes DescribeConfigs on the topic" in unread["b"].message
    with pytest.raises(UnreachableError, match="reading configs of topic b"):
        topics(brokers).all(["a", "b"])


@pytest.mark.parametrize("code", [KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART])
def test_a_new_topic_is_asked_for_again(code: int, brokers: FakeCluster, clock: list[float]) -> None:
    brokers.on(DescribeConfigsRequest, Configs(*MIXED, a=[code, code]))
    own, _ = topics(brokers).own(["a", "b"])
    assert own.keys() == {"a", "b"}
    assert len(clock) == 2
    sizes = [len(request.resources) for request in brokers.asked(DescribeConfigsRequest)]
    assert sizes == [2, 1, 1]


def test_a_cluster_that_does_not_answer_is_an_error(brokers: FakeCluster, clock: list[float]) -> None:
    def hang_up(request: object) -> None:
        raise HangUp

    brokers.on(DescribeConfigsRequest, hang_up)
    with pytest.raises(KbackupError, match="reading configs of topic a"):
        topics(brokers).own(["a"])


def test_another_broker_is_asked_where_one_has_gone(brokers: FakeCluster, clock: list[float]) -> None:
    brokers.on(DescribeConfigsRequest, Configs(*MIXED))
    configs = topics(brokers)
    configs.own(["a"])
    brokers.brokers[1].stop()
    own, _ = configs.own(["a"])
    assert own.keys() == {"a"}
    assert len(brokers.asked(DescribeConfigsRequest, node=2)) == 1


# Configs of brokers.


def test_a_broker_is_asked_for_its_own_configs(brokers: FakeCluster) -> None:
    entries = [
        config("log.dirs", "/data", STATIC),
        config("num.io.threads", "8", DEFAULT),
        config("ssl.key.password", None, STATIC, sensitive=True),
        config("ssl.truststore.password", None, DEFAULT, sensitive=True),
        config("log.cleaner.nothing", None, DEFAULT),
    ]
    brokers.on(DescribeConfigsRequest, Configs(*entries))
    configs = broker_configs(brokers.router(), 2)
    assert configs == {"log.dirs": "/data", "num.io.threads": "8", "ssl.key.password": ""}
    (request,) = brokers.asked(DescribeConfigsRequest, node=2)
    (resource,) = request.resources
    assert (resource.resource_type, resource.resource_name) == (BROKER, "2")


def test_a_broker_that_refuses_is_named(brokers: FakeCluster) -> None:
    denied = [KafkaError.CLUSTER_AUTHORIZATION_FAILED]
    brokers.on(DescribeConfigsRequest, Configs(**{"2": denied}))
    with pytest.raises(UnreachableError, match=r"reading configs of broker 2.*it takes DescribeConfigs on the cluster"):
        broker_configs(brokers.router(), 2)


def test_configs_of_some_broker_are_those_of_the_first_that_answers(brokers: FakeCluster, clock: list[float]) -> None:
    def hang_up(request: object) -> None:
        raise HangUp

    brokers.on(DescribeConfigsRequest, hang_up, node=1)
    brokers.on(DescribeConfigsRequest, Configs(config("a", "1", STATIC), config("b", None, STATIC, sensitive=True)))
    assert configs_of_some_broker(brokers.router()) == {"a": "1"}
    assert 9 <= sum(clock) <= 10, "others can answer for it"


@pytest.mark.parametrize(
    ("code", "kind"),
    [(KafkaError.CLUSTER_AUTHORIZATION_FAILED, UnreachableError), (KafkaError.INVALID_REQUEST, ClusterError)],
)
def test_no_other_broker_is_asked_where_one_refuses(code: int, kind: type[Exception], brokers: FakeCluster) -> None:
    brokers.on(DescribeConfigsRequest, Configs(**{"1": [code]}))
    with pytest.raises(kind, match="reading configs of brokers"):
        configs_of_some_broker(brokers.router())
    assert brokers.asked(DescribeConfigsRequest, node=2) == []


def test_brokers_that_do_not_answer_are_given_up(brokers: FakeCluster, clock: list[float]) -> None:
    def hang_up(request: object) -> None:
        raise HangUp

    brokers.on(DescribeConfigsRequest, hang_up)
    with pytest.raises(KbackupError, match="reading configs of brokers"):
        configs_of_some_broker(brokers.router())
    assert 30 <= sum(clock) <= 40
