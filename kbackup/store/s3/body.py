"""A request's body made of pieces of other people's memory, which reach the socket without a copy."""

from __future__ import annotations

from itertools import accumulate

SMALL = 1 << 16
"""Pieces below this are copied together: a copy costs less than a system call of their own."""
_SENT_AT_ONCE = 1 << 18
"""The socket's timeout is for each of these. Larger ones took no less CPU; the 16 KiB that the SDK asks for took
a lock and a system call each."""


class Pieces:
    """What a part is filled with: views of the memory of others, and copies of what is small."""

    def __init__(self) -> None:
        self.size = 0
        self._pieces: list[memoryview | bytearray] = []

    def add(self, piece: memoryview) -> None:
        self.size += len(piece)
        if len(piece) >= SMALL:
            self._pieces.append(piece)
        elif self._pieces and isinstance(last := self._pieces[-1], bytearray):
            last += piece
        else:
            self._pieces.append(bytearray(piece))

    def views(self) -> list[memoryview]:
        """Nothing can be added while they are there."""
        return [memoryview(piece) for piece in self._pieces]


class Body:
    """The pieces as the SDK takes a file: `read` gives views.

    With `generous` they have as many bytes as are sent well, where fewer were asked for: the SDK's own signing of
    bodies can't have that, its sending can. A closed body holds nothing: the SDK's request objects live on in
    reference cycles.
    """

    def __init__(self, pieces: list[memoryview], *, generous: bool) -> None:
        self.pieces = pieces
        self._least = _SENT_AT_ONCE if generous else 0
        self._starts = list(accumulate(map(len, pieces), initial=0))
        self._at = self._piece = 0

    def __len__(self) -> int:
        return self._starts[-1]

    def read(self, size: int | None = -1) -> memoryview | bytes:
        if size is None or size < 0:
            return b"".join(iter(lambda: self._next(_SENT_AT_ONCE), b""))
        return self._next(max(size, self._least))

    def _next(self, size: int) -> memoryview | bytes:
        while self._piece < len(self.pieces):
            view = self.pieces[self._piece]
            start = self._at - self._starts[self._piece]
            if start < len(view):
                found = view[start : start + size]
                self._at += len(found)
                return found
            self._piece += 1
        return b""

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        """To where a retry starts again, or to the end."""
        origin = (0, self._at, len(self))[whence]
        self._at, self._piece = origin + offset, 0
        return self._at

    def close(self) -> None:
        self.pieces, self._starts, self._at, self._piece = [], [0], 0, 0
