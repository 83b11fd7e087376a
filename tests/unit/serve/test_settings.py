"""Configs, ACLs, quotas and users as the restore point has them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from kbackup.archive.models import Metadata
from kbackup.kafka.control.messages import admin
from kbackup.metadata.entities import Acl, BrokerConfig, ClientMetrics, ClientQuota, GroupConfig, ScramUser
from kbackup.serve.protocol import ErrorCode
from tests.support.serve_client import ServeClient, served
from tests.unit.serve.made import TOPIC, archive_of, made_records


def _acl(name: str, pattern: str = "literal", **changed: str) -> Acl:
    usual = {"resource": "topic", "principal": "User:a", "host": "*", "operation": "read", "permission": "allow"}
    return Acl(name=name, pattern=pattern, **{**usual, **changed})


METADATA = Metadata(
    captured_at="2026-01-01T00:00:00.000Z",
    cluster_id="source",
    brokers=3,
    topics=(),
    acls=(_acl("orders"), _acl("ord", "prefixed"), _acl("*"), _acl("other", principal="User:b"),
          _acl("g", resource="group")),
    scram_users=(
        ScramUser(user="alice", mechanism="SCRAM-SHA-512", iterations=8192, salt="c2VjcmV0"),
        ScramUser(user="alice", mechanism="SCRAM-SHA-256", iterations=4096),
    ),
    broker_configs=(
        BrokerConfig(broker=None, name="log.retention.ms", value="5"),
        BrokerConfig(broker=None, name="ssl.key.password", value=None),
        BrokerConfig(broker=7, name="background.threads", value="3"),
    ),
    group_configs=(GroupConfig(group="g", name="consumer.session.timeout.ms", value="9"),),
    client_quotas=(
        ClientQuota(entity={"user": "alice"}, quotas={"consumer_byte_rate": 10.0}),
        ClientQuota(entity={"user": None, "client-id": "c"}, quotas={"producer_byte_rate": 2.5}),
    ),
    client_metrics=(ClientMetrics(name="all", configs={"interval.ms": "1000"}),),
)  # fmt: skip


@pytest.fixture(scope="module")
def client() -> Iterator[ServeClient]:
    with served(archive_of(made_records(range(3)), [])) as serving:
        archive = serving.current.archive
        serving.current.archive = replace(archive, metadata=METADATA, configs={TOPIC: {"retention.ms": "-1"}})
        with ServeClient(serving) as made:
            yield made


def configs(client: ServeClient, kind: int, name: str, keys: list[str] | None = None) -> tuple[int, dict[str, Any]]:
    resource = admin.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=keys
    )
    request = admin.DescribeConfigsRequest(resources=[resource])
    (found,) = client.ask(request, admin.DescribeConfigsResponse, 4).results
    return found.error_code, {each.name: each.value for each in found.configs}


def test_configs_are_those_that_were_set(client: ServeClient) -> None:
    assert configs(client, 2, TOPIC) == (0, {"retention.ms": "-1"})
    assert configs(client, 2, TOPIC, ["cleanup.policy"]) == (0, {})
    assert configs(client, 2, "nobody") == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, {})
    assert configs(client, 4, "1") == (0, {"log.retention.ms": "5", "ssl.key.password": None})
    assert configs(client, 32, "g") == (0, {"consumer.session.timeout.ms": "9"})
    assert configs(client, 16, "all") == (0, {"interval.ms": "1000"})
    assert configs(client, 99, "x")[0] == ErrorCode.INVALID_REQUEST


def test_config_resources_are_listed(client: ServeClient) -> None:
    response = client.ask(admin.ListConfigResourcesRequest(), admin.ListConfigResourcesResponse, 0)
    assert [each.resource_name for each in response.config_resources] == ["all"]
    response = client.ask(admin.ListConfigResourcesRequest(), admin.ListConfigResourcesResponse, 1)
    assert {(each.resource_type, each.resource_name) for each in response.config_resources} == {
        (2, TOPIC), (4, "1"), (16, "all"), (32, "g")
    }  # fmt: skip


def acls(client: ServeClient, name: str | None, pattern: int, kind: int = 2, principal: str | None = None) -> set[str]:
    request = admin.DescribeAclsRequest(
        resource_type_filter=kind,
        resource_name_filter=name,
        pattern_type_filter=pattern,
        principal_filter=principal,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    response = client.ask(request, admin.DescribeAclsResponse, 3)
    assert response.error_code == 0
    return {each.resource_name for each in response.resources}


ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4


def test_acls_pass_filters_as_they_do_in_a_broker(client: ServeClient) -> None:
    assert acls(client, None, ANY, ANY) == {"orders", "ord", "*", "other", "g"}
    assert acls(client, None, ANY) == {"orders", "ord", "*", "other"}
    assert acls(client, "orders", MATCH) == {"orders", "ord", "*"}
    assert acls(client, "orders", LITERAL) == {"orders"}
    assert acls(client, "ord", PREFIXED) == {"ord"}
    assert acls(client, None, ANY, principal="User:b") == {"other"}


def test_an_archive_without_acls_says_so() -> None:
    with served(archive_of([])) as serving, ServeClient(serving) as client:
        request = admin.DescribeAclsRequest(
            resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1, principal_filter=None,
            host_filter=None, operation=1, permission_type=1
        )  # fmt: skip
        response = client.ask(request, admin.DescribeAclsResponse, 3)
        assert response.error_code == ErrorCode.SECURITY_DISABLED
        assert response.error_message == "the archive has no ACLs of its cluster"


def quotas(client: ServeClient, *components: tuple[str, int, str | None], strict: bool = False) -> list[dict[str, Any]]:
    kind = admin.DescribeClientQuotasRequest.ComponentData
    parts = [kind(entity_type=name, match_type=how, match=match) for name, how, match in components]
    request = admin.DescribeClientQuotasRequest(components=parts, strict=strict)
    response = client.ask(request, admin.DescribeClientQuotasResponse, 1)
    return [{each.entity_type: each.entity_name for each in entry.entity} for entry in response.entries]


def test_quotas_pass_filters_as_they_do_in_a_broker(client: ServeClient) -> None:
    alice = {"user": "alice"}
    default = {"user": None, "client-id": "c"}
    assert quotas(client) == [alice, default]
    assert quotas(client, ("user", 0, "alice")) == [alice]
    assert quotas(client, ("user", 1, None)) == [default]
    assert quotas(client, ("user", 2, None)) == [alice, default]
    assert quotas(client, ("user", 2, None), strict=True) == [alice]


def test_users_are_told_without_their_secrets(client: ServeClient) -> None:
    request = admin.DescribeUserScramCredentialsRequest(users=None)
    client.send(request, 0)
    response = client.receive(admin.DescribeUserScramCredentialsResponse, 0)
    (alice,) = response.results
    assert {(each.mechanism, each.iterations) for each in alice.credential_infos} == {(2, 8192), (1, 4096)}
    asked = admin.DescribeUserScramCredentialsRequest.UserName(name="bob")
    request = admin.DescribeUserScramCredentialsRequest(users=[asked])
    (bob,) = client.ask(request, admin.DescribeUserScramCredentialsResponse, 0).results
    assert (bob.user, bob.error_code) == ("bob", ErrorCode.RESOURCE_NOT_FOUND)


def test_sizes_of_logs_are_those_of_their_records(client: ServeClient) -> None:
    response = client.ask(admin.DescribeLogDirsRequest(topics=None), admin.DescribeLogDirsResponse, 4)
    (topic,) = response.results[0].topics
    sizes = {each.partition_index: each.partition_size for each in topic.partitions}
    assert sizes[0] > 100
    assert sizes[1] == 0


def test_nobody_produces_and_nothing_moves(client: ServeClient) -> None:
    kind = admin.DescribeProducersRequest.TopicRequest
    request = admin.DescribeProducersRequest(topics=[kind(name=TOPIC, partition_indexes=[0, 9])])
    (topic,) = client.ask(request, admin.DescribeProducersResponse, 0).topics
    assert [(each.error_code, each.active_producers) for each in topic.partitions] == [
        (0, []), (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])
    ]  # fmt: skip
    moves = client.ask(
        admin.ListPartitionReassignmentsRequest(topics=None), admin.ListPartitionReassignmentsResponse, 0
    )
    assert moves.topics == []
    listed = client.ask(admin.ListTransactionsRequest(), admin.ListTransactionsResponse, 1)
    assert listed.transaction_states == []
