"""A migration as seen in ZooKeeper: findings for the preflight, the witness for the state, znodes for a rollback."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from kbackup.errors import CorruptError
from kbackup.metadata.entities import is_encrypted
from kbackup.migrate.states import ControllerZnode, NotRead, UnreadError, ZnodesWitness, need
from kbackup.migrate.zookeeper.read import configs, content, document, member
from kbackup.migrate.zookeeper.session import Tree, ZooKeeperSession, last, read_tree
from kbackup.migrate.zookeeper.unreadable import CONTROLLER, MIGRATION, read_partition_states, unreadable_znodes
from kbackup.util.text import join_names

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
    maps the sensitive configs of brokers, such as 'NAME of broker 1', to their encrypted values. `unreadable` are the
    znodes that Kafka's migration can't read, each a text that begins with its path."""

    cluster_id: str
    alive: frozenset[int]
    known: frozenset[int]
    deletions: tuple[str, ...]
    reassigning: tuple[str, ...]
    encrypted: Mapping[str, str] = field(default_factory=dict, repr=False)
    unreadable: tuple[str, ...] | NotRead = ()


@dataclass(frozen=True, slots=True)
class ControllerFile:
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
    controllers: tuple[ControllerFile, ...] | NotRead
    archive: ArchiveFindings | NotRead | None
    now: float
    quorum: Mapping[str, Sign] | NotRead

    @cached_property
    def configs(self) -> Mapping[int, Mapping[str, str]] | NotRead:
        """The configs of each broker; `NotRead` where one is missing."""
        try:
            brokers = need(self.brokers).brokers
            return {broker.id: need(broker.configs) for broker in brokers}
        except UnreadError as error:
            return error.unread

    @property
    def sides(self) -> tuple[tuple[ControllerFile, ...], Mapping[int, Mapping[str, str]]]:
        """The controllers, and the configs of the brokers that run with ZooKeeper; `UnreadError` where one is
        missing."""
        controllers = need(self.controllers)
        with_zookeeper: dict[int, Mapping[str, str]] = {}
        for broker, configs_of_broker in need(self.configs).items():
            if not configs_of_broker.get("process.roles"):
                with_zookeeper[broker] = configs_of_broker
        return controllers, with_zookeeper


# Read Kafka's znodes for preflight, status and rollback.


_TOPICS = "/brokers/topics"
_CONFIGS = "/config/brokers"
_DELETIONS = "/admin/delete_topics"


def read_witness(zookeeper: ZooKeeperSession) -> tuple[ZnodesWitness, tuple[ZnodeContent, ...]]:
    """Read which controller controls the cluster, and /controller and /migration as they are."""
    znodes = zookeeper.get([CONTROLLER, MIGRATION])
    contents: list[ZnodeContent] = []
    for path, znode in sorted(znodes.items()):
        contents.append(ZnodeContent(path, content(znode.data), znode.version, znode.ephemeral))
    brokers = _ids(zookeeper.children("/brokers/ids"))
    data = {path: znode.data for path, znode in znodes.items()}
    return witness_of(data, brokers), tuple(contents)


def witness_of(znodes: Mapping[str, bytes | str], brokers: frozenset[int]) -> ZnodesWitness:
    """Return the witness of /controller and /migration, by path, and of the brokers with a session.

    An empty /migration is one of Kafka's tool that secures znodes: no migration has begun."""
    controller = migration = None
    if CONTROLLER in znodes:
        # Kafka before 3.4 wrote no epoch of KRaft.
        data = {"kraftControllerEpoch": -1, **document(CONTROLLER, znodes[CONTROLLER])}
        broker_id = member(CONTROLLER, data, "brokerid", int)
        epoch = member(CONTROLLER, data, "kraftControllerEpoch", int)
        controller = ControllerZnode(broker_id, epoch)
    is_empty = MIGRATION in znodes and not znodes[MIGRATION]
    if MIGRATION in znodes and not is_empty:
        data = document(MIGRATION, znodes[MIGRATION])
        migration = member(MIGRATION, data, "kraft_metadata_offset", int)
    return ZnodesWitness(controller, migration, brokers, is_migration_empty=is_empty)


def read_assigned(zookeeper: ZooKeeperSession) -> frozenset[int]:
    """Read the ids of all brokers that hold replicas."""
    paths = [f"{_TOPICS}/{topic}" for topic in zookeeper.children(_TOPICS)]
    brokers = set[int]()
    for path, znode in zookeeper.get(paths).items():
        topic = _members(path, znode.data)
        for replicas in _replicas(topic).values():
            brokers.update(replicas)
    return frozenset(brokers)


def _members(path: str, data: bytes) -> dict[str, Any]:
    """Return the JSON object in a znode; nothing for one that holds none, which the check of all znodes names."""
    try:
        return document(path, data)
    except CorruptError:
        return {}


def _replicas(topic: Mapping[str, Any], part: str = "partitions") -> dict[str, list[int]]:
    """Return the replicas by partition in the znode of a topic, as far as they are what they should be."""
    partitions = topic.get(part)
    if not isinstance(partitions, dict):
        return {}
    found: dict[str, list[int]] = {}
    for partition, replicas in partitions.items():
        if isinstance(replicas, list):
            found[partition] = [replica for replica in replicas if type(replica) is int]
    return found


def read_findings(zookeeper: ZooKeeperSession) -> ZooKeeperFindings:
    """Read the preflight's findings from ZooKeeper. Znodes that can't be parsed are findings, too."""
    tree = read_tree(zookeeper)
    for root in ("/cluster/id", "/brokers/ids", _TOPICS, _CONFIGS, _DELETIONS):
        denied = [path for path in tree.denied if path == root or path.startswith(f"{root}/")]
        # Asked for once more, as this raises that they may not be read: without them every check would be a guess.
        zookeeper.get(denied)
    known = set[int]()
    moving: list[str] = []
    for path in tree.below(_TOPICS):
        topic = _members(path, tree.znodes[path])
        adding = _replicas(topic, "adding_replicas")
        removing = _replicas(topic, "removing_replicas")
        for partition, replicas in _replicas(topic).items():
            known |= set(replicas)
            if adding.get(partition) or removing.get(partition):
                moving.append(f"{last(path)}-{partition}")
    identity = _members("/cluster/id", tree.znodes.get("/cluster/id", b""))
    owners_of_configs = _ids(_names_below(tree, _CONFIGS))
    deletions = sorted(_names_below(tree, _DELETIONS))
    alive = _ids(_names_below(tree, "/brokers/ids"))
    return ZooKeeperFindings(
        cluster_id=str(identity.get("id", "")),
        alive=alive,
        known=frozenset(known) | owners_of_configs,
        deletions=tuple(deletions),
        reassigning=tuple(sorted(moving)),
        encrypted=_encrypted(tree),
        unreadable=_unreadable(zookeeper, tree),
    )


def _names_below(tree: Tree, root: str) -> list[str]:
    return [last(path) for path in tree.below(root)]


def _encrypted(tree: Tree) -> dict[str, str]:
    """Return the encrypted configs of brokers by name and owner."""
    found: dict[str, str] = {}
    for path in tree.below(_CONFIGS):
        owner = "all brokers" if last(path) == "<default>" else f"broker {last(path)}"
        try:
            values = configs(path, tree.znodes[path])
        except CorruptError:
            continue  # named among the znodes that can't be read
        for name, value in values.items():
            if is_encrypted(value):
                found[f"{name} of {owner}"] = value
    return found


def _unreadable(zookeeper: ZooKeeperSession, tree: Tree) -> tuple[str, ...] | NotRead:
    found = unreadable_znodes(tree, read_partition_states(zookeeper, tree))
    if tree.denied and not found:
        return NotRead(
            f"ZooKeeper doesn't let this user read {join_names(sorted(tree.denied), 3)}",
            "set zookeeper.sasl.username and zookeeper.sasl.password to the brokers' login",
        )
    return found


def _ids(names: Collection[str]) -> frozenset[int]:
    return frozenset(int(name) for name in names if name.isdecimal())
