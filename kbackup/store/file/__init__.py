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
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from awscrt.checksums import crc64nvme

from kbackup.errors import CorruptError, NotFoundError, PreconditionError, StoreError, UnreachableError
from kbackup.store.base import (
    CHUNK,
    SHORTER,
    Address,
    Buffer,
    Failed,
    ObjectInfo,
    Upload,
    abort_upload,
    address_of_directory,
    check_key,
    check_whole,
    is_key,
    view_of,
)
from kbackup.store.file import disk
from kbackup.store.options import KeyClasses, write_once
from kbackup.util.system import attempts

HIDDEN = ".tmp"
_STALE_SECONDS = 24 * 3600
_PRUNED_MEANWHILE = 16
_LOCK_SECONDS = 30.0
_PRIVATE = 0o700
_FILE_BITS = 0o666
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def etag_of(stat: os.stat_result) -> str:
    return f"{stat.st_size:x}-{stat.st_mtime_ns:x}-{stat.st_ino:x}"


class Publisher:
    """Writes files below `root`. Errors are the file system's own (`OSError`), but for a name that is a
    folder's."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._hidden = root / HIDDEN
        self._swept = False
        self._sweeping = threading.Lock()

    def open_temp(self) -> tuple[Path, BinaryIO]:
        """Create a temporary file and open it for writing, unbuffered. Temporary files that a crash left more than a
        day ago are removed first."""
        mode = self._make_dirs(self._hidden) & _FILE_BITS
        self._sweep()
        temp = self._hidden / f"{secrets.token_hex(16)}.part"
        fd = os.open(temp, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        disk.set_mode(fd, mode)
        return temp, os.fdopen(fd, "wb", buffering=0)

    def leave(self, path: Path) -> None:
        """Create an empty file beside the temporary files, which is swept as they are."""
        self._make_dirs(self._hidden)
        path.touch()

    def _make_dirs(self, folder: Path) -> int:
        """Make `folder`, the root or below it; returns the mode of folders."""
        disk.make_dirs(self._root, _PRIVATE)
        mode = disk.mode_of(self._root)
        disk.make_dirs(folder, mode)
        return mode

    def create(self, temp: Path, path: Path) -> str:
        """Link the synced file `temp`, which stays, to `path` and return the new etag. `FileExistsError` if `path`
        is taken."""
        stat = _touch(temp, 0)
        self._with_parents(path, lambda: self._link(temp, path))
        return etag_of(stat)

    def replace(self, temp: Path, path: Path, check: Callable[[], None] | None = None) -> str:
        """Move the synced file `temp` to `path` and return the new etag. `check` is called right before, under the
        lock."""
        try:
            before = path.stat().st_mtime_ns
        except (FileNotFoundError, NotADirectoryError):
            before = 0
        stat = _touch(temp, before)

        def move() -> None:
            if check is None:
                temp.replace(path)
                return
            with self._lock():
                check()
                temp.replace(path)

        self._with_parents(path, move)
        return etag_of(stat)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        mode = self._make_dirs(self._hidden) & _FILE_BITS
        fd = os.open(self._hidden / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        try:
            if os.fstat(fd).st_uid == os.geteuid():
                disk.set_mode(fd, mode)
            self._take(fd)
            yield
        finally:
            os.close(fd)

    def _take(self, fd: int) -> None:
        for _ in attempts(_LOCK_SECONDS, 0.005):
            with suppress(BlockingIOError):
                return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        raise UnreachableError(
            f"directory {self._root}: another process holds its lock file and does not go on",
            "end or continue the process that holds it",
        )

    def _link(self, temp: Path, path: Path) -> None:
        try:
            os.link(temp, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with self._lock():
                if os.path.lexists(path):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
                temp.rename(path)

    def _with_parents(self, path: Path, name: Callable[[], object]) -> None:
        """Call `name` while the parent folders of `path` exist, and make the result durable. A delete may remove the
        folders in between: then both are done again."""
        for attempt in range(_PRUNED_MEANWHILE):
            try:
                self._make_dirs(path.parent)
                name()
                break
            except FileNotFoundError:
                if attempt == _PRUNED_MEANWHILE - 1:
                    raise
            except (NotADirectoryError, IsADirectoryError, FileExistsError) as error:
                self._raise_collision(path, error)
        disk.sync_dir(path.parent)

    def _raise_collision(self, path: Path, error: OSError) -> None:
        hint = "use another key: no object's key can be the folder of another object's key"
        if path.is_dir():
            raise StoreError(f"file {path} can't be written: there is a folder of that name", hint) from error
        for parent in path.relative_to(self._root).parents:
            if (self._root / parent).is_file():
                raise StoreError(f"file {path} can't be written: {self._root / parent} is a file", hint) from error
        raise error

    def _sweep(self) -> None:
        with self._sweeping:
            if self._swept:
                return
            oldest = time.time() - _STALE_SECONDS
            for temp in self._hidden.glob("*.part"):
                try:
                    if temp.stat().st_mtime < oldest:
                        temp.unlink()
                except FileNotFoundError:
                    continue  # its owner finished, or another process swept it
            self._swept = True


def _touch(temp: Path, before: int) -> os.stat_result:
    """Give `temp` the time of now, later than `before` (ns)."""
    now = max(time.time_ns(), before + 1)
    os.utime(temp, ns=(now, now))
    return temp.stat()


# A streamed create of a file.


class FileUpload(Upload):
    """`Upload` into a temporary file, which is named at `commit`."""

    def __init__(self, publisher: Publisher, path: Path) -> None:
        self._publisher = publisher
        self._path = path
        self._temp, self._file = publisher.open_temp()
        self._size = 0
        self._crc = 0

    def write(self, data: Buffer) -> None:
        self._check_open()
        view = view_of(data)
        with self._mapped():
            self._size += disk.write_all(self._file, view)
        self._crc = crc64nvme(view, self._crc)

    def commit(self) -> tuple[int, int]:
        self._check_open()
        try:
            with self._mapped():
                os.fsync(self._file.fileno())
                self._publisher.create(self._temp, self._path)
        except BaseException as error:
            abort_upload(self, error)
            raise
        self.abort()
        return self._size, self._crc

    def abort(self) -> None:
        with self._mapped():
            self._file.close()
            self._temp.unlink(missing_ok=True)

    def _mapped(self) -> AbstractContextManager[None]:
        return disk.mapped(f"file {self._path}", writing=True)

    def _check_open(self) -> None:
        if self._file.closed:
            raise StoreError(f"the upload of file {self._path} has ended", "start another one")


# A store in a directory (`publish` says how writes become atomic and durable).


class FileStore:
    """`Store` in the directory `root`, which the first write makes. `.tmp` in it holds unfinished files and
    is no key."""

    def __init__(self, root: Path | str, url: str = "", key_class: KeyClasses = write_once) -> None:
        self._key_class = key_class
        self._root = Path(root).absolute()
        self._url = url or str(root)
        self._publisher = Publisher(self._root)

    def __reduce__(self) -> tuple[Any, ...]:
        return FileStore, (self._root, self._url, self._key_class)

    @property
    def url(self) -> str:
        return self._url

    @property
    def address(self) -> Address:
        return address_of_directory(self._root)

    def get(self, key: str) -> bytes:
        return self.get_with_etag(key)[0]

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        with self._open(key) as file:
            check_whole(self._name(key), os.fstat(file.fileno()).st_size, self._key_class(key).largest)
            return file.read(), etag_of(os.fstat(file.fileno()))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return b"".join(self.open_range(key, start, length))

    def open_range(self, key: str, start: int, length: int) -> Iterator[bytes]:
        if length == 0:
            return
        end = start + length
        with self._open(key) as file:
            file.seek(start)
            while start < end:
                chunk = file.read(min(CHUNK, end - start))
                start += self._check_read(key, len(chunk), end, file)
                yield chunk

    def fill(self, key: str, start: int, into: memoryview) -> Iterator[memoryview]:
        if not into:
            return
        end, at = start + len(into), 0
        with self._open(key) as file:
            file.seek(start)
            while at < len(into):
                count = file.readinto(into[at : at + CHUNK])  # type: ignore[attr-defined] # unbuffered files have it
                at += self._check_read(key, count, end, file)
                yield into[at - count : at]

    def _check_read(self, key: str, count: int, end: int, file: BinaryIO) -> int:
        if not count:
            raise CorruptError(
                f"{self._name(key)} has {os.fstat(file.fileno()).st_size} bytes, wanted up to byte {end}", SHORTER
            )
        return count

    def put(self, key: str, data: Buffer) -> str:
        path = self._path(key)
        with self._written(key, data) as temp:
            return self._publisher.replace(temp, path)

    def put_new(self, key: str, data: Buffer) -> str:
        path = self._path(key)
        with self._written(key, data) as temp:
            return self._publisher.create(temp, path)

    def replace(self, key: str, data: Buffer, etag: str) -> str:
        path = self._path(key)

        def check() -> None:
            if self.stat(key).etag != etag:
                raise PreconditionError(f"{self._name(key)} is another version by now")

        with self._written(key, data) as temp:
            return self._publisher.replace(temp, path, check)

    def upload(self, key: str) -> FileUpload:
        path = self._path(key)
        with disk.mapped(self._name(key), writing=True):
            return FileUpload(self._publisher, path)

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
        with disk.mapped(f"directory {self._root}"):
            for key, entry in disk.walk(self._root, prefix, start_after, HIDDEN):
                try:
                    stat = entry.stat()
                except FileNotFoundError:
                    continue  # deleted since the folder was read
                if is_key(key):
                    yield _info(key, stat)

    def list_dirs(self, prefix: str = "") -> Iterator[str]:
        with disk.mapped(f"directory {self._root}"):
            for folder in disk.folders(self._root, prefix, HIDDEN):
                if next(self.list(folder), None) is not None:
                    yield folder[len(prefix) : -1]

    def stat(self, key: str) -> ObjectInfo:
        with self._open(key) as file:
            return _info(key, os.fstat(file.fileno()))

    def checksum(self, key: str) -> int | None:
        """Return None: directories keep no checksums."""
        self.stat(key)
        return None

    def delete(self, keys: Iterable[str]) -> builtins.list[Failed]:
        failed: list[Failed] = []
        touched: set[Path] = set()
        for key in keys:
            try:
                path = self._path(key)
                with disk.mapped(self._name(key)):
                    path.lstat()
                    path.unlink()
                touched.add(path.parent)
            except NotFoundError:
                continue
            except StoreError as error:
                failed.append(Failed(key, error))
        for folder in sorted(touched):
            self._settle(folder)
        return failed

    def leave_mark(self, name: str) -> Path:
        """Leave an empty file that is no object, by which other machines know the directory; return its path."""
        path = self._root / HIDDEN / f"{name}.part"
        with disk.mapped(f"file {path}", writing=True):
            self._publisher.leave(path)
        return path

    def _settle(self, folder: Path) -> None:
        """Make removals in `folder` durable, and drop it when nothing is left in it."""
        with disk.mapped(f"directory {folder}"):
            try:
                disk.sync_dir(folder)
            except FileNotFoundError:
                return  # pruned by another process
            disk.prune(folder, self._root)

    def _name(self, key: str) -> str:
        return f"file {self._root / key}"

    def _path(self, key: str) -> Path:
        check_key(key)
        if key.partition("/")[0] == HIDDEN:
            raise StoreError(
                f"key {key!r} can't be used",
                f"use another name than '{HIDDEN}', which holds the store's unfinished files",
            )
        return self._root / key

    @contextmanager
    def _open(self, key: str) -> Iterator[BinaryIO]:
        path = self._path(key)
        with disk.mapped(self._name(key)), path.open("rb", buffering=0) as file:
            yield file

    @contextmanager
    def _written(self, key: str, data: Buffer) -> Iterator[Path]:
        """Yield a synced temporary file with `data`; errors of the block are mapped too."""
        with disk.mapped(self._name(key), writing=True):
            temp, file = self._publisher.open_temp()
            try:
                with file:
                    disk.write_all(file, data)
                    os.fsync(file.fileno())
                yield temp
            finally:
                temp.unlink(missing_ok=True)


def _info(key: str, stat: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, stat.st_size, etag_of(stat), stat.st_mtime_ns / 1e9)
