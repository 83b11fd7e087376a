"""Archived settings, names and targets for plans of settings."""

from __future__ import annotations

from typing import Any

from kbackup.archive.models import Metadata
from kbackup.jobs.settings.plan import ConfigChange, TargetNames, TargetSettings
from kbackup.metadata.entities import Acl, BrokerConfig

SAME = TargetNames({"orders": "orders"}, frozenset(), {"billing": "billing"})


RENAMED = TargetNames(
    {"orders": "restored.orders", "swap": "other", "other": "swap"}, frozenset({"clicks"}), {"billing": "drill"}
)


EMPTY = TargetSettings("h:1", [1, 2])


EVERYTHING = ("acls", "configs", "quotas", "users")


def acl(resource: str, name: str, pattern: str = "literal", **more: str) -> Acl:
    fields = {"principal": "User:a", "host": "*", "operation": "read", "permission": "allow"} | more
    return Acl(resource=resource, name=name, pattern=pattern, **fields)


def archived(**settings: Any) -> Metadata:
    return Metadata(captured_at="then", cluster_id="source", brokers=1, topics=(), **settings)


def broker(number: int | None, name: str, value: str | None) -> BrokerConfig:
    return BrokerConfig(broker=number, name=name, value=value)


def change(owner: str, name: str, before: str | None, after: str, of_all: bool = False) -> ConfigChange:
    return ConfigChange(kind="broker", owner=owner, name=name, before=before, after=after, of_all=of_all)
