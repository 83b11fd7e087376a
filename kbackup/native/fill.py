"""The reader kernel: messages of a queue become encoded records in a buffer, without a Python object a record.

`fill` goes on until there is something to report, and never blocks with the GIL held. `formats/README.md` specifies the
encoding.
"""

from __future__ import annotations

from numba import int32, int64, intp, njit, void

from kbackup.native.machine import (
    MESSAGE_KEY,
    MESSAGE_KEY_LENGTH,
    MESSAGE_OFFSET,
    MESSAGE_PARTITION,
    MESSAGE_TOPIC,
    MESSAGE_VALUE,
    MESSAGE_VALUE_LENGTH,
    address_of,
    consume_batch,
    copy,
    header_get,
    header_name_length,
    load32,
    load64,
    message_destroy,
    message_headers,
    message_leader_epoch,
    message_timestamp,
    record_type,
    store32_big,
    store64_big,
)
from kbackup.native.structures import Structures, offset_of
from kbackup.types import Int64Array

IDLE, FULL, OTHER, END, REPORT, PAUSE, BROKEN = range(7)
"""Why `fill` came back: no message came; buffer or index is full; the next message is another partition's; the
current partition reached its end; a message reports `code` at `offset` for slot `about`; a while has passed;
headers of the message at `offset` can't be read (`code`)."""


class FillState:
    """What `fill` keeps from one call to the next. A slot is a row of the table of partitions."""

    # The messages that librdkafka gave.
    next: int  # first message held that is not dealt with
    held: int  # messages held
    wait: int  # ms to wait for a first message
    batches: int  # after how many batches to come back

    # The buffer.
    buffer: int  # its address
    capacity: int  # in bytes
    position: int  # next byte to write
    count: int  # next record to write
    need: int  # bytes of the record that did not fit

    # The block that is being written: one partition's records.
    current: int  # slot of the partition; -1 at first
    block_position: int  # byte and record that the block begins with
    block_first: int
    timed: int  # records with a timestamp
    earliest: int
    latest: int
    largest: int  # record, in bytes
    leader_epoch: int  # of the last record, where that is the last one of its range

    # What is reported.
    code: int
    offset: int
    about: int  # slot; -1 for the client itself

    # What librdkafka writes into when it is asked about a message or one of its headers.
    timestamp_type: int  # four bytes of it
    headers: int  # address of the list
    header_name: int  # address
    header_value: int  # address; 0 for null
    header_value_length: int


class PartitionSlot:
    topic: int  # librdkafka's handle
    partition: int
    stop: int  # end of the range; -1 when nothing of it is wanted any more
    at: int  # the next offset that is wanted


_TIMESTAMP_TYPE = offset_of(FillState, "timestamp_type")
_HEADERS = offset_of(FillState, "headers")
_HEADER_NAME = offset_of(FillState, "header_name")
_HEADER_VALUE = offset_of(FillState, "header_value")
_HEADER_VALUE_LENGTH = offset_of(FillState, "header_value_length")

_STATE = record_type(FillState)
_PARTITIONS = record_type(PartitionSlot)[::1]

_NO_HEADERS = -156  # RD_KAFKA_RESP_ERR__NOENT

_FIXED = 8 + 4 + 4 + 4 + 4
"""Bytes of each record: its offset, its type of timestamp, the lengths of key and value, and the number of headers."""
_HEADER_FIXED = 4 + 4
"""Bytes of each header: the lengths of its name and its value."""


@njit(inline="always")
def _receive(queue: int, held: Int64Array, wait: int) -> int:
    """Take a batch of messages; return their number, 0 or less if none came within `wait` ms."""
    # A batch that waits would wait until it is full: what is there already is taken first.
    count = consume_batch(queue, int32(0), held.ctypes.data, len(held))
    if count == 0:
        count = consume_batch(queue, int32(wait), held.ctypes.data, 1)
    return int(count)


@njit(inline="always")
def _is_of(message: int, partition: PartitionSlot) -> bool:
    topic, number = load64(message + MESSAGE_TOPIC), load32(message + MESSAGE_PARTITION)
    return bool(topic == partition.topic and number == partition.partition)


@njit(inline="always")
def _slot_of(message: int, partitions: Structures[PartitionSlot]) -> int:
    """Return the slot of a message's partition, -1 if there is none."""
    for slot in range(len(partitions)):
        if _is_of(message, partitions[slot]):
            return slot
    return -1


@njit(inline="always")
def _report(state: FillState, code: int, offset: int, about: int) -> None:
    state.code = code
    state.offset = offset
    state.about = about


@njit(inline="always")
def _discard(message: int, state: FillState) -> None:
    state.next += 1
    message_destroy(message)


@njit(inline="always")
def _get_header(state: FillState, number: int) -> bool:
    """Have librdkafka write where a header is; return False if there are not so many."""
    at = address_of(state)
    code = header_get(state.headers, number, at + _HEADER_NAME, at + _HEADER_VALUE, at + _HEADER_VALUE_LENGTH)
    return bool(code == 0)


@njit(inline="always")
def _measure_headers(message: int, state: FillState) -> tuple[int, int, int]:
    """Return an error code, and the number of a message's headers and their bytes when they are encoded."""
    code = message_headers(message, address_of(state) + _HEADERS)
    if code == _NO_HEADERS:
        return 0, 0, 0
    if code != 0:
        return code, 0, 0
    number = size = 0
    while _get_header(state, number):
        size += _HEADER_FIXED + header_name_length(state.header_name)
        if state.header_value != 0:
            size += state.header_value_length
        number += 1
    return 0, number, size


@njit(inline="always")
def _note_timestamp(state: FillState, timestamp: int) -> None:
    if state.timed == 0 or timestamp < state.earliest:
        state.earliest = timestamp
    if state.timed == 0 or timestamp > state.latest:
        state.latest = timestamp
    state.timed += 1


@njit(inline="always")
def _write_field(to: int, source: int, length: int) -> int:
    """Write a key, a value or a part of a header, its length before it; return the address behind it."""
    if source == 0:
        store32_big(to, int32(-1))
        return to + 4
    store32_big(to, int32(length))
    copy(to + 4, source, length)
    return to + 4 + length


@njit(inline="always")
def _write_headers(to: int, state: FillState, count: int) -> None:
    store32_big(to, int32(count))
    to += 4
    for number in range(count):
        _get_header(state, number)
        to = _write_field(to, state.header_name, header_name_length(state.header_name))
        to = _write_field(to, state.header_value, state.header_value_length)


@njit(inline="always")
def _is_followed(held: Int64Array, state: FillState, partition: PartitionSlot) -> bool:
    """Return True when the next message held is a record of the same range."""
    if state.next == state.held:
        return False
    message = held[state.next]
    is_record = load32(message) == 0
    return is_record and _is_of(message, partition) and load64(message + MESSAGE_OFFSET) < partition.stop


@njit(int64(intp, int64[::1], _STATE, _PARTITIONS, int64[::1], int64[::1], int64[::1]), cache=True, nogil=True)
def fill(
    queue: int,
    held: Int64Array,
    state: FillState,
    partitions: Structures[PartitionSlot],
    offsets: Int64Array,
    positions: Int64Array,
    lengths: Int64Array,
) -> int:
    """Write records until one of the reasons above. The last three are the index: of each record its offset, its
    position in the buffer and its length.

    `held` keeps messages from one call to the next: `drop` them before the client goes.
    """
    batches = state.batches
    current = state.current
    partition = partitions[max(current, 0)]
    while True:
        if state.next == state.held:
            state.next = state.held = 0
            if batches == 0:
                return PAUSE
            batches -= 1
            received = _receive(queue, held, state.wait)
            if received <= 0:
                return IDLE
            state.held = received

        message = held[state.next]
        error = load32(message)
        if current < 0 or not _is_of(message, partition):
            slot = _slot_of(message, partitions)
            if slot >= 0 and state.count > state.block_first:
                return OTHER
            if slot < 0 and error != 0:
                _report(state, error, -1, -1)
                _discard(message, state)
                return REPORT
            if slot < 0 or partitions[slot].stop < 0:
                _discard(message, state)
                continue
            state.current = current = slot
            partition = partitions[slot]

        offset = load64(message + MESSAGE_OFFSET)
        if partition.stop < 0:
            _discard(message, state)
            continue
        if error != 0:
            _report(state, error, offset, current)
            _discard(message, state)
            return REPORT
        if offset >= partition.stop:
            _discard(message, state)
            partition.stop = -1
            return END
        if offset < partition.at:
            _discard(message, state)
            continue

        key, key_length = load64(message + MESSAGE_KEY), load64(message + MESSAGE_KEY_LENGTH)
        value, value_length = load64(message + MESSAGE_VALUE), load64(message + MESSAGE_VALUE_LENGTH)
        timestamp = message_timestamp(message, address_of(state) + _TIMESTAMP_TYPE)
        kind = state.timestamp_type - 1
        if kind == 0 and timestamp == -1:
            kind = -2  # the wire's word for a create time that is none
        code, headers, headers_size = _measure_headers(message, state)
        if code != 0:
            _report(state, code, offset, current)
            return BROKEN

        size = _FIXED + headers_size
        if kind >= 0:
            size += 8
        if key != 0:
            size += key_length
        if value != 0:
            size += value_length
        if state.count == len(offsets) or state.position + size > state.capacity:
            state.need = size
            return FULL

        to = state.buffer + state.position
        store64_big(to, offset)
        store32_big(to + 8, int32(kind))
        to += 12
        if kind >= 0:
            store64_big(to, timestamp)
            to += 8
            _note_timestamp(state, timestamp)
        to = _write_field(to, key, key_length)
        to = _write_field(to, value, value_length)
        _write_headers(to, state, headers)

        number = state.count
        offsets[number], positions[number], lengths[number] = offset, state.position, size
        state.largest = max(state.largest, size)
        state.count = number + 1
        state.position += size
        state.next += 1
        partition.at = offset + 1
        if not _is_followed(held, state, partition):
            state.leader_epoch = message_leader_epoch(message)
        message_destroy(message)
        if offset >= partition.stop - 1:
            partition.stop = -1
            return END


@njit(void(int64[::1], _STATE), cache=True, nogil=True)
def drop(held: Int64Array, state: FillState) -> None:
    """Give back the messages that are still held."""
    for number in range(state.next, state.held):
        message_destroy(held[number])
    state.next = state.held = 0
