"""`kbackup migrate archive` and `verify`, as people and programs see them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kbackup.cli import main
from kbackup.jobs.metadata import merge
from kbackup.metadata.entities import Reading
from kbackup.migrate import archive as archive_job
from kbackup.migrate import verify as verify_job
from kbackup.systems import MetadataSource
from tests.support.metadata_entities import by_log, by_zookeeper

Said = pytest.CaptureFixture[str]
VERIFY = ["migrate", "verify", "--lag", "0s"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def cluster(monkeypatch: pytest.MonkeyPatch, *readings: Reading) -> None:
    """Whatever is asked, these answer."""
    asked = [MetadataSource(r.source, r.source, lambda r=r: r) for r in readings]  # type: ignore[misc]  # bound now
    monkeypatch.setattr(verify_job, "metadata_sources", lambda sources: asked)
    merged = merge(readings, "2026-01-05T00:00:00.000Z", 1)
    monkeypatch.setattr(archive_job, "read_all", lambda sources: merged)
    monkeypatch.setattr(archive_job, "lag_warnings", lambda sources: [])


def archived(*more: str) -> int:
    return main(["migrate", "archive", "-a", "archive", "--set", "source.zookeeper.connect=zk:1", *more])


def test_archive_says_what_was_read_where(monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    cluster(monkeypatch, by_zookeeper(), by_log())
    assert archived("--label", "before") == 0
    out, _ = capsys.readouterr()
    assert "SCRAM users" in out
    assert "zookeeper" in out
    assert "restore point 1, before of " in out
    assert archived("--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["restore_point"] == 2
    assert {"part": "ACLs", "entities": 1, "source": "metadata log"} in told["parts"]


def test_archive_refuses_a_label_and_a_source_of_nothing(capsys: Said) -> None:
    assert archived("--label", "7") == 2
    assert main(["migrate", "archive", "-a", "archive"]) == 2
    assert "[source] names no cluster" in capsys.readouterr().err


def test_verify_ends_with_the_number_of_differences(monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    cluster(monkeypatch, by_zookeeper(), by_log())
    assert archived() == 0
    capsys.readouterr()
    assert main([*VERIFY, "-a", "archive"]) == 0
    assert capsys.readouterr().out.endswith("0 differences\n")

    cluster(monkeypatch, by_zookeeper(acls=()), by_log())
    assert main([*VERIFY, "--json"]) == 13
    told = json.loads(capsys.readouterr().out)
    assert told["restore_point"] is None
    assert [d["text"] for d in told["differences"]] == [
        "ACLs: User:a allow read from * on literal topic orders: in metadata log, not in zookeeper"
    ]
    assert main(VERIFY) == 13
    out, err = capsys.readouterr()
    assert "1 difference\n" in out
    assert "no archive is named" in err


def test_verify_needs_a_lag_that_is_a_duration(capsys: Said) -> None:
    assert main(["migrate", "verify", "--lag", "soon"]) == 2
    assert "--lag: soon is not a duration: give one such as 30d or 12h" in capsys.readouterr().err
