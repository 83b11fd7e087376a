"""What preflight, status and rollback read of Kafka's znodes."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from kbackup.errors import CorruptError
from kbackup.jobs.migrate.preflight.findings import ZooKeeperFindings
from kbackup.jobs.migrate.rollback.situation import CONTROLLER, MIGRATION, ZnodeContent
from kbackup.jobs.migrate.states.witnesses import ControllerZnode, MigrationZnode, ZnodesWitness
from kbackup.zookeeper.session import Znode

_DEFAULT = "<default>"
_TOPICS = "/brokers/topics"


class ZnodeReader(Protocol):
    """ZooKeeper below the chroot."""

    def get(self, paths: Collection[str]) -> Mapping[str, Znode]:
        """Those of `paths` that are there."""
        ...

    def children(self, path: str) -> list[str]:
        """The names below a znode; none where it is not there."""
        ...


def read_witness(zookeeper: ZnodeReader) -> tuple[ZnodesWitness, tuple[ZnodeContent, ...]]:
    """Who controls the cluster, and /controller and /migration as they are."""
    znodes = zookeeper.get([CONTROLLER, MIGRATION])
    contents = tuple(
        ZnodeContent(path, znode.data.decode("utf-8", "backslashreplace"), znode.version, znode.ephemeral)
        for path, znode in sorted(znodes.items())
    )
    brokers = _ids(zookeeper.children("/brokers/ids"))
    return witness_of({path: znode.data for path, znode in znodes.items()}, brokers), contents


def witness_of(znodes: Mapping[str, bytes | str], brokers: frozenset[int]) -> ZnodesWitness:
    """What /controller and /migration, by path, and the brokers with a session tell."""
    controller = migration = None
    if CONTROLLER in znodes:
        data = _json(CONTROLLER, znodes[CONTROLLER])
        controller = ControllerZnode(
            _number(CONTROLLER, data, "brokerid"), _number(CONTROLLER, data, "kraftControllerEpoch", -1)
        )
    if MIGRATION in znodes:
        data = _json(MIGRATION, znodes[MIGRATION])
        migration = MigrationZnode(_number(MIGRATION, data, "kraft_metadata_offset"))
    return ZnodesWitness(controller, migration, brokers)


def read_findings(zookeeper: ZnodeReader, chroot: str) -> ZooKeeperFindings:
    """What the preflight wants to know of ZooKeeper."""
    identity = zookeeper.get(["/cluster/id"])
    topics = zookeeper.get([f"{_TOPICS}/{topic}" for topic in zookeeper.children(_TOPICS)])
    known, moving = set[int](), []
    for path, znode in topics.items():
        topic = _json(path, znode.data)
        for partition, replicas in topic.get("partitions", {}).items():
            known |= set(replicas)
            if any(topic.get(part, {}).get(partition) for part in ("adding_replicas", "removing_replicas")):
                moving.append(f"{path.rpartition('/')[2]}-{partition}")
    known |= _ids(zookeeper.children("/config/brokers"))
    return ZooKeeperFindings(
        cluster_id=next((str(_json(path, znode.data).get("id", "")) for path, znode in identity.items()), ""),
        chroot=chroot,
        alive=_ids(zookeeper.children("/brokers/ids")),
        known=frozenset(known),
        deletions=tuple(sorted(zookeeper.children("/admin/delete_topics"))),
        reassigning=tuple(sorted(moving)),
    )


def _ids(names: Collection[str]) -> frozenset[int]:
    return frozenset(int(name) for name in names if name.isdecimal())


def _json(path: str, text: bytes | str) -> dict[str, Any]:
    """The object in a znode; `CorruptError` where there is none."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise CorruptError(
            f"znode {path} holds no JSON object", "is zookeeper.connect, with its chroot, Kafka's?"
        )
    return value


def _number(path: str, data: Mapping[str, Any], name: str, otherwise: int | None = None) -> int:
    value = data.get(name, otherwise)
    if not isinstance(value, int):
        raise CorruptError(
            f"znode {path} has no number {name}", "is zookeeper.connect, with its chroot, Kafka's?"
        )
    return value
