from __future__ import annotations

import json
from pathlib import Path

import pytest

from kbackup.cli import main
from kbackup.config import KEYS, VARIABLES


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KBACKUP_TARGET_CLIENT_ID", "mine")
    Path("kbackup.toml").write_text('archive = "s3://b"\n[backup]\nsegment_bytes = "1MiB"\n')
    Path("p").write_text("max.poll.records=1\n")


def test_every_value_says_where_it_came_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--show", "--master", "local[1]", "--set", "backup.topics=a,b"]) == 0
    lines = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    assert ["archive", "s3://b", "file kbackup.toml"] in lines
    assert ["backup.segment_bytes", "1MiB", "file kbackup.toml"] in lines
    assert ["target.client.id", "mine", "environment KBACKUP_TARGET_CLIENT_ID"] in lines
    assert ["spark.master", "local[1]", "flag --master"] in lines
    topics = next(line for line in lines if line[0] == "backup.topics")
    assert " ".join(" ".join(topics).split()) == "backup.topics a, b flag --set"
    assert ["backup.split_records", "4000000", "default"] in lines


def test_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KBACKUP_SOURCE_CONFIG", "p")
    assert main(["config", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    settings = {setting["key"]: setting for setting in document["settings"]}
    assert settings["backup.segment_bytes"] == {
        "key": "backup.segment_bytes",
        "value": 1 << 20,
        "origin": {"kind": "file", "name": "kbackup.toml"},
    }
    assert settings["restore.restore_id"]["value"] is None
    assert document["notes"] == ["p: max.poll.records is left out: kbackup joins no consumer group"]


def test_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--keys"]) == 0
    out = capsys.readouterr().out
    for key in KEYS.values():
        assert f"\n{key.path} " in out
        assert key.doc in out
    assert main(["config", "--keys", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [key["key"] for key in told["keys"]] == list(KEYS)
    assert told["variables"] == VARIABLES
