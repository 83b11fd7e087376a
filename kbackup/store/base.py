"""The store: a flat space of immutable-or-replaced byte objects under '/'-separated keys.

Semantics, stated once; `tests/contract` runs them on every implementation.

- Keys are non-empty relative paths without empty, '.' or '..' parts. Key bytes are UTF-8; S3's limit (1,024 bytes) holds.
- Every write is atomic: a reader sees the old object, the new one or none, never a part.
- A method that returned has made its write durable.
- `NotFoundError`, `AlreadyExistsError`, `PreconditionError`, `DeniedError` mean what they say. `UnreachableError`: the
  store could not be asked at all or answered nothing useful after the retries. `OutcomeUnknownError`: a write was sent and
  no answer came; it may have taken effect: read back.
- An `etag` is an opaque version of an object: equal etags mean equal bytes.
- Implementations are thread-safe and can be pickled (clients are made lazily in the process that uses them).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from kbackup.errors import StoreError
from kbackup.types import Bytes

Buffer = bytes | bytearray | memoryview | Bytes


class ObjectInfo(NamedTuple):
    """`modified` is in seconds since the epoch by the store's clock."""

    key: str
    size: int
    etag: str
    modified: float


class Failed(NamedTuple):
    """A key that could not be deleted, and why."""

    key: str
    error: StoreError


class Upload(Protocol):
    """A streamed create-if-absent of unknown size; nothing is visible before `commit` returned.

    A context manager: leaving it without `commit` aborts and leaves nothing behind.
    """

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def write(self, data: Buffer) -> None:
        """Take `data`; the caller may reuse the buffer when this returns. Bounded memory: blocks while parts are in flight."""
        ...

    def commit(self) -> tuple[int, int]:
        """Publish; returns (size in bytes, CRC-64/NVME of all bytes). `AlreadyExistsError` where the key is taken."""
        ...

    def abort(self) -> None:
        """Give up; idempotent."""
        ...


class Store(Protocol):
    @property
    def url(self) -> str:
        """Where it is, without secrets, as the user wrote it."""
        ...

    def get(self, key: str) -> bytes: ...

    def get_with_etag(self, key: str) -> tuple[bytes, str]: ...

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Exactly `length` bytes from `start`; `CorruptError` where the object is shorter."""
        ...

    def put(self, key: str, data: Buffer) -> str:
        """Create or replace; returns the etag."""
        ...

    def put_new(self, key: str, data: Buffer) -> str:
        """Create; `AlreadyExistsError` where the key is taken (by other bytes, when an answer had been lost on the way)."""
        ...

    def replace(self, key: str, data: Buffer, etag: str) -> str:
        """Replace the version `etag`; `PreconditionError` where it is another, `NotFoundError` where there is none."""
        ...

    def upload(self, key: str) -> Upload: ...

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix` (a plain string, not a folder) and is greater than `start_after`, in
        UTF-8 binary order of keys, lazily."""
        ...

    def list_dirs(self, prefix: str = "") -> Iterator[str]:
        """The distinct next path parts after `prefix` ('' or ending in '/'), in order, for keys with more parts to come."""
        ...

    def stat(self, key: str) -> ObjectInfo: ...

    def delete(self, keys: Iterable[str]) -> list[Failed]:
        """Delete; a key that is not there counts as deleted. Returns each failure; never raises for one key."""
        ...
