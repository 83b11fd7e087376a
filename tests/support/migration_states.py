"""Witnesses of each state of a migration, situations of a rollback, and znodes in memory."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from kbackup.metadata.sources import ZooKeeperOptions
from kbackup.migrate.lag import Lag, is_written_by_kraft
from kbackup.migrate.rollback import BrokerModes, Situation, delete_znodes
from kbackup.migrate.states import (
    ControllerZnode,
    KafkaState,
    LogWitness,
    MetricsWitness,
    NotRead,
    Witnesses,
    ZnodesWitness,
    judge,
)
from kbackup.migrate.znodes import Sign, ZnodeContent
from kbackup.migrate.zookeeper.session import Answers, ZnodeData, ZooKeeperSession

NONE, MIGRATION, PRE, POST, ZK = (
    KafkaState[name] for name in ("NONE", "MIGRATION", "PRE_MIGRATION", "POST_MIGRATION", "ZK")
)
UNREAD = NotRead("not asked", "ask")
OF_KRAFT, OF_ZK = ControllerZnode(3000, 5), ControllerZnode(1, -1)
WAITING, COPIED = -1, 99
BROKERS = frozenset({1, 2})
NOBODY: frozenset[int] = frozenset()


def metrics(state: KafkaState | None, zk_brokers: int | None = 2, *, active: bool | None = True) -> MetricsWitness:
    return MetricsWitness(f"http://{state and state.name}", state, active, zk_brokers, 0)


def log(state: KafkaState, zk_brokers: frozenset[int] = BROKERS) -> LogWitness:
    return LogWitness(state, zk_brokers, BROKERS - zk_brokers, 100)


def witnesses(
    of_metrics: MetricsWitness | None = None, znodes: ZnodesWitness | None = None, of_log: LogWitness | None = None
) -> Witnesses:
    return Witnesses((of_metrics or UNREAD,), znodes or UNREAD, of_log or UNREAD)


class FakeZooKeeper(ZooKeeperSession):
    """Maps paths to what stands there. `denied` znodes may not be read, nor their children be listed. `asked` are the
    paths of the znodes that were read, `deleted` those that were deleted, in order."""

    def __init__(
        self, znodes: dict[str, object], ephemeral: Collection[str] = (), denied: Collection[str] = ()
    ) -> None:
        super().__init__(None, ZooKeeperOptions(connect="zk:1"))
        self.znodes, self.ephemeral, self.denied = znodes, ephemeral, denied
        self.asked: list[str] = []
        self.deleted: list[str] = []

    def read(self, paths: Collection[str], *, children: bool = False) -> Answers:
        answers = Answers(denied={path for path in paths if path in self.denied})
        for path in paths:
            if path in self.denied:
                continue
            if children:
                below = {p[len(path) + 1 :].partition("/")[0] for p in self.znodes if p.startswith(f"{path}/")}
                answers.children[path] = sorted(below)
            elif path in self.znodes:
                self.asked.append(path)
                value = self.znodes[path]
                data = value if isinstance(value, bytes) else json.dumps(value).encode()
                answers.znodes[path] = ZnodeData(data, 0, path in self.ephemeral)
            elif any(other.startswith(f"{path}/") for other in self.znodes):
                answers.znodes[path] = ZnodeData(b"", 0, False)
        return answers

    def delete(self, path: str, version: int) -> bool:
        self.deleted.append(path)
        return self.znodes.pop(path, None) is not None


WITH_ZOOKEEPER = BrokerModes(NOBODY, BROKERS, BROKERS)
MOVED = BrokerModes(BROKERS, NOBODY, NOBODY)
ROLLED_BACK = BrokerModes(NOBODY, BROKERS, NOBODY)
EQUAL = Lag(100, {}, ())
STOPPED: Mapping[str, Sign] = {"c1:9093": "stopped", "c2:9093": "stopped"}


class RecordedZnodes(FakeZooKeeper):
    """ZooKeeper, with the version of each znode; what is deleted is written down."""

    def __init__(self, versions: dict[str, int]) -> None:
        super().__init__({**versions})
        self.versions = versions

    def delete(self, path: str, version: int) -> bool:
        return self.versions.get(path) == version and super().delete(path, version)


def situation(
    controller: ControllerZnode | None = OF_KRAFT,
    migration: int | None = COPIED,
    *,
    of_metrics: MetricsWitness | None = None,
    of_log: LogWitness | None = None,
    registered: frozenset[int] = BROKERS,
    signs: Mapping[str, Sign] = STOPPED,
    brokers: BrokerModes | NotRead = WITH_ZOOKEEPER,
    archived: Mapping[str, str] | NotRead | None = None,
    lag: Lag | NotRead | None = EQUAL,
) -> Situation:
    """Of a dual write whose controllers are stopped, whose ZooKeeper has every record and whose znodes are archived,
    unless said otherwise."""
    witness = ZnodesWitness(controller, migration, registered)
    contents = []
    if controller is not None:
        text = json.dumps({"brokerid": controller.id, "kraftControllerEpoch": controller.kraft_epoch})
        contents.append(ZnodeContent("/controller", text, 3, ephemeral=not controller.is_kraft))
    if migration is not None:
        contents.append(ZnodeContent("/migration", json.dumps({"kraft_metadata_offset": migration}), 7, False))
    return Situation(
        report=judge(Witnesses((of_metrics or UNREAD,), witness, of_log or UNREAD)),
        witness=witness,
        znodes=tuple(contents),
        signs=signs,
        brokers=brokers,
        archived={znode.path: znode.content for znode in contents} if archived is None else archived,
        lag=lag if is_written_by_kraft(witness) else None,
    )


def deleted(of: Situation) -> list[str]:
    """The paths that a confirmed rollback deletes."""
    znodes = RecordedZnodes({znode.path: znode.version for znode in of.znodes})
    assert [znode.path for znode in delete_znodes(of, znodes)] == znodes.deleted
    return znodes.deleted
