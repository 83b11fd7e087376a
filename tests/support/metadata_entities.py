"""Entities of metadata for tests, and the readings of one cluster by each source."""

from __future__ import annotations

from typing import Any

from kbackup.metadata.entities import (
    SCRAM_SECRETS,
    Acl,
    BrokerConfig,
    ClientQuota,
    DelegationToken,
    GroupConfig,
    NotCarried,
    Reading,
    Registration,
    ScramUser,
    TopicMetadata,
    not_carried_entry,
)


def topic(name: str = "orders", **changed: Any) -> TopicMetadata:
    values: dict[str, Any] = {
        "name": name,
        "id": f"id-{name}",
        "partitions": 1,
        "replication_factor": 1,
        "internal": False,
        "configs": {"retention.ms": "1000"},
    }
    return TopicMetadata(**values | changed)


def acl(name: str = "orders", **changed: str) -> Acl:
    values: dict[str, Any] = {
        "resource": "topic",
        "name": name,
        "pattern": "literal",
        "principal": "User:a",
        "host": "*",
        "operation": "read",
        "permission": "allow",
    }
    return Acl(**values | changed)


def user(name: str = "alice", key: str | None = "c3RvcmVk") -> ScramUser:
    return ScramUser(user=name, mechanism="SCRAM-SHA-512", iterations=4096, salt=key, stored_key=key, server_key=key)


def quota(name: str | None = "alice", rate: float = 1024.0) -> ClientQuota:
    return ClientQuota(entity={"user": name}, quotas={"consumer_byte_rate": rate})


def token(hmac: str | None = "aG1hYw==") -> DelegationToken:
    return DelegationToken(
        id="t1", owner="User:a", requester="User:a", renewers=(), issued_at=1, expires_at=2, max_at=3, hmac=hmac
    )


BROKER_SECRET = BrokerConfig(broker=1, name="listener.name.x.ssl.keystore.password", value=None)


def by_brokers(**changed: Any) -> Reading:
    values: dict[str, Any] = {
        "topics": (topic(),),
        "acls": (acl(),),
        "scram_users": (user(key=None),),
        "broker_configs": (BROKER_SECRET,),
        "group_configs": (GroupConfig(group="g", name="a", value="b"),),
        "client_quotas": (quota(),),
        "not_carried": (
            NotCarried(part="scram_users", what=SCRAM_SECRETS, reason="not supported", why="never"),
            not_carried_entry("delegation_tokens", "denied", "no right"),
            not_carried_entry("client_metrics", "denied", "no right"),
        ),
    }
    return Reading(source="brokers", cluster_id="c", **values | changed)


def by_zookeeper(**changed: Any) -> Reading:
    values: dict[str, Any] = {
        "topics": (topic(replicas=((1, 2),)), topic("unselected")),
        "acls": (acl(),),
        "scram_users": (user(),),
        "broker_configs": (BROKER_SECRET,),
        "client_quotas": (quota(),),
        "delegation_tokens": (token(),),
        "registrations": (Registration(id=1, role="broker", listeners=()),),
        "deletions": (),
        "next_producer_id": 2000,
        "not_carried": (not_carried_entry("group_configs", "not supported", "not in ZooKeeper"),),
    }
    return Reading(source="zookeeper", **{"cluster_id": "c"} | values | changed)


def by_log(**changed: Any) -> Reading:
    values: dict[str, Any] = {
        "topics": (topic(replicas=((1, 2),)), topic("unselected")),
        "acls": (acl(),),
        "scram_users": (user(),),
        "broker_configs": (BrokerConfig(broker=1, name="listener.name.x.ssl.keystore.password", value="hush"),),
        "client_quotas": (quota(),),
        "delegation_tokens": (token(None),),
        "next_producer_id": 1000,
    }
    return Reading(source="controller log", cluster_id="c", **values | changed)
