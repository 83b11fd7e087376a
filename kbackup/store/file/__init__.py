"""A store in a directory (`publish` says how writes become atomic and durable)."""

from __future__ import annotations

import builtins
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from kbackup.errors import CorruptError, NotFoundError, PreconditionError, StoreError
from kbackup.store.address import Address, address_of_directory
from kbackup.store.base import CHUNK, SHORTER, Buffer, Failed, ObjectInfo, check_key, check_whole, is_key
from kbackup.store.file import disk
from kbackup.store.file.publish import HIDDEN, Publisher, etag_of
from kbackup.store.file.upload import FileUpload
from kbackup.store.options import KeyClasses, write_once


class FileStore:
    """`Store` in the directory `root`, which the first write makes. `.tmp` in it holds unfinished files and
    is no key."""

    def __init__(self, root: Path | str, url: str = "", key_class: KeyClasses = write_once) -> None:
        self._key_class = key_class
        self._root = Path(root).absolute()
        self._url = url or str(root)
        self._publisher = Publisher(self._root)

    def __reduce__(self) -> tuple[Any, ...]:
        return FileStore, (self._root, self._url, self._key_class)

    @property
    def url(self) -> str:
        return self._url

    @property
    def address(self) -> Address:
        return address_of_directory(self._root)

    def get(self, key: str) -> bytes:
        return self.get_with_etag(key)[0]

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        with self._open(key) as file:
            check_whole(self._name(key), os.fstat(file.fileno()).st_size, self._key_class(key).largest)
            return file.read(), etag_of(os.fstat(file.fileno()))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return b"".join(self.open_range(key, start, length))

    def open_range(self, key: str, start: int, length: int) -> Iterator[bytes]:
        if length == 0:
            return
        end = start + length
        with self._open(key) as file:
            file.seek(start)
            while start < end:
                chunk = file.read(min(CHUNK, end - start))
                start += self._check_read(key, len(chunk), end, file)
                yield chunk

    def fill(self, key: str, start: int, into: memoryview) -> Iterator[memoryview]:
        if not into:
            return
        end, at = start + len(into), 0
        with self._open(key) as file:
            file.seek(start)
            while at < len(into):
                count = file.readinto(into[at : at + CHUNK])  # type: ignore[attr-defined] # unbuffered files have it
                at += self._check_read(key, count, end, file)
                yield into[at - count : at]

    def _check_read(self, key: str, count: int, end: int, file: BinaryIO) -> int:
        if not count:
            raise CorruptError(
                f"{self._name(key)} has {os.fstat(file.fileno()).st_size} bytes, wanted up to byte {end}",
                SHORTER,
            )
        return count

    def put(self, key: str, data: Buffer) -> str:
        path = self._path(key)
        with self._written(key, data) as temp:
            return self._publisher.replace(temp, path)

    def put_new(self, key: str, data: Buffer) -> str:
        path = self._path(key)
        with self._written(key, data) as temp:
            return self._publisher.create(temp, path)

    def replace(self, key: str, data: Buffer, etag: str) -> str:
        path = self._path(key)

        def check() -> None:
            if self.stat(key).etag != etag:
                raise PreconditionError(f"{self._name(key)} is another version by now")

        with self._written(key, data) as temp:
            return self._publisher.replace(temp, path, check)

    def upload(self, key: str) -> FileUpload:
        path = self._path(key)
        with disk.mapped(self._name(key), writing=True):
            return FileUpload(self._publisher, path)

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
        with disk.mapped(f"directory {self._root}"):
            for key, entry in disk.walk(self._root, prefix, start_after, HIDDEN):
                try:
                    stat = entry.stat()
                except FileNotFoundError:
                    continue  # deleted since the folder was read
                if is_key(key):
                    yield _info(key, stat)

    def list_dirs(self, prefix: str = "") -> Iterator[str]:
        with disk.mapped(f"directory {self._root}"):
            for folder in disk.folders(self._root, prefix, HIDDEN):
                if next(self.list(folder), None) is not None:
                    yield folder[len(prefix) : -1]

    def stat(self, key: str) -> ObjectInfo:
        with self._open(key) as file:
            return _info(key, os.fstat(file.fileno()))

    def checksum(self, key: str) -> int | None:
        """Return None: directories keep no checksums."""
        self.stat(key)
        return None

    def delete(self, keys: Iterable[str]) -> builtins.list[Failed]:
        failed: list[Failed] = []
        touched: set[Path] = set()
        for key in keys:
            try:
                path = self._path(key)
                with disk.mapped(self._name(key)):
                    path.lstat()
                    path.unlink()
                touched.add(path.parent)
            except NotFoundError:
                continue
            except StoreError as error:
                failed.append(Failed(key, error))
        for folder in sorted(touched):
            self._settle(folder)
        return failed

    def leave_mark(self, name: str) -> Path:
        """Leave an empty file that is no object, by which other machines know the directory; return its path."""
        path = self._root / HIDDEN / f"{name}.part"
        with disk.mapped(f"file {path}", writing=True):
            self._publisher.leave(path)
        return path

    def _settle(self, folder: Path) -> None:
        """Make removals in `folder` durable, and drop it when nothing is left in it."""
        with disk.mapped(f"directory {folder}"):
            try:
                disk.sync_dir(folder)
            except FileNotFoundError:
                return  # pruned by another process
            disk.prune(folder, self._root)

    def _name(self, key: str) -> str:
        return f"file {self._root / key}"

    def _path(self, key: str) -> Path:
        check_key(key)
        if key.partition("/")[0] == HIDDEN:
            raise StoreError(
                f"key {key!r} can't be used",
                f"use another name than '{HIDDEN}', which holds the store's unfinished files",
            )
        return self._root / key

    @contextmanager
    def _open(self, key: str) -> Iterator[BinaryIO]:
        path = self._path(key)
        with disk.mapped(self._name(key)), path.open("rb", buffering=0) as file:
            yield file

    @contextmanager
    def _written(self, key: str, data: Buffer) -> Iterator[Path]:
        """Yield a synced temporary file with `data`; errors of the block are mapped too."""
        with disk.mapped(self._name(key), writing=True):
            temp, file = self._publisher.open_temp()
            try:
                with file:
                    disk.write_all(file, data)
                    os.fsync(file.fileno())
                yield temp
            finally:
                temp.unlink(missing_ok=True)


def _info(key: str, stat: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, stat.st_size, etag_of(stat), stat.st_mtime_ns / 1e9)
