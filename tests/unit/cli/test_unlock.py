"""`kbackup unlock` through the command line."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kbackup import cli
from kbackup.archive import layout
from kbackup.archive.lease import HeldLease, holder, read_lease
from kbackup.archive.models import Lease, dump
from kbackup.archive.run import open_or_create
from kbackup.store import open_store
from kbackup.store.base import Store
from kbackup.store.crypt.kek import generate_key
from kbackup.util.times import rfc3339

Said = pytest.CaptureFixture[str]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = open_store(str(tmp_path / "archive"))
    open_or_create(made)
    return made


def put_lease(store: Store, seconds: float) -> None:
    lease = Lease(
        owner="somebody",
        host="elsewhere\x1b[2J",
        pid=7,
        command="kbackup backup",
        acquired_at="2020-01-01T00:00:00.000Z",
        expires_at=rfc3339(datetime.now(UTC) + timedelta(seconds=seconds)),
    )
    store.put(layout.LOCK, dump(lease))


def document(capsys: Said, *args: str) -> Any:
    assert cli.main([*args, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_unlock_reports_a_free_lease(store: Store, capsys: Said) -> None:
    assert cli.main(["unlock", store.url]) == 0
    assert capsys.readouterr().out == f"archive {store.url}: nobody holds the lease\n"
    assert document(capsys, "unlock", store.url)["state"] == "none"
    with HeldLease(store, "kbackup backup", 60):
        pass
    told = document(capsys, "unlock", store.url)
    assert (told["state"], told["lease"]["command"], told["broken"]) == ("released", "kbackup backup", False)


@pytest.mark.parametrize(("answer", "code", "remaining"), [("y", 0, "kbackup unlock"), ("n", 1, "kbackup backup")])
def test_a_dead_one_after_a_question(
    store: Store, capsys: Said, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, remaining: str
) -> None:
    put_lease(store, -1)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    asked: list[str] = []

    def confirm(text: str, err: bool) -> bool:
        asked.append(text)
        return answer == "y"

    monkeypatch.setattr("click.confirm", confirm)
    assert cli.main(["unlock", store.url]) == code
    assert asked == ["break the lease?"]
    out, err = capsys.readouterr()
    assert "kbackup backup on elsewhere\\x1b[2J (pid 7, since 2020" in out
    assert "has run out" in out
    assert ("it is free now" in out) == (code == 0)
    assert err == (
        "" if code == 0 else ("kbackup: the lease is not broken\nhint: run 'kbackup unlock' again and answer yes\n")
    )
    assert read_lease(store)[0].command == remaining


def test_without_anybody_to_ask(store: Store, capsys: Said) -> None:
    put_lease(store, -1)
    assert cli.main(["unlock", store.url]) == 2
    assert "hint: give --yes" in capsys.readouterr().err
    assert read_lease(store)[0].owner == "somebody"
    told = document(capsys, "unlock", store.url, "--yes")
    assert (told["state"], told["lease"]["pid"], told["broken"]) == ("dead", 7, True)
    assert read_lease(store)[0].released


def test_one_that_is_alive_is_refused_but_for_force(store: Store, capsys: Said) -> None:
    put_lease(store, 3600)
    assert cli.main(["unlock", store.url, "--yes"]) == 11
    assert "--force takes it from a run that goes on" in capsys.readouterr().err
    assert read_lease(store)[0].owner == "somebody"
    told = document(capsys, "unlock", store.url, "--yes", "--force")
    held = holder(store)
    assert held is not None
    assert (told["state"], told["free_at"], held.command) == ("alive", held.expires_at, "kbackup unlock")


def test_an_encrypted_archive_needs_no_key(tmp_path: Path, capsys: Said) -> None:
    (tmp_path / "key").write_text(generate_key())
    store = open_store(str(tmp_path / "sealed"), key=f"file:{tmp_path / 'key'}", key_class=layout.key_class)
    open_or_create(store)
    put_lease(store, -1)
    assert document(capsys, "unlock", store.url, "--yes")["broken"] is True


def test_no_archive(tmp_path: Path, capsys: Said) -> None:
    assert cli.main(["unlock", str(tmp_path)]) == 10
    assert "there is no archive" in capsys.readouterr().err
