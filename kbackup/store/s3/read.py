"""Reading an object to its end across dropped connections, all from one version of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kbackup.errors import CorruptError, StoreError
from kbackup.store.base import CHUNK
from kbackup.store.s3.bucket import Bucket
from kbackup.store.s3.errors import DROPPED, SHORTER, from_boto

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import GetObjectOutputTypeDef

_RESUMES = 5
_FIRST_WAIT = 0.1


class Reading:
    """A range of an object (the whole with `length` None) as chunks of at most `CHUNK` bytes; iterate once.

    `etag` is known from the first chunk on. A connection that drops is followed by another request for the
    rest, at most `_RESUMES` times with less than `CHUNK` bytes in between.
    """

    def __init__(self, bucket: Bucket, key: str, start: int = 0, length: int | None = None) -> None:
        self.etag = ""
        self._bucket = bucket
        self._key = key
        self._full = bucket.full(key)
        self._at = start
        self._end = None if length is None else start + length

    def __iter__(self) -> Iterator[bytes]:
        failures, resumed_at = 0, self._at
        while self._end is None or self._at < self._end or not self.etag:
            try:
                yield from self._request()
            except DROPPED as error:
                failures = failures + 1 if self._at - resumed_at < CHUNK else 1
                if failures > _RESUMES:
                    raise from_boto(self._bucket.describe(self._key), error, False) from error
                time.sleep(_FIRST_WAIT * 2 ** (failures - 1))
                resumed_at = self._at

    def _request(self) -> Iterator[bytes]:
        with self._bucket.asking(self._key):
            reply = self._bucket.client.get_object(**self._arguments())
        body = reply["Body"]
        try:
            end = self._expect(reply)
            while self._at < end:
                chunk = body.read(min(CHUNK, end - self._at))
                self._at += len(chunk)
                yield chunk
            with self._bucket.asking(self._key):
                body.read(1)  # reaching the end checks the checksum and frees the connection
        finally:
            body.close()

    def _arguments(self) -> dict[str, Any]:
        args = {**self._bucket.common, "Key": self._full}
        if self.etag:
            args["IfMatch"] = self.etag
        if self._end is not None:
            args["Range"] = f"bytes={self._at}-{self._end - 1}"
        elif self._bucket.options.checksum != "none":
            args["ChecksumMode"] = "ENABLED"
        return args

    def _expect(self, reply: GetObjectOutputTypeDef) -> int:
        """Where the body must end; checks that it is the one asked for."""
        size = reply["ContentLength"]
        self.etag = reply["ETag"]
        if self._end is None:
            self._end = size
            return size
        name = self._bucket.describe(self._key)
        if not reply.get("ContentRange", "").startswith(f"bytes {self._at}-"):
            raise StoreError(f"{name}: the store does not answer ranged reads", "use a store that does")
        if size < self._end - self._at:
            raise CorruptError(
                f"{name} ends at byte {self._at + size}, wanted up to byte {self._end}", SHORTER
            )
        return self._end
