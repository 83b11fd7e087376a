"""A streamed create of a file."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path

from awscrt.checksums import crc64nvme

from kbackup.errors import StoreError
from kbackup.store.base import Buffer, Upload, abort_upload, view_of
from kbackup.store.file import disk
from kbackup.store.file.publish import Publisher


class FileUpload(Upload):
    """`Upload` into a temporary file, which is named at `commit`."""

    def __init__(self, publisher: Publisher, path: Path) -> None:
        self._publisher = publisher
        self._path = path
        self._temp, self._file = publisher.open_temp()
        self._size = 0
        self._crc = 0

    def write(self, data: Buffer) -> None:
        self._check_open()
        view = view_of(data)
        with self._mapped():
            self._size += disk.write_all(self._file, view)
        self._crc = crc64nvme(view, self._crc)

    def commit(self) -> tuple[int, int]:
        self._check_open()
        try:
            with self._mapped():
                os.fsync(self._file.fileno())
                self._publisher.create(self._temp, self._path)
        except BaseException as error:
            abort_upload(self, error)
            raise
        self.abort()
        return self._size, self._crc

    def abort(self) -> None:
        with self._mapped():
            self._file.close()
            self._temp.unlink(missing_ok=True)

    def _mapped(self) -> AbstractContextManager[None]:
        return disk.mapped(f"file {self._path}", writing=True)

    def _check_open(self) -> None:
        if self._file.closed:
            raise StoreError(f"the upload of file {self._path} has ended", "start another one")
