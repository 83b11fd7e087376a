"""Segments as batches, read by threads and kept in memory within a bound: an object is fetched once for many readers.

A log is read in units. A segment of up to `SMALL` bytes is one unit, read with one request and checked as a whole. A
larger one is read by its index, in parts of `PART` entries, and of each part in blocks of some megabytes: so a reader
may begin anywhere. Units become batches in the thread that reads them, and are kept as batches.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from awscrt.checksums import combine_crc64nvme, crc64nvme

from kbackup.archive import layout
from kbackup.archive.segments.read import SPAN, SegmentRanges, read_small
from kbackup.archive.segments.table import Segment
from kbackup.errors import CorruptError, KbackupError
from kbackup.formats.block import heads
from kbackup.formats.fields import MAGIC_BYTE
from kbackup.formats.index import ENTRY, SegmentIndex
from kbackup.kafka.batches import LogBatches, log_batches
from kbackup.metrics.registry import counted
from kbackup.serve.logs import ServedLog
from kbackup.serve.threads import ReadingThreads
from kbackup.store.base import Store
from kbackup.types import RecordBlock, TopicPartition

log = logging.getLogger(__name__)

BATCH = 128 << 10
"""Bytes of a batch: clients ask for 1 MiB of a partition, and get whole batches."""

SMALL = SPAN
"""Bytes of records of a segment that is read as a whole."""

PART = 1 << 16
"""Entries of an index that are read at once: 1.5 MiB."""

THREADS = 4
_AHEAD = SPAN
"""Bytes that are read ahead of a reader, in the next unit or in some of them."""
_UNITS_AHEAD = 8
_LOADS = 2 * THREADS
"""Units that may be on their way before a reader waits for the next ones alone, and nothing is read ahead."""

_DAMAGE_SECONDS = 60.0
"""How long a damaged unit is not read again, and an outage of the store is not named again."""

_OUTAGE_SECONDS = 1.0
"""How long a unit is not tried again after an error of the store."""

_MOST_NAMES = 10_000

Loaded = TypeVar("Loaded")


class UnreadableError(Exception):
    """A unit of a log can't be read. It was logged."""


class Unit(NamedTuple):
    """A piece of a log that is read at once: segment number `segment`, and in it a part of the index and a block."""

    segment: int
    part: int = 0
    block: int = 0


class Located(NamedTuple):
    """Batches, the last offset in them, and the unit that they are of."""

    data: memoryview
    last: int
    unit: Unit


class Timed(NamedTuple):
    """A record's offset and its timestamp in ms."""

    offset: int
    timestamp: int


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Entries of a segment's index, the number among them of the first record of each block, and what reads these."""

    segment: Segment
    ranges: SegmentRanges
    entries: SegmentIndex
    cuts: list[int]

    @property
    def nbytes(self) -> int:
        return ENTRY * len(self.entries)


@dataclass(slots=True)
class ReadingCounts:
    """What was read of the archive since the start."""

    units: int = 0
    kept: int = 0
    """How often a unit was in memory already."""
    bytes: int = 0
    unreadable: int = 0


class SegmentReader:
    """Reads units of logs, and keeps those that were asked for last, up to `memory` bytes.

    Its methods belong to one event loop. Segments are read in threads."""

    def __init__(self, store: Store, memory: int) -> None:
        self._store = store
        self._memory = memory
        self._kept: OrderedDict[Any, Any] = OrderedDict()
        self._kept_bytes = 0
        self._loading: dict[Any, asyncio.Future[Any]] = {}
        self._unreadable: dict[Any, float] = {}
        self._named: dict[str, float] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._bounds: OrderedDict[str, dict[int, tuple[int, int]]] = OrderedDict()
        """First and last offset of the parts that were read, by segment: most readers go on where they were."""
        self._sums = _SegmentSums()
        self.threads = ReadingThreads(THREADS, "serve")
        self.counts = ReadingCounts()

    @property
    def kept_bytes(self) -> int:
        """Bytes of what is in memory."""
        return self._kept_bytes

    def close(self) -> None:
        """Read nothing more."""
        self.threads.close()

    async def batches(self, served: ServedLog, offset: int, most: int) -> Located | None:
        """Return batches from the one that has `offset` or the next record on, as many of one unit as fit into `most`
        bytes and at least one. None if the log has no such record. Raises `UnreadableError`."""
        unit = await self._unit_of(served, offset)
        while unit is not None:
            batches = await self._unit(served, unit)
            found = batches.from_offset(offset, most)
            if found is not None:
                data, last = found
                self._read_ahead(served, unit)
                return Located(data, last, unit)
            unit = await self._next(served, unit)
        return None

    async def end_of(self, served: ServedLog) -> int:
        """Return where the log ends: behind its last record that is not later than the moment, if there is one. Raises
        `UnreadableError`."""
        if not served.timed:
            return served.end
        if served.tp not in self._ends:
            self._ends[served.tp] = await self._once(
                ("end", served.tp), partial(self._read_end, served), str(served.tp)
            )
        return self._ends[served.tp]

    def _read_end(self, served: ServedLog) -> int:
        """Return the end of a log at its moment. Runs in a thread."""
        for number in reversed(range(len(served.segments))):
            end = self._end_in(served, served.segments[number])
            if end is not None:
                # A segment may begin with records that lie before the log.
                return max(end, served.start)
        return served.start

    def _end_in(self, served: ServedLog, segment: Segment) -> int | None:
        """Return the offset behind the last record of a segment that is not later than the moment; None if all are."""
        steps = list(_steps(segment.count))
        for low, high in reversed(steps):
            end: int | None = None
            for block in self._selected_blocks(served, segment, low, high):
                end = int(block.offsets[-1]) + 1
            if end is not None:
                return end
        return None

    async def first_at(self, served: ServedLog, timestamp: int) -> Timed | None:
        """Return the first record whose timestamp is `timestamp` or later. Raises `UnreadableError`."""
        read = partial(self._read_first_at, served, timestamp)
        return await self._once(("time", id(served), timestamp), read, str(served.tp))

    async def greatest(self, served: ServedLog) -> Timed | None:
        """Return the first of the records with the greatest timestamp. Raises `UnreadableError`."""
        read = partial(self._read_greatest, served)
        return await self._once(("greatest", id(served)), read, str(served.tp))

    def _read_first_at(self, served: ServedLog, timestamp: int) -> Timed | None:
        for segment in served.segments:
            # A segment of the Java tool does not tell its timestamps: it is read.
            if segment.max_timestamp is not None and segment.max_timestamp < timestamp:
                continue
            for block in self._selected_blocks(served, segment, 0, segment.count):
                head = heads(block.data, block.positions)
                late = (head["type"] >= 0) & (head["timestamp"] >= timestamp)
                if late.any():
                    at = int(np.argmax(late))
                    return Timed(int(block.offsets[at]), int(head["timestamp"][at]))
        return None

    def _read_greatest(self, served: ServedLog) -> Timed | None:
        best: Timed | None = None
        for segment in served.segments:
            known = segment.max_timestamp
            if best is not None and known is not None and known <= best.timestamp:
                continue
            for block in self._selected_blocks(served, segment, 0, segment.count):
                if block.max_timestamp is None or (best is not None and block.max_timestamp <= best.timestamp):
                    continue
                head = heads(block.data, block.positions)
                is_greatest = (head["type"] >= 0) & (head["timestamp"] == block.max_timestamp)
                best = Timed(int(block.offsets[int(np.argmax(is_greatest))]), block.max_timestamp)
        return best

    def _selected_blocks(self, served: ServedLog, segment: Segment, low: int, high: int) -> Iterator[RecordBlock]:
        """Yield what is selected of records number `low` (inclusive) to `high` (exclusive) of a segment."""
        for block in SegmentRanges(self._store, segment).numbered(low, high):
            selected = _selected(served, block)
            if len(selected):
                yield selected

    # Units: which one has an offset, and which one follows.

    async def _unit_of(self, served: ServedLog, offset: int) -> Unit | None:
        number = served.segment_from(offset)
        if number >= len(served.segments):
            return None
        segment = served.segments[number]
        if _is_small(segment):
            return Unit(number)
        if offset <= segment.first:
            return Unit(number)
        at = await self._part_of(segment, offset)
        part = await self._part(segment, at)
        entry = int(np.searchsorted(part.entries.offsets, offset))
        if entry == len(part.entries):
            # Between the last record of this part and the first one of the next.
            return Unit(number, at + 1)
        block = int(np.searchsorted(part.cuts, entry, side="right")) - 1
        return Unit(number, at, block)

    async def _part_of(self, segment: Segment, offset: int) -> int:
        """Return the part of a large segment's index that has an offset, or ends before the next record."""
        if segment.count <= PART:
            return 0
        if segment.last - segment.first + 1 == segment.count:
            return (offset - segment.first) // PART
        for at, (first, last) in self._bounds.get(segment.key, {}).items():
            if first <= offset <= last:
                return at
        ranges = SegmentRanges(self._store, segment)
        number = await self._once(("number", segment.key, offset), partial(ranges.number, offset), segment.key)
        return int(number) // PART

    async def _next(self, served: ServedLog, unit: Unit) -> Unit | None:
        """Return the unit that follows; None behind the last one."""
        segment = served.segments[unit.segment]
        if not _is_small(segment):
            part = await self._part(segment, unit.part)
            if unit.block + 2 < len(part.cuts):
                return Unit(unit.segment, unit.part, unit.block + 1)
            if (unit.part + 1) * PART < segment.count:
                return Unit(unit.segment, unit.part + 1)
        if unit.segment + 1 < len(served.segments):
            return Unit(unit.segment + 1)
        return None

    # Reading and keeping.

    async def _part(self, segment: Segment, at: int) -> _Part:
        low = at * PART
        read = partial(_read_part, self._store, segment, low, min(segment.count, low + PART))
        part: _Part = await self._keeping(("part", segment.key, at), read, segment.key)
        offsets = part.entries.offsets
        self._bounds.setdefault(segment.key, {})[at] = int(offsets[0]), int(offsets[-1])
        while len(self._bounds) > _MOST_NAMES:
            self._bounds.popitem(last=False)
        return part

    async def _unit(self, served: ServedLog, unit: Unit) -> LogBatches:
        segment = served.segments[unit.segment]
        key = ("unit", _source(served, segment), unit.part, unit.block)
        kept: LogBatches | None = self._kept.get(key)
        if kept is not None:
            self.counts.kept += 1
            self._kept.move_to_end(key)
            return kept
        if _is_small(segment):
            read = partial(_read_whole, self._store, served, segment)
        else:
            part = await self._part(segment, unit.part)
            read = partial(_read_block, served, part, unit.block, self._sums)
        batches: LogBatches = await self._keeping(key, read, segment.key)
        return batches

    async def _keeping(self, key: Any, read: Callable[[], Any], name: str) -> Any:
        """Return what is kept under `key`, or `read` it, once for all who ask meanwhile, and keep it."""
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        return await self._once(key, read, name, keep=True)

    async def _once(self, key: Any, read: Callable[[], Loaded], name: str = "", *, keep: bool = False) -> Loaded:
        """Return what `read` returns, in a thread, once for all who ask meanwhile."""
        running = self._loading.get(key)
        if running is None:
            until = self._unreadable.get(key)
            if until is not None:
                if time.monotonic() < until:
                    raise UnreadableError(name)
                del self._unreadable[key]
            running = self.threads.run(read)
            self._loading[key] = running
            running.add_done_callback(partial(self._done, key, name, keep))
        try:
            # Shielded: who waits may go away, and others wait as well.
            return await asyncio.shield(running)
        except KbackupError as error:
            raise UnreadableError(name) from error

    def _done(self, key: Any, name: str, keep: bool, running: asyncio.Future[Any]) -> None:
        del self._loading[key]
        if running.cancelled():
            return
        error = running.exception()
        if error is not None:
            self._failed(key, name, error)
            return
        if keep:
            self._keep(key, running.result())

    def _failed(self, key: Any, name: str, error: BaseException) -> None:
        self.counts.unreadable += 1
        counted.add("kbackup_serve_unreadable_total")
        if not isinstance(error, KbackupError):
            log.error("internal error while reading %s: %r", name, error)
            return
        now = time.monotonic()
        is_damaged = isinstance(error, CorruptError)
        if len(self._unreadable) > _MOST_NAMES:
            self._unreadable.clear()
        self._unreadable[key] = now + (_DAMAGE_SECONDS if is_damaged else _OUTAGE_SECONDS)
        # Damage is named once, an outage of the store now and then: readers ask several times a second.
        if now >= self._named.get(name, 0.0):
            self._named[name] = math.inf if is_damaged else now + _DAMAGE_SECONDS
            log.error("%s can't be served: %s", name, error.message)

    def _keep(self, key: Any, value: Any) -> None:
        self.counts.units += 1
        self.counts.bytes += value.nbytes
        counted.add("kbackup_serve_read_bytes_total", value.nbytes)
        self._kept[key] = value
        self._kept_bytes += value.nbytes
        while self._kept_bytes > self._memory and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= oldest.nbytes

    def _read_ahead(self, served: ServedLog, unit: Unit) -> None:
        """Begin to read what follows a unit, if there is nothing more urgent."""
        key = ("ahead", _source(served, served.segments[unit.segment]), unit)
        if key in self._loading or len(self._loading) >= _LOADS:
            return
        task = asyncio.ensure_future(self._ahead(served, unit))
        self._loading[key] = task
        task.add_done_callback(lambda _: self._loading.pop(key, None))

    async def _ahead(self, served: ServedLog, unit: Unit) -> None:
        size = 0
        try:
            for _ in range(_UNITS_AHEAD):
                following = await self._next(served, unit)
                if following is None or size >= min(_AHEAD, self._memory // 8):
                    return
                batches = await self._unit(served, following)
                size += batches.nbytes
                unit = following
        except UnreadableError:
            # Whoever gets there is told.
            return


class _SegmentSums:
    """Checksums of the blocks of large segments, put together when the last block of a segment is read.

    The checksum of a segment is of the whole object. Frames of compressed segments have checksums of their own; of
    others a block alone can't be checked. So damage within a value shows here: whoever reads a segment to its end
    does not get its last block. Threads may call."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[str, dict[int, tuple[int, int]]] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, segment: Segment, position: int, block: RecordBlock) -> None:
        """Add a block that begins at a byte of its segment. Raise `CorruptError` if the segment is complete, and not
        what its checksum says."""
        if not segment.crc or layout.compression_of(segment.key) == "zstd":
            return
        checksum = crc64nvme(block.data.data)
        with self._lock:
            known = self._blocks.setdefault(segment.key, {})
            known[position] = block.nbytes, checksum
            if sum(size for size, _ in known.values()) < segment.bytes - len(MAGIC_BYTE):
                while len(self._blocks) > _MOST_NAMES:
                    self._blocks.popitem(last=False)
                return
            del self._blocks[segment.key]
        whole = crc64nvme(MAGIC_BYTE)
        for _, (size, own) in sorted(known.items()):
            whole = combine_crc64nvme(whole, own, size)
        if f"{whole:016x}" != segment.crc:
            raise CorruptError(
                f"file {segment.key} is not what its manifest says (checksum)",
                "run 'kbackup verify', which lists every finding",
            )


def _source(served: ServedLog, segment: Segment) -> Any:
    """Return what the batches of a segment are known by: its key, and how the log selects its records."""
    return segment.key, served.selection, served.leader_epoch


def _is_small(segment: Segment) -> bool:
    return segment.bytes <= SMALL


def _steps(count: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of record numbers that cover so many records."""
    for low in range(0, count, PART):
        yield low, min(count, low + PART)


def _selected(served: ServedLog, block: RecordBlock) -> RecordBlock:
    if served.window is None:
        return block
    selected, _ = served.window.cut(block)
    return selected


def _read_part(store: Store, segment: Segment, low: int, high: int) -> _Part:
    ranges = SegmentRanges(store, segment)
    entries = ranges.entries(low, high)
    return _Part(segment, ranges, entries, ranges.cuts(entries))


def _read_block(served: ServedLog, part: _Part, number: int, sums: _SegmentSums) -> LogBatches:
    first, stop = part.cuts[number], part.cuts[number + 1]
    encoded: list[LogBatches] = []
    position = int(part.entries.positions[first])
    for block in part.ranges.blocks(part.entries, first, stop):
        sums.add(part.segment, position, block)
        position += block.nbytes
        encoded.append(_encoded(served, block))
    return _joined(encoded)


def _read_whole(store: Store, served: ServedLog, segment: Segment) -> LogBatches:
    return _joined([_encoded(served, block) for block in read_small(store, segment)])


def _encoded(served: ServedLog, block: RecordBlock) -> LogBatches:
    selected = _selected(served, block)
    if not len(selected):
        return LogBatches(b"", np.empty(0, np.int64), np.empty(0, np.int64))
    return log_batches(selected, served.epochs, BATCH)


def _joined(parts: list[LogBatches]) -> LogBatches:
    if len(parts) == 1:
        return parts[0]
    ends: list[Any] = [np.empty(0, np.int64)]
    lasts: list[Any] = [np.empty(0, np.int64)]
    size = 0
    for part in parts:
        ends.append(part.ends + size)
        lasts.append(part.lasts)
        size += part.nbytes
    data = b"".join(part.data for part in parts)
    return LogBatches(data, np.concatenate(ends), np.concatenate(lasts))
