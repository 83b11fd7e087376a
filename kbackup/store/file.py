"""A store in a directory: files are written beside their place, synced, and named in one step.

Creates use `link`, which fails where the name is taken. Conditional replaces and, where the file system knows no
links, creates take one lock file, which orders them among all processes of this tool. It is held for a comparison
and a rename only, and waited for only so long: a process may be stopped while it holds it. A file's time is set to
a fresh nanosecond when it is named, so (size, time, inode) is a version: no etag needs reading.

All that is made has the mode of the root: its owner alone may read a root that is made here, and whom a root that was
there lets in is let in everywhere below.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO

from awscrt.checksums import crc64nvme

from kbackup.errors import (
    AlreadyExistsError,
    CorruptError,
    DeniedError,
    KbackupError,
    NotFoundError,
    PreconditionError,
    StoreError,
    UnreachableError,
)
from kbackup.store import base
from kbackup.store.base import KeyClasses, write_once
from kbackup.util.system import attempts

HIDDEN = ".tmp"
_STALE_SECONDS = 24 * 3600
_PRUNED_MEANWHILE = 16
_LOCK_SECONDS = 30.0
_PRIVATE = 0o700
_FILE_BITS = 0o666
_NO_MODES = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}
_NO_LINKS = {*_NO_MODES, errno.EMLINK}
_MISSING = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR}
_AWAY = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENODEV, errno.ENXIO, errno.EHOSTDOWN}
_MEANINGS: tuple[tuple[set[int], type[KbackupError], str, str], ...] = (
    (
        {errno.EACCES, errno.EPERM, errno.EROFS},
        DeniedError,
        "",
        "check the owner and the mode of the directory, and how it is mounted",
    ),
    ({errno.ENOSPC, errno.EDQUOT}, StoreError, "the store is full", "make room or raise the quota, then run again"),
    (_AWAY, UnreachableError, "", "check the disk or the file server"),
    ({errno.ENOTDIR}, StoreError, "not a directory", "name a directory: the path leads through a file"),
    (
        {errno.ENAMETOOLONG},
        StoreError,
        "the name is too long for this file system",
        "use a file system that takes longer names",
    ),
    (
        {errno.EXDEV},
        StoreError,
        "a folder of the store is on another file system",
        "mount the whole directory from one file system",
    ),
)
"""What errors of the file system mean: kbackup's error, its text ('': the system's own), and a hint."""


@contextmanager
def mapped(name: str, *, writing: bool = False) -> Iterator[None]:
    """Turn errors of the file system on object `name` into kbackup's.

    In reading, a path that leads nowhere, through a file or to a folder is `NotFoundError`; in `writing`, a taken name
    is `AlreadyExistsError`.
    """
    try:
        yield
    except OSError as error:
        if writing and isinstance(error, FileExistsError):
            raise AlreadyExistsError(f"{name} exists already") from error
        if not writing and error.errno in _MISSING:
            raise NotFoundError(f"{name} does not exist") from error
        reason = os.strerror(error.errno).lower() if error.errno else str(error).lower()
        for numbers, kind, text, hint in _MEANINGS:
            if error.errno in numbers:
                raise kind(f"{name}: {text or reason}", hint) from error
        raise StoreError(f"{name}: {reason}", "check the file system of the store") from error


def sync_dir(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_dirs(path: Path, mode: int) -> None:
    """Make `path` and its missing parents with exactly `mode`, each entry durable before the next is made.
    `FileNotFoundError` if one is pruned meanwhile."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        try:
            folder.mkdir(mode)
            set_mode(folder, mode)
        except FileExistsError:
            if not stat.S_ISDIR(folder.stat().st_mode):  # or it was deleted meanwhile
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None
        sync_dir(folder.parent)


def set_mode(target: Path | int, mode: int) -> None:
    """Give a path or an open file of ours exactly `mode`, whatever the umask left of it. A file system without modes
    (FAT, some network shares) has the modes of its mount."""
    try:
        if stat.S_IMODE(os.stat(target).st_mode) != mode:  # noqa: PTH116 (an open file, too)
            os.chmod(target, mode)  # noqa: PTH101 (the same)
    except OSError as error:
        if error.errno not in _NO_MODES:
            raise


def write_all(file: BinaryIO, data: base.Buffer) -> int:
    """Write `data` to an unbuffered file, which may take less than it is given at a time."""
    view = base.view_of(data)
    done = 0
    while done < len(view):
        done += file.write(view[done:])
    return done


def prune(folder: Path, root: Path) -> None:
    """Remove `folder` and its parents below `root` as long as they are empty."""
    while folder != root:
        try:
            folder.rmdir()
        except FileNotFoundError:
            pass  # another process pruned it
        except OSError as error:
            if error.errno in {errno.ENOTEMPTY, errno.EEXIST}:
                return
            raise
        folder = folder.parent


def _entries(root: Path, folder: str) -> list[tuple[str, os.DirEntry[str]]]:
    """Return a folder's files and folders with their paths from root, sorted by path. The path of a folder ends in '/',
    as in every path below it: 'a-b', 'a.b', 'a/b'. The hidden folder is left out.

    Code point order of `str` is UTF-8 binary order.
    """
    base = f"{folder}/" if folder else ""
    try:
        with os.scandir(root / folder) as entries:
            paths = [(base + e.name + ("/" if e.is_dir() else ""), e) for e in entries if e.is_dir() or e.is_file()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted((path for path in paths if path[0] != f"{HIDDEN}/"), key=lambda path: path[0])


def etag_of(status: os.stat_result) -> str:
    return f"{status.st_size:x}-{status.st_mtime_ns:x}-{status.st_ino:x}"


class Publisher:
    """Writes files below `root`. Errors are the file system's own (`OSError`), but for a name that is a folder's."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._hidden = root / HIDDEN
        self._swept = False
        self._sweeping = threading.Lock()

    def open_temp(self) -> tuple[Path, BinaryIO]:
        """Create a temporary file and open it for writing, unbuffered. Temporary files that a crash left more than a
        day ago are removed first."""
        mode = self.make_dirs(self._hidden) & _FILE_BITS
        with self._sweeping:
            if not self._swept:
                oldest = time.time() - _STALE_SECONDS
                for left in self._hidden.glob("*.part"):
                    with suppress(FileNotFoundError):  # its owner finished, or another process swept it
                        if left.stat().st_mtime < oldest:
                            left.unlink()
                self._swept = True
        temp = self._hidden / f"{secrets.token_hex(16)}.part"
        fd = os.open(temp, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        set_mode(fd, mode)
        return temp, os.fdopen(fd, "wb", buffering=0)

    def make_dirs(self, folder: Path) -> int:
        """Make `folder`, the root or below it; returns the mode of folders."""
        make_dirs(self._root, _PRIVATE)
        mode = stat.S_IMODE(self._root.stat().st_mode)
        make_dirs(folder, mode)
        return mode

    def create(self, temp: Path, path: Path) -> str:
        """Link the synced file `temp`, which stays, to `path` and return the new etag. `FileExistsError` if `path` is
        taken."""
        status = _touch(temp, 0)

        def link() -> None:
            try:
                os.link(temp, path)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                with self._lock():
                    if os.path.lexists(path):
                        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
                    temp.rename(path)

        self._with_parents(path, link)
        return etag_of(status)

    def replace(self, temp: Path, path: Path, check: Callable[[], None] | None = None) -> str:
        """Move the synced file `temp` to `path` and return the new etag. `check` is called right before, under the
        lock."""
        try:
            before = path.stat().st_mtime_ns
        except (FileNotFoundError, NotADirectoryError):
            before = 0
        status = _touch(temp, before)

        def move() -> None:
            with self._lock() if check is not None else nullcontext():
                if check is not None:
                    check()
                temp.replace(path)

        self._with_parents(path, move)
        return etag_of(status)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        mode = self.make_dirs(self._hidden) & _FILE_BITS
        fd = os.open(self._hidden / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        try:
            if os.fstat(fd).st_uid == os.geteuid():
                set_mode(fd, mode)
            for _ in attempts(_LOCK_SECONDS, 0.005):
                with suppress(BlockingIOError):
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
            else:
                raise UnreachableError(
                    f"directory {self._root}: another process holds its lock file and does not go on",
                    "end or continue the process that holds it",
                )
            yield
        finally:
            os.close(fd)

    def _with_parents(self, path: Path, name: Callable[[], object]) -> None:
        """Call `name` while the parent folders of `path` exist, and make the result durable. A delete may remove the
        folders in between: then both are done again."""
        hint = "use another key: no object's key can be the folder of another object's key"
        for attempt in range(_PRUNED_MEANWHILE):
            try:
                self.make_dirs(path.parent)
                name()
                break
            except FileNotFoundError:
                if attempt == _PRUNED_MEANWHILE - 1:
                    raise
            except (NotADirectoryError, IsADirectoryError, FileExistsError) as error:
                if path.is_dir():
                    raise StoreError(f"file {path} can't be written: there is a folder of that name", hint) from error
                for parent in path.relative_to(self._root).parents:
                    if (self._root / parent).is_file():
                        raise StoreError(
                            f"file {path} can't be written: {self._root / parent} is a file", hint
                        ) from error
                raise
        sync_dir(path.parent)


def _touch(temp: Path, before: int) -> os.stat_result:
    """Give `temp` the time of now, later than `before` (ns)."""
    now = max(time.time_ns(), before + 1)
    os.utime(temp, ns=(now, now))
    return temp.stat()


class FileUpload(base.Upload):
    """`Upload` into a temporary file, which is named at `commit`."""

    def __init__(self, publisher: Publisher, path: Path) -> None:
        self._publisher = publisher
        self._path = path
        self._name = f"file {path}"
        self._temp, self._file = publisher.open_temp()
        self._size = 0
        self._crc = 0

    def write(self, data: base.Buffer) -> None:
        self._check_open()
        view = base.view_of(data)
        with self._mapped():
            self._size += write_all(self._file, view)
        self._crc = crc64nvme(view, self._crc)

    def commit(self) -> tuple[int, int]:
        with self._committing(), self._mapped():
            os.fsync(self._file.fileno())
            self._publisher.create(self._temp, self._path)
        self.abort()
        return self._size, self._crc

    def abort(self) -> None:
        self._open = False
        with self._mapped():
            self._file.close()
            self._temp.unlink(missing_ok=True)

    def _mapped(self) -> AbstractContextManager[None]:
        return mapped(self._name, writing=True)


class FileStore(base.Store):
    """`Store` in the directory `root`, which the first write makes. `.tmp` in it holds unfinished files and is no
    key."""

    def __init__(self, root: Path | str, url: str = "", key_class: KeyClasses = write_once) -> None:
        self._key_class = key_class
        self._root = Path(root).absolute()
        self.url = url or str(root)
        self._publisher = Publisher(self._root)

    def __reduce__(self) -> tuple[Any, ...]:
        return FileStore, (self._root, self.url, self._key_class)

    @property
    def address(self) -> base.Address:
        """Symbolic links and '..' are followed as far as the path exists."""
        return base.Address("", self._root.resolve().parts)

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        with self._open(key) as file:
            base.check_whole(self._name(key), os.fstat(file.fileno()).st_size, self._key_class(key).largest)
            return file.read(), etag_of(os.fstat(file.fileno()))

    def open_range(self, key: str, start: int, length: int) -> Iterator[bytes]:
        if length == 0:
            return
        end = start + length
        with self._open(key) as file:
            file.seek(start)
            while start < end:
                chunk = file.read(min(base.CHUNK, end - start))
                start += self._check_read(key, len(chunk), end, file)
                yield chunk

    def fill(self, key: str, start: int, into: memoryview) -> Iterator[memoryview]:
        if not into:
            return
        end, at = start + len(into), 0
        with self._open(key) as file:
            file.seek(start)
            while at < len(into):
                count = file.readinto(into[at : at + base.CHUNK])  # type: ignore[attr-defined] # unbuffered files have it
                at += self._check_read(key, count, end, file)
                yield into[at - count : at]

    def _check_read(self, key: str, count: int, end: int, file: BinaryIO) -> int:
        if not count:
            raise CorruptError(
                f"{self._name(key)} has {os.fstat(file.fileno()).st_size} bytes, wanted up to byte {end}", base.SHORTER
            )
        return count

    def put(self, key: str, data: base.Buffer) -> str:
        path = self._path(key)
        with self._written(key, data) as temp:
            return self._publisher.replace(temp, path)

    def put_new(self, key: str, data: base.Buffer) -> str:
        path = self._path(key)
        with self._written(key, data) as temp:
            return self._publisher.create(temp, path)

    def replace(self, key: str, data: base.Buffer, etag: str) -> str:
        path = self._path(key)

        def check() -> None:
            if self.stat(key).etag != etag:
                raise PreconditionError(f"{self._name(key)} is another version by now")

        with self._written(key, data) as temp:
            return self._publisher.replace(temp, path, check)

    def upload(self, key: str) -> FileUpload:
        path = self._path(key)
        with mapped(self._name(key), writing=True):
            return FileUpload(self._publisher, path)

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[base.ObjectInfo]:
        folder = prefix.rpartition("/")[0]
        if not base.may_hold_keys(prefix) or folder.partition("/")[0] == HIDDEN:
            return
        with mapped(f"directory {self._root}"):
            stack = [iter(_entries(self._root, folder))]
            while stack:
                path, entry = next(stack[-1], ("", None))
                if entry is None:
                    stack.pop()
                elif path.endswith("/"):
                    behind = path < start_after and not start_after.startswith(path)
                    if not behind and (path.startswith(prefix) or prefix.startswith(path)):
                        stack.append(iter(_entries(self._root, path[:-1])))
                elif path.startswith(prefix) and path > start_after and base.is_key(path):
                    try:
                        status = entry.stat()
                    except FileNotFoundError:
                        continue  # deleted since the folder was read
                    yield _info(path, status)

    def list_dirs(self, prefix: str = "") -> Iterator[str]:
        if not base.may_hold_keys(prefix):
            return
        with mapped(f"directory {self._root}"):
            for path, _ in _entries(self._root, prefix[:-1]):
                if path.endswith("/") and next(self.list(path), None) is not None:
                    yield path[len(prefix) : -1]

    def stat(self, key: str) -> base.ObjectInfo:
        with self._open(key) as file:
            return _info(key, os.fstat(file.fileno()))

    def checksum(self, key: str) -> int | None:
        """Return None: directories keep no checksums."""
        self.stat(key)
        return None

    def delete(self, keys: Iterable[str]) -> builtins.list[base.Failed]:
        failed: list[base.Failed] = []
        touched: set[Path] = set()
        for key in keys:
            try:
                path = self._path(key)
                with mapped(self._name(key)):
                    path.lstat()
                    path.unlink()
                touched.add(path.parent)
            except NotFoundError:
                continue
            except StoreError as error:
                failed.append(base.Failed(key, error))
        for folder in sorted(touched):
            with mapped(f"directory {folder}"), suppress(FileNotFoundError):  # pruned by another process
                sync_dir(folder)
                prune(folder, self._root)
        return failed

    def leave_mark(self, name: str) -> Path:
        """Leave an empty file that is no object, by which other machines know the directory; return its path. It is
        swept as the temporary files are."""
        path = self._root / HIDDEN / f"{name}.part"
        with mapped(f"file {path}", writing=True):
            self._publisher.make_dirs(path.parent)
            path.touch()
        return path

    def _name(self, key: str) -> str:
        return f"file {self._root / key}"

    def _path(self, key: str) -> Path:
        base.check_key(key)
        if key.partition("/")[0] == HIDDEN:
            raise StoreError(
                f"key {key!r} can't be used",
                f"use another name than '{HIDDEN}', which holds the store's unfinished files",
            )
        return self._root / key

    @contextmanager
    def _open(self, key: str) -> Iterator[BinaryIO]:
        path = self._path(key)
        with mapped(self._name(key)), path.open("rb", buffering=0) as file:
            yield file

    @contextmanager
    def _written(self, key: str, data: base.Buffer) -> Iterator[Path]:
        """Yield a synced temporary file with `data`; errors of the block are mapped too."""
        with mapped(self._name(key), writing=True):
            temp, file = self._publisher.open_temp()
            try:
                with file:
                    write_all(file, data)
                    os.fsync(file.fileno())
                yield temp
            finally:
                temp.unlink(missing_ok=True)


def _info(key: str, status: os.stat_result) -> base.ObjectInfo:
    return base.ObjectInfo(key, status.st_size, etag_of(status), status.st_mtime_ns / 1e9)
