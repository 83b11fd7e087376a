"""Findings of a cluster that is ready to migrate, and changes to them."""

from __future__ import annotations

from dataclasses import replace

from kbackup.jobs.migrate.preflight.findings import (
    ArchiveFindings,
    Broker,
    BrokerFindings,
    Controller,
    Findings,
    ZooKeeperFindings,
)

NOW = 1_700_000_000.0
CLUSTER = "L05pbYc6Q4qlvxLk3rTO9A"
BROKER = {
    "broker.id": "1",
    "inter.broker.protocol.version": "3.9-IV0",
    "log.dirs": "/data",
    "zookeeper.connect": "zk-1:2181,zk-2:2181/kafka",
    "zookeeper.metadata.migration.enable": "true",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "INTERNAL",
    "listener.security.protocol.map": "INTERNAL:SASL_PLAINTEXT,CONTROLLER:SSL",
    "listeners": "INTERNAL://:9092",
}
CONTROLLER = {
    "process.roles": "controller",
    "node.id": "3000",
    "zookeeper.connect": "zk-1:2181/kafka",
    "zookeeper.metadata.migration.enable": "true",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "INTERNAL",
    "listener.security.protocol.map": "INTERNAL:SASL_PLAINTEXT,CONTROLLER:SSL",
    "listeners": "CONTROLLER://:9093",
}


def findings() -> Findings:
    brokers = tuple(Broker(n, 17, {**BROKER, "broker.id": str(n)}) for n in (1, 2))
    return Findings(
        BrokerFindings(CLUSTER, brokers, frozenset({1, 2}), (), ()),
        ZooKeeperFindings(CLUSTER, "/kafka", frozenset({1, 2}), frozenset({1, 2}), (), ()),
        tuple(
            Controller(f"c{n}.properties", {**CONTROLLER, "node.id": str(n)}, CLUSTER) for n in (3000, 3001)
        ),
        ArchiveFindings(7, NOW - 600, CLUSTER, ()),
        NOW,
    )


def brokers(**changes: object) -> Findings:
    """The same with other values of `BrokerFindings`."""
    base = findings()
    assert isinstance(base.brokers, BrokerFindings)
    return replace(base, brokers=replace(base.brokers, **changes))  # type: ignore[arg-type]  # names of fields


def zookeeper(**changes: object) -> Findings:
    base = findings()
    assert isinstance(base.zookeeper, ZooKeeperFindings)
    return replace(base, zookeeper=replace(base.zookeeper, **changes))  # type: ignore[arg-type]  # names of fields


def broker_configs(changes: dict[str, str | None], *, of: tuple[int, ...] = (2,)) -> Findings:
    """The same with other configs of some brokers; None takes one away."""
    base = findings()
    assert isinstance(base.brokers, BrokerFindings)
    changed = tuple(
        Broker(b.id, b.fetch_version, _changed(b.configs, changes)) if b.id in of else b  # type: ignore[arg-type]  # they were read
        for b in base.brokers.brokers
    )
    return brokers(brokers=changed)


def controller(changes: dict[str, str | None], *, cluster_id: str = CLUSTER) -> Findings:
    """The same with other properties of the second controller."""
    base = findings()
    assert isinstance(base.controllers, tuple)
    first, second = base.controllers
    other = Controller(second.file, _changed(dict(second.properties), changes), cluster_id)
    return replace(base, controllers=(first, other))


def _changed(properties: dict[str, str], changes: dict[str, str | None]) -> dict[str, str]:
    merged = {**properties, **changes}
    return {name: value for name, value in merged.items() if value is not None}
