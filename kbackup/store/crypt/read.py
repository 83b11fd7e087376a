"""Ranges of encrypted objects: the frames around a range are fetched, opened and cut."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

from kbackup.errors import CorruptError
from kbackup.store.base import Store
from kbackup.store.crypt.frames import FRAME, HEADER, SEALED, TAG, Cipher, cut, decode_header, plain_size
from kbackup.store.crypt.keyring import Keyring

_KEPT = 1024
_VERSIONS = 5

Room = Callable[[int, int], memoryview | None]
"""(start, end) of a whole frame in plain bytes -> where to put it; None where its place is for parts of it only."""


class _Object(NamedTuple):
    """What it takes to read a version of an object: sizes in bytes, and its cipher."""

    etag: str
    stored: int
    plain: int
    cipher: Cipher


class Reader:
    """Reads ranges. Remembers what the objects it met last begin with, and notices when one was replaced: what
    is remembered then opens nothing of it."""

    def __init__(self, store: Store, keyring: Keyring) -> None:
        self._store = store
        self._keyring = keyring
        self._met: dict[str, _Object] = {}
        self._lock = threading.Lock()

    def chunks(self, key: str, start: int, length: int) -> Iterator[bytes]:
        for piece in self._pieces(key, start, start + length, lambda start, end: None):
            yield bytes(piece)

    def fill(self, key: str, start: int, into: memoryview) -> Iterator[memoryview]:
        end, at = start + len(into), 0

        def room(first: int, last: int) -> memoryview | None:
            return into[first - start : last - start] if start <= first and last <= end else None

        for piece in self._pieces(key, start, end, room):
            place = into[at : at + len(piece)]
            if piece.obj is not into.obj:
                place[:] = piece
            at += len(piece)
            yield place

    def _pieces(self, key: str, start: int, end: int, room: Room) -> Iterator[memoryview]:
        """The bytes from `start` to `end`, a frame at a time, all from one version of the object."""
        found = self._met.get(key) or self._meet(key)
        for _ in range(_VERSIONS):
            begun = False
            try:
                for piece in self._opened(key, found, start, end, room):
                    begun = True
                    yield piece
            except CorruptError:
                before, found = found, self._meet(key)
                if begun or found.etag == before.etag:
                    raise
            else:
                return
        raise CorruptError(f"file {key} is another one at every look", "which other tool writes it?")

    def _opened(self, key: str, found: _Object, start: int, end: int, room: Room) -> Iterator[memoryview]:
        if end > found.plain:
            raise CorruptError(
                f"file {key} has {found.plain} bytes, wanted up to byte {end}",
                "the object is shorter than the archive says: it was cut or replaced",
            )
        number = start // FRAME
        count = (end - 1) // FRAME + 1
        at = HEADER + number * SEALED
        sealed = self._store.open_range(key, at, min(HEADER + count * SEALED, found.stored) - at)
        for frame in cut(sealed):
            first = number * FRAME
            last = first + len(frame) - TAG
            place = room(first, last)
            plain = memoryview(bytearray(len(frame) - TAG)) if place is None else place
            found.cipher.open(number, last == found.plain, frame, plain)
            yield plain[max(0, start - first) : min(last, end) - first]
            number += 1

    def _meet(self, key: str) -> _Object:
        info = self._store.stat(key)
        if info.size < HEADER + TAG:
            decode_header(self._store.get(key), key)
            raise CorruptError(
                f"file {key} at byte {info.size}: ends within a frame", "it was cut or replaced"
            )
        header = decode_header(self._store.get_range(key, 0, HEADER), key)
        found = _Object(info.etag, info.size, plain_size(info.size), self._keyring.cipher(header, key))
        with self._lock:
            self._met.pop(key, None)
            while len(self._met) >= _KEPT:
                self._met.pop(next(iter(self._met)))
            self._met[key] = found
        return found
