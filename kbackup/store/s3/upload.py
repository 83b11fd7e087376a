"""Writing objects of a bucket: by one request, or in parts."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from kbackup.errors import AlreadyExistsError, NotFoundError, OutcomeUnknownError, PreconditionError
from kbackup.store.bucket import BucketStore
from kbackup.store.parts import Body, PartsUpload
from kbackup.store.s3 import MIN_PART
from kbackup.store.s3.bucket import Bucket, may_be_done
from kbackup.store.s3.errors import ConflictError, NoSuchUploadError, unless_lost

_CONFLICT_WAITS = (0.1, 0.2, 0.4, 0.8, 1.6)

T = TypeVar("T")


def checksum_of(bucket: Bucket, crc: int) -> dict[str, Any]:
    """Return the argument that makes the store check a body's CRC-64/NVME."""
    return {} if bucket.options.checksum == "none" else {"ChecksumCRC64NVME": text_of(crc)}


def text_of(crc: int) -> str:
    return base64.b64encode(crc.to_bytes(8, "big")).decode()


def crc_from(text: str) -> int:
    return int.from_bytes(base64.b64decode(text), "big")


def put(bucket: Bucket, key: str, body: bytes | bytearray, crc: int, **condition: str) -> str:
    """Send one PutObject and return the etag. `OutcomeUnknownError` if an answer was lost on the way."""
    args = {**bucket.common, **bucket.create, **bucket.retention(key), **condition}
    args |= {"Key": bucket.full(key), "Body": body}
    args |= checksum_of(bucket, crc)

    def send() -> str:
        with bucket.asking(key, writing=True):
            return bucket.client.put_object(**args)["ETag"]

    return over_conflicts(send)


def over_conflicts(send: Callable[[], T]) -> T:
    """Call `send`, and repeat it after a conflict with another conditional write of the key, a few times at most. That
    may be an attempt of our own whose answer was lost: the refusal of a later one then tells nothing."""
    lost = False
    for wait in (*_CONFLICT_WAITS, None):
        try:
            return send()
        except ConflictError as conflict:
            lost = lost or may_be_done()
            if wait is None:
                raise unless_lost(conflict, lost) from conflict
            time.sleep(wait)
        except PreconditionError as refused:
            raise unless_lost(refused, lost) from refused
    raise AssertionError("nothing was sent")


class S3Upload(PartsUpload):
    """`Upload` into S3: one PutObject while it fits a part, else a multipart upload."""

    def __init__(self, store: BucketStore, bucket: Bucket, key: str) -> None:
        options = bucket.options
        self._full = bucket.full(key)
        super().__init__(bucket.describe(key), options.part_size, options.parts_in_flight, MIN_PART)
        self._store, self._bucket, self._key = store, bucket, key
        self._checked = self._generous = options.checksum != "none"  # else the SDK signs bodies
        self._upload_id = ""

    def _begin(self) -> None:
        bucket = self._bucket
        args = {**bucket.common, **bucket.create, **bucket.retention(self._key), "Key": self._full}
        if self._checked:
            args |= {"ChecksumAlgorithm": "CRC64NVME", "ChecksumType": "FULL_OBJECT"}
        with bucket.asking(self._key):
            self._upload_id = bucket.client.create_multipart_upload(**args)["UploadId"]

    def _send(self, number: int, body: Body, crc: int) -> str:
        sdk_body: Any = body
        args: dict[str, Any] = {**self._target(), **checksum_of(self._bucket, crc)}
        with self._bucket.asking(self._key):
            return self._bucket.client.upload_part(**args, PartNumber=number, Body=sdk_body)["ETag"]

    def _put_whole(self, body: bytes, crc: int) -> None:
        self._store.create(self._key, body, crc)

    def _discard(self) -> None:
        with suppress(NoSuchUploadError), self._bucket.asking(self._key):
            self._bucket.client.abort_multipart_upload(**self._target())

    def _target(self) -> dict[str, Any]:
        return {**self._bucket.common, "Key": self._full, "UploadId": self._upload_id}

    def _complete(self, size: int, crc: int) -> None:
        parts = [
            {"PartNumber": part.number, "ETag": part.tag, **checksum_of(self._bucket, part.crc)} for part in self._sent
        ]
        args = {**self._target(), "MultipartUpload": {"Parts": parts}, "IfNoneMatch": "*"}
        if self._checked:
            args |= {"ChecksumCRC64NVME": text_of(crc), "ChecksumType": "FULL_OBJECT"}
            args["MpuObjectSize"] = size

        def send() -> None:
            with self._bucket.asking(self._key, writing=True):
                self._bucket.client.complete_multipart_upload(**args)

        over_conflicts(send)

    def _check_outcome(self, unknown: OutcomeUnknownError, size: int, crc: int) -> None:
        """By the etag of the parts where the store has no checksum."""
        check: dict[str, Any] = {"ChecksumMode": "ENABLED"} if self._checked else {}
        try:
            with self._bucket.asking(self._key):
                head = self._bucket.head(self._full, **check)
        except NotFoundError:
            raise unknown from None
        whole = head.get("ChecksumCRC64NVME") if head.get("ChecksumType") == "FULL_OBJECT" else None
        if head["ContentLength"] != size or whole not in {None, text_of(crc)}:
            raise AlreadyExistsError(f"{self._name} exists already") from unknown
        if whole is None:
            ours = ""  # an encrypted object's etag can't be foretold: perhaps ours, perhaps not
            with suppress(ValueError):  # the etags of the parts are no MD5 sums
                digests = b"".join(bytes.fromhex(part.tag.strip('"')) for part in self._sent)
                ours = f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(self._sent)}"
            if head["ETag"].strip('"') != ours:
                raise unknown
