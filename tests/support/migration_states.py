"""Witnesses of each state of a migration."""

from __future__ import annotations

from kbackup.jobs.migrate.states import (
    ControllerZnode,
    KafkaState,
    LogWitness,
    MetricsWitness,
    MigrationZnode,
    NotRead,
    Witnesses,
    ZnodesWitness,
)

NONE, MIGRATION, PRE, POST, ZK = (
    KafkaState[name] for name in ("NONE", "MIGRATION", "PRE_MIGRATION", "POST_MIGRATION", "ZK")
)
UNREAD = NotRead("not asked", "ask")
OF_KRAFT, OF_ZK = ControllerZnode(3000, 5), ControllerZnode(1, -1)
WAITING, COPIED = MigrationZnode(-1), MigrationZnode(99)
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
