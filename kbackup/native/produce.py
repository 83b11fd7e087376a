"""The producer kernel: a block's records go to librdkafka, and delivery reports come back, without a Python object a
record.

Values are not copied: librdkafka reads them from the block until their reports are in. Every field of a record is
checked to lie inside it before anything is read. The record encoding is that of `formats/README.md`.
"""

from __future__ import annotations

from numba import int32, njit, types

from kbackup.native.librdkafka import EVENT_DELIVERY
from kbackup.native.machine import (
    compare_text,
    copy_text,
    error_code,
    error_destroy,
    event_destroy,
    event_messages,
    event_type,
    header_add,
    headers_destroy,
    headers_new,
    load32,
    load32_big,
    load64,
    load64_big,
    message_reason,
    produce,
    queue_poll,
    store64,
)
from kbackup.types import Bytes, Int64Array

DONE, QUEUE_FULL, REFUSED, DAMAGED = range(4)
"""Why `send` came back: all is queued; the queue takes no more for now; it does not take record `NEXT` (`CODE`);
record `NEXT` is not what its index entry says."""

(
    ADDRESS,  # of the block's data
    SIZE,  # in bytes
    SLOT,  # the block's row in the table of blocks
    NEXT,  # record to send
    CODE,
    MOVED,  # records sent with timestamp 1 for 0, ever
    FINISHED,  # slots in `finished`
    LOST,  # rows in `lost`
    EVENT,  # of another kind than delivery reports, to be destroyed
    HEADERS,  # of the record that is being sent; 0 for none
) = range(10)
STATE = HEADERS + 1

TARGETS, LEFT = range(2)
"""Columns of the table of blocks, one row per slot: address of int64[records] for their target offsets, and how many of
them are not reported."""

LOST_CODE, LOST_SLOT, LOST_RECORD = range(3)
"""Columns of `lost`: the first undelivered record of each code and reason, as long as there are rows."""

REASON = 256
"""Bytes of a row of `reasons`: the broker's words on that record, ended by NUL; empty if it had none."""

RKT, PARTITION, FLAGS, OPAQUE, TIMESTAMP, KEY, VALUE, WITH_HEADERS = range(8)
"""Rows of the arguments of `rd_kafka_produceva`, a `rd_kafka_vu_t` each, as int64[8, 9]: kind, then a union."""

KINDS = (2, 3, 7, 6, 8, 5, 4, 10)
"""`RD_KAFKA_VTYPE_...` of those rows."""

_LARGEST_KEY = 8  # bytes that follow a key at least: the value's length and the header count
_LEAST = 8 + 4 + 4 + 4 + 4  # bytes of a record
_RECORD_BITS = 32  # of an opaque; those above are the slot
_RECORD_MASK = (1 << _RECORD_BITS) - 1
_QUEUE_FULL = -184  # RD_KAFKA_RESP_ERR__QUEUE_FULL


@njit(inline="always")
def _headers(state: Int64Array, at: int, end: int, count: int) -> bool:
    """Build the list of a record's `count` headers; whether they fill the bytes up to its end."""
    made = headers_new(count)
    state[HEADERS] = made
    for _ in range(count):
        if end - at < 8:
            return False
        name, length = at + 4, load32_big(at)
        if length < 0 or length > end - name - 4:
            return False
        value, size = name + length + 4, load32_big(name + length)
        if size < -1 or size > end - value:
            return False
        if size < 0:
            header_add(made, name, length, 0, 0)
            at = value
        else:
            header_add(made, name, length, value, size)
            at = value + size
    return at == end


@njit(inline="always")
def _fields(state: Int64Array, arguments: Int64Array, at: int, end: int, offset: int) -> bool:
    """Set the arguments to the record in [at, end), at least `_LEAST` bytes; whether it is what it should be."""
    if load64_big(at) != offset:
        return False
    kind = load32_big(at + 8)
    at += 12
    if kind < -2 or kind > 1:
        return False
    arguments[TIMESTAMP, 1] = -1
    if kind >= 0:
        if end - at < 8 + 4 + _LARGEST_KEY:
            return False
        arguments[TIMESTAMP, 1] = load64_big(at)
        at += 8
    length = load32_big(at)
    at += 4
    if length < -1 or length > end - at - _LARGEST_KEY:
        return False
    arguments[KEY, 1] = at if length >= 0 else 0
    arguments[KEY, 2] = max(length, 0)
    at += arguments[KEY, 2]
    length = load32_big(at)
    at += 4
    if length < -1 or length > end - at - 4:
        return False
    arguments[VALUE, 1] = at if length >= 0 else 0
    arguments[VALUE, 2] = max(length, 0)
    at += arguments[VALUE, 2]
    count = load32_big(at)
    at += 4
    if count < 0 or 8 * count > end - at:
        return False
    if count == 0:
        return at == end
    return _headers(state, at, end, count)


_INDEX = types.Array(types.int64, 1, "C", readonly=True)


@njit(types.int64(types.intp, types.int64[:, ::1], types.int64[::1], _INDEX, _INDEX, _INDEX), cache=True, nogil=True)
def send(
    client: int,
    arguments: Int64Array,
    state: Int64Array,
    offsets: Int64Array,
    positions: Int64Array,
    lengths: Int64Array,
) -> int:
    """Produce the block's records from `NEXT` on, until one of the reasons above."""
    data, size = state[ADDRESS], state[SIZE]
    for number in range(state[NEXT], len(offsets)):
        state[NEXT] = number
        start, length = positions[number], lengths[number]
        if start < 0 or start > size or length < _LEAST or length > size - start:
            return DAMAGED
        state[HEADERS] = 0
        whole = _fields(state, arguments, data + start, data + start + length, offsets[number])
        headers = state[HEADERS]
        if not whole:
            if headers != 0:
                headers_destroy(headers)
            return DAMAGED
        zero = arguments[TIMESTAMP, 1] == 0
        if zero:
            arguments[TIMESTAMP, 1] = 1
        arguments[OPAQUE, 1] = (state[SLOT] << _RECORD_BITS) | number
        arguments[WITH_HEADERS, 1] = headers
        error = produce(client, arguments.ctypes.data, 8 if headers != 0 else 7)
        if error != 0:
            code = error_code(error)
            error_destroy(error)
            if headers != 0:
                headers_destroy(headers)
            state[CODE] = code
            return QUEUE_FULL if code == _QUEUE_FULL else REFUSED
        if zero:
            state[MOVED] += 1
    state[NEXT] = len(offsets)
    return DONE


@njit(inline="always")
def _note_lost(
    state: Int64Array, lost: Int64Array, reasons: Bytes, message: int, code: int, slot: int, record: int
) -> None:
    known = state[LOST]
    reason = message_reason(message)
    for row in range(known):
        words = reasons.ctypes.data + REASON * row
        if lost[row, LOST_CODE] == code and (reason == 0 or compare_text(words, reason, REASON - 1) == 0):
            return
    if known == lost.shape[0]:
        return
    lost[known, LOST_CODE], lost[known, LOST_SLOT], lost[known, LOST_RECORD] = code, slot, record
    if reason != 0:
        copy_text(reasons.ctypes.data + REASON * known, reason, REASON - 1)
    state[LOST] = known + 1


@njit(
    "boolean(intp, int64, int64[::1], int64[:, ::1], int64[::1], int64[::1], int64[:, ::1], uint8[:, ::1])",
    cache=True,
    nogil=True,
)
def serve(
    queue: int,
    wait: int,
    state: Int64Array,
    table: Int64Array,
    messages: Int64Array,
    finished: Int64Array,
    lost: Int64Array,
    reasons: Bytes,
) -> bool:
    """Take the delivery reports that are there, or come within `wait` ms; False when another event (`EVENT`) came
    between. `finished` has room for every slot; `messages` is scratch."""
    state[FINISHED] = state[EVENT] = 0
    event = queue_poll(queue, int32(wait))
    while event != 0:
        if event_type(event) != EVENT_DELIVERY:
            state[EVENT] = event
            return False
        got = len(messages)
        while got == len(messages):
            got = event_messages(event, messages.ctypes.data, len(messages))
            for number in range(got):
                message = messages[number]
                opaque = load64(message + 64)
                slot, record = opaque >> _RECORD_BITS, opaque & _RECORD_MASK
                code = load32(message)
                if code != 0:
                    _note_lost(state, lost, reasons, message, code, slot, record)
                else:
                    store64(table[slot, TARGETS] + 8 * record, load64(message + 56))
                table[slot, LEFT] -= 1
                if table[slot, LEFT] == 0:
                    finished[state[FINISHED]] = slot
                    state[FINISHED] += 1
        event_destroy(event)
        event = queue_poll(queue, int32(0))
    return True
