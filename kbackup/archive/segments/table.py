"""The table of an archive's segments, read within bounds of memory and checked against its keys.

A few kilobytes can decode to billions of equal rows, or to ten thousand copies of one long name. In a table of an
archive each row takes bytes of its own, and names are short.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from types import UnionType
from typing import Any, get_args, get_type_hints

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from kbackup.archive import layout
from kbackup.errors import CorruptError
from kbackup.types import IncarnationPartition, Int64Array

_ROWS_A_BYTE = 8
_BYTES_A_BYTE = 200
_SMALL_ROWS = 10_000
_SMALL = 1 << 20
_SMALL_DECODED = 16 << 20  # rows, and bytes encoded and decoded, that are allowed for a table of any size
_BATCH = 1024
_LARGE = 1 << 20


def read_bounded(
    data: bytes, name: str, names: Sequence[str], columns: Sequence[str] | None = None, rows: int | None = None
) -> pa.Table:
    """Return the table of file `name`, which has the columns `names`, or some columns of it. `CorruptError` if it has
    other columns, more rows than `rows` (by its document; None where unknown) or than so many bytes can have, or more
    bytes uncompressed or decoded. Raises what pyarrow does for data that is no table."""
    file = pq.ParquetFile(io.BytesIO(data))
    if file.schema_arrow.names != [*names]:
        raise CorruptError(
            f"file {name} has other columns than its kind of table",
            "take it from a bucket version or another copy: it may have been replaced",
        )
    metadata = file.metadata
    if rows is not None and metadata.num_rows > rows:
        raise CorruptError(
            f"file {name} has {metadata.num_rows} rows, its document says {rows}",
            "check which tool wrote it; the table was not read",
        )
    size = sum(metadata.row_group(n).total_byte_size for n in range(metadata.num_row_groups))
    if metadata.num_rows > _SMALL_ROWS + len(data) * _ROWS_A_BYTE or size > _SMALL + len(data) * _BYTES_A_BYTE:
        raise _too_large(name, f"{metadata.num_rows} rows and {size} bytes uncompressed", len(data))
    most = _SMALL_DECODED + len(data) * _BYTES_A_BYTE
    _check_dictionaries(data, file, name, most)
    batches: list[pa.RecordBatch] = []
    size = 0
    wanted = None if columns is None else [*columns]
    for batch in file.iter_batches(_BATCH, columns=wanted, use_threads=len(data) > _LARGE):
        batches.append(batch)
        size += batch.nbytes
        if size > most:
            raise _too_large(name, f"more than {most} bytes decoded", len(data))
    kept: Any = file.schema_arrow
    schema = kept if columns is None else pa.schema([kept.field(n) for n in columns], kept.metadata)
    table = pa.Table.from_batches(batches, schema).combine_chunks()
    table.validate(full=True)  # text that is none
    return table


def _check_dictionaries(data: bytes, file: pq.ParquetFile, name: str, most: int) -> None:
    """Raise `CorruptError` if the longest texts of the dictionaries, one in each row, are more than `most` bytes: a
    footer counts a dictionary once, not once a row."""
    columns = (file.metadata.schema.column(n) for n in range(file.metadata.num_columns))
    texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
    if not texts:
        return
    encoded = pq.ParquetFile(io.BytesIO(data), read_dictionary=texts)
    decoded = 0
    for number in range(file.metadata.num_row_groups):
        first: Any = next(encoded.iter_batches(1, row_groups=[number], columns=texts, use_threads=False), None)
        for column in first.columns if first is not None else ():
            if isinstance(column, pa.DictionaryArray):
                decoded += _longest(column.dictionary) * file.metadata.row_group(number).num_rows
        if decoded > most:
            raise _too_large(name, f"up to {decoded} bytes of text", len(data))


def _longest(texts: Any) -> int:
    """Return the bytes of the longest text, from the edges between texts."""
    edge = np.int64 if texts.type in (pa.large_string(), pa.large_binary()) else np.int32
    return int(np.diff(np.frombuffer(texts.buffers()[1], edge, len(texts) + 1)).max()) if len(texts) else 0


def _too_large(name: str, extent: str, stored: int) -> CorruptError:
    return CorruptError(
        f"file {name} has {extent} in {stored} bytes",
        "check which tool wrote it: no table of an archive is compressed like that, and it was not read",
    )


# Descriptors of segments, and tables of them by columns.

_HINT = "run 'kbackup verify' to see whether the archive is damaged"


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """One segment: a records file and its index. `first` and `last` are offsets of its first and last record; `bytes`
    is the size of the documented records file (magic byte included), `stored` that of the object at `key` (smaller when
    compressed). Timestamps in ms, None if no record has one. `largest` is the longest encoded record in bytes. `crc`
    and `index_crc` are CRC-64/NVME over the stored bytes of the records object and of the index object, as 16 hex
    digits; '' where they are unknown (files of the Java tool)."""

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
    """Return a schema with a column for each field of a class. Integers are int64, except for `_INT32`; `int | None`
    can be null."""
    columns: list[pa.Field[Any]] = []
    for name, hint in get_type_hints(row).items():
        nullable = isinstance(hint, UnionType)
        kind = _KINDS[get_args(hint)[0] if nullable else hint]
        columns.append(pa.field(name, pa.int32() if name in _INT32 else kind, nullable=nullable))
    return pa.schema(columns)


SCHEMA = schema_of(Segment)
PLACE = pa.schema(list(SCHEMA)[:4])  # the columns of a segment's position: topic, incarnation, partition, first.

Starts = Mapping[IncarnationPartition, Int64Array]  # the first offset of each of its segments, rising


def to_batch(segments: Sequence[Segment]) -> pa.RecordBatch:
    """Return a batch of segments, built by columns: 1.5 µs per segment, where a dict per segment took 25 µs."""
    columns: list[pa.Array[Any]] = [
        pa.array(map(attrgetter(field.name), segments), type=field.type, size=len(segments)) for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def from_batches(batches: Iterable[pa.RecordBatch]) -> list[Segment]:
    columns = ([batch.column(name).to_pylist() for name in SCHEMA.names] for batch in batches)
    return [Segment(*row) for of_batch in columns for row in zip(*of_batch, strict=True)]


def decode_table(
    data: bytes, name: str, schema: pa.Schema = SCHEMA, columns: Sequence[str] | None = None, rows: int | None = None
) -> pa.Table:
    """Decode a table of `schema` with at most `rows`, or only some columns: `PLACE` takes a thirtieth of the memory of
    whole rows. `CorruptError` for other data."""
    names = schema.names if columns is None else list(columns)
    try:
        table = read_bounded(data, name, schema.names, names, rows)
        kept = pa.schema([schema.field(n) for n in names])
        return table if table.schema == kept else table.cast(kept)  # `cast` imports pyarrow.compute
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


def with_checked_key(segment: Segment) -> Segment:
    """Return the segment; raise `CorruptError` if its key does not match its topic, partition and first offset."""
    folder = layout.topic_dir(segment.topic, segment.incarnation)
    if not layout.is_records_key(segment.key, folder, segment.partition, segment.first):
        due = layout.records_key(folder, segment.partition, segment.first, layout.compression_of(segment.key))
        raise CorruptError(f"file {segment.key} is named by the catalog where {due} belongs", _HINT)
    return segment
