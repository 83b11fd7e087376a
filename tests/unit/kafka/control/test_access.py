"""ACLs, SCRAM users, delegation tokens and quotas: what brokers list, refuse, and take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError
from kafka.protocol.admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)

from kbackup.kafka.control import access
from kbackup.kafka.control.access import ACLS_AT_ONCE, SecurityAdmin
from kbackup.kafka.control.messages import DescribeDelegationTokenRequest, DescribeDelegationTokenResponse
from kbackup.kafka.control.unavailable import Unavailable
from kbackup.metadata.entities import ClientQuota, DelegationToken, QuotaKey, ScramUser
from tests.support.fake_broker import FakeCluster, fake_cluster
from tests.support.metadata_entities import acl
from tests.unit.kafka.control.wire import through

DUMP_OF_REQUEST = "Request(processor=0, connectionId=10.0.0.7:9092, principal=User:b) is not authorized."
READ = acl()
TOKENS_OF_A_USER = acl(
    "b o%b", resource="user", pattern="prefixed", host="h", operation="create_tokens", permission="deny"
)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with fake_cluster() as cluster:
        yield cluster


def security(cluster: FakeCluster) -> SecurityAdmin:
    return SecurityAdmin(cluster.router(role="source"))


# ACLs.


def listed_acls(*resources: Any, error_code: int = 0, error_message: str | None = None) -> Any:
    return DescribeAclsResponse(error_code=error_code, error_message=error_message, resources=list(resources))


def resource_with_acls(number: int, name: str, *operations: int) -> Any:
    kind = DescribeAclsResponse.DescribeAclsResource
    acls = [kind.AclDescription(principal="User:a", host="*", operation=each, permission_type=3) for each in operations]
    return kind(resource_type=number, resource_name=name, pattern_type=3, acls=acls)


def test_acls_of_every_kind_are_listed_and_kinds_to_come_are_described() -> None:
    listed = listed_acls(
        resource_with_acls(7, "b o%b", 14, 13),
        resource_with_acls(6, "*", 8),
        resource_with_acls(4, "kafka-cluster", 9),
        resource_with_acls(9, "strange", 3),
    )
    rules, strange = access.acls_of(through(listed, 3))
    assert rules == [
        acl("kafka-cluster", resource="cluster", operation="cluster_action"),
        acl("*", resource="delegation_token", operation="describe"),
        acl("b o%b", resource="user", operation="create_tokens"),
        acl("b o%b", resource="user", operation="describe_tokens"),
    ]
    assert strange == ["for User:a on strange, by numbers (9, 3, 3, 3)"]


def test_every_acl_is_asked_for(cluster: FakeCluster) -> None:
    cluster.on(DescribeAclsRequest, lambda request: listed_acls(resource_with_acls(2, "orders", 3)))
    assert security(cluster).acls() == ([READ], [])
    (asked,) = cluster.asked(DescribeAclsRequest)
    kinds = (asked.resource_type_filter, asked.pattern_type_filter, asked.operation, asked.permission_type)
    assert kinds == (1, 1, 1, 1)
    assert (asked.resource_name_filter, asked.principal_filter, asked.host_filter) == (None, None, None)


def test_a_cluster_without_authorizer_has_no_acls(cluster: FakeCluster) -> None:
    none = listed_acls(error_code=KafkaError.SECURITY_DISABLED, error_message="No Authorizer is configured.")
    cluster.on(DescribeAclsRequest, lambda request: none)
    assert security(cluster).acls() == Unavailable(
        "not there", f"source cluster at {cluster.bootstrap} has no authorizer"
    )


def test_a_user_who_may_not_list_acls_or_users_is_told_the_right_that_it_takes(cluster: FakeCluster) -> None:
    denied = KafkaError.CLUSTER_AUTHORIZATION_FAILED
    acls = listed_acls(error_code=denied, error_message=DUMP_OF_REQUEST)
    users = DescribeUserScramCredentialsResponse(error_code=denied, error_message=DUMP_OF_REQUEST, results=[])
    cluster.on(DescribeAclsRequest, lambda request: acls)
    cluster.on(DescribeUserScramCredentialsRequest, lambda request: users)
    for answer in (security(cluster).acls(), security(cluster).users()):
        assert isinstance(answer, Unavailable)
        assert answer.reason == "denied"
        assert "it takes Describe on the cluster" in answer.why
        assert "connectionId" not in answer.why, "the broker's own words are a dump of the request"


def test_brokers_that_do_not_know_a_request_are_too_old(cluster: FakeCluster) -> None:
    admin = security(cluster)
    for answer in (admin.acls(), admin.users(), admin.client_quotas(), admin.delegation_tokens()):
        assert isinstance(answer, Unavailable)
        assert (answer.reason, "too old" in answer.why) == ("not supported", True)


def test_a_cluster_that_is_gone_is_a_failure(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbackup.kafka.control.router.remedy_for", lambda error, change: None)
    cluster.brokers[1].stop()
    answer = security(cluster).acls()
    assert isinstance(answer, Unavailable)
    assert answer.reason == "failed"
    assert "describing ACLs" in answer.why


def create_results(request: Any, codes: dict[str, int]) -> Any:
    result = CreateAclsResponse.AclCreationResult
    codes_in_order = [codes.get(creation.resource_name, 0) for creation in request.creations]
    return CreateAclsResponse(results=[result(error_code=code, error_message=None) for code in codes_in_order])


def test_acls_are_created_in_kafkas_numbers_and_refusals_name_the_right(cluster: FakeCluster) -> None:
    codes = {"b o%b": int(KafkaError.CLUSTER_AUTHORIZATION_FAILED)}
    cluster.on(CreateAclsRequest, lambda request: create_results(request, codes))
    refused = security(cluster).create_acls([READ, TOKENS_OF_A_USER])
    assert refused[READ] == ""
    assert "it takes Alter on the cluster" in refused[TOKENS_OF_A_USER]
    (asked,) = cluster.asked(CreateAclsRequest)
    _, created = asked.creations
    assert (created.resource_type, created.resource_name, created.resource_pattern_type) == (7, "b o%b", 4)
    assert (created.principal, created.host) == ("User:a", "h")
    assert (created.operation, created.permission_type) == (13, 2)


def test_many_acls_are_created_in_several_requests(cluster: FakeCluster) -> None:
    cluster.on(CreateAclsRequest, lambda request: create_results(request, {}))
    rules = [acl(f"t{n}") for n in range(2 * ACLS_AT_ONCE + 1)]
    assert security(cluster).create_acls(rules) == dict.fromkeys(rules, "")
    sent = [len(request.creations) for request in cluster.asked(CreateAclsRequest)]
    assert sent == [ACLS_AT_ONCE, ACLS_AT_ONCE, 1]


def test_acls_that_the_answer_leaves_out_are_refused(cluster: FakeCluster) -> None:
    cluster.on(CreateAclsRequest, lambda request: create_results(request, {}).__class__(results=[]))
    assert "leaves it out" in security(cluster).create_acls([READ])[READ]


def test_exactly_the_acls_given_are_deleted(cluster: FakeCluster) -> None:
    result = DeleteAclsResponse.DeleteAclsFilterResult
    cluster.on(
        DeleteAclsRequest,
        lambda request: DeleteAclsResponse(
            filter_results=[result(error_code=0, error_message=None, matching_acls=[]) for _ in request.filters]
        ),
    )
    assert security(cluster).delete_acls([READ]) == {READ: ""}
    (asked,) = cluster.asked(DeleteAclsRequest)
    (exactly,) = asked.filters
    kinds = (exactly.resource_type_filter, exactly.pattern_type_filter, exactly.operation, exactly.permission_type)
    assert kinds == (2, 3, 3, 3)
    assert (exactly.resource_name_filter, exactly.principal_filter, exactly.host_filter) == ("orders", "User:a", "*")


# SCRAM users.


def test_each_credential_of_a_scram_user_is_listed(cluster: FakeCluster) -> None:
    kind = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
    both = [kind.CredentialInfo(mechanism=2, iterations=8192), kind.CredentialInfo(mechanism=1, iterations=4096)]
    results = [kind(user="b", error_code=0, credential_infos=both), kind(user="a", error_code=0, credential_infos=[])]
    listed = DescribeUserScramCredentialsResponse(error_code=0, error_message=None, results=results)
    cluster.on(DescribeUserScramCredentialsRequest, lambda request: listed)
    assert security(cluster).users() == [
        ScramUser(user="b", mechanism="SCRAM-SHA-256", iterations=4096),
        ScramUser(user="b", mechanism="SCRAM-SHA-512", iterations=8192),
    ]
    (asked,) = cluster.asked(DescribeUserScramCredentialsRequest)
    assert asked.users == [], "brokers never answer where they refuse a request without a list"


# Client quotas.


def quotas_listed() -> Any:
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
    return kind(error_code=0, error_message=None, entries=entries)


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_have_odd_names_and_defaults(version: int) -> None:
    assert access.quotas_of(through(quotas_listed(), version)) == [
        ClientQuota(entity={"client-id": None, "user": "größe"}, quotas={"request_percentage": 50.0}),
        ClientQuota(
            entity={"client-id": "app 1", "user": "b o%b"},
            quotas={"consumer_byte_rate": 2.5, "producer_byte_rate": 1024.0},
        ),
        ClientQuota(entity={"ip": None}, quotas={"connection_creation_rate": 5.0}),
        ClientQuota(entity={"user": None}, quotas={"producer_byte_rate": 1.0}),
    ]


def test_all_quotas_are_asked_for(cluster: FakeCluster) -> None:
    cluster.on(DescribeClientQuotasRequest, lambda request: quotas_listed())
    quotas = security(cluster).client_quotas()
    assert isinstance(quotas, list)
    assert len(quotas) == 4
    (asked,) = cluster.asked(DescribeClientQuotasRequest)
    assert (asked.components, asked.strict) == ([], False)


def test_quotas_are_set_and_removed_and_refused_by_entity(cluster: FakeCluster) -> None:
    entry = AlterClientQuotasResponse.EntryData
    codes = [0, int(KafkaError.INVALID_REQUEST)]
    refused = [entry(error_code=code, error_message="no such key" if code else None, entity=[]) for code in codes]
    cluster.on(AlterClientQuotasRequest, lambda request: AlterClientQuotasResponse(entries=refused))
    user: QuotaKey = (("client-id", None), ("user", "a"))
    ip: QuotaKey = (("ip", "127.0.0.7"),)
    answers = security(cluster).set_quotas({user: {"producer_byte_rate": 7.0, "x": None}, ip: {"y": 1.0}})
    assert answers[user] == ""
    assert "no such key" in answers[ip]
    (asked,) = cluster.asked(AlterClientQuotasRequest)
    first, _ = asked.entries
    assert [(part.entity_type, part.entity_name) for part in first.entity] == [("client-id", None), ("user", "a")]
    assert [(op.key, op.value, op.remove) for op in first.ops] == [("producer_byte_rate", 7.0, False), ("x", 0.0, True)]
    assert asked.validate_only is False


# Delegation tokens.


def token_listed() -> Any:
    kind = DescribeDelegationTokenResponse
    renewer = kind.DescribedDelegationToken.DescribedDelegationTokenRenewer
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
        renewers=[renewer(principal_type="User", principal_name="app 1")],
    )
    return kind(error_code=0, tokens=[token])


@pytest.mark.parametrize(("version", "requester"), [(1, "User:alice"), (2, "User:alice"), (3, "User:root")])
def test_a_token_has_its_owner_for_requester_where_brokers_tell_none(version: int, requester: str) -> None:
    assert access.tokens_of(through(token_listed(), version)) == [
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


def test_tokens_of_every_owner_are_asked_for(cluster: FakeCluster) -> None:
    cluster.on(DescribeDelegationTokenRequest, lambda request: token_listed())
    tokens = security(cluster).delegation_tokens()
    assert isinstance(tokens, list)
    assert [token.id for token in tokens] == ["t"]
    (asked,) = cluster.asked(DescribeDelegationTokenRequest)
    assert asked.owners is None


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (KafkaError.DELEGATION_TOKEN_AUTH_DISABLED, "not there"),
        (KafkaError.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, "not supported"),
        (KafkaError.DELEGATION_TOKEN_AUTHORIZATION_FAILED, "denied"),
        (KafkaError.UNKNOWN, "failed"),
    ],
)
def test_a_cluster_says_why_it_lists_no_tokens(code: int, reason: str, cluster: FakeCluster) -> None:
    refused = DescribeDelegationTokenResponse(error_code=code, tokens=[])
    cluster.on(DescribeDelegationTokenRequest, lambda request: refused)
    answer = security(cluster).delegation_tokens()
    assert isinstance(answer, Unavailable)
    assert answer.reason == reason
