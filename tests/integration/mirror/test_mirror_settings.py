"""Topics, configs and ACLs of a flow on a real target."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbackup.kafka.control.cluster import Cluster
from kbackup.metadata.entities import Acl
from kbackup.mirror.flow import Flow, RemoteTopic
from kbackup.mirror.settings import sync_acls, sync_configs, sync_topics
from scripts.dev.kafka import Broker
from tests.integration.secured import GUARDED
from tests.integration.topics import wait_until
from tests.support.flow_maps import flow_of

LONG = "x" * 248  # the prefix makes it longer than Kafka allows
CONFIGS = {"retention.ms": "60000", "min.insync.replicas": "2", "cleanup.policy": "compact,delete"}


@pytest.fixture(scope="module")
def target() -> Iterator[Cluster]:
    with Broker(GUARDED) as running:
        yield Cluster({"bootstrap.servers": running.bootstrap}, "target")


@pytest.fixture(scope="module")
def flow() -> Flow:
    return flow_of("replication.factor = 1\n")


def topic(name: str, partitions: int, configs: dict[str, str] | None = None) -> RemoteTopic:
    return RemoteTopic(name, f"A.{name}", partitions, configs)


def test_topics_appear_and_grow(target: Cluster, flow: Flow) -> None:
    first = [topic("grows", 2, CONFIGS), topic("stays", 1)]
    planned = sync_topics(flow, first, target, dry_run=True)
    assert target.topics(["A.grows", "A.stays"]) == {}
    made = sync_topics(flow, first, target)
    assert made == planned
    assert made.created == ("A.grows", "A.stays")
    assert target.topic_configs(["A.grows"])["A.grows"] == {"cleanup.policy": "compact,delete", "retention.ms": "60000"}

    later = [topic("grows", 5), topic("stays", 1), topic(LONG, 1), topic("new", 3)]
    grown = sync_topics(flow, later, target)
    assert (grown.created, grown.grown) == (("A.new",), {"A.grows": 5})
    assert f"creating topic A.{LONG}" in grown.refused[f"A.{LONG}"]
    counts = {name: len(found.partitions) for name, found in target.topics(["A.grows", "A.new"]).items()}
    assert counts == {"A.grows": 5, "A.new": 3}
    assert sync_topics(flow, [topic("grows", 4)], target).grown == {}  # Kafka never takes partitions away


def test_configs_follow_the_source(target: Cluster, flow: Flow) -> None:
    sync_topics(flow, [topic("set", 1, {"retention.ms": "1", "segment.ms": "5"}), topic("unknown", 1)], target)
    target.topic_admin.alter_configs({"A.set": {"min.insync.replicas": "1", "retention.bytes": "7"}})
    changed = {"retention.ms": "2", "min.insync.replicas": "3", "max.message.bytes": "1000"}
    topics = [topic("set", 1, changed), topic("unknown", 1), topic("absent", 1, changed)]
    wait_until(lambda: "retention.bytes" in target.topic_configs(["A.set"])["A.set"])

    planned = sync_configs(flow, topics, target, dry_run=True)
    report = sync_configs(flow, topics, target)
    assert report == planned
    assert report.refused == {}
    assert report.changed == {
        "A.set": {"retention.bytes": None, "segment.ms": None, "retention.ms": "2", "max.message.bytes": "1000"}
    }
    expected = {
        "min.insync.replicas": "1",  # excluded by the flow: whatever the target's operator set stays
        "retention.ms": "2",
        "max.message.bytes": "1000",
    }
    wait_until(lambda: target.topic_configs(["A.set"])["A.set"] == expected)
    assert sync_configs(flow, topics, target).changed == {}


def test_a_refused_config_is_reported(target: Cluster, flow: Flow) -> None:
    sync_topics(flow, [topic("odd", 1), topic("even", 1)], target)
    report = sync_configs(
        flow, [topic("odd", 1, {"retention.ms": "x"}), topic("even", 1, {"retention.ms": "9"})], target
    )
    assert report.changed == {"A.even": {"retention.ms": "9"}}
    assert "setting configs of topic A.odd" in report.refused["A.odd"]


def acl(name: str, operation: str) -> Acl:
    return Acl(
        resource="topic", name=name, pattern="literal", principal="User:a", host="*",
        operation=operation, permission="allow",
    )  # fmt: skip


def test_acls_are_created_once_and_never_deleted(target: Cluster, flow: Flow) -> None:
    acls = [acl("orders", "all"), acl("orders", "write"), acl("*", "describe")]
    report = sync_acls(flow, acls, target)
    assert report.created == (
        "allow describe for User:a from * on topic A.* (literal)",
        "allow read for User:a from * on topic A.orders (literal)",
    )
    wait_until(lambda: _acls(target) == {("A.orders", "read"), ("A.*", "describe")})
    assert sync_acls(flow, acls[1:], target).created == ()
    assert _acls(target) == {("A.orders", "read"), ("A.*", "describe")}


def _acls(target: Cluster) -> set[tuple[str, str]]:
    answer = target.security.acls()
    assert isinstance(answer, tuple)
    return {(rule.name, rule.operation) for rule in answer[0]}


def test_a_target_without_authorizer_takes_no_acls(broker: Broker, flow: Flow) -> None:
    bare = Cluster({"bootstrap.servers": broker.bootstrap}, "target")
    report = sync_acls(flow, [acl("orders", "read")], bare)
    assert report.created == ()
    assert "has no authorizer" in report.refused[0]
