"""What stores of objects behind an HTTP service share: how they read and write whole objects, whatever the service."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

from awscrt.checksums import crc64nvme

from kbackup.errors import AlreadyExistsError, OutcomeUnknownError, PreconditionError
from kbackup.store.base import Buffer, Store
from kbackup.store.parts import as_body
from kbackup.store.reading import ObjectReading, read_back

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
        except OutcomeUnknownError as unknown:
            refusal = PreconditionError(f"{self.describe(key)} is another version by now")
            return read_back(self._reading(key), body, unknown, refusal, etag)
