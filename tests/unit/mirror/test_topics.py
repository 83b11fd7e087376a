"""Which topics a flow mirrors, under which names, with which ACLs, and what a dry run warns of."""

from __future__ import annotations

import pytest

from kbackup.errors import NoArchiveError, UsageError
from kbackup.kafka.control.cluster import Cluster
from kbackup.metadata.entities import Acl
from kbackup.mirror.dry_run import dry_run, factor_warnings
from kbackup.mirror.flow import RemoteTopic
from kbackup.mirror.internal import InternalNames, InternalTopic
from kbackup.mirror.properties.flows import load_flows
from kbackup.mirror.settings import remote_acl
from kbackup.mirror.topics import SkippedTopic, SourceTopic, plan_topics, reason_to_skip
from tests.support.flow_maps import CLUSTERS, flow_of
from tests.support.memory_store import MemoryStore

IDENTITY = "replication.policy.class = IdentityReplicationPolicy\n"
BOTH_WAYS = CLUSTERS + "B->A.enabled = true\n"


def test_topics_take_the_alias_and_skipped_ones_a_reason() -> None:
    names = ("orders", "heartbeats", "C.heartbeats", "B.pay", "C.B.pay", "mm2-offset-syncs.B.internal", "__x")
    plan = plan_topics(flow_of("topics = orders, .*pay"), [SourceTopic(name, 3) for name in (*names, "other")])
    assert plan.topics == (
        RemoteTopic("C.heartbeats", "A.C.heartbeats", 3),
        RemoteTopic("heartbeats", "A.heartbeats", 3),
        RemoteTopic("orders", "A.orders", 3),
    )
    assert plan.skipped == (
        SkippedTopic("B.pay", "cycle"),
        SkippedTopic("C.B.pay", "cycle"),
        SkippedTopic("__x", "internal"),
        SkippedTopic("mm2-offset-syncs.B.internal", "internal"),
        SkippedTopic("other", "not selected"),
    )


def test_heartbeats_need_no_filter_unless_told_so() -> None:
    assert reason_to_skip(flow_of("topics = orders"), "heartbeats") is None
    flow = flow_of("topics = orders\nheartbeats.replication.enabled = false")
    assert reason_to_skip(flow, "heartbeats") == "not selected"


def test_deleted_topic_is_mirrored_to_its_end_and_not_made_anew() -> None:
    deleted = SourceTopic("orders", 2, deleted=True)
    assert plan_topics(flow_of(), [deleted], existing=("A.orders",)).topics[0].remote == "A.orders"
    assert plan_topics(flow_of(), [deleted]).skipped == (SkippedTopic("orders", "deleted"),)


@pytest.mark.parametrize(
    "text",
    [
        BOTH_WAYS + IDENTITY,
        BOTH_WAYS + IDENTITY + "A->B.topics = pay-1, only-a\nB->A.topics = only-b, pay-1",
        BOTH_WAYS + f"A->B.{IDENTITY}",  # B gives A `B.orders`, A gives it back, and so on without end
        "clusters = A, B, C\nA->B.enabled = true\nB->C.enabled = true\nC->A.enabled = true\n" + IDENTITY,
    ],
)
def test_loops_of_the_identity_policy_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="would be mirrored in a circle"):
        load_flows(text)


def test_identity_both_ways_is_fine_for_topics_that_do_not_meet() -> None:
    text = BOTH_WAYS + IDENTITY + "A->B.topics = a-.*, shared\\.x\nB->A.topics = b-.*, shared\\..*\n"
    to_b, to_a = load_flows(text).flows
    assert reason_to_skip(to_b, "a-orders") is None
    assert reason_to_skip(to_a, "b-orders") is None
    assert reason_to_skip(to_b, "shared.x") == "cycle"  # met only now that there is such a topic
    assert reason_to_skip(to_a, "shared.x") == "cycle"
    assert reason_to_skip(to_a, "shared.y") is None


def test_identity_one_way_and_in_a_chain_is_no_loop() -> None:
    load_flows("clusters = A, B, C\nA->B.enabled = true\nB->C.enabled = true\n" + IDENTITY)


def test_default_policy_both_ways_is_no_loop() -> None:
    to_b, to_a = load_flows(BOTH_WAYS).flows
    assert reason_to_skip(to_b, "B.orders") == "cycle"
    assert reason_to_skip(to_a, "B.orders") is None


# The ACLs of remote topics, as MirrorMaker 2 derives them.


def acl(operation: str = "read", permission: str = "allow", **more: str) -> Acl:
    fields = {"resource": "topic", "name": "orders", "pattern": "literal", "principal": "User:a", "host": "*"}
    return Acl(operation=operation, permission=permission, **{**fields, **more})


@pytest.mark.parametrize(
    ("source", "remote"),
    [
        (acl("read"), ("A.orders", "read", "allow")),
        (acl("describe", host="10.0.0.1"), ("A.orders", "describe", "allow")),
        (acl("all"), ("A.orders", "read", "allow")),
        (acl("all", "deny"), ("A.orders", "all", "deny")),
        (acl("write", "deny"), ("A.orders", "write", "deny")),
        (acl("read", name="*"), ("A.*", "read", "allow")),
        (acl("write"), None),
        (acl("read", pattern="prefixed"), None),
        (acl("read", resource="group"), None),
        (acl("read", name="private"), None),
    ],
)
def test_a_remote_topic_gets_the_rules_that_read(source: Acl, remote: tuple[str, str, str] | None) -> None:
    rule = remote_acl(flow_of("topics.exclude = private\n"), source)
    if remote is None:
        assert rule is None
    else:
        assert rule is not None
        assert (rule.name, rule.operation, rule.permission) == remote
        assert (rule.pattern, rule.principal, rule.host) == ("literal", source.principal, source.host)


OPERATIONS = ("read", "describe", "describe_configs", "all", "write", "delete", "alter", "alter_configs", "create")


def test_the_identity_policy_grants_reading_alone() -> None:
    """The remote topic has the name of a topic that the target may have itself."""
    flow = flow_of(IDENTITY)
    rules = [remote_acl(flow, acl(operation)) for operation in OPERATIONS]
    granted = [(rule.name, rule.operation) for rule in rules if rule is not None]
    assert granted == [("orders", name) for name in ("read", "describe", "describe_configs", "read")]
    denied = [remote_acl(flow, acl(operation, "deny")) for operation in OPERATIONS]
    assert [rule.operation for rule in denied if rule is not None] == list(OPERATIONS)
    for permission in ("allow", "deny"):
        assert remote_acl(flow, acl("read", permission, name="*")) is None


def test_the_default_policy_grants_what_mirrormaker_does() -> None:
    rules = [remote_acl(flow_of(), acl(operation)) for operation in OPERATIONS]
    granted = [rule.operation for rule in rules if rule is not None]
    assert granted == ["read", "describe", "describe_configs", "read", *OPERATIONS[5:]]


# A dry run warns of what a round would fail at.


@pytest.mark.parametrize(
    ("brokers", "keys"),
    [
        (1, ["replication", "heartbeats.topic", "checkpoints.topic", "offset-syncs.topic"]),
        (2, ["heartbeats.topic", "checkpoints.topic", "offset-syncs.topic"]),
        (3, []),
    ],
)
def test_factors_above_the_number_of_brokers(brokers: int, keys: list[str]) -> None:
    flow = flow_of()
    topics = [InternalTopic("A.orders", flow.replication_factor), *InternalNames(flow, False).written()]
    warnings = factor_warnings("B", brokers, topics)
    assert len(warnings) == len(keys), "each key once"
    for key, warning in zip(keys, warnings, strict=True):
        assert warning.startswith(key)
        assert warning.endswith(f"replication.factor to {brokers} or less")


def test_a_factor_of_the_brokers_own_is_never_too_high() -> None:
    flow = flow_of("replication.factor = -1\n")
    assert factor_warnings("B", 1, [InternalTopic("A.orders", flow.replication_factor)]) == []


def test_a_plan_without_an_archive_names_the_address_that_is_missing() -> None:
    flow = flow_of("clusters = A, B\nB.bootstrap.servers = b:9092\nA->B.enabled = true\n")
    with pytest.raises(NoArchiveError, match=r"set A\.bootstrap\.servers"):
        dry_run(
            flow,
            MemoryStore(),
            MemoryStore(),
            Cluster({"bootstrap.servers": "b:9092"}, "target"),
            (),
            lambda: pytest.fail("Spark"),
        )
