"""The layout of the binary files: magic bytes, versions, and a walk over records that names damage."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kbackup.errors import CorruptError, UsageError
from kbackup.formats.arrow import octets
from kbackup.formats.block import heads, rising, windows
from kbackup.types import Bytes, Int64Array, RecordBlock

Buffer = bytes | bytearray | memoryview | Bytes

MAGIC = 1
MAGIC_BYTE = bytes([MAGIC])

DAMAGED = (
    "take the file from another copy of the archive: it is damaged, or another program wrote it; if nobody has it, "
    "'kbackup repair --read-data' leaves its records out"
)


def corrupt(name: str, at: int, damage: str, hint: str = DAMAGED) -> CorruptError:
    """Return the error for byte `at` (0 is the file's first) of the file `name`."""
    return CorruptError(f"{name} at byte {at}: {damage}", hint)


def check_magic(first: int | None, name: str) -> None:
    """Refuse a file whose first byte (None: an empty file) is not the version that we know."""
    if first is None:
        raise corrupt(name, 0, "the file is empty, without even its magic byte")
    if first != MAGIC:
        raise corrupt(
            name,
            0,
            f"magic byte 0x{first:02x} where 0x{MAGIC:02x} is known",
            "use a newer kbackup: it is another version of the format, or not a backup file",
        )


# One record at a time, with `struct`: to rebuild an index, and where no vector step pays.

MIN_RECORD = 24
"""Bytes of the shortest record: no timestamp, null key, null value, no headers."""

TIMED = (0, 1)
UNTIMED = (-1, -2)

_HEAD = Struct(">qi")
_LENGTH = Struct(">i")


class ShortError(Exception):
    """The bytes end within the record; not an error in itself where more bytes may come."""


def _length(view: memoryview, at: int, stop: int) -> int:
    if at + 4 > stop:
        raise ShortError
    return int(_LENGTH.unpack_from(view, at)[0])


def _field_end(view: memoryview, at: int, stop: int, least: int, name: str, base: int, field: str) -> int:
    """Return the end of the length-prefixed field at `at`; its length must be `least` or more."""
    length = _length(view, at, stop)
    if length < least:
        raise corrupt(name, base + at, f"{field} length {length}")
    end = at + 4 + max(length, 0)
    if end > stop:
        raise ShortError
    return end


def headers(view: memoryview, at: int, stop: int, count: int, name: str, base: int) -> Iterator[tuple[int, int, int]]:
    """Yield for each of `count` headers from `at` the positions of its key, of its value's length, and of its end.
    `ShortError` if it goes past `stop`."""
    for _ in range(count):
        middle = _field_end(view, at, stop, 0, name, base, "header key")
        end = _field_end(view, middle, stop, -1, name, base, "header value")
        yield at + 4, middle, end
        at = end


def record(view: memoryview, at: int, after: int, name: str, base: int) -> tuple[int, int]:
    """Offset and end of the record at `at`; its offset must be greater than `after`. `ShortError` if `view` ends first;
    `CorruptError` for what no more bytes could mend."""
    stop = len(view)
    if at + MIN_RECORD > stop:
        raise ShortError
    offset, kind = _HEAD.unpack_from(view, at)
    if offset <= after:
        raise corrupt(name, base + at, f"record offset {offset} where one above {after} was due")
    if kind not in TIMED and kind not in UNTIMED:
        raise corrupt(name, base + at + 8, f"timestamp type {kind}")
    key = at + (20 if kind in TIMED else 12)
    value = _field_end(view, key, stop, -1, name, base, "key")
    counted = _field_end(view, value, stop, -1, name, base, "value")
    count = _length(view, counted, stop)
    if count < 0:
        raise corrupt(name, base + counted, f"header count {count}")
    end = counted + 4
    for _, _, header_end in headers(view, end, stop, count, name, base):
        end = header_end
    return offset, end


# Positions of all fields of a block's records: vectorised, and checked before anything is read by them.

_FEW = 24
"""With so many records that have headers left, or fewer, `struct` (1 µs a header) beats a vector step (25 µs)."""


class FieldSpans(NamedTuple):
    """Start within the block's data and length in bytes of a field, int64[n]; length -1 is null."""

    start: Int64Array
    length: Int64Array

    @property
    def end(self) -> Int64Array:
        return self.start + np.maximum(self.length, 0)


class BlockFields(NamedTuple):
    """`timestamps` mean nothing where `types` is negative; record i's headers start at `header_starts[i]`."""

    types: npt.NDArray[np.int32]
    timestamps: Int64Array
    keys: FieldSpans
    values: FieldSpans
    header_starts: Int64Array
    header_keys: FieldSpans
    header_values: FieldSpans


class _File(NamedTuple):
    """The file that errors name, and the position of the block in it."""

    name: str
    base: int

    def require(self, good: npt.NDArray[np.bool_], at: Int64Array, damage: str) -> None:
        """Raise `CorruptError` for the first record that is not `good`: it has `damage` at its position in `at`."""
        if not good.all():
            first_bad = int(np.argmin(good))
            raise corrupt(self.name, self.base + int(at[first_bad]), damage)


def locate_fields(block: RecordBlock, name: str, base: int) -> BlockFields:
    """Return the block's fields; `CorruptError` unless every record's encoding fills its index entry exactly. `base` is
    the position of the block's first byte in the file `name`."""
    file = _File(name, base)
    # The index comes first: it must cover the data without a gap, so that no later look goes beyond the data.
    if not len(block.positions) == len(block.lengths) == len(block.offsets):
        raise corrupt(name, base, "index columns of different lengths")
    data = block.data
    start = block.positions
    stop = start + block.lengths
    expected = np.concatenate(([0], stop))
    is_possible = (block.lengths >= MIN_RECORD) & (block.lengths <= block.nbytes)
    file.require(is_possible, start, f"a record of less than {MIN_RECORD} bytes or more than there are")
    file.require(start == expected[:-1], expected, "the index leaves a gap or overlaps")
    if expected[-1] != block.nbytes:
        index_end = min(int(expected[-1]), block.nbytes)
        raise corrupt(name, base + index_end, "the index ends elsewhere than the records")
    file.require(rising(block.offsets), start, "record offsets do not increase")
    head = heads(data, start)
    file.require(head["offset"] == block.offsets, start, "another record offset than in the index")
    types = head["type"].astype(np.int32)
    file.require((types >= -2) & (types <= 1), start + 8, "unknown timestamp type")
    timed = types >= 0
    timestamps = head["timestamp"].astype(np.int64)
    # A record without a timestamp has its key's length at the timestamp's place, in its upper four bytes.
    key_length = np.where(timed, head["key_length"], timestamps >> 32).astype(np.int64)
    key_at = start + np.where(timed, 24, 16)
    keys = FieldSpans(key_at, key_length)
    # The longest key leaves room for the value's length and the header count: eight bytes.
    file.require((key_length >= -1) & (keys.end + 8 <= stop), key_at - 4, "impossible key length")
    value_length = windows(data, ">i4")[keys.end].astype(np.int64)
    values = FieldSpans(keys.end + 4, value_length)
    fits = (value_length >= -1) & (values.end + 4 <= stop)
    file.require(fits, keys.end, "impossible value length")
    counts = windows(data, ">i4")[values.end].astype(np.int64)
    at = values.end + 4
    file.require((counts >= 0) & (at + 8 * counts <= stop), at - 4, "impossible header count")
    starts = np.concatenate(([0], np.cumsum(counts)))
    header_keys, header_values = _headers(data, at, stop, counts, starts, file)
    return BlockFields(types, timestamps, keys, values, starts, header_keys, header_values)


def _headers(
    data: Bytes, at: Int64Array, stop: Int64Array, counts: Int64Array, starts: Int64Array, file: _File
) -> tuple[FieldSpans, FieldSpans]:
    """Return every header's key and value: the first header of all records, the second of those that have two, …"""
    total = int(starts[-1])
    positions = np.empty((4, total), np.int64)
    key_starts, key_lengths, value_starts, value_lengths = positions
    rows = np.flatnonzero(counts)
    file.require((counts > 0) | (at == stop), at, "bytes after the record's last field")
    # Of each record with headers left: where the next one begins, where the record ends, how many are left, and the
    # place of the next one among all headers.
    at = at[rows]
    stop = stop[rows]
    remaining = counts[rows]
    slot = starts[:-1][rows]
    while len(at) > _FEW:
        key_length = windows(data, ">i4")[at].astype(np.int64)
        keys = FieldSpans(at + 4, key_length)
        # Each header behind this one takes eight bytes or more.
        least_behind = 8 * (remaining - 1)
        fits = (key_length >= 0) & (keys.end + 4 + least_behind <= stop)
        file.require(fits, at, "impossible header key length")
        value_length = windows(data, ">i4")[keys.end].astype(np.int64)
        values = FieldSpans(keys.end + 4, value_length)
        fits = (value_length >= -1) & (values.end + least_behind <= stop)
        file.require(fits, keys.end, "impossible header value length")
        key_starts[slot] = keys.start
        key_lengths[slot] = keys.length
        value_starts[slot] = values.start
        value_lengths[slot] = values.length
        at = values.end
        remaining = remaining - 1
        slot = slot + 1
        more = remaining > 0
        file.require(more | (at == stop), at, "bytes after the record's last header")
        at = at[more]
        stop = stop[more]
        remaining = remaining[more]
        slot = slot[more]
    view = data.data
    for first, end, count, column in zip(at.tolist(), stop.tolist(), remaining.tolist(), slot.tolist(), strict=True):
        _walk_headers(view, first, end, count, positions[:, column : column + count], file)
    return FieldSpans(key_starts, key_lengths), FieldSpans(value_starts, value_lengths)


def _walk_headers(view: memoryview, at: int, stop: int, count: int, fields: npt.NDArray[np.int64], file: _File) -> None:
    """Write the positions of one record's headers into `fields`."""
    end = at
    try:
        for column, (key, middle, end) in enumerate(headers(view, at, stop, count, *file)):
            is_null = bytes(view[middle : middle + 4]) == b"\xff\xff\xff\xff"
            value_length = -1 if is_null else end - middle - 4
            fields[:, column] = (key, middle - key, middle + 4, value_length)
    except ShortError:
        raise corrupt(*file, "the record's headers go past its end") from None
    if end != stop:
        raise corrupt(file.name, file.base + end, "bytes after the record's last header")


def gather(data: Bytes, fields: FieldSpans) -> pa.Array[Any]:
    """Return the fields' bytes as large_binary[n], null if the length is -1."""
    count = len(fields.start)
    if not count:
        return pa.array([], pa.large_binary())
    # One Arrow array over the data whose even elements are the fields and whose odd ones lie between them.
    edges = np.stack((fields.start, fields.end), axis=1).ravel()
    buffers = [None, octets(edges), octets(data)]
    spans = pa.Array.from_buffers(pa.large_binary(), 2 * count - 1, buffers)
    even: Any = pa.array(np.arange(0, 2 * count, 2), mask=fields.length < 0)
    return spans.take(even)


def header_keys(data: Bytes, fields: FieldSpans, name: str, base: int) -> pa.Array[Any]:
    """Return the header keys as string[m]; `UsageError` if one is not UTF-8 (Arrow's cast looks at each)."""
    raw = gather(data, fields)
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        keys: list[Any] = raw.to_pylist()
        for start, key in zip(fields.start.tolist(), keys, strict=True):
            try:
                key.decode()
            except UnicodeDecodeError:
                raise UsageError(
                    f"{name} at byte {base + start}: a header key that is not UTF-8",
                    "use the native kernel, which archives and restores it: a table of records can't hold it",
                ) from None
        # All keys are valid, but more than the 2 GiB that a string column holds: cut the block smaller.
        raise


def check(block: RecordBlock, name: str, base: int) -> None:
    """Raise `CorruptError` unless `block` is whole: every record fills exactly its index entry, with valid fields.
    `name` is the file that the error names and `base` the position of the block's first byte in it."""
    locate_fields(block, name, base)
