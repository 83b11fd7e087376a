"""`kbackup unlock` and `kbackup ui` through the command line."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kbackup.archive import layout
from kbackup.archive.lease import HeldLease, holder, read_lease
from kbackup.archive.models import Lease, dump
from kbackup.archive.run import open_or_create
from kbackup.store import open_store
from kbackup.store.base import Store
from kbackup.store.crypt.kek import generate_key
from kbackup.util.times import rfc3339
from tests.support.printed import Kbackup


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = open_store(str(tmp_path / "archive"))
    open_or_create(made)
    return made


def lease_of(store: Store) -> Lease:
    lease, _ = read_lease(store)
    return lease


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


def test_unlock_reports_a_free_lease(store: Store, kbackup: Kbackup) -> None:
    assert kbackup("unlock", store.url).out == f"archive {store.url}: nobody holds the lease\n"
    assert kbackup("unlock", store.url, "--json").json["state"] == "none"
    with HeldLease(store, "kbackup backup", 60):
        pass
    told = kbackup("unlock", store.url, "--json").json
    assert (told["state"], told["lease"]["command"], told["broken"]) == ("released", "kbackup backup", False)


@pytest.mark.parametrize(("answer", "code", "remaining"), [("y", 0, "kbackup unlock"), ("n", 1, "kbackup backup")])
def test_a_dead_one_after_a_question(
    store: Store, kbackup: Kbackup, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, remaining: str
) -> None:
    put_lease(store, -1)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    asked: list[str] = []

    def confirm(text: str, err: bool) -> bool:
        asked.append(text)
        return answer == "y"

    monkeypatch.setattr("click.confirm", confirm)
    printed = kbackup("unlock", store.url, code=code)
    assert asked == ["break the lease?"]
    assert "kbackup backup on elsewhere\\x1b[2J (pid 7, since 2020" in printed.out
    assert "has run out" in printed.out
    assert ("it is free now" in printed.out) == (code == 0)
    refused = "kbackup: the lease is not broken\nhint: run 'kbackup unlock' again and answer yes\n"
    assert printed.err == ("" if code == 0 else refused)
    assert lease_of(store).command == remaining


def test_without_anybody_to_ask(store: Store, kbackup: Kbackup) -> None:
    put_lease(store, -1)
    assert "hint: give --yes" in kbackup("unlock", store.url, code=2).err
    assert lease_of(store).owner == "somebody"
    told = kbackup("unlock", store.url, "--yes", "--json").json
    assert (told["state"], told["lease"]["pid"], told["broken"]) == ("dead", 7, True)
    assert lease_of(store).released


def test_one_that_is_alive_is_refused_but_for_force(store: Store, kbackup: Kbackup) -> None:
    put_lease(store, 3600)
    assert "--force takes it from a run that goes on" in kbackup("unlock", store.url, "--yes", code=11).err
    assert lease_of(store).owner == "somebody"
    told = kbackup("unlock", store.url, "--yes", "--force", "--json").json
    held = holder(store)
    assert held is not None
    assert (told["state"], told["free_at"], held.command) == ("alive", held.expires_at, "kbackup unlock")


def test_an_encrypted_archive_needs_no_key(tmp_path: Path, kbackup: Kbackup) -> None:
    (tmp_path / "key").write_text(generate_key())
    store = open_store(str(tmp_path / "sealed"), key=f"file:{tmp_path / 'key'}", key_class=layout.key_class)
    open_or_create(store)
    put_lease(store, -1)
    assert kbackup("unlock", store.url, "--yes", "--json").json["broken"] is True


@pytest.mark.parametrize("command", [["unlock"], ["ui", "--listen", "127.0.0.1:0", "--archive"]])
def test_a_place_without_an_archive_is_refused(command: list[str], tmp_path: Path, kbackup: Kbackup) -> None:
    assert "there is no archive at" in kbackup(*command, str(tmp_path), code=10).err


# `kbackup ui` before it serves anything.


def test_the_extra_that_it_needs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kbackup: Kbackup) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    err = kbackup("ui", "--archive", str(tmp_path), "--listen", "127.0.0.1:0", code=2).err
    assert "the package uvicorn of 'kbackup ui' is not installed" in err
    assert "pip install 'kafka-kbackup[web]'" in err


@pytest.mark.parametrize("listen", ["nowhere", "127.0.0.1:99999", "256.0.0.1:1"])
def test_addresses_that_are_none(tmp_path: Path, listen: str, kbackup: Kbackup) -> None:
    err = kbackup("ui", "--archive", str(tmp_path), "--listen", listen, code=2).err
    assert f"can't listen on {listen}" in err.replace("'", "").replace("cant", "can't")


def test_a_token_of_its_own_is_not_printed_into_a_log(
    tmp_path: Path, kbackup: Kbackup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod listens on all addresses, and who reads its log could read every record."""
    listen = ["ui", "--archive", str(tmp_path), "--listen", "0.0.0.0:0"]
    assert "a new token would be printed into a log" in kbackup(*listen, code=2).err
    monkeypatch.setenv("KBACKUP_UI_TOKEN", "0123456789abcdef")
    kbackup(*listen, code=10)  # with a token the archive is opened
