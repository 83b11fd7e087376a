"""The statements of three witnesses about a migration: metrics of controllers, znodes, a controller's metadata log."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from kbackup.jobs.migrate.unread import NotRead


class KafkaState(IntEnum):
    """Kafka 3.9's own numbers, in the metric ZkMigrationState and in the metadata log's ZkMigrationStateRecord. ZK is
    the metric of every broker that runs with ZooKeeper."""

    NONE = 0
    MIGRATION = 1
    PRE_MIGRATION = 2
    POST_MIGRATION = 3
    ZK = 4


@dataclass(frozen=True, slots=True)
class MetricsWitness:
    """The metrics of one node. None: the node doesn't tell it; `state` is None while a controller knows no leader of
    its quorum. `zk_brokers` are the brokers in ZooKeeper mode that have registered with the controllers, `lag` the
    records that ZooKeeper doesn't have yet."""

    url: str
    state: KafkaState | None
    is_active: bool | None = None
    zk_brokers: int | None = None
    lag: int | None = None


@dataclass(frozen=True, slots=True)
class ControllerZnode:
    """/controller. `kraft_epoch` is at least 0 where a KRaft controller wrote it."""

    id: int
    kraft_epoch: int

    @property
    def is_kraft(self) -> bool:
        return self.kraft_epoch >= 0


@dataclass(frozen=True, slots=True)
class MigrationZnode:
    """/migration. `offset` is that of the last record of the metadata log which ZooKeeper has, -1 before the copy."""

    offset: int


@dataclass(frozen=True, slots=True)
class ZnodesWitness:
    """None: the znode is not there. `brokers` are the ids of the brokers with a session, `assigned` those that hold
    replicas, where the copy waits for them."""

    controller: ControllerZnode | None
    migration: MigrationZnode | None
    brokers: frozenset[int]
    assigned: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class LogWitness:
    """A metadata log up to `end_offset`. `state` is that of the last ZkMigrationStateRecord, NONE without one.
    `zk_brokers` and `kraft_brokers` are the ids of the registered brokers in each mode."""

    state: KafkaState
    zk_brokers: frozenset[int]
    kraft_brokers: frozenset[int]
    end_offset: int


@dataclass(frozen=True, slots=True)
class Witnesses:
    metrics: tuple[MetricsWitness | NotRead, ...]
    znodes: ZnodesWitness | NotRead
    log: LogWitness | NotRead
