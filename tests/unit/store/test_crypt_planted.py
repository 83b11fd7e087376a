"""Key files that another writer planted, and a lost archive.json."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from kbackup.archive import layout
from kbackup.archive.models import ArchiveInfo, dump
from kbackup.archive.reader import open_archive
from kbackup.archive.run import open_or_create
from kbackup.cli import main
from kbackup.errors import CorruptError
from kbackup.jobs.keys import held_keys, rotate_keys
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.keyring import KEYS, Keyring, decode_file
from kbackup.store.file import FileStore
from tests.support.key_files import change, filled, key_file, kms, opened

pytestmark = pytest.mark.exhaustive(keep=2)


def plant(inner: FileStore, source: str) -> dict[str, bytes]:
    """Files that any writer can put into keys/, made from the public content of the files there."""
    there = [info.key for info in inner.list(KEYS)]
    whole = json.loads(inner.get(there[0]))
    garbage = base64.b64encode(bytes(60)).decode()
    planted: dict[str, Any] = {
        "000-junk": "no document",
        "000-newer": whole | {"version": 9},
        "000-garbage": whole | {"keys": {"00" * 16: garbage}},
        "zzz-same-key": whole | {"keys": dict.fromkeys(whole["keys"], garbage)},
        "000-another-kek": whole | {"kek": "aes256:0000000000000000"},
        "000-another-archive": whole | {"archive_id": "0" * 32},
    }
    for name, content in planted.items():
        inner.put(f"keys/{name}.json", json.dumps(content).encode())
    return {path: inner.get(path) for path in (f"keys/{name}.json" for name in planted)}


@pytest.mark.exhaustive(keep=1)
@pytest.mark.parametrize("kek", [key_file, lambda folder: kms(folder / "kms")], ids=["file", "command"])
def test_planted_key_files_are_skipped(
    kek: Any, inner: FileStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Readers, writers and rotations leave it out, and say so once."""
    source, new = kek(tmp_path), key_file(tmp_path, "new")
    stored = filled(inner, source)
    planted = plant(inner, source)
    store = opened(inner, source)
    store.keyring.check()
    store.put("run/3", b"data")
    assert {opened(inner, source).get(key) for key in (*stored, "run/3")} == {b"data"}
    assert len([r for r in caplog.records if "keys/000-junk.json is left out" in r.getMessage()]) >= 1
    keyring, skipped, conflicts = held_keys(opened(inner, source))
    assert {each.path for each in skipped} == planted.keys() - {"keys/000-another-kek.json"}
    assert conflicts == []
    done = rotate_keys(opened(inner, source), new, 60)
    assert (done.keys, done.undeleted) == (4, ())
    assert {each.path for each in done.skipped} == planted.keys()
    assert {opened(inner, new).get(key) for key in (*stored, "run/3")} == {b"data"}
    assert {path: inner.get(path) for path in planted} == planted, "nobody deletes what may hold keys"
    assert len(keyring) == 4 + 3


def test_junk_alone_stops_no_first_backup(inner: FileStore, tmp_path: Path) -> None:
    source = key_file(tmp_path)
    open_or_create(opened(inner, source))
    inner.put("keys/junk.json", b"{}")
    opened(inner, source).put("a", b"a")
    assert opened(inner, source).get("a") == b"a"


@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize("kek", [key_file, lambda folder: kms(folder / "kms")], ids=["file", "command"])
def test_an_object_of_another_archive_under_the_same_key(kek: Any, edited: bool, tmp_path: Path) -> None:
    """Brought along with its file of data keys, and that one made to look like ours."""
    source = kek(tmp_path)
    mine, other = FileStore(tmp_path / "mine"), FileStore(tmp_path / "other")
    for inner, data in ((mine, b"mine"), (other, b"other")):
        open_or_create(opened(inner, source))
        opened(inner, source).put("backups/0000000001/manifest.json", data)
    for path in [info.key for info in other.list() if info.key not in ("archive.json", "lock.json")]:
        mine.put(path, other.get(path))
        if edited and path.startswith(KEYS):
            change(mine, path, archive_id=open_archive(opened(mine, source)).info.id)
    with pytest.raises(CorruptError):
        opened(mine, source).get("backups/0000000001/manifest.json")


def test_a_lost_archive_json(inner: FileStore, tmp_path: Path) -> None:
    """The files of data keys say which archive it was, for its repair."""
    source = key_file(tmp_path)
    archive_id = open_or_create(opened(inner, source)).info.id
    opened(inner, source).put("a", b"a")
    inner.delete(["archive.json"])
    assert opened(inner, source).get("a") == b"a"
    assert opened(inner, source).keyring.archive_id == archive_id
    (path,) = [info.key for info in inner.list(KEYS)]
    inner.put("keys/another.json", inner.get(path))
    change(inner, "keys/another.json", archive_id="0" * 32)
    with pytest.raises(CorruptError, match="belong to archives 0000"):
        opened(inner, source).get("a")
    assert CryptStore(inner, Keyring(inner, source, archive_id=archive_id), layout.key_class).get("a") == b"a"


def test_a_command_gets_the_archive_id(inner: FileStore, tmp_path: Path) -> None:
    (tmp_path / "kms.sh").write_text(
        'echo "$1 $KBACKUP_ARCHIVE_ID" >>"$0.calls"; [ "$1" = name ] && echo kms || cat\n'
    )
    source = f"command:sh {tmp_path / 'kms.sh'}"
    archive_id = open_or_create(opened(inner, source)).info.id
    opened(inner, source).put("a", b"a")
    assert opened(inner, source).get("a") == b"a"
    calls = (tmp_path / "kms.sh.calls").read_text().splitlines()
    assert calls == ["name ", f"wrap {archive_id}", "name ", f"unwrap {archive_id}"]


HOSTILE_IDS = ("$(reboot)", "\n", "a\nb", "\x1b]0;x\x07", "0" * 32 + "\n", "0" * 31, "A" * 32, "a\0b")


@pytest.mark.parametrize("hostile", HOSTILE_IDS, ids=ascii)
def test_a_command_gets_no_id_but_hex(hostile: str, inner: FileStore, tmp_path: Path) -> None:
    """Any text may stand in archive.json, with the right checksum: of whoever may write."""
    source = kms(tmp_path / "kms")
    stored = filled(inner, source, 1)
    (tmp_path / "kms" / "calls").unlink()
    inner.put("archive.json", dump(ArchiveInfo(id=hostile, created_at="", encryption=CryptStore.encryption)))
    with pytest.raises(CorruptError, match=r"archive\.json") as raised:
        open_archive(opened(inner, source))
    assert str(raised.value).isprintable()
    with pytest.raises(CorruptError) as writing:
        opened(inner, source).put("new", b"data")
    with pytest.raises(CorruptError) as reading:
        opened(inner, source).get(next(iter(stored)))
    for raised in (writing, reading):
        assert str(raised.value).isprintable()
    calls = tmp_path / "kms" / "calls"
    assert set(calls.read_text().split() if calls.exists() else []) <= {"name"}, "no call with this id"


@pytest.mark.parametrize("hostile", HOSTILE_IDS, ids=ascii)
def test_files_of_data_keys_of_no_archive_are_damaged(
    hostile: str, inner: FileStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = key_file(tmp_path)
    filled(inner, source, 1)
    (path,) = [info.key for info in inner.list(KEYS)]
    inner.put("keys/planted.json", inner.get(path))
    change(inner, "keys/planted.json", archive_id=hostile, kek="x\x1b[2J")
    with pytest.raises(CorruptError, match=r"keys/planted\.json: .*archive_id") as raised:
        decode_file(inner.get("keys/planted.json"), "keys/planted.json")
    assert str(raised.value).isprintable()
    change(inner, "keys/planted.json", archive_id=json.loads(inner.get(path))["archive_id"])
    assert main(["key", "list", str(tmp_path / "archive"), "--set", f"encryption.key={source}"]) == 0
    assert r"x\x1b[2J" in capsys.readouterr().out, "the name of its key, escaped"
