"""Configs set at run time: which of a broker's answers count, who is asked, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError
from kafka.protocol.admin import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

from kbackup.kafka.control.dynamic_configs import DynamicConfigs
from kbackup.kafka.control.unavailable import Unavailable
from kbackup.metadata.entities import BrokerConfig, ClientMetrics, GroupConfig
from tests.support.fake_broker import FakeCluster, fake_cluster

BROKER, CLIENT_METRICS, GROUP = 4, 16, 32
ON_BROKER, ON_ALL_BROKERS, IN_FILE, BY_DEFAULT, ON_CLIENT_METRICS, ON_GROUP = 2, 3, 4, 5, 7, 8
RESULT = DescribeConfigsResponse.DescribeConfigsResult

Described = Callable[[str], list[Any] | int]
"""Takes the name of a resource, and returns its configs, or the code of an error."""


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with fake_cluster(nodes=2) as cluster:
        yield cluster


def configs(cluster: FakeCluster) -> DynamicConfigs:
    return DynamicConfigs(cluster.router(role="source"))


def config(name: str, value: str | None, source: int, *, sensitive: bool = False) -> Any:
    return RESULT.DescribeConfigsResourceResult(
        name=name, value=value, config_source=source, is_sensitive=sensitive, read_only=False, synonyms=[]
    )


def describe(cluster: FakeCluster, described: Described, node: int | None = None) -> None:
    def answer(request: Any) -> Any:
        results = []
        for resource in request.resources:
            found = described(resource.resource_name)
            results.append(
                RESULT(
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                    error_code=found if isinstance(found, int) else 0,
                    error_message=None,
                    configs=[] if isinstance(found, int) else found,
                )
            )
        return DescribeConfigsResponse(results=results)

    cluster.on(DescribeConfigsRequest, answer, node=node)


def test_configs_of_what_nobody_asked_about_are_left_out(cluster: FakeCluster) -> None:
    def answer(request: Any) -> Any:
        results = []
        for name in ("other", *(resource.resource_name for resource in request.resources)):
            own = [config("share.heartbeat.interval.ms", "1", ON_GROUP)]
            results.append(
                RESULT(resource_type=GROUP, resource_name=name, error_code=0, error_message=None, configs=own)
            )
        return DescribeConfigsResponse(results=results)

    cluster.on(DescribeConfigsRequest, answer)
    expected = [GroupConfig(group="billing", name="share.heartbeat.interval.ms", value="1")]
    assert configs(cluster).of_groups(["billing"]) == expected


# Brokers.


def test_each_broker_tells_its_own_configs_and_any_those_of_all(cluster: FakeCluster) -> None:
    inherited = [
        config("log.retention.ms", "1", ON_ALL_BROKERS),
        config("num.io.threads", "8", BY_DEFAULT),
        config("log.dirs", "/d", IN_FILE),
    ]

    def of_broker(number: int, *own: Any) -> Described:
        def described(name: str) -> list[Any] | int:
            if name == "":
                return [*inherited, config("overridden.by.every.broker", "x", ON_ALL_BROKERS)]
            # a broker refuses to speak for another one
            return [*inherited, *own] if name == str(number) else int(KafkaError.INVALID_REQUEST)

        return described

    describe(cluster, of_broker(1, config("secret", "should not be here", ON_BROKER, sensitive=True)), node=1)
    describe(cluster, of_broker(2, config("min.insync.replicas", "2", ON_BROKER)), node=2)
    assert configs(cluster).of_brokers() == [
        BrokerConfig(broker=None, name="log.retention.ms", value="1"),
        BrokerConfig(broker=None, name="overridden.by.every.broker", value="x"),
        BrokerConfig(broker=1, name="secret", value=None),
        BrokerConfig(broker=2, name="min.insync.replicas", value="2"),
    ]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, "denied"),
        (KafkaError.UNSUPPORTED_VERSION, "not supported"),
        (KafkaError.INVALID_REQUEST, "not supported"),
        (KafkaError.UNKNOWN, "failed"),
    ],
)
def test_one_broker_that_does_not_tell_is_enough_not_to_know(code: int, reason: str, cluster: FakeCluster) -> None:
    describe(cluster, lambda name: int(code) if name == "2" else [])
    answer = configs(cluster).of_brokers()
    assert isinstance(answer, Unavailable)
    assert answer.reason == reason
    assert "configs of broker 2" in answer.why
    assert ("it takes DescribeConfigs on the cluster" in answer.why) == (reason == "denied")


def test_a_default_of_brokers_that_is_denied_names_the_right(cluster: FakeCluster) -> None:
    describe(cluster, lambda name: int(KafkaError.CLUSTER_AUTHORIZATION_FAILED))
    answer = configs(cluster).of_brokers()
    assert isinstance(answer, Unavailable)
    assert "it takes DescribeConfigs on the cluster" in answer.why


# Groups.


def test_configs_of_many_groups_take_several_requests(cluster: FakeCluster) -> None:
    groups = [f"g{n:04}" for n in range(2500)]

    def described(name: str) -> list[Any]:
        source = BY_DEFAULT if name == "g0007" else ON_GROUP
        return [config("a", name, source)]

    describe(cluster, described)
    found = configs(cluster).of_groups(groups)
    assert found == [GroupConfig(group=name, name="a", value=name) for name in groups if name != "g0007"]
    assert [len(request.resources) for request in cluster.asked(DescribeConfigsRequest)] == [1000, 1000, 500]


def test_one_group_that_is_denied_is_enough_not_to_know(cluster: FakeCluster) -> None:
    denied = int(KafkaError.GROUP_AUTHORIZATION_FAILED)
    describe(cluster, lambda name: denied if name == "b" else [])
    answer = configs(cluster).of_groups(["a", "b"])
    assert isinstance(answer, Unavailable)
    assert answer.reason == "denied"
    assert "group b" in answer.why
    assert "it takes DescribeConfigs on the group" in answer.why


def test_a_cluster_without_group_configs_is_not_blamed_on_a_group(cluster: FakeCluster) -> None:
    describe(cluster, lambda name: int(KafkaError.INVALID_REQUEST))
    why = f"source cluster at {cluster.bootstrap} has no group configs: its brokers are too old, or use ZooKeeper"
    assert configs(cluster).of_groups(["g"]) == Unavailable("not supported", why)


def test_no_groups_take_no_request(cluster: FakeCluster) -> None:
    assert configs(cluster).of_groups([]) == []


# Client metrics.


def test_subscriptions_to_client_metrics_have_the_configs_that_were_set(cluster: FakeCluster) -> None:
    entry = ListConfigResourcesResponse.ConfigResource
    resources = [entry(resource_name=name, resource_type=CLIENT_METRICS) for name in ("m 1", "a")]
    other = entry(resource_name="orders", resource_type=2)
    listed = ListConfigResourcesResponse(error_code=0, config_resources=[*resources, other])
    cluster.on(ListConfigResourcesRequest, lambda request: listed)
    of = {
        "m 1": [config("interval.ms", "1000", ON_CLIENT_METRICS), config("match", "", BY_DEFAULT)],
        "a": [config("metrics", "x", ON_CLIENT_METRICS)],
    }
    describe(cluster, lambda name: of[name])
    assert configs(cluster).of_client_metrics() == [
        ClientMetrics(name="a", configs={"metrics": "x"}),
        ClientMetrics(name="m 1", configs={"interval.ms": "1000"}),
    ]


def test_client_metrics_that_are_denied_name_the_right(cluster: FakeCluster) -> None:
    denied = ListConfigResourcesResponse(error_code=KafkaError.CLUSTER_AUTHORIZATION_FAILED, config_resources=[])
    cluster.on(ListConfigResourcesRequest, lambda request: denied)
    answer = configs(cluster).of_client_metrics()
    assert isinstance(answer, Unavailable)
    assert "it takes DescribeConfigs on the cluster" in answer.why


def test_brokers_without_client_metrics_are_too_old(cluster: FakeCluster) -> None:
    answer = configs(cluster).of_client_metrics()
    assert isinstance(answer, Unavailable)
    assert (answer.reason, "too old" in answer.why) == ("not supported", True)


# Changes.


def changed(code: int = 0) -> Callable[[Any], Any]:
    entry = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse

    def answer(request: Any) -> Any:
        responses = [
            entry(
                error_code=code, error_message=None, resource_type=each.resource_type, resource_name=each.resource_name
            )
            for each in request.resources
        ]
        return IncrementalAlterConfigsResponse(responses=responses)

    return answer


def only_change(cluster: FakeCluster, node: int | None = None) -> tuple[int, str, list[tuple[str, int, str | None]]]:
    """Return the type and the name of the resource that was changed, and its changes."""
    (request,) = cluster.asked(IncrementalAlterConfigsRequest, node)
    assert request.validate_only is False
    (resource,) = request.resources
    changes = [(each.name, each.config_operation, each.value) for each in resource.configs]
    return resource.resource_type, resource.resource_name, changes


def test_a_config_of_a_broker_is_set_by_that_broker(cluster: FakeCluster) -> None:
    cluster.on(IncrementalAlterConfigsRequest, changed())
    assert configs(cluster).set_on_broker(2, "num.io.threads", "4") == ""
    assert only_change(cluster, node=2) == (BROKER, "2", [("num.io.threads", 0, "4")])


def test_a_config_of_all_brokers_is_removed(cluster: FakeCluster) -> None:
    cluster.on(IncrementalAlterConfigsRequest, changed())
    assert configs(cluster).set_on_all_brokers("min.insync.replicas", None) == ""
    assert only_change(cluster) == (BROKER, "", [("min.insync.replicas", 1, None)])


def test_a_config_of_a_group_is_set(cluster: FakeCluster) -> None:
    cluster.on(IncrementalAlterConfigsRequest, changed())
    assert configs(cluster).set_on_group("billing", "x", "2") == ""
    assert only_change(cluster) == (GROUP, "billing", [("x", 0, "2")])


def test_a_subscription_to_client_metrics_is_set_as_a_whole(cluster: FakeCluster) -> None:
    cluster.on(IncrementalAlterConfigsRequest, changed())
    assert configs(cluster).set_client_metrics("m 1", {"interval.ms": "1000", "match": None}) == ""
    assert only_change(cluster) == (CLIENT_METRICS, "m 1", [("interval.ms", 0, "1000"), ("match", 1, None)])


def test_a_refused_config_says_which_and_the_right_that_it_takes(cluster: FakeCluster) -> None:
    cluster.on(IncrementalAlterConfigsRequest, changed(KafkaError.CLUSTER_AUTHORIZATION_FAILED))
    why = configs(cluster).set_on_broker(1, "num.io.threads", "4")
    assert "setting num.io.threads of broker 1" in why
    assert "it takes AlterConfigs on the cluster" in why


def test_old_brokers_refuse_a_config(cluster: FakeCluster) -> None:
    assert "too old" in configs(cluster).set_on_all_brokers("a", "1")
