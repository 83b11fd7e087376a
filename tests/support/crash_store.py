"""A store whose process dies at a chosen write: every crash point of a command, in the process of the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kbackup.archive import layout
from kbackup.store.base import Store
from tests.support.exhaustive import sample
from tests.support.faulty_store import FaultyStore, Operation
from tests.support.memory_store import MemoryStore


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
    for at in sample(range(first, counting.writes + 1, step)):
        inner = before.copy()
        with pytest.raises(Crash):
            work(CrashStore(inner, at))
        inner.delete([layout.LOCK])
        yield inner
