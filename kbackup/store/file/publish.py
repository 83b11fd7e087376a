"""Publish files in a directory: write to a temporary file, sync, then name the file in one step.

Creates use `link`, which fails where the name is taken. Conditional replaces and, where the file system knows no
links, creates take one lock file, which orders them among all processes of this tool. It is held for a comparison
and a rename only, and waited for only so long: a process may be stopped while it holds it. A file's time is set to
a fresh nanosecond when it is named, so (size, time, inode) is a version: no etag needs reading.

All that is made has the mode of the root: its owner alone may read a root that is made here, and whom a root that was
there lets in is let in everywhere below.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from kbackup.errors import StoreError, UnreachableError
from kbackup.store.file import disk
from kbackup.util.attempts import attempts

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
        """Link the synced file `temp`, which stays, to `path` and return the new etag. `FileExistsError` where `path`
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
                raise StoreError(
                    f"file {path} can't be written: {self._root / parent} is a file", hint
                ) from error
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
