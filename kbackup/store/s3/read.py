"""Reading an object's bytes to their end across dropped connections, all from one version of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from http.client import HTTPException, HTTPResponse
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ResponseStreamingError

from kbackup.errors import CorruptError, StoreError
from kbackup.store.base import CHUNK, SHORTER, check_whole
from kbackup.store.s3.bucket import Bucket
from kbackup.store.s3.errors import DROPPED, from_boto

if TYPE_CHECKING:
    from botocore.response import StreamingBody
    from mypy_boto3_s3.type_defs import GetObjectOutputTypeDef

_RESUMES = 5
_FIRST_WAIT = 0.1


class ObjectReading:
    """A range of an object (the whole with `length` None) in chunks of at most `CHUNK` bytes; iterate once.

    With `into`, the chunks are views of that memory, which is filled straight from the socket: the SDK's own reading
    copies everything into bytes first, which took twice the CPU. So this reads from the response of Python's HTTP
    client inside the SDK's, if that is there.

    `etag` is known from the first chunk on. A connection that drops is followed by another request for the rest, at
    most `_RESUMES` times with less than `CHUNK` bytes in between.
    """

    def __init__(
        self, bucket: Bucket, key: str, start: int = 0, length: int | None = None, into: memoryview | None = None
    ) -> None:
        self.etag = ""
        self._bucket = bucket
        self._key = key
        self._full = bucket.full(key)
        self._into, self._start = into, start
        self._at = start
        self._end = None if length is None else start + length

    def __iter__(self) -> Iterator[Any]:
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

    def _request(self) -> Iterator[Any]:
        args = {**self._bucket.common, "Key": self._full}
        if self.etag:
            args["IfMatch"] = self.etag
        if self._end is not None:
            args["Range"] = f"bytes={self._at}-{self._end - 1}"
        elif self._bucket.options.checksum != "none":
            args["ChecksumMode"] = "ENABLED"
        with self._bucket.reading(self._key):
            reply = self._bucket.client.get_object(**args)
        body, size = reply["Body"], reply["ContentLength"]
        try:
            # a cut connection may have taken digits of a length: the first bytes prove that the headers are whole
            chunk = self._chunk(body, min(CHUNK, size)) if size else None
            end = self._expect(reply)
            while chunk is not None:
                self._at += len(chunk)
                yield chunk
                chunk = self._chunk(body, min(CHUNK, end - self._at)) if self._at < end else None
            # all of the range was read: the connection is free for other requests
            if self._into is None:
                with self._bucket.asking(self._key):
                    body.read(1)  # reaching the end checks the checksum as well
            elif _plain_response(body) is not None:
                body._raw_stream.release_conn()  # type: ignore[attr-defined]
        finally:
            body.close()

    def _chunk(self, body: StreamingBody, size: int) -> bytes | memoryview:
        """Return at most `size` next bytes of the body; raise one of `DROPPED` where there are none."""
        if self._into is None:
            return body.read(size)
        at = self._at - self._start
        view = self._into[at : at + size]
        plain = _plain_response(body)
        if plain is None:
            data = body.read(size)
            view[: len(data)] = data
            return view[: len(data)]
        try:
            count = plain.readinto(view)
        except (OSError, HTTPException) as error:
            raise ResponseStreamingError(error=error) from error
        if not count:
            raise ResponseStreamingError(error="the connection was closed")
        return view[:count]

    def _expect(self, reply: GetObjectOutputTypeDef) -> int:
        """Return the offset at which the body must end; check that the answer is for the requested range."""
        size = reply["ContentLength"]
        self.etag = reply["ETag"]
        name = self._bucket.describe(self._key)
        if self._end is None:
            check_whole(name, size, self._bucket.key_class(self._key).largest)
            self._end = size
            return size
        if not reply.get("ContentRange", "").startswith(f"bytes {self._at}-"):
            raise StoreError(f"{name}: the store does not answer ranged reads", "use a store that does")
        if size < self._end - self._at:
            raise CorruptError(f"{name} ends at byte {self._at + size}, wanted up to byte {self._end}", SHORTER)
        return self._end


def _plain_response(body: StreamingBody) -> HTTPResponse | None:
    """Return the HTTP response below the SDK's layers; None if an SDK is built in another way."""
    response = getattr(getattr(body, "_raw_stream", None), "_fp", None)
    return response if isinstance(response, HTTPResponse) else None
