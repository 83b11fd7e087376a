"""The loop of `schema_ids` over a block's records: compiled where numba is installed, else plain Python.

Arrays are indexed, never addressed: every field is checked to lie inside its record before anything is read. Plain
Python gets memoryviews in place of arrays, whose elements are Python's own integers.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple, TypeVar

import numpy as np

from kbackup.native.archived_fields import (
    COMPILED,
    LEAST_RECORD,
    compiled,
    given,
    inline,
    int32_at,
    int64,
    int64_at,
    numba,
    read_field,
    viewed,
)
from kbackup.types import Bytes, Int64Array

_AHEAD = 16  # records: their bytes are on the way from memory when it is their turn, which halves the time


def _prefetching(_: Any, data: Any, at: Any) -> Any:
    """Fetch what is at `at` into the processor's cache, if anything is there."""
    from llvmlite import ir

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        where, word = builder.gep(array.data, [arguments[1]]), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [where.type, word, word, word])
        function = builder.module.declare_intrinsic("llvm.prefetch", [where.type], kind)
        builder.call(function, [where, word(0), word(3), word(1)])  # to read, to stay, data
        return context.get_dummy_value()

    return numba.types.void(data, at), generate


_prefetch: Any = import_module("numba.extending").intrinsic(_prefetching) if COMPILED else None


ID, GUID = 1, 2  # kinds of frames: a number, whose `high` is 0; sixteen bytes
CONTENT_ID, GLOBAL_ID, EIGHT_BYTES, CONTENT_HASH, ARTIFACT_ID = range(3, 8)
"""Kinds that Apicurio's serializers alone write, and that are counted, never mapped. The first two are numbers of eight
bytes in a header, EIGHT_BYTES is one behind a byte 0 in front of the data, and the others are headers without a number.
Their `high` is 0."""

FORMS = 1 + ARTIFACT_ID - GUID
"""Of frames: the first two kinds together, and each of Apicurio's."""


Frame = tuple[int, int, int]
"""Kind (0: none), high and low."""


class FrameSums(NamedTuple):
    """What is counted of the keys, then of the values: int64[2] each."""

    fields: Int64Array
    """That are not null."""
    framed: Int64Array
    """Fields with a frame of the first two kinds."""
    sure: Int64Array
    """Of these, fields that surely have one."""
    odd: Int64Array
    """Frames with an id of ODD_ID or more."""
    ids: Int64Array
    """In the table, of any kind."""
    unlisted: Int64Array
    """Frames that have no place in the table, by form: int64[2 * FORMS]."""


class FrameTable(NamedTuple):
    """A hash table of the keys' frames, then one of the values': int64[2 * rows] each, at most half of them used."""

    kind: Int64Array
    """0 in a free row."""
    high: Int64Array
    low: Int64Array
    frames: Int64Array
    """How many they are."""


class FrameMap(NamedTuple):
    """What frames become, in the order of the first four columns: int64[n] each."""

    part: Int64Array
    kind: Int64Array
    high: Int64Array
    low: Int64Array
    new_high: Int64Array
    new_low: Int64Array


class LeftRows(NamedTuple):
    """Frames that the map lacks: int64[n] each, with room for any frame that there may be."""

    record: Int64Array
    """The number of the record in its block."""
    part: Int64Array
    kind: Int64Array
    high: Int64Array
    low: Int64Array
    at: Int64Array
    """Where the bytes begin that the frame stands in, and how many they are."""
    size: Int64Array
    field_at: Int64Array
    """The same of the key or value; it differs only for a frame in a header."""
    field_size: Int64Array


ODD_ID = 1 << 24

Columns = TypeVar("Columns", FrameSums, FrameTable)


def make_sums() -> FrameSums:
    fields, framed, sure, odd, ids = np.zeros((5, 2), np.int64)
    return FrameSums(fields, framed, sure, odd, ids, np.zeros(2 * FORMS, np.int64))


def make_table(rows: int) -> FrameTable:
    kind, high, low, frames = np.zeros((4, 2 * rows), np.int64)
    return FrameTable(kind, high, low, frames)


def make_left(rows: int) -> LeftRows:
    return LeftRows(*np.empty((9, rows), np.int64))


def copy_columns(columns: Columns) -> Columns:
    return type(columns)(*(column.copy() for column in columns))


_PROBES = 64  # ids may have been made to meet in the table
_MIX = 0x9E3779B97F4A7C1
_NAMES, _KEY, _VALUE = b"__key_schema_id__value_schema_id", 15, 17
_APICURIO = b"apicurio.key.apicurio.value."
_OWN_KEY, _OWN_VALUE = 13, 15
_OWN_NAMES, _OWN_ENDS = b"contentIdglobalIdcontentHashartifactId", (0, 9, 17, 28, 38)
_LEAST_OWN, _MOST_OWN = 21, 26  # bytes of a header's name: apicurio.key.globalId, apicurio.value.contentHash


@inline
def _named(data: Bytes, at: int, length: int) -> int:
    """Return the part whose schema a header of this name has, -1 for none."""
    if length != _KEY and length != _VALUE:
        return -1
    part = 0 if length == _KEY else 1
    for number in range(length):
        if data[at + number] != _NAMES[_KEY * part + number]:
            return -1
    return part


@inline
def _is_text(data: Bytes, at: int, text: bytes, start: int, size: int) -> bool:
    for number in range(size):  # noqa: SIM110 (compiled, a generator allocates)
        if data[at + number] != text[start + number]:
            return False
    return True


@inline
def _apicurio(data: Bytes, at: int, length: int) -> tuple[int, int]:
    """Return the part whose schema a header of this name has in Apicurio's way, and the kind; -1 and 0 for none."""
    if length < _LEAST_OWN or length > _MOST_OWN or data[at] != _APICURIO[0]:  # most headers end here
        return -1, 0
    for part in range(2):
        start, size = (0, _OWN_KEY) if part == 0 else (_OWN_KEY, _OWN_VALUE)
        if not _is_text(data, at, _APICURIO, start, size):
            continue
        for number in range(4):
            first, end = _OWN_ENDS[number], _OWN_ENDS[number + 1]
            if end - first == length - size and _is_text(data, at + size, _OWN_NAMES, first, end - first):
                return part, CONTENT_ID + number if number < 2 else CONTENT_HASH + number - 2
    return -1, 0


@inline
def _own_frame(data: Bytes, at: int, length: int, kind: int) -> Frame:
    """Return what the value of a header of one of Apicurio's kinds names; a kind of 0 for no id above 0."""
    if kind != CONTENT_ID and kind != GLOBAL_ID:
        return (kind, 0, 0)
    number = int64_at(data, at) if length >= 8 else 0
    return (kind, 0, number) if number > 0 else (0, 0, 0)


@inline
def _eight_bytes(data: Bytes, at: int, length: int) -> Frame:
    """Return the id of eight bytes that a field begins with behind a byte 0; a kind of 0 for none. A field of eight
    bytes is a number: an id has data behind it, or at least needs nine bytes."""
    if length < 9 or data[at] != 0:
        return (0, 0, 0)
    number = int64_at(data, at + 1)
    return (EIGHT_BYTES, 0, number) if 0 < number < 1 << 31 else (0, 0, 0)


@inline
def _frame(data: Bytes, at: int, length: int, header: bool) -> Frame:
    """Return the frame that a field, or the value of a `header`, begins with; a kind of 0 for none."""
    if header and length >= 17 and data[at] == 1:
        return (GUID, int64_at(data, at + 1), int64_at(data, at + 9))
    if length < 5 or data[at] != 0:
        return (0, 0, 0)
    number = int32_at(data, at + 1)
    return (ID, 0, number) if number > 0 else (0, 0, 0)


def first_row(high: int, low: int, last: int) -> int:
    """Return the row of a table where the search for an id begins; `last` is its last row, a power of two less one."""
    return (high ^ low) * _MIX >> 32 & last


_first_row = inline(first_row)


@inline
def _count(sums: FrameSums, table: FrameTable, part: int, frame: Frame) -> None:
    kind, high, low = frame
    if kind == ID and low >= ODD_ID:
        sums.odd[part] += 1
    rows = len(table.kind) >> 1
    first = rows * part
    row = _first_row(high, low, rows - 1)
    for _ in range(_PROBES):
        at = first + row
        if table.kind[at] == 0:
            if 2 * sums.ids[part] >= rows - 1:
                break
            sums.ids[part] += 1
            table.kind[at] = kind
            table.high[at] = high
            table.low[at] = low
            table.frames[at] = 1
            return
        if table.low[at] == low and table.high[at] == high and table.kind[at] == kind:
            table.frames[at] += 1
            return
        row = row + 1 & rows - 1
    sums.unlisted[FORMS * part + max(kind - GUID, 0)] += 1


@inline
def _map(out: Bytes, rows: FrameMap, part: int, frame: Frame, at: int) -> bool:
    """Write what the frame at `at` becomes; return False if there is no row for it."""
    kind, high, low = frame
    wanted = part, kind, high, low
    first, stop = 0, len(rows.part)
    while first < stop:
        middle = (first + stop) >> 1
        if (rows.part[middle], rows.kind[middle], rows.high[middle], rows.low[middle]) < wanted:
            first = middle + 1
        else:
            stop = middle
    if first == len(rows.part):
        return False
    if (rows.part[first], rows.kind[first], rows.high[first], rows.low[first]) != wanted:
        return False
    size = 16 if kind == GUID else 4
    for place in range(size):
        word = rows.new_high[first] if size - place > 8 else rows.new_low[first]
        out[at + 1 + place] = word >> 8 * ((size - 1 - place) & 7) & 255
    return True


@inline
def _leave(
    left: LeftRows,
    left_count: Int64Array,
    record: int,
    part: int,
    frame: Frame,
    at: int,
    size: int,
    field_at: int,
    field_size: int,
) -> None:
    """Note a frame without a row of the map."""
    row = left_count[0]
    left.record[row] = record
    left.part[row] = part
    left.kind[row], left.high[row], left.low[row] = frame
    left.at[row] = at
    left.size[row] = size
    left.field_at[row] = field_at
    left.field_size[row] = field_size
    left_count[0] = row + 1


def _signature() -> Any:
    column = int64[::1]

    def columns(fields: type) -> Any:
        return numba.types.BaseTuple.from_types([column] * len(fields.__annotations__), fields)

    block = given(numba.uint8), given(int64), given(int64), given(int64)
    counted = columns(FrameSums), columns(FrameTable)
    mapped = numba.uint8[::1], columns(FrameMap), columns(LeftRows), column
    return int64(int64, *block, *counted, *mapped)


def visit(
    parts: int,
    data: Bytes,
    offsets: Int64Array,
    positions: Int64Array,
    lengths: Int64Array,
    sums: FrameSums,
    table: FrameTable,
    out: Bytes,
    rows: FrameMap,
    left: LeftRows,
    left_count: Int64Array,
) -> int:
    """Count the frames of `parts` (bits: key 1, value 2) in `sums` and in `table`. Or, where `out` is the memory of
    `data` and not empty, map them there by `rows`. Frames without a row stay as they are, and go to `left`, of which
    `left_count[0]` rows are used then.

    Return the number of records before the first that is not what its index entry says."""
    for number in range(len(offsets)):
        start, size = positions[number], lengths[number]
        if start < 0 or size < LEAST_RECORD or start > len(data) - size:
            return number
        if COMPILED:
            ahead = positions[min(number + _AHEAD, len(positions) - 1)]
            for line in range(-1, 2):
                _prefetch(data, ahead + 64 * line)

        end, timestamp_type = start + size, int32_at(data, start + 8)
        if int64_at(data, start) != offsets[number] or timestamp_type < -2 or timestamp_type > 1:
            return number
        key, key_length = read_field(data, start + (12 if timestamp_type < 0 else 20), end)
        value, value_length = read_field(data, key + max(key_length, 0), end)
        at, headers = read_field(
            data, value + max(value_length, 0), end
        )  # their number, less than the bytes that follow
        if key_length == -2 or value_length == -2 or headers < 0:
            return number

        named = framed = 0  # bits of the parts that headers are of; of the parts with a frame
        for _ in range(headers):
            name, name_length = read_field(data, at, end)
            at, size = read_field(data, name + max(name_length, 0), end)
            if name_length < 0 or size == -2:
                return number
            part = _named(data, name, name_length)
            own = 0
            if part < 0:
                part, own = _apicurio(data, name, name_length)
            is_of_part = part >= 0 and size >= 0 and parts >> part & 1 == 1
            field_at, field_size = (key, key_length) if part == 0 else (value, value_length)
            if is_of_part and field_size >= 0 and own > 0:
                frame = _own_frame(data, at, size, own)
                if frame[0] > 0:
                    named |= 1 << part  # there is no id in front of the data then
                    if len(out) == 0:
                        _count(sums, table, part, frame)
            elif is_of_part and field_size >= 0:
                named |= 1 << part
                frame = _frame(data, at, size, True)
                framed |= min(frame[0], 1) << part
                if frame[0] > 0:
                    if len(out) == 0:
                        _count(sums, table, part, frame)
                    elif not _map(out, rows, part, frame, at):
                        _leave(left, left_count, number, part, frame, at, size, field_at, field_size)
            at += max(size, 0)
        if at != end:
            return number

        for part in range(2):
            at, size = (key, key_length) if part == 0 else (value, value_length)
            if size < 0 or not parts >> part & 1:
                continue
            sure = named >> part & 1
            if not sure:
                frame = _frame(data, at, size, False)
                framed |= min(frame[0], 1) << part
                # eight bytes may be a number, and gRPC has the length of what follows in the place of an id
                sure = min(abs(size - 8), 1) * min(abs(size - 5 - frame[2]), 1)
                if frame[0] == 0 and len(out) == 0:
                    eight_bytes = _eight_bytes(data, at, size)
                    if eight_bytes[0] > 0:
                        _count(sums, table, part, eight_bytes)
                if frame[0] > 0:
                    if len(out) == 0:
                        _count(sums, table, part, frame)
                    elif not _map(out, rows, part, frame, at):
                        _leave(left, left_count, number, part, frame, at, size, at, size)
            sums.fields[part] += 1
            sums.framed[part] += framed >> part & 1
            sums.sure[part] += framed >> part & sure
    return len(offsets)


if COMPILED:
    visit = compiled(_signature())(visit)


def run(*arguments: Any) -> int:
    """Call `visit`. Plain Python gets memoryviews in place of arrays: their elements are Python's own integers."""
    if COMPILED:
        return int(visit(*arguments))
    return int(visit(*map(viewed, arguments)))
