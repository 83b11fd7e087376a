"""Descriptors of segments, and tables of them by columns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from types import UnionType
from typing import Any, get_args, get_type_hints

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kbackup.archive.segments.bounds import read_bounded
from kbackup.errors import CorruptError
from kbackup.types import IncarnationPartition, Int64Array

_HINT = "run 'kbackup verify' to see whether the archive is damaged"


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """One segment: a records file and its index.

    `first` and `last` are offsets of its first and last record; `bytes` is the size of the documented records
    file (magic byte included), `stored` that of the object at `key` (smaller when compressed). Timestamps in
    ms, None where no record has one. `largest` is the longest encoded record in bytes. `crc` and `index_crc`
    are CRC-64/NVME over the stored bytes of the records object and of the index object, as 16 hex digits; ''
    where they are unknown (files of the Java tool).
    """

    topic: str
    incarnation: int
    partition: int
    first: int
    last: int
    count: int
    bytes: int
    stored: int
    min_timestamp: int | None
    max_timestamp: int | None
    largest: int
    crc: str
    index_crc: str
    key: str

    @property
    def incarnation_partition(self) -> IncarnationPartition:
        return self.topic, self.incarnation, self.partition


_KINDS: dict[Any, pa.DataType] = {
    int: pa.int64(), str: pa.string(), bool: pa.bool_(), tuple[str, ...]: pa.list_(pa.string()),
}  # fmt: skip
_INT32 = ("incarnation", "partition", "topics", "partitions", "groups", "losses", "warnings")


def schema_of(row: type) -> pa.Schema:
    """Return a schema with a column for each field of a class. Integers are int64, but for those of `_INT32`; `int |
    None` can be null."""
    columns: list[pa.Field[Any]] = []
    for name, hint in get_type_hints(row).items():
        nullable = isinstance(hint, UnionType)
        kind = _KINDS[get_args(hint)[0] if nullable else hint]
        columns.append(pa.field(name, pa.int32() if name in _INT32 else kind, nullable=nullable))
    return pa.schema(columns)


SCHEMA = schema_of(Segment)
PLACE = pa.schema(list(SCHEMA)[:4])
"""The columns that say where a segment begins: topic, incarnation, partition, first."""

Starts = Mapping[IncarnationPartition, Int64Array]
"""The first offset of each of its segments, rising."""


def to_batch(segments: Sequence[Segment]) -> pa.RecordBatch:
    """Return a batch of segments, made by columns: a dict a segment took 25 µs, this takes 1.5."""
    columns: list[pa.Array[Any]] = [
        pa.array(map(attrgetter(field.name), segments), type=field.type, size=len(segments))
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def from_batches(batches: Iterable[pa.RecordBatch]) -> list[Segment]:
    found: list[Segment] = []
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in SCHEMA.names]
        found += [Segment(*row) for row in zip(*columns, strict=True)]
    return found


def decode_table(
    data: bytes,
    name: str,
    schema: pa.Schema = SCHEMA,
    columns: Sequence[str] | None = None,
    rows: int | None = None,
) -> pa.Table:
    """Decode a table of `schema` with at most `rows`, or some columns of it: those of `PLACE` alone take a thirtieth of
    the memory of segments. `CorruptError` for other data."""
    names = schema.names if columns is None else list(columns)
    try:
        table = read_bounded(data, name, schema.names, names, rows)
        return table.cast(pa.schema([schema.field(n) for n in names]))
    except (pa.ArrowException, OSError, ValueError) as error:  # the last where names are no text
        raise CorruptError(f"file {name} is not a Parquet table: {error}", _HINT) from error


def rows_where(table: pa.Table, keep: npt.NDArray[np.bool_]) -> pa.Table:
    """Return the rows where `keep` is true, by bare buffers: pyarrow's own conversions import pandas, which takes
    longer than 'kbackup list'."""
    if keep.all():
        return table
    rows = np.flatnonzero(keep).astype(np.int64)
    return table.take(pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(rows.tobytes())]))


def integers(table: pa.Table, name: str) -> Int64Array:
    """Return a column without nulls as int64[rows], without importing pandas."""
    return np.concatenate([np.zeros(0, np.int64), *map(np.from_dlpack, table.column(name).chunks)])


def of_topics(table: pa.Table, topics: Collection[str]) -> pa.Table:
    codes: Any = table.column("topic").combine_chunks().dictionary_encode()
    wanted = np.array([name in topics for name in codes.dictionary.to_pylist()], np.bool_)
    return rows_where(table, wanted[np.frombuffer(codes.indices.buffers()[1], np.int32, len(table))])


def starts_of(tables: Sequence[pa.Table]) -> Starts:
    """Return the first offsets of the segments in tables with the columns of `PLACE`, in any order."""
    table = pa.concat_tables([PLACE.empty_table(), *tables])
    topics: Any = table.column("topic").combine_chunks().dictionary_encode()
    names: list[str] = topics.dictionary.to_pylist()
    codes, *rest = (topics.indices.to_numpy(), *(table.column(n).to_numpy() for n in PLACE.names[1:]))
    order = np.lexsort((*reversed(rest), codes))
    columns = [column[order] for column in (codes, *rest)]
    moved = np.zeros(len(order), np.bool_)
    for column in columns[:-1]:
        moved[1:] |= column[1:] != column[:-1]
    cuts = [*([0] if len(order) else []), *np.flatnonzero(moved).tolist(), len(order)]
    code, incarnation, partition, first = columns
    return {(names[code[a]], int(incarnation[a]), int(partition[a])): first[a:b] for a, b in pairwise(cuts)}


def in_order(segment: Segment) -> tuple[str, int, int, int]:
    """Return the key to sort segments by."""
    return (*segment.incarnation_partition, segment.first)
