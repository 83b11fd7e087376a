"""One unit of a restore: reads its partitions' segments in order and produces them, exactly once.

A transaction ends only where a segment ends, so that nothing becomes visible before its segment's checksum is
verified. A segment too large for that is read through once before.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from kbackup.archive.offset_map import PartName, read_parts, runs_table, write_part
from kbackup.archive.segment_io import read_segment
from kbackup.archive.segments import Segment
from kbackup.formats.block import slice_block
from kbackup.jobs.ahead import ahead
from kbackup.jobs.progress import ProgressSender
from kbackup.jobs.restore_plan import UnitPart
from kbackup.kafka.client import Properties
from kbackup.kafka.kernel import Kernel, chosen
from kbackup.kafka.produce import BlockProducer, Progress
from kbackup.store.base import Store
from kbackup.types import RecordBlock, TopicPartition

LARGE_SEGMENT = 256 << 20
_AHEAD = 1  # blocks that wait while one is produced; the store is read two ranges ahead as well


@dataclass(frozen=True, slots=True)
class Unit:
    number: int
    parts: tuple[UnitPart, ...]


@dataclass(frozen=True, slots=True)
class UnitResult:
    """`runs` is the unit's whole offset map (`archive.offset_map.SCHEMA`); `moved` counts records whose
    timestamp 0 became 1."""

    number: int
    runs: pa.Table
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
        yield UnitResult(task.number, unit.all_runs(), unit.producer.moved, chosen())


class _Piece(NamedTuple):
    """Records of a segment, or (None) that all of it was read and is what it should be."""

    tp: TopicPartition
    segment: Segment
    block: RecordBlock | None


@dataclass
class _UnitRun:
    work: RestoreWork
    unit: Unit
    sender: ProgressSender
    attempt: str = field(default_factory=lambda: uuid.uuid4().hex)
    parts_written: int = 0
    began_from: PartName | None = None
    pending: int = 0

    def __post_init__(self) -> None:
        txid = f"kbackup-{self.work.restore_id}-{self.unit.number}" if self.work.transactions else None
        largest = max((s.largest for part in self.unit.parts for s in part.segments), default=0)
        self.producer = BlockProducer(self.work.target, txid, self.work.group, largest)
        self.reached: dict[TopicPartition, int] = {}
        self.tables: list[pa.Table] = []

    def run(self) -> None:
        progress = self.producer.start([p.tp for p in self.unit.parts])
        self.reached = {tp: p.next for tp, p in progress.items()}
        notes = {p.note for p in progress.values()}
        self.began_from = PartName.parse(notes.pop()) if notes else None
        wanted = [
            (part.tp, segment)
            for part in self.unit.parts
            for segment in part.segments
            if segment.last >= self.reached.get(part.tp, 0)
        ]
        for piece in ahead(self._read(wanted), _AHEAD):
            self._take(piece)
        self._commit()

    def all_runs(self) -> pa.Table:
        """The map of this attempt and of those before it."""
        earlier = read_parts(self.work.state, self.work.restore_id, self.unit.number, self.began_from)
        return pa.concat_tables([earlier, *self.tables])

    def _read(self, wanted: Sequence[tuple[TopicPartition, Segment]]) -> Iterator[_Piece]:
        """Runs ahead of what is produced, from one segment into the next."""
        for tp, segment in wanted:
            if self.work.transactions and segment.bytes > LARGE_SEGMENT:
                for _ in read_segment(self.work.store, segment):
                    pass
            for block in read_segment(self.work.store, segment):
                yield _Piece(tp, segment, block)
            yield _Piece(tp, segment, None)

    def _take(self, piece: _Piece) -> None:
        tp, segment, block = piece
        if block is None:
            self.reached[tp] = segment.last + 1
        else:
            rest = _from(block, self.reached.get(tp, 0))
            if not len(rest):
                return
            self.producer.send(tp, rest)
            self.sender.add(len(rest), rest.nbytes)
            self.pending += rest.nbytes
            self.reached[tp] = int(rest.offsets[-1]) + 1
        may_end = block is None or segment.bytes > LARGE_SEGMENT
        if may_end and self.pending >= self.work.transaction_bytes:
            self._commit()

    def _commit(self) -> None:
        if not self.pending:
            return
        runs = self.producer.flush()
        table = runs_table({tp: (r.source, r.target, r.count) for tp, r in runs.items()})
        self.tables.append(table)
        if self.work.transactions:
            name = PartName(self.attempt, self.parts_written)
            write_part(self.work.state, self.work.restore_id, self.unit.number, name, table, self.began_from)
            self.parts_written += 1
            self.producer.commit({tp: Progress(at, str(name)) for tp, at in self.reached.items()})
        self.pending = 0


def _from(block: RecordBlock, offset: int) -> RecordBlock:
    """The block's records at or after `offset`."""
    at = int(np.searchsorted(block.offsets, offset))
    return slice_block(block, at, len(block)) if at else block


def units(parts: Sequence[tuple[UnitPart, ...]]) -> list[Unit]:
    return [Unit(number, unit) for number, unit in enumerate(parts)]
