"""Folders that are opened step by step, so that no symbolic link is followed below the first one.

A path is resolved by the system again at each use, and whoever may write into a folder of the path can put a link there
meanwhile. A descriptor stays with its folder. So each step opens one name in the folder before it, and refuses a link
(`openat` with `O_NOFOLLOW`): there is no moment between a check and its use.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

_SEARCH = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
"""To open a folder for its names alone: like a path, this takes the right to search the folder, not to read it."""
_READ = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class LinkError(OSError):
    """A symbolic link where none is followed; `filename` is its path."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.ELOOP, "it is a symbolic link", path)


class Folder:
    """An open folder. `path` is for messages. Errors are the file system's own (`OSError`), and `LinkError`.

    Names are single names, without a '/'. Close the folder, or use it as a context manager.
    """

    def __init__(self, descriptor: int, path: str) -> None:
        self.descriptor = descriptor
        self.path = path

    @classmethod
    def at(cls, path: Path, names: Sequence[str] = (), *, reading: bool = False) -> Folder:
        """Open the folder at `path`, or the one that `names` lead to from there, each name in the folder before it.

        Links in `path` are followed: whoever gave the path wants them. `reading` is the parameter of `folder`.
        """
        last = len(names)
        flags = _READ if reading and not names else _SEARCH
        folder = cls(os.open(path, flags), str(path))
        for number, name in enumerate(names, 1):
            with folder:
                folder = folder.folder(name, reading=reading and number == last)
        return folder

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        os.close(self.descriptor)

    def path_of(self, name: str) -> str:
        return f"{self.path}/{name}"

    def folder(self, name: str, *, reading: bool = False) -> Folder:
        """Open a folder in this one; with `reading`, also for its list of names."""
        descriptor = self._open(name, _READ if reading else _SEARCH)
        return Folder(descriptor, self.path_of(name))

    def names(self) -> list[str]:
        """Return the names in a folder that was opened for reading."""
        return os.listdir(self.descriptor)  # noqa: PTH208 (a descriptor)

    def open(self, name: str) -> int:
        """Open a file for reading and return its descriptor. `IsADirectoryError` for a folder, and `FileNotFoundError`
        for what else is no file: a pipe or a socket."""
        # Without O_NONBLOCK, opening a pipe waits for somebody who writes into it.
        descriptor = self._open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode):
            return descriptor
        os.close(descriptor)
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.ENOENT
        raise OSError(number, os.strerror(number), self.path_of(name))

    def create(self, name: str, mode: int, flags: int = os.O_WRONLY) -> int:
        """Create a file, which must not be there, and return its descriptor."""
        return self._open(name, flags | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)

    def open_to_write(self, name: str) -> int:
        """Open an existing file for reading and writing and return its descriptor."""
        return self._open(name, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def status(self, name: str) -> os.stat_result:
        """Return the status of what has this name: no link is followed, none is an error."""
        return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)

    def mode(self, name: str) -> int:
        """Return the type and the mode of what has this name; 0 if there is nothing."""
        try:
            return self.status(name).st_mode
        except FileNotFoundError:
            return 0

    def refuse_link(self, name: str) -> None:
        """Raise `LinkError` if `name` is a link."""
        if stat.S_ISLNK(self.mode(name)):
            raise LinkError(self.path_of(name))

    def mkdir(self, name: str, mode: int) -> None:
        os.mkdir(name, mode, dir_fd=self.descriptor)

    def rmdir(self, name: str) -> None:
        os.rmdir(name, dir_fd=self.descriptor)

    def unlink(self, name: str) -> None:
        os.unlink(name, dir_fd=self.descriptor)

    def sync(self) -> None:
        """Make the names in this folder durable."""
        # A descriptor that only searches can't be synced.
        descriptor = os.open(".", _READ, dir_fd=self.descriptor)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _open(self, name: str, flags: int, mode: int = 0) -> int:
        try:
            return os.open(name, flags | os.O_NOFOLLOW, mode, dir_fd=self.descriptor)
        except OSError as error:
            # Systems report a link as ELOOP, or as "not a directory" if a folder was asked for.
            if error.errno in {errno.ELOOP, errno.ENOTDIR, errno.EMLINK}:
                self.refuse_link(name)
            # A socket can't be opened; for the callers, it is no file.
            if error.errno == errno.ENXIO and stat.S_ISSOCK(self.mode(name)):
                error.errno = errno.ENOENT
            raise OSError(error.errno, error.strerror, self.path_of(name)) from None
