"""Making changes of settings on a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from kbackup.jobs.settings.acls import acl_words
from kbackup.jobs.settings.changes import Changes, ConfigChange, QuotaChange, entity_words
from kbackup.jobs.settings.commands import acl_command, config_command, quota_command
from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.admin.security_types import AclRule, Untold
from kbackup.kafka.admin_protocol.session import Session
from kbackup.metadata.entities import Acl, QuotaKey

C = TypeVar("C")

_SPECIAL_RESOURCES = {"delegation_token", "user"}
_SPECIAL_OPERATIONS = {"two_phase_commit", "create_tokens", "describe_tokens"}
"""Values of ACLs that confluent-kafka doesn't know."""


_BY_HAND = "; set it by hand: "


@dataclass(frozen=True)
class Outcome:
    """The changes that were made, and in words those that the target refused."""

    done: Changes
    refused: tuple[str, ...]


def write_changes(cluster: Cluster, changes: Changes) -> Outcome:
    """Make each change, and collect the refused ones. Deletions of ACLs come last."""
    with cluster.admin_session() as session:
        acls = _create(cluster, session, changes.acls)
        configs = [_set(cluster, session, change) for change in changes.configs]
        quotas = _set_quotas(session, changes.quotas)
        deleted = _delete(session, changes.deleted_acls)
    servers = cluster.connection.properties["bootstrap.servers"]
    words = [
        *(
            f"ACL {acl_words(a)} was not made: {w}{_BY_HAND}{acl_command(servers, a, '--add')}"
            for a, w in zip(changes.acls, acls, strict=True)
            if w
        ),
        *(
            f"config {c.name} of {_owner(c)} was not set: {w}{_BY_HAND}{config_command(servers, c)}"
            for c, w in zip(changes.configs, configs, strict=True)
            if w
        ),
        *(
            f"quota {c.name} of {entity_words(c.entity)} was not set: {w}{_BY_HAND}{quota_command(servers, c)}"
            for c, w in zip(changes.quotas, quotas, strict=True)
            if w
        ),
        *(
            f"ACL {acl_words(a)} was not deleted: {w}{_BY_HAND}{acl_command(servers, a, '--remove')}"
            for a, w in zip(changes.deleted_acls, deleted, strict=True)
            if w
        ),
    ]
    done = Changes(
        acls=_accepted(changes.acls, acls),
        deleted_acls=_accepted(changes.deleted_acls, deleted),
        configs=_accepted(changes.configs, configs),
        quotas=_accepted(changes.quotas, quotas),
    )
    return Outcome(done, tuple(dict.fromkeys(words)))


def _accepted(changes: Sequence[C], refusals: Sequence[str]) -> tuple[C, ...]:
    return tuple(each for each, why in zip(changes, refusals, strict=True) if not why)


def _rule(acl: Acl) -> AclRule:
    return AclRule(*(getattr(acl, name) for name in AclRule._fields))


def _create(cluster: Cluster, session: Session | Untold, acls: Sequence[Acl]) -> list[str]:
    rules = [_rule(acl) for acl in acls]
    special = [r for r in rules if r.resource in _SPECIAL_RESOURCES or r.operation in _SPECIAL_OPERATIONS]
    refused = cluster.security.create_acls([r for r in rules if r not in set(special)])
    if isinstance(session, Untold):
        refused |= dict.fromkeys(special, session.why)
    elif special:
        refused |= session.write.create_acls(special)
    return [refused[rule] for rule in rules]


def _delete(session: Session | Untold, acls: Sequence[Acl]) -> list[str]:
    rules = [_rule(acl) for acl in acls]
    if isinstance(session, Untold):
        return [session.why for _ in rules]
    refused = session.write.delete_acls(rules)
    return [refused[rule] for rule in rules]


def _set_quotas(session: Session | Untold, changes: Sequence[QuotaChange]) -> list[str]:
    if isinstance(session, Untold):
        return [session.why for _ in changes]
    by_entity: dict[QuotaKey, dict[str, float | None]] = {}
    for change in changes:
        entity, name = change.key
        by_entity.setdefault(entity, {})[name] = change.after
    refused = session.write.set_quotas(by_entity) if by_entity else {}
    return [refused[change.key[0]] for change in changes]


def _set(cluster: Cluster, session: Session | Untold, change: ConfigChange) -> str:
    """Set a config; return '' or the reason why the target refused it."""
    values = {change.name: change.after}
    if change.kind != "client metrics" and not change.of_all:
        security = cluster.security
        put = security.set_broker_config if change.kind == "broker" else security.set_group_config
        return put(change.owner, change.name, change.after)
    if isinstance(session, Untold):
        return session.why
    if change.of_all:
        return session.write.set_default_broker_configs(values)[change.name]
    return session.write.set_client_metrics(change.owner, values)


def _owner(change: ConfigChange) -> str:
    return "all brokers" if change.of_all else f"{change.kind} {change.owner}"
