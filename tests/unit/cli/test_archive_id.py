"""`archive_id`: the archive that must be there, whatever somebody put in its place."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kbackup import cli
from kbackup.archive import layout
from kbackup.archive.catalog.documents import Latest
from kbackup.archive.models import ArchiveInfo, dump
from kbackup.archive.reader import open_archive
from kbackup.store import open_store
from kbackup.store.crypt.kek import generate_key
from tests.support.archives import make_archive

Said = pytest.CaptureFixture[str]
LOOKS = [["list"], ["info"], ["ls"], ["verify", "--quick"], ["expire"], ["key", "list"], ["repair"], ["unlock"]]


@pytest.fixture(params=["plain", "encrypted"])
def key(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "plain":
        return ""
    (tmp_path / "key").write_text(generate_key())
    key = f"file:{tmp_path / 'key'}"
    monkeypatch.setenv("KBACKUP_ENCRYPTION_KEY", key)
    return key


def made(folder: Path, key: str) -> str:
    store = open_store(str(folder), key=key, key_class=layout.key_class)
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


@pytest.mark.exhaustive
@pytest.mark.parametrize("command", LOOKS, ids=[" ".join(command) for command in LOOKS])
def test_another_archive_is_refused(command: list[str], swapped: str, tmp_path: Path, capsys: Said) -> None:
    archive = ["--archive", str(tmp_path / "archive")]
    assert cli.main(["list", *archive]) == 0, "nobody else finds out"
    existing = open_archive(
        open_store(str(tmp_path / "archive"), key=key_of(tmp_path), key_class=layout.key_class)
    ).info.id
    capsys.readouterr()
    assert cli.main([*command, *archive, "--set", f"archive_id={swapped}"]) == 10
    err = capsys.readouterr().err
    assert f"is {existing}, and archive_id expects {swapped}" in err
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
    at = ["--archive", str(tmp_path / "archive"), "--set", f"archive_id={32 * '0'}"]
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


@pytest.mark.parametrize("wrong", ["0123", "A" * 32, "$(reboot)", "0" * 32 + "\n", "\x1b[2J"], ids=ascii)
def test_an_id_that_is_not_hex_is_refused_by_name(wrong: str, tmp_path: Path, capsys: Said) -> None:
    assert cli.main(["list", str(tmp_path), "--set", f"archive_id={wrong}"]) == 2
    err = capsys.readouterr().err
    assert "archive_id" in err
    assert "is not 32 hex digits" in err
    assert "\x1b" not in err


def test_a_repair_takes_no_id_that_is_not_hex(tmp_path: Path, capsys: Said) -> None:
    """Not from archive.json, and not from the documents that tell the id where it is lost."""
    archive_id = made(tmp_path / "archive", "")
    store = open_store(str(tmp_path / "archive"))
    store.put(layout.ARCHIVE, dump(ArchiveInfo(id="$(reboot)", created_at="")))
    store.put(layout.LATEST, dump(Latest(archive_id="$(reboot)", number=1)))
    assert cli.main(["list", str(tmp_path / "archive")]) == 13
    assert cli.main(["repair", "--confirm", str(tmp_path / "archive")]) == 0
    capsys.readouterr()
    assert open_archive(store).info.id == archive_id
