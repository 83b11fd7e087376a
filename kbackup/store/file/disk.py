"""Durable steps on a file system, and its errors in the store's words."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from kbackup.errors import AlreadyExistsError, DeniedError, KbackupError, NotFoundError, StoreError, UnreachableError
from kbackup.store.base import Buffer, may_hold_keys, view_of

_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_NO_MODES = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}
_FULL = {errno.ENOSPC, errno.EDQUOT}
_MISSING = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR}
_AWAY = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENODEV, errno.ENXIO, errno.EHOSTDOWN}


def from_os(name: str, error: OSError) -> KbackupError:
    """Return kbackup's error for an error of the file system on object `name`; `mapped` handles the rest."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in _DENIED:
        return DeniedError(
            f"{name}: {reason.lower()}", "check the owner and the mode of the directory, and how it is mounted"
        )
    if error.errno in _FULL:
        return StoreError(f"{name}: the store is full", "make room or raise the quota, then run again")
    if error.errno in _AWAY:
        return UnreachableError(f"{name}: {reason.lower()}", "check the disk or the file server")
    if error.errno == errno.ENOTDIR:
        return StoreError(f"{name}: not a directory", "name a directory: the path leads through a file")
    if error.errno == errno.ENAMETOOLONG:
        return StoreError(
            f"{name}: the name is too long for this file system", "use a file system that takes longer names"
        )
    if error.errno == errno.EXDEV:
        return StoreError(
            f"{name}: a folder of the store is on another file system", "mount the whole directory from one file system"
        )
    return StoreError(f"{name}: {reason.lower()}", "check the file system of the store")


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
        raise from_os(name, error) from error


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


def mode_of(folder: Path) -> int:
    """Return the permission bits of a folder, with setgid and sticky."""
    return stat.S_IMODE(folder.stat().st_mode)


def set_mode(target: Path | int, mode: int) -> None:
    """Give a path or an open file of ours exactly `mode`, whatever the umask left of it. A file system without modes
    (FAT, some network shares) has the modes of its mount."""
    try:
        if stat.S_IMODE(os.stat(target).st_mode) != mode:  # noqa: PTH116 (an open file, too)
            os.chmod(target, mode)  # noqa: PTH101 (the same)
    except OSError as error:
        if error.errno not in _NO_MODES:
            raise


def write_all(file: BinaryIO, data: Buffer) -> int:
    """Write `data` to an unbuffered file, which may take less than it is given at a time."""
    view = view_of(data)
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


def walk(root: Path, prefix: str, start_after: str, hidden: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield files below `root` as (path from root, entry), in UTF-8 binary order of the paths.

    Yielded paths start with `prefix` and are greater than `start_after`. The top entry `hidden` and files that vanish
    meanwhile are skipped.

    A folder sorts as its name with the '/' that follows it in every path below: 'a-b', 'a.b', 'a/b'.
    """
    folder = prefix.rpartition("/")[0]
    if not may_hold_keys(prefix) or folder.partition("/")[0] == hidden:
        return
    stack = [iter(_entries(root, folder, hidden))]
    while stack:
        item = next(stack[-1], None)
        if item is None:
            stack.pop()
            continue
        path, entry = item
        if path.endswith("/"):
            behind = path < start_after and not start_after.startswith(path)
            if not behind and (path.startswith(prefix) or prefix.startswith(path)):
                stack.append(iter(_entries(root, path[:-1], hidden)))
        elif path.startswith(prefix) and path > start_after:
            yield path, entry


def folders(root: Path, prefix: str, hidden: str) -> list[str]:
    """Return the folders right under `prefix` ('' or ending in '/'), sorted. Their paths begin at `root` and end in
    '/'."""
    if not may_hold_keys(prefix):
        return []
    return [path for path, _ in _entries(root, prefix[:-1], hidden) if path.endswith("/")]


def _entries(root: Path, folder: str, hidden: str) -> list[tuple[str, os.DirEntry[str]]]:
    """Return a folder's files and folders (their paths end in '/') with their paths from root, sorted by path.

    Code point order of `str` is UTF-8 binary order.
    """
    base = f"{folder}/" if folder else ""
    try:
        with os.scandir(root / folder) as entries:
            paths = [(base + e.name + ("/" if e.is_dir() else ""), e) for e in entries if e.is_dir() or e.is_file()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted((path for path in paths if path[0] != f"{hidden}/"), key=lambda path: path[0])
