"""Uploads into a store in memory."""

from __future__ import annotations

from collections.abc import Callable

from awscrt.checksums import crc64nvme

from kbackup.errors import StoreError
from kbackup.store.base import Buffer, Upload, view_of


class MemoryUpload(Upload):
    """`Upload` into a `MemoryStore`; `publish` writes the whole object."""

    def __init__(self, key: str, unfinished: list[str], publish: Callable[[str, bytearray], object]) -> None:
        self._key, self._unfinished, self._publish = key, unfinished, publish
        self._data = bytearray()
        self._ended = False
        unfinished.append(key)

    def write(self, data: Buffer) -> None:
        self._check_open()
        self._data += view_of(data)

    def commit(self) -> tuple[int, int]:
        self._check_open()
        self.abort()
        self._publish(self._key, self._data)
        return len(self._data), crc64nvme(self._data)

    def abort(self) -> None:
        if not self._ended:
            self._ended = True
            self._unfinished.remove(self._key)

    def _check_open(self) -> None:
        if self._ended:
            raise StoreError(f"the upload of object {self._key} has ended", "start another one")
