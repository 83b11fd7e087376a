"""A store over another one, which answers everything; what differs, a subclass overrides."""

from __future__ import annotations

import builtins
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from kbackup.errors import AlreadyExistsError, NotFoundError
from kbackup.store.base import Address, Buffer, Failed, ObjectInfo, Store, Upload, encryption_of, is_key, view_of
from kbackup.util.system import check_own, make_own, read_own, write_own


class DelegatingStore:
    """`Store` over `inner`."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.encryption = encryption_of(inner)

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def address(self) -> Address:
        return self.inner.address

    def get(self, key: str) -> bytes:
        return self.inner.get(key)

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        return self.inner.get_with_etag(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self.inner.get_range(key, start, length)

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

    def put(self, key: str, data: Buffer) -> str:
        return self.inner.put(key, data)

    def put_new(self, key: str, data: Buffer) -> str:
        return self.inner.put_new(key, data)

    def replace(self, key: str, data: Buffer, etag: str) -> str:
        return self.inner.replace(key, data, etag)

    def upload(self, key: str) -> Upload:
        return self.inner.upload(key)

    def delete(self, keys: Iterable[str]) -> builtins.list[Failed]:
        return self.inner.delete(keys)


# A store that keeps every write in memory: a dry run does all that the real run does, and writes nothing.


class DryStore(DelegatingStore):
    """`Store` over `inner`: reads see what was written to this store. Uploads are refused."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._written: dict[str, bytes] = {}

    def get(self, key: str) -> bytes:
        return self.get_with_etag(key)[0]

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        if key in self._written:
            return self._written[key], "dry"
        return self.inner.get_with_etag(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return b"".join(self.open_range(key, start, length))

    def open_range(self, key: str, start: int, length: int) -> Iterator[bytes]:
        if key in self._written:
            return iter((self._written[key][start : start + length],))
        return self.inner.open_range(key, start, length)

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
        infos = {info.key: info for info in self.inner.list(prefix, start_after)}
        infos |= {k: self.stat(k) for k in self._written if k.startswith(prefix) and k > start_after}
        return iter([infos[key] for key in sorted(infos)])

    def stat(self, key: str) -> ObjectInfo:
        if key in self._written:
            return ObjectInfo(key, len(self._written[key]), "dry", 0)
        return self.inner.stat(key)

    def put(self, key: str, data: Buffer) -> str:
        self._written[key] = bytes(view_of(data))
        return "dry"

    def put_new(self, key: str, data: Buffer) -> str:
        if self._exists(key):
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

    def _exists(self, key: str) -> bool:
        try:
            self.stat(key)
        except NotFoundError:
            return False
        return True


# A store that calls a check before each write: a writer whose lease is lost stops at its next write.


class GuardedStore(DelegatingStore):
    """`Store` over `inner`. `check` raises what ends the writer; reads pass without a check."""

    def __init__(self, inner: Store, check: Callable[[], None]) -> None:
        super().__init__(inner)
        self.check = check

    def put(self, key: str, data: Buffer) -> str:
        self.check()
        return super().put(key, data)

    def put_new(self, key: str, data: Buffer) -> str:
        self.check()
        return super().put_new(key, data)

    def replace(self, key: str, data: Buffer, etag: str) -> str:
        self.check()
        return super().replace(key, data, etag)

    def upload(self, key: str) -> Upload:
        self.check()
        return super().upload(key)

    def delete(self, keys: Iterable[str]) -> builtins.list[Failed]:
        self.check()
        return super().delete(keys)


# A store that caches objects on this machine for the next command, each by the etag of its version.
#
# The store alone decides which version is current. A listed object has the etag of its listing. For any other object
# the store is asked for the etag, or for the object itself if it is small. So a deleted object never comes back, and
# an old version never stands for a new one. Objects of an encrypted archive are cached encrypted: this wrapper
# belongs below the wrapper that decrypts.


LIMIT_BYTES = 256 << 20
LARGEST_BYTES = 64 << 20
"""Limits of the whole cache, and of one object."""
ASK_BYTES = 64 << 10
"""Objects that were not listed are cached from this size on: asking for the version is cheaper than reading them."""

_MAGIC = b"kbackup cache 1\n"
_HASH = 32


class CachedStore(DelegatingStore):
    """`Store` over `inner`. `identity` distinguishes stores that have the same URL."""

    def __init__(self, inner: Store, shelf: Shelf, identity: str = "") -> None:
        super().__init__(inner)
        self._shelf = shelf
        self._identity = f"{identity}\n{inner.url}"
        self._listed: dict[str, str] = {}

    def get(self, key: str) -> bytes:
        return self.get_with_etag(key)[0]

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        etag = self._listed.get(key) or self._unlisted(key)
        if etag is None:
            data, current = self.inner.get_with_etag(key)
            if len(data) >= ASK_BYTES:
                self._shelf.put(self._name(key, ""), current.encode())
                self._shelf.put(self._name(key, current), data)
            return data, current
        cached = self._shelf.get(self._name(key, etag))
        if cached is not None:
            return cached, etag
        data, current = self.inner.get_with_etag(key)
        if current == etag:
            self._shelf.put(self._name(key, etag), data)
        return data, current

    def _unlisted(self, key: str) -> str | None:
        """Ask for the current etag of an object that was not listed; None if no version of the object is cached."""
        if not is_key(key) or self._shelf.get(self._name(key, "")) is None:
            return None
        etag = self.inner.stat(key).etag
        self._shelf.put(self._name(key, ""), etag.encode())
        return etag or None

    def _name(self, key: str, etag: str) -> str:
        return hashlib.sha256("\n".join((self._identity, key, etag)).encode()).hexdigest()

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
        for entry in self.inner.list(prefix, start_after):
            if entry.etag:
                self._listed[entry.key] = entry.etag
            yield entry

    def put(self, key: str, data: Buffer) -> str:
        self._listed.pop(key, None)
        return self.inner.put(key, data)

    def put_new(self, key: str, data: Buffer) -> str:
        self._listed.pop(key, None)
        return self.inner.put_new(key, data)

    def replace(self, key: str, data: Buffer, etag: str) -> str:
        self._listed.pop(key, None)
        return self.inner.replace(key, data, etag)

    def upload(self, key: str) -> Upload:
        self._listed.pop(key, None)
        return self.inner.upload(key)

    def delete(self, keys: Iterable[str]) -> builtins.list[Failed]:
        deleted = [*keys]
        for key in deleted:
            self._listed.pop(key, None)
        return self.inner.delete(deleted)


class Shelf:
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
            data = read_own(path)
            if data[: len(_MAGIC) + _HASH] != _head(name, data[len(_MAGIC) + _HASH :]):
                path.unlink()
                return None
            os.utime(path, follow_symlinks=False)
        except OSError:
            return None
        return data[len(_MAGIC) + _HASH :]

    def put(self, name: str, data: bytes) -> None:
        if len(data) > min(LARGEST_BYTES, self._limit):
            return
        path = self._path(name)
        with suppress(OSError):
            make_own(self._folder)
            write_own(path, _head(name, data) + data)
            self._trim(len(data))

    def _path(self, name: str) -> Path:
        return self._folder / name[:2] / name

    def _trim(self, added: int) -> None:
        self._size = None if self._size is None else self._size + added
        if self._size is not None and self._size <= self._limit:
            return
        files = [(status.st_mtime, status.st_size, path) for path, status in self._files()]
        self._size = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if self._size <= self._limit:
                return
            path.unlink(missing_ok=True)
            self._size -= size

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        for path in self._folder.glob("??/*"):
            try:
                yield path, path.lstat()
            except FileNotFoundError:
                continue  # another process was faster


def _head(name: str, data: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(name.encode() + data).digest()
