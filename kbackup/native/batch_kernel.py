"""The loop that writes archived records as Kafka's record batches have them: compiled where numba is installed, else
plain Python.

Every field is checked to lie inside its record before it is copied. Plain Python gets memoryviews in place of arrays,
whose elements are Python's own integers. The format is that of Kafka's RecordBatch, magic 2.
"""

from __future__ import annotations

from typing import Any

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
    uint64,
    viewed,
)
from kbackup.types import Bytes, Int64Array

NO_TIMESTAMP = -1
"""What Kafka writes for a record without a timestamp."""

ROOM_OF_RECORD = 16
"""Bytes by which a record may be longer in a batch than in the archive, apart from its headers."""


_SHORT = 16
"""Fields of up to so many bytes are copied byte by byte."""

HEAD_BYTES = 61
"""Bytes of a batch before its records."""

_MOST_DELTA = (1 << 31) - 1
"""The largest distance of a record's offset from its batch's."""
_LOG_APPEND = 1 << 3
"""The bit of a batch's attributes that says that its greatest timestamp is the one of all its records."""


if COMPILED:

    @inline
    def _zigzag(value: int) -> Any:
        # All 64 bits count: a time may lie more than half of its range behind the first one of its batch.
        return uint64((value << 1) ^ (value >> 63))
else:

    def _zigzag(value: int) -> Any:
        return (value << 1) ^ (value >> 63)


@inline
def _varint_bytes(value: int) -> int:
    rest = _zigzag(value)
    size = 1
    while rest > 127:
        rest = rest >> 7
        size += 1
    return size


@inline
def _put_varint(out: Any, at: int, value: int) -> int:
    """Write a number as Kafka's varint; return the position behind it."""
    rest = _zigzag(value)
    while rest > 127:
        out[at] = (rest & 127) | 128
        rest = rest >> 7
        at += 1
    out[at] = rest
    return at + 1


if COMPILED:
    _copy_bytes: Any = numba.types.ExternalFunction(
        "memcpy", numba.types.intp(numba.types.intp, numba.types.intp, numba.types.intp)
    )

    @inline
    def _copy(out: Any, at: int, data: Any, start: int, size: int) -> int:
        # The compiler makes one copy a byte of the loop, since it can't know that the arrays are apart: 1.1 ns a byte.
        # A call costs as much as some ten bytes.
        if size > _SHORT:
            _copy_bytes(out.ctypes.data + at, data.ctypes.data + start, size)
        else:
            for place in range(size):
                out[at + place] = data[start + place]
        return at + size
else:

    def _copy(out: Any, at: int, data: Any, start: int, size: int) -> int:
        out[at : at + size] = data[start : start + size]
        return at + size


@inline
def _put_big(out: Any, at: int, value: int, size: int) -> int:
    """Write a number in `size` bytes, big-endian; return the position behind it."""
    for place in range(size):
        out[at + place] = (value >> (8 * (size - 1 - place))) & 255
    return at + size


@inline
def _put_field(out: Any, at: int, data: Any, start: int, size: int) -> int:
    """Write a length, -1 for null, and so many bytes of `data` behind it."""
    at = _put_varint(out, at, size)
    return _copy(out, at, data, start, size) if size > 0 else at


@inline
def _put_records(
    data: Any, positions: Any, lengths: Any, first: int, last: int, out: Any, to: int, times: Any, kept: int
) -> int:
    """Write records from number `first` to `last` (exclusive) to `out` from `to` on; return the position behind them,
    or the number of a record that is not what its index entry says, counted backwards from -1."""
    for number in range(first, last):
        start, size = positions[number], lengths[number]
        if start < 0 or size < LEAST_RECORD or start > len(data) - size:
            return -1 - number
        end, timestamp_type = start + size, int32_at(data, start + 8)
        if timestamp_type < -2 or timestamp_type > 1:
            return -1 - number
        timestamp = int64_at(data, start + 12) if timestamp_type >= 0 else NO_TIMESTAMP
        key, key_size = read_field(data, start + (12 if timestamp_type < 0 else 20), end)
        value, value_size = read_field(data, key + max(key_size, 0), end)
        headers_at, headers = read_field(data, value + max(value_size, 0), end)
        if key_size == -2 or value_size == -2 or headers < 0:
            return -1 - number
        if number == first:
            times[0] = timestamp
            times[1] = timestamp
        times[1] = max(times[1], timestamp)

        # The length of a record stands before it, so the record is measured first.
        delta, place = timestamp - times[0], number - first
        if kept:
            place = int64_at(data, start) - int64_at(data, positions[first])
            if place < number - first or place > _MOST_DELTA:
                return -1 - number
        body = 1 + _varint_bytes(delta) + _varint_bytes(place)
        body += _varint_bytes(key_size) + max(key_size, 0)
        body += _varint_bytes(value_size) + max(value_size, 0)
        body += _varint_bytes(headers)
        at = headers_at
        for _ in range(headers):
            name, name_size = read_field(data, at, end)
            at, size = read_field(data, name + max(name_size, 0), end)
            if name_size < 0 or size == -2:
                return -1 - number
            body += _varint_bytes(name_size) + name_size + _varint_bytes(size) + max(size, 0)
            at += max(size, 0)
        if at != end:
            return -1 - number

        to = _put_varint(out, to, body)
        out[to] = 0  # attributes, none of which is in use
        to = _put_varint(out, to + 1, delta)
        to = _put_varint(out, to, place)
        to = _put_field(out, to, data, key, key_size)
        to = _put_field(out, to, data, value, value_size)
        to = _put_varint(out, to, headers)
        at = headers_at
        for _ in range(2 * headers):
            at, size = read_field(data, at, end)
            to = _put_field(out, to, data, at, size)
            at += max(size, 0)
    return to


def write(
    data: Bytes, positions: Int64Array, lengths: Int64Array, first: int, last: int, out: Bytes, times: Int64Array
) -> int:
    """Write the archived records from number `first` to `last` (exclusive) to `out`, as records of one batch, whose
    offsets count from 0 without gaps. `times` gets the timestamp of the first of them, from which the others count,
    and the greatest one.

    Return the bytes that were written; or, for a record that is not what its index entry says, its number counted
    backwards from -1."""
    written: int = _put_records(data, positions, lengths, first, last, out, 0, times, 0)
    return written


def write_log(
    data: Bytes,
    positions: Int64Array,
    lengths: Int64Array,
    cuts: Int64Array,
    epochs: Int64Array,
    out: Bytes,
    ends: Int64Array,
    times: Int64Array,
) -> int:
    """Write the archived records as batches of a log, with the offsets that they have: one batch for the records
    between each number in `cuts` and the next one. `epochs` are the batches' leader epochs, -1 for none. `ends` gets
    where each batch ends in `out`; `times` is room for two numbers. The checksums are left 0: the processor has an
    instruction for them that this code can't use.

    Return the bytes that were written, or as `write` for a record that is not what its index entry says."""
    to: int = 0
    for batch in range(len(cuts) - 1):
        first, last = cuts[batch], cuts[batch + 1]
        begin = to
        to = _put_records(data, positions, lengths, first, last, out, begin + HEAD_BYTES, times, 1)
        if to < 0:
            return to
        base = int64_at(data, positions[first])
        delta = int64_at(data, positions[last - 1]) - base
        attributes = _LOG_APPEND if int32_at(data, positions[first] + 8) == 1 else 0
        at = _put_big(out, begin, base, 8)
        at = _put_big(out, at, to - begin - 12, 4)
        at = _put_big(out, at, epochs[batch], 4)
        at = _put_big(out, at, 2, 1)  # magic
        at = _put_big(out, at, 0, 4)  # the checksum
        at = _put_big(out, at, attributes, 2)
        at = _put_big(out, at, delta, 4)
        at = _put_big(out, at, times[0], 8)
        at = _put_big(out, at, times[1], 8)
        at = _put_big(out, at, -1, 8)  # no producer
        at = _put_big(out, at, -1, 2)
        at = _put_big(out, at, -1, 4)
        _put_big(out, at, last - first, 4)
        ends[batch] = to
    return to


if COMPILED:
    _block = given(numba.uint8), given(int64), given(int64)
    write = compiled(int64(*_block, int64, int64, numba.uint8[::1], int64[::1]))(write)
    write_log = compiled(int64(*_block, given(int64), given(int64), numba.uint8[::1], int64[::1], int64[::1]))(
        write_log
    )


def write_records(*arguments: Any) -> int:
    """Call `write`. Plain Python gets memoryviews in place of arrays: their elements are Python's own integers."""
    if COMPILED:
        return int(write(*arguments))
    return int(write(*map(viewed, arguments)))


def write_log_batches(*arguments: Any) -> int:
    """Call `write_log`, as `write_records` calls `write`."""
    if COMPILED:
        return int(write_log(*arguments))
    return int(write_log(*map(viewed, arguments)))
