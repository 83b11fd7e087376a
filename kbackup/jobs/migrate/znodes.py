"""Read Kafka's znodes for preflight, status and rollback."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from kbackup.jobs.migrate.preflight.findings import ZooKeeperFindings
from kbackup.jobs.migrate.rollback.situation import CONTROLLER, MIGRATION, ZnodeContent
from kbackup.jobs.migrate.states.witnesses import ControllerZnode, MigrationZnode, ZnodesWitness
from kbackup.metadata.encoder import is_encrypted
from kbackup.zookeeper.decode import configs, content, document, member
from kbackup.zookeeper.session import Answers, Znode
from kbackup.zookeeper.tree import last

_TOPICS = "/brokers/topics"
_CONFIGS = "/config/brokers"


class ZnodeReader(Protocol):
    """ZooKeeper below the chroot."""

    def get(self, paths: Collection[str]) -> Mapping[str, Znode]:
        """Return the znodes of `paths` that exist."""
        ...

    def read(self, paths: Collection[str], *, children: bool = False) -> Answers:
        """Read the znodes of `paths`; with `children` the names below them instead."""
        ...

    def children(self, path: str) -> list[str]:
        """The names below a znode; none where it is not there."""
        ...


def read_witness(zookeeper: ZnodeReader) -> tuple[ZnodesWitness, tuple[ZnodeContent, ...]]:
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
        migration = MigrationZnode(member(MIGRATION, data, "kraft_metadata_offset", int))
    return ZnodesWitness(controller, migration, brokers)


def read_assigned(zookeeper: ZnodeReader) -> frozenset[int]:
    """Read the ids of all brokers that hold replicas."""
    replicas = (topic.get("partitions", {}).values() for _, topic in _topics(zookeeper))
    return frozenset(broker for partitions in replicas for brokers in partitions for broker in brokers)


def _topics(zookeeper: ZnodeReader) -> list[tuple[str, dict[str, Any]]]:
    """Return name and content of each topic."""
    znodes = zookeeper.get([f"{_TOPICS}/{topic}" for topic in zookeeper.children(_TOPICS)])
    return [(last(path), document(path, znode.data)) for path, znode in znodes.items()]


def read_findings(zookeeper: ZnodeReader) -> ZooKeeperFindings:
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
        cluster_id=next(
            (str(document(path, znode.data).get("id", "")) for path, znode in identity.items()), ""
        ),
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
