"""A streamed create: one PutObject while it fits a part, else parts sent by a few threads while the caller
goes on."""

from __future__ import annotations

import hashlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self

from awscrt.checksums import combine_crc64nvme, crc64nvme

from kbackup.errors import (
    AlreadyExistsError,
    NotFoundError,
    OutcomeUnknownError,
    PreconditionError,
    StoreError,
)
from kbackup.store.base import Buffer, give_up, view_of
from kbackup.store.options import MIN_PART
from kbackup.store.s3.body import Body, Pieces
from kbackup.store.s3.bucket import Bucket
from kbackup.store.s3.errors import UploadGoneError
from kbackup.store.s3.write import checksum_of, over_conflicts, put_new, text_of

_PARTS_OF_ONE_SIZE = 900
"""Part sizes double after this many: S3's 10,000 parts then hold its largest object (5 TiB) from 5 MiB
parts, also where they are only half full."""


class Part(NamedTuple):
    number: int
    etag: str
    size: int
    crc: int


class S3Upload:
    """`Upload` into S3; holds at most `parts_in_flight` parts that are being sent and the one being
    filled.

    A part ends where a piece ends, if it can, so that a caller's buffer is in one part alone and free when that is
    acknowledged.
    """

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket = bucket
        self._key = key
        self._full = bucket.full(key)
        self._checked = bucket.options.checksum != "none"
        self._open = True
        self._upload_id = ""
        self._pool: ThreadPoolExecutor | None = None
        self._sending: deque[Future[Part]] = deque()
        self._sent: list[Part] = []
        self._part = Pieces()
        self._number = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        give_up(self, error)

    def write(self, data: Buffer) -> None:
        self._check_open()
        left = view_of(data)
        size = len(left)
        while left:
            room = self._part_size - self._part.size
            if len(left) > room and self._part.size >= MIN_PART:
                self._send_part()
                continue
            # below S3's least size a part grows past ours, but for a piece that must be cut anyway
            take = len(left) if len(left) <= self._part_size else room
            self._part.add(left[:take])
            left = left[take:]
        if self._part.size >= max(MIN_PART, self._part_size - size + 1):
            self._send_part()  # no other piece of that size has room: what is sent early is free early

    def commit(self) -> tuple[int, int]:
        self._check_open()
        try:
            size, crc = self._commit_parts() if self._upload_id else self._put()
        except BaseException as error:
            give_up(self, error)
            raise
        self._end()
        return size, crc

    def abort(self) -> None:
        if not self._open:
            return
        self._end()
        if self._upload_id:
            with suppress(UploadGoneError), self._bucket.asking(self._key):
                self._bucket.client.abort_multipart_upload(**self._target())

    def _put(self) -> tuple[int, int]:
        pieces = self._part.views()
        crc = _crc_of(pieces)
        put_new(self._bucket, self._key, b"".join(pieces), crc)
        return self._part.size, crc

    def _commit_parts(self) -> tuple[int, int]:
        if self._part.size:
            self._send_part()
        self._collect(0)
        size = crc = 0
        for part in self._sent:
            size, crc = size + part.size, combine_crc64nvme(crc, part.crc, part.size)
        self._complete(size, crc)
        return size, crc

    def _check_open(self) -> None:
        if not self._open:
            raise StoreError(
                f"the upload of {self._bucket.describe(self._key)} has ended", "start another one"
            )

    def _end(self) -> None:
        """No more of it: parts being sent are waited for, since one that arrives after an abort would
        stay."""
        self._open = False
        self._part = Pieces()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    @property
    def _part_size(self) -> int:
        return self._bucket.options.part_size << ((self._number - 1) // _PARTS_OF_ONE_SIZE)

    def _send_part(self) -> None:
        """Hand the part over to a thread, which owns it from now on; waits while too many are on their
        way."""
        if self._pool is None:
            self._upload_id = self._create()
            self._pool = ThreadPoolExecutor(self._bucket.options.parts_in_flight, "upload")
        self._collect(self._bucket.options.parts_in_flight - 1)
        body = Body(self._part.views(), generous=self._checked)  # else the SDK signs it
        self._sending.append(self._pool.submit(self._send, self._number, body))
        self._part = Pieces()
        self._number += 1

    def _send(self, number: int, body: Body) -> Part:
        try:
            size, crc = len(body), _crc_of(body.pieces)
            sdk_body: Any = body
            args: dict[str, Any] = {**self._target(), **checksum_of(self._bucket, crc)}
            with self._bucket.asking(self._key):
                reply = self._bucket.client.upload_part(**args, PartNumber=number, Body=sdk_body)
        finally:
            body.close()
        return Part(number, reply["ETag"], size, crc)

    def _collect(self, left: int) -> None:
        """Wait until at most `left` parts are on their way; raises what went wrong with one."""
        while len(self._sending) > left:
            self._sent.append(self._sending.popleft().result())

    def _target(self) -> dict[str, Any]:
        return {**self._bucket.common, "Key": self._full, "UploadId": self._upload_id}

    def _create(self) -> str:
        check: dict[str, Any] = (
            {"ChecksumAlgorithm": "CRC64NVME", "ChecksumType": "FULL_OBJECT"} if self._checked else {}
        )
        with self._bucket.asking(self._key):
            reply = self._bucket.client.create_multipart_upload(
                **self._bucket.common,
                **self._bucket.create,
                **self._bucket.retention(self._key),
                **check,
                Key=self._full,
            )
        return reply["UploadId"]

    def _complete(self, size: int, crc: int) -> None:
        name = self._bucket.describe(self._key)
        try:
            over_conflicts(partial(self._send_complete, size, crc))
        except PreconditionError as taken:
            raise AlreadyExistsError(f"{name} exists already") from taken
        except OutcomeUnknownError as unknown:
            self._bucket.reading_back(unknown, partial(self._settle, unknown, size, crc))

    def _send_complete(self, size: int, crc: int) -> None:
        parts = [
            {"PartNumber": part.number, "ETag": part.etag, **checksum_of(self._bucket, part.crc)}
            for part in self._sent
        ]
        args = {**self._target(), "MultipartUpload": {"Parts": parts}, "IfNoneMatch": "*"}
        if self._checked:
            args |= {"ChecksumCRC64NVME": text_of(crc), "ChecksumType": "FULL_OBJECT"}
            args["MpuObjectSize"] = size
        with self._bucket.asking(self._key, writing=True):
            self._bucket.client.complete_multipart_upload(**args)

    def _settle(self, unknown: OutcomeUnknownError, size: int, crc: int) -> None:
        """After a lost answer: return where the object is ours, by size and checksum, or by the etag of our
        parts."""
        check: dict[str, Any] = {"ChecksumMode": "ENABLED"} if self._checked else {}
        try:
            with self._bucket.asking(self._key):
                head = self._bucket.client.head_object(**self._bucket.common, Key=self._full, **check)
        except NotFoundError:
            raise unknown from None
        whole = head.get("ChecksumCRC64NVME") if head.get("ChecksumType") == "FULL_OBJECT" else None
        if head["ContentLength"] != size or whole not in {None, text_of(crc)}:
            raise AlreadyExistsError(f"{self._bucket.describe(self._key)} exists already") from unknown
        if whole is None and head["ETag"].strip('"') != self._etag():
            raise unknown  # an encrypted object's etag can't be foretold: perhaps ours, perhaps not

    def _etag(self) -> str:
        """What S3 calls an object of our parts where their etags are MD5 sums; '' where they are not."""
        try:
            digests = b"".join(bytes.fromhex(part.etag.strip('"')) for part in self._sent)
        except ValueError:
            return ""
        return f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(self._sent)}"


def _crc_of(pieces: list[memoryview]) -> int:
    crc = 0
    for piece in pieces:
        crc = crc64nvme(piece, crc)
    return crc
