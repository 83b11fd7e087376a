"""The table of an archive's segments, read within bounds of memory and checked against its keys.

A few kilobytes can decode to billions of equal rows, or to ten thousand copies of one long name. In a table of an
archive each row takes bytes of its own, and names are short.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress, pairwise
from operator import attrgetter
from types import UnionType
from typing import Any, NamedTuple, get_args, get_type_hints, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from kbackup.archive import layout
from kbackup.errors import CorruptError
from kbackup.store.base import ObjectInfo
from kbackup.types import IncarnationPartition, Int64Array

_ROWS_A_BYTE = 8
_BYTES_A_BYTE = 200
_SMALL_ROWS = 10_000
_SMALL = 1 << 20
_SMALL_DECODED = 16 << 20  # rows, and bytes encoded and decoded, that are allowed for a table of any size
_BATCH = 1024
_FEW = 4  # segments whose values are taken one by one: 9 µs each, where columns take 30 µs for some
_LARGE = 1 << 20


def read_bounded(
    data: bytes,
    name: str,
    names: Sequence[str],
    columns: Sequence[str] | None = None,
    rows: int | None = None,
    topics: Collection[str] | None = None,
) -> pa.Table:
    """Return the table of file `name`, which has the columns `names`, or some columns of it, or its rows of `topics`
    alone. `CorruptError` if it has other columns, more rows than `rows` (by its document; None where unknown) or than
    so many bytes can have, or more bytes uncompressed or decoded. Raises what pyarrow does for data that is no
    table."""
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
    kept: Any = file.schema_arrow
    schema = kept if columns is None else pa.schema([kept.field(n) for n in columns], kept.metadata)
    tables: list[pa.Table] = []
    size = 0
    wanted = None if columns is None else [*columns]
    groups = [n for n in range(metadata.num_row_groups) if topics is None or _may_hold(metadata.row_group(n), topics)]
    for batch in file.iter_batches(_BATCH, row_groups=groups, columns=wanted, use_threads=len(data) > _LARGE):
        decoded = pa.Table.from_batches([batch], schema)
        tables.append(decoded if topics is None else of_topics(decoded, topics))
        size += batch.nbytes
        if size > most:
            raise _too_large(name, f"more than {most} bytes decoded", len(data))
    table = pa.concat_tables([pa.Table.from_batches([], schema), *tables])
    if len(table) < _LARGE:  # a larger one would be there twice meanwhile
        table = table.combine_chunks()
    table.validate(full=True)  # text that is none
    return table


def _may_hold(group: Any, topics: Collection[str]) -> bool:
    """Return whether a row group may have rows of `topics`, by the least and the greatest value of its column."""
    columns = (group.column(n) for n in range(group.num_columns))
    known = next((c.statistics for c in columns if c.path_in_schema == "topic"), None)
    return known is None or not known.has_min_max or any(known.min <= topic <= known.max for topic in topics)


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


def in_table(segments: Iterable[Segment]) -> pa.Table:
    """Return a table of segments, in their order in a catalog."""
    return pa.Table.from_batches([to_batch(sorted(segments, key=in_order))])


def values_of(column: pa.Array[Any]) -> list[Any]:
    """Return a column as Python values. Text of ASCII is cut out of one string: pyarrow takes 0.6 µs for each text."""
    if len(column) and column.type == pa.string() and not column.null_count:
        edges, data = (memoryview(buffer or b"") for buffer in column.buffers()[1:])
        ends = np.frombuffer(edges, np.int32, len(column) + 1, 4 * column.offset).tolist()
        text = bytes(data[ends[0] : ends[-1]])
        if text.isascii():
            whole, start = text.decode(), ends[0]
            return [whole[low - start : high - start] for low, high in pairwise(ends)]
    return column.to_pylist()


def decode_table(
    data: bytes,
    name: str,
    schema: pa.Schema = SCHEMA,
    columns: Sequence[str] | None = None,
    rows: int | None = None,
    topics: Collection[str] | None = None,
) -> pa.Table:
    """Decode a table of `schema` with at most `rows`, or only some columns: `PLACE` takes a thirtieth of the memory of
    whole rows; or only the rows of `topics`. `CorruptError` for other data."""
    names = schema.names if columns is None else list(columns)
    try:
        table = read_bounded(data, name, schema.names, names, rows, topics)
        kept = pa.schema([schema.field(n) for n in names])
        return table if table.schema == kept else table.cast(kept)  # `cast` imports pyarrow.compute
    except (pa.ArrowException, OSError, ValueError) as error:  # the last where names are no text
        raise CorruptError(f"file {name} is not a Parquet table: {error}", _HINT) from error


def _numbers(rows: Int64Array) -> pa.Array[Any]:
    """Return numbers by bare buffers: pyarrow's own conversions import pandas, which takes longer than 'kbackup
    list'."""
    return pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(rows.tobytes())])


def rows_where(table: pa.Table, keep: npt.NDArray[np.bool_]) -> pa.Table:
    """Return the rows where `keep` is true."""
    return table if keep.all() else table.take(_numbers(np.flatnonzero(keep).astype(np.int64)))


def not_in(column: pa.ChunkedArray[Any], others: pa.ChunkedArray[Any]) -> npt.NDArray[np.bool_]:
    """Return where a value of a column is none of `others`."""
    if not len(others):
        return np.ones(len(column), np.bool_)
    import pyarrow.compute as pc  # here: most commands need none of it

    return ~pc.is_in(column, value_set=others).to_numpy()


def integers(table: pa.Table, name: str) -> Int64Array:
    """Return a column without nulls as int64[rows], without importing pandas."""
    return np.concatenate([np.zeros(0, np.int64), *map(np.from_dlpack, table.column(name).chunks)])


def _coded(table: pa.Table) -> tuple[list[str], npt.NDArray[np.int32]]:
    """Return the names of the topics of some rows, and for each row the place of its own among them."""
    codes: Any = table.column("topic").combine_chunks().dictionary_encode()
    return codes.dictionary.to_pylist(), np.frombuffer(codes.indices.buffers()[1], np.int32, len(table))


def of_topics(table: pa.Table, topics: Collection[str]) -> pa.Table:
    names, codes = _coded(table)
    return rows_where(table, np.array([name in topics for name in names], np.bool_)[codes])


def places_of(table: pa.Table) -> tuple[Int64Array, dict[IncarnationPartition, slice]]:
    """Return the numbers of the rows of a table with the columns of `PLACE`, in order of name, incarnation, partition
    and offset; and which of these each partition has."""
    names, codes = _coded(table)
    ranks = np.empty(len(names), np.int64)
    ranks[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
    columns: list[npt.NDArray[Any]] = [ranks[codes], *(integers(table, name) for name in PLACE.names[1:])]
    order = np.lexsort(columns[::-1])
    moved = np.zeros(len(order), np.bool_)
    for column in columns[:-1]:
        moved[1:] |= np.diff(column[order]) != 0
    cuts = [*([0] if len(order) else []), *np.flatnonzero(moved).tolist(), len(order)]
    first = order[cuts[:-1]]
    keys = zip([names[n] for n in codes[first]], *(column[first].tolist() for column in columns[1:3]), strict=True)
    return order, dict(zip(keys, (slice(*each) for each in pairwise(cuts)), strict=True))


def starts_of(tables: Sequence[pa.Table]) -> Starts:
    """Return the first offsets of the segments in tables with the columns of `PLACE`, in any order."""
    table = pa.concat_tables([pa.Table.from_batches([], PLACE), *tables])
    order, places = places_of(table)
    first = integers(table, "first")[order]
    return {place: first[part] for place, part in places.items()}


class Segments(Sequence[Segment]):
    """Segments in order, as a part of some columns: each becomes a value when it is asked for, and its key is checked
    then, unless they all are `checked`. A slice has no steps."""

    __slots__ = ("_checked", "_columns", "_first", "_size")

    def __init__(self, columns: Mapping[str, pa.Array[Any]], part: slice | None = None, checked: bool = False) -> None:
        """`columns` are those of `SCHEMA`, each one array."""
        first, stop, _ = (part or slice(None)).indices(len(columns["key"]))
        self._columns, self._first, self._size, self._checked = columns, first, max(0, stop - first), checked

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, at: int) -> Segment: ...
    @overload
    def __getitem__(self, at: slice) -> Segments: ...
    def __getitem__(self, at: int | slice) -> Segment | Segments:
        if isinstance(at, int):
            at = range(self._size)[at]
            return next(iter(self[at : at + 1]))
        start, stop, _ = at.indices(self._size)
        return Segments(self._columns, slice(self._first + start, self._first + max(start, stop)), self._checked)

    def __iter__(self) -> Iterator[Segment]:
        segments = (Segment(*row) for row in self.rows(*SCHEMA.names))
        return segments if self._checked else map(with_checked_key, segments)

    def rows(self, *names: str) -> Iterator[tuple[Any, ...]]:
        """Yield some columns as Python values, of which few are there at a time."""
        if self._size < _FEW:
            for at in range(self._first, self._first + self._size):
                yield tuple(self._columns[name][at].as_py() for name in names)
            return
        for start in range(self._first, self._first + self._size, _BATCH):
            size = min(_BATCH, self._first + self._size - start)
            yield from zip(*(values_of(self._columns[name].slice(start, size)) for name in names), strict=True)

    def where(self, keep: npt.NDArray[np.bool_]) -> Segments:
        """Return the segments for which `keep` is true."""
        if keep.all():
            return self
        numbers = _numbers(np.flatnonzero(keep).astype(np.int64))
        return Segments({name: self.column(name).take(numbers) for name in self._columns}, checked=self._checked)

    def wrong_keys(self) -> Iterator[tuple[str, CorruptError]]:
        """Yield the keys that do not match topic, partition and first offset, each with its error."""
        for topic, incarnation, partition, first, key in self.rows(*PLACE.names, "key"):
            folder = layout.topic_dir(topic, incarnation)
            if not layout.is_records_key(key, folder, partition, first):
                yield key, _wrong_key(key, folder, partition, first)

    def checked(self) -> Segments:
        """Return the segments; raise `CorruptError` for one of `wrong_keys`."""
        for _, error in () if self._checked else self.wrong_keys():
            raise error
        return Segments(self._columns, slice(self._first, self._first + self._size), checked=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and [*self] == [*other]

    def __reduce__(self) -> tuple[type, tuple[list[Segment]]]:
        return tuple, ([*self],)

    def column(self, name: str) -> pa.Array[Any]:
        return self._columns[name].slice(self._first, self._size)

    def integers(self, name: str) -> Int64Array:
        """Return a column without nulls."""
        return _known(self.column(name)) if self._size else np.zeros(0, np.int64)


def in_columns(table: pa.Table, rows: Int64Array) -> dict[str, pa.Array[Any]]:
    """Return the rows of these numbers in columns of `SCHEMA` of one array each, made one after another: a large table
    that nobody else holds is there once."""
    columns: dict[str, Any] = {name: table.column(name) for name in SCHEMA.names}
    del table
    numbers = _numbers(rows)
    return {name: columns.pop(name).take(numbers).combine_chunks() for name in SCHEMA.names}


class Ordered(NamedTuple):
    """Segments by topic, incarnation, partition and offset; int64[segments], the restore point that added each; and
    which are of a partition."""

    segments: Segments
    points: Int64Array
    places: dict[IncarnationPartition, slice]

    @property
    def parts(self) -> list[Segments]:
        return [self.segments[part] for part in self.places.values()]

    def span(self, places: Sequence[IncarnationPartition]) -> slice:
        """Return from where to where the segments of some partitions, in order, lie."""
        return slice(self.places[places[0]].start, self.places[places[-1]].stop)


def ordered(read: list[pa.Table], checked: bool = False) -> Ordered:
    """Order the rows of a table with the columns of `SCHEMA` and `point`. It is taken out of the list `read`: a large
    table that nobody else holds is there once."""
    order, places = places_of(read[0])
    points = integers(read[0], "point")[order]
    return Ordered(Segments(in_columns(read.pop(), order), checked=checked), points, places)


def column_of(segments: Sequence[Segment], name: str) -> pa.Array[Any]:
    """Return a column of `SCHEMA`."""
    if isinstance(segments, Segments):
        return segments.column(name)
    values: pa.Array[Any] = pa.array(map(attrgetter(name), segments), SCHEMA.field(name).type, size=len(segments))
    return values


def rows_of(segments: Sequence[Segment], *names: str) -> Iterator[tuple[Any, ...]]:
    """Yield some columns of segments as Python values."""
    if isinstance(segments, Segments):
        return segments.rows(*names)
    return (tuple(getattr(segment, name) for name in names) for segment in segments)


def chosen(segments: Sequence[Segment], keep: Callable[[Segment], bool]) -> Sequence[Segment]:
    """Return the segments that `keep` is true for; all of them as they are."""
    kept = np.fromiter(map(keep, segments), np.bool_, len(segments))
    if kept.all():
        return segments
    return segments.where(kept) if isinstance(segments, Segments) else tuple(compress(segments, kept))


def untimed(segments: Sequence[Segment]) -> Iterator[Segment]:
    """Yield the segments with records of which no timestamp is known."""
    if column_of(segments, "min_timestamp").null_count:
        yield from (s for s in segments if s.count and s.min_timestamp is None)


def sum_of(segments: Sequence[Segment], name: str) -> int:
    """Return the sum of a column of segments."""
    if segments and isinstance(segments, Segments):
        return int(_known(segments.column(name)).sum())
    return sum(map(attrgetter(name), segments))


def bounds(segments: Sequence[Segment], least: str, greatest: str) -> tuple[int | None, int | None]:
    """Return the least value of a column of segments, and the greatest one of another, None where there is none."""
    if not segments:
        return None, None
    low, high = _known(column_of(segments, least)), _known(column_of(segments, greatest))
    return int(low.min()) if len(low) else None, int(high.max()) if len(high) else None


def _known(column: pa.Array[Any]) -> Int64Array:
    """Return the integers of a column that are not null, without importing pyarrow.compute."""
    if column.null_count:
        return np.array([value for value in column.to_pylist() if value is not None], np.int64)
    return np.from_dlpack(column)  # type: ignore[return-value]


def in_order(segment: Segment) -> tuple[str, int, int, int]:
    """Return the key to sort segments by."""
    return (*segment.incarnation_partition, segment.first)


def with_checked_key(segment: Segment) -> Segment:
    """Return the segment; raise `CorruptError` if its key does not match its topic, partition and first offset."""
    folder = layout.topic_dir(segment.topic, segment.incarnation)
    if not layout.is_records_key(segment.key, folder, segment.partition, segment.first):
        raise _wrong_key(segment.key, folder, segment.partition, segment.first)
    return segment


def _wrong_key(key: str, folder: str, partition: int, first: int) -> CorruptError:
    expected = layout.records_key(folder, partition, first, layout.compression_of(key))
    return CorruptError(f"file {key} is named by the catalog where {expected} belongs", _HINT)


# The objects of segments, and which of them a store has.


class ExpectedObject(NamedTuple):
    """An object of the archive: `size` and `crc` (CRC-64/NVME, 16 hex digits) are of its plain bytes."""

    key: str
    size: int
    crc: str


def objects_of(segments: Sequence[Segment]) -> Iterator[tuple[ExpectedObject, ExpectedObject]]:
    """Yield the records and the index of each segment."""
    for key, stored, count, crc, index_crc in rows_of(segments, "key", "stored", "count", "crc", "index_crc"):
        yield ExpectedObject(key, stored, crc), ExpectedObject(layout.index_key_of(key), 1 + 24 * count, index_crc)


def expected_in_order(parts: Iterable[Sequence[Segment]], indexes: bool = True) -> Iterator[ExpectedObject]:
    """Yield the objects of partitions as a store lists them; short of offsets of more than ten digits, and of padded
    names."""
    for part in sorted(filter(None, parts), key=lambda part: next(rows_of(part, "key"))):
        for records, index in objects_of(part):
            yield from (index, records) if indexes else (records,)


def unpaired(listed: Iterable[ObjectInfo], expected: Iterable[ExpectedObject]) -> tuple[dict[str, int], dict[str, int]]:
    """Return key and size of the objects that are listed and not due, and of those that are due and not listed in that
    size. Both come in order of keys, short of a few."""
    extra: dict[str, int] = {}
    lacking: dict[str, int] = {}
    remaining, paired = iter(listed), ""
    entry = next(remaining, None)
    for each in expected:
        while entry is not None and entry.key < each.key:
            extra[entry.key], entry = entry.size, next(remaining, None)
        if entry is not None and entry.key == each.key and entry.size == each.size:
            paired, entry = entry.key, next(remaining, None)
        elif each.key != paired:  # else it is due twice
            lacking[each.key] = each.size
    for rest in () if entry is None else chain((entry,), remaining):
        extra[rest.key] = rest.size
    for key in [key for key, size in lacking.items() if extra.get(key) == size]:
        del extra[key], lacking[key]
    return extra, lacking
