"""The settings of a cluster as a restore point has them, in tables. Secrets are never shown, whoever asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

from kbackup.archive.models import Metadata, rfc3339
from kbackup.archive.secrets import without_secrets
from kbackup.metadata.entities import ClientQuota, DelegationToken, Registration

T = TypeVar("T")


class SettingsTable(NamedTuple):
    """`rows` is None where nothing was captured: `why` says why."""

    what: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]] | None
    why: str


def settings_tables(archived: Metadata) -> list[SettingsTable]:
    metadata = without_secrets(archived)
    why = {n.what: n.why for n in archived.not_carried}

    def table(
        title: str, what: str, columns: str, told: Iterable[T] | None, row: Callable[[T], tuple[Any, ...]]
    ) -> SettingsTable:
        rows = None if told is None else list(map(row, told))
        return SettingsTable(title, tuple(columns.split(",")), rows, why.get(what, ""))

    return [
        table(
            *("ACLs", "ACLs", "permission,principal,host,operation,resource,name,pattern", metadata.acls),
            lambda a: (a.permission, a.principal, a.host, a.operation, a.resource, a.name, a.pattern),
        ),
        table(
            *("SCRAM users", "SCRAM users", "user,mechanism,iterations", metadata.scram_users),
            lambda u: (u.user, u.mechanism, u.iterations),
        ),
        table(
            *("Configs of brokers", "dynamic broker configs", "broker,name,value", metadata.broker_configs),
            lambda c: ("all" if c.broker is None else c.broker, c.name, c.value),
        ),
        table(
            *("Configs of groups", "group configs", "group,name,value", metadata.group_configs),
            lambda c: (c.group, c.name, c.value),
        ),
        table(
            *("Client quotas", "client quotas", "user,client id,ip,quotas", metadata.client_quotas),
            _quota,
        ),
        table(
            *("Delegation tokens", "delegation tokens", "token,owner,requester,renewers,expires"),
            metadata.delegation_tokens,
            _token,
        ),
        table(
            *("Client metrics", "client metrics subscriptions", "subscription,configs"),
            metadata.client_metrics,
            lambda m: (m.name, ", ".join(f"{name}={value}" for name, value in m.configs.items())),
        ),
        table(
            *("Features", "finalized features", "feature,level", metadata.features),
            lambda f: (f.name, f.level),
        ),
        table(
            *("Brokers and controllers", "registrations of brokers and controllers"),
            "id,role,listeners,rack,state",
            metadata.registrations,
            _registration,
        ),
    ]


def _quota(quota: ClientQuota) -> tuple[Any, ...]:
    names = {str(kind): name for kind, name in quota.entity.items()}
    cells = ("default" if names.get(kind, "-") is None else names.get(kind, "-") for kind in _KINDS)
    return (*cells, ", ".join(f"{name}={value:.15g}" for name, value in quota.quotas.items()))


_KINDS = ("user", "client-id", "ip")


def _token(token: DelegationToken) -> tuple[Any, ...]:
    expires = rfc3339(datetime.fromtimestamp(token.expires_at / 1000, UTC))
    return token.id, token.owner, token.requester, ", ".join(token.renewers) or "-", expires


def _registration(node: Registration) -> tuple[Any, ...]:
    listeners = ", ".join(
        f"{each.name or each.security_protocol} {each.host}:{each.port}" for each in node.listeners
    )
    state = {True: "alive", False: "down", None: "not told"}[node.alive]
    return node.id, node.role, listeners or "-", node.rack or "-", state
