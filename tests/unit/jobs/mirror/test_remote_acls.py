"""The ACLs of remote topics, as MirrorMaker 2 derives them."""

from __future__ import annotations

import pytest

from kbackup.jobs.mirror.settings.acls import remote_acl
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
