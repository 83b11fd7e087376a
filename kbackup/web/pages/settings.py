"""The settings of a cluster as a restore point has them, in tables. Secrets are never shown, whoever asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kbackup.archive.models import Metadata
from kbackup.archive.secrets import without_secrets
from kbackup.metadata.entities import ClientQuota, DelegationToken, MetadataPartName, Registration
from kbackup.metadata.parts import reason_for
from kbackup.util.times import time_text


class SettingsTable(NamedTuple):
    """`rows` is None where nothing was captured: `why` says why."""

    what: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]] | None
    why: str


def settings_tables(archived: Metadata) -> list[SettingsTable]:
    metadata = without_secrets(archived)

    def table(
        title: str, part: MetadataPartName, columns: str, row: Callable[[Any], tuple[Any, ...]]
    ) -> SettingsTable:
        entities = getattr(metadata, part)
        rows = None if entities is None else list(map(row, entities))
        why = reason_for(part, archived.not_carried) or ""
        return SettingsTable(title, tuple(columns.split(",")), rows, why)

    return [
        table(
            "ACLs",
            "acls",
            "permission,principal,host,operation,resource,name,pattern",
            lambda a: (a.permission, a.principal, a.host, a.operation, a.resource, a.name, a.pattern),
        ),
        table(
            "SCRAM users",
            "scram_users",
            "user,mechanism,iterations",
            lambda u: (u.user, u.mechanism, u.iterations),
        ),
        table(
            "Configs of brokers",
            "broker_configs",
            "broker,name,value",
            lambda c: ("all" if c.broker is None else c.broker, c.name, c.value),
        ),
        table(
            "Configs of groups",
            "group_configs",
            "group,name,value",
            lambda c: (c.group, c.name, c.value),
        ),
        table(
            "Client quotas",
            "client_quotas",
            "user,client id,ip,quotas",
            _quota,
        ),
        table(
            "Delegation tokens",
            "delegation_tokens",
            "token,owner,requester,renewers,expires",
            _token,
        ),
        table(
            "Client metrics",
            "client_metrics",
            "subscription,configs",
            lambda m: (m.name, ", ".join(f"{name}={value}" for name, value in m.configs.items())),
        ),
        table(
            "Features",
            "features",
            "feature,level",
            lambda f: (f.name, f.level),
        ),
        table(
            "Brokers and controllers",
            "registrations",
            "id,role,listeners,rack,state",
            _registration,
        ),
    ]


def _quota(quota: ClientQuota) -> tuple[Any, ...]:
    names = {str(kind): name for kind, name in quota.entity.items()}
    cells = ("default" if names.get(kind, "-") is None else names.get(kind, "-") for kind in _KINDS)
    return (*cells, ", ".join(f"{name}={value:.15g}" for name, value in quota.quotas.items()))


_KINDS = ("user", "client-id", "ip")


def _token(token: DelegationToken) -> tuple[Any, ...]:
    expires = time_text(token.expires_at)
    return token.id, token.owner, token.requester, ", ".join(token.renewers) or "-", expires


def _registration(node: Registration) -> tuple[Any, ...]:
    listeners = ", ".join(
        f"{each.name or each.security_protocol} {each.host}:{each.port}" for each in node.listeners
    )
    state = {True: "alive", False: "down", None: "not told"}[node.alive]
    return node.id, node.role, listeners or "-", node.rack or "-", state
