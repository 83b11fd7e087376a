"""A streamed create that encrypts on its way. What it is given is copied: it may change as soon as `write` returned."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from awscrt.checksums import crc64nvme

from kbackup.errors import StoreError
from kbackup.store.base import Buffer, Upload, give_up, view_of
from kbackup.store.crypt.frames import FRAME, SEALED, Cipher, Header, seal_frames
from kbackup.util.buffers import BufferPool

if TYPE_CHECKING:
    from kbackup.types import Bytes

_POOL = BufferPool(63 * SEALED, keep=12)
"""Four make a part of 16 MiB as well as can be, and three such parts are on their way at most. New memory for each
frame, or for sixteen, took as much CPU as sealing them."""


class CryptUpload:
    """`Upload` into another one. The last frame is known as such at `commit`, so one is held back."""

    def __init__(self, inner: Upload, header: Header, cipher: Cipher, name: str) -> None:
        self._inner = inner
        self._cipher = cipher
        self._name = name
        self._held = bytearray()
        self._sealed: Bytes | None = None
        self._used = 0
        self._number = self._size = self._crc = 0
        self._open = True
        inner.write(header.encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        give_up(self, error)

    def write(self, data: Buffer) -> None:
        self._check_open()
        view = view_of(data)
        self._size += len(view)
        if self._held:
            take = FRAME - len(self._held)
            self._hold(view[:take])
            view = view[take:]
            if not view:
                return
            self._seal(memoryview(self._held))
            self._held = bytearray()
        whole = max(0, len(view) - 1) // FRAME * FRAME
        for at in range(0, whole, FRAME):
            piece = view[at : at + FRAME]
            self._crc = crc64nvme(piece, self._crc)
            self._seal(piece)
        self._hold(view[whole:])

    def _hold(self, piece: memoryview) -> None:
        self._crc = crc64nvme(piece, self._crc)
        self._held += piece

    def _seal(self, frame: memoryview) -> None:
        """A whole frame, which is not the last one."""
        if self._sealed is None:
            self._sealed, self._used = _POOL.take(), 0
        into = self._sealed.data[self._used : self._used + SEALED]
        self._cipher.seal(self._number, False, frame, into)
        self._number += 1
        self._used += SEALED
        if self._used == _POOL.size:
            self._pass_on()

    def _pass_on(self) -> None:
        if self._sealed is not None:
            self._inner.write(self._sealed[: self._used])
            self._sealed = None

    def commit(self) -> tuple[int, int]:
        """Size and checksum are of the plain bytes."""
        self._check_open()
        try:
            self._pass_on()
            self._inner.write(seal_frames(self._cipher, memoryview(self._held), self._number, last=True))
            self._inner.commit()
        except BaseException as error:
            give_up(self, error)
            raise
        self._open = False
        return self._size, self._crc

    def abort(self) -> None:
        self._open = False
        self._held, self._sealed = bytearray(), None
        self._inner.abort()

    def _check_open(self) -> None:
        if not self._open:
            raise StoreError(f"the upload of file {self._name} has ended", "start another one")
