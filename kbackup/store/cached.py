"""A store whose objects are kept on this machine for the next command, where the store has told which version they are.

What there is comes from the store alone: an object that was listed is the version of that listing, by its etag; for
one that was not, the store is asked for the etag, or for the object itself where that is small. So nothing that was
deleted comes back, and nothing old is taken for what took its place. What an encrypted archive holds is kept as it is
stored: the wrapper belongs below the one that decrypts.
"""

from __future__ import annotations

import builtins
import hashlib
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from kbackup.store.base import Buffer, Failed, ObjectInfo, Store, Upload, is_key
from kbackup.store.delegating import DelegatingStore

LIMIT_BYTES = 256 << 20
LARGEST_BYTES = 64 << 20
"""What is kept in all, and of one object."""
ASK_BYTES = 64 << 10
"""An object that was not listed is kept from this size on: asking for its version is cheaper than reading it."""

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
            data, found = self.inner.get_with_etag(key)
            if len(data) >= ASK_BYTES:
                self._shelf.put(self._name(key, ""), found.encode())
                self._shelf.put(self._name(key, found), data)
            return data, found
        kept = self._shelf.get(self._name(key, etag))
        if kept is not None:
            return kept, etag
        data, found = self.inner.get_with_etag(key)
        if found == etag:
            self._shelf.put(self._name(key, etag), data)
        return data, found

    def _unlisted(self, key: str) -> str | None:
        """The version that the store has now of an object that was not listed, where some version of it is kept."""
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
        gone = [*keys]
        for key in gone:
            self._listed.pop(key, None)
        return self.inner.delete(gone)


class Shelf:
    """Bytes by name in a folder that nobody else can look into: at most `limit` of them, those that were not used for
    longest go first. It is a help alone: what can't be read or is damaged is not there, and what can't be written is
    not kept."""

    def __init__(self, folder: Path, limit: int = LIMIT_BYTES) -> None:
        self._folder, self._limit = folder, limit
        self._size: int | None = None

    def get(self, name: str) -> bytes | None:
        path = self._path(name)
        try:
            if not self._ours():
                return None
            data = path.read_bytes()
            if data[: len(_MAGIC) + _HASH] != _head(name, data[len(_MAGIC) + _HASH :]):
                path.unlink()
                return None
            os.utime(path)
        except OSError:
            return None
        return data[len(_MAGIC) + _HASH :]

    def put(self, name: str, data: bytes) -> None:
        if len(data) > min(LARGEST_BYTES, self._limit):
            return
        path = self._path(name)
        made = path.with_name(f"{name}.{secrets.token_hex(8)}")
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            if not self._ours():
                return
            descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(_head(name, data))
                file.write(data)
            made.replace(path)
            self._trim(len(data))
        except OSError:
            with suppress(OSError):
                made.unlink()

    def _path(self, name: str) -> Path:
        return self._folder / name[:2] / name

    def _ours(self) -> bool:
        """A folder that others can write to could hold anybody's bytes, with their checksum."""
        found = self._folder.stat()
        return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)

    def _trim(self, added: int) -> None:
        self._size = None if self._size is None else self._size + added
        if self._size is not None and self._size <= self._limit:
            return
        files = [(found.st_mtime, found.st_size, path) for path, found in self._files()]
        self._size = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if self._size <= self._limit:
                return
            path.unlink(missing_ok=True)
            self._size -= size

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        for path in self._folder.glob("??/*"):
            try:
                yield path, path.stat()
            except FileNotFoundError:
                continue  # another process was faster


def _head(name: str, data: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(name.encode() + data).digest()
