"""A store over another one, which answers everything; what differs, a subclass overrides."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator

from kbackup.store.address import Address
from kbackup.store.base import Buffer, Failed, ObjectInfo, Store, Upload, encryption_of


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
