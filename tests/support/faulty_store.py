"""A store that fails or dies where it is told to, around a real one."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

import pytest

from kbackup.archive import layout
from kbackup.archive.query.browse import PartitionRecords
from kbackup.archive.query.content import ArchivedPartition
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.window import Window
from kbackup.errors import CorruptError, KbackupError, OutcomeUnknownError, StoreError, UnreachableError
from kbackup.library.reading import ArchiveReader
from kbackup.store.base import Buffer, Failed, Store, Upload, encryption_of
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.kek import generate_key
from kbackup.store.crypt.keyring import Keyring
from kbackup.store.wrappers import DelegatingStore
from tests.support.exhaustive import CRASHES, sample
from tests.support.memory_store import MemoryStore

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


class Overtaken(FaultyStore):
    """`beside` happens once, right before the first read of a segment."""

    def __init__(self, inner: Store, beside: Callable[[], object]) -> None:
        super().__init__(inner)
        self._beside: Callable[[], object] | None = beside

    def _before(self, operation: Operation, key: str) -> None:
        beside = self._beside
        if beside is not None and operation in ("get", "open_range") and key.startswith(layout.TOPICS):
            self._beside = None
            beside()
        super()._before(operation, key)


class Crash(BaseException):
    """The process is gone."""


class CrashStore(FaultyStore):
    """Goes down at write number `at` (from 1; 0 is never), before it takes effect or after; nothing works from then
    on. `writes` counts: those of the lease are none."""

    def __init__(self, inner: Store, at: int = 0, after: bool = False) -> None:
        super().__init__(inner)
        self.at, self.after_effect = at, after
        self.writes = 0
        self.down = False

    def _before(self, operation: Operation, key: str) -> None:
        if self.down:
            raise Crash
        if operation not in ("get", "open_range") and key != layout.LOCK:
            self.writes += 1
            self.down = self.writes == self.at
            if self.down and not self.after_effect:
                raise Crash
        super()._before(operation, key)

    def _after(self, operation: Operation, key: str) -> None:
        if self.down:
            raise Crash
        super()._after(operation, key)


def crashed(
    before: MemoryStore, work: Callable[[Store], object], first: int = 1, step: int = 1
) -> Iterator[MemoryStore]:
    """Yield the stores that `work` on copies of `before` leaves when it dies before a write.

    It dies before write number `first`, then before the write `step` later, and so on. The lease is free.
    """
    counting = CrashStore(before.copy())
    work(counting)
    for at in sample(range(first, counting.writes + 1, step), regular=CRASHES):
        inner = before.copy()
        with pytest.raises(Crash):
            work(CrashStore(inner, at))
        inner.delete([layout.LOCK])
        yield inner


class Counting(FaultyStore):
    """Also what is listed and looked at; `read` has each range: key, start, length."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        if (encryption := encryption_of(inner)) is not None:
            self.encryption = encryption
        self.read: list[tuple[str, int, int]] = []

    def open_range(self, key: str, start: int, length: int) -> Iterator[bytes]:
        self.read.append((key, start, length))
        return super().open_range(key, start, length)

    def of_topics(self) -> list[tuple[str, str]]:
        """(operation, what of a segment) for every request that is not for metadata."""
        return [(operation, key.rpartition("_")[2]) for operation, key in self.calls if key.startswith(layout.TOPICS)]


def encrypting(inner: Store, folder: Path) -> CryptStore:
    key = folder / "key"
    if not key.exists():
        key.write_text(generate_key())
    return CryptStore(inner, Keyring(inner, f"file:{key}"), layout.key_class)


def offsets(answers: Iterator[PartitionRecords]) -> list[int]:
    return [int(o) for f in answers for o in f.block.offsets]


def partition_of(store: Store, topic: str, number: int = 0) -> ArchivedPartition:
    return ArchiveReader(store).catalogue(topic).partition(topic, number)


def one(offset: int) -> Window:
    return Window(ranges=((offset, offset + 1),))


def partition_with(segments: list[Segment]) -> ArchivedPartition:
    return ArchivedPartition(0, segments[0].first, segments[-1].last + 1, tuple(segments))


ORDERS = [*range(10), 15, *range(17, 40)]
