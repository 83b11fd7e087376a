"""Each check of the preflight: broken, healed, and not looked at."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kbackup.jobs.migrate import preflight
from kbackup.jobs.migrate import preflight as of_brokers
from kbackup.jobs.migrate import preflight as of_controllers
from kbackup.jobs.migrate.preflight import CHECKS, judge
from kbackup.jobs.migrate.states import NotRead
from kbackup.jobs.migrate.znodes import ArchiveFindings, Broker, Findings
from tests.support.healthy_cluster import (
    CLUSTER,
    NOW,
    broker_configs,
    brokers,
    controller,
    findings,
    zookeeper,
)
from tests.support.preflights import BROKEN_SHARED, archive, line

UNREAD = NotRead("nobody asked", "ask")
FLAG = "zookeeper.metadata.migration.enable"
MAP = "listener.security.protocol.map"


BROKEN: list[tuple[str, Findings, str, str]] = [
    (
        of_brokers.RELEASE,
        brokers(brokers=(Broker(1, 17, {}), Broker(2, 16, {}))),
        "broker 2: Fetch version 16",
        "upgrade",
    ),
    (
        of_brokers.PROTOCOL,
        broker_configs({"inter.broker.protocol.version": "3.3-IV3"}),
        "broker 2: 3.3-IV3, needs 3.4",
        "restart",
    ),
    (
        of_brokers.PROTOCOL,
        broker_configs({"inter.broker.protocol.version": "3.7-IV1", "log.dirs": "/a, /b"}),
        "needs 3.7-IV2",
        "restart",
    ),
    (of_brokers.PROTOCOL, broker_configs({"inter.broker.protocol.version": "newest"}), "newest", "restart"),
    (of_brokers.IDS, broker_configs({"broker.id": "-1"}), "generated: broker 2", "broker.id"),
    (of_brokers.IDS, broker_configs({"broker.id": None}), "generated: broker 2", "broker.id"),
    (of_brokers.ALIVE, zookeeper(known=frozenset({1, 2, 3})), "not running: broker 3", "start it"),
    (of_brokers.ALIVE, brokers(assigned=frozenset({1, 4})), "not running: broker 4", "start it"),
    (
        preflight.OFFLINE,
        brokers(offline=("orders-0", "orders-1")),
        "2 without a leader: orders-0, orders-1",
        "start",
    ),
    (preflight.DELETIONS, zookeeper(deletions=("old",)), "1 wait for deletion: old", "start every broker"),
    (preflight.REASSIGNMENTS, zookeeper(reassigning=("orders-0",)), "1 running: orders-0", "--cancel"),
    (
        preflight.REASSIGNMENTS,
        replace(brokers(reassigning=("orders-0",)), zookeeper=UNREAD),
        "orders-0",
        "--cancel",
    ),
    (
        of_controllers.DEDICATED,
        controller({"process.roles": "broker,controller"}),
        "c3001.properties",
        "process.roles=controller",
    ),
    (
        of_controllers.DEDICATED,
        controller({"process.roles": None}),
        "c3001.properties",
        "process.roles=controller",
    ),
    (of_controllers.DEDICATED, controller({"node.id": "2"}), "node.id 2 is a broker's", "another node.id"),
    (of_controllers.DEDICATED, controller({"node.id": "3000"}), "node.id 3000 twice", "of its own"),
    (of_controllers.DEDICATED, controller({"node.id": None}), "no node.id: c3001", "set node.id"),
    (of_controllers.ENABLED, controller({FLAG: None}), "c3001.properties", f"{FLAG}=true"),
    (of_controllers.ENABLED, controller({FLAG: "false"}), "c3001.properties", f"{FLAG}=true"),
    (of_controllers.BROKERS_ENABLED, broker_configs({FLAG: "false"}), "broker 2 not", f"{FLAG}=true"),
    (
        of_controllers.ZOOKEEPER,
        controller({"zookeeper.connect": None}),
        "not set: c3001",
        "zookeeper.connect",
    ),
    (of_controllers.ZOOKEEPER, controller({"zookeeper.connect": "zk-1:2181"}), "another chroot", "chroot"),
    (
        of_controllers.ZOOKEEPER,
        controller({"zookeeper.connect": "zk-1,zk-9:2181/kafka"}),
        "other hosts than the brokers' zk-1:2181, zk-2:2181: c3001",
        "zookeeper.connect",
    ),
    (
        preflight.LISTENERS,
        controller({"controller.listener.names": None}),
        "c3001.properties",
        "set controller.listener.names",
    ),
    (
        preflight.LISTENERS,
        controller({"listeners": "PLAINTEXT://:9093"}),
        "not among listeners",
        "add CONTROLLER://",
    ),
    (
        preflight.LISTENERS,
        controller({MAP: "INTERNAL:SASL_PLAINTEXT"}),
        "CONTROLLER has no security protocol",
        "CONTROLLER:PROTOCOL",
    ),
    (
        preflight.LISTENERS,
        controller({MAP: "CONTROLLER:SSL"}),
        "INTERNAL has no security protocol",
        "INTERNAL:PROTOCOL",
    ),
    (
        preflight.LISTENERS,
        controller({"inter.broker.listener.name": None, MAP: "CONTROLLER:SSL,PLAINTEXT:PLAINTEXT"}),
        "its inter-broker listener is INTERNAL",
        "inter.broker.listener.name=INTERNAL",
    ),
    (
        preflight.LISTENERS,
        controller({MAP: "INTERNAL:SSL,CONTROLLER:SSL"}),
        "INTERNAL is SASL_PLAINTEXT",
        "map INTERNAL:SASL_PLAINTEXT",
    ),
    (
        preflight.LISTENERS,
        broker_configs({MAP: "INTERNAL:SASL_PLAINTEXT"}),
        "broker 2: CONTROLLER has no",
        "of the broker",
    ),
    (
        preflight.LISTENERS,
        broker_configs({MAP: "INTERNAL:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"}),
        "CONTROLLER is PLAINTEXT",
        "both sides",
    ),
    (
        preflight.LISTENERS,
        broker_configs({"controller.listener.names": "OTHER", MAP: "INTERNAL:SASL_PLAINTEXT,OTHER:SSL"}),
        "OTHER is not in c3000",
        "the same",
    ),
    (
        preflight.CLUSTER_ID,
        zookeeper(cluster_id="other"),
        f"brokers {CLUSTER}, ZooKeeper other",
        "kafka-storage.sh",
    ),
    (preflight.CLUSTER_ID, controller({}, cluster_id="other"), "c3001.properties other", "kafka-storage.sh"),
    (preflight.ARCHIVE, archive(captured_at=NOW - 3601), "1.0 hours old", "kbackup migrate archive"),
    (preflight.ARCHIVE, archive(captured_at=NOW + 3600), "in the future", "clocks"),
    (
        preflight.ARCHIVE,
        archive(missing=("client quotas",)),
        "lacks client quotas",
        "kbackup migrate archive",
    ),
    (preflight.ARCHIVE, replace(findings(), archive=None), "no restore point", "kbackup migrate archive"),
    (preflight.ARCHIVE, archive(cluster_id="other"), "of cluster other", "name the archive"),
    *BROKEN_SHARED,
]


@pytest.mark.parametrize(
    ("name", "broken", "detail", "hint"), BROKEN, ids=[f"{b[0]}: {b[2]}" for b in BROKEN]
)
def test_broken(name: str, broken: Findings, detail: str, hint: str) -> None:
    """The check fails, says what is wrong and what to do; no other check does."""
    broken_line = line(broken, name)
    assert broken_line.status == "failed"
    assert detail in broken_line.detail
    assert hint in broken_line.hint
    report = judge(broken)
    assert (report.verdict, report.exit_code) == ("not ready", 10)


def test_healed() -> None:
    report = judge(findings())
    assert [line for line in report.lines if line.status != "ok"] == []
    assert (report.verdict, report.exit_code) == ("ready", 0)
    assert all(line.hint == "" for line in report.lines)
    assert len(report.lines) == len(CHECKS)


@pytest.mark.parametrize("name", sorted({entry[0] for entry in BROKEN}))
def test_every_line_can_fail(name: str) -> None:
    assert line(findings(), name).status == "ok"


def test_every_line_is_broken_once() -> None:
    assert {entry[0] for entry in BROKEN} == {line.name for line in judge(findings()).lines}


def test_brokers_before_their_restart() -> None:
    """The flag is the last step before the migration starts: none that has it is a warning."""
    off = broker_configs({FLAG: "false"}, of=(1, 2))
    assert line(off, of_controllers.BROKERS_ENABLED).status == "warning"
    assert (judge(off).verdict, judge(off).exit_code) == ("ready with warnings", 3)


def of_version(protocol: str, level: int, log_dirs: str = "/data") -> Findings:
    """A cluster whose brokers and controllers have another version."""
    base = broker_configs({"inter.broker.protocol.version": protocol, "log.dirs": log_dirs}, of=(1, 2))
    assert isinstance(base.controllers, tuple)
    return replace(base, controllers=tuple(replace(c, metadata_version=level) for c in base.controllers))


@pytest.mark.parametrize(
    "healthy",
    [
        of_version("3.4", 8),
        of_version("3.7-IV2", 17, "/a,/b"),
        of_version("3.7", 19, "/a,/b"),
        broker_configs({"inter.broker.protocol.version": "3.9"}),
        broker_configs({"log.dirs": "/a,"}),
        controller({"zookeeper.connect": "ZK-2/kafka/"}),
        broker_configs({"authorizer.class.name": None}, of=(1, 2)),
        controller({"password.encoder.secret": "${file:/secrets:encoder}"}),
        zookeeper(encrypted={}),
        broker_configs({"controller.listener.names": None, MAP: "INTERNAL:SASL_PLAINTEXT"}),
        replace(zookeeper(), archive=ArchiveFindings(1, NOW + 30, CLUSTER, ())),
    ],
    ids=range(11),
)
def test_variants_of_a_healthy_cluster_are_ready(healthy: Findings) -> None:
    assert judge(healthy).verdict == "ready"


def test_kraft_controller_needs_no_map() -> None:
    """Kafka takes a controller's listener as PLAINTEXT where nothing says otherwise."""
    plain = {
        "process.roles": "controller",
        "controller.listener.names": "CONTROLLER",
        "listeners": "CONTROLLER://:1",
    }
    assert preflight.protocols_of(plain)["CONTROLLER"] == "PLAINTEXT"
    secured = {**plain, "listeners": "CONTROLLER://:1,SSL://:2"}
    assert "CONTROLLER" not in preflight.protocols_of(secured)
    assert "CONTROLLER" not in preflight.protocols_of({**plain, "process.roles": ""})
