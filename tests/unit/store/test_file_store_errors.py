"""Errors of the file system, syncs, listings, and processes that stop with a lock."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.errors import (
    DeniedError,
    KbackupError,
    NotFoundError,
    StoreError,
    UnreachableError,
)
from kbackup.store.base import is_key
from kbackup.store.file import FileStore, disk


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def store(root: Path) -> FileStore:
    return FileStore(root)


@pytest.fixture
def as_nobody(root: Path, store: FileStore) -> Iterator[None]:
    """Without the rights of root, which no mode keeps out."""
    store.put("a/b", b"")
    modes = {path: path.stat().st_mode for path in (root, root / "a")}
    user = os.geteuid()
    for path in modes:
        path.chmod(0o500)
    if user == 0:
        os.seteuid(65534)
    yield
    os.seteuid(user)
    for path, mode in modes.items():
        path.chmod(mode)


@pytest.mark.usefixtures("as_nobody")
def test_a_directory_without_rights_is_denied(store: FileStore) -> None:
    for write in (store.put, store.put_new):
        with pytest.raises(DeniedError, match="a/c"):
            write("a/c", b"")
    with pytest.raises(DeniedError, match="a/c"):
        store.upload("a/c")


@pytest.mark.parametrize(
    ("number", "kind", "text"),
    [
        (errno.ENOSPC, StoreError, "the store is full"),
        (errno.EDQUOT, StoreError, "the store is full"),
        (errno.EROFS, DeniedError, "read-only"),
        (errno.EIO, UnreachableError, "input/output"),
        (errno.ENAMETOOLONG, StoreError, "too long"),
        (errno.EXDEV, StoreError, "another file system"),
        (errno.EMFILE, StoreError, "too many open files"),
    ],
)
def test_errors_of_the_file_system(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[KbackupError], text: str
) -> None:
    store.put("first", b"")

    def fail(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(kind, match=text) as caught:
        store.put("dir/key", b"")
    assert type(caught.value) is kind
    with store.upload("key") as upload, pytest.raises(kind, match=text):
        upload.commit()
    assert [path for path in (store._root / ".tmp").iterdir() if path.name != "lock"] == []


def test_a_long_name(store: FileStore) -> None:
    with pytest.raises(StoreError, match="too long"):
        store.put("n" * 300, b"")


def test_an_archive_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = FileStore(tmp_path / "file")
    assert list(store.list()) == []
    with pytest.raises(NotFoundError):
        store.get("key")
    with pytest.raises(StoreError, match="not a directory") as caught:
        store.put("key", b"")
    assert not isinstance(caught.value, NotFoundError)
    assert caught.value.hint == "name a directory: the path leads through a file"


def test_making_folders_syncs_each_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(disk, "sync_dir", synced.append)
    disk.make_dirs(tmp_path / "a" / "b", 0o700)
    assert synced == [tmp_path, tmp_path / "a"]


PARTS = st.text(st.sampled_from("ab-./0é~"), min_size=1, max_size=3)
KEYS = st.lists(PARTS, min_size=1, max_size=3).map("/".join).filter(is_key)


def without_collisions(keys: set[str]) -> list[str]:
    kept: list[str] = []
    for key in sorted(keys, key=len):
        if not any(key.startswith(f"{other}/") for other in kept):
            kept.append(key)
    return sorted(kept, key=str.encode)


@given(
    st.sets(KEYS, max_size=12).map(without_collisions),
    st.text("ab-./é", max_size=4),
    st.text("ab-./0é~", max_size=5),
)
def test_listing_is_filtering_and_sorting(
    tmp_path_factory: pytest.TempPathFactory, keys: list[str], prefix: str, after: str
) -> None:
    root = tmp_path_factory.mktemp("list")
    for key in keys:
        (root / key).parent.mkdir(parents=True, exist_ok=True)
        (root / key).write_bytes(b"")
    store = FileStore(root)
    assert [i.key for i in store.list(prefix, after)] == [
        k for k in keys if k.startswith(prefix) and k > after
    ]
    if prefix == "" or prefix.endswith("/"):
        below = [key[len(prefix) :] for key in keys if key.startswith(prefix)]
        assert list(store.list_dirs(prefix)) == list(
            dict.fromkeys(b.split("/")[0] for b in below if "/" in b)
        )


def test_a_stopped_process_that_holds_the_lock_hinders_nobody_forever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only compared replaces wait for it, and only so long; all else goes on."""
    store = FileStore(tmp_path)
    etag = store.put_new("lock.json", b"1")
    monkeypatch.setattr("kbackup.store.file._LOCK_SECONDS", 0.1)
    with (tmp_path / ".tmp" / "lock").open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        store.put("other", b"2")
        store.put_new("another", b"3")
        assert store.delete(["other"]) == []
        with pytest.raises(UnreachableError, match="another process holds its lock file"):
            store.replace("lock.json", b"4", etag)
    assert store.get("lock.json") == b"1"
    store.replace("lock.json", b"4", etag)
