"""The ACLs of remote topics, as MirrorMaker 2 derives them."""

from __future__ import annotations

import pytest

from kbackup.jobs.mirror.settings import remote_acl
from kbackup.metadata.entities import Acl
from tests.support.mirrors import flow_of


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
def test_a_remote_acl(source: Acl, remote: tuple[str, str, str] | None) -> None:
    rule = remote_acl(flow_of(), source, lambda name: name != "private")
    if remote is None:
        assert rule is None
    else:
        assert rule is not None
        assert (rule.name, rule.operation, rule.permission) == remote
        assert (rule.pattern, rule.principal, rule.host) == ("literal", source.principal, source.host)


IDENTITY = "replication.policy.class = IdentityReplicationPolicy\n"
OPERATIONS = ("read", "describe", "describe_configs", "all", "write", "delete", "alter", "alter_configs", "create")


def test_the_identity_policy_grants_reading_alone() -> None:
    """The remote topic has the name of a topic that the target may have itself."""
    flow = flow_of(IDENTITY)
    rules = [remote_acl(flow, acl(operation), lambda _: True) for operation in OPERATIONS]
    granted = [(rule.name, rule.operation) for rule in rules if rule is not None]
    assert granted == [("orders", name) for name in ("read", "describe", "describe_configs", "read")]
    denied = [remote_acl(flow, acl(operation, "deny"), lambda _: True) for operation in OPERATIONS]
    assert [rule.operation for rule in denied if rule is not None] == list(OPERATIONS)
    for permission in ("allow", "deny"):
        assert remote_acl(flow, acl("read", permission, name="*"), lambda _: True) is None


def test_the_default_policy_grants_what_mirrormaker_does() -> None:
    rules = [remote_acl(flow_of(), acl(operation), lambda _: True) for operation in OPERATIONS]
    granted = [rule.operation for rule in rules if rule is not None]
    assert granted == ["read", "describe", "describe_configs", "read", *OPERATIONS[5:]]
