"""The table of an archive's segments, read within bounds of memory and checked against its keys.

A few kilobytes can decode to billions of equal rows, or to ten thousand copies of one long name. In a table of an
archive each row takes bytes of its own, and names are short.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, pairwise
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

# What a table may have for each of its stored bytes: rows, and bytes encoded or decoded.
_ROWS_A_BYTE = 8
_BYTES_A_BYTE = 200
# What a table of any size may have beside that: rows, bytes encoded, and bytes decoded.
_SMALL_ROWS = 10_000
_SMALL = 1 << 20
_SMALL_DECODED = 16 << 20
_BATCH = 1024  # rows that become Python values, or are decoded, at a time
_FEW = 4  # segments whose values are taken one by one: 9 µs each, where columns take 30 µs for some
_LARGE = 1 << 20  # bytes that are worth a pool of threads; rows that are not copied to be in one chunk


def read_bounded(
    data: bytes,
    name: str,
    names: Sequence[str],
    columns: Sequence[str] | None = None,
    rows: int | None = None,
    topics: Collection[str] | None = None,
) -> pa.Table:
    """Return the table of file `name`, which has the columns `names`. If `columns` or `topics` are given, return only
    those columns, or only the rows of those topics.

    `rows` is the number of rows that the file's document gives, None if it gives none. `CorruptError` if the file has
    other columns, more rows than that, or more rows or bytes than a table of its size can have. Raises what pyarrow
    raises for data that is no table.
    """
    file = pq.ParquetFile(pa.BufferReader(data))
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
    _check_footer(metadata, name, len(data))
    most = _SMALL_DECODED + len(data) * _BYTES_A_BYTE
    _check_dictionaries(data, file, name, most)
    schema: Any = file.schema_arrow
    names_read: list[str] | None = None
    if columns is not None:
        names_read = list(columns)
        fields = [schema.field(column) for column in names_read]
        schema = pa.schema(fields, schema.metadata)
    groups = list(range(metadata.num_row_groups))
    if topics is not None:
        groups = [number for number in groups if _may_hold(metadata.row_group(number), topics)]
    tables = [pa.Table.from_batches([], schema)]  # the columns of a table without rows
    size = 0
    use_threads = len(data) > _LARGE
    for batch in file.iter_batches(_BATCH, row_groups=groups, columns=names_read, use_threads=use_threads):
        decoded = pa.Table.from_batches([batch], schema)
        if topics is not None:
            decoded = of_topics(decoded, topics)
        tables.append(decoded)
        # counted batch by batch, whatever the footer says
        size += batch.nbytes
        if size > most:
            raise _too_large(name, f"more than {most} bytes decoded", len(data))
    table = pa.concat_tables(tables)
    if len(table) < _LARGE:  # a larger table would be in memory twice meanwhile
        table = table.combine_chunks()
    table.validate(full=True)  # finds text that is not UTF-8, which would fail much later
    return table


def _check_footer(metadata: Any, name: str, stored: int) -> None:
    """Raise `CorruptError` if the footer counts more rows or bytes than a file of `stored` bytes can have."""
    size = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    most_rows = _SMALL_ROWS + stored * _ROWS_A_BYTE
    most_bytes = _SMALL + stored * _BYTES_A_BYTE
    if metadata.num_rows > most_rows or size > most_bytes:
        raise _too_large(name, f"{metadata.num_rows} rows and {size} bytes uncompressed", stored)


def _may_hold(group: Any, topics: Collection[str]) -> bool:
    """Return whether a row group may have rows of `topics`, by the least and the greatest value of its column."""
    columns = [group.column(number) for number in range(group.num_columns)]
    known = next((column.statistics for column in columns if column.path_in_schema == "topic"), None)
    if known is None or not known.has_min_max:
        return True
    return any(known.min <= topic <= known.max for topic in topics)


def _check_dictionaries(data: bytes, file: pq.ParquetFile, name: str, most: int) -> None:
    """Raise `CorruptError` if the rows would have more than `most` bytes of text, were each of them as long as the
    longest text in its dictionary. The footer can't tell: it counts a dictionary once, not once per row."""
    columns = [file.metadata.schema.column(number) for number in range(file.metadata.num_columns)]
    texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
    if not texts:
        return
    encoded = pq.ParquetFile(pa.BufferReader(data), metadata=file.metadata, read_dictionary=texts)
    decoded = 0
    for number in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(number).num_rows
        # one row of a row group is enough to have its dictionaries
        batches = encoded.iter_batches(1, row_groups=[number], columns=texts, use_threads=False)
        first: Any = next(batches, None)
        if first is None:
            continue
        for column in first.columns:
            if isinstance(column, pa.DictionaryArray):
                decoded += _longest(column.dictionary) * rows
        if decoded > most:
            raise _too_large(name, f"up to {decoded} bytes of text", len(data))


def _longest(texts: Any) -> int:
    """Return the bytes of the longest text, from the edges between texts."""
    if not len(texts):
        return 0
    edge = np.int64 if texts.type in (pa.large_string(), pa.large_binary()) else np.int32
    edges = np.frombuffer(texts.buffers()[1], edge, len(texts) + 1)
    return int(np.diff(edges).max())


def _too_large(name: str, extent: str, stored: int) -> CorruptError:
    return CorruptError(
        f"file {name} has {extent} in {stored} bytes",
        "check which tool wrote it: no table of an archive is compressed like that, and it was not read",
    )


# Descriptors of segments, and tables of them by columns.

_HINT = "run 'kbackup verify' to see whether the archive is damaged"


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """One segment: a records file and its index.

    `first` and `last` are the offsets of the first and the last record. `bytes` is the size of the records file as it
    is documented, with its magic byte. `stored` is the size of the object at `key`, which is smaller if it is
    compressed. Timestamps are in ms, and None if no record has one. `largest` is the size of the longest encoded record
    in bytes. `crc` and `index_crc` are the CRC-64/NVME of the stored bytes of the records object and of the index
    object, as 16 hex digits; they are empty where they are unknown, as for files of the Java tool.
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
    """Return a schema with a column for each field of a class. Integers are int64, except for `_INT32`; `int | None`
    can be null."""
    columns: list[pa.Field[Any]] = []
    for name, hint in get_type_hints(row).items():
        nullable = isinstance(hint, UnionType)
        value_type = get_args(hint)[0] if nullable else hint
        kind = pa.int32() if name in _INT32 else _KINDS[value_type]
        columns.append(pa.field(name, kind, nullable=nullable))
    return pa.schema(columns)


SCHEMA = schema_of(Segment)
PLACE = pa.schema(list(SCHEMA)[:4])  # the columns that say where a segment is: topic, incarnation, partition, first

Starts = Mapping[IncarnationPartition, Int64Array]
"""The first offsets of the segments of each partition, rising."""


def to_batch(segments: Sequence[Segment]) -> pa.RecordBatch:
    """Return a batch of segments, built by columns: 1.5 µs per segment, where a dict per segment took 25 µs."""
    columns: list[pa.Array[Any]] = []
    for field in SCHEMA:
        values = map(attrgetter(field.name), segments)
        columns.append(pa.array(values, type=field.type, size=len(segments)))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def in_table(segments: Iterable[Segment]) -> pa.Table:
    """Return a table of segments, in their order in a catalog."""
    return pa.Table.from_batches([to_batch(sorted(segments, key=in_order))])


def values_of(column: pa.Array[Any]) -> list[Any]:
    """Return a column as Python values. A column of ASCII is decoded at once, and its texts are cut out of that string:
    pyarrow takes 0.6 µs for each text."""
    if len(column) and column.type == pa.string() and not column.null_count:
        # the second buffer has where each text begins and ends in the third one, as int32
        edges, data = (memoryview(buffer or b"") for buffer in column.buffers()[1:])
        ends = np.frombuffer(edges, np.int32, len(column) + 1, 4 * column.offset).tolist()
        start = ends[0]
        text = bytes(data[start : ends[-1]])
        if text.isascii():  # then a character is a byte, and the edges are those of characters too
            whole = text.decode()
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
    """Decode a table of `schema` with at most `rows`. If `columns` or `topics` are given, decode only those columns, or
    only the rows of those topics: the columns of `PLACE` take a thirtieth of the memory of whole rows. `CorruptError`
    for other data."""
    names = schema.names if columns is None else list(columns)
    try:
        table = read_bounded(data, name, schema.names, names, rows, topics)
        kept = pa.schema([schema.field(column) for column in names])
        # `cast` imports pyarrow.compute: not for a table that is as it should be
        return table if table.schema == kept else table.cast(kept)
    except (pa.ArrowException, OSError, ValueError) as error:  # the last where names are no text
        raise CorruptError(f"file {name} is not a Parquet table: {error}", _HINT) from error


def _numbers(rows: Int64Array) -> pa.Array[Any]:
    """Return numbers as a column, made of bare buffers: pyarrow's own conversions import pandas, which takes longer
    than 'kbackup list'."""
    values = pa.py_buffer(rows.tobytes())
    return pa.Array.from_buffers(pa.int64(), len(rows), [None, values])


def rows_where(table: pa.Table, keep: npt.NDArray[np.bool_]) -> pa.Table:
    """Return the rows where `keep` is true."""
    if keep.all():
        return table
    rows = np.flatnonzero(keep).astype(np.int64)
    return table.take(_numbers(rows))


def not_in(column: pa.ChunkedArray[Any], others: pa.ChunkedArray[Any]) -> npt.NDArray[np.bool_]:
    """Return where a value of a column is none of `others`."""
    if not len(others):
        return np.ones(len(column), np.bool_)
    import pyarrow.compute as pc  # here: most commands need none of it

    return ~pc.is_in(column, value_set=others).to_numpy()


def integers(table: pa.Table, name: str) -> Int64Array:
    """Return a column without nulls as int64[rows], without importing pandas."""
    parts: list[npt.NDArray[Any]] = [np.zeros(0, np.int64)]  # a table without rows has no chunks
    parts += [np.from_dlpack(chunk) for chunk in table.column(name).chunks]
    return np.concatenate(parts)


def _coded(table: pa.Table) -> tuple[list[str], npt.NDArray[np.int32]]:
    """Return the different topics of some rows, and for each row the place of its topic in that list."""
    encoded: Any = table.column("topic").combine_chunks().dictionary_encode()
    names: list[str] = encoded.dictionary.to_pylist()
    codes = np.frombuffer(encoded.indices.buffers()[1], np.int32, len(table))
    return names, codes


def of_topics(table: pa.Table, topics: Collection[str]) -> pa.Table:
    """Return the rows of some topics. Each name is looked up once, not once per row."""
    names, codes = _coded(table)
    is_wanted = np.array([name in topics for name in names], np.bool_)
    return rows_where(table, is_wanted[codes])


def places_of(table: pa.Table) -> tuple[Int64Array, dict[IncarnationPartition, slice]]:
    """Return the numbers of the rows of a table with the columns of `PLACE`, in order of name, incarnation, partition
    and offset; and which of these each partition has."""
    names, codes = _coded(table)
    # A topic's code tells where its name was seen first. Its rank is its place in the order of the names.
    by_name = sorted(range(len(names)), key=names.__getitem__)
    ranks = np.empty(len(names), np.int64)
    ranks[by_name] = np.arange(len(names))
    topic = ranks[codes]
    incarnation = integers(table, "incarnation")
    partition = integers(table, "partition")
    first = integers(table, "first")
    order = np.lexsort((first, partition, incarnation, topic))  # by the last of these before all others
    # a partition begins where any part of its name differs from the row before
    begins = np.zeros(len(order), np.bool_)
    begins[:1] = True
    for column in (topic, incarnation, partition):
        begins[1:] |= np.diff(column[order]) != 0
    cuts = [*np.flatnonzero(begins).tolist(), len(order)]
    rows = order[cuts[:-1]]
    topics = [names[code] for code in codes[rows]]
    keys = zip(topics, incarnation[rows].tolist(), partition[rows].tolist(), strict=True)
    parts = [slice(start, stop) for start, stop in pairwise(cuts)]
    return order, dict(zip(keys, parts, strict=True))


def starts_of(tables: Sequence[pa.Table]) -> Starts:
    """Return the first offsets of the segments in tables with the columns of `PLACE`, in any order."""
    table = pa.concat_tables([pa.Table.from_batches([], PLACE), *tables])
    order, places = places_of(table)
    first = integers(table, "first")[order]
    return {place: first[part] for place, part in places.items()}


class Segments(Sequence[Segment]):
    """Segments in order, as a part of some columns. A segment becomes a value when somebody asks for it. Its key is
    checked at that moment, unless all keys are `checked`. A slice has no steps."""

    __slots__ = ("_checked", "_columns", "_first", "_size")

    def __init__(self, columns: Mapping[str, pa.Array[Any]], part: slice | None = None, checked: bool = False) -> None:
        """`columns` are those of `SCHEMA`, each one array."""
        part = part or slice(None)
        first, stop, _ = part.indices(len(columns["key"]))
        self._columns = columns
        self._first = first
        self._size = max(0, stop - first)
        self._checked = checked

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, at: int) -> Segment: ...
    @overload
    def __getitem__(self, at: slice) -> Segments: ...
    def __getitem__(self, at: int | slice) -> Segment | Segments:
        if isinstance(at, int):
            at = range(self._size)[at]  # counts from the end if negative, and knows where the end is
            return next(iter(self[at : at + 1]))
        start, stop, _ = at.indices(self._size)
        part = slice(self._first + start, self._first + max(start, stop))
        return Segments(self._columns, part, self._checked)

    def __iter__(self) -> Iterator[Segment]:
        segments = (Segment(*row) for row in self.rows(*SCHEMA.names))
        return segments if self._checked else map(with_checked_key, segments)

    def rows(self, *names: str) -> Iterator[tuple[Any, ...]]:
        """Yield the values of some columns, row by row. Few of them are in memory at a time."""
        stop = self._first + self._size
        columns = [self._columns[name] for name in names]
        if self._size < _FEW:
            for at in range(self._first, stop):
                yield tuple(column[at].as_py() for column in columns)
            return
        for start in range(self._first, stop, _BATCH):
            size = min(_BATCH, stop - start)
            values = [values_of(column.slice(start, size)) for column in columns]
            yield from zip(*values, strict=True)

    def where(self, keep: npt.NDArray[np.bool_]) -> Segments:
        """Return the segments for which `keep` is true."""
        if keep.all():
            return self
        numbers = _numbers(np.flatnonzero(keep).astype(np.int64))
        columns = {name: self.column(name).take(numbers) for name in self._columns}
        return Segments(columns, checked=self._checked)

    def wrong_keys(self) -> Iterator[tuple[str, CorruptError]]:
        """Yield the keys that do not match topic, partition and first offset, each with its error."""
        for topic, incarnation, partition, first, key in self.rows(*PLACE.names, "key"):
            folder = layout.topic_dir(topic, incarnation)
            if not layout.is_records_key(key, folder, partition, first):
                yield key, _wrong_key(key, folder, partition, first)

    def checked(self) -> Segments:
        """Return the segments; raise `CorruptError` for the first of `wrong_keys`."""
        if not self._checked:
            for _, error in self.wrong_keys():
                raise error
        return Segments(self._columns, slice(self._first, self._first + self._size), checked=True)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return False
        return list(self) == list(other)

    def __reduce__(self) -> tuple[type, tuple[list[Segment]]]:
        # segments become values where a task is sent
        return tuple, (list(self),)

    def column(self, name: str) -> pa.Array[Any]:
        return self._columns[name].slice(self._first, self._size)

    def integers(self, name: str) -> Int64Array:
        """Return a column of integers, without nulls."""
        if not self._size:
            return np.zeros(0, np.int64)
        return _known(self.column(name))


def in_columns(table: pa.Table, rows: Int64Array) -> dict[str, pa.Array[Any]]:
    """Return the rows of these numbers in columns of `SCHEMA`, one array each. The columns are made one after another,
    so that a large table that nobody else holds is in memory once."""
    columns: dict[str, Any] = {name: table.column(name) for name in SCHEMA.names}
    del table  # so that each column goes away as soon as it is popped below
    numbers = _numbers(rows)
    return {name: columns.pop(name).take(numbers).combine_chunks() for name in SCHEMA.names}


class Ordered(NamedTuple):
    """Segments in order of topic, incarnation, partition and offset. `points` is int64[segments], the restore point
    that added each segment; `places` gives the segments of each partition."""

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
    """Order the rows of a table with the columns of `SCHEMA` and `point`. The table is taken out of the list `read`, so
    that a large one that nobody else holds is in memory once."""
    order, places = places_of(read[0])
    points = integers(read[0], "point")[order]
    columns = in_columns(read.pop(), order)  # no name here holds the table meanwhile
    return Ordered(Segments(columns, checked=checked), points, places)


def column_of(segments: Sequence[Segment], name: str) -> pa.Array[Any]:
    """Return a column of `SCHEMA`."""
    if isinstance(segments, Segments):
        return segments.column(name)
    values = map(attrgetter(name), segments)
    column: pa.Array[Any] = pa.array(values, SCHEMA.field(name).type, size=len(segments))
    return column


def rows_of(segments: Sequence[Segment], *names: str) -> Iterator[tuple[Any, ...]]:
    """Yield the values of some columns, segment by segment."""
    if isinstance(segments, Segments):
        return segments.rows(*names)
    return (tuple(getattr(segment, name) for name in names) for segment in segments)


def chosen(segments: Sequence[Segment], keep: Callable[[Segment], bool]) -> Sequence[Segment]:
    """Return the segments that `keep` is true for; `segments` itself if that is all of them."""
    kept = np.fromiter(map(keep, segments), np.bool_, len(segments))
    if kept.all():
        return segments
    if isinstance(segments, Segments):
        return segments.where(kept)
    return tuple(compress(segments, kept))


def untimed(segments: Sequence[Segment]) -> Iterator[Segment]:
    """Yield the segments that have records, and no known timestamp."""
    if not column_of(segments, "min_timestamp").null_count:
        return
    for segment in segments:
        if segment.count and segment.min_timestamp is None:
            yield segment


def sum_of(segments: Sequence[Segment], name: str) -> int:
    """Return the sum of a column of segments."""
    if isinstance(segments, Segments):
        return int(segments.integers(name).sum())
    return sum(map(attrgetter(name), segments))


def bounds(segments: Sequence[Segment], least: str, greatest: str) -> tuple[int | None, int | None]:
    """Return the least value of the column `least`, and the greatest value of the column `greatest`. Each is None if
    the column has no value."""
    if not segments:
        return None, None
    low = _known(column_of(segments, least))
    high = _known(column_of(segments, greatest))
    lowest = highest = None
    if len(low):
        lowest = int(low.min())
    if len(high):
        highest = int(high.max())
    return lowest, highest


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
        records = ExpectedObject(key, stored, crc)
        index_size = 1 + 24 * count  # a magic byte, and an entry for each record
        index = ExpectedObject(layout.index_key_of(key), index_size, index_crc)
        yield records, index


def expected_in_order(parts: Iterable[Sequence[Segment]], indexes: bool = True) -> Iterator[ExpectedObject]:
    """Yield the objects of partitions in the order in which a store lists them, except for offsets of more than ten
    digits and for padded names."""

    def first_key(part: Sequence[Segment]) -> tuple[Any, ...]:
        return next(rows_of(part, "key"))

    for part in sorted(filter(None, parts), key=first_key):
        for records, index in objects_of(part):
            if indexes:  # an index is listed before its records
                yield index
            yield records


def unpaired(listed: Iterable[ObjectInfo], expected: Iterable[ExpectedObject]) -> tuple[dict[str, int], dict[str, int]]:
    """Return key and size of the objects that are listed and not expected, and of the objects that are expected and
    not listed in that size.

    Both arguments come in order of keys, and are walked side by side: a value for each object took too much memory. A
    few objects are out of order. These land in both results, and are taken out of both at the end.
    """
    extra: dict[str, int] = {}
    lacking: dict[str, int] = {}
    remaining = iter(listed)
    entry = next(remaining, None)
    paired = ""
    for each in expected:
        while entry is not None and entry.key < each.key:
            extra[entry.key] = entry.size
            entry = next(remaining, None)
        if entry is not None and entry.key == each.key and entry.size == each.size:
            paired = entry.key
            entry = next(remaining, None)
        elif each.key != paired:  # else it is expected twice, and was found the first time
            lacking[each.key] = each.size
    while entry is not None:
        extra[entry.key] = entry.size
        entry = next(remaining, None)
    out_of_order = [key for key, size in lacking.items() if extra.get(key) == size]
    for key in out_of_order:
        del extra[key], lacking[key]
    return extra, lacking
