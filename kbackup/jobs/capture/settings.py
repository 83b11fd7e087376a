"""Capture a cluster's settings for a restore point.

Settings are ACLs, SCRAM users, dynamic configs, client quotas, delegation tokens, client metrics, features and
registrations. Settings that can't be read don't end a backup: the restore point names them, with the reason.
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
"""Entries that brokers never return, of metadata that brokers return otherwise."""


def capture_settings(cluster: Cluster, groups: Iterable[str], cluster_id: str = "") -> Reading:
    """Read all settings from the brokers, with the secrets that they return."""
    security = cluster.security
    not_carried: list[NotCarried] = []

    def convert(
        part: MetadataPartName, answer: Sequence[T] | Untold, make: Callable[[T], M]
    ) -> tuple[M, ...] | None:
        if not isinstance(answer, Untold):
            return tuple(map(make, answer))
        not_carried.append(not_carried_entry(part, answer.reason, answer.why))
        return () if answer.reason == "not there" else None

    def unchanged(part: MetadataPartName, answer: Sequence[T] | Untold) -> tuple[T, ...] | None:
        return convert(part, answer, lambda entry: entry)

    with cluster.admin_session() as session:
        rules, strange = _acls(security, session)
        return Reading(
            source="brokers",
            cluster_id=cluster_id,
            acls=convert("acls", rules, _acl),
            scram_users=convert(
                "scram_users",
                security.users(),
                lambda c: ScramUser(user=c.user, mechanism=c.mechanism, iterations=c.iterations),
            ),
            broker_configs=convert("broker_configs", _broker_configs(security, session), _broker_config),
            group_configs=convert(
                "group_configs",
                security.group_configs(groups),
                lambda s: GroupConfig(group=s.owner, name=s.name, value=s.value),
            ),
            client_quotas=unchanged("client_quotas", _asked(session, lambda s: s.client_quotas())),
            delegation_tokens=unchanged(
                "delegation_tokens", _asked(session, lambda s: s.delegation_tokens())
            ),
            client_metrics=unchanged("client_metrics", _asked(session, lambda s: s.client_metrics())),
            features=unchanged("features", _asked(session, lambda s: s.features())),
            registrations=unchanged("registrations", _asked(session, lambda s: s.registrations())),
            not_carried=(*not_carried, *map(_strange, strange)),
        )


def _asked(session: Session | Untold, ask: Callable[[Reader], T | Untold]) -> T | Untold:
    return session if isinstance(session, Untold) else ask(session.read)


def _acls(security: SecurityAdmin, session: Session | Untold) -> tuple[list[AclRule] | Untold, list[str]]:
    """Return every ACL, and the ones of a kind that is not known.

    confluent-kafka knows no ACLs of delegation tokens and users: kafka-python reads them.
    """
    acls = security.acls()
    if not isinstance(acls, Untold) and acls[1]:
        all_kinds = _asked(session, lambda s: s.acls())
        acls = acls if isinstance(all_kinds, Untold) else all_kinds
    return (acls, []) if isinstance(acls, Untold) else acls


def _broker_configs(security: SecurityAdmin, session: Session | Untold) -> list[Setting] | Untold:
    """Return the configs of each broker, and the cluster-wide default.

    Where the default can't be read, the result has the default entries that brokers inherit.
    """
    configs = security.broker_configs()
    default = _asked(session, lambda s: s.default_broker_configs())
    if isinstance(configs, Untold) or isinstance(default, Untold):
        return configs
    return [*default, *(setting for setting in configs if setting.owner)]


def settings_warnings(metadata: Metadata) -> list[str]:
    """Return warnings of settings that were denied or failed; a cluster without authorizer is no reason to warn."""
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
        warnings.append(
            f"not in this restore point, since its user may not describe them: {names}; "
            "to see which rights it lacks: kbackup check"
        )
    return warnings


def _acl(rule: AclRule) -> Acl:
    return Acl(**rule._asdict())


def _broker_config(setting: Setting) -> BrokerConfig:
    broker = int(setting.owner) if setting.owner else None
    return BrokerConfig(broker=broker, name=setting.name, value=setting.value)


def _strange(words: str) -> NotCarried:
    why = "the client library does not know this kind of ACL"
    return NotCarried(part="acls", what=f"ACL: {words}", reason="not supported", why=why)
