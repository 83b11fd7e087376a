"""The entities of a cluster's metadata, in one form for every source: brokers, ZooKeeper, a controller's metadata log.

Times are in ms since the epoch. Bytes (salts, keys, HMACs) are base64. A secret is null if its source doesn't give
it or where the archive may not hold it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

TopicName = Annotated[str, Meta(pattern=r"^(?!\.{1,2}(?![\s\S]))[A-Za-z0-9._-]{1,249}(?![\s\S])")]
"""By Kafka's own rule. A name becomes a folder of the archive: one that leads elsewhere is none."""
INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state")
Source = Literal["brokers", "zookeeper", "controller log"]
"""The source that a part of the metadata was read from. "controller log": metadata.json's name of a metadata log."""
MetadataPartName = Literal[
    "topics",
    "acls",
    "scram_users",
    "broker_configs",
    "group_configs",
    "client_quotas",
    "delegation_tokens",
    "client_metrics",
    "features",
    "registrations",
    "deletions",
    "next_producer_id",
    "znodes",
]
"""A part of the metadata, as metadata.json names it."""
Reason = Literal["not there", "not supported", "denied", "secret", "failed"]
"""'not there': the cluster has no such thing. 'not supported': the source or the client library can't tell. 'denied':
to the backup's user. 'secret': and the archive is not encrypted."""
QuotaEntity = dict[Literal["user", "client-id", "ip"], str | None]
"""Types and names of what a quota is of; null is the default entity."""
QuotaKey = tuple[tuple[Literal["user", "client-id", "ip"], str | None], ...]
"""A `QuotaEntity` as sorted pairs, which can be hashed."""


def source_name(source: Source) -> str:
    """Return the name of a source in messages and reports."""
    return "metadata log" if source == "controller log" else source


class Entity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class TopicMetadata(Entity, frozen=True, kw_only=True):
    """`configs` has the non-default ones; brokers never give sensitive values, which are left out. `replicas` has the
    ids of the brokers of each partition, the preferred leader first; null if they are unknown."""

    name: TopicName
    id: str
    partitions: int
    replication_factor: int
    internal: bool
    configs: dict[str, str]
    replicas: tuple[tuple[int, ...], ...] | None = None


ACL_RESOURCES = {2: "topic", 3: "group", 4: "cluster", 5: "transactional_id", 6: "delegation_token", 7: "user"}
ACL_PATTERNS = {3: "literal", 4: "prefixed"}
ACL_PERMISSIONS = {2: "deny", 3: "allow"}
ACL_OPERATIONS = {
    **{2: "all", 3: "read", 4: "write", 5: "create", 6: "delete", 7: "alter", 8: "describe"},
    **{9: "cluster_action", 10: "describe_configs", 11: "alter_configs", 12: "idempotent_write"},
    **{13: "create_tokens", 14: "describe_tokens", 15: "two_phase_commit"},
}


class Acl(Entity, frozen=True, kw_only=True):
    """In Kafka's own words, in lower case: `resource` is topic, group, cluster, transactional_id, delegation_token or
    user, `pattern` literal or prefixed."""

    resource: str
    name: str
    pattern: str
    principal: str
    host: str
    operation: str
    permission: str

    @property
    def words(self) -> str:
        """The ACL in one line."""
        return (
            f"{self.permission} {self.operation} for {self.principal} from {self.host} "
            f"on {self.resource} {self.name} ({self.pattern})"
        )


class ScramUser(Entity, frozen=True, kw_only=True):
    """A SCRAM credential. `mechanism` such as SCRAM-SHA-512. Brokers never give the three secrets."""

    user: str
    mechanism: str
    iterations: int
    salt: str | None = None
    stored_key: str | None = None
    server_key: str | None = None


class ClientQuota(Entity, frozen=True, kw_only=True):
    """The quotas of one entity. `entity` maps user, client-id or ip to a name, or to null for the default entity.
    `quotas` maps consumer_byte_rate and the like to its value."""

    entity: QuotaEntity
    quotas: dict[str, float]


class DelegationToken(Entity, frozen=True, kw_only=True):
    """`hmac` is a secret, which a metadata log doesn't hold. Principals are such as User:alice."""

    id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_at: int
    expires_at: int
    max_at: int
    hmac: str | None = None


class BrokerConfig(Entity, frozen=True, kw_only=True):
    """A config set at run time on a broker, or for all of them (`broker` null). `value` is null if it is sensitive."""

    broker: int | None
    name: str
    value: str | None


class GroupConfig(Entity, frozen=True, kw_only=True):
    group: str
    name: str
    value: str | None


class ClientMetrics(Entity, frozen=True, kw_only=True):
    """A subscription to metrics of clients (KIP-714)."""

    name: str
    configs: dict[str, str]


class Feature(Entity, frozen=True, kw_only=True):
    """A finalized feature and its level, such as metadata.version."""

    name: str
    level: int


class Listener(Entity, frozen=True, kw_only=True):
    name: str
    host: str
    port: int
    security_protocol: str


class Registration(Entity, frozen=True, kw_only=True):
    """A broker or a controller as it announced itself. `alive` is null if the source doesn't have it."""

    id: int
    role: Literal["broker", "controller"]
    listeners: tuple[Listener, ...]
    rack: str | None = None
    alive: bool | None = None


class Znode(Entity, frozen=True, kw_only=True):
    """A znode below the chroot, such as /controller, and its text."""

    path: str
    content: str


class NotCarried(Entity, frozen=True, kw_only=True):
    """Metadata of a cluster that is not in a restore point: `part`, or the portion of it that `what` names.

    `part` is null if all metadata is missing, or a kind of metadata that is unknown here."""

    part: MetadataPartName | None
    what: str
    reason: Reason
    why: str


def is_encrypted(value: str) -> bool:
    """Return whether a config's value is as Kafka's PasswordEncoder writes it: `salt:…,encryptedPassword:…`. ZooKeeper
    has sensitive configs so, and a metadata log whose controllers migrated without the brokers' secret."""
    return "encryptedPassword:" in value


# The parts of a cluster's metadata: their names, the identity of their entities, and the order of their sources.

_DEFAULT = "<default>"  # as Kafka's tools call the default entity

SCRAM_SECRETS = "secrets of SCRAM users"
TOKEN_SECRETS = "secrets of delegation tokens"  # noqa: S105 (a name, no secret)
BROKER_SECRETS = "values of sensitive broker configs"
GROUP_SECRETS = "values of sensitive group configs"


@dataclass(frozen=True, slots=True)
class MetadataPart:
    """A part of the metadata: `name` is the member of metadata.json, `label` its name in messages.

    `identity` returns the name of an entity, unique within the part. Of the sources in `order`, the first that has the
    complete part is used; where the brokers' list `is_partial`, the first that has any of it."""

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
    parts: list[str] = []
    for kind, name in sorted(quota.entity.items()):
        shown = _DEFAULT if name is None else repr(name)
        parts.append(f"{kind} {shown}")
    return ", ".join(parts)


def _broker_config(config: BrokerConfig) -> str:
    owner = "all brokers" if config.broker is None else f"broker {config.broker}"
    return f"{config.name} of {owner}"


_name = attrgetter("name")

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
    MetadataPart("delegation_tokens", "delegation tokens", attrgetter("id"), _PARTIAL),
    MetadataPart("client_metrics", "client metrics", _name),
    MetadataPart("features", "features", _name),
    MetadataPart("registrations", "registrations", lambda r: f"{r.role} {r.id}", _PARTIAL),
    MetadataPart("deletions", "topics that wait for deletion", str),
    MetadataPart("next_producer_id", "producer ids", str),
    MetadataPart("znodes", "znodes", attrgetter("path")),
)

LABELS: dict[MetadataPartName, str] = {part.name: part.label for part in PARTS}
"""The name of each part in messages."""


def not_carried_entry(part: MetadataPartName, reason: Reason, why: str) -> NotCarried:
    """Return the entry for a part that is not carried, or not completely."""
    return NotCarried(part=part, what=LABELS[part], reason=reason, why=why)


def reason_for(part: MetadataPartName, not_carried: Iterable[NotCarried]) -> str | None:
    """Return why a part is not carried; None if no entry names it."""
    for entry in not_carried:
        if entry.part == part:
            return entry.why
    return None


# The metadata of a cluster as read from one source.


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The parts of a cluster's metadata that `source` has, named as in metadata.json. None: not read.

    `not_carried` has the reasons, unless the source never has the part. `outdated`: why the source is no longer the
    truth of the cluster, such as ZooKeeper after a migration; "" where it is. `migration`: Kafka's word for the state
    of the migration, from a metadata log that has it. `is_led_by_broker`: by ZooKeeper, a broker is the controller, not
    a KRaft controller."""

    source: Source
    cluster_id: str
    topics: tuple[TopicMetadata, ...] | None = None
    acls: tuple[Acl, ...] | None = None
    scram_users: tuple[ScramUser, ...] | None = None
    broker_configs: tuple[BrokerConfig, ...] | None = None
    group_configs: tuple[GroupConfig, ...] | None = None
    client_quotas: tuple[ClientQuota, ...] | None = None
    delegation_tokens: tuple[DelegationToken, ...] | None = None
    client_metrics: tuple[ClientMetrics, ...] | None = None
    features: tuple[Feature, ...] | None = None
    registrations: tuple[Registration, ...] | None = None
    deletions: tuple[str, ...] | None = None
    next_producer_id: int | None = None
    znodes: tuple[Znode, ...] | None = None
    not_carried: tuple[NotCarried, ...] = ()
    outdated: str = ""
    migration: str = ""
    is_led_by_broker: bool = False

    def source_of(self, part: MetadataPartName) -> Source:
        """Return the source of each part."""
        return self.source
