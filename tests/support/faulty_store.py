"""A store that fails where it is told to, around a real one."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from kbackup.errors import CorruptError, KbackupError, OutcomeUnknownError, StoreError, UnreachableError
from kbackup.store.base import Buffer, Failed, Store, Upload
from kbackup.store.wrappers import DelegatingStore

Operation = Literal["get", "open_range", "put", "put_new", "replace", "commit", "delete"]


@dataclass
class Fault:
    """`operation` on keys like `pattern`: fails `times` times with `error`; `after` it took effect where that
    is said (the answer is lost)."""

    operation: Operation
    pattern: str
    error: KbackupError
    after: bool = False
    times: int = 1_000_000


def lost_answer(operation: Operation, pattern: str, times: int = 1) -> Fault:
    error = OutcomeUnknownError("no answer came", "look what is there")
    return Fault(operation, pattern, error, after=True, times=times)


def down(operation: Operation, pattern: str = "*") -> Fault:
    return Fault(operation, pattern, UnreachableError("the store is down", "wait"))


class FaultyStore(DelegatingStore):
    """`Store`; `faults` may be changed at any time. `calls` are (operation, key), those that failed too."""

    def __init__(self, inner: Store, *faults: Fault) -> None:
        super().__init__(inner)
        self.faults = list(faults)
        self.calls: builtins.list[tuple[str, str]] = []
        self.short: dict[str, int] = {}
        """Objects that are read as if they had only so many bytes."""

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        self._before("get", key)
        return self.inner.get_with_etag(key)

    def open_range(self, key: str, start: int, length: int) -> Iterator[bytes]:
        self._before("open_range", key)
        there = self.short.get(key, start + length)
        yield from self.inner.open_range(key, start, min(length, there - start))
        if there < start + length:
            raise CorruptError(f"file {key} has {there} bytes, wanted up to byte {start + length}", "it was cut")

    def fill(self, key: str, start: int, into: memoryview) -> Iterator[memoryview]:
        at = 0
        for chunk in self.open_range(key, start, len(into)):
            into[at : at + len(chunk)] = chunk
            at += len(chunk)
            yield into[at - len(chunk) : at]

    def put(self, key: str, data: Buffer) -> str:
        self._before("put", key)
        etag = self.inner.put(key, data)
        self._after("put", key)
        return etag

    def put_new(self, key: str, data: Buffer) -> str:
        self._before("put_new", key)
        etag = self.inner.put_new(key, data)
        self._after("put_new", key)
        return etag

    def replace(self, key: str, data: Buffer, etag: str) -> str:
        self._before("replace", key)
        new = self.inner.replace(key, data, etag)
        self._after("replace", key)
        return new

    def upload(self, key: str) -> Upload:
        return _FaultyUpload(self, self.inner.upload(key), key)

    def delete(self, keys: Iterable[str]) -> builtins.list[Failed]:
        failed: builtins.list[Failed] = []
        for key in keys:
            try:
                self._before("delete", key)
            except StoreError as error:
                failed.append(Failed(key, error))
                continue
            failed += self.inner.delete([key])
        return failed

    def _before(self, operation: Operation, key: str) -> None:
        self.calls.append((operation, key))
        self._fail(operation, key, after=False)

    def _after(self, operation: Operation, key: str) -> None:
        self._fail(operation, key, after=True)

    def _fail(self, operation: Operation, key: str, after: bool) -> None:
        for fault in self.faults:
            hit = fault.operation == operation and fault.after == after and fnmatchcase(key, fault.pattern)
            if hit and fault.times > 0:
                fault.times -= 1
                raise fault.error


class _FaultyUpload(Upload):
    def __init__(self, store: FaultyStore, upload: Upload, key: str) -> None:
        self._store, self._upload, self._key = store, upload, key

    def write(self, data: Buffer) -> None:
        self._upload.write(data)

    def abort(self) -> None:
        self._upload.abort()

    def commit(self) -> tuple[int, int]:
        self._store._before("commit", self._key)
        done = self._upload.commit()
        self._store._after("commit", self._key)
        return done
