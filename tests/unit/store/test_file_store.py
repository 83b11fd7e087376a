"""Properties of directories alone: temporary files, folders, links, and the file system's errors."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.archive import layout
from kbackup.errors import (
    AlreadyExistsError,
    CorruptError,
    DeniedError,
    KbackupError,
    NotFoundError,
    StoreError,
    UnreachableError,
)
from kbackup.store import file
from kbackup.store.base import Failed, is_key
from kbackup.store.file import FileStore
from kbackup.util.folders import Folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def store(root: Path) -> FileStore:
    return FileStore(root)


def test_reading_and_deleting_make_nothing(store: FileStore, root: Path) -> None:
    assert list(store.list()) == []
    assert store.delete(["a"]) == []
    with pytest.raises(NotFoundError):
        store.get("a")
    assert not root.exists()


def write_everything(store: FileStore) -> None:
    store.put("a/put", b"1")
    store.put_new("a/b/new", b"1")
    store.replace("a/put", b"2", store.stat("a/put").etag)
    with store.upload("c/streamed") as upload:
        upload.write(b"1")
        upload.commit()


def modes_below(root: Path) -> dict[str, set[int]]:
    """The modes of the folders and of the files, the root included."""
    found: dict[str, set[int]] = {"folders": {root.stat().st_mode & 0o7777}, "files": set()}
    for path in root.rglob("*"):
        found["folders" if path.is_dir() else "files"].add(path.stat().st_mode & 0o7777)
    return found


@pytest.fixture(params=[0o022, 0o000, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_new_roots_are_private(tmp_path: Path) -> None:
    root = tmp_path / "parent" / "archive"
    write_everything(FileStore(root))
    assert modes_below(root.parent) == {"folders": {0o700}, "files": {0o600}}


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize(("mode", "files"), [(0o750, 0o640), (0o2770, 0o660), (0o755, 0o644), (0o700, 0o600)])
def test_modes_follow_an_existing_root(root: Path, mode: int, files: int) -> None:
    root.mkdir()
    root.chmod(mode)
    write_everything(FileStore(root))
    assert modes_below(root) == {"folders": {mode}, "files": {files}}


def test_a_file_system_without_modes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAT: every mode is the mount's."""

    def refused(path: object, mode: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    root.mkdir(0o755)
    monkeypatch.setattr(os, "chmod", refused)
    old = os.umask(0o077)  # so that modes differ from the root's
    try:
        write_everything(FileStore(root))
    finally:
        os.umask(old)
    assert FileStore(root).get("a/put") == b"2"


def test_deleting_prunes_empty_folders(store: FileStore, root: Path) -> None:
    for key in ("a/b/c", "a/d", "e/f"):
        store.put(key, b"")
    store.delete(["a/b/c", "e/f"])
    assert sorted(path.name for path in root.iterdir()) == [".tmp", "a"]
    assert [path.name for path in (root / "a").iterdir()] == ["d"]


def test_the_hidden_folder_is_no_key(store: FileStore, root: Path) -> None:
    store.put("a", b"")
    (root / ".tmp" / "left.part").write_bytes(b"x")
    assert [info.key for info in store.list()] == ["a"]
    assert list(store.list(".tmp/")) == []
    assert list(store.list_dirs()) == []
    with pytest.raises(StoreError, match=r"\.tmp"):
        store.put(".tmp/x", b"")
    with pytest.raises(StoreError, match=r"\.tmp"):
        store.get(".tmp/left.part")


def test_old_temporary_files_are_removed(root: Path) -> None:
    (root / ".tmp").mkdir(parents=True)
    old, young = root / ".tmp" / "old.part", root / ".tmp" / "young.part"
    for path, age in ((old, 25 * 3600), (young, 23 * 3600)):
        path.write_bytes(b"")
        os.utime(path, (time.time() - age,) * 2)
    FileStore(root).put("a", b"")
    assert not old.exists()
    assert young.exists()


def test_a_key_is_no_folder_of_another(store: FileStore) -> None:
    store.put("a/b", b"1")
    for write in (store.put, store.put_new):
        with pytest.raises(StoreError, match=r"a can't be written: there is a folder") as caught:
            write("a", b"")
        assert not isinstance(caught.value, AlreadyExistsError)
        with pytest.raises(StoreError, match=r"c can't be written: .*a/b is a file"):
            write("a/b/c", b"")
    with store.upload("a") as upload, pytest.raises(StoreError, match="there is a folder"):
        upload.commit()
    assert [info.key for info in store.list()] == ["a/b"]


def test_without_links_creates_are_still_exclusive(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*_: object, **__: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "no links here")

    monkeypatch.setattr(os, "link", no_link)
    barrier = threading.Barrier(4)

    def create(n: int) -> bool:
        barrier.wait()
        try:
            store.put_new("dir/key", b"%d" % n)
        except AlreadyExistsError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        won = list(pool.map(create, range(4)))
    assert won.count(True) == 1
    assert store.get("dir/key") == b"%d" % won.index(True)
    assert [path.name for path in (store._root / ".tmp").iterdir()] == ["lock"]


@pytest.mark.exhaustive
def test_equal_sizes_are_other_versions(store: FileStore) -> None:
    etags = [store.put("key", b"%03d" % n) for n in range(200)]
    assert len(set(etags)) == 200


def test_writes_survive_pruning_deletes(store: FileStore) -> None:
    def write(n: int) -> None:
        store.put(f"dir/sub/{n}", b"")
        store.delete([f"dir/sub/{n}"])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(200)))
    assert list(store.list()) == []


def test_a_folder_pruned_while_another_makes_it_is_no_file(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    make, taken = os.mkdir, ["dir"]

    def mkdir(path: str, mode: int, *, dir_fd: int | None = None) -> None:
        if path in taken:
            taken.remove(path)
            raise FileExistsError(path)  # another's, which goes before anybody looks at it
        make(path, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", mkdir)
    store.put("dir/key", b"1")
    assert not taken
    assert store.get("dir/key") == b"1"


# Links within a directory: what they lead to may be another archive.


def everything_that_takes_a_key(store: FileStore, key: str) -> dict[str, Callable[[], object]]:
    """Return every operation on `key`, by its name."""

    def upload() -> None:
        with store.upload(key) as started:
            started.write(b"planted")
            started.commit()

    return {
        "get": lambda: store.get(key),
        "get_range": lambda: store.get_range(key, 0, 1),
        "fill": lambda: list(store.fill(key, 0, memoryview(bytearray(1)))),
        "stat": lambda: store.stat(key),
        "checksum": lambda: store.checksum(key),
        "put": lambda: store.put(key, b"planted"),
        "put_new": lambda: store.put_new(key, b"planted"),
        "replace": lambda: store.replace(key, b"planted", "1-1-1"),
        "upload": upload,
        "delete": lambda: raise_failures(store.delete([key])),
    }


def raise_failures(failed: list[Failed]) -> None:
    for each in failed:
        raise each.error


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder of somebody else."""
    folder = tmp_path / "elsewhere"
    (folder / "sub").mkdir(parents=True)
    (folder / "key").write_bytes(b"22")
    (folder / "sub" / "key").write_bytes(b"333")
    return folder


OPERATIONS = sorted(everything_that_takes_a_key(FileStore("unused"), "key"))
LINKED = {"the object": "linked", "its folder": "folder/key", "a folder above": "folder/sub/key"}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("what", LINKED)
def test_no_operation_follows_a_link(store: FileStore, root: Path, elsewhere: Path, operation: str, what: str) -> None:
    store.put("a", b"1")
    (root / "folder").symlink_to(elsewhere)
    (root / "linked").symlink_to(elsewhere / "key")
    before = content_of(elsewhere)
    key = LINKED[what]
    with pytest.raises(
        StoreError, match=rf"{key} can't be used: .*/archive/(folder|linked) is a symbolic link"
    ) as told:
        everything_that_takes_a_key(store, key)[operation]()
    assert type(told.value) is StoreError
    assert content_of(elsewhere) == before
    assert [path.name for path in (root / ".tmp").iterdir() if path.name != "lock"] == []


@pytest.mark.parametrize("target", ["elsewhere", "elsewhere/key", "nowhere"])
def test_a_listing_names_a_link_where_a_key_could_be(
    store: FileStore, root: Path, elsewhere: Path, target: str
) -> None:
    store.put("a/b", b"1")
    store.put("z", b"1")
    (root / "linked").symlink_to(elsewhere.parent / target)
    for listed in (store.list(), store.list("l"), store.list("linked"), store.list_dirs()):
        with pytest.raises(StoreError, match="linked is a symbolic link"):
            list(listed)
    assert [info.key for info in store.list("a/")] == ["a/b"]
    assert [info.key for info in store.list("z")] == ["z"]


def test_a_listing_below_a_link_names_the_link(store: FileStore, root: Path, elsewhere: Path) -> None:
    store.put("a", b"1")
    (root / "linked").symlink_to(elsewhere)
    for listed in (store.list("linked/"), store.list("linked/sub/"), store.list_dirs("linked/")):
        with pytest.raises(StoreError, match="linked is a symbolic link"):
            list(listed)


def test_the_hidden_folder_may_be_no_link(store: FileStore, root: Path, elsewhere: Path) -> None:
    root.mkdir()
    (root / ".tmp").symlink_to(elsewhere)
    old = elsewhere / "old.part"
    old.write_bytes(b"")
    os.utime(old, (0, 0))
    before = content_of(elsewhere)
    writes = ("put", "put_new", "replace", "upload")
    for operation in writes:
        with pytest.raises(StoreError, match=r"archive/\.tmp is a symbolic link"):
            everything_that_takes_a_key(store, "key")[operation]()
    with pytest.raises(StoreError, match=r"archive/\.tmp is a symbolic link"):
        store.leave_mark("shared")
    assert content_of(elsewhere) == before


def test_the_root_may_be_a_link(root: Path, tmp_path: Path) -> None:
    """The user gave it."""
    (tmp_path / "real").mkdir()
    root.symlink_to(tmp_path / "real")
    store = FileStore(root)
    store.put("a/b", b"1")
    assert [info.key for info in store.list()] == ["a/b"]
    assert store.get("a/b") == b"1"
    assert store.delete(["a/b"]) == []
    assert list(store.list()) == []


def test_a_link_that_takes_a_folders_place_meanwhile_is_not_followed(
    store: FileStore, root: Path, elsewhere: Path
) -> None:
    """Whichever moment the folder is replaced in: no operation ever reads or changes what the link leads to."""
    before = content_of(elsewhere)
    stop = threading.Event()

    def swap() -> None:
        folder, link, away = root / "folder", root / "link", root / "away"
        link.symlink_to(elsewhere)
        while not stop.is_set():
            for here, there in ((folder, away), (link, folder), (folder, link), (away, folder)):
                with suppress(OSError):  # a write may have made the folder anew
                    here.rename(there)

    store.put("folder/key", b"1")
    operations = everything_that_takes_a_key(store, "folder/key")
    with ThreadPoolExecutor(1) as pool:
        swapping = pool.submit(swap)
        until = time.monotonic() + 1.5
        try:
            while time.monotonic() < until:
                for operation in operations.values():
                    with suppress(KbackupError):
                        assert operation() != b"22"
                with suppress(KbackupError):
                    assert "folder/sub/key" not in [info.key for info in store.list()]
        finally:
            stop.set()
        swapping.result()
    assert content_of(elsewhere) == before


def test_pipes_and_sockets_are_no_objects(store: FileStore, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a pipe would wait for somebody who writes into it."""
    store.put("a", b"1")
    os.mkfifo(root / "pipe")
    monkeypatch.chdir(root)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
        for key in ("pipe", "socket"):
            for ask in (store.get, store.stat):
                with pytest.raises(NotFoundError, match=key):
                    ask(key)
    assert [info.key for info in store.list()] == ["a"]


def test_names_that_are_no_keys_are_left_out(store: FileStore, root: Path) -> None:
    store.put("a", b"")
    (root / os.fsdecode(b"not\xffutf8")).write_bytes(b"")
    os.mkfifo(root / "pipe")
    assert [info.key for info in store.list()] == ["a"]


def test_a_document_is_not_read_where_it_is_larger_than_its_kind(root: Path) -> None:
    store = FileStore(root, key_class=layout.key_class)
    for key, size in (("lock.json", (16 << 20) + 1), ("keys/ab.json", (16 << 20) + 1), ("catalog/1.json", 64 << 30)):
        store.put(key, b"{}")
        os.truncate(root / key, size)
        with pytest.raises(CorruptError, match=f"{key} has {size} bytes"):
            store.get(key)
        assert store.get_range(key, 0, 2) == b"{}"
        store.delete([key])  # others read every file that a test leaves
    store.put("catalog/0000000001.json", bytes((16 << 20) + 1))
    assert len(store.get("catalog/0000000001.json")) == (16 << 20) + 1


# Errors of the file system, syncs, listings, and processes that stop with a lock.


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
    left = [path for path in (store._root / ".tmp").iterdir() if path.name != "lock"]
    assert not left, f"files left in .tmp: {left}"


def test_a_name_that_is_too_long_for_a_file_is_refused(store: FileStore) -> None:
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
    synced: list[str] = []

    def sync(folder: Folder) -> None:
        synced.append(folder.path)

    monkeypatch.setattr(Folder, "sync", sync)
    file.make_dirs(tmp_path / "a" / "b", 0o700)
    assert synced == [str(tmp_path), str(tmp_path / "a")]
    synced.clear()
    FileStore(tmp_path / "a" / "b").put("c/d/key", b"")
    folders = [str(tmp_path / "a" / "b" / name) for name in ("", "c", "c/d")]
    assert [path.rstrip("/") for path in synced if ".tmp" not in path][-3:] == [path.rstrip("/") for path in folders]


PARTS = st.text(st.sampled_from("ab-./0é~"), min_size=1, max_size=3)
KEYS = st.lists(PARTS, min_size=1, max_size=3).map("/".join).filter(is_key)


def without_collisions(keys: set[str]) -> list[str]:
    kept: list[str] = []
    for key in sorted(keys, key=len):
        if not any(key.startswith(f"{other}/") for other in kept):
            kept.append(key)
    return sorted(kept, key=str.encode)


@given(
    st.sets(KEYS, max_size=12).map(without_collisions), st.text("ab-./é", max_size=4), st.text("ab-./0é~", max_size=5)
)
def test_listing_is_filtering_and_sorting(
    tmp_path_factory: pytest.TempPathFactory, keys: list[str], prefix: str, after: str
) -> None:
    root = tmp_path_factory.mktemp("list")
    for key in keys:
        (root / key).parent.mkdir(parents=True, exist_ok=True)
        (root / key).write_bytes(b"")
    store = FileStore(root)
    assert [i.key for i in store.list(prefix, after)] == [k for k in keys if k.startswith(prefix) and k > after]
    if prefix == "" or prefix.endswith("/"):
        below = [key[len(prefix) :] for key in keys if key.startswith(prefix)]
        assert list(store.list_dirs(prefix)) == list(dict.fromkeys(b.split("/")[0] for b in below if "/" in b))


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
