"""A streamed create that encrypts on its way. What it is given is copied: it may change as soon as `write` returned."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from awscrt.checksums import crc64nvme

from kbackup.errors import StoreError
from kbackup.store.base import Buffer, Upload, give_up, view_of
from kbackup.store.crypt.frames import FRAME, Cipher, Header, seal_frames

_BATCH = 16 * FRAME
"""Plain bytes sealed into one buffer: what goes on to the store in pieces of a frame costs it more."""


class CryptUpload:
    """`Upload` into another one. The last frame is known as such at `commit`, so one is held back."""

    def __init__(self, inner: Upload, header: Header, cipher: Cipher, name: str) -> None:
        self._inner = inner
        self._cipher = cipher
        self._name = name
        self._held = bytearray()
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
            self._seal(memoryview(self._held), last=False)
            self._held = bytearray()
        whole = max(0, len(view) - 1) // FRAME * FRAME
        for at in range(0, whole, _BATCH):
            piece = view[at : min(at + _BATCH, whole)]
            self._crc = crc64nvme(piece, self._crc)
            self._seal(piece, last=False)
        self._hold(view[whole:])

    def _hold(self, piece: memoryview) -> None:
        self._crc = crc64nvme(piece, self._crc)
        self._held += piece

    def _seal(self, plain: memoryview, *, last: bool) -> None:
        self._inner.write(seal_frames(self._cipher, plain, self._number, last))
        self._number += max(1, -(-len(plain) // FRAME))

    def commit(self) -> tuple[int, int]:
        """Size and checksum are of the plain bytes."""
        self._check_open()
        try:
            self._seal(memoryview(self._held), last=True)
            self._inner.commit()
        except BaseException as error:
            give_up(self, error)
            raise
        self._open = False
        return self._size, self._crc

    def abort(self) -> None:
        self._open = False
        self._held = bytearray()
        self._inner.abort()

    def _check_open(self) -> None:
        if not self._open:
            raise StoreError(f"the upload of file {self._name} has ended", "start another one")
