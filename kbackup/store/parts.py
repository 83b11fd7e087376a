"""Uploads in parts to any store, from views of the callers' memory that reach the socket without a copy."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate
from typing import NamedTuple

from awscrt.checksums import combine_crc64nvme, crc64nvme

from kbackup.errors import AlreadyExistsError, OutcomeUnknownError, PreconditionError
from kbackup.store.base import Buffer, Upload, view_of
from kbackup.store.reading import reading_back

# Smaller views are copied together: a copy costs less than a system call for each.
SMALL = 1 << 16
"""The least bytes of a view that is sent from the caller's own memory."""

# The socket's timeout is for each of these. Larger ones took no less CPU; the 16 KiB that the SDK asks for took a lock
# and a system call each.
_SENT_AT_ONCE = 1 << 18
"""Bytes that go to the socket at once."""

# S3's 10,000 parts then hold its largest object (5 TiB) from 5 MiB parts, also where they are only half full.
_PARTS_OF_ONE_SIZE = 900
"""Part sizes double after this many parts."""


class PartBuffer:
    """The bytes of one upload part: views of the callers' memory, and copies of small ones."""

    def __init__(self) -> None:
        self.size = 0
        self._buffers: list[memoryview | bytearray] = []

    def add(self, view: memoryview) -> None:
        self.size += len(view)
        if len(view) >= SMALL:
            self._buffers.append(view)
            return
        last = self._buffers[-1] if self._buffers else None
        if isinstance(last, bytearray):
            last += view
        else:
            self._buffers.append(bytearray(view))

    def views(self) -> list[memoryview]:
        """Return views of all bytes. Nothing can be added while the views exist."""
        return [memoryview(buffer) for buffer in self._buffers]


class Body:
    """Views of memory as a file for the SDK: `read` returns views.

    With `generous` a view may have more bytes than were asked for, as many as one send takes well. The SDK's sending
    allows that, its signing of bodies does not.
    """

    def __init__(self, views: list[memoryview], *, generous: bool) -> None:
        self.views = views
        self._least = _SENT_AT_ONCE if generous else 0
        self._starts = list(accumulate(map(len, views), initial=0))
        self._at = self._index = 0

    def __len__(self) -> int:
        return self._starts[-1]

    def read(self, size: int | None = -1) -> memoryview | bytes:
        if size is not None and size >= 0:
            return self._next(max(size, self._least))
        chunks = []
        while chunk := self._next(_SENT_AT_ONCE):
            chunks.append(chunk)
        return b"".join(chunks)

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
        # The SDK's request objects live on in reference cycles: a closed body holds no memory of the caller.
        self.views, self._starts, self._at, self._index = [], [0], 0, 0


def as_body(data: Buffer) -> bytes | bytearray:
    """Return `data` in a type that the SDK takes, copied only where it must be."""
    if isinstance(data, (bytes, bytearray)):
        return data
    return bytes(view_of(data))


class UploadPart(NamedTuple):
    """`tag` is what the store names the part by when it puts the object together."""

    number: int
    tag: str
    size: int
    crc: int


class PartsUpload(Upload):
    """`Upload` by one request while the object fits a part, else by parts, which a few threads send while the caller
    goes on. The upload holds at most `parts_in_flight` parts that are being sent and the part that is being filled. A
    subclass makes the requests.

    A part ends at the end of a caller's buffer if it can. Then the buffer is in one part alone, and free when the store
    has acknowledged that part. `least` is the least size of all parts but the last. With one part in flight, parts are
    sent in order.
    """

    _generous = True
    """Bodies may give more bytes at once than they are asked for."""

    def __init__(self, name: str, part_size: int, parts_in_flight: int, least: int) -> None:
        self._name = name
        self._first_size, self._least = part_size, least
        self._in_flight = parts_in_flight
        self._pool: ThreadPoolExecutor | None = None
        self._sending: deque[Future[UploadPart]] = deque()
        self._sent: list[UploadPart] = []
        self._part = PartBuffer()
        self._number = 1
        self._whole = True

    @abstractmethod
    def _begin(self) -> None:
        """Prepare the store for parts, before the first one is sent."""

    @abstractmethod
    def _send(self, number: int, body: Body, crc: int) -> str:
        """Send a part, in a thread of its own; returns its tag. Parts are numbered from 1."""

    @abstractmethod
    def _put_whole(self, body: bytes, crc: int) -> None:
        """Create the object by one request; errors as `commit`."""

    @abstractmethod
    def _complete(self, size: int, crc: int) -> None:
        """Create the object from the parts of `_sent`, which are in order. `PreconditionError` if it exists."""

    @abstractmethod
    def _check_outcome(self, unknown: OutcomeUnknownError, size: int, crc: int) -> None:
        """Return if the object is the one that was uploaded, by size and checksum. Raise `AlreadyExistsError` if it is
        another one, `unknown` if nothing shows it."""

    @abstractmethod
    def _discard(self) -> None:
        """Remove the parts from the store; none is being sent any more."""

    def write(self, data: Buffer) -> None:
        self._check_open()
        view = view_of(data)
        size = len(view)
        while view:
            room = self._part_size - self._part.size
            if len(view) > room and self._part.size >= self._least:
                self._send_part()
                continue
            # A part below the store's least size takes the whole buffer and grows past our size, unless the buffer is
            # larger than a part and has to be cut anyway.
            count = len(view) if len(view) <= self._part_size else room
            self._part.add(view[:count])
            view = view[count:]
        # No other buffer of that size has room. A part that is sent early is free early.
        if self._part.size >= max(self._least, self._part_size - size + 1):
            self._send_part()

    def in_parts(self) -> None:
        self._whole = False

    def commit(self) -> tuple[int, int]:
        with self._committing():
            if self._pool is not None or not self._whole:
                if self._part.size:
                    self._send_part()
                self._collect(0)
                size = crc = 0
                for part in self._sent:
                    size += part.size
                    crc = combine_crc64nvme(crc, part.crc, part.size)
                try:
                    self._complete(size, crc)
                except PreconditionError as taken:
                    raise AlreadyExistsError(f"{self._name} exists already") from taken
                except OutcomeUnknownError as unknown:
                    with reading_back(unknown):
                        self._check_outcome(unknown, size, crc)
            else:
                views = self._part.views()
                size, crc = self._part.size, crc_of(views)
                self._put_whole(b"".join(views), crc)
        self._end()
        return size, crc

    def abort(self) -> None:
        if not self._open:
            return
        self._end()
        if self._pool is not None:
            self._discard()

    def _end(self) -> None:
        """Release the buffers, and wait for parts in flight."""
        # A part that arrives after the parts were discarded would stay in the store, and be paid for.
        self._open = False
        self._part = PartBuffer()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    @property
    def _part_size(self) -> int:
        return part_size_of(self._number, self._first_size)

    def _send_part(self) -> None:
        """Hand the part over to a thread, which owns it from now on; wait while too many are in flight."""
        if self._pool is None:
            self._begin()
            self._pool = ThreadPoolExecutor(self._in_flight, "upload")
        self._collect(self._in_flight - 1)
        body = Body(self._part.views(), generous=self._generous)
        self._sending.append(self._pool.submit(self._send_body, self._number, body))
        self._part = PartBuffer()
        self._number += 1

    def _send_body(self, number: int, body: Body) -> UploadPart:
        try:
            size, crc = len(body), crc_of(body.views)
            tag = self._send(number, body, crc)
            return UploadPart(number, tag, size, crc)
        finally:
            body.close()

    def _collect(self, most_in_flight: int) -> None:
        """Wait until at most `most_in_flight` parts are in flight; raise the error of a part that failed."""
        while len(self._sending) > most_in_flight:
            self._sent.append(self._sending.popleft().result())


def part_size_of(number: int, first_size: int) -> int:
    """Return the size of a part of an upload, whose first part has the number 1. Later parts are larger: an upload has
    10,000 parts at most."""
    return first_size << ((number - 1) // _PARTS_OF_ONE_SIZE)


def crc_of(views: list[memoryview]) -> int:
    """Return the CRC-64/NVME of the bytes of all views."""
    crc = 0
    for view in views:
        crc = crc64nvme(view, crc)
    return crc
