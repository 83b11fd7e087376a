"""The metadata that the tests give a cluster: names that need encoding, defaults, every kind of ACL and quota."""

from __future__ import annotations

from typing import Any

ODD_USER = "b o%b"
USERS = {"alice": "alice's password", ODD_USER: "his: password", "åsa/ops": "lösenord", "<default>": "a name"}
DELETED = "Team-A.events_1"


def acl(resource: str, name: str, operation: str, **other: str) -> dict[str, str]:
    common = {"pattern": "literal", "principal": "User:alice", "host": "*", "permission": "allow"}
    return {"resource": resource, "name": name, "operation": operation, **common, **other}


def quota(quotas: dict[str, float], **entity: str | None) -> dict[str, Any]:
    """`client` is the client-id."""
    return {"entity": {{"client": "client-id"}.get(k, k): v for k, v in entity.items()}, "quotas": quotas}


def topic(name: str, replicas: list[list[int]], **configs: str) -> dict[str, Any]:
    return {"name": name, "replicas": replicas, "configs": {k.replace("_", "."): v for k, v in configs.items()}}


ACLS = [
    acl("topic", "orders", "read"),
    acl("topic", "orders", "write", host="10.0.0.1", permission="deny", principal=f"User:{ODD_USER}"),
    acl("topic", "*", "describe", principal="User:*"),
    acl("topic", "team-", "all", pattern="prefixed", principal="User:CN=app,OU=ops: x,O=Ö"),
    acl("group", "group with %2F: and %", "read"),
    acl("group", "åäö", "delete", pattern="prefixed"),
    acl("cluster", "kafka-cluster", "create"),
    acl("cluster", "kafka-cluster", "idempotent_write"),
    acl("transactional_id", "tx 1", "write"),
    acl("delegation_token", "a token", "describe"),
    acl("user", f"User:{ODD_USER}", "create_tokens"),
    acl("user", "User:alice", "describe_tokens"),
]

QUOTAS = [
    quota({"producer_byte_rate": 1024.0, "consumer_byte_rate": 2048.0}, user="alice"),
    quota({"request_percentage": 12.5}, user=ODD_USER),
    quota({"controller_mutation_rate": 0.5}, user=None),
    quota({"producer_byte_rate": 1e9}, client="app 1"),
    quota({"consumer_byte_rate": 3e10}, client=None),
    quota({"producer_byte_rate": 17.0}, user=ODD_USER, client="app 1"),
    quota({"producer_byte_rate": 18.0}, user=ODD_USER, client=None),
    quota({"producer_byte_rate": 19.0}, user=None, client="app 1"),
    quota({"producer_byte_rate": 20.0}, user=None, client=None),
    quota({"connection_creation_rate": 5.0}, ip="10.1.2.3"),
    quota({"connection_creation_rate": 50.0}, ip=None),
]

SCRAM_USERS = [
    {"user": user, "mechanism": mechanism, "iterations": iterations, "password": password}
    for user, password in USERS.items()
    for mechanism, iterations in {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 8192}.items()
    if (user, mechanism) != ("åsa/ops", "SCRAM-SHA-256")
]

BROKER_CONFIGS = [
    {"broker": 0, "name": "log.cleaner.threads", "value": "2"},
    {"broker": None, "name": "message.max.bytes", "value": "2000000"},
    {"broker": None, "name": "log.retention.ms", "value": "-1"},
]

TOKENS = [{"renewers": ["User:alice", f"User:{ODD_USER}"]}, {"renewers": []}]


def everything(replicas: list[int]) -> dict[str, Any]:
    """Return the content for `Filled.fill`; each partition gets `replicas`."""
    return {
        "topics": [
            topic("orders", [replicas, replicas[::-1]], cleanup_policy="compact,delete", segment_bytes="1048576"),
            topic(DELETED, [replicas]),
        ],
        "acls": ACLS,
        "scram_users": SCRAM_USERS,
        "client_quotas": QUOTAS,
        "broker_configs": BROKER_CONFIGS,
        "delegation_tokens": TOKENS,
    }
