"""The cluster metadata that the records of a metadata log add up to, in Kafka's own words."""

from __future__ import annotations

import base64
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

from msgspec.structs import astuple

from kbackup.errors import CorruptError
from kbackup.metadata import entities
from kbackup.metadata.entities import Acl, ClientQuota, DelegationToken, NotCarried, ScramUser
from kbackup.migrate.metadata_log.codec import MetadataRecord
from kbackup.migrate.metadata_log.log import LogRecord, MetadataLog, find_log, open_log, read_identity
from kbackup.util.text import join_names

# types of resources in a ConfigRecord
TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32

MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
PROTOCOLS = {0: "PLAINTEXT", 1: "SSL", 2: "SASL_PLAINTEXT", 3: "SASL_SSL"}
PRE_MIGRATION = 2
MIGRATION_STATES = {0: "NONE", 1: "MIGRATION", PRE_MIGRATION: "PRE_MIGRATION", 3: "POST_MIGRATION", 4: "ZK"}


def word(words: dict[int, str], number: int) -> str:
    """Return Kafka's word for a number; the number itself for one of a newer Kafka."""
    return words.get(number, str(number))


# Replay the records of a metadata log into the state of the cluster, as Kafka itself does.


_PATIENCE = 2.0
"""Seconds for a running controller to write more: it writes a NoOpRecord every half second."""
_PAUSE = 0.1  # s
_UNFINISHED = "copy the folder again, or read another controller's; a controller repairs its own log when it starts"
_UNCHANGED = {"leader": -2, "leaderRecoveryState": -1}
"""The values of unchanged fields in a PartitionChangeRecord; all other unchanged fields are null."""

_IN_ZOOKEEPER = {
    "TopicRecord",
    "PartitionRecord",
    "PartitionChangeRecord",
    "RemoveTopicRecord",
    "ConfigRecord",
    "ClientQuotaRecord",
    "UserScramCredentialRecord",
    "RemoveUserScramCredentialRecord",
    "AccessControlEntryRecord",
    "RemoveAccessControlEntryRecord",
    "DelegationTokenRecord",
    "RemoveDelegationTokenRecord",
    "ProducerIdsRecord",
}
"""The records that a migration's controllers write to ZooKeeper as well. Registrations and features stay theirs."""

Fields = dict[str, Any]


@dataclass
class MetadataImage:
    """The metadata of a cluster at one offset of its log. Values are fields of records, named as Kafka names them.

    Records up to `offset` (exclusive) are replayed; `epoch` is the last one's. `open_transaction` counts records at the
    end whose transaction has not ended: they are not replayed. `unknown` counts the records whose type or version is
    not known, by name. `torn` is as in `MetadataLog`."""

    offset: int = 0
    epoch: int = 0
    torn: str | None = None
    open_transaction: int = 0
    unknown: Counter[str] = field(default_factory=Counter)
    topics: dict[str, str] = field(default_factory=dict)  # names by id
    # by topic id, by partition: fields of a PartitionRecord
    partitions: dict[str, dict[int, Fields]] = field(default_factory=dict)
    # by the type and the name of the resource
    configs: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)
    # by the entity: pairs of a type and a name, which is None for the default
    quotas: dict[tuple[tuple[str, str | None], ...], dict[str, float]] = field(default_factory=dict)
    acls: dict[str, Fields] = field(default_factory=dict)  # by id
    scram: dict[tuple[str, int], Fields] = field(default_factory=dict)  # by user and mechanism
    tokens: dict[str, Fields] = field(default_factory=dict)  # by id
    features: dict[str, int] = field(default_factory=dict)
    brokers: dict[int, Fields] = field(default_factory=dict)
    controllers: dict[int, Fields] = field(default_factory=dict)
    next_producer_id: int | None = None
    # ids of the quorum's controllers; none where neither a leader's record nor a snapshot has them
    voters: frozenset[int] = frozenset()
    migration_state: int | None = None  # None if there is no such record

    @property
    def unfinished(self) -> str:
        """Why records at the end of the log are missing; "" where it is whole."""
        if self.torn:
            return f"{self.torn}: the file ends within a batch; records from offset {self.offset} on are missing"
        if self.open_transaction:
            return f"the log ends at offset {self.offset}, within a transaction"
        return ""

    @property
    def migration(self) -> str | None:
        """Kafka's word for the state of the migration from ZooKeeper, such as MIGRATION while both are written."""
        return None if self.migration_state is None else word(MIGRATION_STATES, self.migration_state)

    def replay(self, record: MetadataRecord) -> None:
        """Apply one record. The caller handles the begin and the end of a transaction."""
        if not isinstance(record.data, dict):
            self.unknown[f"{record.name}, version {record.version}"] += 1
            return
        effect = _EFFECTS.get(record.name)
        if effect is not None:
            effect(self, record.data)

    def _topic(self, data: Fields) -> None:
        self.topics[data["topicId"]] = data["name"]

    def _partition(self, data: Fields) -> None:
        partitions = self.partitions.setdefault(data["topicId"], {})
        partitions[data["partitionId"]] = data

    def _partition_change(self, data: Fields) -> None:
        known = self.partitions.get(data["topicId"], {}).get(data["partitionId"])
        # The topic was removed before the change came.
        if known is None:
            return
        for name, value in data.items():
            if name in known and value != _UNCHANGED.get(name):
                known[name] = value
        # Kafka counts both epochs itself: a change has neither.
        known["partitionEpoch"] += 1
        if data["leader"] != _UNCHANGED["leader"]:
            known["leaderEpoch"] += 1

    def _remove_topic(self, data: Fields) -> None:
        self.partitions.pop(data["topicId"], None)
        name = self.topics.pop(data["topicId"], None)
        if name is not None:
            self.configs.pop((TOPIC, name), None)

    def _config(self, data: Fields) -> None:
        resource = (data["resourceType"], data["resourceName"])
        _set(self.configs, resource, data["name"], data["value"])

    def _quota(self, data: Fields) -> None:
        names = {part["entityType"]: part["entityName"] for part in data["entity"]}
        entity = tuple(sorted(names.items()))
        value = None if data["remove"] else data["value"]
        _set(self.quotas, entity, data["key"], value)

    def _acl(self, data: Fields) -> None:
        self.acls[data["id"]] = data

    def _remove_acl(self, data: Fields) -> None:
        self.acls.pop(data["id"], None)

    def _scram_credential(self, data: Fields) -> None:
        self.scram[data["name"], data["mechanism"]] = data

    def _remove_scram_credential(self, data: Fields) -> None:
        self.scram.pop((data["name"], data["mechanism"]), None)

    def _delegation_token(self, data: Fields) -> None:
        self.tokens[data["tokenId"]] = data

    def _remove_delegation_token(self, data: Fields) -> None:
        self.tokens.pop(data["tokenId"], None)

    def _next_producer_id(self, data: Fields) -> None:
        self.next_producer_id = data["nextProducerId"]

    def _migration_state(self, data: Fields) -> None:
        self.migration_state = data["zkMigrationState"]

    def _feature(self, data: Fields) -> None:
        self._set_feature(data["name"], data["featureLevel"])

    def _kraft_version(self, data: Fields) -> None:
        self._set_feature("kraft.version", data["kRaftVersion"])

    def _set_feature(self, name: str, level: int) -> None:
        """Set the level of a feature; level 0 takes the feature away."""
        if level:
            self.features[name] = level
        else:
            self.features.pop(name, None)

    def _broker(self, data: Fields) -> None:
        self.brokers[data["brokerId"]] = data

    def _unregister_broker(self, data: Fields) -> None:
        self.brokers.pop(data["brokerId"], None)

    def _fence(self, data: Fields) -> None:
        self._set_fenced(data["id"], True)

    def _unfence(self, data: Fields) -> None:
        self._set_fenced(data["id"], False)

    def _set_fenced(self, broker_id: int, fenced: bool) -> None:
        broker = self.brokers.get(broker_id)
        if broker is not None:
            broker["fenced"] = fenced

    def _registration_change(self, data: Fields) -> None:
        broker = self.brokers.get(data["brokerId"])
        if broker is None:
            return
        if data["fenced"]:  # 1 fences, -1 unfences, and 0 leaves the broker as it is
            broker["fenced"] = data["fenced"] > 0
        if data.get("inControlledShutdown"):
            broker["inControlledShutdown"] = True
        if data.get("logDirs"):
            broker["logDirs"] = data["logDirs"]

    def _controller(self, data: Fields) -> None:
        self.controllers[data["controllerId"]] = data

    def _unregister_controller(self, data: Fields) -> None:
        self.controllers.pop(data["controllerId"], None)

    def _voters(self, data: Fields) -> None:
        self.voters = frozenset(voter["voterId"] for voter in data["voters"])


def _set(table: dict[Any, dict[str, Any]], owner: Any, name: str, value: Any) -> None:
    """Set a value of an owner, or remove it where it is None; an owner without values goes."""
    values = table.setdefault(owner, {})
    values[name] = value
    if value is None:
        del values[name]
    if not values:
        del table[owner]


_EFFECTS: dict[str, Callable[[MetadataImage, Fields], None]] = {
    "RegisterBrokerRecord": MetadataImage._broker,
    "UnregisterBrokerRecord": MetadataImage._unregister_broker,
    "FenceBrokerRecord": MetadataImage._fence,
    "UnfenceBrokerRecord": MetadataImage._unfence,
    "BrokerRegistrationChangeRecord": MetadataImage._registration_change,
    "RegisterControllerRecord": MetadataImage._controller,
    "UnregisterControllerRecord": MetadataImage._unregister_controller,
    "TopicRecord": MetadataImage._topic,
    "PartitionRecord": MetadataImage._partition,
    "PartitionChangeRecord": MetadataImage._partition_change,
    "RemoveTopicRecord": MetadataImage._remove_topic,
    "ConfigRecord": MetadataImage._config,
    "ClientQuotaRecord": MetadataImage._quota,
    "AccessControlEntryRecord": MetadataImage._acl,
    "RemoveAccessControlEntryRecord": MetadataImage._remove_acl,
    "UserScramCredentialRecord": MetadataImage._scram_credential,
    "RemoveUserScramCredentialRecord": MetadataImage._remove_scram_credential,
    "DelegationTokenRecord": MetadataImage._delegation_token,
    "RemoveDelegationTokenRecord": MetadataImage._remove_delegation_token,
    "FeatureLevelRecord": MetadataImage._feature,
    "KRaftVersionRecord": MetadataImage._kraft_version,
    "LeaderChangeMessage": MetadataImage._voters,
    "VotersRecord": MetadataImage._voters,
    "ProducerIdsRecord": MetadataImage._next_producer_id,
    "ZkMigrationStateRecord": MetadataImage._migration_state,
}
"""What a record does, by the name of its type. A type that is not here has no effect on the metadata."""


def read_image(folder: Path) -> MetadataImage:
    """Read the folder `__cluster_metadata-0`: its newest snapshot, and every later record.

    Records of a transaction take effect at its end; if the transaction is aborted, none of them does. A running
    controller may be writing a batch or a transaction: the folder is read again until the log is whole, or has grown.
    `CorruptError` if the log stays as it is."""
    until = time.monotonic() + _PATIENCE
    first = replay_log(open_log(folder))
    image = first
    # A log that has grown shows a controller at work: what was unfinished at first is whole by then, and what is
    # unfinished now is another batch, which a busy controller would always have.
    while image.unfinished and image.offset <= first.offset:
        if time.monotonic() > until:
            raise CorruptError(f"{folder}: {image.unfinished}", _UNFINISHED)
        time.sleep(_PAUSE)
        image = replay_log(open_log(folder))
    return image


def records_for_zookeeper(folder: Path, start: int) -> list[LogRecord]:
    """Return the records from offset `start` on that a migration writes to ZooKeeper, and the unknown records."""
    found: list[LogRecord] = []
    for later in open_log(folder).later_records(start):
        # A record of a newer Kafka may be one of them: nobody can tell.
        if later.record.name in _IN_ZOOKEEPER or not later.record.known:
            found.append(later)
    return found


def replay_log(log: MetadataLog) -> MetadataImage:
    """Return the image that a log adds up to: its snapshot, and the later records whose transaction has ended."""
    image = MetadataImage()
    for kept in log.snapshot_records():
        image.replay(kept.record)
    pending: list[MetadataRecord] | None = None  # records of a transaction that has not ended
    for later in log.later_records():
        name = later.record.name
        if name == "BeginTransactionRecord":
            pending = []
        elif name in ("EndTransactionRecord", "AbortTransactionRecord"):
            if name == "EndTransactionRecord":
                for each in pending or ():
                    image.replay(each)
            pending = None
        elif pending is None or later.record.control:
            # Control records are of the quorum, not of the metadata: transactions don't hold them.
            image.replay(later.record)
        else:
            pending.append(later.record)
    image.open_transaction = 0 if pending is None else len(pending) + 1
    image.offset = log.end_offset
    image.epoch = log.epoch
    image.torn = log.torn
    return image


# The metadata that a log adds up to, in the form that every source of metadata has.


_HINT = "read the metadata log of another controller"
_NOT_COPIED = "the controllers have not copied ZooKeeper's metadata yet"
_NAMED = 5
_ALL_BROKERS = -1
"""Stands for the owner of configs for all brokers; it sorts before every id."""


def read_metadata_log(folder: Path) -> entities.Reading:
    """Read a controller's `metadata.log.dir`, or a copy of it: the cluster's metadata by its metadata log.

    `folder` may also be `__cluster_metadata-0` itself. The cluster's id is in meta.properties; it is "" where that file
    wasn't copied. `UsageError` if there is no log, `CorruptError` if it is damaged."""
    log = find_log(folder)
    cluster_id = read_identity(log).get("cluster.id", "")
    return reading_of(read_image(log), cluster_id)


def reading_of(image: MetadataImage, cluster_id: str) -> entities.Reading:
    """Return all of an image, each list in the order of its names."""
    ids_by_name = sorted(image.topics, key=lambda id_: image.topics[id_])
    topics = [_topic(image, id_) for id_ in ids_by_name]
    acls = [_acl(data) for data in image.acls.values()]
    acls.sort(key=astuple)
    users = [_scram_user(image.scram[key]) for key in sorted(image.scram)]
    tokens = [_token(image.tokens[id_]) for id_ in sorted(image.tokens)]
    metrics: list[entities.ClientMetrics] = []
    for name, configs in _configs(image, CLIENT_METRICS):
        metrics.append(entities.ClientMetrics(name=name, configs=configs))
    features: list[entities.Feature] = []
    for name, level in sorted(image.features.items()):
        features.append(entities.Feature(name=name, level=level))
    # Before the copy the log has only what the controllers know themselves.
    outdated = _NOT_COPIED if image.migration_state == PRE_MIGRATION else ""
    return entities.Reading(
        source="controller log",
        cluster_id=cluster_id,
        topics=tuple(topics),
        acls=tuple(acls),
        scram_users=tuple(users),
        broker_configs=tuple(_broker_configs(image)),
        group_configs=tuple(_group_configs(image)),
        client_quotas=tuple(_client_quotas(image)),
        delegation_tokens=tuple(tokens),
        client_metrics=tuple(metrics),
        features=tuple(features),
        registrations=tuple(_registrations(image)),
        deletions=(),  # a KRaft controller deletes a topic at once
        next_producer_id=image.next_producer_id,
        not_carried=tuple(_not_carried(image)),
        outdated=outdated,
        migration=image.migration or "",
    )


def _group_configs(image: MetadataImage) -> Iterator[entities.GroupConfig]:
    for group, configs in _configs(image, GROUP):
        for name, value in configs.items():
            yield entities.GroupConfig(group=group, name=name, value=value)


def _client_quotas(image: MetadataImage) -> Iterator[ClientQuota]:
    for entity in sorted(image.quotas, key=_by_names):
        quotas = dict(sorted(image.quotas[entity].items()))
        yield ClientQuota(entity=dict(entity), quotas=quotas)  # type: ignore[arg-type]  # no other types


def _by_names(entity: tuple[tuple[str, str | None], ...]) -> list[tuple[str, str]]:
    """Return the key to sort entities by; None, the default, comes before all names."""
    return [(kind, name or "") for kind, name in entity]


def _configs(image: MetadataImage, kind: int) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the name and the configs of each resource of a type."""
    for resource_kind, name in sorted(image.configs):
        if resource_kind == kind:
            configs = image.configs[resource_kind, name]
            yield name, dict(sorted(configs.items()))


def _topic(image: MetadataImage, id_: str) -> entities.TopicMetadata:
    name = image.topics[id_]
    partitions = image.partitions.get(id_, {})
    numbers = sorted(partitions)
    # Kafka numbers partitions from 0 without gaps.
    if numbers != list(range(len(numbers))):
        raise CorruptError(f"metadata log: topic {name} has the partitions {numbers}", _HINT)
    replicas = [tuple(partitions[number]["replicas"]) for number in numbers]
    # A reassignment that is under way gives some partitions more replicas for a while.
    replication_factor = max(map(len, replicas), default=0)
    configs = image.configs.get((TOPIC, name), {})
    return entities.TopicMetadata(
        name=name,
        id=id_,
        partitions=len(partitions),
        replication_factor=replication_factor,
        internal=name in entities.INTERNAL_TOPICS,
        configs=dict(sorted(configs.items())),
        replicas=tuple(replicas),
    )


def _acl(data: Fields) -> Acl:
    return Acl(
        resource=word(entities.ACL_RESOURCES, data["resourceType"]),
        name=data["resourceName"],
        pattern=word(entities.ACL_PATTERNS, data["patternType"]),
        principal=data["principal"],
        host=data["host"],
        operation=word(entities.ACL_OPERATIONS, data["operation"]),
        permission=word(entities.ACL_PERMISSIONS, data["permissionType"]),
    )


def _scram_user(data: Fields) -> ScramUser:
    return ScramUser(
        user=data["name"],
        mechanism=word(MECHANISMS, data["mechanism"]),
        iterations=data["iterations"],
        salt=base64.b64encode(data["salt"]).decode(),
        stored_key=base64.b64encode(data["storedKey"]).decode(),
        server_key=base64.b64encode(data["serverKey"]).decode(),
    )


def _broker_configs(image: MetadataImage) -> Iterator[entities.BrokerConfig]:
    """Yield the configs for all brokers first, then the configs of each broker. A value that the migration left
    encrypted is as unknown as in ZooKeeper."""
    by_broker: dict[int, dict[str, str]] = {}
    for owner, configs in _configs(image, BROKER):
        try:
            broker = int(owner) if owner else _ALL_BROKERS
        except ValueError as error:
            raise CorruptError(f"metadata log: configs of a broker whose id is no number: {error}", _HINT) from None
        by_broker[broker] = configs
    for broker in sorted(by_broker):
        for name, value in by_broker[broker].items():
            owner_id = None if broker == _ALL_BROKERS else broker
            known = None if entities.is_encrypted(value) else value  # ciphertext of a secret that the log doesn't have
            yield entities.BrokerConfig(broker=owner_id, name=name, value=known)


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


def _registrations(image: MetadataImage) -> Iterator[entities.Registration]:
    for id_, data in sorted(image.brokers.items()):
        listeners = _listeners(data["endPoints"])
        yield entities.Registration(
            id=id_, role="broker", listeners=listeners, rack=data["rack"], alive=not data["fenced"]
        )
    for id_, data in sorted(image.controllers.items()):
        yield entities.Registration(id=id_, role="controller", listeners=_listeners(data["endPoints"]))


def _listeners(endpoints: Iterable[Fields]) -> tuple[entities.Listener, ...]:
    """Return the listeners in the order of their names: a snapshot has another order than the broker's own record."""
    listeners: list[entities.Listener] = []
    for each in sorted(endpoints, key=itemgetter("name")):
        protocol = word(PROTOCOLS, each["securityProtocol"])
        listener = entities.Listener(
            name=each["name"], host=each["host"], port=each["port"], security_protocol=protocol
        )
        listeners.append(listener)
    return tuple(listeners)


def _not_carried(image: MetadataImage) -> Iterator[NotCarried]:
    for name, count in sorted(image.unknown.items()):
        why = f"{count} such records are of a newer Kafka than kbackup knows"
        yield NotCarried(part=None, what=name, reason="not supported", why=why)
    if image.tokens:
        why = "a metadata log doesn't hold the HMACs"
        yield NotCarried(part="delegation_tokens", what=entities.TOKEN_SECRETS, reason="not supported", why=why)
    encrypted = {each.name for each in _broker_configs(image) if each.value is None}
    if encrypted:
        why = (
            f"the controllers migrated {join_names(sorted(encrypted), _NAMED)} without the brokers' "
            "password.encoder.secret, so that the metadata log has ciphertext as the value: give the controllers the "
            "secret, then set these configs again"
        )
        yield NotCarried(part="broker_configs", what=entities.BROKER_SECRETS, reason="failed", why=why)
