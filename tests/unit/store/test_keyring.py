"""Data keys of runs, and the key that encrypts them: from files, variables and commands."""

from __future__ import annotations

import base64
import json
import pickle
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from kbackup.archive import layout
from kbackup.archive.identity import KNOWN
from kbackup.archive.models import ArchiveInfo, dump
from kbackup.archive.reader import open_archive
from kbackup.archive.run import open_or_create
from kbackup.cli import main
from kbackup.errors import CorruptError, LockedError, StoreError, WrongKeyError
from kbackup.jobs.copy import copy_archive
from kbackup.jobs.keys import held_keys, rotate_keys, try_key
from kbackup.metrics.registry import Silent
from kbackup.store.base import Failed
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.kek import Kek, generate_key, load_kek
from kbackup.store.crypt.keyring import KEYS, Keyring, decode_file, list_files, new_file, read_files, rotate
from kbackup.store.file import FileStore
from tests.support.archives import grow, make_archive
from tests.support.faulty_store import FaultyStore
from tests.support.key_files import change, filled, key_file, kms, opened

pytestmark = pytest.mark.exhaustive(keep=2)
KEKS = pytest.mark.parametrize("kek", [key_file, lambda folder: kms(folder / "kms")], ids=["file", "command"])


@pytest.fixture
def source(tmp_path: Path) -> str:
    return key_file(tmp_path)


@pytest.fixture
def new(tmp_path: Path) -> str:
    return key_file(tmp_path, "new")


@pytest.fixture
def wrong(tmp_path: Path) -> str:
    return key_file(tmp_path, "wrong")


def test_a_data_key_a_run(inner: FileStore, source: str) -> None:
    for run in range(3):
        store = opened(inner, source)
        store.put(f"{run}/a", b"a")
        store.put(f"{run}/b", b"b")
    assert len(list(inner.list(KEYS))) == 3
    assert [opened(inner, source).get(f"{run}/{name}") for run in range(3) for name in "ab"] == [b"a", b"b"] * 3
    assert len({inner.get(f"{run}/a")[8:24] for run in range(3)}) == 3
    assert inner.get("0/a")[8:24] == inner.get("0/b")[8:24]


def test_tasks_that_write_get_the_one_key_that_encrypts(inner: FileStore, tmp_path: Path, source: str) -> None:
    opened(inner, source).put("before", b"before")
    store = opened(inner, source)
    store.put("intent", b"intent")
    assert store.get("before") == b"before"
    before, mine = (store.keyring.find(inner.get(name)[8:24], name) for name in ("before", "intent"))
    everything, pickled = pickle.dumps(store), pickle.dumps(store.for_writing())
    assert (before in everything, mine in everything) == (True, True)
    assert (before in pickled, mine in pickled) == (False, True)
    (tmp_path / "key").unlink()  # tasks run where it may not be
    task: CryptStore = pickle.loads(pickled)
    task.put("segment", b"segment")
    assert (task.get("segment"), task.get("intent")) == (b"segment", b"intent")
    assert inner.get("segment")[8:24] == inner.get("intent")[8:24]
    with pytest.raises(WrongKeyError):
        task.get("before")
    assert inner.for_writing() is inner


def test_no_key_shows_in_what_is_printed(inner: FileStore, tmp_path: Path) -> None:
    store = opened(inner, key_file(tmp_path))
    store.put("a", b"a")
    made = store.keyring.current()
    for thing in (made, store, store.keyring, store.keyring.kek, {"key": [made]}):
        for printed in (repr(thing), str(thing), f"{thing}"):
            assert repr(made.key)[2:-1] not in printed
            assert made.key.hex() not in printed


def test_a_data_key_a_day(inner: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(inner, key_file(tmp_path))
    began = time.monotonic()
    for hours in (0, 23, 25, 26, 48, 50):
        monkeypatch.setattr(time, "monotonic", lambda at=began + hours * 3600: at)
        store.put(f"at/{hours}", b"data")
    ids = [inner.get(f"at/{hours}")[8:24] for hours in (0, 23, 25, 26, 48, 50)]
    assert [ids.index(each) for each in ids] == [0, 0, 2, 2, 2, 5]
    assert len(list(inner.list(KEYS))) == 3


def test_a_key_comes_from_a_variable(inner: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKUP_KEY", generate_key())
    opened(inner, "env:BACKUP_KEY").put("a", b"a")
    assert opened(inner, "env:BACKUP_KEY").get("a") == b"a"


@pytest.mark.exhaustive
def test_a_key_comes_from_a_command_that_wraps_and_unwraps(inner: FileStore, tmp_path: Path) -> None:
    source = kms(tmp_path / "kms")
    for run in range(3):
        opened(inner, source).put(f"run/{run}", b"data")
    calls = tmp_path / "kms" / "calls"
    assert calls.read_text().split() == ["name", "wrap", "name", "unwrap", "wrap", "name", "unwrap", "wrap"]
    calls.unlink()
    store = opened(inner, source)
    store.keyring.check()
    assert [store.get(f"run/{run}") for run in range(3)] == [b"data"] * 3
    assert calls.read_text().split() == ["name", "unwrap"]  # all at once, and no key is an argument
    (file, *_) = [json.loads(inner.get(info.key)) for info in inner.list(KEYS)]
    assert file["kek"] == "kms:backup"


BAD_COMMANDS = {
    "no-such-command": "no such file",
    "sh -c 'exit 3' --": "ended with 3",
    "sh -c 'echo the key is disabled >&2; exit 1' --": "ended with 1: the key is disabled",
    "true": "no name",
    """sh -c 'if [ "$0" = name ]; then echo n; else echo "not base64!"; fi'""": "not base64",
    """sh -c 'if [ "$0" = name ]; then echo n; fi'""": "0 keys for 1",
}


@pytest.mark.parametrize("command", BAD_COMMANDS)
def test_a_key_command_that_fails_is_named_and_writes_nothing(command: str, inner: FileStore) -> None:
    with pytest.raises(WrongKeyError, match=BAD_COMMANDS[command]):
        opened(inner, f"command:{command}").put("a", b"a")
    assert list(inner.list()) == []


@pytest.mark.parametrize(
    "text",
    [None, "", "hush", base64.b64encode(bytes(31)).decode(), "\u00e9" * 44],
    ids=["none", "empty", "short", "31", "no-ascii"],
)
def test_what_is_no_key_is_refused(
    text: str | None, inner: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text is not None:
        (tmp_path / "key").write_text(text)
        monkeypatch.setenv("BACKUP_KEY", text)
    for source in (f"file:{tmp_path / 'key'}", "env:BACKUP_KEY"):
        with pytest.raises(WrongKeyError) as caught:
            opened(inner, source).put("a", b"a")
        assert caught.value.exit_code == 12
        assert "key generate" in caught.value.hint
        assert not text or text not in str(caught.value)
    assert list(inner.list()) == []


def test_another_key_opens_nothing_and_both_keys_are_named(inner: FileStore, source: str, wrong: str) -> None:
    opened(inner, source).put("topics/a", b"a")
    names = f"{load_kek(source).name}.*{load_kek(wrong).name}"
    with pytest.raises(WrongKeyError, match=f"file topics/a was encrypted under key {names}"):
        opened(inner, wrong).get("topics/a")
    with pytest.raises(WrongKeyError, match=f"is encrypted under key {names}"):
        opened(inner, wrong).put("topics/b", b"b")
    with pytest.raises(WrongKeyError):
        opened(inner, wrong).upload("topics/b")
    assert [info.key for info in inner.list("topics/")] == ["topics/a"]


# Key files that were changed, planted or lost, and archives of other keys.


def test_key_files_that_were_changed(inner: FileStore, source: str) -> None:
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


def test_a_data_key_under_another_id(inner: FileStore, source: str) -> None:
    """Two runs' data keys swapped: neither opens."""
    for name in ("a", "b"):
        opened(inner, source).put(name, b"data")
    first, second = (info.key for info in inner.list(KEYS))
    one, two = (next(iter(json.loads(inner.get(path))["keys"].items())) for path in (first, second))
    change(inner, first, keys={one[0]: two[1]})
    change(inner, second, keys={two[0]: one[1]})
    for name in ("a", "b"):
        with pytest.raises(CorruptError):
            opened(inner, source).get(name)


def test_an_archive_stays_what_it_was_made_as(tmp_path: Path, source: str) -> None:
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
    with pytest.raises(WrongKeyError, match=f"encrypted under key {load_kek(source).name}, and no key is given"):
        open_archive(secret)
    unknown = ArchiveInfo(id="0" * 32, created_at="", encryption="kbackup-encryption-9")
    secret.put("archive.json", dump(unknown))
    with pytest.raises(CorruptError, match="kbackup-encryption-9"):
        open_archive(opened(secret, source))


@pytest.mark.parametrize("command", ["list", "info", "verify"])
def test_commands_end_with_12(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, wrong: str
) -> None:
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


def test_a_check_tries_the_key(inner: FileStore, tmp_path: Path, source: str) -> None:
    assert try_key(opened(inner, source)) == load_kek(source).name
    assert list(inner.list()) == []
    for wrong in (f"file:{tmp_path / 'none'}", "command:cat"):
        with pytest.raises(WrongKeyError):
            try_key(opened(inner, wrong))
    with pytest.raises(WrongKeyError, match="without a key"):
        try_key(inner)


def test_many_runs_are_read_at_once(inner: FileStore, source: str) -> None:
    open_or_create(opened(inner, source))
    for run in range(12):
        opened(inner, source).put(f"run/{run}", b"data")
    counted = FaultyStore(inner)
    store = CryptStore(inner, Keyring(counted, source), layout.key_class)
    assert store.get("run/7") == b"data"
    assert len(counted.calls) == 2  # its own file and archive.json
    assert {store.get(f"run/{run}") for run in range(12)} == {b"data"}
    assert len(counted.calls) == 13


# Rotation of the key that encrypts data keys.


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
def test_a_rotation_that_is_killed_can_be_run_again(step: int, inner: FileStore, source: str, new: str) -> None:
    """At every request, before and after it takes effect: the archive opens with one of the keys at least (three
    reads, then the new file, its reading back, three deletes), and with the new one alone when it was run again."""
    stored = filled(inner, source)
    keks, archive_id = (load_kek(source), load_kek(new)), open_archive(opened(inner, source)).info.id
    with pytest.raises(KilledError):
        rotate(Dies(inner, step), *keks, archive_id)
    opens = [source for source in (source, new) if all_open(inner, source, stored)]
    assert opens == ([source] if step <= 3 else [source, new] if step <= 6 else [new])
    rotate(inner, *keks, archive_id)
    assert all_open(inner, new, stored)
    assert not all_open(inner, source, stored)
    assert len(list(inner.list(KEYS))) == 1


def all_open(inner: FileStore, source: str, stored: dict[str, bytes]) -> bool:
    try:
        return {opened(inner, source).get(key) for key in stored} == {b"data"}
    except WrongKeyError:
        return False


def test_a_second_rotation_removes_nothing_and_opens_everything(inner: FileStore, source: str) -> None:
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


def test_rotation_says_what_stays(inner: FileStore, source: str, new: str) -> None:
    class Keeps(FaultyStore):
        def delete(self, keys: Iterable[str]) -> list[Failed]:
            return [Failed(key, StoreError(f"{key} is locked")) for key in keys]

    filled(inner, source)
    done = rotate(Keeps(inner), load_kek(source), load_kek(new), open_archive(opened(inner, source)).info.id)
    assert (done.keys, done.removed, len(done.undeleted)) == (3, (), 3)


def test_key_commands_make_rotate_and_show_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


# Files that hold different data keys under one id: no rotation, reader or copy decides by their order.


def conflicting(inner: FileStore, kek: Kek, name: str) -> str:
    """Plant a file that gives every data key another value, properly wrapped by `kek`, and return its path."""
    path, data = new_file(kek, {key_id: bytes(32) for key_id in key_ids(inner)}, name, archive_id_of(inner))
    inner.put_new(path, data)
    return path


def key_ids(inner: FileStore) -> list[bytes]:
    files, _ = read_files(inner, list_files(inner), None)
    return [key_id for named in files for key_id in named.file.wrapped()]


def archive_id_of(inner: FileStore) -> str:
    archive_id: str = json.loads(inner.get("archive.json"))["id"]
    return archive_id


def key_bytes(inner: FileStore) -> dict[str, bytes]:
    return {info.key: inner.get(info.key) for info in inner.list(KEYS)}


@pytest.mark.exhaustive
@KEKS
@pytest.mark.parametrize("name", ["000", "zzz"])
def test_no_rotation_decides_between_two_values_of_a_data_key(
    kek: Any, name: str, inner: FileStore, tmp_path: Path
) -> None:
    """The holder of a leaked key can wrap other data keys under the same ids, before or after the genuine files."""
    source, new = kek(tmp_path), key_file(tmp_path, "new")
    stored = filled(inner, source)
    planted = conflicting(inner, load_kek(source), name)
    before = key_bytes(inner)
    for target in (new, source):
        with pytest.raises(CorruptError, match=rf"{planted}.* hold different data keys .*nothing was changed"):
            rotate_keys(opened(inner, source), target, 60)
        assert key_bytes(inner) == before, "a rotation that finds a conflict changes no file"
    conflicts = held_keys(opened(inner, source)).conflicts
    assert len(conflicts) == 3, "one for each data key"
    inner.delete([planted])
    assert rotate_keys(opened(inner, source), new, 60).keys == 3
    assert {opened(inner, new).get(key) for key in stored} == {b"data"}


def test_a_conflict_under_the_new_key_stops_a_rotation(inner: FileStore, source: str, new: str) -> None:
    filled(inner, source)
    conflicting(inner, load_kek(new), "zzz")
    before = key_bytes(inner)
    with pytest.raises(CorruptError, match="hold different data keys"):
        rotate_keys(opened(inner, source), new, 60)
    assert key_bytes(inner) == before


@pytest.mark.parametrize("same", [False, True])
def test_junk_with_all_ids_under_the_new_key_replaces_no_file(
    same: bool, inner: FileStore, source: str, new: str
) -> None:
    """The name of a key is public: a file that claims to be under the new key, with every id, and opens nothing."""
    stored = filled(inner, source, 1)
    if same:
        new = source
    (path,) = key_bytes(inner)
    junk = json.loads(inner.get(path)) | {"kek": load_kek(new).name}
    junk["keys"] = dict.fromkeys(junk["keys"], base64.b64encode(bytes(60)).decode())
    inner.put("keys/000.json", json.dumps(junk).encode())
    done = rotate_keys(opened(inner, source), new, 60)
    assert done.file != "keys/000.json", "a file that opens nothing can't be the one that stays"
    assert [each.path for each in done.skipped] == ["keys/000.json"]
    assert {opened(inner, new).get(key) for key in stored} == {b"data"}


@pytest.mark.exhaustive
@KEKS
@pytest.mark.parametrize("name", ["000", "zzz"])
def test_objects_are_read_with_the_data_key_that_opens_them(
    kek: Any, name: str, inner: FileStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = kek(tmp_path)
    stored = filled(inner, source)
    planted = conflicting(inner, load_kek(source), name)
    store = opened(inner, source)
    store.keyring.check()
    assert [store.get(key) for key in stored] == [b"data"] * 3
    assert planted in caplog.text
    task = pickle.loads(pickle.dumps(opened(inner, source)))
    assert [task.get_range(key, 0, 4) for key in stored] == [b"data"] * 3


def test_an_overwritten_key_file_is_passed_over_where_another_one_opens(inner: FileStore, source: str) -> None:
    """A reader looks into the file of the data key's name first, which a writer can overwrite."""
    stored = filled(inner, source, 1)
    (path,) = key_bytes(inner)
    inner.put("keys/joined.json", inner.get(path))
    inner.put(*new_file(load_kek(source), {key_ids(inner)[0]: bytes(32)}, path[5:-5], archive_id_of(inner)))
    assert [opened(inner, source).get(key) for key in stored] == [b"data"]


def test_a_data_key_that_opens_nothing_stops_a_rotation(inner: FileStore, source: str, new: str) -> None:
    """The genuine file was overwritten: no conflict shows, so a rotation tries what it would leave."""
    make_archive(opened(inner, source))
    grow(opened(inner, source), 3, 50, 60)
    for path, file in read_files(inner, list_files(inner), None)[0]:
        genuine = inner.get(path)
        inner.put(
            *new_file(load_kek(source), dict.fromkeys(file.wrapped(), bytes(32)), path[5:-5], archive_id_of(inner))
        )
        before = key_bytes(inner)
        with pytest.raises(CorruptError):
            rotate_keys(opened(inner, source), new, 60)
        assert before.items() <= key_bytes(inner).items(), "no file is deleted before what stays was tried"
        inner.put(path, genuine)
        inner.delete(key_bytes(inner).keys() - before.keys())


def test_verify_names_key_files_in_conflict(inner: FileStore, capsys: pytest.CaptureFixture[str], source: str) -> None:
    make_archive(opened(inner, source))
    asked = ["--archive", inner.url, "--encryption-key", source]
    assert main(["verify", "--quick", *asked]) == 0
    planted = conflicting(inner, load_kek(source), "zzz")
    capsys.readouterr()
    for command in (["verify", "--quick"], ["key", "list"]):
        assert main([*command, *asked]) == 13
        assert planted in "".join(capsys.readouterr())


def test_a_copy_keeps_data_keys_apart(tmp_path: Path, source: str) -> None:
    """A file of data keys that was replaced, at the source or at the copy, stops the next copy by name."""
    inner, copy = FileStore(tmp_path / "archive"), FileStore(tmp_path / "copy")
    make_archive(opened(inner, source))
    copy_archive(opened(inner, source), opened(copy, source), 60, Silent())
    path = next(iter(key_bytes(inner)))
    for replaced, named in ((inner, "not genuine|no file of keys/"), (copy, path)):
        genuine = replaced.get(path)
        replaced.put(*new_file(load_kek(source), {bytes(16): bytes(32)}, path[5:-5], archive_id_of(inner)))
        before = key_bytes(inner), key_bytes(copy)
        with pytest.raises(CorruptError, match=named):
            copy_archive(opened(inner, source), opened(copy, source), 60, Silent())
        assert (key_bytes(inner), key_bytes(copy)) == before
        replaced.put(path, genuine)
    copy_archive(opened(inner, source), opened(copy, source), 60, Silent())


# Key files that another writer planted, and a lost archive.json.


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
@KEKS
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


def test_junk_alone_stops_no_first_backup(inner: FileStore, source: str) -> None:
    open_or_create(opened(inner, source))
    inner.put("keys/junk.json", b"{}")
    opened(inner, source).put("a", b"a")
    assert opened(inner, source).get("a") == b"a"


@pytest.mark.parametrize("edited", [False, True])
@KEKS
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


def test_a_lost_archive_json(inner: FileStore, source: str) -> None:
    """The files of data keys say which archive it was, for its repair."""
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
    (tmp_path / "kms.sh").write_text('echo "$1 $KBACKUP_ARCHIVE_ID" >>"$0.calls"; [ "$1" = name ] && echo kms || cat\n')
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
    hostile: str, inner: FileStore, tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str
) -> None:
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
