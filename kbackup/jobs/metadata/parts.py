"""The parts of a cluster's metadata: their names, what identifies an entity, and which source is asked first."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kbackup.metadata.entities import Acl, BrokerConfig, ClientQuota, NotCarried, Source

_DEFAULT = "<default>"  # as Kafka's tools call the default entity


@dataclass(frozen=True, slots=True)
class Part:
    """`name` is the member of metadata.json, `label` what messages call it. `identity` returns words for one entity,
    unique within the part. `about` matches the entries of `not_carried` that concern the part. Of the sources in
    `order`, the first is taken that tells the part completely; or the first that tells it at all, where the brokers'
    list `is_partial`."""

    name: str
    label: str
    identity: Callable[[Any], str]
    about: re.Pattern[str]
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
    Part("topics", "topics", _name, re.compile(r"^topics$")),
    Part("acls", "ACLs", _acl, re.compile(r"^ACL")),
    Part("scram_users", "SCRAM users", lambda u: f"{u.user} {u.mechanism}", re.compile("SCRAM")),
    Part(
        "broker_configs",
        "broker configs",
        _broker_config,
        re.compile("broker configs|sensitive configs"),
        _PARTIAL,
    ),
    Part(
        "group_configs",
        "group configs",
        lambda c: f"{c.name} of group {c.group}",
        re.compile("group configs"),
    ),
    Part("client_quotas", "client quotas", _quota, re.compile("quotas")),
    Part("delegation_tokens", "delegation tokens", lambda t: str(t.id), re.compile("tokens"), _PARTIAL),
    Part("client_metrics", "client metrics", _name, re.compile("client metrics")),
    Part("features", "features", _name, re.compile("features")),
    Part(
        "registrations",
        "registrations",
        lambda r: f"{r.role} {r.id}",
        re.compile("registrations"),
        _PARTIAL,
    ),
    Part("deletions", "topics that wait for deletion", _itself, re.compile("deletion")),
    Part("next_producer_id", "producer ids", _itself, re.compile("producer")),
    Part("znodes", "znodes", lambda z: str(z.path), re.compile("znodes")),
)


def part_of(entry: NotCarried) -> Part | None:
    """The part that an entry of `not_carried` is about; None for one of another kind."""
    return next((part for part in PARTS if part.about.search(entry.what)), None)
