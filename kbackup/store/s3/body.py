"""A request's body made of views of the callers' memory, which reach the socket without a copy."""

from __future__ import annotations

from itertools import accumulate

SMALL = 1 << 16
"""Smaller views are copied together: a copy costs less than a system call for each."""
_SENT_AT_ONCE = 1 << 18
"""The socket's timeout is for each of these. Larger ones took no less CPU; the 16 KiB that the SDK asks for took
a lock and a system call each."""


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
