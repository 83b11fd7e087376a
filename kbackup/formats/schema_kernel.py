"""The loops of `schema_ids` over a block's records: compiled where numba is installed, else plain Python.

Arrays have one dimension and are indexed, never addressed: every field is checked to lie inside its record before
anything is read. Plain Python gets memoryviews in place of arrays, whose elements are Python's own integers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from struct import Struct
from typing import Any, TypeVar

from kbackup.types import Bytes, Int64Array

F = TypeVar("F", bound=Callable[..., Any])


def _numba() -> Any:
    """Return the module; None where it is not installed, or Python's kernel is asked for (`kafka.kernel`)."""
    if os.environ.get("KBACKUP_KERNEL") == "python":
        return None
    try:
        import numba.extending
    except ImportError:
        return None
    return numba


numba = _numba()
COMPILED = numba is not None

# Nothing is allocated, so that arrays need no counts of references (`_nrt`): those took two thirds of the time.
_OPTIONS = {"_nrt": False}

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


_prefetch: Any = numba.extending.intrinsic(_prefetching) if COMPILED else None


def _inline(function: F) -> F:
    inlined: F = numba.njit(forceinline=True, **_OPTIONS)(function) if COMPILED else function
    return inlined


def _compile(function: Callable[..., Any]) -> Any:
    if not COMPILED:
        return function
    types = numba.types
    octets, numbers = (types.Array(each, 1, "C", readonly=True) for each in (types.uint8, types.int64))
    state, out = types.int64[::1], types.uint8[::1]
    signature = types.int64(octets, numbers, numbers, numbers, state, state, state, out, numbers, numbers)
    try:
        return numba.njit(signature, cache=True, nogil=True, **_OPTIONS)(function)
    except RuntimeError:  # no place to keep compiled code
        return numba.njit(signature, nogil=True, **_OPTIONS)(function)


ID, GUID = 1, 2  # kinds of frames: a number, whose `high` is 0; sixteen bytes

NEXT, PARTS, PART, KIND, HIGH, LOW, STATE = range(7)
"""The record to go on with; the parts to look at (bits: key 1, value 2); part and frame that were taken last."""

FIELDS, FRAMED, SURE, IDS, SUMS = range(5)
"""Of a part (key 0, value 1): fields that are not null, with a frame, of these surely one, ids in the table."""

ROWS, ROW, MOST = 2048, 4, 1000
"""Of a part's table of ids: rows of kind (0: free), high, low and count; `MOST` are used."""

DONE, COPY, UNMAPPED, DAMAGED = range(4)
"""Why `visit` came back: all is done; or record `NEXT` changes and `out` is empty, has a frame without a mapping, or is
not what its index entry says."""

_PROBES = 64  # ids may have been made to meet in the table
_MIX = 0x9E3779B97F4A7C1
_NAMES, _KEY, _VALUE = b"__key_schema_id__value_schema_id", 15, 17

_INT32, _INT64 = Struct(">i"), Struct(">q")


def _int32(data: Any, at: int) -> Any:
    return _INT32.unpack_from(data, at)[0]


def _int64(data: Any, at: int) -> Any:
    return _INT64.unpack_from(data, at)[0]


if COMPILED:
    int32, int64, uint64 = numba.int32, numba.int64, numba.uint64

    @_inline
    def _word(data: Bytes, at: int) -> Any:
        at = uint64(at)  # so that the compiler sees four bytes in a row, and makes one load of them
        one, two, three = at + uint64(1), at + uint64(2), at + uint64(3)
        return int64(data[at]) << 24 | int64(data[one]) << 16 | int64(data[two]) << 8 | int64(data[three])

    @_inline
    def _int32(data: Any, at: int) -> Any:
        return int64(int32(_word(data, at)))

    @_inline
    def _int64(data: Any, at: int) -> Any:
        return _int32(data, at) << 32 | _word(data, at + 4)


@_inline
def _fields(data: Bytes, at: int, end: int, offset: int) -> tuple[int, int, int, int, int, int]:
    """Return position and length (-1: null) of key and value, the position of the headers and their count: -1 if the
    record in [at, end) is not what it should be."""
    damaged = 0, 0, 0, 0, 0, -1
    if end - at < 24 or _int64(data, at) != offset:
        return damaged
    kind = _int32(data, at + 8)
    key = at + 16 if kind < 0 else at + 24
    if kind < -2 or kind > 1 or end - key < 8:
        return damaged
    key_length = _int32(data, key - 4)
    if key_length < -1 or key_length > end - key - 8:
        return damaged
    value = key + max(key_length, 0) + 4
    value_length = _int32(data, value - 4)
    if value_length < -1 or value_length > end - value - 4:
        return damaged
    at = value + max(value_length, 0) + 4
    count = _int32(data, at - 4)
    if count < 0 or 8 * count > end - at or (count == 0 and at != end):
        return damaged
    return key, key_length, value, value_length, at, count


@_inline
def _header(data: Bytes, at: int, end: int) -> tuple[int, int, int]:
    """Return the part whose schema the header at `at` names (-1: none), the position of its value, and its length (-1:
    null, -2: the header goes past `end`)."""
    if end - at < 8:
        return -1, 0, -2
    name, length = at + 4, _int32(data, at)
    if length < 0 or length > end - name - 4:
        return -1, 0, -2
    value = name + length + 4
    size = _int32(data, value - 4)
    if size < -1 or size > end - value:
        return -1, 0, -2
    if length != _KEY and length != _VALUE:
        return -1, value, size
    part = 0 if length == _KEY else 1
    for number in range(length):
        if data[name + number] != _NAMES[_KEY * part + number]:
            return -1, value, size
    return part, value, size


@_inline
def _frame(data: Bytes, at: int, length: int, header: bool) -> tuple[int, int, int]:
    """Return kind, high and low of the frame that a field, or the value of a `header`, begins with; a kind of 0 for
    none."""
    if header and length >= 17 and data[at] == 1:
        return GUID, _int64(data, at + 1), _int64(data, at + 9)
    if length < 5 or data[at] != 0:
        return 0, 0, 0
    number = _int32(data, at + 1)
    return (ID, 0, number) if number > 0 else (0, 0, 0)


@_inline
def _count(table: Int64Array, sums: Int64Array, part: int, kind: int, high: int, low: int) -> None:
    number = ((high ^ low) * _MIX >> 32) & (ROWS - 1)
    for _ in range(_PROBES):
        at = ROW * (ROWS * part + number)
        if table[at] == 0:
            if sums[SUMS * part + IDS] < MOST:
                sums[SUMS * part + IDS] += 1
                table[at], table[at + 1], table[at + 2], table[at + 3] = kind, high, low, 1
            return
        if table[at + 2] == low and table[at + 1] == high and table[at] == kind:
            table[at + 3] += 1
            return
        number = (number + 1) & (ROWS - 1)


@_inline
def _map(out: Bytes, at: int, rows: Int64Array, kind: int, high: int, low: int) -> int:
    """Write what the frame at `at` becomes. `rows` are of old high and low, new high and low, and rise."""
    first, stop = 0, len(rows) // 4
    while first < stop:
        middle = (first + stop) >> 1
        if rows[4 * middle] < high or (rows[4 * middle] == high and rows[4 * middle + 1] < low):
            first = middle + 1
        else:
            stop = middle
    row = 4 * first
    if row == len(rows) or rows[row] != high or rows[row + 1] != low:
        return UNMAPPED
    if rows[row + 2] == high and rows[row + 3] == low:
        return DONE
    if len(out) == 0:
        return COPY
    size = 16 if kind == GUID else 4
    for place in range(size):
        word = rows[row + 2] if size - place > 8 else rows[row + 3]
        out[at + 1 + place] = word >> 8 * ((size - 1 - place) & 7) & 255
    return DONE


@_inline
def _take(
    table: Int64Array,
    sums: Int64Array,
    out: Bytes,
    at: int,
    rows: Int64Array,
    part: int,
    kind: int,
    high: int,
    low: int,
) -> int:
    if len(table) == 0:
        return _map(out, at, rows, kind, high, low)
    _count(table, sums, part, kind, high, low)
    return DONE


@_compile
def visit(
    data: Bytes,
    offsets: Int64Array,
    positions: Int64Array,
    lengths: Int64Array,
    state: Int64Array,
    sums: Int64Array,
    table: Int64Array,
    out: Bytes,
    ids: Int64Array,
    guids: Int64Array,
) -> int:
    """Visit the frames of the block's records from `NEXT` on, until one of the reasons above. With a `table` they are
    counted there; else `ids` and `guids` map them, in `out`: a copy of `data`, or empty until something changes."""
    parts = state[PARTS]
    for number in range(state[NEXT], len(offsets)):
        state[NEXT] = number
        start, size = positions[number], lengths[number]
        if start < 0 or size < 0 or start > len(data) - size:
            return DAMAGED
        end = start + size
        if COMPILED:
            for line in range(-1, 2):
                _prefetch(data, positions[min(number + _AHEAD, len(positions) - 1)] + 64 * line)
        key, key_length, value, value_length, at, headers = _fields(data, start, end, offsets[number])
        if headers < 0:
            return DAMAGED
        named = 0  # bits of the parts that headers are of; four times that, of those that have a frame there
        for _ in range(headers):
            part, at, length = _header(data, at, end)
            if length == -2:
                return DAMAGED
            if part >= 0 and length >= 0 and parts >> part & 1 and (key_length if part == 0 else value_length) >= 0:
                named |= 1 << part
                kind, high, low = _frame(data, at, length, True)
                if kind > 0:
                    named |= 4 << part
                    state[PART], state[KIND], state[HIGH], state[LOW] = part, kind, high, low
                    why = _take(table, sums, out, at, guids if kind == GUID else ids, part, kind, high, low)
                    if why != DONE:
                        return why
            at += max(length, 0)
        if headers > 0 and at != end:
            return DAMAGED
        for part in range(2):
            at, length = (key, key_length) if part == 0 else (value, value_length)
            if length < 0 or not parts >> part & 1:
                continue
            framed, sure = named >> part >> 2 & 1, 1
            if not named >> part & 1:
                kind, high, low = _frame(data, at, length, False)
                framed, sure = min(kind, 1), min(abs(length - 8), 1)
                if kind > 0:
                    state[PART], state[KIND], state[HIGH], state[LOW] = part, kind, high, low
                    why = _take(table, sums, out, at, ids, part, kind, high, low)
                    if why != DONE:
                        return why
            sums[SUMS * part + FIELDS] += 1
            sums[SUMS * part + FRAMED] += framed
            sums[SUMS * part + SURE] += framed & sure
    state[NEXT] = len(offsets)
    return DONE
