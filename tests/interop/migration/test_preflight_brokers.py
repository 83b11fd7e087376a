"""Run preflight against a broker with a generated id, several log directories, and logins everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kbackup.metadata.sources import Sources
from kbackup.migrate.preflight import Line, judge
from kbackup.migrate.readings import read_preflight
from scripts.dev.zookeeper import MigratingCluster
from tests.support.secrets import make

GENERATED = "1001"
JAAS = "listener.name.sasl.plain.sasl.jaas.config"
LOGIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="kafka" password="p" user_kafka="p";'
BETWEEN_BROKERS = {
    "inter.broker.listener.name": "SASL",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
    "super.users": "User:ANONYMOUS;User:kafka",
    JAAS: LOGIN,
}
ZOOKEEPER_USER = ("kafka", make("the brokers' password for ZooKeeper"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MigratingCluster]:
    folder = tmp_path_factory.mktemp("disks")
    disks = {"broker.id": "-1", "log.dirs": f"{folder}/1,{folder}/2", "inter.broker.protocol.version": "3.6"}
    with MigratingCluster(properties=disks | BETWEEN_BROKERS, zookeeper_user=ZOOKEEPER_USER) as made:
        yield made


def lines(cluster: MigratingCluster, *controllers: Path) -> dict[str, Line]:
    user, password = ZOOKEEPER_USER
    properties = {
        "bootstrap.servers": cluster.bootstrap,
        "zookeeper.connect": cluster.zookeeper_connect,
        "zookeeper.sasl.username": user,
        "zookeeper.sasl.password": password,
    }
    findings = read_preflight(Sources.of(properties), controllers, None)
    return {line.name: line for line in judge(findings).lines}


def test_generated_id_and_several_log_directories(cluster: MigratingCluster) -> None:
    checks = lines(cluster)
    assert (checks["brokers: static ids"].status, checks["brokers: static ids"].detail) == (
        "failed",
        f"the id is generated: broker {GENERATED}",
    )
    assert checks["brokers: inter.broker.protocol.version"].status == "failed"
    assert (
        checks["brokers: inter.broker.protocol.version"].detail
        == f"broker {GENERATED}: 3.6, needs 3.7-IV2 (several log directories)"
    )
    assert "broker.id.generation.enable=false" in checks["brokers: static ids"].hint
    assert "inter.broker.protocol.version=3.9" in checks["brokers: inter.broker.protocol.version"].hint
    cluster._properties |= {
        "broker.id": GENERATED,
        "broker.id.generation.enable": "false",
        "inter.broker.protocol.version": "3.9",
    }
    cluster.restart_brokers("zookeeper")
    checks = lines(cluster)
    assert (checks["brokers: static ids"].status, checks["brokers: inter.broker.protocol.version"].status) == (
        "ok",
        "ok",
    )
    assert checks["brokers: alive"].detail == f"brokers {GENERATED}"


def test_controllers_without_the_brokers_login_and_znode_acls(cluster: MigratingCluster, tmp_path: Path) -> None:
    file = tmp_path / "controller.properties"
    common = {
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "SASL",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT",
    }
    missing = {JAAS: LOGIN, "zookeeper.set.acl": "true"}
    for properties, status in ((common, "failed"), (common | missing, "ok")):
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        checks = lines(cluster, file)
        assert (
            checks["controllers: login to the brokers"].status,
            checks["controllers: zookeeper.set.acl"].status,
        ) == (status, status)
