"""An object that was read once is not requested again while its listing says that it is unchanged."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from kbackup.archive import layout
from kbackup.errors import NotFoundError
from kbackup.store import wrappers
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.kek import generate_key
from kbackup.store.crypt.keyring import Keyring
from kbackup.store.file import FileStore
from kbackup.store.wrappers import CachedStore, DiskCache
from tests.support.faulty_store import FaultyStore

DATA = b"what a manifest says " * 40


class Stores:
    def __init__(self, folder: Path) -> None:
        self.plain = FileStore(folder / "store")
        self.folder = folder / "cache" / "archives"
        self.below = FaultyStore(self.plain)

    def open(self, identity: str = "", limit: int = wrappers.LIMIT_BYTES) -> CachedStore:
        """As the next command does."""
        self.below.calls.clear()
        return CachedStore(self.below, DiskCache(self.folder, limit), identity)

    def read(self, key: str = "a/b", identity: str = "") -> tuple[bytes, int]:
        """Read an object after a listing, as commands do; return its bytes and the number of requests."""
        store = self.open(identity)
        list(store.list("a/"))
        return store.get(key), self.below.calls.count(("get", key))

    def kept(self) -> list[Path]:
        return [path for path in self.folder.rglob("*") if path.is_file()]


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    made = Stores(tmp_path)
    made.plain.put("a/b", DATA)
    return made


def test_an_object_is_asked_for_once_and_then_cached(stores: Stores) -> None:
    assert [stores.read() for _ in range(3)] == [(DATA, 1), (DATA, 0), (DATA, 0)]


def test_unlisted_objects_are_read_from_the_store(stores: Stores) -> None:
    stores.read()
    for _ in range(2):
        store = stores.open()
        assert store.get("a/b") == DATA
        assert stores.below.calls == [("get", "a/b")]


def test_a_large_object_that_was_not_listed_is_read_once(stores: Stores) -> None:
    """The next commands ask for its version alone."""
    large = os.urandom(wrappers.ASK_BYTES)
    stores.plain.put("a/b", large)
    assert stores.open().get("a/b") == large
    for _ in range(2):
        assert stores.open().get("a/b") == large
        assert ("get", "a/b") not in stores.below.calls
    newer = os.urandom(wrappers.ASK_BYTES)
    stores.plain.put("a/b", newer)
    assert [stores.open().get("a/b") for _ in range(2)] == [newer, newer]
    assert ("get", "a/b") not in stores.below.calls
    stores.plain.delete(["a/b"])
    with pytest.raises(NotFoundError):
        stores.open().get("a/b")


def test_deleted_objects_stay_deleted(stores: Stores) -> None:
    stores.read()
    stores.plain.delete(["a/b"])
    store = stores.open()
    assert list(store.list("a/")) == []
    with pytest.raises(NotFoundError):
        store.get("a/b")


def test_replaced_objects_are_read_anew(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrappers, "LISTED", 1)
    stores.plain.put("a/z", b"listed after the limit")
    stores.read()
    stores.plain.put("a/b", b"new")
    assert stores.read() == (b"new", 1)
    assert stores.read() == (b"new", 0)
    store = stores.open()
    list(store.list("a/"))
    store.put("a/b", b"newer")
    assert store.get("a/b") == b"newer"
    list(store.list("a/"))
    store.delete(["a/b"])
    with pytest.raises(NotFoundError):
        store.get("a/b")


def test_another_version_than_was_listed_is_not_kept(stores: Stores) -> None:
    store = stores.open()
    list(store.list("a/"))
    stores.plain.put("a/b", b"new")
    assert store.get("a/b") == b"new"
    assert stores.kept() == []


def test_stores_of_the_same_url_are_told_apart(stores: Stores) -> None:
    assert stores.read(identity="http://here") == (DATA, 1)
    assert stores.read(identity="http://there") == (DATA, 1)
    assert stores.read(identity="http://here") == (DATA, 0)


@pytest.mark.parametrize("at", [0, 5, 20, 60, -1])
def test_damage_is_not_believed(stores: Stores, at: int) -> None:
    stores.read()
    (file,) = stores.kept()
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)
    assert stores.read() == (DATA, 1)
    (file,) = stores.kept()
    file.write_bytes(file.read_bytes()[:-3])
    assert stores.read() == (DATA, 1)
    assert stores.read() == (DATA, 0)


def test_one_file_is_not_taken_for_another(stores: Stores) -> None:
    stores.plain.put("a/c", b"other")
    stores.read()
    (b,) = stores.kept()
    stores.read("a/c")
    (c,) = (path for path in stores.kept() if path != b)
    c.write_bytes(b.read_bytes())
    assert stores.read("a/c") == (b"other", 1)


def test_cached_files_are_private(stores: Stores) -> None:
    before = os.umask(0)
    try:
        stores.read()
    finally:
        os.umask(before)
    (file,) = stores.kept()
    for path in (stores.folder, file.parent, file):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


def test_a_folder_that_others_write_to_is_not_believed(stores: Stores) -> None:
    stores.read()
    stores.folder.chmod(0o777)
    assert [stores.read(), stores.read()] == [(DATA, 1), (DATA, 1)]


def test_without_a_place_to_keep_it(stores: Stores) -> None:
    """A file stands where the folder should be: nothing is kept, and nothing fails."""
    stores.folder.parent.write_text("")
    assert [stores.read(), stores.read()] == [(DATA, 1), (DATA, 1)]


def test_cache_does_not_grow(stores: Stores) -> None:
    keys = [f"a/{n}" for n in range(20)]
    for key in keys:
        stores.plain.put(key, os.urandom(1000))
    for key in keys:
        store = stores.open(limit=5_500)
        list(store.list("a/"))
        store.get(keys[0])
        store.get(key)
        for n, file in enumerate(sorted(stores.kept(), key=lambda path: path.stat().st_mtime_ns)):
            os.utime(file, (n, n))
    assert sum(path.stat().st_size for path in stores.kept()) <= 5_500
    assert len(stores.kept()) == 5
    _, of_used = stores.read(keys[0])
    _, of_newest = stores.read(keys[-1])
    _, of_old = stores.read(keys[5])
    assert (of_used, of_newest, of_old) == (0, 0, 1), "requests: what is used stays"
    store = stores.open(limit=500)
    list(store.list("a/"))
    store.get(keys[7])
    assert len(stores.kept()) == 6, "what is larger than all that may be kept is not"


def test_of_an_encrypted_archive_it_keeps_what_is_stored(stores: Stores, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(generate_key())

    def opened() -> CryptStore:
        return CryptStore(stores.open(), Keyring(stores.plain, f"file:{key}"), layout.key_class)

    opened().put("a/secret", DATA)
    for asked in (1, 0):
        store = opened()
        list(store.list("a/"))
        assert store.get("a/secret") == DATA
        assert stores.below.calls.count(("get", "a/secret")) == asked
    assert stores.kept()
    assert not [path for path in stores.kept() if DATA[:20] in path.read_bytes()]
