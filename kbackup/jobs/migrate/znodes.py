"""Read Kafka's znodes for preflight, status and rollback."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from kbackup.jobs.migrate.preflight.findings import ZooKeeperFindings
from kbackup.jobs.migrate.rollback.situation import CONTROLLER, MIGRATION, ZnodeContent
from kbackup.jobs.migrate.states.witnesses import ControllerZnode, MigrationZnode, ZnodesWitness
from kbackup.zookeeper.decode import content, document, member
from kbackup.zookeeper.session import Znode

_TOPICS = "/brokers/topics"


class ZnodeReader(Protocol):
    """ZooKeeper below the chroot."""

    def get(self, paths: Collection[str]) -> Mapping[str, Znode]:
        """Return the znodes of `paths` that exist."""
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


def read_findings(zookeeper: ZnodeReader, chroot: str) -> ZooKeeperFindings:
    """Read the preflight's findings from ZooKeeper."""
    identity = zookeeper.get(["/cluster/id"])
    topics = zookeeper.get([f"{_TOPICS}/{topic}" for topic in zookeeper.children(_TOPICS)])
    known, moving = set[int](), []
    for path, znode in topics.items():
        topic = document(path, znode.data)
        for partition, replicas in topic.get("partitions", {}).items():
            known |= set(replicas)
            if any(topic.get(part, {}).get(partition) for part in ("adding_replicas", "removing_replicas")):
                moving.append(f"{path.rpartition('/')[2]}-{partition}")
    known |= _ids(zookeeper.children("/config/brokers"))
    return ZooKeeperFindings(
        cluster_id=next(
            (str(document(path, znode.data).get("id", "")) for path, znode in identity.items()), ""
        ),
        chroot=chroot,
        alive=_ids(zookeeper.children("/brokers/ids")),
        known=frozenset(known),
        deletions=tuple(sorted(zookeeper.children("/admin/delete_topics"))),
        reassigning=tuple(sorted(moving)),
    )


def _ids(names: Collection[str]) -> frozenset[int]:
    return frozenset(int(name) for name in names if name.isdecimal())
