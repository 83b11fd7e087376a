"""The metadata that a log adds up to, in the form that every source of metadata has."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path

from msgspec.structs import astuple

from kbackup.errors import CorruptError
from kbackup.kafka.metadata_log.image import Fields, MetadataImage, read_image
from kbackup.kafka.metadata_log.log import find_log, read_identity
from kbackup.kafka.metadata_log.words import (
    BROKER,
    CLIENT_METRICS,
    GROUP,
    INTERNAL,
    MECHANISMS,
    OPERATIONS,
    PATTERNS,
    PERMISSIONS,
    PRE_MIGRATION,
    PROTOCOLS,
    RESOURCES,
    TOPIC,
    word,
)
from kbackup.metadata.encoder import is_encrypted
from kbackup.metadata.entities import (
    Acl,
    BrokerConfig,
    ClientMetrics,
    ClientQuota,
    DelegationToken,
    Feature,
    GroupConfig,
    Listener,
    NotCarried,
    Registration,
    ScramUser,
    TopicMetadata,
)
from kbackup.metadata.parts import BROKER_SECRETS, TOKEN_SECRETS
from kbackup.metadata.reading import Reading
from kbackup.util.text import shorten

_HINT = "read the metadata log of another controller"
_NAMED = 5


def read_metadata_log(folder: Path) -> Reading:
    """Read a controller's `metadata.log.dir`, or a copy of it: what its metadata log says of the cluster.

    `folder` may also be `__cluster_metadata-0` itself. The cluster's id is in meta.properties; it is "" where that file
    wasn't copied. `UsageError` where there is no log, `CorruptError` where it is damaged.
    """
    log = find_log(folder)
    cluster_id = read_identity(log).get("cluster.id", "")
    return reading_of(read_image(log), cluster_id)


def reading_of(image: MetadataImage, cluster_id: str) -> Reading:
    """Return all that an image tells, each list in the order of its names."""
    return Reading(
        source="controller log",
        cluster_id=cluster_id,
        topics=tuple(_topic(image, id_) for id_ in sorted(image.topics, key=image.topics.__getitem__)),
        acls=tuple(sorted(map(_acl, image.acls.values()), key=astuple)),
        scram_users=tuple(_scram_user(image.scram[key]) for key in sorted(image.scram)),
        broker_configs=tuple(_broker_configs(image)),
        group_configs=tuple(
            GroupConfig(group=group, name=name, value=value)
            for group, configs in _configs(image, GROUP)
            for name, value in configs.items()
        ),
        client_quotas=tuple(_quotas(image)),
        delegation_tokens=tuple(_token(image.tokens[id_]) for id_ in sorted(image.tokens)),
        client_metrics=tuple(ClientMetrics(name=n, configs=c) for n, c in _configs(image, CLIENT_METRICS)),
        features=tuple(Feature(name=name, level=level) for name, level in sorted(image.features.items())),
        registrations=tuple(_registrations(image)),
        deletions=(),  # a KRaft controller deletes a topic at once
        next_producer_id=image.next_producer_id,
        not_carried=tuple(_not_carried(image)),
        outdated=_outdated(image),
        migration=image.migration or "",
    )


def _configs(image: MetadataImage, kind: int) -> Iterator[tuple[str, dict[str, str]]]:
    for resource in sorted(image.configs):
        if resource[0] == kind:
            yield resource[1], dict(sorted(image.configs[resource].items()))


def _topic(image: MetadataImage, id_: str) -> TopicMetadata:
    name = image.topics[id_]
    partitions = image.partitions.get(id_, {})
    if sorted(partitions) != list(range(len(partitions))):
        raise CorruptError(f"metadata log: topic {name} has the partitions {sorted(partitions)}", _HINT)
    replicas = tuple(tuple(partitions[p]["replicas"]) for p in sorted(partitions))
    return TopicMetadata(
        name=name,
        id=id_,
        partitions=len(partitions),
        replication_factor=max(map(len, replicas), default=0),
        internal=name in INTERNAL,
        configs=dict(sorted(image.configs.get((TOPIC, name), {}).items())),
        replicas=replicas,
    )


def _acl(data: Fields) -> Acl:
    return Acl(
        resource=word(RESOURCES, data["resourceType"]),
        name=data["resourceName"],
        pattern=word(PATTERNS, data["patternType"]),
        principal=data["principal"],
        host=data["host"],
        operation=word(OPERATIONS, data["operation"]),
        permission=word(PERMISSIONS, data["permissionType"]),
    )


def _scram_user(data: Fields) -> ScramUser:
    salt, stored_key, server_key = (
        base64.b64encode(data[name]).decode() for name in ("salt", "storedKey", "serverKey")
    )
    return ScramUser(
        user=data["name"],
        mechanism=word(MECHANISMS, data["mechanism"]),
        iterations=data["iterations"],
        salt=salt,
        stored_key=stored_key,
        server_key=server_key,
    )


def _broker_configs(image: MetadataImage) -> Iterator[BrokerConfig]:
    """Yield those for all brokers first, then those of each broker. A value that the migration left encrypted is as
    unknown as in ZooKeeper."""
    try:
        owners = sorted((int(owner) if owner else -1, configs) for owner, configs in _configs(image, BROKER))
    except ValueError as error:
        raise CorruptError(
            f"metadata log: configs of a broker whose id is no number: {error}", _HINT
        ) from None
    for owner, configs in owners:
        for name, value in configs.items():
            known = None if is_encrypted(value) else value
            yield BrokerConfig(broker=None if owner < 0 else owner, name=name, value=known)


def _quotas(image: MetadataImage) -> Iterator[ClientQuota]:
    for entity in sorted(image.quotas, key=lambda e: [(kind, name or "") for kind, name in e]):
        quotas = dict(sorted(image.quotas[entity].items()))
        yield ClientQuota(entity=dict(entity), quotas=quotas)  # type: ignore[arg-type]  # Kafka has no other types


def _token(data: Fields) -> DelegationToken:
    return DelegationToken(
        id=data["tokenId"],
        owner=data["owner"],
        requester=data["requester"],
        renewers=tuple(data["renewers"]),
        issued_at=data["issueTimestamp"],
        expires_at=data["expirationTimestamp"],
        max_at=data["maxTimestamp"],
    )


def _registrations(image: MetadataImage) -> Iterator[Registration]:
    for id_, broker in sorted(image.brokers.items()):
        yield Registration(
            id=id_,
            role="broker",
            listeners=_listeners(broker["endPoints"]),
            rack=broker["rack"],
            alive=not broker["fenced"],
        )
    for id_, controller in sorted(image.controllers.items()):
        yield Registration(id=id_, role="controller", listeners=_listeners(controller["endPoints"]))


def _listeners(endpoints: Iterable[Fields]) -> tuple[Listener, ...]:
    """Return them in the order of their names: a snapshot has another order than the broker's own record."""
    return tuple(
        Listener(
            name=each["name"],
            host=each["host"],
            port=each["port"],
            security_protocol=word(PROTOCOLS, each["securityProtocol"]),
        )
        for each in sorted(endpoints, key=itemgetter("name"))
    )


def _not_carried(image: MetadataImage) -> Iterator[NotCarried]:
    for name, count in sorted(image.unknown.items()):
        yield NotCarried(
            part=None,
            what=name,
            reason="not supported",
            why=f"{count} such records are of a newer Kafka than kbackup knows",
        )
    if image.tokens:
        why = "a metadata log doesn't hold the HMACs"
        yield NotCarried(part="delegation_tokens", what=TOKEN_SECRETS, reason="not supported", why=why)
    if encrypted := {each.name for each in _broker_configs(image) if each.value is None}:
        why = (
            f"the controllers migrated {shorten(sorted(encrypted), _NAMED)} without the brokers' "
            "password.encoder.secret, so that the metadata log has ciphertext as the value: give the controllers the "
            "secret, then set these configs again"
        )
        yield NotCarried(part="broker_configs", what=BROKER_SECRETS, reason="failed", why=why)


def _outdated(image: MetadataImage) -> str:
    waiting = image.migration_state == PRE_MIGRATION
    return "the controllers have not copied ZooKeeper's metadata yet" if waiting else ""
