"""Run preflight against a broker with a generated id and several log directories."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbackup.jobs.migrate.preflight import brokers
from kbackup.jobs.migrate.preflight.checks import judge
from kbackup.jobs.migrate.preflight.line import Line
from kbackup.jobs.migrate.preflight.read import read_preflight
from kbackup.metadata.sources import Sources
from scripts.dev.zookeeper.cluster import MigratingCluster

GENERATED = "1001"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MigratingCluster]:
    folder = tmp_path_factory.mktemp("disks")
    disks = {"broker.id": "-1", "log.dirs": f"{folder}/1,{folder}/2", "inter.broker.protocol.version": "3.6"}
    with MigratingCluster(properties=disks) as made:
        yield made


def lines(cluster: MigratingCluster) -> dict[str, Line]:
    properties = {"bootstrap.servers": cluster.bootstrap, "zookeeper.connect": cluster.zookeeper_connect}
    findings = read_preflight(Sources.of(properties), (), None)
    return {line.name: line for line in judge(findings).lines}


def test_generated_id_and_several_log_directories(cluster: MigratingCluster) -> None:
    checks = lines(cluster)
    assert (checks[brokers.IDS].status, checks[brokers.IDS].detail) == (
        "failed",
        f"the id is generated: broker {GENERATED}",
    )
    assert checks[brokers.PROTOCOL].status == "failed"
    assert (
        checks[brokers.PROTOCOL].detail == f"broker {GENERATED}: 3.6, needs 3.7-IV2 (several log directories)"
    )
    assert "broker.id.generation.enable=false" in checks[brokers.IDS].hint
    assert "inter.broker.protocol.version=3.9" in checks[brokers.PROTOCOL].hint
    cluster._properties |= {
        "broker.id": GENERATED,
        "broker.id.generation.enable": "false",
        "inter.broker.protocol.version": "3.9",
    }
    cluster.restart_brokers("zookeeper")
    checks = lines(cluster)
    assert (checks[brokers.IDS].status, checks[brokers.PROTOCOL].status) == ("ok", "ok")
    assert checks[brokers.ALIVE].detail == f"brokers {GENERATED}"
