"""An internal topic with the last record of each key in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from kbackup.jobs.mirror.positions.sync_store import OffsetSyncStore
from kbackup.kafka.mirror_records import Checkpoint, OffsetSync

R = TypeVar("R", bound=Checkpoint | OffsetSync)


class Journal(Generic[R]):
    """`read` returns all records of the topic; `write` appends some and returns when brokers have them.

    The topic is read when its last records are first asked for, and again after a write that failed: some of its
    records may be there.
    """

    def __init__(self, read: Callable[[], Iterable[R]], write: Callable[[Sequence[R]], object]) -> None:
        self._read, self._write = read, write
        self._last: dict[bytes, R] = {}
        self._known = False

    def last(self) -> Mapping[bytes, R]:
        """Return the last record of each key."""
        if not self._known:
            self._begin()
            for record in self._read():
                self._add(record)
            self._known = True
        return self._last

    def append(self, records: Sequence[R]) -> None:
        if not records:
            return
        self.last()
        self._known = False
        self._write(records)
        for record in records:
            self._add(record)
        self._known = True

    def _begin(self) -> None:
        self._last = {}

    def _add(self, record: R) -> None:
        self._last[record.key] = record


class SyncJournal(Journal[OffsetSync]):
    """The offset syncs of a flow, and the syncs that Java's readers retain."""

    def __init__(
        self, read: Callable[[], Iterable[OffsetSync]], write: Callable[[Sequence[OffsetSync]], object]
    ) -> None:
        super().__init__(read, write)
        self._store: OffsetSyncStore | None = None

    def store(self) -> OffsetSyncStore:
        """Return the syncs that a reader of the whole topic retains."""
        if self._store is None:
            self._known = False
            self._store = OffsetSyncStore()
        self.last()
        return self._store

    def _begin(self) -> None:
        super()._begin()
        if self._store is not None:
            self._store.clear()

    def _add(self, record: OffsetSync) -> None:
        super()._add(record)
        if self._store is not None:
            self._store.add(record)
