"""Entities from answers as they come from the wire, in each version that carries more or less."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.admin import (
    DescribeAclsResponse,
    DescribeClientQuotasResponse,
    DescribeClusterResponse,
    DescribeConfigsResponse,
    DescribeQuorumResponse,
)

from kbackup.kafka.admin_protocol import metadata_requests
from kbackup.kafka.admin_protocol.metadata_requests import DescribeDelegationTokenResponse
from kbackup.metadata.entities import BrokerConfig, ClientMetrics, ClientQuota, DelegationToken, Listener, Registration
from tests.support.metadata_entities import acl_of


def through(response: Any, version: int) -> Any:
    """The answer after its way over the wire."""
    return type(response).decode(bytes(response.encode(version=version)), version=version)


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_with_odd_names_and_defaults(version: int) -> None:
    kind = DescribeClientQuotasResponse
    part, value = kind.EntryData.EntityData, kind.EntryData.ValueData

    def entry(quotas: dict[str, float], **entity: str | None) -> Any:
        return kind.EntryData(
            entity=[part(entity_type=t.replace("_", "-"), entity_name=n) for t, n in entity.items()],
            values=[value(key=k, value=v) for k, v in quotas.items()],
        )

    entries = [
        entry({"producer_byte_rate": 1024.0, "consumer_byte_rate": 2.5}, user="b o%b", client_id="app 1"),
        entry({"request_percentage": 50.0}, user="größe", client_id=None),
        entry({"connection_creation_rate": 5.0}, ip=None),
        entry({"producer_byte_rate": 1.0}, user=None),
    ]
    answer = through(kind(error_code=0, error_message=None, entries=entries), version)
    assert metadata_requests.quotas_of(answer) == [
        ClientQuota(entity={"client-id": None, "user": "größe"}, quotas={"request_percentage": 50.0}),
        ClientQuota(
            entity={"client-id": "app 1", "user": "b o%b"},
            quotas={"consumer_byte_rate": 2.5, "producer_byte_rate": 1024.0},
        ),
        ClientQuota(entity={"ip": None}, quotas={"connection_creation_rate": 5.0}),
        ClientQuota(entity={"user": None}, quotas={"producer_byte_rate": 1.0}),
    ]


@pytest.mark.parametrize(("version", "requester"), [(1, "User:alice"), (2, "User:alice"), (3, "User:root")])
def test_tokens(version: int, requester: str) -> None:
    kind = DescribeDelegationTokenResponse
    token = kind.DescribedDelegationToken(
        principal_type="User",
        principal_name="alice",
        token_requester_principal_type="User",
        token_requester_principal_name="root",
        issue_timestamp=1,
        expiry_timestamp=2,
        max_timestamp=3,
        token_id="t",
        hmac=b"\x00\xff",
        renewers=[
            kind.DescribedDelegationToken.DescribedDelegationTokenRenewer(principal_type="User", principal_name="app 1")
        ],
    )
    assert metadata_requests.tokens_of(through(kind(error_code=0, tokens=[token]), version)) == [
        DelegationToken(
            id="t",
            owner="User:alice",
            requester=requester,
            renewers=("User:app 1",),
            issued_at=1,
            expires_at=2,
            max_at=3,
            hmac="AP8=",
        )
    ]


def test_acls_of_every_kind_and_one_to_come() -> None:
    kind = DescribeAclsResponse

    def resource(number: int, name: str, *operations: int) -> Any:
        acls = [
            kind.DescribeAclsResource.AclDescription(principal="User:a", host="*", operation=each, permission_type=3)
            for each in operations
        ]
        return kind.DescribeAclsResource(resource_type=number, resource_name=name, pattern_type=3, acls=acls)

    listed = [resource(7, "b o%b", 14, 13), resource(6, "*", 8), resource(9, "strange", 3)]
    rules, strange = metadata_requests.acls_of(through(kind(error_code=0, error_message=None, resources=listed), 3))
    assert rules == [
        acl_of("delegation_token", "*", "literal", "User:a", "*", "describe", "allow"),
        acl_of("user", "b o%b", "literal", "User:a", "*", "create_tokens", "allow"),
        acl_of("user", "b o%b", "literal", "User:a", "*", "describe_tokens", "allow"),
    ]
    assert strange == ["for User:a on strange, by numbers (9, 3, 3, 3)"]


def test_configs_of_the_sources_that_count() -> None:
    result = DescribeConfigsResponse.DescribeConfigsResult
    config = result.DescribeConfigsResourceResult

    def one(name: str, value: str | None, source: int, sensitive: bool = False) -> Any:
        return config(name=name, value=value, config_source=source, is_sensitive=sensitive)

    found = [one("b", "2", 3), one("a", None, 3, sensitive=True), one("c", "3", 5)]
    assert metadata_requests.defaults_of(found) == [
        BrokerConfig(broker=None, name="a", value=None),
        BrokerConfig(broker=None, name="b", value="2"),
    ]
    described = [
        result(resource_name="m 1", configs=[one("interval.ms", "1000", 7), one("match", "", 5)]),
        result(resource_name="a", configs=[one("metrics", "x", 7)]),
    ]
    assert metadata_requests.metrics_of(described) == [
        ClientMetrics(name="a", configs={"metrics": "x"}),
        ClientMetrics(name="m 1", configs={"interval.ms": "1000"}),
    ]


@pytest.mark.parametrize(("version", "alive"), [(0, True), (2, False)])
def test_brokers(version: int, alive: bool) -> None:
    kind = DescribeClusterResponse
    broker = kind.DescribeClusterBroker(broker_id=7, host="h", port=1, rack="r", is_fenced=True)
    answer = through(kind(cluster_id="c", brokers=[broker]), version)
    assert metadata_requests.brokers_of(answer, "SSL") == [
        Registration(
            id=7,
            role="broker",
            listeners=(Listener(name="", host="h", port=1, security_protocol="SSL"),),
            rack="r",
            alive=alive,
        )
    ]


@pytest.mark.parametrize("version", [0, 2])
def test_controllers(version: int) -> None:
    kind = DescribeQuorumResponse
    partition = kind.TopicData.PartitionData
    voter = partition.ReplicaState(replica_id=3000, log_end_offset=1)
    topics = [
        kind.TopicData(topic_name="__cluster_metadata", partitions=[partition(current_voters=[voter], observers=[])])
    ]
    node = kind.Node(node_id=3000, listeners=[kind.Node.Listener(name="CONTROLLER", host="h", port=9093)])
    (found,) = metadata_requests.controllers_of(through(kind(topics=topics, nodes=[node]), version))
    listeners = (Listener(name="CONTROLLER", host="h", port=9093, security_protocol=""),)
    assert found == Registration(id=3000, role="controller", listeners=listeners if version == 2 else ())
