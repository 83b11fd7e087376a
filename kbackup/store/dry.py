"""A store that keeps every write in memory: a dry run does all that the real run does, and writes nothing."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator

from kbackup.errors import AlreadyExistsError, NotFoundError
from kbackup.store.base import Buffer, Failed, ObjectInfo, Store, Upload, view_of
from kbackup.store.delegating import DelegatingStore


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
