"""Offsets of the source to offsets of the target, as the target's brokers reported them for each record.

A map is a table of runs: so many records in a row went from one offset on to another offset on. `map_parts` has the map
of a restore; mirrors keep maps in the same form.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kbackup.archive.segments.table import read_bounded
from kbackup.errors import CorruptError
from kbackup.types import Int64Array, TopicPartition

Runs = tuple[Int64Array, Int64Array, Int64Array]
"""Source, target, count: int64[n] each."""

How = Literal["exact", "next record", "log end", "log start", "empty", "expired"]


class Mapped(NamedTuple):
    """The offset on the target, and how it was found.

    `how` is 'exact' if the record itself was restored, 'next record' if it is missing and the next record counts, 'log
    end' if nothing comes after it, 'log start' if it lies before the first restored record, 'empty' if nothing was
    restored, and 'expired' if the target has deleted the record since, and the first record of its log counts.
    """

    offset: int
    how: How


@dataclass(frozen=True, slots=True, eq=False)
class OffsetMap:
    """One partition's map as runs, sorted by source: int64[n] each; record `source + i` went to `target + i`,
    0 <= i < `count`.

    `next` is the target's next offset after the restore, `start` where the target's log starts now.
    """

    source: Int64Array
    target: Int64Array
    count: Int64Array
    next: int
    start: int = 0

    def map(self, committed: int) -> Mapped:
        """Return the target offset of the first restored record whose source offset is at or after `committed`."""
        mapped = self._restored(committed)
        if mapped.offset < self.start:
            return Mapped(self.start, "expired")
        return mapped

    def _restored(self, committed: int) -> Mapped:
        """Return the target offset as the restore left the log, whatever the target has deleted since."""
        if not len(self.source):
            return Mapped(self.next, "empty")
        at = int(np.searchsorted(self.source, committed, side="right")) - 1
        if at < 0:
            return Mapped(int(self.target[0]), "log start")
        into = committed - int(self.source[at])
        if into < self.count[at]:
            return Mapped(int(self.target[at]) + into, "exact")
        if at + 1 < len(self.source):
            return Mapped(int(self.target[at + 1]), "next record")
        return Mapped(self.next, "log end")


@dataclass(frozen=True, slots=True)
class SameLog:
    """The map onto the very log that was archived. Offsets are what they were, as far as the log still has them: from
    `start` to `end`."""

    start: int
    end: int

    def map(self, committed: int) -> Mapped:
        if committed < self.start:
            return Mapped(self.start, "expired")
        if committed > self.end:
            return Mapped(self.end, "log end")
        return Mapped(committed, "exact")


# Runs as tables.

_RUNS = ("source", "target", "count")


def map_schema(*numbers: str) -> pa.Schema:
    """Return the schema of runs by topic and the int32 columns `numbers`."""
    types: dict[str, pa.DataType] = {"topic": pa.string()}
    types |= dict.fromkeys(numbers, pa.int32())
    types |= dict.fromkeys(_RUNS, pa.int64())
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in types.items()])


SCHEMA = map_schema("partition")

_Key = TypeVar("_Key", bound=tuple[Any, ...])


def runs_table(runs: Mapping[_Key, Runs], schema: pa.Schema = SCHEMA) -> pa.Table:
    """Return runs as one table of `schema`. Keys are the values of its first columns: a topic, then int32 numbers."""
    tables = [_one_key_table(key, columns, schema) for key, columns in runs.items()]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def _one_key_table(key: tuple[Any, ...], runs: Runs, schema: pa.Schema) -> pa.Table:
    """Return the runs of one key as a table, with the key in each row."""
    topic, *numbers = key
    rows = len(runs[0])
    columns: list[pa.Array[Any]] = [pa.array([topic] * rows, pa.string())]
    for number in numbers:
        same = np.full(rows, number, np.int32)
        columns.append(pa.array(same))
    columns += [pa.array(column, pa.int64()) for column in runs]
    return pa.Table.from_arrays(columns, schema=schema)


def by_partition(table: pa.Table) -> Iterator[tuple[TopicPartition, Runs]]:
    """Yield the runs of each target partition. They stand together in the table, as they do in every part."""
    for (topic, partition), runs in split_runs(table):
        yield TopicPartition(topic, partition), runs


def runs_by_partition(table: pa.Table) -> dict[TopicPartition, Runs]:
    """Return the runs of each target partition, wherever in the table they stand."""
    stretches = defaultdict[TopicPartition, list[Runs]](list)
    for tp, runs in by_partition(table):
        stretches[tp].append(runs)
    return joined(stretches)


def joined(stretches: Mapping[TopicPartition, Sequence[Runs]]) -> dict[TopicPartition, Runs]:
    """Return the runs of each partition, joined from several stretches."""
    return {tp: concatenated(runs) for tp, runs in stretches.items()}


def concatenated(stretches: Sequence[Runs]) -> Runs:
    """Return runs of one partition that follow one another as one."""
    sources, targets, counts = zip(*stretches, strict=True)
    return np.concatenate(sources), np.concatenate(targets), np.concatenate(counts)


def split_runs(table: pa.Table) -> Iterator[tuple[tuple[Any, ...], Runs]]:
    """Yield each stretch of rows with the same key: the values in the columns before the runs, and the runs."""
    if not len(table):
        return
    # Names as numbers: neighbours are compared by numpy, a million rows at once.
    topics: Any = table.column("topic").combine_chunks().dictionary_encode()
    codes = topics.indices.to_numpy()
    source, target, count = (table.column(name).to_numpy() for name in _RUNS)
    numbers = [table.column(name).to_numpy() for name in table.schema.names[1 : -len(_RUNS)]]
    changed = np.diff(codes) != 0
    for column in numbers:
        changed |= np.diff(column) != 0
    edges = [0, *(np.flatnonzero(changed) + 1).tolist(), len(table)]
    for start, stop in pairwise(edges):
        topic = topics.dictionary[int(codes[start])].as_py()
        key = (topic, *(int(column[start]) for column in numbers))
        yield key, (source[start:stop], target[start:stop], count[start:stop])


# Files of runs.

PREVIOUS = b"kbackup.previous"
"""The metadata of a part that has the name of the part before it."""

_KEY = b"kbackup.key"
_SUM = b"kbackup.sum"
_NO_SUM = b"sha256:" + b"0" * 64  # as long as any checksum, which takes its place in the file
_ROWS = 1 << 20  # of a map in one row group of its file


class MapFile:
    """A map as Parquet in memory. Its key and its checksum are in the file itself: no other document has them."""

    def __init__(self, key: str, schema: pa.Schema) -> None:
        metadata = {**(schema.metadata or {}), _KEY: key.encode(), _SUM: _NO_SUM}
        self._sink = io.BytesIO()
        self._waiting: list[pa.Table] = []
        self._rows = 0  # of the tables that wait
        self._schema = schema.with_metadata(metadata)
        self._writer = pq.ParquetWriter(self._sink, self._schema, compression="zstd")

    def write(self, table: pa.Table) -> None:
        self._waiting.append(table)
        self._rows += len(table)
        if self._rows >= _ROWS:
            self._write_rows()

    def _write_rows(self) -> None:
        self._writer.write_table(pa.concat_tables(self._waiting))
        self._waiting = []
        self._rows = 0

    def data(self) -> bytes:
        """Return the whole file."""
        if self._rows:
            self._write_rows()
        self._writer.close()
        data = self._sink.getvalue()
        # The checksum is of the file with zeros in its place: whoever checks it puts the zeros back.
        return data.replace(_NO_SUM, _sum(data), 1)


def encode(table: pa.Table, key: str) -> bytes:
    """Encode a map or a part, which belongs under `key`."""
    file = MapFile(key, table.schema)
    file.write(table)
    return file.data()


def _sum(data: bytes) -> bytes:
    return b"sha256:" + hashlib.sha256(data).hexdigest().encode()


def previous_name(part: pa.Table) -> str:
    return (part.schema.metadata or {}).get(PREVIOUS, b"").decode(errors="replace")


def decode(data: bytes, name: str, schema: pa.Schema = SCHEMA) -> pa.Table:
    """Return the map or the part that belongs under the key `name`. `CorruptError` for anything else. A file with
    another checksum is refused before it is parsed."""
    # A file has one checksum, its own. With another one beside it nobody could tell which of them to check it by.
    sums = re.findall(rb"sha256:[0-9a-f]{64}", data)
    if len(sums) != 1 or _sum(data.replace(sums[0], _NO_SUM)) != sums[0]:
        raise CorruptError(
            f"file {name} does not match its own checksum",
            "take it from a bucket version or another copy: it was changed after it was written",
        )
    try:
        table = read_bounded(data, name, schema.names)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptError(
            f"file {name} is not a Parquet table: {error}",
            "take it from a bucket version or another copy: it may have been cut",
        ) from error
    belongs = (table.schema.metadata or {}).get(_KEY, b"").decode(errors="replace")
    if belongs != name:
        raise CorruptError(
            f"file {name} belongs at {belongs!r}",
            "take the right one from a bucket version: this one was copied from elsewhere",
        )
    return table
