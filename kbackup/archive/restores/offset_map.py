"""Offsets of the source to offsets of the target, by the broker's own word on where each record went."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kbackup.archive import layout
from kbackup.archive.segments.table import read_bounded
from kbackup.errors import CorruptError
from kbackup.store.base import Store
from kbackup.types import Int64Array, TopicPartition

Runs = tuple[Int64Array, Int64Array, Int64Array]
"""Source, target, count: int64[n] each."""

How = Literal["exact", "next record", "log end", "log start", "empty", "expired"]


class Mapped(NamedTuple):
    """`how`: the record itself was restored; it was missing and the next one counts; there is nothing after
    it; it lies before the first restored record; nothing was restored; the target's log has lost the place
    since, and its first record counts."""

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
        return mapped if mapped.offset >= self.start else Mapped(self.start, "expired")

    def _restored(self, committed: int) -> Mapped:
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
    """The map onto the very log that was archived: offsets are what they were, as far as it still has them
    (`start` to `end`)."""

    start: int
    end: int

    def map(self, committed: int) -> Mapped:
        if committed < self.start:
            return Mapped(self.start, "expired")
        if committed > self.end:
            return Mapped(self.end, "log end")
        return Mapped(committed, "exact")


# The offset map of a restore: restores/<id>/offsets.parquet, and the parts it is put together from.
#
# A restore unit writes one part before each of its transactions is committed and commits the part's name with
# it, so that the parts of committed transactions, and no others, can be found again after a crash. Parts of one
# attempt are numbered; each names the part of the attempt before that it goes on from.


def map_schema(*numbers: str) -> pa.Schema:
    """Return the schema of runs by topic and the int32 columns `numbers`."""
    types: dict[str, pa.DataType] = {"topic": pa.string(), **dict.fromkeys(numbers, pa.int32())}
    types |= dict.fromkeys(("source", "target", "count"), pa.int64())
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in types.items()])


SCHEMA = map_schema("partition")
PREVIOUS = b"kbackup.previous"
_CUT = b"kbackup.cut"
_KEY = b"kbackup.key"
_SUM = b"kbackup.sum"
_NO_SUM = b"sha256:" + b"0" * 64


class MapPartName(NamedTuple):
    """Written as `<attempt>-<number>` in the progress that is committed with a transaction."""

    attempt: str
    number: int

    def __str__(self) -> str:
        return f"{self.attempt}-{self.number}"

    @classmethod
    def parse(cls, text: str) -> MapPartName | None:
        attempt, _, number = text.rpartition("-")
        return cls(attempt, int(number)) if attempt and number.isdecimal() else None


class Cut(NamedTuple):
    """Of parts with a window alone: the records in it, their bytes, and how many were left out for want of a
    timestamp."""

    records: int = 0
    bytes: int = 0
    untimed: int = 0

    def plus(self, other: Cut) -> Cut:
        return Cut(*map(sum, zip(self, other, strict=True)))


NOTHING = Cut()

_Key = TypeVar("_Key", bound=tuple[Any, ...])


class CommittedMap(NamedTuple):
    """All that a unit has committed: its map, and what windows selected of what it read for that."""

    runs: pa.Table
    cut: Cut


def runs_table(runs: Mapping[_Key, Runs], schema: pa.Schema = SCHEMA) -> pa.Table:
    """Return runs as one table of `schema`. Keys are the values of its first columns: a topic, then int32 numbers."""
    tables = [
        pa.Table.from_arrays(
            [
                pa.array([topic] * len(columns[0]), pa.string()),
                *(pa.array(np.full(len(columns[0]), number, np.int32)) for number in numbers),
                *(pa.array(column, pa.int64()) for column in columns),
            ],
            schema=schema,
        )
        for (topic, *numbers), columns in runs.items()
    ]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def by_partition(table: pa.Table) -> Iterator[tuple[TopicPartition, Runs]]:
    """Yield the runs of a table in which each target partition's stand together, as in every map and part."""
    for (topic, partition), runs in split_runs(table):
        yield TopicPartition(topic, partition), runs


def split_runs(table: pa.Table) -> Iterator[tuple[tuple[Any, ...], Runs]]:
    """Yield the runs of each stretch of rows with the same values in the columns before the runs, and these values."""
    if not len(table):
        return
    topics: Any = table.column("topic").combine_chunks().dictionary_encode()
    codes = topics.indices.to_numpy()
    *numbers, source, target, count = (table.column(name).to_numpy() for name in table.schema.names[1:])
    changed = np.any([np.diff(column) != 0 for column in (codes, *numbers)], axis=0)
    for a, b in pairwise([0, *(np.flatnonzero(changed) + 1).tolist(), len(table)]):
        topic = topics.dictionary[int(codes[a])].as_py()
        yield (topic, *(int(column[a]) for column in numbers)), (source[a:b], target[a:b], count[a:b])


def _part_key(restore_id: str, unit: int, name: MapPartName) -> str:
    return layout.restore_key(restore_id, f"map/{unit}/{name}.parquet")


def write_map_part(
    store: Store,
    restore_id: str,
    unit: int,
    name: MapPartName,
    runs: pa.Table,
    previous: MapPartName | None,
    cut: Cut = NOTHING,
) -> None:
    """`cut` is what windows selected since the part before."""
    metadata = {PREVIOUS: str(previous or "").encode(), _CUT: ",".join(map(str, cut)).encode()}
    key = _part_key(restore_id, unit, name)
    store.put_new(key, encode(runs.replace_schema_metadata(metadata), key))


def read_map_parts(store: Store, restore_id: str, unit: int, last: MapPartName | None) -> CommittedMap:
    """Return everything that a unit has committed, `last` being the part named in its progress."""
    tables: list[pa.Table] = []
    while last is not None:
        keys = [_part_key(restore_id, unit, MapPartName(last.attempt, n)) for n in range(last.number + 1)]
        tables = [decode(store.get(key), key) for key in keys] + tables
        last = previous_of(tables[0])
    cut = NOTHING
    for table in tables:
        if (counts := table.schema.metadata.get(_CUT)) is not None:  # None: the part is older than windows
            cut = cut.plus(Cut(*map(int, counts.decode().split(","))))
    bare = [t.replace_schema_metadata(None) for t in tables]
    return CommittedMap(pa.concat_tables([SCHEMA.empty_table(), *bare]), cut)


def begun_map_parts(store: Store, restore_id: str, unit: int) -> Iterator[pa.Table]:
    """Yield every part that an attempt at the unit has written, whether its transaction was committed or not."""
    for entry in store.list(layout.restore_key(restore_id, f"map/{unit}/")):
        yield decode(store.get(entry.key), entry.key)


def previous_of(part: pa.Table) -> MapPartName | None:
    """Return the part of an earlier attempt that the attempt of `part` went on from."""
    return MapPartName.parse(previous_name(part))


def previous_name(part: pa.Table) -> str:
    return (part.schema.metadata or {}).get(PREVIOUS, b"").decode(errors="replace")


def encode(table: pa.Table, key: str) -> bytes:
    """Encode a map with its place and its own checksum: nothing else vouches for the file."""
    told = {**(table.schema.metadata or {}), _KEY: key.encode(), _SUM: _NO_SUM}
    sink = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(told), sink, compression="zstd")
    data = sink.getvalue()
    return data.replace(_NO_SUM, _sum(data), 1)


def _sum(data: bytes) -> bytes:
    return b"sha256:" + hashlib.sha256(data).hexdigest().encode()


def write_map(store: Store, restore_id: str, tables: Iterable[pa.Table]) -> pa.Table:
    """Write offsets.parquet, in order of topic, partition and source offset."""
    whole = pa.concat_tables([*tables, SCHEMA.empty_table()])
    whole = whole.sort_by([(name, "ascending") for name in ("topic", "partition", "source")])
    key = layout.restore_key(restore_id, layout.OFFSETS)
    store.put(key, encode(whole, key))
    return whole


def decode(data: bytes, name: str, schema: pa.Schema = SCHEMA) -> pa.Table:
    """Return the map or the part that belongs under the key `name`; `CorruptError` for anything else, before it is
    parsed."""
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
