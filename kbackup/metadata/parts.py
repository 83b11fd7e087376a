"""The parts of a cluster's metadata: their names, the identity of their entities, and the order of their sources."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from kbackup.metadata.entities import (
    Acl,
    BrokerConfig,
    ClientQuota,
    MetadataPartName,
    NotCarried,
    Reason,
    Source,
)

_DEFAULT = "<default>"  # as Kafka's tools call the default entity

SCRAM_SECRETS = "secrets of SCRAM users"
TOKEN_SECRETS = "secrets of delegation tokens"  # noqa: S105 (a name, no secret)
BROKER_SECRETS = "values of sensitive broker configs"
GROUP_SECRETS = "values of sensitive group configs"


@dataclass(frozen=True, slots=True)
class MetadataPart:
    """A part of the metadata: `name` is the member of metadata.json, `label` its name in messages.

    `identity` returns the name of an entity, unique within the part. Of the sources in `order`, the first that has the
    complete part is used; where the brokers' list `is_partial`, the first that has any of it.
    """

    name: MetadataPartName
    label: str
    identity: Callable[[Any], str]
    is_partial: bool = False

    @property
    def order(self) -> tuple[Source, ...]:
        if self.is_partial:
            return ("zookeeper", "controller log", "brokers")
        return ("brokers", "controller log", "zookeeper")


def _acl(acl: Acl) -> str:
    resource = f"{acl.pattern} {acl.resource} {acl.name}"
    return f"{acl.principal} {acl.permission} {acl.operation} from {acl.host} on {resource}"


def _quota(quota: ClientQuota) -> str:
    """The default entity has no quotes, so that no name reads like it."""
    return ", ".join(
        f"{kind} {_DEFAULT if name is None else repr(name)}" for kind, name in sorted(quota.entity.items())
    )


def _broker_config(config: BrokerConfig) -> str:
    owner = "all brokers" if config.broker is None else f"broker {config.broker}"
    return f"{config.name} of {owner}"


def _name(entity: Any) -> str:
    return str(entity.name)


def _itself(entity: object) -> str:
    return str(entity)


_PARTIAL = True
"""Brokers list only the configs of running brokers, the tokens that our user may describe, and our own listener of
each registration."""

PARTS = (
    MetadataPart("topics", "topics", _name),
    MetadataPart("acls", "ACLs", _acl),
    MetadataPart("scram_users", "SCRAM users", lambda u: f"{u.user} {u.mechanism}"),
    MetadataPart("broker_configs", "broker configs", _broker_config, _PARTIAL),
    MetadataPart("group_configs", "group configs", lambda c: f"{c.name} of group {c.group}"),
    MetadataPart("client_quotas", "client quotas", _quota),
    MetadataPart("delegation_tokens", "delegation tokens", lambda t: str(t.id), _PARTIAL),
    MetadataPart("client_metrics", "client metrics", _name),
    MetadataPart("features", "features", _name),
    MetadataPart("registrations", "registrations", lambda r: f"{r.role} {r.id}", _PARTIAL),
    MetadataPart("deletions", "topics that wait for deletion", _itself),
    MetadataPart("next_producer_id", "producer ids", _itself),
    MetadataPart("znodes", "znodes", lambda z: str(z.path)),
)

LABELS: dict[MetadataPartName, str] = {part.name: part.label for part in PARTS}
"""The name of each part in messages."""


def not_carried_entry(part: MetadataPartName, reason: Reason, why: str) -> NotCarried:
    """Return the entry for a part that is not carried, or not completely."""
    return NotCarried(part=part, what=LABELS[part], reason=reason, why=why)


def reason_for(part: MetadataPartName, not_carried: Iterable[NotCarried]) -> str | None:
    """Return why a part is not carried; None where no entry names it."""
    return next((entry.why for entry in not_carried if entry.part == part), None)
