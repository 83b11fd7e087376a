"""A store in memory that counts the requests which S3 would be asked: what a driver does at sizes no disk here has."""

from __future__ import annotations

import builtins
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import count
from threading import Lock

from kbackup.errors import AlreadyExistsError, NotFoundError, PreconditionError, StoreError
from kbackup.store.base import CHUNK, Buffer, Failed, ObjectInfo, Upload, check_key, view_of
from scripts.bench.model import LIST_PAGE

_DELETES_A_REQUEST = 1000


class MemoryStore:
    """`Store` as far as plans and commits go (no streamed uploads). `requests` counts 'GET' (HEAD included), 'PUT',
    'LIST' and 'DELETE'; `written` the bytes."""

    url = "memory://"

    def __init__(self) -> None:
        self._objects: dict[str, tuple[bytes, str, float]] = {}
        self._versions = count(1)
        self._lock = Lock()
        self.requests: Counter[str] = Counter()
        self.written = 0

    def get(self, key: str) -> bytes:
        return self.get_with_etag(key)[0]

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        with self._lock:
            self.requests["GET"] += 1
            data, etag, _ = self._object(key)
        return data, etag

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self.get(key)[start : start + length]

    def open_range(self, key: str, start: int, length: int) -> Iterator[bytes]:
        data = self.get_range(key, start, length)
        yield from (data[at : at + CHUNK] for at in range(0, len(data), CHUNK))

    def fill(self, key: str, start: int, into: memoryview) -> Iterator[memoryview]:
        into[:] = self.get_range(key, start, len(into))
        yield into

    def put(self, key: str, data: Buffer) -> str:
        with self._lock:
            return self._write(key, data)

    def put_new(self, key: str, data: Buffer) -> str:
        with self._lock:
            if key in self._objects:
                self.requests["PUT"] += 1
                raise AlreadyExistsError(f"object {key} exists already")
            return self._write(key, data)

    def replace(self, key: str, data: Buffer, etag: str) -> str:
        with self._lock:
            if self._object(key)[1] != etag:
                self.requests["PUT"] += 1
                raise PreconditionError(f"object {key} is another version by now")
            return self._write(key, data)

    def upload(self, key: str) -> Upload:
        raise StoreError(
            f"object {key} can't be streamed here", "segments are only described in a simulation"
        )

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
        with self._lock:
            keys = sorted(key for key in self._objects if key.startswith(prefix) and key > start_after)
            self.requests["LIST"] += max(1, -(-len(keys) // LIST_PAGE))
            found = [self._info(key) for key in keys]
        yield from found

    def list_dirs(self, prefix: str = "") -> Iterator[str]:
        inside = (info.key.removeprefix(prefix) for info in self.list(prefix))
        yield from dict.fromkeys(key.partition("/")[0] for key in inside if "/" in key)

    def stat(self, key: str) -> ObjectInfo:
        with self._lock:
            self.requests["GET"] += 1
            return self._info(key)

    def checksum(self, key: str) -> int | None:
        self.stat(key)
        return None

    def delete(self, keys: Iterable[str]) -> builtins.list[Failed]:
        with self._lock:
            going = builtins.list(keys)
            self.requests["DELETE"] += -(-len(going) // _DELETES_A_REQUEST)
            for key in going:
                self._objects.pop(key, None)
        return []

    def _object(self, key: str) -> tuple[bytes, str, float]:
        try:
            return self._objects[key]
        except KeyError:
            raise NotFoundError(f"object {key} is not there") from None

    def _info(self, key: str) -> ObjectInfo:
        data, etag, modified = self._object(key)
        return ObjectInfo(key, len(data), etag, modified)

    def _write(self, key: str, data: Buffer) -> str:
        self.requests["PUT"] += 1
        kept, etag = bytes(view_of(data)), str(next(self._versions))
        self.written += len(kept)
        self._objects[check_key(key)] = (kept, etag, time.time())
        return etag
