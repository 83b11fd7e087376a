"""An object that was read once is not requested again while its listing says that it is unchanged."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from kbackup.errors import NotFoundError
from kbackup.store import cached
from kbackup.store.cached import CachedStore, Shelf
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.kek import generate_key
from kbackup.store.crypt.keyring import Keyring
from kbackup.store.file import FileStore
from tests.support.faulty_store import FaultyStore

DATA = b"what a manifest says " * 40


class Place:
    def __init__(self, folder: Path) -> None:
        self.plain = FileStore(folder / "store")
        self.folder = folder / "cache" / "archives"
        self.below = FaultyStore(self.plain)

    def open(self, identity: str = "", limit: int = cached.LIMIT_BYTES) -> CachedStore:
        """As the next command does."""
        self.below.calls.clear()
        return CachedStore(self.below, Shelf(self.folder, limit), identity)

    def read(self, key: str = "a/b", identity: str = "") -> tuple[bytes, int]:
        """Read an object after a listing, as commands do; return its bytes and the number of requests."""
        store = self.open(identity)
        list(store.list("a/"))
        return store.get(key), self.below.calls.count(("get", key))

    def kept(self) -> list[Path]:
        return [path for path in self.folder.rglob("*") if path.is_file()]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    made.plain.put("a/b", DATA)
    return made


def test_asked_for_once(place: Place) -> None:
    assert [place.read() for _ in range(3)] == [(DATA, 1), (DATA, 0), (DATA, 0)]


def test_what_was_not_listed_is_asked_for(place: Place) -> None:
    place.read()
    for _ in range(2):
        store = place.open()
        assert store.get("a/b") == DATA
        assert place.below.calls == [("get", "a/b")]


def test_a_large_object_that_was_not_listed_is_read_once(place: Place) -> None:
    """The next commands ask for its version alone."""
    large = os.urandom(cached.ASK_BYTES)
    place.plain.put("a/b", large)
    assert place.open().get("a/b") == large
    for _ in range(2):
        assert place.open().get("a/b") == large
        assert ("get", "a/b") not in place.below.calls
    newer = os.urandom(cached.ASK_BYTES)
    place.plain.put("a/b", newer)
    assert [place.open().get("a/b") for _ in range(2)] == [newer, newer]
    assert ("get", "a/b") not in place.below.calls
    place.plain.delete(["a/b"])
    with pytest.raises(NotFoundError):
        place.open().get("a/b")


def test_what_was_deleted_stays_deleted(place: Place) -> None:
    place.read()
    place.plain.delete(["a/b"])
    store = place.open()
    assert list(store.list("a/")) == []
    with pytest.raises(NotFoundError):
        store.get("a/b")


def test_what_took_its_place_is_read(place: Place) -> None:
    place.read()
    place.plain.put("a/b", b"new")
    assert place.read() == (b"new", 1)
    assert place.read() == (b"new", 0)
    store = place.open()
    list(store.list("a/"))
    store.put("a/b", b"newer")
    assert store.get("a/b") == b"newer"
    list(store.list("a/"))
    store.delete(["a/b"])
    with pytest.raises(NotFoundError):
        store.get("a/b")


def test_another_version_than_was_listed_is_not_kept(place: Place) -> None:
    store = place.open()
    list(store.list("a/"))
    place.plain.put("a/b", b"new")
    assert store.get("a/b") == b"new"
    assert place.kept() == []


def test_stores_of_the_same_url_are_told_apart(place: Place) -> None:
    assert place.read(identity="http://here") == (DATA, 1)
    assert place.read(identity="http://there") == (DATA, 1)
    assert place.read(identity="http://here") == (DATA, 0)


@pytest.mark.parametrize("at", [0, 5, 20, 60, -1])
def test_damage_is_not_believed(place: Place, at: int) -> None:
    place.read()
    (file,) = place.kept()
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)
    assert place.read() == (DATA, 1)
    (file,) = place.kept()
    file.write_bytes(file.read_bytes()[:-3])
    assert place.read() == (DATA, 1)
    assert place.read() == (DATA, 0)


def test_one_file_is_not_taken_for_another(place: Place) -> None:
    place.plain.put("a/c", b"other")
    place.read()
    (b,) = place.kept()
    place.read("a/c")
    (c,) = (path for path in place.kept() if path != b)
    c.write_bytes(b.read_bytes())
    assert place.read("a/c") == (b"other", 1)


def test_nobody_else_can_look_into_it(place: Place) -> None:
    before = os.umask(0)
    try:
        place.read()
    finally:
        os.umask(before)
    (file,) = place.kept()
    for path in (place.folder, file.parent, file):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


def test_a_folder_that_others_write_to_is_not_believed(place: Place) -> None:
    place.read()
    place.folder.chmod(0o777)
    assert [place.read(), place.read()] == [(DATA, 1), (DATA, 1)]


def test_without_a_place_to_keep_it(place: Place) -> None:
    """A file stands where the folder should be: nothing is kept, and nothing fails."""
    place.folder.parent.write_text("")
    assert [place.read(), place.read()] == [(DATA, 1), (DATA, 1)]


def test_it_does_not_grow(place: Place) -> None:
    keys = [f"a/{n}" for n in range(20)]
    for key in keys:
        place.plain.put(key, os.urandom(1000))
    for key in keys:
        store = place.open(limit=5_500)
        list(store.list("a/"))
        store.get(keys[0])
        store.get(key)
        for n, file in enumerate(sorted(place.kept(), key=lambda path: path.stat().st_mtime_ns)):
            os.utime(file, (n, n))
    assert sum(path.stat().st_size for path in place.kept()) <= 5_500
    assert len(place.kept()) == 5
    assert place.read(keys[0])[1] == 0, "what is used stays"
    assert place.read(keys[-1])[1] == 0
    assert place.read(keys[5])[1] == 1
    store = place.open(limit=500)
    list(store.list("a/"))
    store.get(keys[7])
    assert len(place.kept()) == 6, "what is larger than all that may be kept is not"


def test_of_an_encrypted_archive_it_keeps_what_is_stored(place: Place, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(generate_key())

    def opened() -> CryptStore:
        return CryptStore(place.open(), Keyring(place.plain, f"file:{key}"))

    opened().put("a/secret", DATA)
    for asked in (1, 0):
        store = opened()
        list(store.list("a/"))
        assert store.get("a/secret") == DATA
        assert place.below.calls.count(("get", "a/secret")) == asked
    assert place.kept()
    assert not [path for path in place.kept() if DATA[:20] in path.read_bytes()]
