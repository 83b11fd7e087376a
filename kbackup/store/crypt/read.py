"""Read ranges of encrypted objects: fetch the frames around a range, decrypt and cut them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

from kbackup.errors import CorruptError
from kbackup.store.base import SHORTER, Store
from kbackup.store.crypt.frames import (
    ENCRYPTED_FRAME,
    FRAME,
    HEADER,
    TAG,
    Cipher,
    decode_header,
    plain_size,
    split_frames,
)
from kbackup.store.crypt.keyring import Keyring

_REMEMBERED = 1024
_VERSIONS = 5

Room = Callable[[int, int], memoryview | None]
"""(start, end) of a whole frame in plain bytes -> the buffer for it; None if the buffer has room for less than it."""


class _Object(NamedTuple):
    """A version of an object: its sizes in bytes, and its cipher."""

    etag: str
    stored: int
    plain: int
    cipher: Cipher


class Reader:
    """Reads ranges of objects. Remembers the headers of the objects that it read last; a replaced object is noticed,
    because the remembered header decrypts none of its frames."""

    def __init__(self, store: Store, keyring: Keyring) -> None:
        self._store = store
        self._keyring = keyring
        self._objects: dict[str, _Object] = {}
        self._lock = threading.Lock()

    def chunks(self, key: str, start: int, length: int) -> Iterator[bytes]:
        for view in self._views(key, start, start + length, lambda start, end: None):
            yield bytes(view)

    def fill(self, key: str, start: int, into: memoryview) -> Iterator[memoryview]:
        end, at = start + len(into), 0

        def room(first: int, last: int) -> memoryview | None:
            return into[first - start : last - start] if start <= first and last <= end else None

        for view in self._views(key, start, end, room):
            filled = into[at : at + len(view)]
            if view.obj is not into.obj:
                filled[:] = view
            at += len(view)
            yield filled

    def _views(self, key: str, start: int, end: int, room: Room) -> Iterator[memoryview]:
        """Yield the bytes from `start` to `end`, a frame at a time, all from one version of the object."""
        version = self._objects.get(key) or self._read_header(key)
        for _ in range(_VERSIONS):
            begun = False
            try:
                for view in self._decrypt(key, version, start, end, room):
                    begun = True
                    yield view
            except CorruptError:
                before, version = version, self._read_header(key)
                if begun or version.etag == before.etag:
                    raise
            else:
                return
        raise CorruptError(
            f"file {key} changed during each of {_VERSIONS} reads", "stop the other program that writes it"
        )

    def _decrypt(self, key: str, version: _Object, start: int, end: int, room: Room) -> Iterator[memoryview]:
        if end > version.plain:
            raise CorruptError(f"file {key} has {version.plain} bytes, wanted up to byte {end}", SHORTER)
        number = start // FRAME
        count = (end - 1) // FRAME + 1
        at = HEADER + number * ENCRYPTED_FRAME
        length = min(HEADER + count * ENCRYPTED_FRAME, version.stored) - at
        for frame in split_frames(self._store.open_range(key, at, length)):
            first = number * FRAME
            last = first + len(frame) - TAG
            buffer = room(first, last)
            plain = memoryview(bytearray(len(frame) - TAG)) if buffer is None else buffer
            version.cipher.decrypt(number, last == version.plain, frame, plain)
            yield plain[max(0, start - first) : min(last, end) - first]
            number += 1

    def _read_header(self, key: str) -> _Object:
        info = self._store.stat(key)
        if info.size < HEADER + TAG:
            decode_header(self._store.get(key), key)
            raise CorruptError(
                f"file {key} at byte {info.size}: ends within a frame",
                "restore it from a bucket version or a copy: it was cut or replaced",
            )
        header = decode_header(self._store.get_range(key, 0, HEADER), key)
        version = _Object(info.etag, info.size, plain_size(info.size), self._keyring.cipher(header, key))
        with self._lock:
            self._objects.pop(key, None)
            while len(self._objects) >= _REMEMBERED:
                self._objects.pop(next(iter(self._objects)))
            self._objects[key] = version
        return version
