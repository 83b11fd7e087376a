"""A store that caches objects on this machine for the next command, each by the etag of its version.

The store alone decides which version is current. A listed object has the etag of its listing. For any other object the
store is asked for the etag, or for the object itself if it is small. So a deleted object never comes back, and an old
version never stands for a new one. Objects of an encrypted archive are cached encrypted: this wrapper belongs below
the wrapper that decrypts.
"""

from __future__ import annotations

import builtins
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from kbackup.store.base import Buffer, Failed, ObjectInfo, Store, Upload, is_key
from kbackup.store.delegating import DelegatingStore
from kbackup.util.folders import check_own, make_own, read_own, write_own

LIMIT_BYTES = 256 << 20
LARGEST_BYTES = 64 << 20
"""Limits of the whole cache, and of one object."""
ASK_BYTES = 64 << 10
"""Objects that were not listed are cached from this size on: asking for the version is cheaper than reading them."""

_MAGIC = b"kbackup cache 1\n"
_HASH = 32


class CachedStore(DelegatingStore):
    """`Store` over `inner`. `identity` tells stores apart that have the same URL."""

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
