"""One unit of a restore: reads its partitions' segments in order and produces them, exactly once.

A transaction ends only where a segment ends, so that nothing becomes visible before its segment's checksum is
verified. A segment too large for that is read through once before, with no transaction open: the broker ends one that
lasts too long.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from kbackup.archive.offset_map import (
    NOTHING,
    Committed,
    Cut,
    PartName,
    begun_parts,
    read_parts,
    runs_table,
    write_part,
)
from kbackup.errors import ClusterError
from kbackup.jobs.ahead import ahead
from kbackup.jobs.progress import ProgressSender
from kbackup.jobs.restore_again import first_committed
from kbackup.jobs.restore_plan import UnitPart
from kbackup.jobs.restore_read import Piece, read_part
from kbackup.kafka.client import Properties
from kbackup.kafka.kernel import Kernel, chosen
from kbackup.kafka.produce import BlockProducer, Progress
from kbackup.store.base import Store
from kbackup.types import TopicPartition

LARGE_SEGMENT = 256 << 20
_AHEAD = 1  # blocks that wait while one is produced; the store is read two ranges ahead as well


@dataclass(frozen=True, slots=True)
class Unit:
    number: int
    parts: tuple[UnitPart, ...]


@dataclass(frozen=True, slots=True)
class UnitResult:
    """`runs` is the unit's whole offset map (`archive.offset_map.SCHEMA`), `cut` what its windows selected; `moved`
    counts records whose timestamp 0 became 1."""

    number: int
    runs: pa.Table
    cut: Cut
    moved: int
    kernel: Kernel


@dataclass(frozen=True)
class RestoreWork:
    """What every unit needs. `state` is where the restore keeps its map, `store` where the segments are."""

    target: Properties
    store: Store
    state: Store
    restore_id: str
    group: str
    transactions: bool
    transaction_bytes: int

    def __call__(self, task: Unit, progress: ProgressSender) -> Iterator[UnitResult]:
        unit = _UnitRun(self, task, progress)
        try:
            unit.run()
        finally:
            unit.producer.close()
        done = unit.everything()
        yield UnitResult(task.number, done.runs, done.cut, unit.producer.moved, chosen())


@dataclass
class _UnitRun:
    """`pending` is how many bytes were read since the last commit, `counted` what windows selected of them."""

    work: RestoreWork
    unit: Unit
    sender: ProgressSender
    attempt: str = field(default_factory=lambda: uuid.uuid4().hex)
    parts_written: int = 0
    began_from: PartName | None = None
    pending: int = 0
    sent: bool = False
    counted: Cut = NOTHING
    cut: Cut = NOTHING

    def __post_init__(self) -> None:
        txid = f"kbackup-{self.work.restore_id}-{self.unit.number}" if self.work.transactions else None
        largest = max((s.largest for part in self.unit.parts for s in part.segments), default=0)
        self.producer = BlockProducer(self.work.target, txid, self.work.group, largest)
        self.reached: dict[TopicPartition, int] = {}
        self.tables: list[pa.Table] = []

    def run(self) -> None:
        progress = self.producer.start([p.tp for p in self.unit.parts])
        self.reached = {tp: p.next for tp, p in progress.items()}
        self.began_from = _last_part(self.unit, progress)
        if self.work.transactions and not progress:
            self._check_unrestored()
        for part, piece in ahead(self._read(dict(self.reached)), _AHEAD):
            self._take(part, piece)
        self._commit()

    def _check_unrestored(self) -> None:
        """That what stands nowhere as done is not: a broker forgets the progress of a group without members."""
        work, number = self.work, self.unit.number
        parts = begun_parts(work.state, work.restore_id, number)
        found = first_committed(work.target, work.group, parts)
        if found is not None:
            tp, offset = found
            raise ClusterError(
                f"the progress of unit {number} is gone from the target: {tp} holds what this restore wrote at offset "
                f"{offset}, group {work.group} knows of none (it expired after the brokers' offsets.retention.minutes, "
                "or was deleted)",
                "begin another restore, with another --restore-id and into topics made anew",
            )

    def everything(self) -> Committed:
        """What this attempt did and those before it."""
        earlier = read_parts(self.work.state, self.work.restore_id, self.unit.number, self.began_from)
        runs = pa.concat_tables([earlier.runs, *self.tables])
        return Committed(runs, earlier.cut.plus(self.cut).plus(self.counted))

    def _read(self, starts: Mapping[TopicPartition, int]) -> Iterator[tuple[UnitPart, Piece]]:
        """Runs ahead of what is produced, from one segment into the next."""
        check_first = LARGE_SEGMENT if self.work.transactions else None
        for part in self.unit.parts:
            for piece in read_part(self.work.store, part, starts.get(part.tp, 0), check_first):
                yield part, piece

    def _take(self, part: UnitPart, piece: Piece) -> None:
        block = piece.block
        if block is not None:
            self.producer.send(part.tp, block)
            self.sender.add(len(block), block.nbytes)
            self.sent = True
        if part.window is not None:
            found = (len(block), block.nbytes) if block is not None else (0, 0)
            self.counted = self.counted.plus(Cut(*found, piece.untimed))
        self.pending += (
            piece.read
        )  # not what was sent: a window that selects little must not keep one open for long
        self.reached[part.tp] = piece.next
        may_end = block is None or piece.segment.bytes > LARGE_SEGMENT
        if piece.pause or (may_end and self.pending >= self.work.transaction_bytes):
            self._commit()

    def _commit(self) -> None:
        self.pending = 0
        if not self.sent:
            return
        runs = self.producer.flush()
        table = runs_table({tp: (r.source, r.target, r.count) for tp, r in runs.items()})
        self.tables.append(table)
        if self.work.transactions:
            self._publish(table)
        self.cut, self.counted = self.cut.plus(self.counted), NOTHING
        self.sent = False

    def _publish(self, table: pa.Table) -> None:
        """The map first, then its name with the records themselves."""
        work, name = self.work, PartName(self.attempt, self.parts_written)
        write_part(work.state, work.restore_id, self.unit.number, name, table, self.began_from, self.counted)
        self.parts_written += 1
        self.producer.commit({tp: Progress(at, str(name)) for tp, at in self.reached.items()})


def _last_part(unit: Unit, progress: Mapping[TopicPartition, Progress]) -> PartName | None:
    """The last part of the map that counts, which all progress was committed with. Without it nobody would miss the
    records before it: neither the map nor the count of a window has them."""
    found = {PartName.parse(p.note) for p in progress.values()}
    if not found:
        return None
    (name,) = found if len(found) == 1 else (None,)
    if name is None:
        raise ClusterError(
            f"the progress of unit {unit.number} on the target names no part of its offset map",
            "has somebody else committed to its group? begin another restore, into topics made anew",
        )
    return name


def units(parts: Sequence[tuple[UnitPart, ...]]) -> list[Unit]:
    return [Unit(number, unit) for number, unit in enumerate(parts)]
