"""Produce archived partitions to a target, each record exactly once: what restores and mirrors share."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from kbackup.archive.restores.map_parts import NOTHING, Cut
from kbackup.archive.restores.offset_map import by_partition
from kbackup.archive.restores.plan import UnitRange
from kbackup.archive.restores.unmapped import UnmappedRecords
from kbackup.archive.segments.read import read_segment, read_small
from kbackup.archive.segments.table import Segment
from kbackup.errors import KbackupError
from kbackup.formats.block import slice_block
from kbackup.jobs.decoding import select_where
from kbackup.jobs.schemas.rewrite import SchemaRewrite
from kbackup.jobs.transform import Transform
from kbackup.kafka.client import Properties
from kbackup.kafka.consume import RangeReader
from kbackup.kafka.control.cluster import Cluster
from kbackup.kafka.produce import BlockProducer
from kbackup.native.contract import CommittedProgress, Runs
from kbackup.spark.tasks import ProgressSender
from kbackup.store.base import Store
from kbackup.store.wrappers import limit_beside
from kbackup.types import Int64Array, OffsetRange, RecordBlock, TopicPartition

# Read ahead: an iterator's next items are made in a thread while the caller works on the last one.


T = TypeVar("T")


class _End(NamedTuple):
    """The end of the iterator, with the error that ended it, if one did."""

    error: BaseException | None


def ahead(items: Iterable[T], depth: int) -> Iterator[T]:
    """Yield the same items in the same order; up to `depth` items are made ahead. An error is raised in place of
    its item."""
    waiting: queue.SimpleQueue[T | _End] = queue.SimpleQueue()
    room = threading.Semaphore(depth)
    stopped = threading.Event()

    def fill() -> None:
        try:
            made = iter(items)
            while room.acquire() and not stopped.is_set():
                waiting.put(next(made))  # no name refers to it here while the next one is made
        except StopIteration:
            waiting.put(_End(None))
        except BaseException as error:  # noqa: BLE001 (raised again in the caller's thread)
            waiting.put(_End(error))

    thread = threading.Thread(target=fill, name="kbackup-ahead", daemon=True)
    thread.start()
    try:
        while not isinstance(item := waiting.get(), _End):
            room.release()
            yield item
        if item.error is not None:
            raise item.error
    finally:
        stopped.set()
        room.release()
        thread.join()


# Read a range of a partition: its segments in order, and their records inside the range's window.


SMALL = 64 << 10
"""Bytes of a segment that is read as a whole, without its index: most of the time goes into requests."""

QUIET = 64 << 20  # bytes of a checked segment that may go by without a record inside the window


class ReadStep(NamedTuple):
    """One step of reading a segment: a block of records, never empty. `block` is None if the segment was read to
    its end and is undamaged, and where a segment that is checked first only needs a `pause`.

    `pause`: there is much to read before the next record may come, so that no transaction should be left open
    meanwhile. All records before the pause are checked, those of this segment too if they have begun.

    `next` is the source offset from which to go on after the step. `read` is how many bytes of records were read for it
    and `untimed` how many records were left out because they have no timestamp. `selected` are the records inside the
    window, with `selected_bytes`, of which a transform may have left some out. All four are since the step before.
    `unmapped` counts the block's records whose schemas could not be mapped.
    """

    segment: Segment
    block: RecordBlock | None
    next: int
    read: int
    untimed: int
    pause: bool = False
    unmapped: tuple[UnmappedRecords, ...] = ()
    selected: int = 0
    selected_bytes: int = 0

    @property
    def records(self) -> int:
        """Return the number of records in the block."""
        return 0 if self.block is None else len(self.block)

    @property
    def left_out(self) -> int:
        """Return how many records of the window a transform has left out, since the step before."""
        return self.selected - self.records

    def cut(self, range_: UnitRange) -> Cut:
        """Return what only reading a range gives, for the records of this step."""
        cut = Cut(unmapped=self.unmapped)
        if self.left_out:
            cut = cut._replace(left_out=((range_.target, self.left_out),))
        if range_.window is None:
            return cut
        return cut._replace(records=self.selected, bytes=self.selected_bytes, untimed=self.untimed)


def read_range(
    store: Store,
    range_: UnitRange,
    start: int = 0,
    check_first: int | None = None,
    schemas: SchemaRewrite | None = None,
    transform: Transform | None = None,
) -> Iterator[ReadStep]:
    """Yield the records of `range_` from source offset `start` on, cut to its window, in order, as `transform` makes
    them and with the ids that `schemas` gives. Raises what `read_segment` and the two raise. A segment of more than
    `check_first` bytes is read through before its first record comes out, with a pause before that and wherever `QUIET`
    bytes of it yield no record."""
    for segment in range_.segments:
        if segment.last < start:
            continue
        check = check_first is not None and segment.bytes > check_first
        if check:
            yield ReadStep(segment, None, max(start, segment.first), 0, 0, pause=True)
            for _ in read_segment(store, segment):
                pass
        quiet = QUIET if check else None
        yield from _read(store, range_, segment, start, quiet=quiet, schemas=schemas, transform=transform)


def _read(
    store: Store,
    range_: UnitRange,
    segment: Segment,
    start: int,
    *,
    quiet: int | None,
    schemas: SchemaRewrite | None,
    transform: Transform | None,
) -> Iterator[ReadStep]:
    read = untimed = selected = selected_bytes = 0
    read_blocks = read_small if segment.bytes <= SMALL else read_segment
    for block in read_blocks(store, segment):
        read += block.nbytes
        first = int(np.searchsorted(block.offsets, start))
        rest = slice_block(block, first, len(block)) if first else block
        if range_.window is not None:
            rest, without_time = range_.window.cut(rest)
            untimed += without_time
            if range_.window.where is not None and len(rest):
                rest = select_where(range_.window.where, range_.source, rest)
        selected += len(rest)
        selected_bytes += rest.nbytes
        # The transform sees what is archived. The ids that it leaves in a record are the source's, and are mapped.
        if transform is not None and len(rest):
            rest = transform(range_.source, rest)
        unmapped: tuple[UnmappedRecords, ...] = ()
        if schemas is not None and len(rest):
            rest, unmapped = schemas(range_.source, rest)
        next_offset = int(block.offsets[-1]) + 1
        if len(rest):
            yield ReadStep(
                segment,
                rest,
                next_offset,
                read,
                untimed,
                unmapped=unmapped,
                selected=selected,
                selected_bytes=selected_bytes,
            )
            read = untimed = selected = selected_bytes = 0
        elif quiet is not None and read >= quiet:
            at = max(start, next_offset)
            yield ReadStep(
                segment, None, at, read, untimed, pause=True, selected=selected, selected_bytes=selected_bytes
            )
            read = untimed = selected = selected_bytes = 0
    end = segment.last + 1
    yield ReadStep(segment, None, end, read, untimed, selected=selected, selected_bytes=selected_bytes)


# Check whether a restore whose progress is lost has committed records before.
#
# A unit writes a map part before it commits each transaction: without a map part, no record was committed. With one,
# the target shows whether the records are committed, or belong to an aborted transaction.


SILENCE = 60.0  # s


def first_committed(target: Properties, group: str, parts: Iterable[pa.Table]) -> tuple[TopicPartition, int] | None:
    """Return one place on the target where a record of `parts` (`archive.offset_map.SCHEMA`) is committed, None if
    there is none (any more). Records of others beside them don't count."""
    for map_part in parts:  # as a rule there is none, and the target isn't read
        first = next(_committed(target, group, map_part), None)
        if first is not None:
            return first
    return None


def committed_partitions(target: Properties, group: str, map_part: pa.Table) -> set[TopicPartition]:
    """Return the partitions of `map_part` (`archive.offset_map.SCHEMA`) of which a record is committed on the
    target."""
    if not len(map_part):
        return set()
    return {tp for tp, _ in _committed(target, group, map_part)}


def _committed(target: Properties, group: str, map_part: pa.Table) -> Iterator[tuple[TopicPartition, int]]:
    """Yield offsets of committed records of a map part: the first one of each block that is read."""
    cluster = Cluster(target, "target")
    runs = {tp: (first, first + count) for tp, (_, first, count) in by_partition(map_part)}
    starts = cluster.log_starts(runs)
    ends = cluster.log_ends(runs, "read_committed")
    ranges: list[OffsetRange] = []
    for tp, (low, high) in runs.items():
        start = max(int(low[0]), starts[tp])
        end = min(int(high[-1]), ends[tp])
        ranges.append(OffsetRange(*tp, start, end))
    reader = RangeReader(target, "read_committed", group, SILENCE, len(ranges), role="target")
    with closing(reader):
        for tp, block in reader.read(ranges):
            low, high = runs[tp]
            committed = within(block.offsets, low, high)
            if len(committed):
                yield tp, int(committed[0])


def within(offsets: Int64Array, low: Int64Array, high: Int64Array) -> Int64Array:
    """Return the `offsets` that lie in one of the ranges [low, high), which rise."""
    # The range that an offset may lie in is the last one that begins at or before it; -1 if none does.
    candidates = np.searchsorted(low, offsets, side="right") - 1
    return offsets[(candidates >= 0) & (offsets < high[candidates])]


# One unit of work: read its partitions' segments in order and produce them, exactly once.
#
# A transaction ends only where a segment ends, so that nothing becomes visible before its segment's checksum is
# verified. A segment too large for that is read through once before, with no transaction open: the broker ends one
# that lasts too long.


LARGE_SEGMENT = 256 << 20
"""Bytes of a segment that is checked before a transaction begins with its records."""
_TRANSACTION_SECONDS = 20
"""With a limited rate, a transaction or an unchecked segment has at most what passes in so many seconds."""
_LISTS_AHEAD = 1  # lists of steps that wait while one is produced; the store is read two ranges ahead as well
_BYTES_TOGETHER = 1 << 20  # of a list of steps, at least


class ReachedOffset(NamedTuple):
    """Everything of `range` before source offset `next` is read."""

    range: UnitRange
    next: int


class Ledger(Protocol):
    """Stores what a unit has produced: its offset map and the notes of its progress."""

    transactions: bool

    def publish(
        self, runs: Mapping[TopicPartition, Runs], reached: Mapping[TopicPartition, ReachedOffset], cut: Cut
    ) -> Mapping[TopicPartition, CommittedProgress]:
        """Write an offset map part, and return the progress that names it. Nothing of it is committed yet. `runs`,
        `reached` and `cut` are those since the last call."""

    def committed(self) -> None:
        """Note that the transaction of the last map part is committed."""


def together(
    steps: Iterable[tuple[UnitRange, ReadStep]], least: int = _BYTES_TOGETHER
) -> Iterator[list[tuple[UnitRange, ReadStep]]]:
    """Yield steps, of many partitions too, in lists of at least `least` bytes: small ones then go out in few requests
    to the broker. A list ends with a pause."""
    gathered: list[tuple[UnitRange, ReadStep]] = []
    size = 0
    for range_, step in steps:
        gathered.append((range_, step))
        size += step.read
        if size >= least or step.pause:
            yield gathered
            gathered = []
            size = 0
    if gathered:
        yield gathered


@dataclass
class UnitRun:
    """`start` returns the source offset from which a range is read, None if all of it is done. `pending` is how many
    bytes were read since the last commit; `counted` counts the records of these that windows selected, those that a
    transform left out, and those that could not be mapped. `unread` is the range whose records can't be read, if that
    ended the run."""

    store: Store
    ranges: Sequence[UnitRange]
    producer: BlockProducer
    ledger: Ledger
    sender: ProgressSender
    transaction_bytes: int
    start: Callable[[UnitRange], int | None]
    schemas: SchemaRewrite | None = None
    transform: Transform | None = None
    pending: int = 0
    sent: bool = False
    counted: Cut = NOTHING
    reached: dict[TopicPartition, ReachedOffset] = field(default_factory=dict)
    unread: UnitRange | None = None

    def __post_init__(self) -> None:
        self._limit = limit_beside(self.store)
        self._large = LARGE_SEGMENT
        if self._limit is not None:  # the broker ends a transaction that lasts too long
            most = _TRANSACTION_SECONDS * self._limit.rate
            self._large = min(self._large, most)
            self.transaction_bytes = min(self.transaction_bytes, most)

    def run(self) -> None:
        for steps in ahead(together(self._read()), _LISTS_AHEAD):
            for range_, step in steps:
                self._take(range_, step)
        self._commit()

    def _read(self) -> Iterator[tuple[UnitRange, ReadStep]]:
        """Runs ahead of what is produced, from one segment into the next."""
        check_first = self._large if self.ledger.transactions else None
        for range_ in self.ranges:
            start = self.start(range_)
            if start is None:
                continue
            try:
                for step in read_range(self.store, range_, start, check_first, self.schemas, self.transform):
                    yield range_, step
            except KbackupError:
                self.unread = range_
                raise

    def _take(self, range_: UnitRange, step: ReadStep) -> None:
        before = self.reached.get(range_.tp)
        if before is not None and before.range is not range_:
            self._commit()  # another incarnation: its source offsets begin anew
        block = step.block
        if block is not None:
            if self._limit is not None:
                self._limit.take(block.nbytes)
            self.producer.send(range_.tp, block)
            self.sender.add(len(block), block.nbytes)
            self.sent = True
        if range_.window is not None or step.unmapped or step.left_out:
            self.counted = self.counted.plus(step.cut(range_))
        # The bytes that were read, not those that were sent: a window that selects little must not keep a transaction
        # open for long.
        self.pending += step.read
        self.reached[range_.tp] = ReachedOffset(range_, step.next)
        may_end = block is None or step.segment.bytes > self._large
        if step.pause or (may_end and self.pending >= self.transaction_bytes):
            self._commit()

    def _commit(self) -> None:
        self.pending = 0
        if not self.sent:
            return
        # The map part is written before the commit: of each committed record the map tells its place, and the progress
        # names the part. A part of a transaction that is not committed is named by nothing.
        runs = self.producer.flush()
        progress = self.ledger.publish(runs, self.reached, self.counted)
        if self.ledger.transactions:
            self.producer.commit(progress)
        self.ledger.committed()
        self.counted = NOTHING
        self.sent = False
        self.reached = {}
