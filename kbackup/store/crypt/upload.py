"""A streamed create that encrypts. `write` copies its data: the caller may change them as soon as it returned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from awscrt.checksums import crc64nvme

from kbackup.errors import StoreError
from kbackup.store.base import Buffer, Upload, abort_upload, view_of
from kbackup.store.crypt.frames import ENCRYPTED_FRAME, FRAME, Cipher, Header, encrypt_frames
from kbackup.util.buffers import BufferPool

if TYPE_CHECKING:
    from kbackup.types import Bytes

_POOL = BufferPool(63 * ENCRYPTED_FRAME, keep=12)
"""Four buffers nearly make an upload part of 16 MiB, and at most three such parts are in flight. New memory for each
frame, or for sixteen, took as much CPU as encrypting them."""


class CryptUpload(Upload):
    """`Upload` into another one. The last frame is known as such at `commit`, so one is held back."""

    def __init__(self, inner: Upload, header: Header, cipher: Cipher, name: str) -> None:
        self._inner = inner
        self._cipher = cipher
        self._name = name
        self._pending = bytearray()
        self._encrypted: Bytes | None = None
        self._used = 0
        self._number = self._size = self._crc = 0
        self._open = True
        inner.write(header.encode())

    def write(self, data: Buffer) -> None:
        self._check_open()
        view = view_of(data)
        self._size += len(view)
        if self._pending:
            take = FRAME - len(self._pending)
            self._hold(view[:take])
            view = view[take:]
            if not view:
                return
            self._encrypt(memoryview(self._pending))
            self._pending = bytearray()
        whole = max(0, len(view) - 1) // FRAME * FRAME
        for at in range(0, whole, FRAME):
            frame = view[at : at + FRAME]
            self._crc = crc64nvme(frame, self._crc)
            self._encrypt(frame)
        self._hold(view[whole:])

    def _hold(self, view: memoryview) -> None:
        self._crc = crc64nvme(view, self._crc)
        self._pending += view

    def _encrypt(self, frame: memoryview) -> None:
        """Encrypt a whole frame, which is not the last one."""
        if self._encrypted is None:
            self._encrypted, self._used = _POOL.take(), 0
        into = self._encrypted.data[self._used : self._used + ENCRYPTED_FRAME]
        self._cipher.encrypt(self._number, False, frame, into)
        self._number += 1
        self._used += ENCRYPTED_FRAME
        if self._used == _POOL.size:
            self._pass_on()

    def _pass_on(self) -> None:
        if self._encrypted is not None:
            self._inner.write(self._encrypted[: self._used])
            self._encrypted = None

    def commit(self) -> tuple[int, int]:
        """Publish; size and checksum are of the plain bytes."""
        self._check_open()
        try:
            self._pass_on()
            self._inner.write(
                encrypt_frames(self._cipher, memoryview(self._pending), self._number, last=True)
            )
            self._inner.commit()
        except BaseException as error:
            abort_upload(self, error)
            raise
        self._open = False
        return self._size, self._crc

    def abort(self) -> None:
        self._open = False
        self._pending, self._encrypted = bytearray(), None
        self._inner.abort()

    def _check_open(self) -> None:
        if not self._open:
            raise StoreError(f"the upload of file {self._name} has ended", "start another one")
