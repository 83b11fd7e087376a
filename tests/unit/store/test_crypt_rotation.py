"""Rotation of the key that encrypts data keys."""

from __future__ import annotations

import base64
import json
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from kbackup.archive.reader import open_archive
from kbackup.cli import main
from kbackup.errors import KbackupError, LockedError, StoreError, WrongKeyError
from kbackup.jobs.keys import held_keys, rotate_keys
from kbackup.store.base import Failed
from kbackup.store.crypt.kek import LocalKek, generate_key, load_kek
from kbackup.store.crypt.keyring import KEYS, rotate
from kbackup.store.file import FileStore
from tests.support.faulty_store import FaultyStore
from tests.support.key_files import filled, key_file, kms, opened

pytestmark = pytest.mark.exhaustive(keep=2)


@pytest.mark.exhaustive
def test_rotation_touches_no_data(inner: FileStore, tmp_path: Path) -> None:
    old, new = key_file(tmp_path), kms(tmp_path / "kms")
    stored = filled(inner, old)
    done = rotate_keys(opened(inner, old), new, 60)
    assert (done.keys, len(done.removed), done.undeleted) == (3, 3, ())
    assert [info.key for info in inner.list(KEYS)] == [done.file]
    assert {key: inner.get(key) for key in stored} == stored
    assert {opened(inner, new).get(key) for key in stored} == {b"data"}
    with pytest.raises(WrongKeyError):
        opened(inner, old).get("run/0")
    with pytest.raises(WrongKeyError):
        opened(inner, old).put("run/9", b"")
    opened(inner, new).put("run/3", b"data")
    before, after = held_keys(opened(inner, new)).held
    assert (before.keys, after.keys, before.ours, after.ours) == (3, 1, True, True)
    assert not any(held.ours for held in held_keys(opened(inner, old)).held)
    back = rotate_keys(opened(inner, new), old, 60)
    assert back.keys == 4
    assert opened(inner, old).get("run/3") == b"data"


class KilledError(BaseException):
    pass


class Dies(FaultyStore):
    """After so many of the steps before and after its requests."""

    def __init__(self, inner: FileStore, steps: int) -> None:
        super().__init__(inner)
        self.remaining = steps

    def _fail(self, operation: Any, key: str, after: bool) -> None:
        if self.remaining == 0:
            raise KilledError
        self.remaining -= 1

    def delete(self, keys: Iterable[str]) -> list[Failed]:
        for key in keys:
            self._before("delete", key)
            assert self.inner.delete([key]) == []
            self._after("delete", key)
        return []


@pytest.mark.exhaustive(keep=1)
@pytest.mark.parametrize("step", range(12))
def test_a_rotation_that_is_killed_can_be_run_again(step: int, inner: FileStore, tmp_path: Path) -> None:
    """At every request, before and after it takes effect: the archive opens with one of the keys at least (three
    reads, then the new file, its reading back, three deletes), and with the new one alone when it was run again."""
    old, new = key_file(tmp_path), key_file(tmp_path, "new")
    stored = filled(inner, old)
    keks, archive_id = (load_kek(old), load_kek(new)), open_archive(opened(inner, old)).info.id
    with pytest.raises(KilledError):
        rotate(Dies(inner, step), *keks, archive_id)
    opens = [source for source in (old, new) if all_open(inner, source, stored)]
    assert opens == ([old] if step <= 3 else [old, new] if step <= 6 else [new])
    rotate(inner, *keks, archive_id)
    assert all_open(inner, new, stored)
    assert not all_open(inner, old, stored)
    assert len(list(inner.list(KEYS))) == 1


def all_open(inner: FileStore, source: str, stored: dict[str, bytes]) -> bool:
    try:
        return {opened(inner, source).get(key) for key in stored} == {b"data"}
    except WrongKeyError:
        return False


def test_rotation_folds(inner: FileStore, tmp_path: Path) -> None:
    source = key_file(tmp_path)
    stored = filled(inner, source, 4)
    assert rotate_keys(opened(inner, source), source, 60).keys == 4
    again = rotate_keys(opened(inner, source), source, 60)
    assert (again.keys, again.removed) == (4, ())
    assert all_open(inner, source, stored)


def test_rotation_needs_the_key_and_the_lease(inner: FileStore, tmp_path: Path) -> None:
    from kbackup.archive.lease import HeldLease

    old, new, third = key_file(tmp_path), key_file(tmp_path, "new"), key_file(tmp_path, "third")
    filled(inner, old)
    before = {info.key: inner.get(info.key) for info in inner.list(KEYS)}
    with pytest.raises(WrongKeyError, match="neither"):
        rotate_keys(opened(inner, third), new, 60)
    with HeldLease(inner, "kbackup backup", 60), pytest.raises(LockedError):
        rotate_keys(opened(inner, old), new, 60)
    assert {info.key: inner.get(info.key) for info in inner.list(KEYS)} == before


def test_rotation_says_what_stays(inner: FileStore, tmp_path: Path) -> None:
    class Keeps(FaultyStore):
        def delete(self, keys: Iterable[str]) -> list[Failed]:
            return [Failed(key, StoreError(f"{key} is locked")) for key in keys]

    old, new = key_file(tmp_path), key_file(tmp_path, "new")
    filled(inner, old)
    done = rotate(Keeps(inner), load_kek(old), load_kek(new), open_archive(opened(inner, old)).info.id)
    assert (done.keys, done.removed, len(done.undeleted)) == (3, (), 3)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("old", "new"):
        assert main(["key", "generate", str(tmp_path / name)]) == 0
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    assert main(["key", "generate", str(tmp_path / "new")]) == 2
    old, new = (f"file:{tmp_path / name}" for name in ("old", "new"))
    archive = tmp_path / "archive"
    filled(FileStore(archive), old)
    capsys.readouterr()
    assert main(["key", "list", str(archive), "--encryption-key", old, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(file["keys"], file["ours"]) for file in listed["files"]] == [(1, True)] * 3
    assert main(["key", "rotate", str(archive), "--encryption-key", old, "--to", new, "--json"]) == 0
    rotated = json.loads(capsys.readouterr().out)
    assert (rotated["data_keys"], len(rotated["removed"]), rotated["left"]) == (3, 3, [])
    assert rotated["key"] == load_kek(new).name
    assert main(["key", "rotate", str(archive), "--encryption-key", old, "--to", "hush"]) == 2
    assert main(["key", "list", str(archive)]) == 12
    assert main(["key", "list", str(archive), "--encryption-key", new]) == 0
    out, err = capsys.readouterr()
    assert rotated["file"] in out
    assert "hush" not in out + err
    for name in ("old", "new"):
        assert (tmp_path / name).read_text().strip() not in out + err


def test_two_keys_have_two_names() -> None:
    names = {LocalKek(base64.b64decode(generate_key())).name for _ in range(20)}
    assert len(names) == 20


def test_the_error_has_its_code() -> None:
    assert issubclass(WrongKeyError, KbackupError)
    assert WrongKeyError.exit_code == 12
