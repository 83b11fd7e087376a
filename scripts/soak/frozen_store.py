"""An archive in memory that is only read: thousands of variants of it share what they don't change."""

from __future__ import annotations

import builtins
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping

from kbackup.errors import CorruptError, NotFoundError, StoreError
from kbackup.store.base import CHUNK, Address, Buffer, Failed, ObjectInfo, Store, Upload


class FrozenStore:
    """`Store` over `objects`; every write is refused."""

    url = "frozen://archive"

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        self.objects = objects
        self._keys = sorted(objects)

    @classmethod
    def of(cls, store: Store) -> FrozenStore:
        return cls({entry.key: store.get(entry.key) for entry in store.list()})

    @property
    def address(self) -> Address:
        return Address("frozen", ())

    def get(self, key: str) -> bytes:
        try:
            return self.objects[key]
        except KeyError:
            raise NotFoundError(f"object {key} is not there") from None

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        return self.get(key), "1"

    def get_range(self, key: str, start: int, length: int) -> bytes:
        data = self.get(key)[start : start + length]
        if len(data) < length:
            raise CorruptError(f"object {key} ends before byte {start + length}", "it was cut")
        return data

    def open_range(self, key: str, start: int, length: int) -> Iterator[bytes]:
        data = self.get_range(key, start, length)
        yield from (data[at : at + CHUNK] for at in range(0, len(data), CHUNK))

    def fill(self, key: str, start: int, into: memoryview) -> Iterator[memoryview]:
        into[:] = self.get_range(key, start, len(into))
        yield into

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
        for key in self._keys[bisect_right(self._keys, start_after) :]:
            if key.startswith(prefix):
                yield self.stat(key)

    def list_dirs(self, prefix: str = "") -> Iterator[str]:
        found = {key[len(prefix) :].partition("/")[0] for key in self._keys if self._below(key, prefix)}
        yield from sorted(found, key=lambda name: f"{name}/")

    def _below(self, key: str, prefix: str) -> bool:
        return key.startswith(prefix) and "/" in key[len(prefix) :]

    def stat(self, key: str) -> ObjectInfo:
        return ObjectInfo(key, len(self.get(key)), "1", 0.0)

    def checksum(self, key: str) -> int | None:
        self.get(key)
        return None

    def put(self, key: str, data: Buffer) -> str:
        raise _frozen(key)

    def put_new(self, key: str, data: Buffer) -> str:
        raise _frozen(key)

    def replace(self, key: str, data: Buffer, etag: str) -> str:
        raise _frozen(key)

    def upload(self, key: str) -> Upload:
        raise _frozen(key)

    def delete(self, keys: Iterable[str]) -> builtins.list[Failed]:
        return [Failed(key, _frozen(key)) for key in keys]


def _frozen(key: str) -> StoreError:
    return StoreError(f"object {key} can't be written: this store is only read")
