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
    """Call `send`, and repeat it after a conflict with another conditional write of the key, a few times at most."""
    # The other write may be an attempt of our own whose answer was lost, and which is still at work. The refusal of a
    # later attempt then tells nothing of other writers.
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
    """`Upload` into S3: one PutObject while the object fits a part, else a multipart upload."""

    def __init__(self, store: BucketStore, bucket: Bucket, key: str) -> None:
        options = bucket.options
        self._full = bucket.full(key)
        super().__init__(bucket.describe(key), options.part_size, options.parts_in_flight, MIN_PART)
        self._store, self._bucket, self._key = store, bucket, key
        # Without checksums the SDK signs bodies, and its signing takes no more bytes than it asks for.
        self._checked = self._generous = options.checksum != "none"
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
        parts = []
        for part in self._sent:
            checksum = checksum_of(self._bucket, part.crc)
            parts.append({"PartNumber": part.number, "ETag": part.tag, **checksum})
        args = {**self._target(), "MultipartUpload": {"Parts": parts}, "IfNoneMatch": "*"}
        if self._checked:
            args |= {"ChecksumCRC64NVME": text_of(crc), "ChecksumType": "FULL_OBJECT"}
            args["MpuObjectSize"] = size

        def send() -> None:
            with self._bucket.asking(self._key, writing=True):
                self._bucket.client.complete_multipart_upload(**args)

        over_conflicts(send)

    def _check_outcome(self, unknown: OutcomeUnknownError, size: int, crc: int) -> None:
        """Compare size and checksum; where the store has no checksum, the etag of the parts."""
        check: dict[str, Any] = {"ChecksumMode": "ENABLED"} if self._checked else {}
        try:
            with self._bucket.asking(self._key):
                head = self._bucket.head(self._full, **check)
        except NotFoundError:
            raise unknown from None
        whole = head.get("ChecksumCRC64NVME") if head.get("ChecksumType") == "FULL_OBJECT" else None
        if head["ContentLength"] != size or whole not in {None, text_of(crc)}:
            raise AlreadyExistsError(f"{self._name} exists already") from unknown
        # The etag of an encrypted object can't be foretold: it may be ours or not.
        if whole is None and head["ETag"].strip('"') != self._etag_of_parts():
            raise unknown

    def _etag_of_parts(self) -> str:
        """Return the etag that S3 gives to an object of these parts; '' if the parts' etags are no MD5 sums."""
        digest = hashlib.md5(usedforsecurity=False)
        try:
            for part in self._sent:
                digest.update(bytes.fromhex(part.tag.strip('"')))
        except ValueError:
            return ""
        return f"{digest.hexdigest()}-{len(self._sent)}"
