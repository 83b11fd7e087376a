"""A store in memory: what `kbackup.store.base` promises without a disk, and the requests that S3 would be asked."""

from __future__ import annotations

import builtins
import threading
import time
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from awscrt.checksums import crc64nvme

from kbackup.errors import AlreadyExistsError, CorruptError, NotFoundError, PreconditionError, StoreError
from kbackup.store.base import (
    CHUNK,
    NO_RETENTION,
    SHORTER,
    Address,
    Buffer,
    Failed,
    ObjectInfo,
    Retention,
    Store,
    Upload,
    check_key,
    view_of,
)


class MemoryUpload(Upload):
    """`Upload` into a `MemoryStore`; `publish` writes the whole object."""

    def __init__(self, key: str, unfinished: list[str], publish: Callable[[str, bytearray], object]) -> None:
        self._key, self._unfinished, self._publish = key, unfinished, publish
        self._data = bytearray()
        self._ended = False
        unfinished.append(key)

    def write(self, data: Buffer) -> None:
        self._check_open()
        self._data += view_of(data)

    def commit(self) -> tuple[int, int]:
        self._check_open()
        self.abort()
        self._publish(self._key, self._data)
        return len(self._data), crc64nvme(self._data)

    def abort(self) -> None:
        if not self._ended:
            self._ended = True
            self._unfinished.remove(self._key)

    def _check_open(self) -> None:
        if self._ended:
            raise StoreError(f"the upload of object {self._key} has ended", "start another one")


LIST_PAGE = 1000  # keys in an answer of S3
_DELETES_A_REQUEST = 1000
_AFTER_SLASH = chr(ord("/") + 1)
_numbers = count(1)
_stores: WeakValueDictionary[int, MemoryStore] = WeakValueDictionary()


class _Object(NamedTuple):
    data: bytes | bytearray
    etag: str
    modified: float


class MemoryStore(Store):
    """`Store` that lives as long as its process; a pickled one is the same store there, and an error elsewhere.

    Like a directory, it refuses a key that is the folder of another one, and keeps no checksums. `requests` counts
    'GET' (HEAD included), 'PUT', 'LIST' and 'DELETE'; `written` the bytes; `unfinished` has the keys of uploads that
    have not ended. `clock` tells the objects' modification times, in seconds since the epoch.
    """

    def __init__(self, url: str = "", clock: Callable[[], float] = time.time) -> None:
        self._number = next(_numbers)
        self.url = url or f"memory://{self._number}"
        self.requests: Counter[str] = Counter()
        self.written = 0
        self.unfinished: builtins.list[str] = []
        self._clock = clock
        self._objects: dict[str, _Object] = {}
        self._keys: builtins.list[str] = []  # sorted: code point order of `str` is UTF-8 binary order
        self._versions = count(1)
        self._lock = threading.Lock()
        _stores[self._number] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return _of_number, (self._number,)

    @property
    def address(self) -> Address:
        return Address("memory", (self.url,))

    def copy(self) -> MemoryStore:
        """Another store with the same objects, their etags and times."""
        made = MemoryStore(clock=self._clock)
        with self._lock:
            made._objects, made._keys = dict(self._objects), [*self._keys]
            made._versions = count(next(self._versions))
        return made

    def take(self, other: MemoryStore) -> None:
        """Hold the objects of another store, as if the last of them was written now."""
        later = self._clock() - max(found.modified for found in other._objects.values())
        self._objects = {k: found._replace(modified=found.modified + later) for k, found in other._objects.items()}
        self._keys, self._versions = [*other._keys], count(len(other._keys) * 10)
        self.requests["PUT"] += len(self._keys)

    def age(self, prefix: str, seconds: float) -> None:
        """Make the objects whose keys start with `prefix` that much older."""
        with self._lock:
            for key, found in self._objects.items():
                if key.startswith(prefix):
                    self._objects[key] = found._replace(modified=found.modified - seconds)

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        found = self._asked(key)
        return bytes(found.data), found.etag

    def open_range(self, key: str, start: int, length: int) -> Iterator[bytes]:
        return (bytes(piece) for piece in self._pieces(key, start, length))

    def fill(self, key: str, start: int, into: memoryview) -> Iterator[memoryview]:
        at = 0
        for piece in self._pieces(key, start, len(into)):
            into[at : at + len(piece)] = piece
            at += len(piece)
            yield into[at - len(piece) : at]

    def put(self, key: str, data: Buffer) -> str:
        return self._write(key, bytes(view_of(data)))

    def put_new(self, key: str, data: Buffer) -> str:
        return self._write(key, bytes(view_of(data)), self._check_free)

    def replace(self, key: str, data: Buffer, etag: str) -> str:
        def check(key: str) -> None:
            if self._object(key).etag != etag:
                raise PreconditionError(f"object {key} was replaced meanwhile")

        return self._write(key, bytes(view_of(data)), check)

    def upload(self, key: str) -> MemoryUpload:
        return MemoryUpload(check_key(key), self.unfinished, self._publish)

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
        while True:
            with self._lock:
                self.requests["LIST"] += 1
                first = max(bisect_left(self._keys, prefix), bisect_right(self._keys, start_after))
                keys = [k for k in self._keys[first : first + LIST_PAGE + 1] if k.startswith(prefix)]
                page = [_info(key, self._objects[key]) for key in keys[:LIST_PAGE]]
            yield from page
            if len(keys) <= LIST_PAGE:
                return
            start_after = page[-1].key

    def list_dirs(self, prefix: str = "") -> Iterator[str]:
        with self._lock:
            parts = [*self._next_parts(prefix)]
            self.requests["LIST"] += max(1, -(-len(parts) // LIST_PAGE))
        yield from (part[:-1] for part in parts if part.endswith("/"))

    def stat(self, key: str) -> ObjectInfo:
        return _info(key, self._asked(key))

    def checksum(self, key: str) -> int | None:
        """None is kept."""
        self.stat(key)
        return None

    def retention(self, key: str) -> Retention:
        """Return `NO_RETENTION`: nothing outlives a deletion."""
        self.stat(key)
        return NO_RETENTION

    def deleted_versions(self, key: str) -> builtins.list[Retention] | None:
        return []

    def delete(self, keys: Iterable[str]) -> builtins.list[Failed]:
        failed: builtins.list[Failed] = []
        for number, key in enumerate(keys):
            with self._lock:
                self.requests["DELETE"] += number % _DELETES_A_REQUEST == 0
                try:
                    check_key(key)
                except StoreError as error:
                    failed.append(Failed(key, error))
                if self._objects.pop(key, None) is not None:
                    del self._keys[bisect_left(self._keys, key)]
        return failed

    def _asked(self, key: str) -> _Object:
        with self._lock:
            self.requests["GET"] += 1
            return self._object(key)

    def _object(self, key: str) -> _Object:
        try:
            return self._objects[key]
        except KeyError:
            raise NotFoundError(f"object {check_key(key)} does not exist") from None

    def _pieces(self, key: str, start: int, length: int) -> Iterator[memoryview]:
        if not length:
            return
        end = start + length
        cuts = self._asked(key)
        data = memoryview(cuts.data)[start:end]
        for at in range(0, len(data), CHUNK):
            yield data[at : at + CHUNK]
        if len(data) < length:
            raise CorruptError(f"object {key} has {len(cuts.data)} bytes, wanted up to byte {end}", SHORTER)

    def _next_parts(self, prefix: str) -> Iterator[str]:
        """Yield the names that follow `prefix` in keys, up to a '/', each once."""
        at = bisect_left(self._keys, prefix)
        while at < len(self._keys) and self._keys[at].startswith(prefix):
            name, slash, _ = self._keys[at].removeprefix(prefix).partition("/")
            yield name + slash
            at = bisect_left(self._keys, prefix + name + _AFTER_SLASH) if slash else at + 1

    def _write(self, key: str, data: bytes | bytearray, check: Callable[[str], None] | None = None) -> str:
        with self._lock:
            self.requests["PUT"] += 1
            if check is not None:
                check(key)
            if key not in self._objects:
                self._check_folders(check_key(key))
                insort(self._keys, key)
            self.written += len(data)
            etag = str(next(self._versions))
            self._objects[key] = _Object(data, etag, self._clock())
            return etag

    def _publish(self, key: str, data: bytearray) -> None:
        self._write(key, data, self._check_free)

    def _check_free(self, key: str) -> None:
        if key in self._objects:
            raise AlreadyExistsError(f"object {key} exists already")

    def _check_folders(self, key: str) -> None:
        hint = "use another key: no object's key can be the folder of another object's key"
        below = bisect_left(self._keys, f"{key}/")
        if below < len(self._keys) and self._keys[below].startswith(f"{key}/"):
            raise StoreError(f"object {key} can't be written: it is a folder of {self._keys[below]}", hint)
        parts = key.split("/")
        for end in range(1, len(parts)):
            folder = "/".join(parts[:end])
            if folder in self._objects:
                raise StoreError(f"object {key} can't be written: {folder} is an object", hint)


def _info(key: str, entry: _Object) -> ObjectInfo:
    return ObjectInfo(key, len(entry.data), entry.etag, entry.modified)


def open_memory(url: str) -> MemoryStore:
    """The store at `memory://<number>`."""
    return _of_number(int(url.removeprefix("memory://")))


def _of_number(number: int) -> MemoryStore:
    try:
        return _stores[number]
    except KeyError:
        raise StoreError(f"store memory://{number} is not in this process", "open it where it was made") from None
