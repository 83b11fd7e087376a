"""The tables of a catalog: their bytes, and rows as a few immutable chunks.

A commit appends to the last chunk and now and then merges chunks, so that there are at most three of each table and
a commit writes about 1/256 of the rows. Chunks are read when their rows are first needed.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kbackup.archive.catalog.documents import TableRef
from kbackup.archive.identity import REPAIR
from kbackup.archive.segments.table import SCHEMA, decode_table, integers, of_topics, rows_where, values_of
from kbackup.errors import CorruptError, NotFoundError
from kbackup.store.base import Store
from kbackup.util.system import in_threads

SEGMENTS = SCHEMA.append(pa.field("point", pa.int64(), nullable=False))
"""One row per segment; `point` is the restore point that added it."""

_SMALL, _MIDDLE = 64, 4096
_RATIO = 16


def encode(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some rows of a table. `ref` is None until a commit has written them."""

    schema: pa.Schema
    rows: int
    source: Callable[[], bytes] | pa.Table
    ref: TableRef | None = None
    _greatest: dict[str, int] = field(default_factory=dict)

    @cached_property
    def data(self) -> bytes:
        """The file; empty where the rows are in memory."""
        return self.source() if callable(self.source) else b""

    def read(self, columns: Sequence[str] | None = None, topics: Collection[str] | None = None) -> pa.Table:
        """Return the rows, or some columns, or those of `topics` alone. `CorruptError` for a file that is missing or
        differs from its checksum in the catalog."""
        if self.rows > _MIDDLE and not isinstance(self.source, pa.Table):
            return self._decoded(columns, topics)
        table = self._table if columns is None else self._table.select(list(columns))
        return table if topics is None else of_topics(table, topics)

    @cached_property
    def _table(self) -> pa.Table:
        """The whole table, which a small one is kept as: most of the time for a part of it is spent for each file."""
        return self.source if isinstance(self.source, pa.Table) else self._decoded(None, None)

    def _decoded(self, columns: Sequence[str] | None, topics: Collection[str] | None) -> pa.Table:
        name = self.ref.key if self.ref is not None else ""
        table = decode_table(self.data, name, self.schema, columns, self.rows, topics)
        if topics is None and len(table) != self.rows:
            raise CorruptError(f"file {name} has {len(table)} rows, its catalog says {self.rows}", REPAIR)
        return table

    def greatest(self, column: str) -> int:
        """Return the greatest value of a column of integers, looked up once."""
        if column not in self._greatest:
            values = integers(self.read([column]), column)
            self._greatest[column] = int(values.max(initial=np.iinfo(np.int64).min))
        return self._greatest[column]


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one table as a value: every method returns a new one."""

    schema: pa.Schema
    chunks: tuple[Chunk, ...] = ()

    def __len__(self) -> int:
        return sum(chunk.rows for chunk in self.chunks)

    def read(self, columns: Sequence[str] | None = None, topics: Collection[str] | None = None) -> pa.Table:
        names = self.schema.names if columns is None else list(columns)
        schema = pa.schema([self.schema.field(name) for name in names])
        empty = pa.Table.from_batches([], schema)  # `empty_table` would load pandas
        return pa.concat_tables([empty, *(chunk.read(names, topics) for chunk in self.chunks)])

    def above(self, column: str, limit: int) -> Rows:
        """Return the chunks that have rows in which a column of integers is above `limit`."""
        return Rows(self.schema, tuple(chunk for chunk in self.chunks if chunk.greatest(column) > limit))

    def columns(self, *names: str) -> list[list[Any]]:
        """Columns as Python values."""
        table = self.read(names or None)
        return [[value for chunk in column.chunks for value in values_of(chunk)] for column in table.columns]

    def rows(self, *names: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of some columns as Python values, of which few are there at a time."""
        for batch in self.read(names or None).to_batches(_MIDDLE):
            yield from zip(*map(values_of, batch.columns), strict=True)

    def dicts(self) -> list[dict[str, Any]]:
        """Return the rows as Python values: for tables that are small, or wanted whole."""
        return self.read().to_pylist()

    def append(self, rows: pa.Table | Sequence[dict[str, Any]] | Sequence[NamedTuple]) -> Rows:
        table = rows
        if not isinstance(table, pa.Table):
            dicts = [row if isinstance(row, dict) else row._asdict() for row in table]
            table = pa.Table.from_pylist(dicts, schema=self.schema)
        if not len(table):
            return self
        total = len(self) + len(table)
        limits = (total, max(_MIDDLE, total // _RATIO), max(_SMALL, total // _RATIO**2))
        chunks, joined = [*self.chunks], [table]
        while chunks and (total <= _SMALL or len(chunks) == len(limits) or sum(map(len, joined)) > limits[len(chunks)]):
            joined.insert(0, chunks.pop().read())
        return Rows(self.schema, (*chunks, self._chunk(pa.concat_tables(joined))))

    def replace(self, rows: pa.Table | Sequence[dict[str, Any]] | Sequence[NamedTuple]) -> Rows:
        """Return all rows anew, as one chunk."""
        return Rows(self.schema).append(rows)

    def where(self, keep: Callable[..., bool], *names: str) -> Rows:
        """Return the rows for which `keep` of their columns `names` is true. Chunks that lose no row stay as they
        are."""
        every = np.fromiter((keep(*row) for row in self.rows(*names)), np.bool_)
        chunks: list[Chunk] = []
        at = 0
        for chunk in self.chunks:
            kept = every[at : at + chunk.rows]
            at += chunk.rows
            if kept.all():
                chunks.append(chunk)
            elif kept.any():
                chunks.append(self._chunk(rows_where(chunk.read(), kept)))
        return Rows(self.schema, tuple(chunks))

    def without(self, column: str, values: Collection[object]) -> Rows:
        """Return the rows whose `column` is none of `values`."""
        return self.where(lambda value: value not in values, column)

    def _chunk(self, table: pa.Table) -> Chunk:
        return Chunk(self.schema, len(table), table.cast(self.schema))


def read_ref(store: Store, ref: TableRef, owner: str = "its catalog", hint: str = REPAIR) -> bytes:
    """Return the bytes that `ref` promises; `CorruptError` if they are missing or others, naming the `owner` of the
    reference."""
    try:
        data = store.get(ref.key)
    except NotFoundError as error:
        raise CorruptError(f"file {ref.key} is missing, {owner} refers to it", hint) from error
    if len(data) != ref.size or hashlib.sha256(data).hexdigest() != ref.sha256:
        raise CorruptError(f"file {ref.key} is not what {owner} says", hint)
    return data


def open_rows(store: Store, schema: pa.Schema, refs: Sequence[TableRef], known: Rows | None = None) -> Rows:
    """Return rows that are read from `store` when they are first needed; chunks of `known` rows are taken over."""
    there = {chunk.ref: chunk for chunk in known.chunks} if known is not None else {}
    chunks = (there.get(ref) or Chunk(schema, ref.rows, partial(read_ref, store, ref), ref) for ref in refs)
    return Rows(schema, tuple(chunks))


def fetch(*tables: Rows) -> None:
    """Read the files of tables side by side; otherwise each is read when its rows are first needed."""
    in_threads(lambda chunk: chunk.data, [chunk for rows in tables for chunk in rows.chunks])


def write_rows(store: Store, rows: Rows, names: Iterator[str]) -> tuple[Rows, tuple[TableRef, ...]]:
    """Create a file for each chunk that has none, under the next name. Returns the rows with their references."""
    chunks = [*rows.chunks]
    for at, chunk in enumerate(chunks):
        if chunk.ref is None:
            data = encode(chunk.read())
            ref = TableRef(key=next(names), size=len(data), sha256=hashlib.sha256(data).hexdigest(), rows=chunk.rows)
            store.put_new(ref.key, data)
            chunks[at] = Chunk(chunk.schema, chunk.rows, chunk.source, ref)
    return Rows(rows.schema, tuple(chunks)), tuple(chunk.ref for chunk in chunks if chunk.ref is not None)
