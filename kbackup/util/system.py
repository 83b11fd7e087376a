"""What the system gives: memory, buffers, folders of our own, processes, and repeated attempts."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import secrets
import stat
import subprocess
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from kbackup.types import Bytes


Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(function: Callable[[Item], Result], items: Iterable[Item], threads: int = 16) -> list[Result]:
    """Return the results of `function` for all items, in order, which threads work on side by side."""
    items = list(items)
    if len(items) < 2:  # most tables have one chunk, and starting a thread takes longer than reading one
        return [function(item) for item in items]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, items))


def cut(sizes: Iterable[int], room: int, most: int) -> Iterator[slice]:
    """Yield slices of neighbouring items that have up to `room` bytes and are `most` at most; a bigger item is
    alone."""
    start = stop = remaining = 0
    for size in sizes:
        if stop > start and (size > remaining or stop - start == most):
            yield slice(start, stop)
            start = stop
        remaining = (max(room, size) if start == stop else remaining) - size
        stop += 1
    if stop > start:
        yield slice(start, stop)


def attempts(seconds: float, pause: float) -> Iterator[None]:
    """Yield at once, then after each pause in seconds, and end when the time is over. The caller breaks on success."""
    end = time.monotonic() + seconds
    yield
    while time.monotonic() < end:
        time.sleep(pause)
        yield


# Large buffers used again and again, each handed back by the last reference to it.


class BufferPool:
    """Buffers of `size` bytes, for any number of threads; at most `keep` unused ones are held.

    A buffer is leased until no array, memoryview or Arrow buffer over it is left: nobody gives it back, and
    nobody can be left with memory that is filled anew. The memory is mapped, so that what is not kept returns
    to the system at once, and private, so that a forked process has its own.
    """

    def __init__(self, size: int, keep: int = 4) -> None:
        self.size = size
        self._free: deque[mmap.mmap] = deque(maxlen=keep)
        self._lock = threading.Lock()
        self.allocated = 0
        """Number of buffers made so far; leases of used ones are not counted."""

    def take(self) -> Bytes:
        """Return a lease: uint8[size], writable, of undefined content. Never waits."""
        # Every command imports this module, and most need no arrays.
        import numpy as np

        try:
            memory = self._free.pop()
        except IndexError:
            memory = mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                # the first touch of 16 MiB took 2 ms instead of 10; a system without huge pages refuses
                with suppress(OSError):
                    memory.madvise(mmap.MADV_HUGEPAGE)
            with self._lock:
                self.allocated += 1
        # Views of an array over foreign memory refer to that array, not to the memory: when it dies, all have.
        lease: Bytes = np.frombuffer(memory, np.uint8)
        # The callback may run in any thread, and in the midst of `take` (a garbage collection): it takes no lock.
        weakref.finalize(lease, self._free.append, memory).atexit = False
        return lease


# Folders of the user on this machine, and files in them that no other user can have written.


def cache_folder() -> Path | None:
    """Return kbackup's folder below XDG_CACHE_HOME, as a rule ~/.cache; None if there is no home."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        base = named if named.is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        return None
    return base / "kbackup"


def make_own(folder: Path) -> None:
    """Make `folder` and its missing parents for this user alone, whatever the umask. `OSError` where another user can
    write to it or replace it."""
    _check_owners(folder.parent)
    missing = []
    parent = folder
    while not parent.exists():
        missing.append(parent)
        parent = parent.parent
    for each in reversed(missing):
        # Another process may be faster.
        with suppress(FileExistsError):
            each.mkdir(0o700)
            # The umask may have taken rights of ours.
            each.chmod(0o700)
    check_own(folder)


def folder_of_all_processes(purpose: str) -> Path:
    """Return a folder below TMPDIR that all processes of this user share for `purpose`; it is made if there is none.
    `OSError` where no such folder can be made.

    Everybody can make any name there first. So the name has a random part, and is found by its beginning and its
    owner. Of several, which processes that start together may have made, all take the one with the oldest name.
    """
    base = Path(tempfile.gettempdir())
    prefix = f"kbackup-{purpose}-{os.getuid()}-"
    found = _own_folders(base, prefix)
    if found:
        return found[0]
    made = base / f"{prefix}{time.time_ns():020}-{secrets.token_hex(8)}"
    make_own(made)
    oldest = _own_folders(base, prefix)[0]
    if oldest != made:
        made.rmdir()
    return oldest


def _own_folders(base: Path, prefix: str) -> list[Path]:
    """Return the folders in `base` that only this user can read, whose names begin with `prefix`, by name."""
    with os.scandir(base) as entries:
        names = sorted(entry.name for entry in entries if entry.name.startswith(prefix))
    found = []
    for name in names:
        # The folder may be another user's, a link, or deleted meanwhile.
        with suppress(OSError):
            check_own(base / name)
            found.append(base / name)
    return found


def check_own(folder: Path) -> None:
    """Raise `OSError` if `folder` is missing or a link, or another user owns it or a folder above it, or can write
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


class FileState(NamedTuple):
    """What changes when a file is written, replaced, or given other rights."""

    inode: int
    modified_ns: int
    size: int
    mode: int


def file_state(path: Path) -> FileState | None:
    """Return the state of a file, to see whether it has changed since; None if it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return FileState(found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode)


# The C library's treatment of freed memory.

_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def reuse_freed_memory() -> bool:
    """Have glibc hold up to 64 MiB of freed memory for the next allocation; return False if it can't.

    The entries of the program and of Spark's workers call it.

    By default glibc returns each freed batch to the system, and the next one takes new pages. That was an
    eighth of a reader's CPU (`scripts/bench`). Allocations above 32 MiB are returned at once. Variables of
    glibc in the environment win.
    """
    if any(name in os.environ for name in _VARIABLES):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        # It is another C library.
        return False
    # The numbers are M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's `malloc.h`; the result is 0 after an error.
    if not mallopt(-1, 64 << 20):
        return False
    return bool(mallopt(-3, 32 << 20))


# Processes that this one has started.


def close_process(process: subprocess.Popen[bytes]) -> None:
    """Close the streams of a process that ends with them, and wait for its end; kill it after two seconds."""
    try:
        process.communicate(timeout=2.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
