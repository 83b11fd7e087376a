"""Situations of a rollback, and the znodes that one deletes."""

from __future__ import annotations

import json
from collections.abc import Mapping

from kbackup.jobs.migrate.lag import Lag, is_written_by_kraft
from kbackup.jobs.migrate.rollback import BrokerModes, Situation, delete_znodes
from kbackup.jobs.migrate.states import (
    ControllerZnode,
    LogWitness,
    MetricsWitness,
    MigrationZnode,
    NotRead,
    Witnesses,
    ZnodesWitness,
    judge,
)
from kbackup.jobs.migrate.znodes import Sign, ZnodeContent
from tests.support.fake_zookeeper import FakeZooKeeper

UNREAD = NotRead("not asked", "ask")
BROKERS = frozenset({1, 2})
NOBODY: frozenset[int] = frozenset()
WITH_ZOOKEEPER = BrokerModes(NOBODY, BROKERS, BROKERS)
MOVED = BrokerModes(BROKERS, NOBODY, NOBODY)
ROLLED_BACK = BrokerModes(NOBODY, BROKERS, NOBODY)
OF_KRAFT = ControllerZnode(3000, 5)
COPIED = MigrationZnode(99)
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
    migration: MigrationZnode | None = COPIED,
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
        contents.append(ZnodeContent("/migration", json.dumps({"kraft_metadata_offset": migration.offset}), 7, False))
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
