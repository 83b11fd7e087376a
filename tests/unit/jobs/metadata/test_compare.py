"""Two sources' metadata, compared entity by entity."""

from __future__ import annotations

from typing import Any

import pytest

from kbackup.jobs.metadata import Side, compare, in_words, not_compared
from kbackup.metadata.entities import BrokerConfig, Registration, not_carried_entry
from tests.support.metadata_entities import acl, by_brokers, by_log, by_zookeeper, quota, token, topic, user


def words(zookeeper: dict[str, Any] | None = None, log: dict[str, Any] | None = None) -> list[str]:
    one = Side("ZooKeeper", by_zookeeper(**zookeeper or {}))
    other = Side("the metadata log", by_log(**log or {}))
    return [in_words(difference, one.name, other.name) for difference in compare(one, other)]


def test_no_difference() -> None:
    assert words() == []


@pytest.mark.parametrize(
    ("zookeeper", "log", "expected"),
    [
        (
            {"topics": (topic(),)},
            {"topics": ()},
            "topics: orders: in ZooKeeper, not in the metadata log",
        ),
        (
            {"topics": ()},
            {"topics": (topic(),)},
            "topics: orders: in the metadata log, not in ZooKeeper",
        ),
        (
            {"topics": (topic(id="x"),)},
            {"topics": (topic(id="y"),)},
            "topics: orders: id is x in ZooKeeper, y in the metadata log",
        ),
        (
            {"topics": (topic(partitions=2),)},
            {"topics": (topic(),)},
            "topics: orders: partitions is 2 in ZooKeeper, 1 in the metadata log",
        ),
        (
            {"topics": (topic(replicas=((1, 2),)),)},
            {"topics": (topic(replicas=((2, 1),)),)},
            "topics: orders: replicas is [[1,2]] in ZooKeeper, [[2,1]] in the metadata log",
        ),
        (
            {"topics": (topic(configs={}),)},
            {"topics": (topic(),)},
            "topics: orders: retention.ms is not set in ZooKeeper, 1000 in the metadata log",
        ),
        (
            {"acls": (acl(), acl(operation="write"))},
            {},
            "ACLs: User:a allow write from * on literal topic orders: in ZooKeeper, not in the metadata log",
        ),
        (
            {"scram_users": (user(key="b25l"),)},
            {"scram_users": (user(key="b3RoZXI="),)},
            "SCRAM users: alice SCRAM-SHA-512: salt is ******** in ZooKeeper, ******** in the metadata log",
        ),
        (
            {"client_quotas": (quota(None, 1.0),)},
            {"client_quotas": (quota(None, 2.0),)},
            "client quotas: user <default>: consumer_byte_rate is 1.0 in ZooKeeper, 2.0 in the metadata log",
        ),
        (
            {"client_quotas": (quota("<default>"),)},
            {"client_quotas": (quota(None),)},
            "client quotas: user '<default>': in ZooKeeper, not in the metadata log",
        ),
        (
            {"broker_configs": (BrokerConfig(broker=None, name="log.retention.ms", value="1"),)},
            {"broker_configs": (BrokerConfig(broker=None, name="log.retention.ms", value="2"),)},
            "broker configs: log.retention.ms of all brokers: log.retention.ms is 1 in ZooKeeper, "
            "2 in the metadata log",
        ),
        (
            {"broker_configs": (BrokerConfig(broker=1, name="x.ssl.keystore.password", value="hush"),)},
            {"broker_configs": (BrokerConfig(broker=1, name="x.ssl.keystore.password", value="hush2"),)},
            "broker configs: x.ssl.keystore.password of broker 1: x.ssl.keystore.password is ******** in ZooKeeper, "
            "******** in the metadata log",
        ),
        (
            {"delegation_tokens": ()},
            {"delegation_tokens": (token(None),)},
            "delegation tokens: t1: in the metadata log, not in ZooKeeper",
        ),
        (
            {"next_producer_id": 1000},
            {"next_producer_id": 2000},
            "producer ids: next block: first id is 1000 in ZooKeeper, 2000 in the metadata log",
        ),
    ],
)
def test_each_difference_is_named(zookeeper: dict[str, Any], log: dict[str, Any], expected: str) -> None:
    assert expected in words(zookeeper, log)


def test_secrets_are_not_shown() -> None:
    said = words({"scram_users": (user(key="c2VjcmV0LW9uZQ=="),)}, {"scram_users": (user(key="dHdv"),)})
    assert len(said) == 3
    assert "c2VjcmV0" not in " ".join(said)


def test_settings_unknown_to_one_side_are_not_compared() -> None:
    one, other = Side("brokers", by_brokers()), Side("ZooKeeper", by_zookeeper(acls=None))
    assert [d for d in compare(one, other) if d.part != "topics"] == []
    assert not_compared(one, other) == [
        "ACLs",
        "group configs",
        "delegation tokens",
        "client metrics",
        "producer ids",
    ]


def test_ids_of_topics_in_both_alphabets() -> None:
    assert words({"topics": (topic(id="a-b_c"),)}, {"topics": (topic(id="a+b/c"),)}) == []
    assert len(words({"topics": (topic(id="a-b_c"),)}, {"topics": (topic(id="a+b/d"),)})) == 1


def test_topics_that_were_chosen() -> None:
    one, other = Side("brokers", by_brokers()), Side("ZooKeeper", by_zookeeper())
    assert [d.entity for d in compare(one, other)] == ["unselected"]
    assert compare(one, other, {"orders"}) == []


def test_brokers_that_are_down_tell_no_configs() -> None:
    configs = tuple(BrokerConfig(broker=n, name="log.cleaner.threads", value="2") for n in (1, 2))
    alive = tuple(Registration(id=n, role="broker", listeners=(), alive=n == 1) for n in (1, 2))
    one = Side("brokers", by_brokers(broker_configs=configs[:1], registrations=alive))
    other = Side("ZooKeeper", by_zookeeper(broker_configs=configs))
    assert compare(one, other, {"orders"}) == []
    assert len(compare(other, Side("log", by_log(broker_configs=configs[:1])))) == 1


def test_a_part_that_brokers_do_not_use_is_not_compared() -> None:
    """ZooKeeper may hold ACLs of an authorizer that is not configured any more."""
    disabled = not_carried_entry("acls", "not there", "no authorizer")
    one, other = (
        Side("brokers", by_brokers(acls=(), not_carried=(disabled,))),
        Side("ZooKeeper", by_zookeeper()),
    )
    assert compare(one, other, {"orders"}) == []
    assert "ACLs" in not_compared(one, other)


def test_tokens_of_brokers_are_those_that_our_user_may_describe() -> None:
    one, other = Side("brokers", by_brokers(delegation_tokens=())), Side("ZooKeeper", by_zookeeper())
    assert compare(one, other, {"orders"}) == []
