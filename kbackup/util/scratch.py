"""Folders below TMPDIR that live no longer than the process that made them.

Each folder has a lock file, which its process holds until it ends, however it ends. The next process that makes such a
folder removes the folders whose lock nobody holds any more. Killed runs leave them behind, with keys of TLS among them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

_PREFIX = "kbackup-"
_LOCK = ".kbackup-scratch"
"""A name that nobody else gives to a file: Kafka's folders of logs have a `.lock`, whatever they are called."""
_YOUNG = 2.0  # s

_swept = threading.Event()
"""Set once this process has removed the folders of processes that have ended."""


class ScratchFolder:
    """A new folder `path` below TMPDIR that this user alone can read, named after its `purpose`.

    Leaving the context, or `remove`, deletes it with all that it holds. `OSError` if it can't be made.
    """

    def __init__(self, purpose: str) -> None:
        if not _swept.is_set():
            _swept.set()
            remove_abandoned()
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{purpose}-"))
        self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Delete the folder. A second call does nothing."""
        if self._lock < 0:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
        self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()


def remove_abandoned() -> None:
    """Delete the scratch folders of this user whose processes have ended."""
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX) and _is_own_folder(entry):
                _remove_if_abandoned(Path(entry.path))


def _is_own_folder(entry: os.DirEntry[str]) -> bool:
    # Everybody may write to TMPDIR: a link, or a folder of another user, is none of ours whatever it is called.
    with suppress(OSError):
        return entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.getuid()
    return False


def _remove_if_abandoned(folder: Path) -> None:
    # Without a lock file it may be a folder that is being made at this moment, or one that an earlier version made,
    # which held no locks: neither may be taken away.
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A process that has made its lock file a moment ago may not hold it yet.
        if time.time() - os.fstat(lock).st_mtime > _YOUNG:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        # Its process holds the lock: it is at work.
        pass
    finally:
        os.close(lock)
