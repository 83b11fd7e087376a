"""What of a cluster's settings goes into a restore point: ACLs, SCRAM users, dynamic configs, client quotas, delegation
tokens, client metrics, features and registrations.

None of it is worth losing a backup of records: what the cluster does not tell is named, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from kbackup.archive.models import Metadata
from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.admin.security import SecurityAdmin
from kbackup.kafka.admin.security_types import AclRule, Setting, Untold
from kbackup.kafka.admin_protocol.session import Session
from kbackup.metadata.entities import Acl, BrokerConfig, GroupConfig, MetadataPartName, NotCarried, ScramUser
from kbackup.metadata.parts import SCRAM_SECRETS, not_carried_entry
from kbackup.metadata.reading import Reading

if TYPE_CHECKING:
    from kbackup.kafka.admin_protocol.reader import Reader  # which loads kafka-python

T = TypeVar("T")
M = TypeVar("M")

NEVER = (
    NotCarried(part="scram_users", what=SCRAM_SECRETS, reason="not supported", why="brokers never tell them"),
)
"""What no broker tells, of parts that brokers tell otherwise."""


def capture_settings(cluster: Cluster, groups: Iterable[str], cluster_id: str = "") -> Reading:
    """Ask the brokers for all of it; secrets that they tell are among the answers."""
    security = cluster.security
    not_carried: list[NotCarried] = []

    def taken(
        part: MetadataPartName, told: Sequence[T] | Untold, make: Callable[[T], M]
    ) -> tuple[M, ...] | None:
        if not isinstance(told, Untold):
            return tuple(map(make, told))
        not_carried.append(not_carried_entry(part, told.reason, told.why))
        return () if told.reason == "not there" else None

    def as_it_is(part: MetadataPartName, told: Sequence[T] | Untold) -> tuple[T, ...] | None:
        return taken(part, told, lambda each: each)

    with cluster.admin_session() as session:
        rules, strange = _acls(security, session)
        return Reading(
            source="brokers",
            cluster_id=cluster_id,
            acls=taken("acls", rules, _acl),
            scram_users=taken(
                "scram_users",
                security.users(),
                lambda c: ScramUser(user=c.user, mechanism=c.mechanism, iterations=c.iterations),
            ),
            broker_configs=taken("broker_configs", _broker_configs(security, session), _broker_config),
            group_configs=taken(
                "group_configs",
                security.group_configs(groups),
                lambda s: GroupConfig(group=s.owner, name=s.name, value=s.value),
            ),
            client_quotas=as_it_is("client_quotas", _asked(session, lambda s: s.client_quotas())),
            delegation_tokens=as_it_is("delegation_tokens", _asked(session, lambda s: s.delegation_tokens())),
            client_metrics=as_it_is("client_metrics", _asked(session, lambda s: s.client_metrics())),
            features=as_it_is("features", _asked(session, lambda s: s.features())),
            registrations=as_it_is("registrations", _asked(session, lambda s: s.registrations())),
            not_carried=(*not_carried, *map(_strange, strange)),
        )


def _asked(session: Session | Untold, ask: Callable[[Reader], T | Untold]) -> T | Untold:
    return session if isinstance(session, Untold) else ask(session.read)


def _acls(security: SecurityAdmin, session: Session | Untold) -> tuple[list[AclRule] | Untold, list[str]]:
    """Every ACL; confluent-kafka knows none on delegation tokens and users."""
    told = security.acls()
    if not isinstance(told, Untold) and told[1]:
        again = _asked(session, lambda s: s.acls())
        told = told if isinstance(again, Untold) else again
    return (told, []) if isinstance(told, Untold) else told


def _broker_configs(security: SecurityAdmin, session: Session | Untold) -> list[Setting] | Untold:
    """The configs of each broker, and the cluster-wide default; where that can't be asked for, the part of it that
    brokers inherit."""
    told = security.broker_configs()
    default = _asked(session, lambda s: s.default_broker_configs())
    if isinstance(told, Untold) or isinstance(default, Untold):
        return told
    return [*default, *(setting for setting in told if setting.owner)]


def settings_warnings(metadata: Metadata) -> list[str]:
    """What somebody can do something about; a cluster without authorizer is as it is meant to be."""
    denied = [n for n in metadata.not_carried if n.reason == "denied"]
    failed = [n for n in metadata.not_carried if n.reason == "failed"]
    by_reason: dict[str, list[str]] = {}
    for n in failed:
        by_reason.setdefault(n.why, []).append(n.what)
    warnings = [
        f"{', '.join(names)} are not in this restore point: {why}" for why, names in by_reason.items()
    ]
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
    return NotCarried(part="acls", what=f"ACL: {words}", reason="not supported", why=why)
