"""`archive_id`: the archive that must be there, whatever somebody put in its place."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kbackup import cli
from kbackup.archive.reader import open_archive
from kbackup.store import open_store
from kbackup.store.crypt.kek import generate_key
from tests.support.archives import make_archive

Said = pytest.CaptureFixture[str]
LOOKS = [
    ["list"],
    ["info"],
    ["ls"],
    ["verify", "--quick"],
    ["expire"],
    ["key", "list"],
    ["repair"],
    ["unlock"],
]


@pytest.fixture(params=["plain", "encrypted"])
def key(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "plain":
        return ""
    (tmp_path / "key").write_text(generate_key())
    key = f"file:{tmp_path / 'key'}"
    monkeypatch.setenv("KBACKUP_ENCRYPTION_KEY", key)
    return key


def made(folder: Path, key: str) -> str:
    store = open_store(str(folder), key=key)
    make_archive(store)
    return open_archive(store).info.id


@pytest.fixture
def swapped(tmp_path: Path, key: str) -> str:
    """An archive at `archive` that was replaced as a whole by another one under the same key; the id of the first."""
    mine = made(tmp_path / "archive", key)
    made(tmp_path / "other", key)
    shutil.rmtree(tmp_path / "archive")
    shutil.copytree(tmp_path / "other", tmp_path / "archive")
    return mine


@pytest.mark.parametrize("command", LOOKS, ids=[" ".join(command) for command in LOOKS])
def test_another_archive_is_refused(command: list[str], swapped: str, tmp_path: Path, capsys: Said) -> None:
    archive = ["--archive", str(tmp_path / "archive")]
    assert cli.main(["list", *archive]) == 0, "nobody else finds out"
    there = open_archive(open_store(str(tmp_path / "archive"), key=key_of(tmp_path))).info.id
    capsys.readouterr()
    assert cli.main([*command, *archive, "--set", f"archive_id={swapped}"]) == 10
    err = capsys.readouterr().err
    assert f"is {there}, and archive_id expects {swapped}" in err
    assert "find out who put it there" in err


def key_of(folder: Path) -> str:
    return f"file:{folder / 'key'}" if (folder / "key").exists() else ""


def test_the_one_that_is_expected(key: str, tmp_path: Path, capsys: Said) -> None:
    archive_id = made(tmp_path / "archive", key)
    at = ["--archive", str(tmp_path / "archive"), "--set", f"archive_id={archive_id}"]
    assert cli.main(["list", *at]) == 0
    assert cli.main(["copy", str(tmp_path / "copy"), *at]) == 0
    capsys.readouterr()
    assert cli.main(["info", "--json", *at]) == 0
    assert json.loads(capsys.readouterr().out)["archive_id"] == archive_id


def test_an_empty_place_is_refused(tmp_path: Path, capsys: Said) -> None:
    """Or a backup would begin anew where somebody took the archive away."""
    at = ["--archive", str(tmp_path / "archive"), "--set", "archive_id=0123"]
    assert cli.main(["backup", *at, "--set", "source.bootstrap.servers=127.0.0.1:1"]) == 10
    assert "there is no archive" in capsys.readouterr().err
    assert not (tmp_path / "archive").exists()


def test_a_repair_makes_archive_json_again(key: str, tmp_path: Path) -> None:
    archive_id = made(tmp_path / "archive", key)
    (tmp_path / "archive" / "archive.json").unlink()
    at = ["--archive", str(tmp_path / "archive"), "--set", f"archive_id={archive_id}"]
    assert cli.main(["list", *at]) == 10
    assert cli.main(["repair", "--confirm", *at]) == 0
    assert cli.main(["list", *at]) == 0
