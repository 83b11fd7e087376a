"""Conditional writes of whole objects, and reading back after a write without an answer."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from awscrt.checksums import crc64nvme

from kbackup.errors import AlreadyExistsError, NotFoundError, OutcomeUnknownError, PreconditionError
from kbackup.store.base import Buffer, view_of
from kbackup.store.s3.bucket import Bucket
from kbackup.store.s3.errors import ConflictError
from kbackup.store.s3.read import Reading

T = TypeVar("T")
_CONFLICT_WAITS = (0.1, 0.2, 0.4, 0.8, 1.6)


class Current(NamedTuple):
    """The object under a key after a write without an answer. `ours`: it holds the bytes of that write."""

    ours: bool
    etag: str


def as_body(data: Buffer) -> bytes | bytearray:
    """Return `data` in a type that the SDK takes, copied only where it must be."""
    return data if isinstance(data, (bytes, bytearray)) else bytes(view_of(data))


def checksum_of(bucket: Bucket, crc: int) -> dict[str, Any]:
    """Return the argument that makes the store check a body's CRC-64/NVME."""
    return {} if bucket.options.checksum == "none" else {"ChecksumCRC64NVME": text_of(crc)}


def text_of(crc: int) -> str:
    return base64.b64encode(crc.to_bytes(8, "big")).decode()


def crc_from(text: str) -> int:
    return int.from_bytes(base64.b64decode(text), "big")


def put(bucket: Bucket, key: str, body: bytes | bytearray, crc: int | None = None, **condition: str) -> str:
    """Send one PutObject and return the etag. `OutcomeUnknownError` where an answer was lost on the way."""
    args = {**bucket.common, **bucket.create, **bucket.retention(key), **condition}
    args |= {"Key": bucket.full(key), "Body": body}
    args |= checksum_of(bucket, crc64nvme(body) if crc is None else crc)

    def send() -> str:
        with bucket.asking(key, writing=True):
            return bucket.client.put_object(**args)["ETag"]

    return over_conflicts(send)


def over_conflicts(send: Callable[[], T]) -> T:
    """Call `send`, and repeat it after a conflict with another conditional write of the key, a few times at most."""
    for wait in _CONFLICT_WAITS:
        try:
            return send()
        except ConflictError:
            time.sleep(wait)
    return send()


def put_new(bucket: Bucket, key: str, body: bytes | bytearray, crc: int | None = None) -> str:
    """Create; returns the etag. `AlreadyExistsError` where the key is taken, but not by what we just
    wrote."""
    try:
        return put(bucket, key, body, crc, IfNoneMatch="*")
    except PreconditionError as taken:
        raise AlreadyExistsError(f"{bucket.describe(key)} exists already") from taken
    except OutcomeUnknownError as unknown:
        current = read_back(bucket, key, body, unknown)
        if current is None:
            raise
        if not current.ours:
            raise AlreadyExistsError(f"{bucket.describe(key)} exists already") from unknown
        return current.etag


def read_back(
    bucket: Bucket, key: str, body: bytes | bytearray, unknown: OutcomeUnknownError
) -> Current | None:
    """Return the object under `key`, None if there is none; raise `unknown` if it can't be read."""
    try:
        return bucket.reading_back(unknown, lambda: _compare(bucket, key, body))
    except NotFoundError:
        return None


def _compare(bucket: Bucket, key: str, body: bytes | bytearray) -> Current:
    reading = Reading(bucket, key)
    at, same = 0, True
    for chunk in reading:
        same = same and chunk == body[at : at + len(chunk)]
        at += len(chunk)
        if at > len(body):
            break
    return Current(same and at == len(body), reading.etag)
