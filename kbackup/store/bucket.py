"""What stores of objects behind an HTTP service share: how they read and write whole objects, whatever the service."""

from __future__ import annotations

import builtins
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from xml.etree.ElementTree import ParseError

from awscrt.checksums import crc64nvme

from kbackup.errors import AlreadyExistsError, NotFoundError, OutcomeUnknownError, PreconditionError, StoreError
from kbackup.store.base import Buffer, Failed, ObjectInfo, Store
from kbackup.store.parts import as_body
from kbackup.store.reading import STRANGE_HINT, ObjectReading, read_back

_DELETES_AT_ONCE = 16
# No empty string: a replace of a version without an etag would become a create.
ABSENT = "*"
"""In place of an etag: the object must not exist."""

STRANGE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, ParseError)
"""What reading an answer raises that is cut, that lacks something, or has it in another form."""


def strange_answer(name: str, error: Exception, *, writing: bool) -> StoreError:
    """Return the error for an answer about object `name` that could not be read because of `error`.

    With `writing` the answer was one to a write, which may have taken effect: `OutcomeUnknownError`.
    """
    text = f"{name}: the store's answer can't be read ({type(error).__name__})"
    return OutcomeUnknownError(text) if writing else StoreError(text, STRANGE_HINT)


@contextmanager
def strange_answers(name: str, *, writing: bool = False) -> Iterator[None]:
    """Turn what the block raises in reading an answer about object `name` into the error of `strange_answer`."""
    try:
        yield
    except STRANGE as error:
        raise strange_answer(name, error, writing=writing) from error


def listed_key(store: str, prefix: str, asked: str, name: str) -> str:
    """Return the key of an object that a listing of `asked` in `store` has under `name`, where all names begin with
    `prefix`. `StoreError` for a name that was not asked for: it may belong to another archive."""
    if not name.startswith(prefix + asked):
        raise StoreError(f"{store} lists {name!r}, which does not begin with {prefix + asked!r}", STRANGE_HINT)
    return name[len(prefix) :]


def next_page(store: str, token: str, before: str) -> str:
    """Return the token of a listing's next page. `StoreError` for the token of the page `before` that page: such a
    listing has no end."""
    if token and token == before:
        raise StoreError(f"{store}: a page of the listing is followed by itself", STRANGE_HINT)
    return token


def listed_object(store: str, key: str, size: int, etag: str, modified: float) -> ObjectInfo:
    """Return an entry of a listing, or what a store tells of one object. `StoreError` for a negative size."""
    if size < 0:
        raise StoreError(f"{store}: the store reports a size of {size} bytes of {key!r}", STRANGE_HINT)
    return ObjectInfo(key, size, etag, modified)


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
        """Write the object by one request and return its etag. With `etag` None the object is written whatever is
        there; else `PreconditionError` unless the object has this version, or is missing and `etag` is `ABSENT`.
        `OutcomeUnknownError` if an answer was lost on the way."""

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
            # Some services answer the same if the object is missing: then this raises `NotFoundError`.
            self.stat(key)
            raise
        except OutcomeUnknownError as unknown:
            refusal = PreconditionError(f"{self.describe(key)} was replaced meanwhile")
            return read_back(self._reading(key), body, unknown, refusal, etag)

    def delete(self, keys: Iterable[str]) -> builtins.list[Failed]:
        """Send a request for each key, some at a time: where deletes cost nothing, that is as good as batches."""
        failed: builtins.list[Failed] = []
        remaining = iter(keys)
        with ThreadPoolExecutor(_DELETES_AT_ONCE, "delete") as pool:
            # By batches: a pool takes all of its input at once, and there may be millions of keys.
            while batch := builtins.list(islice(remaining, 1000)):
                failures = pool.map(self._delete, batch)
                failed += [failure for failure in failures if failure is not None]
        return failed

    def _delete(self, key: str) -> Failed | None:
        try:
            self._remove(key)
        except NotFoundError:
            return None
        except StoreError as error:
            return Failed(key, error)
        return None

    def _remove(self, key: str) -> None:
        """Delete the object; `NotFoundError` if it is missing. A store that deletes many at once has no need of it."""
        raise NotImplementedError
