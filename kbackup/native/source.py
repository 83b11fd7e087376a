"""The reader kernel as a source of records for `RangeReader`: partitions are started and stopped one by one on one
client of librdkafka's simple consumer, which needs no group and asks no coordinator."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from kbackup.native.client import Handle
from kbackup.native.compiled import fill as kernel
from kbackup.native.contract import ClusterConnection, FetchResult, Report
from kbackup.native.librdkafka import CONSUMER, error_of, lib, ms
from kbackup.native.structures import make_structure, make_structures, structures_of
from kbackup.types import OffsetRange, RecordBlock, TopicPartition
from kbackup.util.system import BufferPool

_BUFFER = (16 << 20) - 1  # with the magic byte before it, one part of an upload
_RECORDS = 1 << 17  # of a buffer: 127 bytes each
_BATCH = 1000
_BATCHES = 100  # between two looks at the clock
_WAIT = 100  # ms
_SHOW = 0.5  # s; a block goes out after so long, full or not

_BUFFERS, _INDEXES = BufferPool(_BUFFER, keep=2), BufferPool(3 * 8 * _RECORDS, keep=2)
"""Of all tasks of a worker, one after the other."""


class KernelSource:
    """See `contract.Source`. Blocks are views of pooled buffers, free once no view of them is left."""

    def __init__(self, connection: ClusterConnection, tuning: Mapping[str, Any]) -> None:
        self._connection = connection
        self._handle = Handle(connection, CONSUMER, tuning)
        self._queue = lib.rd_kafka_queue_new(self._handle.client)
        self._topics: dict[str, int] = {}
        self._slots: dict[TopicPartition, int] = {}
        self._names: list[TopicPartition] = []
        self._running: set[TopicPartition] = set()
        self._partitions = make_structures(kernel.PartitionSlot, 0)
        self._messages = np.zeros(_BATCH, np.int64)
        self._state = make_structure(kernel.FillState)
        self._state.wait = _WAIT
        self._state.batches = _BATCHES
        self._cut_at = time.monotonic()
        self._renew(0)

    def start(self, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        for tp in list(self._running):
            self.stop(tp)
        kernel.drop(self._messages, self._state)
        self._names = list(ranges)
        self._slots = {tp: slot for slot, tp in enumerate(self._names)}
        for name in {tp.topic for tp in ranges} - self._topics.keys():
            self._topics[name] = self._handle.topic(name)
        slots = [(self._topics[r.topic], r.partition, r.end, r.start) for r in ranges.values()]
        self._partitions = structures_of(kernel.PartitionSlot, slots)
        self._state.current = -1
        self._renew(0)
        for tp, wanted in ranges.items():
            self._begin(tp, wanted.start)

    def restart(self, tp: TopicPartition, offset: int) -> None:
        self.stop(tp)
        self._partitions[self._slots[tp]].at = offset
        self._begin(tp, offset)

    def stop(self, tp: TopicPartition) -> None:
        if tp in self._running:
            self._running.discard(tp)
            lib.rd_kafka_consume_stop(self._topics[tp.topic], tp.partition)

    def watermarks(self, tp: TopicPartition, timeout: float) -> tuple[int, int]:
        low, high = ctypes.c_int64(), ctypes.c_int64()
        offsets = ctypes.byref(low), ctypes.byref(high)
        code = lib.rd_kafka_query_watermark_offsets(
            self._handle.client, tp.topic.encode(), tp.partition, *offsets, ms(timeout)
        )
        if code != 0:
            raise self._connection.error(error_of(code), f"asking where {tp} starts")
        return low.value, high.value

    def take(self) -> Iterator[FetchResult]:
        state = self._state
        reason = kernel.fill(self._queue, self._messages, state, self._partitions, *self._index)
        if reason == kernel.IDLE:
            self._handle.listen()
        # After a pause the block may still grow. It goes out half a second after it was begun, so that whoever counts
        # records sees them come.
        if reason != kernel.PAUSE or time.monotonic() - self._cut_at > _SHOW:
            yield from self._cut()
        current = self._names[int(state.current)] if state.current >= 0 else None
        if reason == kernel.FULL:
            self._renew(int(state.need))
        elif reason == kernel.END and current is not None:
            yield FetchResult(current, None, True, None)
        elif reason == kernel.REPORT:
            # What the client itself has to say comes in events, and may be the reason.
            self._handle.listen()
            error = error_of(int(state.code))
            report = Report(error, int(state.offset))
            yield FetchResult(current if state.about >= 0 else None, None, False, report)
        elif reason == kernel.BROKEN:
            doing = f"reading the headers of the record of {current} at offset {state.offset}"
            error = error_of(int(state.code))
            raise self._connection.error(error, doing)

    def close(self) -> None:
        kernel.drop(self._messages, self._state)
        for tp in list(self._running):
            self.stop(tp)
        lib.rd_kafka_queue_destroy(self._queue)
        for topic in self._topics.values():
            lib.rd_kafka_topic_destroy(topic)
        self._handle.close()

    def _begin(self, tp: TopicPartition, offset: int) -> None:
        if lib.rd_kafka_consume_start_queue(self._topics[tp.topic], tp.partition, offset, self._queue) != 0:
            error = error_of(lib.rd_kafka_last_error())
            raise self._connection.error(error, f"starting to read {tp}")
        self._running.add(tp)

    def _renew(self, need: int) -> None:
        """Take another buffer and index; a buffer of `need` bytes for a record that is larger than the usual one."""
        self._buffer = _BUFFERS.take() if need <= _BUFFER else np.empty(need, np.uint8)
        offsets, positions, lengths = _INDEXES.take().view(np.int64).reshape(3, _RECORDS)
        self._index = offsets, positions, lengths
        state = self._state
        state.buffer = self._buffer.ctypes.data
        state.capacity = len(self._buffer)
        state.position = state.count = 0
        self._begin_block()

    def _begin_block(self) -> None:
        state = self._state
        state.block_position = state.position
        state.block_first = state.count
        state.timed = state.largest = 0
        state.leader_epoch = -1
        self._cut_at = time.monotonic()

    def _cut(self) -> Iterator[FetchResult]:
        """Yield the block that was written since the last one, if there is one."""
        state = self._state
        first, count = int(state.block_first), int(state.count)
        if first == count:
            return
        start, end = int(state.block_position), int(state.position)
        offsets, positions, lengths = (column[first:count] for column in self._index)
        positions -= start
        earliest = latest = None
        if state.timed:
            earliest, latest = int(state.earliest), int(state.latest)
        data, largest = self._buffer[start:end], int(state.largest)
        block = RecordBlock(data, offsets, positions, lengths, earliest, latest, largest)
        leader_epoch = int(state.leader_epoch)
        self._begin_block()
        yield FetchResult(self._names[int(state.current)], block, False, None, leader_epoch)
