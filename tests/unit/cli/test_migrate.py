"""The commands `migrate status` and `migrate preflight`."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kbackup.cli import main
from kbackup.migrate import readings as preflight_read
from kbackup.migrate import readings as states_read
from kbackup.migrate.cli import status
from kbackup.migrate.metadata_log.codec import record
from kbackup.migrate.metadata_log.log import read_batches
from kbackup.migrate.states import KafkaState, MetricsWitness, NotRead, Witnesses
from kbackup.migrate.znodes import MigrationFindings
from tests.support import healthy_cluster as healthy
from tests.support.healthy_cluster import COPIED, ZOOKEEPER
from tests.support.metadata_records import write_segment, write_snapshot
from tests.support.migration_states import FakeZooKeeper

KAFKA_3 = Path(__file__).parents[2] / "golden" / "metadata_log" / "kafka-3.9.1"


def test_status_shows_the_state_and_the_next_step(zookeeper: FakeZooKeeper, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "status", *ZOOKEEPER]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^state: +dual write$", shown, re.MULTILINE)
    assert re.search(r"^way back: +yes$", shown, re.MULTILINE)
    assert "/controller is KRaft controller 3000, /migration at offset 99, 1 broker with ZooKeeper" in shown
    assert re.search(r"^not looked at: +metrics: no exporter is named; give --metrics-url", shown, re.MULTILINE)
    assert re.search(r"^next step: +run 'kbackup migrate verify'", shown, re.MULTILINE)


def test_status_is_a_json_document(zookeeper: FakeZooKeeper, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "status", "--json", *ZOOKEEPER]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["state"], document["certain"], document["way_back"]) == ("dual write", True, True)
    assert document["witnesses"] == [
        {
            "witness": "znodes",
            "says": "/controller is KRaft controller 3000, /migration at offset 99, 1 broker with ZooKeeper",
            "allows": ["dual write"],
        }
    ]
    assert len(document["not_looked_at"]) == 2


def test_status_where_witnesses_disagree(
    zookeeper: FakeZooKeeper, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = MetricsWitness("http://c1", KafkaState.POST_MIGRATION, True, 0, 0)
    monkeypatch.setattr(states_read, "read_metrics", lambda url, access: finished)
    assert main(["migrate", "status", *ZOOKEEPER, "--metrics-url", "http://c1"]) == 3
    shown = capsys.readouterr().out
    assert re.search(r"^state: +finished, not certain$", shown, re.MULTILINE)
    assert re.search(r"^disagreement: +znodes: .* does not fit finished$", shown, re.MULTILINE)


@pytest.fixture
def torn(tmp_path: Path) -> str:
    """The option for a log that Kafka wrote, cut off within a batch."""
    folder = tmp_path / "__cluster_metadata-0"
    shutil.copytree(KAFKA_3, folder)
    newest = max(folder.glob("*.log"))
    newest.write_bytes(newest.read_bytes()[:-1])
    return f"source.metadata.log.dir={tmp_path}"


@pytest.mark.exhaustive
@pytest.mark.parametrize("command", ["status", "status --follow", "rollback", "verify", "archive"])
def test_a_torn_metadata_log_ends_each_command(
    command: str, torn: str, zookeeper: FakeZooKeeper, archive: str, capsys: pytest.CaptureFixture[str]
) -> None:
    where = () if "status" in command else ("-a", archive)
    beside = () if command in ("verify", "archive") else ZOOKEEPER
    assert main(["migrate", *command.split(), *where, *beside, "--set", torn]) == 13
    shown = capsys.readouterr()
    assert re.search(r"0\.log: byte \d+: the file ends within a batch", shown.err)
    assert "way back" not in shown.out


def test_a_snapshot_without_one_of_its_batches_ends_the_status(
    tmp_path: Path, zookeeper: FakeZooKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot = max(KAFKA_3.glob("*-*.checkpoint"))
    with snapshot.open("rb") as file:
        batches = list(read_batches(file, snapshot.name, snapshot.stat().st_size))
    whole = snapshot.read_bytes()
    shutil.copytree(KAFKA_3, tmp_path, dirs_exist_ok=True)
    cut = whole[: batches[1].position] + whole[batches[2].position :]
    (tmp_path / snapshot.name).write_bytes(cut)
    assert main(["migrate", "status", *ZOOKEEPER, "--set", f"source.metadata.log.dir={tmp_path}"]) == 13
    problem = f"{snapshot.name}: byte {batches[1].position}: a batch at offset {batches[2].base_offset}, after"
    assert problem in capsys.readouterr().err


def test_a_broker_that_blocks_is_named_and_no_success(
    zookeeper: FakeZooKeeper, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broker 7 holds a replica, and no session."""
    zookeeper.znodes["/migration"] = {**COPIED, "kraft_metadata_offset": -1}
    zookeeper.znodes["/brokers/topics/orders"] = {"partitions": {"0": [1, 7]}}
    nobody = MetricsWitness("http://c1", KafkaState.PRE_MIGRATION, True, 0, 0)
    monkeypatch.setattr(states_read, "read_metrics", lambda url, access: nobody)
    assert main(["migrate", "status", *ZOOKEEPER, "--metrics-url", "http://c1"]) == 3
    shown = capsys.readouterr().out
    assert re.search(r"^state: +pre-migration$", shown, re.MULTILINE)
    for broker in ("1, which has not", "7, which is down and has not"):
        assert re.search(rf"^waits for: +broker {broker} registered with the controllers$", shown, re.MULTILINE)


def test_zookeeper_that_stands_still_is_no_success(
    zookeeper: FakeZooKeeper, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second look, which catches up or not, decides."""
    monkeypatch.setattr(status, "_PAUSE", 0)
    for lags, code in (((4, 8), 3), ((4, 0), 0)):
        looks = iter(lags)
        monkeypatch.setattr(
            states_read,
            "read_metrics",
            lambda url, access, looks=looks: MetricsWitness(url, KafkaState.MIGRATION, True, 1, next(looks)),
        )
        assert main(["migrate", "status", *ZOOKEEPER, "--metrics-url", "http://c1"]) == code
        assert ("waits for:" in capsys.readouterr().out) == (code == 3)


def test_status_with_another_url(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "status", "--metrics-url", "ftp://c1"]) == 2
    assert "--metrics-url is no http or https URL" in capsys.readouterr().err


def following(monkeypatch: pytest.MonkeyPatch, *states: KafkaState) -> None:
    """The states of the looks, one after the other; the process is asked to stop with the last."""
    looks = iter(states)
    remaining = len(states)

    def read(sources: object, urls: object) -> Witnesses:
        nonlocal remaining
        remaining -= 1
        if not remaining:
            os.kill(os.getpid(), signal.SIGTERM)
        unread = NotRead("not asked", "ask")
        return Witnesses((MetricsWitness("u", next(looks), True, 1, remaining),), unread, unread)

    monkeypatch.setattr(states_read, "read_witnesses", read)


STATES = (KafkaState.PRE_MIGRATION, KafkaState.MIGRATION, KafkaState.MIGRATION, KafkaState.POST_MIGRATION)


def test_following_shows_a_line_per_change_of_state(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line for each change; that ZooKeeper comes nearer is none."""
    following(monkeypatch, *STATES)
    assert main(["migrate", "status", "--follow", "--interval", "0.1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("Z ")[2] for line in lines] == [
        "pre-migration, 1 broker in ZooKeeper mode, 3 records behind, "
        "waits for brokers; to see which, set zookeeper.connect in [source]",
        "dual write, 1 broker in ZooKeeper mode, 2 records behind",
        "finished, 1 broker in ZooKeeper mode, 0 records behind",
    ]


def test_following_prints_a_json_document_per_change(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    following(monkeypatch, *STATES)
    assert main(["migrate", "status", "--follow", "--interval", "0.1", "--json"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["state"] for each in told] == ["pre-migration", "dual write", "finished"]
    assert all(each["at"] for each in told)


def test_following_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Every look is drawn over the one before."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    following(monkeypatch, *STATES)
    assert main(["migrate", "status", "--follow", "--interval", "0.1"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("as of:") == len(STATES) + 1  # the last one stays
    assert "\x1b[1A" in shown
    assert "pre-migration" in shown.partition("dual write")[0]
    assert "finished" in shown
    assert re.search(r"state:.* dual write", shown)
    assert re.search(r"ZooKeeper is behind:.* 2 records", shown)


def preflight(monkeypatch: pytest.MonkeyPatch, findings: MigrationFindings, *arguments: str) -> int:
    monkeypatch.setattr(preflight_read, "read_preflight", lambda *read: findings)
    return main(["migrate", "preflight", *arguments])


def test_the_exit_code_of_a_preflight_is_its_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert preflight(monkeypatch, healthy.findings()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("ok       ") for line in lines[:-1])
    assert lines[-1] == "ready"
    unread = replace(healthy.findings(), archive=NotRead("no archive is named", "give --archive"))
    assert preflight(monkeypatch, unread) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3:] == [
        "warning  archive: whole metadata: not looked at: no archive is named",
        "           hint: give --archive",
        "ready with warnings",
    ]
    assert preflight(monkeypatch, healthy.brokers(offline=("orders-0",))) == 10
    shown = capsys.readouterr().out
    assert "FAILED   partitions: online: 1 without a leader: orders-0\n" in shown
    assert shown.endswith("not ready\n")


def test_preflight_is_a_json_document(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert preflight(monkeypatch, healthy.brokers(offline=("orders-0",)), "--json") == 10
    told = json.loads(capsys.readouterr().out)
    assert (told["verdict"], told["exit_code"]) == ("not ready", 10)
    assert [line["name"] for line in told["lines"] if line["status"] == "failed"] == ["partitions: online"]


def test_a_preflight_without_sources_says_which_to_name(capsys: pytest.CaptureFixture[str]) -> None:
    """A source without a name gets a line with the option to give, never ok."""
    assert main(["migrate", "preflight"]) == 3
    shown = capsys.readouterr().out
    assert "ok " not in shown
    for hint in ("bootstrap.servers", "zookeeper.connect", "--controller-config", "--archive"):
        assert hint in shown


def test_preflight_with_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "preflight", "--controller-config", str(tmp_path / "none")]) == 2
    assert "can't read" in capsys.readouterr().err


def test_the_storage_of_a_controller_is_read_where_it_was_formatted(tmp_path: Path) -> None:
    file = tmp_path / "controller.properties"
    file.write_text(f"process.roles=controller\nlog.dirs={tmp_path}/a,{tmp_path}/b\n")
    unread = preflight_read.read_controller(file).cluster_id
    assert isinstance(unread, NotRead)
    assert f"{tmp_path}/a/meta.properties" in unread.why
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "meta.properties").write_text("#\n#date\ncluster.id=L05pbYc6Q4qlvxLk3rTO9A\nversion=1\n")
    level = record("FeatureLevelRecord", {"name": "metadata.version", "featureLevel": 17})
    write_snapshot(tmp_path, 0, [level]).rename(tmp_path / "b" / "bootstrap.checkpoint")
    read = preflight_read.read_controller(file)
    assert (read.cluster_id, read.metadata_version) == ("L05pbYc6Q4qlvxLk3rTO9A", 17)
    later = record("FeatureLevelRecord", {"name": "metadata.version", "featureLevel": 21})
    log = tmp_path / "b" / "__cluster_metadata-0"
    log.mkdir()
    write_segment(log, 0, [later])
    assert preflight_read.read_controller(file).metadata_version == 21


def test_archive_of_the_preflight(archive: str) -> None:
    from kbackup.store import open_store

    told = preflight_read.read_archive(open_store(archive))
    assert told is not None
    assert (told.restore_point, told.cluster_id) == (3, "source")
    assert told.captured_at == 1767398400.0
    assert preflight_read.read_archive(open_store(f"{archive}/elsewhere")) is None
