"""Upload objects in parts, from views of the callers' memory that reach the socket without a copy."""

from __future__ import annotations

import base64
import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

from awscrt.checksums import combine_crc64nvme, crc64nvme

from kbackup.errors import (
    AlreadyExistsError,
    DeniedError,
    NotFoundError,
    OutcomeUnknownError,
    PreconditionError,
    StoreError,
    UnreachableError,
)
from kbackup.store.base import Buffer, Upload, view_of
from kbackup.store.s3 import MIN_PART
from kbackup.store.s3.bucket import Bucket
from kbackup.store.s3.errors import ConflictError, NoSuchUploadError
from kbackup.store.s3.read import ObjectReading

SMALL = 1 << 16
"""Smaller views are copied together: a copy costs less than a system call for each."""
_SENT_AT_ONCE = 1 << 18
"""The socket's timeout is for each of these. Larger ones took no less CPU; the 16 KiB that the SDK asks for took
a lock and a system call each."""


_CONFLICT_WAITS = (0.1, 0.2, 0.4, 0.8, 1.6)
_PARTS_OF_ONE_SIZE = 900
"""Part sizes double after this many: S3's 10,000 parts then hold its largest object (5 TiB) from 5 MiB parts, also
where they are only half full."""

T = TypeVar("T")


class PartBuffer:
    """The bytes of one upload part: views of the callers' memory, and copies of small ones."""

    def __init__(self) -> None:
        self.size = 0
        self._buffers: list[memoryview | bytearray] = []

    def add(self, view: memoryview) -> None:
        self.size += len(view)
        if len(view) >= SMALL:
            self._buffers.append(view)
        elif self._buffers and isinstance(last := self._buffers[-1], bytearray):
            last += view
        else:
            self._buffers.append(bytearray(view))

    def views(self) -> list[memoryview]:
        """Return views of all bytes. Nothing can be added while the views exist."""
        return [memoryview(buffer) for buffer in self._buffers]


class Body:
    """Views of memory as a file for the SDK: `read` returns views.

    With `generous` a view may have more bytes than were asked for, as many as one send takes well. The SDK's sending
    allows that, its signing of bodies does not. A closed body holds no views: the SDK's request objects live on in
    reference cycles.
    """

    def __init__(self, views: list[memoryview], *, generous: bool) -> None:
        self.views = views
        self._least = _SENT_AT_ONCE if generous else 0
        self._starts = list(accumulate(map(len, views), initial=0))
        self._at = self._index = 0

    def __len__(self) -> int:
        return self._starts[-1]

    def read(self, size: int | None = -1) -> memoryview | bytes:
        if size is None or size < 0:
            return b"".join(iter(lambda: self._next(_SENT_AT_ONCE), b""))
        return self._next(max(size, self._least))

    def _next(self, size: int) -> memoryview | bytes:
        while self._index < len(self.views):
            view = self.views[self._index]
            start = self._at - self._starts[self._index]
            if start < len(view):
                chunk = view[start : start + size]
                self._at += len(chunk)
                return chunk
            self._index += 1
        return b""

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to the start of a retry, or to the end."""
        origin = (0, self._at, len(self))[whence]
        self._at, self._index = origin + offset, 0
        return self._at

    def close(self) -> None:
        self.views, self._starts, self._at, self._index = [], [0], 0, 0


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
    """Send one PutObject and return the etag. `OutcomeUnknownError` if an answer was lost on the way."""
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
    """Create; returns the etag. `AlreadyExistsError` if the key is taken, but not by what we just wrote."""
    try:
        return put(bucket, key, body, crc, IfNoneMatch="*")
    except PreconditionError as taken:
        raise AlreadyExistsError(f"{bucket.describe(key)} exists already") from taken
    except OutcomeUnknownError as unknown:
        return read_back(bucket, key, body, unknown, AlreadyExistsError(f"{bucket.describe(key)} exists already"))


def read_back(
    bucket: Bucket,
    key: str,
    body: bytes | bytearray,
    unknown: OutcomeUnknownError,
    refusal: StoreError | None = None,
    before: str = "",
) -> str:
    """Return the etag of the object under `key` if it holds the bytes of the write without an answer.

    Raise `refusal` if there is another object, which shows that the write was refused: any but the version `before`.
    Raise `unknown` if nothing shows it.
    """
    etag, ours = before, False
    with suppress(NotFoundError), _reading_back(unknown):
        reading = ObjectReading(bucket, key)
        at, same = 0, True
        for chunk in reading:
            same = same and chunk == body[at : at + len(chunk)]
            at += len(chunk)
            if at > len(body):
                break
        etag, ours = reading.etag, same and at == len(body)
    if ours:
        return etag
    if refusal is None or etag == before:
        raise unknown
    raise refusal from unknown


@contextmanager
def _reading_back(unknown: OutcomeUnknownError) -> Iterator[None]:
    """Find the outcome of a write without an answer; raise `unknown` if the store can't be read."""
    try:
        yield
    except (UnreachableError, DeniedError) as failed:
        unknown.add_note(f"reading back failed as well: {failed}")
        raise unknown from failed


class UploadPart(NamedTuple):
    number: int
    etag: str
    size: int
    crc: int


class S3Upload(Upload):
    """`Upload` into S3: one PutObject while it fits a part, else parts sent by a few threads while the caller goes on.
    It holds at most `parts_in_flight` parts that are being sent and the one being filled.

    A part ends at the end of a caller's buffer if it can. Then the buffer is in one part alone, and free when the store
    has acknowledged that part.
    """

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket = bucket
        self._key = key
        self._name = bucket.describe(key)
        self._full = bucket.full(key)
        self._checked = bucket.options.checksum != "none"
        self._upload_id = ""
        self._pool: ThreadPoolExecutor | None = None
        self._sending: deque[Future[UploadPart]] = deque()
        self._sent: list[UploadPart] = []
        self._part = PartBuffer()
        self._number = 1

    def write(self, data: Buffer) -> None:
        self._check_open()
        view = view_of(data)
        size = len(view)
        while view:
            room = self._part_size - self._part.size
            if len(view) > room and self._part.size >= MIN_PART:
                self._send_part()
                continue
            # below S3's least size a part grows past ours, but for data that must be cut anyway
            count = len(view) if len(view) <= self._part_size else room
            self._part.add(view[:count])
            view = view[count:]
        if self._part.size >= max(MIN_PART, self._part_size - size + 1):
            self._send_part()  # no other buffer of that size has room: a part that is sent early is free early

    def commit(self) -> tuple[int, int]:
        with self._committing():
            if self._upload_id:
                if self._part.size:
                    self._send_part()
                self._collect(0)
                size = crc = 0
                for part in self._sent:
                    size, crc = size + part.size, combine_crc64nvme(crc, part.crc, part.size)
                self._complete(size, crc)
            else:
                views = self._part.views()
                size, crc = self._part.size, _crc_of(views)
                put_new(self._bucket, self._key, b"".join(views), crc)
        self._end()
        return size, crc

    def abort(self) -> None:
        if not self._open:
            return
        self._end()
        if self._upload_id:
            with suppress(NoSuchUploadError), self._bucket.asking(self._key):
                self._bucket.client.abort_multipart_upload(**self._target())

    def _end(self) -> None:
        """Release the buffers, and wait for parts in flight: a part that arrives after an abort would stay."""
        self._open = False
        self._part = PartBuffer()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    @property
    def _part_size(self) -> int:
        return self._bucket.options.part_size << ((self._number - 1) // _PARTS_OF_ONE_SIZE)

    def _send_part(self) -> None:
        """Hand the part over to a thread, which owns it from now on; wait while too many are in flight."""
        bucket = self._bucket
        if self._pool is None:
            args = {**bucket.common, **bucket.create, **bucket.retention(self._key), "Key": self._full}
            if self._checked:
                args |= {"ChecksumAlgorithm": "CRC64NVME", "ChecksumType": "FULL_OBJECT"}
            with bucket.asking(self._key):
                self._upload_id = bucket.client.create_multipart_upload(**args)["UploadId"]
            self._pool = ThreadPoolExecutor(bucket.options.parts_in_flight, "upload")
        self._collect(bucket.options.parts_in_flight - 1)
        body = Body(self._part.views(), generous=self._checked)  # else the SDK signs it
        self._sending.append(self._pool.submit(self._send, self._number, body))
        self._part = PartBuffer()
        self._number += 1

    def _send(self, number: int, body: Body) -> UploadPart:
        try:
            size, crc = len(body), _crc_of(body.views)
            sdk_body: Any = body
            args: dict[str, Any] = {**self._target(), **checksum_of(self._bucket, crc)}
            with self._bucket.asking(self._key):
                reply = self._bucket.client.upload_part(**args, PartNumber=number, Body=sdk_body)
        finally:
            body.close()
        return UploadPart(number, reply["ETag"], size, crc)

    def _collect(self, most_in_flight: int) -> None:
        """Wait until at most `most_in_flight` parts are in flight; raise the error of a part that failed."""
        while len(self._sending) > most_in_flight:
            self._sent.append(self._sending.popleft().result())

    def _target(self) -> dict[str, Any]:
        return {**self._bucket.common, "Key": self._full, "UploadId": self._upload_id}

    def _complete(self, size: int, crc: int) -> None:
        parts = [
            {"PartNumber": part.number, "ETag": part.etag, **checksum_of(self._bucket, part.crc)} for part in self._sent
        ]
        args = {**self._target(), "MultipartUpload": {"Parts": parts}, "IfNoneMatch": "*"}
        if self._checked:
            args |= {"ChecksumCRC64NVME": text_of(crc), "ChecksumType": "FULL_OBJECT"}
            args["MpuObjectSize"] = size

        def send() -> None:
            with self._bucket.asking(self._key, writing=True):
                self._bucket.client.complete_multipart_upload(**args)

        try:
            over_conflicts(send)
        except PreconditionError as taken:
            raise AlreadyExistsError(f"{self._name} exists already") from taken
        except OutcomeUnknownError as unknown:
            with _reading_back(unknown):
                self._check_outcome(unknown, size, crc)

    def _check_outcome(self, unknown: OutcomeUnknownError, size: int, crc: int) -> None:
        """Return if the object is the one that was uploaded, by size and checksum, or by the etag of the parts."""
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
                digests = b"".join(bytes.fromhex(part.etag.strip('"')) for part in self._sent)
                ours = f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(self._sent)}"
            if head["ETag"].strip('"') != ours:
                raise unknown


def _crc_of(views: list[memoryview]) -> int:
    crc = 0
    for view in views:
        crc = crc64nvme(view, crc)
    return crc
