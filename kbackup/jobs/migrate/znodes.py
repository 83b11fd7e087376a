"""A migration as seen in ZooKeeper: findings for the preflight, the witness for the state, znodes for a rollback."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from kbackup.jobs.migrate.states import ControllerZnode, NotRead, UnreadError, ZnodesWitness, need
from kbackup.metadata.entities import is_encrypted
from kbackup.zookeeper.read import configs, content, document, member
from kbackup.zookeeper.session import ZooKeeperSession, last

CONTROLLER = "/controller"
MIGRATION = "/migration"

Sign = Literal["answers", "stopped", "silent"]
"""The answer of a controller's address: a connection, a refusal, or nothing."""


@dataclass(frozen=True, slots=True)
class ZnodeContent:
    """A znode as it was read: `version` changes with every write. `ephemeral`: it goes with its owner's session."""

    path: str
    content: str
    version: int
    ephemeral: bool


# Findings of the preflight of a migration: from brokers, ZooKeeper, controllers, and the archive.


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """A broker that is alive. `fetch_version` is the highest version of the Fetch request that it speaks, `configs`
    are all its configs with the static ones, without those that are not set; "" is the value of a sensitive one."""

    id: int
    fetch_version: int | NotRead
    configs: Mapping[str, str] | NotRead


@dataclass(frozen=True, slots=True)
class BrokerFindings:
    """Findings at the brokers. `assigned` are the ids of the brokers that hold replicas, `offline` the partitions
    without a leader such as orders-0, `reassigning` the partitions that move."""

    cluster_id: str
    brokers: tuple[LiveBroker, ...]
    assigned: frozenset[int]
    offline: tuple[str, ...]
    reassigning: tuple[str, ...] | NotRead


@dataclass(frozen=True, slots=True)
class ZooKeeperFindings:
    """Findings in ZooKeeper. `alive` are the ids of the brokers with a session, `known` those that partitions and
    configs name. `deletions` are the topics that wait for their deletion. `encrypted`
    maps the sensitive configs of brokers, such as 'NAME of broker 1', to their encrypted values."""

    cluster_id: str
    alive: frozenset[int]
    known: frozenset[int]
    deletions: tuple[str, ...]
    reassigning: tuple[str, ...]
    encrypted: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Controller:
    """The properties file of a controller. `cluster_id` and `metadata_version` (the level of that feature) come from
    its formatted storage."""

    file: str
    properties: Mapping[str, str] = field(repr=False)
    cluster_id: str | NotRead
    metadata_version: int | NotRead


@dataclass(frozen=True, slots=True)
class ArchiveFindings:
    """The newest restore point. `captured_at` is the time of its metadata in seconds since the epoch, `missing` names
    the parts of the metadata that it doesn't hold."""

    restore_point: int
    captured_at: float
    cluster_id: str
    missing: tuple[str, ...]


@dataclass(frozen=True)
class MigrationFindings:
    """`now` is in seconds since the epoch. `archive` is None if there is no restore point. `quorum` maps each
    address of a controller that controllers or brokers name to its sign of life."""

    brokers: BrokerFindings | NotRead
    zookeeper: ZooKeeperFindings | NotRead
    controllers: tuple[Controller, ...] | NotRead
    archive: ArchiveFindings | NotRead | None
    now: float
    quorum: Mapping[str, Sign] | NotRead

    @cached_property
    def configs(self) -> Mapping[int, Mapping[str, str]] | NotRead:
        """The configs of each broker; `NotRead` where one is missing."""
        try:
            return {broker.id: need(broker.configs) for broker in need(self.brokers).brokers}
        except UnreadError as error:
            return error.unread

    @property
    def sides(self) -> tuple[tuple[Controller, ...], Mapping[int, Mapping[str, str]]]:
        """The controllers, and the configs of the brokers that run with ZooKeeper; `UnreadError` where one is
        missing."""
        controllers = need(self.controllers)
        return controllers, {b: c for b, c in need(self.configs).items() if not c.get("process.roles")}


# Read Kafka's znodes for preflight, status and rollback.


_TOPICS = "/brokers/topics"
_CONFIGS = "/config/brokers"


def read_witness(zookeeper: ZooKeeperSession) -> tuple[ZnodesWitness, tuple[ZnodeContent, ...]]:
    """Read which controller controls the cluster, and /controller and /migration as they are."""
    znodes = zookeeper.get([CONTROLLER, MIGRATION])
    contents = tuple(
        ZnodeContent(path, content(znode.data), znode.version, znode.ephemeral)
        for path, znode in sorted(znodes.items())
    )
    brokers = _ids(zookeeper.children("/brokers/ids"))
    return witness_of({path: znode.data for path, znode in znodes.items()}, brokers), contents


def witness_of(znodes: Mapping[str, bytes | str], brokers: frozenset[int]) -> ZnodesWitness:
    """Return the witness of /controller and /migration, by path, and of the brokers with a session."""
    controller = migration = None
    if CONTROLLER in znodes:
        data = document(CONTROLLER, znodes[CONTROLLER])
        controller = ControllerZnode(
            member(CONTROLLER, data, "brokerid", int),
            member(CONTROLLER, {"kraftControllerEpoch": -1, **data}, "kraftControllerEpoch", int),
        )
    if MIGRATION in znodes:
        data = document(MIGRATION, znodes[MIGRATION])
        migration = member(MIGRATION, data, "kraft_metadata_offset", int)
    return ZnodesWitness(controller, migration, brokers)


def read_assigned(zookeeper: ZooKeeperSession) -> frozenset[int]:
    """Read the ids of all brokers that hold replicas."""
    replicas = (topic.get("partitions", {}).values() for _, topic in _topics(zookeeper))
    return frozenset(broker for partitions in replicas for brokers in partitions for broker in brokers)


def _topics(zookeeper: ZooKeeperSession) -> list[tuple[str, dict[str, Any]]]:
    """Return name and content of each topic."""
    znodes = zookeeper.get([f"{_TOPICS}/{topic}" for topic in zookeeper.children(_TOPICS)])
    return [(last(path), document(path, znode.data)) for path, znode in znodes.items()]


def read_findings(zookeeper: ZooKeeperSession) -> ZooKeeperFindings:
    """Read the preflight's findings from ZooKeeper."""
    identity = zookeeper.get(["/cluster/id"])
    known, moving = set[int](), []
    for name, topic in _topics(zookeeper):
        for partition, replicas in topic.get("partitions", {}).items():
            known |= set(replicas)
            if any(topic.get(part, {}).get(partition) for part in ("adding_replicas", "removing_replicas")):
                moving.append(f"{name}-{partition}")
    configs_of_brokers = zookeeper.get([f"{_CONFIGS}/{owner}" for owner in zookeeper.children(_CONFIGS)])
    known |= _ids([last(path) for path in configs_of_brokers])
    return ZooKeeperFindings(
        cluster_id=next((str(document(path, znode.data).get("id", "")) for path, znode in identity.items()), ""),
        alive=_ids(zookeeper.children("/brokers/ids")),
        known=frozenset(known),
        deletions=tuple(sorted(zookeeper.children("/admin/delete_topics"))),
        reassigning=tuple(sorted(moving)),
        encrypted={
            f"{name} of {'all brokers' if last(path) == '<default>' else f'broker {last(path)}'}": value
            for path, znode in sorted(configs_of_brokers.items())
            for name, value in configs(path, znode.data).items()
            if is_encrypted(value)
        },
    )


def _ids(names: Collection[str]) -> frozenset[int]:
    return frozenset(int(name) for name in names if name.isdecimal())
