"""The cluster metadata that the records of a metadata log add up to, in Kafka's own words."""

from __future__ import annotations

import base64
import io
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

from msgspec.structs import astuple

from kbackup.errors import CorruptError, RefusedError
from kbackup.kafka.metadata_log.codec import MetadataRecord, record
from kbackup.kafka.metadata_log.log import (
    LogRecord,
    MetadataLog,
    check_snapshot,
    encode_batch,
    find_log,
    open_log,
    read_batches,
    read_identity,
)
from kbackup.metadata import entities
from kbackup.metadata.entities import Acl, ClientQuota, DelegationToken, NotCarried, ScramUser
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
    *("TopicRecord", "PartitionRecord", "PartitionChangeRecord", "RemoveTopicRecord", "ConfigRecord"),
    *("ClientQuotaRecord", "UserScramCredentialRecord", "RemoveUserScramCredentialRecord"),
    *("AccessControlEntryRecord", "RemoveAccessControlEntryRecord"),
    *("DelegationTokenRecord", "RemoveDelegationTokenRecord", "ProducerIdsRecord"),
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
        """Apply one record. Begin and end of a transaction are not for here."""
        if not isinstance(record.data, dict):
            self.unknown[f"{record.name}, version {record.version}"] += 1
        elif effect := _EFFECTS.get(record.name):
            effect(self, record.data)

    def _partition_change(self, data: Fields) -> None:
        # of a topic that was removed before the change came, there is nothing to change
        known = self.partitions.get(data["topicId"], {}).get(data["partitionId"])
        if known is not None:
            for name, value in data.items():
                if name in known and value != _UNCHANGED.get(name):
                    known[name] = value
            known["partitionEpoch"] += 1
            if data["leader"] != _UNCHANGED["leader"]:
                known["leaderEpoch"] += 1

    def _remove_topic(self, data: Fields) -> None:
        self.partitions.pop(data["topicId"], None)
        name = self.topics.pop(data["topicId"], None)
        if name is not None:
            self.configs.pop((TOPIC, name), None)

    def _quota(self, data: Fields) -> None:
        entity = tuple(sorted({e["entityType"]: e["entityName"] for e in data["entity"]}.items()))
        _set(self.quotas, entity, data["key"], None if data["remove"] else data["value"])

    def _feature(self, data: Fields) -> None:
        self.features[data["name"]] = data["featureLevel"]
        if not data["featureLevel"]:
            del self.features[data["name"]]

    def _fence(self, data: Fields, fenced: bool) -> None:
        if broker := self.brokers.get(data["id"]):
            broker["fenced"] = fenced

    def _registration_change(self, data: Fields) -> None:
        if broker := self.brokers.get(data["brokerId"]):
            if data["fenced"]:
                broker["fenced"] = data["fenced"] > 0
            if data.get("inControlledShutdown"):
                broker["inControlledShutdown"] = True
            if data.get("logDirs"):
                broker["logDirs"] = data["logDirs"]

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


_EFFECTS: dict[str, Callable[[MetadataImage, Fields], object]] = {
    "RegisterBrokerRecord": lambda image, data: image.brokers.update({data["brokerId"]: data}),
    "UnregisterBrokerRecord": lambda image, data: image.brokers.pop(data["brokerId"], None),
    "FenceBrokerRecord": lambda image, data: image._fence(data, fenced=True),
    "UnfenceBrokerRecord": lambda image, data: image._fence(data, fenced=False),
    "BrokerRegistrationChangeRecord": MetadataImage._registration_change,
    "RegisterControllerRecord": lambda image, data: image.controllers.update({data["controllerId"]: data}),
    "TopicRecord": lambda image, data: image.topics.update({data["topicId"]: data["name"]}),
    "PartitionRecord": lambda image, data: image.partitions.setdefault(data["topicId"], {}).update(
        {data["partitionId"]: data}
    ),
    "PartitionChangeRecord": MetadataImage._partition_change,
    "RemoveTopicRecord": MetadataImage._remove_topic,
    "ConfigRecord": lambda image, data: _set(
        image.configs, (data["resourceType"], data["resourceName"]), data["name"], data["value"]
    ),
    "ClientQuotaRecord": MetadataImage._quota,
    "AccessControlEntryRecord": lambda image, data: image.acls.update({data["id"]: data}),
    "RemoveAccessControlEntryRecord": lambda image, data: image.acls.pop(data["id"], None),
    "UserScramCredentialRecord": lambda i, data: i.scram.update({(data["name"], data["mechanism"]): data}),
    "RemoveUserScramCredentialRecord": lambda i, data: i.scram.pop((data["name"], data["mechanism"]), None),
    "DelegationTokenRecord": lambda image, data: image.tokens.update({data["tokenId"]: data}),
    "RemoveDelegationTokenRecord": lambda image, data: image.tokens.pop(data["tokenId"], None),
    "FeatureLevelRecord": MetadataImage._feature,
    "KRaftVersionRecord": lambda image, data: image._feature(
        {"name": "kraft.version", "featureLevel": data["kRaftVersion"]}
    ),
    "LeaderChangeMessage": MetadataImage._voters,
    "VotersRecord": MetadataImage._voters,
    "ProducerIdsRecord": lambda image, data: setattr(image, "next_producer_id", data["nextProducerId"]),
    "ZkMigrationStateRecord": lambda image, data: setattr(image, "migration_state", data["zkMigrationState"]),
}


def read_image(folder: Path) -> MetadataImage:
    """Read the folder `__cluster_metadata-0`: its newest snapshot, and every later record.

    Records of a transaction take effect at its end, and none of them where it is aborted. A running controller may be
    writing a batch or a transaction: the folder is read again until the log is whole, or has grown. `CorruptError`
    where the log stays as it is."""
    until = time.monotonic() + _PATIENCE
    first = image = replay_log(open_log(folder))
    while image.unfinished and image.offset <= first.offset:
        if time.monotonic() > until:
            raise CorruptError(f"{folder}: {image.unfinished}", _UNFINISHED)
        time.sleep(_PAUSE)
        image = replay_log(open_log(folder))
    return image


def records_for_zookeeper(folder: Path, start: int) -> list[LogRecord]:
    """Return the records from offset `start` on that a migration writes to ZooKeeper, and those that are unknown."""
    later = open_log(folder).later_records(start)
    return [each for each in later if each.record.name in _IN_ZOOKEEPER or not each.record.known]


def replay_log(log: MetadataLog) -> MetadataImage:
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
            image.replay(later.record)
        else:
            pending.append(later.record)
    image.open_transaction = 0 if pending is None else len(pending) + 1
    image.offset, image.epoch, image.torn = log.end_offset, log.epoch, log.torn
    return image


# The metadata that a log adds up to, in the form that every source of metadata has.


_HINT = "read the metadata log of another controller"
_NOT_COPIED = "the controllers have not copied ZooKeeper's metadata yet"
_NAMED = 5


def read_metadata_log(folder: Path) -> entities.Reading:
    """Read a controller's `metadata.log.dir`, or a copy of it: the cluster's metadata by its metadata log.

    `folder` may also be `__cluster_metadata-0` itself. The cluster's id is in meta.properties; it is "" where that file
    wasn't copied. `UsageError` if there is no log, `CorruptError` if it is damaged."""
    log = find_log(folder)
    cluster_id = read_identity(log).get("cluster.id", "")
    return reading_of(read_image(log), cluster_id)


def reading_of(image: MetadataImage, cluster_id: str) -> entities.Reading:
    """Return all of an image, each list in the order of its names."""
    return entities.Reading(
        source="controller log",
        cluster_id=cluster_id,
        topics=tuple(_topic(image, id_) for id_ in sorted(image.topics, key=image.topics.__getitem__)),
        acls=tuple(sorted(map(_acl, image.acls.values()), key=astuple)),
        scram_users=tuple(_scram_user(image.scram[key]) for key in sorted(image.scram)),
        broker_configs=tuple(_broker_configs(image)),
        group_configs=tuple(
            entities.GroupConfig(group=group, name=name, value=value)
            for group, configs in _configs(image, GROUP)
            for name, value in configs.items()
        ),
        client_quotas=tuple(
            ClientQuota(entity=dict(entity), quotas=dict(sorted(quotas.items())))  # type: ignore[arg-type]  # no other types
            for entity, quotas in sorted(
                image.quotas.items(), key=lambda item: [(kind, n or "") for kind, n in item[0]]
            )
        ),
        delegation_tokens=tuple(_token(image.tokens[id_]) for id_ in sorted(image.tokens)),
        client_metrics=tuple(entities.ClientMetrics(name=n, configs=c) for n, c in _configs(image, CLIENT_METRICS)),
        features=tuple(entities.Feature(name=name, level=level) for name, level in sorted(image.features.items())),
        registrations=tuple(_registrations(image)),
        deletions=(),  # a KRaft controller deletes a topic at once
        next_producer_id=image.next_producer_id,
        not_carried=tuple(_not_carried(image)),
        outdated=_NOT_COPIED if image.migration_state == PRE_MIGRATION else "",
        migration=image.migration or "",
    )


def _configs(image: MetadataImage, kind: int) -> Iterator[tuple[str, dict[str, str]]]:
    for resource in sorted(image.configs):
        if resource[0] == kind:
            yield resource[1], dict(sorted(image.configs[resource].items()))


def _topic(image: MetadataImage, id_: str) -> entities.TopicMetadata:
    name = image.topics[id_]
    partitions = image.partitions.get(id_, {})
    if sorted(partitions) != list(range(len(partitions))):
        raise CorruptError(f"metadata log: topic {name} has the partitions {sorted(partitions)}", _HINT)
    replicas = tuple(tuple(partitions[p]["replicas"]) for p in sorted(partitions))
    return entities.TopicMetadata(
        name=name,
        id=id_,
        partitions=len(partitions),
        replication_factor=max(map(len, replicas), default=0),
        internal=name in entities.INTERNAL_TOPICS,
        configs=dict(sorted(image.configs.get((TOPIC, name), {}).items())),
        replicas=replicas,
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
    try:
        owners = sorted((int(owner) if owner else -1, configs) for owner, configs in _configs(image, BROKER))
    except ValueError as error:
        raise CorruptError(f"metadata log: configs of a broker whose id is no number: {error}", _HINT) from None
    for owner, configs in owners:
        for name, value in configs.items():
            known = None if entities.is_encrypted(value) else value
            yield entities.BrokerConfig(broker=None if owner < 0 else owner, name=name, value=known)


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
    """Return them in the order of their names: a snapshot has another order than the broker's own record."""
    return tuple(
        entities.Listener(
            name=each["name"],
            host=each["host"],
            port=each["port"],
            security_protocol=word(PROTOCOLS, each["securityProtocol"]),
        )
        for each in sorted(endpoints, key=itemgetter("name"))
    )


def _not_carried(image: MetadataImage) -> Iterator[NotCarried]:
    for name, count in sorted(image.unknown.items()):
        why = f"{count} such records are of a newer Kafka than kbackup knows"
        yield NotCarried(part=None, what=name, reason="not supported", why=why)
    if image.tokens:
        why = "a metadata log doesn't hold the HMACs"
        yield NotCarried(part="delegation_tokens", what=entities.TOKEN_SECRETS, reason="not supported", why=why)
    if encrypted := {each.name for each in _broker_configs(image) if each.value is None}:
        why = (
            f"the controllers migrated {join_names(sorted(encrypted), _NAMED)} without the brokers' "
            "password.encoder.secret, so that the metadata log has ciphertext as the value: give the controllers the "
            "secret, then set these configs again"
        )
        yield NotCarried(part="broker_configs", what=entities.BROKER_SECRETS, reason="failed", why=why)


# bootstrap.checkpoint, from which a new KRaft cluster starts, with metadata that only the log can carry.


NAME = "bootstrap.checkpoint"
_RECORDS_OF_A_BATCH = 1000
_FORMAT_ANEW = "make a new one with 'kafka-storage format'"


def write_bootstrap(base: bytes, records: Sequence[MetadataRecord]) -> bytes:
    """Return the bootstrap.checkpoint `base`, which `kafka-storage format` wrote, with metadata records added.

    They come after the records of `base` and before its footer: where both set the same thing, the added record counts.
    `CorruptError` if `base` is not such a file."""
    try:
        batches = list(check_snapshot(read_batches(io.BytesIO(base), NAME, len(base)), NAME))
    except CorruptError as error:
        raise CorruptError(error.message, _FORMAT_ANEW) from None
    footer = batches[-1]
    if len(footer.records) != 1:
        raise CorruptError(f"{NAME}: the footer has other records in its batch", _FORMAT_ANEW)
    data = base[: footer.position]
    offset = footer.base_offset
    for start in range(0, len(records), _RECORDS_OF_A_BATCH):
        batch = records[start : start + _RECORDS_OF_A_BATCH]
        data += encode_batch(offset, footer.epoch, footer.timestamp, batch)
        offset += len(batch)
    return data + encode_batch(offset, footer.epoch, footer.timestamp, [r.record for r in footer.records])


def scram_record(user: ScramUser) -> MetadataRecord:
    """Return the record of a SCRAM credential. `RefusedError` if its secrets are not known."""
    mechanism = next((number for number, name in MECHANISMS.items() if name == user.mechanism), None)
    if mechanism is None:
        raise RefusedError(f"SCRAM user {user.user}: unknown mechanism {user.mechanism}", "use a newer kbackup")
    if user.salt is None or user.stored_key is None or user.server_key is None:
        raise RefusedError(
            f"SCRAM user {user.user}: the secrets are not known", "take an encrypted backup that reads them"
        )
    return record(
        "UserScramCredentialRecord",
        {
            "name": user.user,
            "mechanism": mechanism,
            "salt": base64.b64decode(user.salt),
            "storedKey": base64.b64decode(user.stored_key),
            "serverKey": base64.b64decode(user.server_key),
            "iterations": user.iterations,
        },
    )


def quota_records(quota: ClientQuota) -> Iterator[MetadataRecord]:
    """Yield a record for each quota of an entity."""
    entity = [{"entityType": kind, "entityName": name} for kind, name in quota.entity.items()]
    for key, value in quota.quotas.items():
        yield record("ClientQuotaRecord", {"entity": entity, "key": key, "value": value})


def token_record(token: DelegationToken) -> MetadataRecord:
    """Return the record of a delegation token. Its HMAC stays the same where delegation.token.secret.key does."""
    return record(
        "DelegationTokenRecord",
        {
            "owner": token.owner,
            "requester": token.requester,
            "renewers": list(token.renewers),
            "issueTimestamp": token.issued_at,
            "maxTimestamp": token.max_at,
            "expirationTimestamp": token.expires_at,
            "tokenId": token.id,
        },
    )


def producer_id_record(next_producer_id: int) -> MetadataRecord:
    """Return the record after which no producer gets an id that the old cluster had given."""
    return record("ProducerIdsRecord", {"brokerId": -1, "nextProducerId": next_producer_id})
