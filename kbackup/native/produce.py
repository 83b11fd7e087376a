"""The producer kernel: a block's records go to librdkafka, and delivery reports come back, without a Python object a
record.

Values are not copied: librdkafka reads them from the block until their reports are in. Every field of a record is
checked to lie inside it before anything is read. The record encoding is that of `formats/README.md`.
"""

from __future__ import annotations

from numba import boolean, int32, int64, intp, njit, types, uint8

from kbackup.native.librdkafka import EVENT_DELIVERY
from kbackup.native.machine import (
    MESSAGE_OFFSET,
    MESSAGE_OPAQUE,
    address_of,
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
    record_type,
    store64,
)
from kbackup.native.structures import Structures, structures_of
from kbackup.types import Bytes, Int64Array

DONE, QUEUE_FULL, REFUSED, DAMAGED = range(4)
"""Why `send` came back: all is queued; the queue takes no more for now; it does not take record `next` (`code`);
record `next` is not what its index entry says."""


class ProduceState:
    """What `send` and `serve` keep from one call to the next. A slot is a row of the table of blocks."""

    # The block that is being sent.
    data: int  # address of its bytes
    size: int  # in bytes
    slot: int
    next: int  # record to send
    headers: int  # librdkafka's list of the record's headers; 0 for none
    code: int  # why a record was refused
    moved: int  # records sent with timestamp 1 for 0, ever

    # What the last `serve` took.
    finished: int  # slots in `finished`
    event: int  # of another kind than delivery reports, to be destroyed
    lost: int  # rows in `lost`, since they were emptied


class BlockSlot:
    targets: int  # address of int64[records] for their target offsets
    unreported: int  # records


class LostRecord:
    """The first undelivered record of each code and reason, as long as there are rows."""

    code: int
    slot: int
    record: int


class ProduceArgument:
    """A `rd_kafka_vu_t`: an argument of `rd_kafka_produceva`."""

    kind: int  # RD_KAFKA_VTYPE_...
    value: int  # a number, or an address
    length: int  # of what is at the address, in bytes
    unused1: int
    unused2: int
    unused3: int
    unused4: int
    unused5: int
    unused6: int


TOPIC, PARTITION, FLAGS, OPAQUE, TIMESTAMP, KEY, VALUE, HEADERS = range(8)
"""Structures of the arguments of a record."""

_ARGUMENT_KINDS = (2, 3, 7, 6, 8, 5, 4, 10)
"""`RD_KAFKA_VTYPE_...` of those rows."""


def make_arguments() -> Structures[ProduceArgument]:
    """Return the arguments for a record, all but those that are the record's own."""
    return structures_of(ProduceArgument, [(kind, 0, 0, 0, 0, 0, 0, 0, 0) for kind in _ARGUMENT_KINDS])


REASON = 256
"""Bytes of a row of `reasons`: the broker's words on that record, ended by NUL; empty if it had none."""

_STATE = record_type(ProduceState)
_ARGUMENTS = record_type(ProduceArgument)[::1]
_BLOCKS = record_type(BlockSlot)[::1]
_LOST = record_type(LostRecord)[::1]
_INDEX = types.Array(int64, 1, "C", readonly=True)

_LEAST = 8 + 4 + 4 + 4 + 4  # bytes of a record
_BEHIND_KEY = 4 + 4  # bytes that follow a key at least: the length of the value and the number of headers
_BEHIND_VALUE = 4
_RECORD_BITS = 32  # of an opaque; those above are the slot
_RECORD_MASK = (1 << _RECORD_BITS) - 1
_QUEUE_FULL = -184  # RD_KAFKA_RESP_ERR__QUEUE_FULL


@njit(inline="always")
def _set_headers(state: ProduceState, at: int, end: int, count: int) -> bool:
    """Build the list of a record's `count` headers; return True if they fill the bytes up to its end."""
    headers = headers_new(count)
    state.headers = headers
    for _ in range(count):
        if end - at < 8:
            return False
        name, name_length = at + 4, load32_big(at)
        if name_length < 0 or name_length > end - name - 4:
            return False
        value, value_length = name + name_length + 4, load32_big(name + name_length)
        if value_length < -1 or value_length > end - value:
            return False
        if value_length < 0:
            header_add(headers, name, name_length, 0, 0)
            at = value
        else:
            header_add(headers, name, name_length, value, value_length)
            at = value + value_length
    return at == end


@njit(inline="always")
def _set_field(argument: ProduceArgument, at: int, length: int) -> int:
    """Set a key or a value, null for a `length` of -1; return the address behind it."""
    if length < 0:
        argument.value = argument.length = 0
        return at
    argument.value = at
    argument.length = length
    return at + length


@njit(inline="always")
def _set_record(state: ProduceState, arguments: Structures[ProduceArgument], at: int, end: int, offset: int) -> bool:
    """Set the arguments to the record in [at, end), at least `_LEAST` bytes; return False if it is damaged."""
    if load64_big(at) != offset:
        return False
    kind = load32_big(at + 8)
    at += 12
    if kind < -2 or kind > 1:
        return False
    arguments[TIMESTAMP].value = -1
    if kind >= 0:
        if end - at < 8 + 4 + _BEHIND_KEY:
            return False
        arguments[TIMESTAMP].value = load64_big(at)
        at += 8

    length = load32_big(at)
    at += 4
    if length < -1 or length > end - at - _BEHIND_KEY:
        return False
    at = _set_field(arguments[KEY], at, length)

    length = load32_big(at)
    at += 4
    if length < -1 or length > end - at - _BEHIND_VALUE:
        return False
    at = _set_field(arguments[VALUE], at, length)

    count = load32_big(at)
    at += 4
    if count < 0 or 8 * count > end - at:
        return False
    if count == 0:
        return at == end
    return _set_headers(state, at, end, count)


@njit(int64(intp, _ARGUMENTS, _STATE, _INDEX, _INDEX, _INDEX), cache=True, nogil=True)
def send(
    client: int,
    arguments: Structures[ProduceArgument],
    state: ProduceState,
    offsets: Int64Array,
    positions: Int64Array,
    lengths: Int64Array,
) -> int:
    """Produce the block's records from `next` on, until one of the reasons above."""
    data, size = state.data, state.size
    for number in range(state.next, len(offsets)):
        state.next = number
        start, length = positions[number], lengths[number]
        if start < 0 or start > size or length < _LEAST or length > size - start:
            return DAMAGED
        state.headers = 0
        whole = _set_record(state, arguments, data + start, data + start + length, offsets[number])
        headers = state.headers
        if not whole:
            if headers != 0:
                headers_destroy(headers)
            return DAMAGED

        # librdkafka takes a timestamp of 0 for "now".
        zero = arguments[TIMESTAMP].value == 0
        if zero:
            arguments[TIMESTAMP].value = 1
        arguments[OPAQUE].value = (state.slot << _RECORD_BITS) | number
        arguments[HEADERS].value = headers
        # A list of headers is the last argument, and is left out where there is none.
        count = HEADERS + 1 if headers != 0 else HEADERS
        error = produce(client, address_of(arguments[0]), count)
        if error != 0:
            code = error_code(error)
            error_destroy(error)
            # librdkafka takes over the list of a record that it accepts, and of no other.
            if headers != 0:
                headers_destroy(headers)
            state.code = code
            return QUEUE_FULL if code == _QUEUE_FULL else REFUSED
        if zero:
            state.moved += 1
    state.next = len(offsets)
    return DONE


@njit(inline="always")
def _note_lost(
    state: ProduceState, lost: Structures[LostRecord], reasons: Bytes, message: int, code: int, slot: int, record: int
) -> None:
    known = state.lost
    reason = message_reason(message)
    for row in range(known):
        words = reasons.ctypes.data + REASON * row
        if lost[row].code == code and (reason == 0 or compare_text(words, reason, REASON - 1) == 0):
            return
    if known == len(lost):
        return
    lost[known].code = code
    lost[known].slot = slot
    lost[known].record = record
    if reason != 0:
        copy_text(reasons.ctypes.data + REASON * known, reason, REASON - 1)
    state.lost = known + 1


@njit(boolean(intp, int64, _STATE, _BLOCKS, int64[::1], int64[::1], _LOST, uint8[:, ::1]), cache=True, nogil=True)
def serve(
    queue: int,
    wait: int,
    state: ProduceState,
    blocks: Structures[BlockSlot],
    messages: Int64Array,
    finished: Int64Array,
    lost: Structures[LostRecord],
    reasons: Bytes,
) -> bool:
    """Take the delivery reports that are there, or come within `wait` ms; False when another event (`event`) came
    between. `finished` gets the slots whose last report is in, and has room for every slot; `messages` is scratch."""
    state.finished = state.event = 0
    event = queue_poll(queue, int32(wait))
    while event != 0:
        if event_type(event) != EVENT_DELIVERY:
            state.event = event
            return False
        got = len(messages)
        while got == len(messages):
            got = event_messages(event, messages.ctypes.data, len(messages))
            for number in range(got):
                message = messages[number]
                opaque = load64(message + MESSAGE_OPAQUE)
                slot, record = opaque >> _RECORD_BITS, opaque & _RECORD_MASK
                block = blocks[slot]
                code = load32(message)
                if code != 0:
                    _note_lost(state, lost, reasons, message, code, slot, record)
                else:
                    store64(block.targets + 8 * record, load64(message + MESSAGE_OFFSET))
                block.unreported -= 1
                if block.unreported == 0:
                    finished[state.finished] = slot
                    state.finished += 1
        event_destroy(event)
        event = queue_poll(queue, int32(0))
    return True
