"""ACLs, as AclAuthorizer keeps them. Names of resources are not encoded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from kbackup.metadata.entities import Acl
from kbackup.zookeeper.collect import Collector
from kbackup.zookeeper.decode import document, member, strange

_WORDS = {
    "resource": {"topic", "group", "cluster", "transactional_id", "delegation_token", "user"},
    "pattern": {"literal", "prefixed"},
    "permission": {"allow", "deny"},
    "operation": {
        *("all", "read", "write", "create", "delete", "alter", "describe", "cluster_action"),
        *("describe_configs", "alter_configs", "idempotent_write", "create_tokens", "describe_tokens"),
    },
}


def parse_acls(collector: Collector) -> tuple[Acl, ...] | None:
    literal = collector.below("acls", "/kafka-acl", _resource, levels=2)
    extended = collector.below("acls", "/kafka-acl-extended", _resource, levels=3)
    return None if literal is None or extended is None else (*literal, *extended)


def _resource(path: str, data: bytes) -> Iterator[Acl]:
    """/kafka-acl/Topic/orders, or /kafka-acl-extended/prefixed/Topic/orders."""
    *before, kind, name = path.split("/")
    pattern = "literal" if before[-1] == "kafka-acl" else before[-1]
    for acl in member(path, document(path, data), "acls", list):
        if not isinstance(acl, dict):
            raise strange(path, "has an ACL that is no JSON object")
        yield _acl(path, acl, _word(path, "resource", kind), name, _word(path, "pattern", pattern))


def _acl(path: str, acl: dict[str, Any], resource: str, name: str, pattern: str) -> Acl:
    return Acl(
        resource=resource,
        name=name,
        pattern=pattern,
        principal=member(path, acl, "principal", str),
        host=member(path, acl, "host", str),
        operation=_word(path, "operation", member(path, acl, "operation", str)),
        permission=_word(path, "permission", member(path, acl, "permissionType", str)),
    )


def _word(path: str, field: str, kafkas: str) -> str:
    """Return Kafka's name in snake case: TransactionalId becomes transactional_id."""
    word = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kafkas).lower()
    if word not in _WORDS[field]:
        raise strange(path, f"has an unknown {field}: {kafkas}")
    return word
