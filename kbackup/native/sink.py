"""The producer kernel as a sink for `BlockProducer`. A block's memory is let go as soon as its last record is
reported, so what is held is what librdkafka's own queue limits allow, and the block that is being sent."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from kbackup.native.client import Handle, send_progress
from kbackup.native.compiled import produce as kernel
from kbackup.native.contract import (
    SILENCE_SECONDS,
    UNKNOWN,
    Bootstrap,
    ClusterConnection,
    CommittedProgress,
    DamageOf,
    RefusedRecordError,
    Runs,
    Undelivered,
    cause,
    join,
    runs_of,
)
from kbackup.native.library import await_connection, text
from kbackup.native.librdkafka import EVENT_DELIVERY, PRODUCER, check, error_of, lib, ms
from kbackup.native.structures import make_structure, make_structures, twice_as_many
from kbackup.native.waiting import Waiting
from kbackup.types import Bytes, Int64Array, RecordBlock, TopicPartition

_MESSAGES = 4096  # reports that are taken from an event at a time
_SLOTS = 8  # blocks on their way, at first
_CODES = 16  # kinds of delivery errors that are told apart
_WAIT = 0.02  # s
_FLUSH = 1  # ms; long enough for librdkafka's threads to see it
_EVERYTHING = 1 | 2  # RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT


@dataclass(slots=True)
class _Sent:
    """A block on its way; `data` is its memory, None when librdkafka is done with it."""

    tp: TopicPartition
    data: Bytes | None
    offsets: Int64Array
    targets: Int64Array
    runs: Runs | None = None


class KernelSink:
    """See `contract.RecordSink`."""

    def __init__(
        self,
        connection: ClusterConnection,
        tuning: Mapping[str, Any],
        group: str,
        damage_of: DamageOf,
        silence: float = SILENCE_SECONDS,
    ) -> None:
        self._damage_of = damage_of
        self._group = group
        self._handle = Handle(connection, PRODUCER, tuning, EVENT_DELIVERY)
        add = partial(lib.rd_kafka_brokers_add, self._handle.client)
        self._bootstrap = Bootstrap(connection.properties["bootstrap.servers"], add, silence)
        self._topics: dict[str, int] = {}
        self._state = make_structure(kernel.ProduceState)
        self._arguments = kernel.make_arguments()
        self._messages = np.zeros(_MESSAGES, np.int64)
        self._lost = make_structures(kernel.LostRecord, _CODES)
        self._reasons = np.zeros((_CODES, kernel.REASON), np.uint8)
        self._blocks = make_structures(kernel.BlockSlot, _SLOTS)
        self._finished = np.zeros(_SLOTS, np.int64)
        self._on_the_way: dict[int, _Sent] = {}
        self._free = list(range(_SLOTS))
        self._order: dict[TopicPartition, list[_Sent]] = {}
        self._undelivered: list[Undelivered] = []

    @property
    def moved(self) -> int:
        return int(self._state.moved)

    def init(self, timeout: float) -> None:
        await_connection(self._handle.client, timeout)
        check(lib.rd_kafka_init_transactions(self._handle.client, ms(timeout)))

    def begin(self) -> None:
        check(lib.rd_kafka_begin_transaction(self._handle.client))

    def send(self, tp: TopicPartition, block: RecordBlock) -> None:
        if not len(block.offsets) == len(block.positions) == len(block.lengths):
            raise self._damage_of(block, 0)
        if not len(block):
            return
        sent = self._register(tp, block)
        positions, lengths = map(np.ascontiguousarray, (block.positions, block.lengths))
        while True:
            why = kernel.send(self._handle.client, self._arguments, self._state, sent.offsets, positions, lengths)
            if why == kernel.QUEUE_FULL and lib.rd_kafka_outq_len(self._handle.client):
                self._wait()
            elif why in (kernel.QUEUE_FULL, kernel.REFUSED):  # no room even in an empty queue
                error, source = error_of(int(self._state.code)), int(sent.offsets[self._state.next])
                raise RefusedRecordError(Undelivered(error, tp, source))
            elif why == kernel.DAMAGED:
                raise self._damage_of(block, int(self._state.next))
            else:
                break
        self.serve(0)

    def serve(self, wait: float) -> None:
        wait_ms, state = ms(wait), self._state
        while True:
            ended = kernel.serve(
                self._handle.main,
                wait_ms,
                state,
                self._blocks,
                self._messages,
                self._finished,
                self._lost,
                self._reasons,
            )
            # Lost records are named before their blocks are let go, from which their offsets are read.
            for row in range(len(self._undelivered), int(state.lost)):
                self._undelivered.append(self._undelivered_of(row))
            for slot in self._finished[: state.finished].tolist():
                self._let_go(slot)
            if ended:
                return
            self._handle.take_event(int(state.event))
            wait_ms = 0

    def _undelivered_of(self, row: int) -> Undelivered:
        """Return what the kernel noted of a lost record."""
        lost = self._lost[row]
        reason = words_of(self._reasons[row].tobytes())
        sent = self._on_the_way[int(lost.slot)]
        source = int(sent.offsets[lost.record])
        return Undelivered(error_of(int(lost.code), reason), sent.tp, source)

    def _let_go(self, slot: int) -> None:
        """Keep of a block whose last record was reported only where its records went."""
        sent = self._on_the_way.pop(slot)
        sent.runs = runs_of(sent.offsets, sent.targets)
        sent.data = None
        sent.offsets = sent.targets = np.empty(0, np.int64)
        self._free.append(slot)

    def _wait(self) -> None:
        """Take the delivery reports that come. While none comes, batches that are not full go out as well."""
        queued = lib.rd_kafka_outq_len(self._handle.client)
        self.serve(_WAIT)
        left = lib.rd_kafka_outq_len(self._handle.client)
        if left == queued:
            lib.rd_kafka_flush(self._handle.client, _FLUSH)
        self._bootstrap.watch(left)

    def lost(self) -> Undelivered | None:
        return cause(self._undelivered)

    def flush(self, timeout: float) -> int:
        until = time.monotonic() + timeout
        while self._on_the_way and time.monotonic() < until:
            lib.rd_kafka_flush(self._handle.client, _FLUSH)  # sends the batches that still wait for more records
            self._wait()
        return sum(int(self._blocks[slot].unreported) for slot in self._on_the_way)

    def taken(self) -> dict[TopicPartition, Runs]:
        blocks_by_partition, self._order = self._order, {}
        taken: dict[TopicPartition, Runs] = {}
        for tp, blocks in blocks_by_partition.items():
            taken[tp] = join([sent.runs for sent in blocks if sent.runs is not None])
        return taken

    def send_progress(self, progress: Mapping[TopicPartition, CommittedProgress], timeout: float) -> None:
        send_progress(self._handle.client, self._group, progress, timeout)

    def commit(self, timeout: float) -> None:
        # All delivery reports were taken before. The call waits for them, and nobody would take them meanwhile.
        check(lib.rd_kafka_commit_transaction(self._handle.client, ms(timeout)))

    def abort(self, timeout: float) -> None:
        def abort() -> None:
            check(lib.rd_kafka_abort_transaction(self._handle.client, ms(timeout)))

        # The call waits for the delivery reports of what it purges: this thread takes them, while another one calls.
        aborting = Waiting(abort)
        while not aborting.ended():
            self._wait()
        self._order, self._undelivered = {}, []
        self._state.lost = 0
        self._reasons[:] = 0

    def close(self) -> None:
        lib.rd_kafka_purge(self._handle.client, _EVERYTHING)
        self.serve(0)
        for topic in self._topics.values():
            lib.rd_kafka_topic_destroy(topic)
        self._handle.close()
        self._on_the_way = {}

    def _register(self, tp: TopicPartition, block: RecordBlock) -> _Sent:
        """Give the block a slot, and set the kernel's state to its first record."""
        if not self._free:
            size = len(self._blocks)
            self._blocks = twice_as_many(self._blocks)
            self._finished = np.zeros(2 * size, np.int64)
            self._free = list(range(size, 2 * size))
        slot, count = self._free.pop(), len(block)
        data, targets = np.ascontiguousarray(block.data), np.full(count, UNKNOWN, np.int64)
        sent = _Sent(tp, data, np.ascontiguousarray(block.offsets), targets)
        self._on_the_way[slot] = sent
        self._order.setdefault(tp, []).append(sent)
        if tp.topic not in self._topics:
            self._topics[tp.topic] = self._handle.topic(tp.topic)
        self._blocks[slot].targets = targets.ctypes.data
        self._blocks[slot].unreported = count
        state = self._state
        state.data = data.ctypes.data
        state.size = len(data)
        state.slot = slot
        state.next = 0
        self._arguments[kernel.TOPIC].value = self._topics[tp.topic]
        self._arguments[kernel.PARTITION].value = tp.partition
        return sent


def words_of(reason: bytes) -> str:
    """Return the broker's reason, '' if none can be read. librdkafka frees the reason of a single record once it has
    queued the report, so other bytes may be in its place by now: what is no sentence is none of the broker's."""
    found = text(reason.split(b"\0", 1)[0])
    return found if found.isascii() and found.isprintable() and " " in found else ""
