"""What of a cluster's settings goes into a restore point: ACLs, SCRAM users, dynamic configs.

None of it is worth losing a backup of records: what the cluster does not tell is named, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from kbackup.archive.models import Metadata
from kbackup.kafka.security_admin import SecurityAdmin
from kbackup.kafka.security_types import AclRule, Setting, Untold
from kbackup.metadata.entities import Acl, BrokerConfig, GroupConfig, NotCarried, ScramUser

T = TypeVar("T")
M = TypeVar("M")

ACLS, USERS = "ACLs", "SCRAM users"
BROKER_CONFIGS, GROUP_CONFIGS = "dynamic broker configs", "group configs"

_NO_API = "the client library has no call for it"
_NEVER = tuple(
    NotCarried(what=what, reason="not supported", why=why)
    for what, why in (
        ("client quotas", _NO_API),
        ("delegation tokens", _NO_API),
        ("client metrics subscriptions", _NO_API),
        ("finalized features", f"{_NO_API}; a new cluster gets those of its release"),
        ("secrets of SCRAM users", "brokers never give them"),
    )
)


@dataclass(frozen=True, slots=True)
class Settings:
    """None: not captured, and named in `not_carried`."""

    acls: tuple[Acl, ...] | None
    scram_users: tuple[ScramUser, ...] | None
    broker_configs: tuple[BrokerConfig, ...] | None
    group_configs: tuple[GroupConfig, ...] | None
    not_carried: tuple[NotCarried, ...]


def capture_settings(security: SecurityAdmin, groups: Iterable[str]) -> Settings:
    not_carried: list[NotCarried] = []

    def taken(what: str, told: list[T] | Untold, make: Callable[[T], M]) -> tuple[M, ...] | None:
        if not isinstance(told, Untold):
            return tuple(map(make, told))
        not_carried.append(NotCarried(what=what, reason=told.reason, why=told.why))
        return () if told.reason == "not there" else None

    told = security.acls()
    rules, strange = (told, []) if isinstance(told, Untold) else told
    return Settings(
        acls=taken(ACLS, rules, _acl),
        scram_users=taken(
            USERS,
            security.users(),
            lambda c: ScramUser(user=c.user, mechanism=c.mechanism, iterations=c.iterations),
        ),
        broker_configs=taken(BROKER_CONFIGS, security.broker_configs(), _broker_config),
        group_configs=taken(
            GROUP_CONFIGS,
            security.group_configs(groups),
            lambda s: GroupConfig(group=s.owner, name=s.name, value=s.value),
        ),
        not_carried=(*not_carried, *map(_strange, strange), *_NEVER),
    )


def settings_warnings(metadata: Metadata) -> list[str]:
    """What somebody can do something about; a cluster without authorizer is as it is meant to be."""
    denied = [n for n in metadata.not_carried if n.reason == "denied"]
    failed = [n for n in metadata.not_carried if n.reason == "failed"]
    warnings = [f"{n.what} are not in this restore point: {n.why}" for n in failed]
    if denied:
        names = ", ".join(n.what for n in denied)
        warnings.append(f"not in this restore point, since its user may not describe them: {names}")
    return warnings


def _acl(rule: AclRule) -> Acl:
    return Acl(**rule._asdict())


def _broker_config(setting: Setting) -> BrokerConfig:
    broker = int(setting.owner) if setting.owner else None
    return BrokerConfig(broker=broker, name=setting.name, value=setting.value)


def _strange(words: str) -> NotCarried:
    why = "the client library does not know this kind of ACL"
    return NotCarried(what=f"ACL: {words}", reason="not supported", why=why)
