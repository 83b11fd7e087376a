"""Entities of metadata from what brokers answered. Pure; everything comes sorted."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

from kbackup.kafka.admin.security_types import AclRule, Setting
from kbackup.kafka.admin_protocol import words
from kbackup.metadata.entities import (
    ClientMetrics,
    ClientQuota,
    DelegationToken,
    Listener,
    Registration,
)


def quotas_of(answer: Any) -> list[ClientQuota]:
    quotas = [
        ClientQuota(
            entity=dict(sorted((part.entity_type, part.entity_name) for part in entry.entity)),
            quotas=dict(sorted((value.key, value.value) for value in entry.values)),
        )
        for entry in answer.entries or ()
    ]
    return sorted(quotas, key=quota_order)


def quota_order(quota: ClientQuota) -> list[tuple[str, bool, str]]:
    """Return the key to sort quotas by: by entity, defaults first."""
    return [(kind, name is not None, name or "") for kind, name in sorted(quota.entity.items())]


def tokens_of(answer: Any) -> list[DelegationToken]:
    tokens = [
        DelegationToken(
            id=token.token_id,
            owner=f"{token.principal_type}:{token.principal_name}",
            requester=_requester(token),
            renewers=tuple(sorted(f"{r.principal_type}:{r.principal_name}" for r in token.renewers)),
            issued_at=token.issue_timestamp,
            expires_at=token.expiry_timestamp,
            max_at=token.max_timestamp,
            hmac=base64.b64encode(token.hmac).decode(),
        )
        for token in answer.tokens
    ]
    return sorted(tokens, key=lambda token: token.id)


def _requester(token: Any) -> str:
    """Known since Kafka 3.3; before, the owner of a token is who made it."""
    kind, name = token.token_requester_principal_type, token.token_requester_principal_name
    return f"{kind}:{name}" if name else f"{token.principal_type}:{token.principal_name}"


def acls_of(answer: Any) -> tuple[list[AclRule], list[str]]:
    """Every ACL, and in words those of a kind that is not known here."""
    rules: list[AclRule] = []
    strange: list[str] = []
    for resource in answer.resources:
        for acl in resource.acls:
            numbers = (resource.resource_type, resource.pattern_type, acl.operation, acl.permission_type)
            try:
                kind, pattern, operation, permission = (
                    table[n] for table, n in zip(_TABLES, numbers, strict=True)
                )
            except KeyError:
                strange.append(f"for {acl.principal} on {resource.resource_name}, by numbers {numbers}")
                continue
            name = resource.resource_name
            rules.append(AclRule(kind, name, pattern, acl.principal, acl.host, operation, permission))
    return sorted(rules), sorted(strange)


_TABLES = (words.RESOURCES, words.PATTERNS, words.OPERATIONS, words.PERMISSIONS)


def defaults_of(configs: Iterable[Any]) -> list[Setting]:
    """The cluster-wide default of brokers."""
    return sorted(
        Setting("", c.name, None if c.is_sensitive else c.value)
        for c in configs
        if c.config_source == words.DEFAULT_OF_BROKERS
    )


def metrics_of(described: Iterable[Any]) -> list[ClientMetrics]:
    metrics = [
        ClientMetrics(
            name=each.resource_name,
            configs={
                name: value
                for name, value in sorted(
                    (c.name, c.value) for c in each.configs if c.config_source == words.SET_ON_CLIENT_METRICS
                )
                if value is not None
            },
        )
        for each in described
    ]
    return sorted(metrics, key=lambda each: each.name)


def brokers_of(answer: Any, protocol: str) -> list[Registration]:
    """`protocol` is that of the listener which the brokers were asked by: they name no other."""
    brokers = [
        Registration(
            id=broker.broker_id,
            role="broker",
            listeners=(Listener(name="", host=broker.host, port=broker.port, security_protocol=protocol),),
            rack=broker.rack,
            alive=not broker.is_fenced,
        )
        for broker in answer.brokers
    ]
    return sorted(brokers, key=lambda each: each.id)


def controllers_of(answer: Any) -> list[Registration]:
    """The voters of the quorum of a metadata log."""
    listeners = {node.node_id: node.listeners for node in answer.nodes or ()}
    voters = {v.replica_id for t in answer.topics for p in t.partitions for v in p.current_voters}
    return [
        Registration(
            id=voter,
            role="controller",
            listeners=tuple(
                Listener(name=each.name, host=each.host, port=each.port, security_protocol="")
                for each in listeners.get(voter, ())
            ),
        )
        for voter in sorted(voters)
    ]
