"""One unit of work: read its partitions' segments in order and produce them, exactly once.

A transaction ends only where a segment ends, so that nothing becomes visible before its segment's checksum is
verified. A segment too large for that is read through once before, with no transaction open: the broker ends one that
lasts too long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from kbackup.archive.restores.offset_map import NOTHING, Cut
from kbackup.archive.restores.plan import UnitRange
from kbackup.jobs.replay.prefetch import ahead
from kbackup.jobs.replay.read import ReadStep, read_range
from kbackup.kafka.produce.produce import BlockProducer, Progress, Runs
from kbackup.spark.progress import ProgressSender
from kbackup.store.base import Store
from kbackup.types import TopicPartition

LARGE_SEGMENT = 256 << 20
_AHEAD = 1  # lists of steps that wait while one is produced; the store is read two ranges ahead as well
_TOGETHER = 1 << 20  # bytes


class Reached(NamedTuple):
    """Everything of `range` before source offset `next` is read."""

    range: UnitRange
    next: int


class Ledger(Protocol):
    """Stores what a unit has produced: its offset map and the notes of its progress."""

    transactions: bool

    def publish(
        self, runs: Mapping[TopicPartition, Runs], reached: Mapping[TopicPartition, Reached], cut: Cut
    ) -> Mapping[TopicPartition, Progress]:
        """Write an offset map part, and return the progress that names it. Nothing of it is committed yet.

        `runs`, `reached` and `cut` are those since the last call."""
        ...

    def committed(self) -> None:
        """Note that the transaction of the last map part is committed."""
        ...


def together(
    steps: Iterable[tuple[UnitRange, ReadStep]], least: int = _TOGETHER
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
            gathered, size = [], 0
    if gathered:
        yield gathered


@dataclass
class UnitRun:
    """`start` says from which source offset a range is read, None where all of it is done.

    `pending` is how many bytes were read since the last commit, `counted` what windows selected of them.
    """

    store: Store
    ranges: Sequence[UnitRange]
    producer: BlockProducer
    ledger: Ledger
    sender: ProgressSender
    transaction_bytes: int
    start: Callable[[UnitRange], int | None]
    pending: int = 0
    sent: bool = False
    counted: Cut = NOTHING
    reached: dict[TopicPartition, Reached] = field(default_factory=dict)

    def run(self) -> None:
        for steps in ahead(together(self._read()), _AHEAD):
            for range_, step in steps:
                self._take(range_, step)
        self._commit()

    def _read(self) -> Iterator[tuple[UnitRange, ReadStep]]:
        """Runs ahead of what is produced, from one segment into the next."""
        check_first = LARGE_SEGMENT if self.ledger.transactions else None
        for range_ in self.ranges:
            start = self.start(range_)
            if start is None:
                continue
            for step in read_range(self.store, range_, start, check_first):
                yield range_, step

    def _take(self, range_: UnitRange, step: ReadStep) -> None:
        before = self.reached.get(range_.tp)
        if before is not None and before.range is not range_:
            self._commit()  # another incarnation: its source offsets begin anew
        block = step.block
        if block is not None:
            self.producer.send(range_.tp, block)
            self.sender.add(len(block), block.nbytes)
            self.sent = True
        if range_.window is not None:
            size = (len(block), block.nbytes) if block is not None else (0, 0)
            self.counted = self.counted.plus(Cut(*size, step.untimed))
        # not what was sent: a window that selects little must not keep a transaction open for long
        self.pending += step.read
        self.reached[range_.tp] = Reached(range_, step.next)
        may_end = block is None or step.segment.bytes > LARGE_SEGMENT
        if step.pause or (may_end and self.pending >= self.transaction_bytes):
            self._commit()

    def _commit(self) -> None:
        self.pending = 0
        if not self.sent:
            return
        progress = self.ledger.publish(self.producer.flush(), self.reached, self.counted)
        if self.ledger.transactions:
            self.producer.commit(progress)
        self.ledger.committed()
        self.counted, self.sent = NOTHING, False
        self.reached = {}
