"""The units of a restore: their transactional ids, and where each keeps its offset map."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

from kbackup.archive.restores.offset_map import (
    Cut,
    MapPartName,
    begun_map_parts,
    committed_names,
    runs_table,
    write_map_part,
)
from kbackup.archive.restores.plan import UnitRange
from kbackup.errors import ClusterError
from kbackup.jobs.replay import ReachedOffset, SchemaRewrite, UnitRun, first_committed
from kbackup.kafka.client import Properties
from kbackup.kafka.kernel import Kernel, selected_kernel
from kbackup.kafka.kernel_protocol import CommittedProgress, Runs
from kbackup.kafka.produce import BlockProducer
from kbackup.spark.tasks import ProgressSender
from kbackup.store.base import Store
from kbackup.types import TopicPartition

Unit = tuple[int, tuple[UnitRange, ...]]
"""The number of a unit, and its ranges."""


@dataclass(frozen=True, slots=True)
class UnitResult:
    """`parts` are those of its offset map, in order; `cut` is what windows selected after the last one. `moved` counts
    records whose timestamp 0 became 1."""

    number: int
    parts: tuple[MapPartName, ...]
    cut: Cut
    moved: int
    kernel: Kernel


@dataclass(frozen=True)
class RestoreWork:
    """The settings of every unit. `state` stores the offset map, `store` has the segments, `groups` of the target the
    progress."""

    target: Properties = field(repr=False)
    store: Store
    state: Store
    restore_id: str
    groups: Sequence[str]
    transactions: bool
    transaction_bytes: int
    schemas: SchemaRewrite | None = None

    def group_of(self, number: int) -> str:
        return self.groups[number % len(self.groups)]

    def __call__(self, task: Sequence[Unit], progress: ProgressSender) -> Iterator[UnitResult]:
        with ThreadPoolExecutor(len(task), "unit") as threads:
            yield from threads.map(partial(self.run, progress=progress), task)

    def run(self, unit: Unit, progress: ProgressSender) -> UnitResult:
        number, ranges = unit
        txid = f"kbackup-{self.restore_id}-{number}" if self.transactions else None
        largest = max((s.largest for each in ranges for s in each.segments), default=0)
        with closing(BlockProducer(self.target, txid, self.group_of(number), largest)) as producer:
            ledger = _UnitLedger(self, number, producer.start([p.tp for p in ranges]))
            ends = self.store, ranges, producer, ledger, progress, self.transaction_bytes, ledger.start
            run = UnitRun(*ends, self.schemas)
            run.run()
        return UnitResult(number, ledger.parts(), run.counted, producer.moved, selected_kernel())


def side_by_side(units: Iterable[tuple[UnitRange, ...]], most: int, cores: int) -> list[tuple[Unit, ...]]:
    """Return tasks of up to `most` units, as a producer has one batch of a partition on its way. No core is idle."""
    numbered = list(enumerate(units))
    size = max(1, min(most, len(numbered) // cores))
    return [tuple(numbered[at : at + size]) for at in range(0, len(numbered), size)]


@dataclass
class _UnitLedger:
    """The map and the progress of one attempt at a unit. `progress` is what the attempts before it committed."""

    work: RestoreWork
    number: int
    progress: Mapping[TopicPartition, CommittedProgress]
    attempt: str = field(default_factory=lambda: uuid.uuid4().hex)
    map_parts: int = 0
    """Committed by this attempt."""

    def __post_init__(self) -> None:
        self.transactions = self.work.transactions
        self.reached = {tp: p.next for tp, p in self.progress.items()}
        self.began_from = _last_part(self.number, self.progress)
        if self.transactions and not self.progress:
            # brokers expire the progress of an empty group: a record may be committed all the same
            work, number, group = self.work, self.number, self.work.group_of(self.number)
            map_parts = begun_map_parts(work.state, work.restore_id, number)
            if committed := first_committed(work.target, group, map_parts):
                tp, offset = committed
                raise ClusterError(
                    f"the progress of unit {number} is missing on the target: {tp} holds what this restore wrote at "
                    f"offset {offset}, group {group} knows of none (it expired after the brokers' "
                    "offsets.retention.minutes, or was deleted)",
                    "begin another restore, with another --restore-id and into topics made anew",
                )

    def start(self, range_: UnitRange) -> int:
        return self.reached.get(range_.tp, 0)

    def publish(
        self, runs: Mapping[TopicPartition, Runs], reached: Mapping[TopicPartition, ReachedOffset], cut: Cut
    ) -> Mapping[TopicPartition, CommittedProgress]:
        """Write a map part; its name is committed with the records."""
        work, name = self.work, MapPartName(self.attempt, self.map_parts)
        self.reached |= {tp: each.next for tp, each in reached.items()}
        table = runs_table({tp: (r.source, r.target, r.count) for tp, r in runs.items()})
        write_map_part(work.state, work.restore_id, self.number, name, table, self.began_from, cut)
        return {tp: CommittedProgress(at, str(name)) for tp, at in self.reached.items()}

    def committed(self) -> None:
        self.map_parts += 1

    def parts(self) -> tuple[MapPartName, ...]:
        """Return the map parts that this attempt and earlier ones committed, in order."""
        earlier = committed_names(self.work.state, self.work.restore_id, self.number, self.began_from)
        return (*earlier, *(MapPartName(self.attempt, n) for n in range(self.map_parts)))


def _last_part(unit: int, progress: Mapping[TopicPartition, CommittedProgress]) -> MapPartName | None:
    """Return the newest map part, which all progress was committed with; None without progress. Without it, neither the
    offset map nor the count of a window would have the records before it."""
    names = {MapPartName.parse(p.note) for p in progress.values()}
    if not names:
        return None
    name = names.pop()
    if names or name is None:
        raise ClusterError(
            f"the progress of unit {unit} on the target names no part of its offset map",
            "begin another restore, into new topics: another program has committed to the unit's group",
        )
    return name
