"""Stores over other stores: writes kept in memory, guarded by a check, and reads from a cache on this machine."""

from __future__ import annotations

import builtins
import fcntl
import hashlib
import os
import struct
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from heapq import merge
from pathlib import Path

from kbackup.errors import AlreadyExistsError, NotFoundError, UsageError
from kbackup.store.base import (
    Address,
    Buffer,
    Failed,
    ObjectInfo,
    Retention,
    Store,
    Upload,
    encryption_of,
    is_key,
    view_of,
)
from kbackup.util.system import check_own, folder_of_all_processes, make_own, read_own, write_own

_SMALL = 64 << 10  # bytes
_LONGEST_WAIT = 600.0  # s


class DelegatingStore(Store):
    """`Store` over `inner`, which answers everything; what differs, a subclass overrides."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.url = inner.url
        self.encryption = encryption_of(inner)

    @property
    def address(self) -> Address:
        return self.inner.address

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        return self.inner.get_with_etag(key)

    def open_range(self, key: str, start: int, length: int) -> Iterator[bytes]:
        return self.inner.open_range(key, start, length)

    def fill(self, key: str, start: int, into: memoryview) -> Iterator[memoryview]:
        return self.inner.fill(key, start, into)

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
        return self.inner.list(prefix, start_after)

    def list_dirs(self, prefix: str = "") -> Iterator[str]:
        return self.inner.list_dirs(prefix)

    def stat(self, key: str) -> ObjectInfo:
        return self.inner.stat(key)

    def checksum(self, key: str) -> int | None:
        return self.inner.checksum(key)

    def retention(self, key: str) -> Retention:
        return self.inner.retention(key)

    def deleted_versions(self, key: str) -> builtins.list[Retention] | None:
        return self.inner.deleted_versions(key)

    def before_write(self, keys: Sequence[str]) -> None:
        """Called before each write or deletion of `keys`."""

    def put(self, key: str, data: Buffer) -> str:
        self.before_write([key])
        return self.inner.put(key, data)

    def put_new(self, key: str, data: Buffer) -> str:
        self.before_write([key])
        return self.inner.put_new(key, data)

    def replace(self, key: str, data: Buffer, etag: str) -> str:
        self.before_write([key])
        return self.inner.replace(key, data, etag)

    def upload(self, key: str) -> Upload:
        self.before_write([key])
        return self.inner.upload(key)

    def delete(self, keys: Iterable[str]) -> builtins.list[Failed]:
        deleted = builtins.list(keys)
        self.before_write(deleted)
        return self.inner.delete(deleted)


class DryStore(DelegatingStore):
    """`Store` over `inner` that keeps every write in memory: a dry run does all that the real run does, and writes
    nothing. Reads see what was written to this store. Uploads are refused."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._written: dict[str, bytes] = {}

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        if key in self._written:
            return self._written[key], "dry"
        return self.inner.get_with_etag(key)

    def open_range(self, key: str, start: int, length: int) -> Iterator[bytes]:
        if key in self._written:
            return iter((self._written[key][start : start + length],))
        return self.inner.open_range(key, start, length)

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
        others = (info for info in self.inner.list(prefix, start_after) if info.key not in self._written)
        written = []
        for key in sorted(self._written):
            if key.startswith(prefix) and key > start_after:
                written.append(self.stat(key))
        return merge(others, written)

    def stat(self, key: str) -> ObjectInfo:
        if key in self._written:
            return ObjectInfo(key, len(self._written[key]), "dry", 0)
        return self.inner.stat(key)

    def put(self, key: str, data: Buffer) -> str:
        self._written[key] = bytes(view_of(data))
        return "dry"

    def put_new(self, key: str, data: Buffer) -> str:
        with suppress(NotFoundError):
            self.stat(key)
            raise AlreadyExistsError(f"object {key} exists already")
        return self.put(key, data)

    def replace(self, key: str, data: Buffer, etag: str) -> str:
        return self.put(key, data)

    def upload(self, key: str) -> Upload:
        raise AssertionError(f"a dry run uploads {key}")

    def delete(self, keys: Iterable[str]) -> builtins.list[Failed]:
        for key in keys:
            self._written.pop(key, None)
        return []


class GuardedStore(DelegatingStore):
    """`Store` over `inner`. `check` is called before each write and raises an error that ends the writer: a writer that
    has lost its lease stops at its next write."""

    def __init__(self, inner: Store, check: Callable[[], None]) -> None:
        super().__init__(inner)
        self.check = check

    def before_write(self, keys: Sequence[str]) -> None:
        self.check()


_rates: list[Path] = []
"""The folder of the limits' files, once this process has found it."""


def _rates_folder() -> Path:
    """Return the folder that all processes of this user share for limits of rates."""
    try:
        if _rates:
            check_own(_rates[0])
            return _rates[0]
    except OSError:
        # The folder was cleaned up, or is no longer ours alone.
        _rates.clear()
    try:
        _rates.append(folder_of_all_processes("rates"))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(
            f"limit_rate needs a folder in {tempfile.gettempdir()}: {reason}",
            "set TMPDIR to a folder that belongs to you or to root",
        ) from error
    return _rates[0]


class RateLimit:
    """A limit of bytes per second for all processes of this user on this machine that give the same `name`."""

    def __init__(self, rate: int, name: str) -> None:
        self.rate, self.name = rate, name

    def take(self, size: int) -> None:
        """Wait for the turn of `size` bytes: those taken before go first, at `rate`."""
        path = _rates_folder() / hashlib.sha256(self.name.encode()).hexdigest()
        # Another user can't lead us to a file of ours by a link of that name.
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            now, written = time.monotonic(), file.read(8)
            free = struct.unpack("d", written)[0] if len(written) == 8 else now
            # A much later time is of the clock before this machine started again: the clock begins anew then.
            turn = free if now < free < now + _LONGEST_WAIT else now
            file.seek(0)
            file.write(struct.pack("d", turn + size / self.rate))
        # The wait begins when the lock is free again: others take the turns behind this one meanwhile.
        time.sleep(turn - now)


class LimitedUpload(Upload):
    """`Upload` whose bytes take their turn in `limit`."""

    def __init__(self, inner: Upload, limit: RateLimit) -> None:
        self._inner, self._limit = inner, limit

    def write(self, data: Buffer) -> None:
        self._limit.take(view_of(data).nbytes)
        self._inner.write(data)

    def in_parts(self) -> None:
        self._inner.in_parts()

    def commit(self) -> tuple[int, int]:
        return self._inner.commit()

    def abort(self) -> None:
        self._inner.abort()


class LimitedStore(DelegatingStore):
    """`Store` over `inner` that reads and writes at most `rate` bytes per second together with all that this user runs
    on the same address. Small objects don't wait: among them are leases."""

    def __init__(self, inner: Store, rate: int) -> None:
        super().__init__(inner)
        self.limit = RateLimit(rate, inner.url)

    def _taken(self, data: Buffer) -> Buffer:
        size = view_of(data).nbytes
        if size >= _SMALL:
            self.limit.take(size)
        return data

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        data, etag = self.inner.get_with_etag(key)
        self._taken(data)
        return data, etag

    def open_range(self, key: str, start: int, length: int) -> Iterator[bytes]:
        for chunk in self.inner.open_range(key, start, length):
            self._taken(chunk)
            yield chunk

    def fill(self, key: str, start: int, into: memoryview) -> Iterator[memoryview]:
        for view in self.inner.fill(key, start, into):
            self._taken(view)
            yield view

    def put(self, key: str, data: Buffer) -> str:
        return self.inner.put(key, self._taken(data))

    def put_new(self, key: str, data: Buffer) -> str:
        return self.inner.put_new(key, self._taken(data))

    def replace(self, key: str, data: Buffer, etag: str) -> str:
        return self.inner.replace(key, self._taken(data), etag)

    def upload(self, key: str) -> Upload:
        return LimitedUpload(self.inner.upload(key), self.limit)


def limit_beside(store: Store) -> RateLimit | None:
    """Return the limit for what goes from `store` to a cluster, as much as that of the store; None if it has none."""
    while isinstance(store, DelegatingStore) and not isinstance(store, LimitedStore):
        store = store.inner
    if not isinstance(store, LimitedStore):
        return None
    return RateLimit(store.limit.rate, f"from {store.url}")


LIMIT_BYTES = 256 << 20
LARGEST_BYTES = 64 << 20
"""Limits of the whole cache, and of one object."""
LISTED = 100_000
"""Objects of listings that are known at most: a listing of segments has millions, which nobody reads whole."""
ASK_BYTES = 64 << 10
"""Objects that were not listed are cached from this size on: asking for the version is cheaper than reading them."""

_MAGIC = b"kbackup cache 1\n"
_HEAD = len(_MAGIC) + hashlib.sha256().digest_size
"""Bytes before the object's: the magic, and a checksum of name and object."""


class CachedStore(DelegatingStore):
    """`Store` over `inner` that caches objects on this machine for the next command, each by the etag of its version.
    `identity` distinguishes stores that have the same URL.

    The store alone decides which version is current. A listed object has the etag of its listing. For any other object
    the store is asked for the etag, or for the object itself if it is small. So a deleted object never comes back, and
    an old version never stands for a new one. Objects of an encrypted archive are cached encrypted: this wrapper
    belongs below the wrapper that decrypts.
    """

    def __init__(self, inner: Store, cache: DiskCache, identity: str = "") -> None:
        super().__init__(inner)
        self._cache = cache
        self._identity = f"{identity}\n{inner.url}"
        self._listed: dict[str, str] = {}

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        etag = self._listed.get(key, "")
        # An entry without an etag says that the object was large when it was read last. Asking for its etag costs a
        # request, which a small object isn't worth.
        if not etag and is_key(key) and self._cache.get(self._name(key, "")) is not None:
            etag = self.inner.stat(key).etag
            self._cache.put(self._name(key, ""), etag.encode())
        if etag:
            cached = self._cache.get(self._name(key, etag))
            if cached is not None:
                return cached, etag
        data, current = self.inner.get_with_etag(key)
        is_large = not etag and len(data) >= ASK_BYTES
        if is_large:
            self._cache.put(self._name(key, ""), current.encode())
        # Listed objects of any size are cached, unless they were replaced after the listing.
        if is_large or current == etag != "":
            self._cache.put(self._name(key, current), data)
        return data, current

    def _name(self, key: str, etag: str) -> str:
        text = "\n".join((self._identity, key, etag))
        return hashlib.sha256(text.encode()).hexdigest()

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
        for entry in self.inner.list(prefix, start_after):
            if entry.etag and (len(self._listed) < LISTED or entry.key in self._listed):
                self._listed[entry.key] = entry.etag
            yield entry

    def before_write(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._listed.pop(key, None)


class DiskCache:
    """A bounded cache of bytes by name, in a folder that only this user can read.

    Above `limit` bytes the least recently used entries are deleted. Unreadable and damaged entries count as missing,
    and failed writes are ignored: the cache only saves requests.
    """

    def __init__(self, folder: Path, limit: int = LIMIT_BYTES) -> None:
        self._folder, self._limit = folder, limit
        self._size: int | None = None

    def get(self, name: str) -> bytes | None:
        path = self._path(name)
        try:
            check_own(self._folder)
            stored = read_own(path)
            head, data = stored[:_HEAD], stored[_HEAD:]
            if head != _head(name, data):
                path.unlink()
                return None
            # The time of its last use, by which the least recently used entries are found.
            os.utime(path, follow_symlinks=False)
        except OSError:
            return None
        return data

    def put(self, name: str, data: bytes) -> None:
        if len(data) > min(LARGEST_BYTES, self._limit):
            return
        with suppress(OSError):
            make_own(self._folder)
            write_own(self._path(name), _head(name, data) + data)
            if self._size is not None:
                self._size += len(data)
            # The first write counts all files: other processes may have filled the cache.
            if self._size is None or self._size > self._limit:
                self._shrink()

    def _shrink(self) -> None:
        """Count all entries, and delete the least recently used ones above the limit."""
        files = []
        for path in self._folder.glob("??/*"):
            # Another process may be faster.
            with suppress(FileNotFoundError):
                status = path.lstat()
                files.append((status.st_mtime, status.st_size, path))
        self._size = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if self._size <= self._limit:
                return
            path.unlink(missing_ok=True)
            self._size -= size

    def _path(self, name: str) -> Path:
        return self._folder / name[:2] / name


def _head(name: str, data: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(name.encode() + data).digest()
