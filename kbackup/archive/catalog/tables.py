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
from kbackup.archive.segments.table import (
    SCHEMA,
    Segment,
    decode_table,
    integers,
    of_topics,
    rows_where,
    to_batch,
    values_of,
)
from kbackup.errors import CorruptError, NotFoundError
from kbackup.store.base import Store
from kbackup.util.system import in_threads

SEGMENTS = SCHEMA.append(pa.field("point", pa.int64(), nullable=False))
"""One row per segment; `point` is the restore point that added it."""

# `_SMALL`: a table with no more rows stays one chunk. `_MIDDLE`: the second chunk may have as many rows, however small
# the table is, and a chunk with no more rows is decoded whole.
_SMALL, _MIDDLE = 64, 4096
# How many times larger a chunk may grow than the chunk after it.
_RATIO = 16


def encode(table: pa.Table) -> bytes:
    """Return a table as a Parquet file."""
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
        """Return the rows, or some columns, or the rows of `topics` alone. `CorruptError` for a file that is missing or
        differs from its checksum in the catalog."""
        if self.rows > _MIDDLE and not isinstance(self.source, pa.Table):
            return self._decoded(columns, topics)
        table = self._table
        if columns is not None:
            table = table.select(list(columns))
        if topics is not None:
            table = of_topics(table, topics)
        return table

    @cached_property
    def _table(self) -> pa.Table:
        """All rows. Of a small file they are kept: to decode one column takes nearly as long as to decode them all."""
        if isinstance(self.source, pa.Table):
            return self.source
        return self._decoded(None, None)

    def _decoded(self, columns: Sequence[str] | None, topics: Collection[str] | None) -> pa.Table:
        name = self.ref.key if self.ref is not None else ""
        table = decode_table(self.data, name, self.schema, columns, self.rows, topics)
        # How many rows the topics have, the catalog does not say.
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
        """Return the rows as one table, or some columns, or the rows of `topics` alone."""
        names = self.schema.names if columns is None else list(columns)
        schema = pa.schema([self.schema.field(name) for name in names])
        # Without chunks the table still has its columns. `schema.empty_table` would load pandas.
        tables = [pa.Table.from_batches([], schema)]
        for chunk in self.chunks:
            tables.append(chunk.read(names, topics))
        return pa.concat_tables(tables)

    def above(self, column: str, limit: int) -> Rows:
        """Return the chunks that have rows in which a column of integers is above `limit`."""
        chunks = [chunk for chunk in self.chunks if chunk.greatest(column) > limit]
        return Rows(self.schema, tuple(chunks))

    def columns(self, *names: str) -> list[list[Any]]:
        """Return some columns, or all, as lists of Python values."""
        columns: list[list[Any]] = []
        for column in self.read(names or None).columns:
            values: list[Any] = []
            for chunk in column.chunks:
                values += values_of(chunk)
            columns.append(values)
        return columns

    def rows(self, *names: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of some columns, or of all, as tuples of Python values. The tuples of one batch are there at a
        time."""
        table = self.read(names or None)
        for batch in table.to_batches(_MIDDLE):
            columns = map(values_of, batch.columns)
            yield from zip(*columns, strict=True)

    def dicts(self) -> list[dict[str, Any]]:
        """Return the rows as Python values: for tables that are small, or wanted whole."""
        return self.read().to_pylist()

    def append(self, rows: pa.Table | Sequence[dict[str, Any]] | Sequence[NamedTuple]) -> Rows:
        """Return these rows and, as its last chunk, more `rows`, with the chunks merged that became too many or too
        large."""
        table = self._table_of(rows)
        if not len(table):
            return self
        total = len(self) + len(table)
        # The most rows of the first, the second and the third chunk. Most commits write the third chunk alone, a 256th
        # of the rows; the second is written anew when the third is full.
        limits = (total, max(_MIDDLE, total // _RATIO), max(_SMALL, total // _RATIO**2))
        chunks = list(self.chunks)
        merged = [table]
        while chunks:
            has_room = len(chunks) < len(limits) and sum(map(len, merged)) <= limits[len(chunks)]
            if has_room and total > _SMALL:
                break
            merged.insert(0, chunks.pop().read())
        last = pa.concat_tables(merged)
        chunks.append(self._chunk(last))
        return Rows(self.schema, tuple(chunks))

    def with_rows_of(self, other: Rows) -> Rows:
        """Return these rows and those of `other` that are not among them. Both are of the same table."""
        known = set(self.rows())
        names = self.schema.names
        new: list[dict[str, Any]] = []
        for row in other.rows():
            if row not in known:
                new.append(dict(zip(names, row, strict=True)))
        return self.append(new)

    def _table_of(self, rows: pa.Table | Sequence[dict[str, Any]] | Sequence[NamedTuple]) -> pa.Table:
        if isinstance(rows, pa.Table):
            return rows
        dicts: list[dict[str, Any]] = []
        for row in rows:
            values = row if isinstance(row, dict) else row._asdict()
            dicts.append(values)
        return pa.Table.from_pylist(dicts, schema=self.schema)

    def replace(self, rows: pa.Table | Sequence[dict[str, Any]] | Sequence[NamedTuple]) -> Rows:
        """Return all rows anew, as one chunk."""
        return Rows(self.schema).append(rows)

    def where(self, keep: Callable[..., bool], *names: str) -> Rows:
        """Return the rows for which `keep` of their columns `names` is true. Chunks that lose no row stay as they
        are."""
        answers = (keep(*row) for row in self.rows(*names))
        is_kept = np.fromiter(answers, np.bool_)
        chunks: list[Chunk] = []
        begin = 0
        for chunk in self.chunks:
            is_kept_here = is_kept[begin : begin + chunk.rows]
            begin += chunk.rows
            if is_kept_here.all():
                # A new chunk would be a new file: the commit keeps the file that there is.
                chunks.append(chunk)
            elif is_kept_here.any():
                remaining = rows_where(chunk.read(), is_kept_here)
                chunks.append(self._chunk(remaining))
        return Rows(self.schema, tuple(chunks))

    def without(self, column: str, values: Collection[object]) -> Rows:
        """Return the rows whose `column` is none of `values`."""
        return self.where(lambda value: value not in values, column)

    def _chunk(self, table: pa.Table) -> Chunk:
        return Chunk(self.schema, len(table), table.cast(self.schema))


def segment_rows(segments: Sequence[Segment], points: Sequence[int]) -> pa.Table:
    """Return the rows of `SEGMENTS` of some segments, each with the restore point that added it."""
    table = pa.Table.from_batches([to_batch(segments)])
    column = pa.array(points, pa.int64())
    return table.append_column(SEGMENTS.field("point"), column)


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
    known_chunks: dict[TableRef | None, Chunk] = {}
    if known is not None:
        known_chunks = {chunk.ref: chunk for chunk in known.chunks}
    chunks: list[Chunk] = []
    for ref in refs:
        chunk = known_chunks.get(ref)
        if chunk is None:
            chunk = Chunk(schema, ref.rows, partial(read_ref, store, ref), ref)
        chunks.append(chunk)
    return Rows(schema, tuple(chunks))


def fetch(*tables: Rows) -> None:
    """Read the files of tables side by side; otherwise each is read when its rows are first needed."""

    def read(chunk: Chunk) -> bytes:
        return chunk.data

    chunks: list[Chunk] = []
    for rows in tables:
        chunks += rows.chunks
    in_threads(read, chunks)


def write_rows(store: Store, rows: Rows, names: Iterator[str]) -> tuple[Rows, tuple[TableRef, ...]]:
    """Create a file for each chunk that has none, under the next name. Returns the rows with their references."""
    chunks: list[Chunk] = []
    refs: list[TableRef] = []
    for chunk in rows.chunks:
        written = chunk
        ref = chunk.ref
        if ref is None:
            table = chunk.read()
            ref = _write_table(store, table, next(names))
            written = Chunk(chunk.schema, chunk.rows, chunk.source, ref)
        chunks.append(written)
        refs.append(ref)
    return Rows(rows.schema, tuple(chunks)), tuple(refs)


def _write_table(store: Store, table: pa.Table, key: str) -> TableRef:
    data = encode(table)
    store.put_new(key, data)
    return TableRef(key=key, size=len(data), sha256=hashlib.sha256(data).hexdigest(), rows=len(table))
