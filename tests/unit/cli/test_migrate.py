"""The commands `migrate status` and `migrate preflight`."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from kbackup.cli import main
from kbackup.cli.migrate.following import _table
from kbackup.jobs.migrate.preflight import read as preflight_read
from kbackup.jobs.migrate.preflight.findings import Findings
from kbackup.jobs.migrate.states import read as states_read
from kbackup.jobs.migrate.states.judge import judge
from kbackup.jobs.migrate.states.witnesses import KafkaState, MetricsWitness, Witnesses
from kbackup.jobs.migrate.unread import NotRead
from tests.support import healthy_cluster as healthy
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.migrate_commands import ZOOKEEPER


def test_status(zookeeper: FakeZooKeeper, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "status", *ZOOKEEPER]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^state: +dual write$", shown, re.MULTILINE)
    assert re.search(r"^way back: +yes$", shown, re.MULTILINE)
    assert "/controller is KRaft controller 3000, /migration at offset 99, 1 broker with ZooKeeper" in shown
    assert re.search(
        r"^not looked at: +metrics: no exporter is named; give --metrics-url", shown, re.MULTILINE
    )
    assert re.search(r"^next step: +run 'kbackup migrate verify'", shown, re.MULTILINE)


def test_status_as_json(zookeeper: FakeZooKeeper, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_following(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each change; that ZooKeeper comes nearer is none."""
    following(monkeypatch, *STATES)
    assert main(["migrate", "status", "--follow", "--interval", "0.1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("Z ")[2] for line in lines] == [
        "pre-migration, 1 broker in ZooKeeper mode, 3 records behind",
        "dual write, 1 broker in ZooKeeper mode, 2 records behind",
        "finished, 1 broker in ZooKeeper mode, 0 records behind",
    ]


def test_following_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_terminal_shows_the_migration_state() -> None:
    unread = NotRead("not asked", "ask")
    report = judge(Witnesses((MetricsWitness("u", KafkaState.MIGRATION, True, 2, 7),), unread, unread))
    console = Console(width=100, record=True, file=StringIO())
    console.print(_table(report))
    shown = console.export_text()
    assert "state:" in shown
    assert "dual write" in shown
    assert "7 records" in shown
    assert "as of:" in shown


def preflight(monkeypatch: pytest.MonkeyPatch, findings: Findings, *arguments: str) -> int:
    monkeypatch.setattr(preflight_read, "read_preflight", lambda *read: findings)
    return main(["migrate", "preflight", *arguments])


def test_preflight(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_preflight_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert preflight(monkeypatch, healthy.brokers(offline=("orders-0",)), "--json") == 10
    told = json.loads(capsys.readouterr().out)
    assert (told["verdict"], told["exit_code"]) == ("not ready", 10)
    assert [line["name"] for line in told["lines"] if line["status"] == "failed"] == ["partitions: online"]


def test_preflight_of_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """A source without a name gets a line with the option to give, never ok."""
    assert main(["migrate", "preflight"]) == 3
    shown = capsys.readouterr().out
    assert "ok " not in shown
    for hint in ("bootstrap.servers", "zookeeper.connect", "--controller-config", "--archive"):
        assert hint in shown


def test_preflight_with_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "preflight", "--controller-config", str(tmp_path / "none")]) == 2
    assert "can't read" in capsys.readouterr().err


def test_controllers_storage(tmp_path: Path) -> None:
    file = tmp_path / "controller.properties"
    file.write_text(f"process.roles=controller\nlog.dirs={tmp_path}/a,{tmp_path}/b\n")
    unread = preflight_read.read_controller(file).cluster_id
    assert isinstance(unread, NotRead)
    assert f"{tmp_path}/a/meta.properties" in unread.why
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "meta.properties").write_text(
        "#\n#date\ncluster.id=L05pbYc6Q4qlvxLk3rTO9A\nversion=1\n"
    )
    assert preflight_read.read_controller(file).cluster_id == "L05pbYc6Q4qlvxLk3rTO9A"


def test_archive_of_the_preflight(archive: str) -> None:
    from kbackup.store import open_store

    told = preflight_read.read_archive(open_store(archive))
    assert told is not None
    assert (told.restore_point, told.cluster_id) == (3, "source")
    assert told.captured_at == 1767398400.0
    assert preflight_read.read_archive(open_store(f"{archive}/elsewhere")) is None
