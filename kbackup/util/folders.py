"""Folders of the user on this machine, and files in them that no other user can have written."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


def cache_folder(env: Mapping[str, str] = os.environ) -> Path | None:
    """Return kbackup's folder below XDG_CACHE_HOME, as a rule ~/.cache; None where there is no home."""
    named = Path(env.get("XDG_CACHE_HOME", ""))
    try:
        base = named if named.is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        return None
    return base / "kbackup"


def make_own(folder: Path) -> None:
    """Make `folder` for this user alone. `OSError` where another user can write to it or replace it."""
    _check_owners(folder.parent)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_own(folder)


def check_own(folder: Path) -> None:
    """Raise `OSError` where `folder` is missing or a link, or another user owns it or a folder above it, or can write
    to it."""
    _check_owners(folder.parent)
    status = folder.lstat()
    ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    if not ours or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _foreign(folder)


def _check_owners(folder: Path) -> None:
    """A folder of another user may hold links to files of ours. Links of root or of this user may lead here."""
    for start in {folder.absolute(), folder.resolve()}:
        for each in (start, *start.parents):
            with suppress(FileNotFoundError):
                if each.lstat().st_uid not in (0, os.getuid()):
                    raise _foreign(each)


def _foreign(path: Path) -> OSError:
    return PermissionError(errno.EPERM, "another user can write there, or it is a link", str(path))


def read_own(path: Path) -> bytes:
    """Read a file in a folder of `check_own`. `OSError` for a link, and for a file of another user."""
    check_own(path.parent)
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
            raise _foreign(path)
        return file.read()


def write_own(path: Path, data: bytes) -> None:
    """Create or replace a file that only this user may read, and its folder. A link in its place is replaced."""
    make_own(path.parent)
    made = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(made, flags, 0o600), "wb") as file:
            file.write(data)
        made.replace(path)
    except OSError:
        with suppress(OSError):
            made.unlink()
        raise
