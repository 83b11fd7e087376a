"""Key files that were changed, planted or lost, and archives of other keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kbackup.archive import layout
from kbackup.archive.identity import KNOWN
from kbackup.archive.models import ArchiveInfo, dump
from kbackup.archive.reader import open_archive
from kbackup.archive.run import open_or_create
from kbackup.cli import main
from kbackup.errors import CorruptError, WrongKeyError
from kbackup.jobs.keys import try_key
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.kek import load_kek
from kbackup.store.crypt.keyring import KEYS, Keyring
from kbackup.store.file import FileStore
from tests.support.faulty_store import FaultyStore
from tests.support.key_files import change, key_file, opened

pytestmark = pytest.mark.exhaustive(keep=2)


def test_key_files_that_were_changed(inner: FileStore, tmp_path: Path) -> None:
    source = key_file(tmp_path)
    opened(inner, source).put("a", b"a")
    (path,) = [info.key for info in inner.list(KEYS)]
    whole = inner.get(path)
    ((key_id, wrapped),) = json.loads(whole)["keys"].items()
    other = ("0" if wrapped[30] != "0" else "1").join((wrapped[:30], wrapped[31:]))
    changes: list[dict[str, Any]] = [
        {"keys": {key_id: other}},
        {"keys": {key_id: wrapped[:20]}},
        {"keys": {key_id: ""}},
        {"keys": {key_id: "***"}},
        {"keys": {key_id: 1}},
        {"keys": {"abc": wrapped}},
        {"keys": {"00": wrapped}},
        {"keys": {}},
        {"format": "kbackup-key"},
        {"version": 1},
        {"archive_id": "another"},
        {"more": 1},
    ]
    for members in changes:
        inner.put(path, whole)
        change(inner, path, **members)
        with pytest.raises(CorruptError, match=key_id):
            opened(inner, source).get("a")
    inner.put(path, whole[:50])
    with pytest.raises(CorruptError, match=path):
        opened(inner, source).get("a")
    inner.delete([path])
    with pytest.raises(CorruptError, match=f"file a at byte 8: no file of keys/ holds data key {key_id}"):
        opened(inner, source).get("a")


def test_a_data_key_under_another_id(inner: FileStore, tmp_path: Path) -> None:
    """Two runs' data keys swapped: neither opens."""
    source = key_file(tmp_path)
    for name in ("a", "b"):
        opened(inner, source).put(name, b"data")
    first, second = (info.key for info in inner.list(KEYS))
    one, two = (next(iter(json.loads(inner.get(path))["keys"].items())) for path in (first, second))
    change(inner, first, keys={one[0]: two[1]})
    change(inner, second, keys={two[0]: one[1]})
    for name in ("a", "b"):
        with pytest.raises(CorruptError):
            opened(inner, source).get(name)


def test_an_archive_stays_what_it_was_made_as(tmp_path: Path) -> None:
    source = key_file(tmp_path)
    plain, secret = FileStore(tmp_path / "plain"), FileStore(tmp_path / "secret")
    assert open_or_create(plain).info.encryption is None
    assert open_or_create(opened(secret, source)).info.encryption == CryptStore.encryption
    assert CryptStore.encryption in KNOWN
    for ask in (open_archive, open_or_create):
        with pytest.raises(WrongKeyError, match="is encrypted, and no key is given"):
            ask(secret)  # no data key yet
        with pytest.raises(WrongKeyError, match="is not encrypted, but a key is given"):
            ask(opened(plain, source))
    assert {info.key for info in plain.list()} == {"archive.json"}
    opened(secret, source).put("a", b"a")
    with pytest.raises(
        WrongKeyError, match=f"encrypted under key {load_kek(source).name}, and no key is given"
    ):
        open_archive(secret)
    unknown = ArchiveInfo(id="0" * 32, created_at="", encryption="kbackup-encryption-9")
    secret.put("archive.json", dump(unknown))
    with pytest.raises(CorruptError, match="kbackup-encryption-9"):
        open_archive(opened(secret, source))


@pytest.mark.parametrize("command", ["list", "info", "verify"])
def test_commands_end_with_12(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, wrong = key_file(tmp_path), key_file(tmp_path, "wrong")
    archive = tmp_path / "archive"
    store = opened(FileStore(archive), source)
    open_or_create(store)
    store.put("catalog/0000000001.json", b"{}")
    asked = [command, "--archive", str(archive)]
    assert main(asked) == 12
    assert main([*asked, "--encryption-key", wrong]) == 12
    assert main([*asked, "--encryption-key", f"file:{tmp_path / 'none'}"]) == 12
    assert main([*asked, "--encryption-key", source]) == 13
    for key in ("key", "wrong"):
        assert (tmp_path / key).read_text().strip() not in capsys.readouterr().err


def test_a_check_tries_the_key(inner: FileStore, tmp_path: Path) -> None:
    source = key_file(tmp_path)
    assert try_key(opened(inner, source)) == load_kek(source).name
    assert list(inner.list()) == []
    for wrong in (f"file:{tmp_path / 'none'}", "command:cat"):
        with pytest.raises(WrongKeyError):
            try_key(opened(inner, wrong))
    with pytest.raises(WrongKeyError, match="without a key"):
        try_key(inner)


def test_many_runs_are_read_at_once(inner: FileStore, tmp_path: Path) -> None:
    source = key_file(tmp_path)
    open_or_create(opened(inner, source))
    for run in range(12):
        opened(inner, source).put(f"run/{run}", b"data")
    counted = FaultyStore(inner)
    store = CryptStore(inner, Keyring(counted, source), layout.key_class)
    assert store.get("run/7") == b"data"
    assert len(counted.calls) == 2  # its own file and archive.json
    assert {store.get(f"run/{run}") for run in range(12)} == {b"data"}
    assert len(counted.calls) == 13
