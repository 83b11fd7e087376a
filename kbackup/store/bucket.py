"""What stores of objects behind an HTTP service share: how they read and write whole objects, whatever the service."""

from __future__ import annotations

import builtins
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from awscrt.checksums import crc64nvme

from kbackup.errors import AlreadyExistsError, NotFoundError, OutcomeUnknownError, PreconditionError, StoreError
from kbackup.store.base import Buffer, Failed, Store
from kbackup.store.parts import as_body
from kbackup.store.reading import ObjectReading, read_back

_DELETES_AT_ONCE = 16
ABSENT = "*"
"""In place of an etag: the object must not exist."""


class BucketStore(Store):
    """`Store` of objects in a bucket: a subclass makes the requests."""

    @abstractmethod
    def describe(self, key: str = "") -> str:
        """Return the name of the object, or the store, in messages."""

    @abstractmethod
    def _reading(
        self, key: str, start: int = 0, length: int | None = None, into: memoryview | None = None
    ) -> ObjectReading:
        """Return a reading of the object; no request is made yet."""

    @abstractmethod
    def _put(self, key: str, body: bytes | bytearray, crc: int, etag: str | None) -> str:
        """Write the object by one request and return its etag. `etag` None: whatever is there; else
        `PreconditionError` unless the object has this version, or is `ABSENT`. `OutcomeUnknownError` if an answer was
        lost on the way."""

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        reading = self._reading(key)
        return b"".join(reading), reading.etag

    def open_range(self, key: str, start: int, length: int) -> Iterator[bytes]:
        if length > 0:
            yield from self._reading(key, start, length)

    def fill(self, key: str, start: int, into: memoryview) -> Iterator[memoryview]:
        if into:
            yield from self._reading(key, start, len(into), into)

    def put(self, key: str, data: Buffer) -> str:
        body = as_body(data)
        try:
            return self._put(key, body, crc64nvme(body), None)
        except OutcomeUnknownError as unknown:
            return read_back(self._reading(key), body, unknown)

    def put_new(self, key: str, data: Buffer) -> str:
        body = as_body(data)
        return self.create(key, body, crc64nvme(body))

    def create(self, key: str, body: bytes | bytearray, crc: int) -> str:
        """`put_new` of a body whose CRC-64/NVME is known."""
        taken = AlreadyExistsError(f"{self.describe(key)} exists already")
        try:
            return self._put(key, body, crc, ABSENT)
        except PreconditionError as refused:
            raise taken from refused
        except OutcomeUnknownError as unknown:
            return read_back(self._reading(key), body, unknown, taken)

    def replace(self, key: str, data: Buffer, etag: str) -> str:
        body = as_body(data)
        try:
            return self._put(key, body, crc64nvme(body), etag)
        except PreconditionError:
            self.stat(key)  # some services tell a missing object by the same answer
            raise
        except OutcomeUnknownError as unknown:
            refusal = PreconditionError(f"{self.describe(key)} is another version by now")
            return read_back(self._reading(key), body, unknown, refusal, etag)

    def delete(self, keys: Iterable[str]) -> builtins.list[Failed]:
        """Send a request for each key, some at a time: where it costs nothing, that is as good as batches."""
        failed: builtins.list[Failed] = []
        remaining = iter(keys)
        with ThreadPoolExecutor(_DELETES_AT_ONCE, "delete") as pool:
            while batch := [*islice(remaining, 1000)]:
                failed += filter(None, pool.map(self._delete, batch))
        return failed

    def _delete(self, key: str) -> Failed | None:
        try:
            self._remove(key)
        except StoreError as error:
            return None if isinstance(error, NotFoundError) else Failed(key, error)
        return None

    def _remove(self, key: str) -> None:
        """Delete the object; `NotFoundError` if it is missing. A store that deletes many at once has no need of it."""
        raise NotImplementedError
