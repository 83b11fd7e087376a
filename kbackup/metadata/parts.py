"""The parts of a cluster's metadata: their names, what identifies an entity, and which source is asked first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from kbackup.metadata.entities import Acl, BrokerConfig, ClientQuota, NotCarried, PartName, Reason, Source

_DEFAULT = "<default>"  # as Kafka's tools call the default entity

SCRAM_SECRETS = "secrets of SCRAM users"
TOKEN_SECRETS = "secrets of delegation tokens"  # noqa: S105 (a name, no secret)
BROKER_SECRETS = "values of sensitive broker configs"
GROUP_SECRETS = "values of sensitive group configs"


@dataclass(frozen=True, slots=True)
class Part:
    """`name` is the member of metadata.json, `label` what messages call it. `identity` returns words for one entity,
    unique within the part. Of the sources in `order`, the first is taken that tells the part completely; or the first
    that tells it at all, where the brokers' list `is_partial`."""

    name: PartName
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
"""Brokers tell the configs of those that run, the tokens that our user may describe, and of registrations the listener
that we use."""

PARTS = (
    Part("topics", "topics", _name),
    Part("acls", "ACLs", _acl),
    Part("scram_users", "SCRAM users", lambda u: f"{u.user} {u.mechanism}"),
    Part("broker_configs", "broker configs", _broker_config, _PARTIAL),
    Part("group_configs", "group configs", lambda c: f"{c.name} of group {c.group}"),
    Part("client_quotas", "client quotas", _quota),
    Part("delegation_tokens", "delegation tokens", lambda t: str(t.id), _PARTIAL),
    Part("client_metrics", "client metrics", _name),
    Part("features", "features", _name),
    Part("registrations", "registrations", lambda r: f"{r.role} {r.id}", _PARTIAL),
    Part("deletions", "topics that wait for deletion", _itself),
    Part("next_producer_id", "producer ids", _itself),
    Part("znodes", "znodes", lambda z: str(z.path)),
)

LABELS: dict[PartName, str] = {part.name: part.label for part in PARTS}
"""What messages call each part."""


def whole_part(part: PartName, reason: Reason, why: str) -> NotCarried:
    """The entry for a part of which nothing is carried, or not everything."""
    return NotCarried(part=part, what=LABELS[part], reason=reason, why=why)


def reason_for(part: PartName, not_carried: Iterable[NotCarried]) -> str | None:
    """Why a part is not carried; None where no entry says so."""
    return next((entry.why for entry in not_carried if entry.part == part), None)
