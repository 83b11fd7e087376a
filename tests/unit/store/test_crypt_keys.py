"""Data keys of runs, and the key that encrypts them: from files, variables and commands."""

from __future__ import annotations

import base64
import json
import pickle
import time
from pathlib import Path

import pytest

from kbackup.errors import WrongKeyError
from kbackup.store import for_writing
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.kek import generate_key, load_kek
from kbackup.store.crypt.keyring import KEYS
from kbackup.store.file import FileStore
from tests.support.key_files import key_file, kms, opened

pytestmark = pytest.mark.exhaustive(keep=2)


def test_a_data_key_a_run(inner: FileStore, tmp_path: Path) -> None:
    source = key_file(tmp_path)
    for run in range(3):
        store = opened(inner, source)
        store.put(f"{run}/a", b"a")
        store.put(f"{run}/b", b"b")
    assert len(list(inner.list(KEYS))) == 3
    assert [opened(inner, source).get(f"{run}/{name}") for run in range(3) for name in "ab"] == [
        b"a",
        b"b",
    ] * 3
    assert len({inner.get(f"{run}/a")[8:24] for run in range(3)}) == 3
    assert inner.get("0/a")[8:24] == inner.get("0/b")[8:24]


def test_tasks_that_write_get_the_one_key_that_encrypts(inner: FileStore, tmp_path: Path) -> None:
    source = key_file(tmp_path)
    opened(inner, source).put("before", b"before")
    store = opened(inner, source)
    store.put("intent", b"intent")
    assert store.get("before") == b"before"
    before, mine = (store.keyring.find(inner.get(name)[8:24], name) for name in ("before", "intent"))
    everything, pickled = pickle.dumps(store), pickle.dumps(for_writing(store))
    assert (before in everything, mine in everything) == (True, True)
    assert (before in pickled, mine in pickled) == (False, True)
    (tmp_path / "key").unlink()  # tasks run where it may not be
    task: CryptStore = pickle.loads(pickled)
    task.put("segment", b"segment")
    assert (task.get("segment"), task.get("intent")) == (b"segment", b"intent")
    assert inner.get("segment")[8:24] == inner.get("intent")[8:24]
    with pytest.raises(WrongKeyError):
        task.get("before")
    assert for_writing(inner) is inner


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


def test_from_a_variable(inner: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKUP_KEY", generate_key())
    opened(inner, "env:BACKUP_KEY").put("a", b"a")
    assert opened(inner, "env:BACKUP_KEY").get("a") == b"a"


@pytest.mark.exhaustive
def test_from_a_command(inner: FileStore, tmp_path: Path) -> None:
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
def test_commands_that_fail(command: str, inner: FileStore) -> None:
    with pytest.raises(WrongKeyError, match=BAD_COMMANDS[command]):
        opened(inner, f"command:{command}").put("a", b"a")
    assert list(inner.list()) == []


@pytest.mark.parametrize(
    "text",
    [None, "", "hush", base64.b64encode(bytes(31)).decode(), "\u00e9" * 44],
    ids=["none", "empty", "short", "31", "no-ascii"],
)
def test_no_key(text: str | None, inner: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_another_key(inner: FileStore, tmp_path: Path) -> None:
    right, wrong = key_file(tmp_path), key_file(tmp_path, "wrong")
    opened(inner, right).put("topics/a", b"a")
    names = f"{load_kek(right).name}.*{load_kek(wrong).name}"
    with pytest.raises(WrongKeyError, match=f"file topics/a was encrypted under key {names}"):
        opened(inner, wrong).get("topics/a")
    with pytest.raises(WrongKeyError, match=f"is encrypted under key {names}"):
        opened(inner, wrong).put("topics/b", b"b")
    with pytest.raises(WrongKeyError):
        opened(inner, wrong).upload("topics/b")
    assert [info.key for info in inner.list("topics/")] == ["topics/a"]
