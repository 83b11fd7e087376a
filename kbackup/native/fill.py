"""The reader kernel: messages of a queue become encoded records in a buffer, without a Python object a record.

`fill` goes on until it has something to report, and never blocks with the GIL held. `formats/README.md` specifies the
encoding.
"""

from __future__ import annotations

from numba import int32, njit

from kbackup.native.machine import (
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
    store32_big,
    store64_big,
)
from kbackup.types import Int64Array

IDLE, FULL, OTHER, END, REPORT, PAUSE, BROKEN = range(7)
"""Why `fill` came back: no message came; buffer or index is full; the next message is another partition's; the
current partition reached its end; a message reports `CODE` at `OFFSET` for slot `ABOUT`; a while has passed;
headers of the message at `OFFSET` can't be read (`CODE`)."""

(
    NEXT,  # first message held that is not dealt with
    HELD,  # messages held
    CURRENT,  # slot of the partition that records are written for; -1 at first
    ADDRESS,  # of the buffer
    CAPACITY,  # of the buffer, in bytes
    START,  # position and record with which the block begins that is being written
    FIRST,
    POSITION,  # next byte and record to write
    COUNT,
    NEED,  # bytes of the record that did not fit
    TIMED,  # records of the block with a timestamp
    EARLIEST,
    LATEST,
    LARGEST,  # record of the block, in bytes
    EPOCH,  # leader epoch of the block's last record, where it is the last one of its range
    CODE,
    OFFSET,
    ABOUT,
    WAIT,  # ms to wait for a first message
    BATCHES,  # after how many batches to come back
    SCRATCH,  # and four more
) = range(21)
STATE = SCRATCH + 5

TOPIC, PARTITION, STOP, AT = range(4)
"""Columns of the table of partitions, one row per slot: topic handle, partition, end of the range (-1: nothing of it is
wanted any more), the next offset wanted."""

_NO_HEADERS = -156  # RD_KAFKA_RESP_ERR__NOENT


@njit(inline="always")
def _field(to: int, source: int, length: int) -> int:
    """Return a key, value or header part: its length, -1 for null, and its bytes."""
    if source == 0:
        store32_big(to, int32(-1))
        return to + 4
    store32_big(to, int32(length))
    copy(to + 4, source, length)
    return to + 4 + length


@njit(inline="always")
def _slot(table: Int64Array, topic: int, partition: int) -> int:
    for row in range(table.shape[0]):
        if table[row, TOPIC] == topic and table[row, PARTITION] == partition:
            return row
    return -1


@njit(inline="always")
def _goes_on(held: Int64Array, state: Int64Array, topic: int, partition: int, end: int) -> bool:
    """Return True when the next message in the queue is a record of the same range."""
    if state[NEXT] == state[HELD]:
        return False
    message = held[state[NEXT]]
    return bool(
        load32(message) == 0
        and load64(message + 8) == topic
        and load32(message + 16) == partition
        and load64(message + 56) < end
    )


@njit("int64(intp, int64[::1], int64[::1], int64[:, ::1], int64[:, ::1])", cache=True, nogil=True)
def fill(queue: int, held: Int64Array, state: Int64Array, table: Int64Array, index: Int64Array) -> int:
    """Write records until one of the reasons above. `index` is int64[3, n]: offset, position in the buffer, length.

    `held` keeps messages from one call to the next: `drop` them before the client goes.
    """
    scratch = state.ctypes.data + 8 * SCRATCH
    buffer, capacity, most = state[ADDRESS], state[CAPACITY], index.shape[1]
    position, count, current = state[POSITION], state[COUNT], state[CURRENT]
    topic = table[current, TOPIC] if current >= 0 else 0
    partition = table[current, PARTITION] if current >= 0 else 0
    batches = state[BATCHES]
    reason = -1
    while reason < 0:
        if state[NEXT] == state[HELD]:
            state[NEXT] = state[HELD] = 0
            if batches == 0:
                reason = PAUSE
                break
            batches -= 1
            got = consume_batch(queue, int32(0), held.ctypes.data, len(held))
            if got == 0:  # a batch that waits would wait until it is full
                got = consume_batch(queue, int32(state[WAIT]), held.ctypes.data, 1)
            if got <= 0:
                reason = IDLE
                break
            state[HELD] = got
        message = held[state[NEXT]]
        error = load32(message)
        if current < 0 or load64(message + 8) != topic or load32(message + 16) != partition:
            slot = _slot(table, load64(message + 8), load32(message + 16))
            if slot >= 0 and slot != current and count > state[FIRST]:
                reason = OTHER
                break
            if slot < 0 or table[slot, STOP] < 0:
                state[NEXT] += 1
                if slot < 0 and error != 0:  # of the client, not of a partition
                    state[CODE], state[OFFSET], state[ABOUT] = error, -1, -1
                    reason = REPORT
                message_destroy(message)
                continue
            current = slot
            topic, partition = table[slot, TOPIC], table[slot, PARTITION]
        offset, end = load64(message + 56), table[current, STOP]
        if error != 0 or end < 0 or offset >= end or offset < table[current, AT]:
            state[NEXT] += 1
            message_destroy(message)
            if end >= 0 and error != 0:
                state[CODE], state[OFFSET], state[ABOUT] = error, offset, current
                reason = REPORT
            elif end >= 0 and offset >= end:
                table[current, STOP] = -1
                reason = END
            continue
        key, key_length = load64(message + 40), load64(message + 48)
        value, value_length = load64(message + 24), load64(message + 32)
        timestamp = message_timestamp(message, scratch)
        kind = load32(scratch) - 1
        if kind == 0 and timestamp == -1:
            kind = -2  # the wire's word for a create time that is none
        size = 8 + 4 + 4 + 4 + 4
        if kind >= 0:
            size += 8
        if key != 0:
            size += key_length
        if value != 0:
            size += value_length
        headers = 0
        code = message_headers(message, scratch + 8)
        if code == 0:
            while header_get(state[SCRATCH + 1], headers, scratch + 16, scratch + 24, scratch + 32) == 0:
                size += 8 + header_name_length(state[SCRATCH + 2])
                if state[SCRATCH + 3] != 0:
                    size += state[SCRATCH + 4]
                headers += 1
        elif code != _NO_HEADERS:
            state[CODE], state[OFFSET], state[ABOUT] = code, offset, current
            reason = BROKEN
            break
        if count == most or position + size > capacity:
            state[NEED] = size
            reason = FULL
            break
        to = buffer + position
        store64_big(to, offset)
        store32_big(to + 8, int32(kind))
        to += 12
        if kind >= 0:
            store64_big(to, timestamp)
            to += 8
            if state[TIMED] == 0 or timestamp < state[EARLIEST]:
                state[EARLIEST] = timestamp
            if state[TIMED] == 0 or timestamp > state[LATEST]:
                state[LATEST] = timestamp
            state[TIMED] += 1
        to = _field(to, key, key_length)
        to = _field(to, value, value_length)
        store32_big(to, int32(headers))
        to += 4
        for number in range(headers):
            header_get(state[SCRATCH + 1], number, scratch + 16, scratch + 24, scratch + 32)
            to = _field(to, state[SCRATCH + 2], header_name_length(state[SCRATCH + 2]))
            to = _field(to, state[SCRATCH + 3], state[SCRATCH + 4])
        index[0, count], index[1, count], index[2, count] = offset, position, size
        if size > state[LARGEST]:
            state[LARGEST] = size
        count += 1
        position += size
        table[current, AT] = offset + 1
        state[NEXT] += 1
        if not _goes_on(held, state, topic, partition, end):
            state[EPOCH] = message_leader_epoch(message)
        message_destroy(message)
        if offset >= end - 1:
            table[current, STOP] = -1
            reason = END
    state[POSITION], state[COUNT], state[CURRENT] = position, count, current
    return reason


@njit("void(int64[::1], int64[::1])", cache=True, nogil=True)
def drop(held: Int64Array, state: Int64Array) -> None:
    """Give back the messages that are still held."""
    for number in range(state[NEXT], state[HELD]):
        message_destroy(held[number])
    state[NEXT] = state[HELD] = 0
