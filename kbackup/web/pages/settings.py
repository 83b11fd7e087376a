"""Tables of a cluster's settings in a restore point. Secrets are never shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kbackup.archive.models import Metadata
from kbackup.archive.secrets import without_secrets
from kbackup.metadata.entities import ClientQuota, DelegationToken, MetadataPartName, Registration
from kbackup.metadata.parts import reason_for
from kbackup.util.times import time_text


class SettingsTable(NamedTuple):
    """A table of settings. `rows` is None if nothing was captured; `why` says why."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]] | None
    why: str


class _Spec(NamedTuple):
    title: str
    kind: MetadataPartName
    columns: str  # with commas between
    row: Callable[[Any], tuple[Any, ...]]


def settings_tables(archived: Metadata) -> list[SettingsTable]:
    """Return a table for each kind of settings, in the order of the page."""
    metadata = without_secrets(archived)
    return [_table(spec, metadata, archived) for spec in _SPECS]


def _table(spec: _Spec, metadata: Metadata, archived: Metadata) -> SettingsTable:
    entities = getattr(metadata, spec.kind)
    rows = None if entities is None else list(map(spec.row, entities))
    why = reason_for(spec.kind, archived.not_carried) or ""
    return SettingsTable(spec.title, tuple(spec.columns.split(",")), rows, why)


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
    state = {True: "alive", False: "down", None: "unknown"}[node.alive]
    return node.id, node.role, listeners or "-", node.rack or "-", state


_SPECS = (
    _Spec(
        "ACLs",
        "acls",
        "permission,principal,host,operation,resource,name,pattern",
        lambda a: (a.permission, a.principal, a.host, a.operation, a.resource, a.name, a.pattern),
    ),
    _Spec(
        "SCRAM users",
        "scram_users",
        "user,mechanism,iterations",
        lambda u: (u.user, u.mechanism, u.iterations),
    ),
    _Spec(
        "Configs of brokers",
        "broker_configs",
        "broker,name,value",
        lambda c: ("all" if c.broker is None else c.broker, c.name, c.value),
    ),
    _Spec(
        "Configs of groups",
        "group_configs",
        "group,name,value",
        lambda c: (c.group, c.name, c.value),
    ),
    _Spec(
        "Client quotas",
        "client_quotas",
        "user,client id,ip,quotas",
        _quota,
    ),
    _Spec(
        "Delegation tokens",
        "delegation_tokens",
        "token,owner,requester,renewers,expires",
        _token,
    ),
    _Spec(
        "Client metrics",
        "client_metrics",
        "subscription,configs",
        lambda m: (m.name, ", ".join(f"{name}={value}" for name, value in m.configs.items())),
    ),
    _Spec(
        "Features",
        "features",
        "feature,level",
        lambda f: (f.name, f.level),
    ),
    _Spec(
        "Brokers and controllers",
        "registrations",
        "id,role,listeners,rack,state",
        _registration,
    ),
)
