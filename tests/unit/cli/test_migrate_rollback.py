"""The command `migrate rollback`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from kbackup.cli import main
from kbackup.config import ConfigFiles, load
from kbackup.migrate import rollback as rollback_read
from kbackup.migrate.metadata_log.codec import record
from tests.support.healthy_cluster import COPIED, OF_KRAFT, ZOOKEEPER
from tests.support.metadata_records import write_segment
from tests.support.migration_states import FakeZooKeeper

CLOSED = "127.0.0.1:1"
QUOTA = {"entity": [{"entityType": "user", "entityName": "u"}], "key": "k", "value": 1.0}


@pytest.fixture
def log(tmp_path: Path) -> tuple[str, str]:
    """The option for a controller's metadata log, which ends where ZooKeeper does."""
    migration = record("ZkMigrationStateRecord", {"zkMigrationState": 1})
    broker = record("RegisterBrokerRecord", {"brokerId": 1, "isMigratingZkBroker": True}, version=2)
    write_segment(tmp_path, 0, [migration, broker, *[record("NoOpRecord")] * 98])
    return "--set", f"source.metadata.log.dir={tmp_path}"


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> dict[int, Mapping[str, str]]:
    configs: dict[int, Mapping[str, str]] = {
        1: {"zookeeper.metadata.migration.enable": "true", "controller.quorum.bootstrap.servers": CLOSED}
    }
    monkeypatch.setattr(rollback_read, "read_configs", lambda sources: configs)
    return configs


def test_rollback_changes_nothing_without_confirmation(
    zookeeper: FakeZooKeeper, brokers: object, archive: str, log: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["migrate", "rollback", *ZOOKEEPER, *log, "-a", archive]) == 0
    assert zookeeper.deleted == []
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "state: dual write"
    steps = [line for line in lines if re.match(r"\d\.", line)]
    assert [line[3:9] for line in steps] == ["done  "] * 4 + ["to do "] * 3
    assert "kbackup migrate rollback --confirm" in steps[4]
    broken = [line for line in lines if line.startswith("guard ") and "holds:" not in line]
    assert not broken, f"guards that do not hold: {broken}"
    assert f"guard    controllers stopped: holds: {CLOSED}" in lines


def test_a_confirmed_rollback_deletes_both_znodes_and_shows_them(
    zookeeper: FakeZooKeeper, brokers: object, archive: str, log: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["migrate", "rollback", *ZOOKEEPER, *log, "-a", archive, "--confirm"]) == 0
    assert zookeeper.deleted == ["/controller", "/migration"]
    assert set(zookeeper.znodes) == {"/controller_epoch", "/brokers/ids/1", "/cluster/id"}
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"deleted /controller: {json.dumps(OF_KRAFT)}"
    assert lines[1] == f"deleted /migration: {json.dumps(COPIED)}"
    assert lines[2] == "state: zookeeper, not certain"  # the log tells of a dual write until it is deleted


def test_a_rollback_is_a_json_document(
    zookeeper: FakeZooKeeper, brokers: object, archive: str, log: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["migrate", "rollback", *ZOOKEEPER, *log, "-a", archive, "--confirm", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [znode["path"] for znode in told["deleted"]] == ["/controller", "/migration"]
    assert told["controllers"] == {CLOSED: "stopped"}
    assert told["state"]["state"] == "zookeeper"
    assert [step["done"] for step in told["steps"]] == [True, None, False, False]


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_rollback_that_is_refused(
    arguments: tuple[str, ...],
    zookeeper: FakeZooKeeper,
    brokers: dict[int, Mapping[str, str]],
    archive: str,
    log: tuple[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each guard by itself: exit code 10, and nothing is deleted."""
    command = ["migrate", "rollback", *ZOOKEEPER, "--confirm", *arguments]
    assert main([*command, "-a", archive]) == 10
    assert "ZooKeeper complete: not looked at: no metadata log is named" in capsys.readouterr().err
    command += log
    later = write_segment(tmp_path, 100, [record("ClientQuotaRecord", QUOTA)])
    assert main([*command, "-a", archive]) == 10
    assert "it lacks 1 ClientQuotaRecord of the metadata log" in capsys.readouterr().err
    later.unlink()
    healthy_brokers = dict(brokers)
    zookeeper.znodes["/migration"] = {**COPIED, "kraft_metadata_offset": 98}
    assert main([*command, "-a", archive]) == 10
    assert "doesn't hold /migration as now" in capsys.readouterr().err
    zookeeper.znodes["/migration"] = COPIED
    assert main(command) == 10
    assert "no archive is named" in capsys.readouterr().err
    brokers[1] = {**healthy_brokers[1], "process.roles": "broker"}
    assert main([*command, "-a", archive]) == 10
    assert "KRaft brokers: 1" in capsys.readouterr().err
    brokers[1] = {"zookeeper.metadata.migration.enable": "true"}
    assert main([*command, "-a", archive]) == 10
    assert "no controller's address is known" in capsys.readouterr().err
    brokers[1] = healthy_brokers[1]
    assert main([*command, "-a", archive, "--controller", "controller.invalid:1"]) == 10
    assert "proves nothing: controller.invalid:1" in capsys.readouterr().err
    del zookeeper.znodes["/brokers/ids/1"]
    assert main(["migrate", "rollback", *ZOOKEEPER, "--confirm", *arguments, "-a", archive]) == 10
    assert "dual write or brokers moved or finished" in capsys.readouterr().err
    assert zookeeper.deleted == []


def test_rollback_of_a_controller_whose_machine_is_gone(
    zookeeper: FakeZooKeeper, brokers: object, archive: str, log: tuple[str, str]
) -> None:
    silent = "controller.invalid:1"
    assert main(["migrate", "rollback", *ZOOKEEPER, *log, "-a", archive, "--confirm", "--stopped", silent]) == 0
    assert zookeeper.deleted == ["/controller", "/migration"]


def test_a_rollback_of_an_unknown_state_is_refused(
    zookeeper: FakeZooKeeper, brokers: object, archive: str, capsys: pytest.CaptureFixture[str]
) -> None:
    del zookeeper.znodes["/brokers/ids/1"]
    assert main(["migrate", "rollback", *ZOOKEEPER, "-a", archive]) == 10
    assert "there may be no way back: the state is unknown" in capsys.readouterr().err


def test_a_rollback_needs_a_zookeeper(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "rollback"]) == 2
    assert "no ZooKeeper is named" in capsys.readouterr().err
    assert load([], ConfigFiles()).config.sources.zookeeper is None
