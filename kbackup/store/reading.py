"""Reading an object's bytes to their end across dropped connections, all from one version of it, in any store."""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException, HTTPResponse
from typing import Any, NamedTuple, Protocol

from kbackup.errors import (
    CorruptError,
    DeniedError,
    NotFoundError,
    OutcomeUnknownError,
    PreconditionError,
    StoreError,
    UnreachableError,
)
from kbackup.store.base import CHUNK, SHORTER, check_whole

_RESUMES = 5
_FIRST_WAIT = 0.1  # s
_RANGE = re.compile(r"bytes (?P<first>\d{1,19})-(?P<last>\d{1,19})/(?P<whole>\d{1,19}|\*)", re.ASCII)
STRANGE_HINT = "check the endpoint and what is before it: this is no answer of such a store"


class DroppedError(Exception):
    """The connection broke while a body was read."""


class AnswerBody(Protocol):
    """The body of an answer. `read` raises one of `ObjectReading.dropped` if the connection breaks before its end."""

    def read(self, size: int, /) -> bytes: ...

    def close(self) -> None: ...


class ReadAnswer(NamedTuple):
    """The answer to a read. `size` is the body's by the headers. `stream` is urllib3's response below the SDK's layers,
    None if there is none."""

    etag: str
    size: int
    content_range: str
    body: AnswerBody
    stream: Any


class ObjectReading(ABC):
    """A range of an object (the whole with `length` None) in chunks of at most `CHUNK` bytes; iterate once. `largest`
    is the size of the largest such object that is read as a whole. A subclass makes one request.

    With `into`, the chunks are views of that memory, which is filled straight from the socket. `etag` is known from the
    first chunk on. A connection that drops is followed by another request for the rest, at most `_RESUMES` times with
    less than `CHUNK` bytes in between.
    """

    # An SDK's own reading copies everything into bytes first, which took twice the CPU. So `into` is filled from the
    # response of Python's HTTP client inside the SDK's, if that is there.

    dropped: tuple[type[Exception], ...] = (DroppedError,)
    """`DroppedError` and the SDK's errors of a connection that broke while a body was read."""

    def __init__(
        self, name: str, largest: int, start: int = 0, length: int | None = None, into: memoryview | None = None
    ) -> None:
        self.etag = ""
        self._name, self._largest = name, largest
        self._into, self._start = into, start
        self._at = start
        self._end = None if length is None else start + length

    @abstractmethod
    def _ask(self) -> ReadAnswer:
        """Request the bytes from `_at` to `_end` (to the object's end if None), of the version `etag` if that is known;
        without retries while the body is read."""

    def _finish(self, body: AnswerBody) -> None:
        """Free the connection for other requests: all of the range was read."""
        body.read(1)

    def __iter__(self) -> Iterator[Any]:
        failures, resumed_at = 0, self._at
        while self._end is None or self._at < self._end or not self.etag:
            try:
                yield from self._request()
            except self.dropped as error:
                failures = failures + 1 if self._at - resumed_at < CHUNK else 1
                if failures > _RESUMES:
                    hint = "check the endpoint, the network and whether the store is up"
                    raise UnreachableError(f"{self._name}: {error}", hint) from error
                time.sleep(_FIRST_WAIT * 2 ** (failures - 1))
                resumed_at = self._at

    def _request(self) -> Iterator[Any]:
        answer = self._ask()
        try:
            if answer.size < 0:
                raise StoreError(f"{self._name}: the store reports a size of {answer.size} bytes", STRANGE_HINT)
            # A cut connection may have taken digits of a length: the first bytes prove that the headers are whole. So
            # they are read before the headers are believed.
            chunk = None
            if answer.size:
                chunk = self._chunk(answer, min(CHUNK, answer.size))
            end = self._expect(answer)
            while chunk is not None:
                self._at += len(chunk)
                yield chunk
                chunk = None
                if self._at < end:
                    chunk = self._chunk(answer, min(CHUNK, end - self._at))
            if self._into is None:
                self._finish(answer.body)
            elif plain_response(answer.stream) is not None:
                # urllib3 did not see the end of the body that was read below it.
                answer.stream.release_conn()
        finally:
            answer.body.close()

    def _chunk(self, answer: ReadAnswer, size: int) -> bytes | memoryview:
        """Return at most `size` next bytes of the body; raise one of `dropped` if there are none."""
        if self._into is None:
            return answer.body.read(size)
        at = self._at - self._start
        view = self._into[at : at + size]
        plain = plain_response(answer.stream)
        if plain is None:
            data = answer.body.read(size)
            view[: len(data)] = data
            return view[: len(data)]
        try:
            count = plain.readinto(view)
        except (OSError, HTTPException) as error:
            raise DroppedError(f"the connection dropped: {error}") from error
        if not count:
            raise DroppedError("the connection was closed")
        return view[:count]

    def _expect(self, answer: ReadAnswer) -> int:
        """Return the offset at which the body must end; check that the answer is for the requested range."""
        # All bytes must be of one version: after a dropped connection the object may be another one.
        if self.etag not in {"", answer.etag}:
            raise PreconditionError(f"{self._name} was replaced while it was read")
        self.etag = answer.etag
        if self._end is None:
            check_whole(self._name, answer.size, self._largest)
            self._end = answer.size
            return answer.size
        within = _RANGE.fullmatch(answer.content_range)
        if within is None or int(within["first"]) != self._at:
            raise StoreError(f"{self._name}: the store does not answer ranged reads", "use a store that does")
        last, wanted = int(within["last"]), self._end - self._at
        if last - self._at + 1 != answer.size or answer.size > wanted:
            raise StoreError(
                f"{self._name}: the store answers with bytes {self._at}-{last} and a body of {answer.size} bytes, "
                f"asked for {wanted} bytes",
                STRANGE_HINT,
            )
        if answer.size < wanted:
            if within["whole"] != "*" and int(within["whole"]) > last + 1:
                raise StoreError(
                    f"{self._name}: the store answers with bytes {self._at}-{last} only, asked for {wanted} bytes",
                    STRANGE_HINT,
                )
            raise CorruptError(
                f"{self._name} ends at byte {self._at + answer.size}, wanted up to byte {self._end}", SHORTER
            )
        return self._end


def plain_response(stream: Any) -> HTTPResponse | None:
    """Return the HTTP response below urllib3's; None if an SDK is built in another way."""
    response = getattr(stream, "_fp", None)
    return response if isinstance(response, HTTPResponse) else None


# The outcome of a write without an answer.


def read_back(
    reading: ObjectReading,
    body: bytes | bytearray,
    unknown: OutcomeUnknownError,
    refusal: StoreError | None = None,
    before: str = "",
) -> str:
    """Return the etag of the object that `reading` reads whole, if it holds the bytes of the write without an answer.

    Raise `refusal` if there is another object, which shows that the write was refused: any but the version `before`.
    Raise `unknown` if nothing shows it.
    """
    etag, ours = before, False
    with suppress(NotFoundError), reading_back(unknown):
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
def reading_back(unknown: OutcomeUnknownError) -> Iterator[None]:
    """Find the outcome of a write without an answer; raise `unknown` if the store can't be read."""
    try:
        yield
    except (UnreachableError, DeniedError) as failed:
        unknown.add_note(f"reading back failed as well: {failed}")
        raise unknown from failed
