"""The offset map of one slot in memory: the newest folded table and the committed parts after it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from kbackup.archive.restores.flow_map.tables import (
    SCHEMA,
    Files,
    MapPartName,
    MappedPartition,
    Runs,
    by_incarnation,
    delete_files,
    list_files,
    read_folded,
    read_map_part,
    runs_table,
    write_folded,
)
from kbackup.archive.restores.flow_map.thin import thin
from kbackup.errors import CorruptError, NotFoundError
from kbackup.store.base import Store
from kbackup.types import TopicPartition

FOLD = 16
"""Parts after the folded table that make a new one due."""

_THREADS = 8
_ATTEMPTS = 3
_EMPTY = np.empty(0, np.int64)


@dataclass
class SlotMap:
    """`head` is the last part that is in it, `folded` the last that the newest folded table contains."""

    store: Store
    directory: str
    head: MapPartName | None = None
    folded: MapPartName | None = None
    _runs: dict[MappedPartition, list[Runs]] = field(default_factory=dict)
    _ends: dict[TopicPartition, int] = field(default_factory=dict)

    def runs(self, key: MappedPartition) -> Runs:
        """Return the runs of a partition's incarnation, in order of source offset."""
        pieces = self._runs.get(key)
        if not pieces:
            return _EMPTY, _EMPTY, _EMPTY
        if len(pieces) > 1:
            source, target, count = (np.concatenate(columns) for columns in zip(*pieces, strict=True))
            self._runs[key] = pieces = [(source, target, count)]
        return pieces[0]

    def last_runs(self) -> Iterator[tuple[MappedPartition, Runs]]:
        """Yield the last run of each partition's newest incarnation."""
        newest = {key.remote: key for key in sorted(self._runs)}
        for key in newest.values():
            source, target, count = self._runs[key][-1]
            yield key, (source[-1:], target[-1:], count[-1:])

    @property
    def incarnations(self) -> list[MappedPartition]:
        return sorted(self._runs)

    def add(self, name: MapPartName, previous: MapPartName | None, table: pa.Table) -> bool:
        """Add a committed part. False, and nothing is added, where it does not follow the head."""
        if previous != self.head:
            return False
        self._append(table)
        self.head = name
        return True

    def _append(self, table: pa.Table) -> None:
        for key, runs in by_incarnation(table):
            if int(runs[1][0]) < self._ends.get(key.remote, 0) or int(runs[0][0]) < self._next(key):
                self._forget(key.remote)
            self._runs.setdefault(key, []).append(runs)
            self._ends[key.remote] = int(runs[1][-1] + runs[2][-1])

    def _next(self, key: MappedPartition) -> int:
        """Return the source offset after the last record of a partition's incarnation."""
        pieces = self._runs.get(key)
        return int(pieces[-1][0][-1] + pieces[-1][2][-1]) if pieces else 0

    def _forget(self, remote: TopicPartition) -> None:
        """The remote topic was made anew: nothing of what was applied before is in it."""
        for key in [key for key in self._runs if key.remote == remote]:
            del self._runs[key]

    def followers(self) -> list[tuple[MapPartName, pa.Table]]:
        """Return the parts that follow the head: one of them at most is committed, and nothing here tells which."""
        known = self.head.number if self.head else 0
        names = [n for n in list_files(self.store, self.directory).map_parts if n.number > known]
        parts = [(name, *read_map_part(self.store, self.directory, name)) for name in names]
        return [(name, table) for name, table, previous in parts if previous == self.head]

    def load(self, head: MapPartName | None) -> pa.Table:
        """Go on to the part `head`, which is committed; None: to the last part that another one follows. Returns the
        runs of the parts that were added, those of a folded table not among them."""
        for attempt in range(_ATTEMPTS):
            try:
                return self._load(head)
            except NotFoundError as error:  # folded and deleted meanwhile
                if attempt + 1 == _ATTEMPTS:
                    raise CorruptError(
                        f"the offset map under {self.directory} lacks a part that was committed ({error.message})",
                        "take it from a bucket version or another copy of the archive",
                    ) from error
        raise AssertionError

    def _load(self, head: MapPartName | None) -> pa.Table:
        files = list_files(self.store, self.directory)
        if files.folded and files.folded[-1].number > (self.head.number if self.head else 0):
            self._runs, self._ends = {}, {}
            self._append(read_folded(self.store, self.directory, files.folded[-1]))
            self.head = self.folded = files.folded[-1]
        known = self.head.number if self.head else 0
        later = [name for name in files.map_parts if name.number > known]
        with ThreadPoolExecutor(_THREADS) as pool:
            read = dict(
                zip(
                    later,
                    pool.map(lambda n: read_map_part(self.store, self.directory, n), later),
                    strict=True,
                )
            )
        if head is None:
            head = max((p for _, p in read.values() if p is not None), default=None)
        added: list[pa.Table] = []
        for name, previous, table in reversed(list(self._chain(head, read))):
            if not self.add(name, previous, table):
                raise CorruptError(
                    f"the part {name} of the offset map under {self.directory} follows {previous or 'no part'}, not "
                    f"{self.head or 'no part'}",
                    "take the missing parts from a bucket version or another copy of the archive",
                )
            added.append(table)
        return pa.concat_tables([SCHEMA.empty_table(), *added])

    def _chain(
        self, name: MapPartName | None, read: dict[MapPartName, tuple[pa.Table, MapPartName | None]]
    ) -> Iterator[tuple[MapPartName, MapPartName | None, pa.Table]]:
        """Yield the parts after the head, the last one first."""
        while name is not None and name.number > (self.head.number if self.head else 0):
            if name not in read:
                raise NotFoundError(f"part {name} is missing")
            table, previous = read[name]
            yield name, previous, table
            name = previous

    @property
    def merge_due(self) -> bool:
        return self.head is not None and self.head.number - (self.folded.number if self.folded else 0) >= FOLD

    def merge_map_parts(self) -> None:
        """Write a table of everything, and delete what the table before it stands for already."""
        assert self.head is not None  # noqa: S101 (it is due)
        for key in self._runs:
            self._runs[key] = [thin(self.runs(key))]
        table = runs_table({key: pieces[0] for key, pieces in self._runs.items()})
        write_folded(self.store, self.directory, self.head, table)
        files = list_files(self.store, self.directory)
        if self.folded is not None:
            before = self.folded.number
            old = Files(
                [name for name in files.map_parts if name.number <= before],
                [name for name in files.folded if name.number < before],
            )
            delete_files(self.store, self.directory, old)
        self.folded = self.head
