"""Reading an object of a bucket."""

from __future__ import annotations

from typing import Any

from kbackup.store.bucket import strange_answers
from kbackup.store.reading import AnswerBody, DroppedError, ObjectReading, ReadAnswer
from kbackup.store.s3.bucket import Bucket
from kbackup.store.s3.errors import DROPPED


class S3Reading(ObjectReading):
    """`ObjectReading` of the object `key`."""

    dropped = (DroppedError, *DROPPED)

    def __init__(
        self, bucket: Bucket, key: str, start: int = 0, length: int | None = None, into: memoryview | None = None
    ) -> None:
        self._full = bucket.full(key)
        super().__init__(bucket.describe(key), bucket.key_class(key).largest, start, length, into)
        self._bucket = bucket
        self._key = key

    def _ask(self) -> ReadAnswer:
        args: dict[str, Any] = {**self._bucket.common, "Key": self._full}
        if self.etag:
            args["IfMatch"] = self.etag
        if self._end is not None:
            args["Range"] = f"bytes={self._at}-{self._end - 1}"
        elif self._bucket.options.checksum != "none":
            args["ChecksumMode"] = "ENABLED"
        with self._bucket.reading(self._key):
            reply = self._bucket.client.get_object(**args)
        body = reply["Body"]
        stream = getattr(body, "_raw_stream", None)
        with strange_answers(self._name):
            return ReadAnswer(reply["ETag"], reply["ContentLength"], reply.get("ContentRange", ""), body, stream)

    def _finish(self, body: AnswerBody) -> None:
        # The SDK compares the checksum when it reaches the end of the body.
        with self._bucket.asking(self._key):
            super()._finish(body)
