"""The units of a restore: their transactional ids, and where each keeps its offset map."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from kbackup.archive.restores.journal import RestoreJournal
from kbackup.archive.restores.map_parts import Cut, MapPartName
from kbackup.archive.restores.offset_map import by_partition, runs_table
from kbackup.archive.restores.plan import RestorePlan, UnitRange
from kbackup.errors import ClusterError, FencedError, KbackupError, NotFoundError, UnreachableError
from kbackup.jobs.replay import ReachedOffset, UnitRun, first_committed
from kbackup.jobs.restore.demands import BATCH_OVERHEAD, LARGE_CODEC
from kbackup.jobs.restore.preflight import missing_rights_problem, rights_to_write
from kbackup.jobs.schemas.rewrite import SchemaRewrite
from kbackup.jobs.transform import ALWAYS_FITS, GROWTH, Transform
from kbackup.kafka.client import Properties
from kbackup.kafka.control.cluster import Cluster
from kbackup.kafka.produce import BlockProducer, RefusedTopicError
from kbackup.native.contract import CommittedProgress, Runs
from kbackup.native.kernel import Kernel, selected_kernel
from kbackup.spark.tasks import ProgressSender
from kbackup.store.base import Store
from kbackup.types import TopicPartition

_RESTORE_APART = "leave it out of this restore with --exclude-topic, and restore it with another --restore-id"

Unit = tuple[int, tuple[UnitRange, ...]]
"""The number of a unit, and its ranges."""


class FailedTopic(NamedTuple):
    """A topic, by its name on the target, that took no more records; why, and what helps."""

    target: str
    reason: str
    hint: str


@dataclass(frozen=True, slots=True)
class UnitResult:
    """`parts` are the parts of the unit's offset map, in order; `cut` counts the records that windows selected after
    the last one. `moved` counts records whose timestamp 0 became 1. `failed` are topics of the unit that the target
    refused."""

    number: int
    parts: tuple[MapPartName, ...]
    cut: Cut
    moved: int
    kernel: Kernel
    failed: tuple[FailedTopic, ...] = ()


@dataclass(frozen=True)
class TargetClients:
    """What units reach the target with: their producers, and the look for a committed record of map parts."""

    open_producer: Callable[..., BlockProducer] = BlockProducer
    first_committed: Callable[[Properties, str, Iterable[pa.Table]], tuple[TopicPartition, int] | None] = (
        first_committed
    )


@dataclass(frozen=True)
class RestoreWork:
    """The settings of every unit. The `journal` keeps the offset map, `store` has the segments, `groups` of the target
    the progress. Topics of the target that are `left_out` get no records. `limits` is how many bytes a batch of each
    topic may have."""

    target: Properties = field(repr=False)
    store: Store
    journal: RestoreJournal
    groups: Sequence[str]
    transactions: bool
    transaction_bytes: int
    schemas: SchemaRewrite | None = None
    left_out: frozenset[str] = frozenset()
    limits: Mapping[str, int] = field(default_factory=dict)
    clients: TargetClients = TargetClients()
    transform: Transform | None = None

    def group_of(self, number: int) -> str:
        return self.groups[number % len(self.groups)]

    def __call__(self, task: Sequence[Unit], progress: ProgressSender) -> Iterator[UnitResult]:
        # Units share a task where the cluster is far away: most of the time they wait for its answers.
        with ThreadPoolExecutor(len(task), "unit") as threads:
            yield from threads.map(partial(self.run, progress=progress), task)

    def run(self, unit: Unit, progress: ProgressSender) -> UnitResult:
        """Restore a unit. A topic that the target refuses is given up, and the others of the unit go on: each attempt
        begins where the transactions of the one before ended."""
        number, _ = unit
        failed: dict[str, FailedTopic] = {}
        moved = 0
        while True:
            given_up = self.left_out | failed.keys()
            with closing(self._producer(unit, given_up)) as producer:
                try:
                    parts, cut = self._attempt(unit, given_up, producer, progress)
                except FencedError:
                    # Another attempt at this unit has begun, as after a task that Spark gave up: that one goes on.
                    raise
                except (ClusterError, UnreachableError) as error:
                    unusable = self._refused_by(error, unit, given_up)
                    if not unusable or not self._can_go_on(unit):
                        raise
                    failed |= unusable
                    moved += producer.moved
                    continue
                moved += producer.moved
                return UnitResult(number, parts, cut, moved, selected_kernel(), tuple(failed.values()))

    def _refused_by(self, error: KbackupError, unit: Unit, given_up: Container[str]) -> dict[str, FailedTopic]:
        """Return the topics of a unit because of which it failed; none if the error concerns no topic alone."""
        if isinstance(error, RefusedTopicError):
            return {error.topic: FailedTopic(error.topic, error.message, error.hint)}
        # An error of a transaction, or of its progress, does not name its topic: the cluster is asked which topics are
        # gone or closed to us.
        _, ranges = unit
        targets = {range_.target for range_ in ranges if range_.target not in given_up}
        try:
            cluster = Cluster(self.target, "target")
            existing = cluster.topics(targets)
            denied = cluster.missing_rights(existing, rights_to_write(self.transactions))
        except KbackupError:
            return {}  # the cluster itself is the trouble, as the error says
        refused: dict[str, FailedTopic] = {}
        for target in targets - existing.keys():
            reason = f"target topic {target} was deleted during the restore"
            refused[target] = FailedTopic(target, reason, _RESTORE_APART)
        for target, rights in denied.items():
            reason, hint = missing_rights_problem(target, rights)
            refused[target] = FailedTopic(target, reason, hint)
        return refused

    def _can_go_on(self, unit: Unit) -> bool:
        """Return whether the other topics of a unit can go on after one of them failed. Without transactions nobody
        knows how far they came; a unit then has one topic alone."""
        _, ranges = unit
        return self.transactions or len({range_.target for range_ in ranges}) == 1

    def _producer(self, unit: Unit, given_up: Container[str]) -> BlockProducer:
        number, ranges = unit
        largest: dict[str, int] = {}
        for range_ in ranges:
            if range_.target not in given_up:
                sizes = [segment.largest for segment in range_.segments]
                largest[range_.target] = max([largest.get(range_.target, 0), *sizes])
        limits = {target: self.limits[target] for target in largest if target in self.limits}
        # A record that is too large for its topic as it is was found to fit when this codec packs it.
        needs_packing = any(largest[target] + BATCH_OVERHEAD > limit for target, limit in limits.items())
        transactional_id = f"kbackup-{self.journal.restore_id}-{number}" if self.transactions else None
        compression = LARGE_CODEC if needs_packing else None
        largest_record = max(largest.values(), default=0)
        if self.transform is not None:
            largest_record = max(ALWAYS_FITS, GROWTH * largest_record)
        # The producer has one limit for all its topics.
        smallest_limit = min(limits.values(), default=None)
        return self.clients.open_producer(
            self.target,
            transactional_id,
            self.group_of(number),
            largest_record,
            message_limit=smallest_limit,
            compression=compression,
        )

    def _attempt(
        self, unit: Unit, given_up: Container[str], producer: BlockProducer, progress: ProgressSender
    ) -> tuple[tuple[MapPartName, ...], Cut]:
        """Produce the remaining records of the unit's topics that are not `given_up`. Return the parts of its offset
        map, and the count of what windows selected after the last one."""
        number, ranges = unit
        # The progress of all its partitions: the newest part of the map may be named by one that is given up.
        partitions = [range_.tp for range_ in ranges]
        committed = producer.start(partitions)
        ledger = _UnitLedger(self, number, partitions, committed, given_up)
        run = UnitRun(
            store=self.store,
            ranges=[range_ for range_ in ranges if range_.target not in given_up],
            producer=producer,
            ledger=ledger,
            sender=progress,
            transaction_bytes=self.transaction_bytes,
            start=ledger.start,
            schemas=self.schemas,
            transform=self.transform,
        )
        run.run()
        return ledger.parts(), run.counted


def side_by_side(units: Sequence[Unit], most: int, cores: int) -> list[tuple[Unit, ...]]:
    """Return tasks of up to `most` units, as a producer has one batch of a partition on its way. No core is idle."""
    size = max(1, min(most, len(units) // cores))
    tasks: list[tuple[Unit, ...]] = []
    for start in range(0, len(units), size):
        tasks.append(tuple(units[start : start + size]))
    return tasks


def numbered_units(plan: RestorePlan, left_out: Container[str]) -> list[Unit]:
    """Return the units of a plan, each with its number, without those that have nothing but topics that are
    `left_out`."""
    units: list[Unit] = []
    for number, ranges in enumerate(plan.units):
        if any(range_.target not in left_out for range_ in ranges):
            units.append((number, ranges))
    return units


@dataclass
class _UnitLedger:
    """The map and the progress of one attempt at a unit. `progress` is the progress that earlier attempts committed. Of
    topics that are `given_up` no progress is committed: they may be gone from the target."""

    work: RestoreWork
    number: int
    partitions: Sequence[TopicPartition]
    progress: Mapping[TopicPartition, CommittedProgress]
    given_up: Container[str] = ()
    attempt: str = field(default_factory=lambda: uuid.uuid4().hex)
    """In the names of its map parts: an attempt that is fenced may still be writing its own."""
    map_parts: int = 0
    """Committed by this attempt."""

    def __post_init__(self) -> None:
        self.transactions = self.work.transactions
        self.reached = {tp: committed.next for tp, committed in self.progress.items()}
        before = partial(self.work.journal.map_parts_up_to, self.number)
        self.began_from = _last_part(self.number, self.progress, before)
        self._check_same_logs(before)
        if self.transactions and not self.progress:
            self._check_nothing_committed()

    def _check_nothing_committed(self) -> None:
        """Raise `ClusterError` if the target has records of this unit: without progress they would come once more."""
        # Brokers expire the progress of a group without members: its records may be committed all the same.
        work, group = self.work, self.work.group_of(self.number)
        map_parts = work.journal.begun_map_parts(self.number)
        committed = work.clients.first_committed(work.target, group, map_parts)
        if committed is not None:
            tp, offset = committed
            raise ClusterError(
                f"the progress of unit {self.number} is missing on the target: {tp} holds what this restore wrote at "
                f"offset {offset}, group {group} knows of none (it expired after the brokers' "
                "offsets.retention.minutes, or was deleted)",
                "begin another restore, with another --restore-id and into new topics",
            )

    def _check_same_logs(self, before: Callable[[MapPartName], Sequence[MapPartName]]) -> None:
        """Raise `RefusedTopicError` for a topic that was deleted after an earlier attempt had written to it. Brokers
        delete its progress as well: its records would come once more, and be in the offset map twice."""
        unknown = {tp for tp in self.partitions if tp not in self.progress and tp.topic not in self.given_up}
        if self.began_from is None or not unknown:
            return
        names = before(self.began_from)
        for part in self.work.journal.read_map_parts(self.number, names):
            for tp, _ in by_partition(part.runs):
                if tp in unknown:
                    raise RefusedTopicError(
                        tp.topic,
                        f"target topic {tp.topic} was created again after this restore wrote to it",
                        _RESTORE_APART,
                    )

    def start(self, range_: UnitRange) -> int:
        return self.reached.get(range_.tp, 0)

    def publish(
        self, runs: Mapping[TopicPartition, Runs], reached: Mapping[TopicPartition, ReachedOffset], cut: Cut
    ) -> Mapping[TopicPartition, CommittedProgress]:
        """Write a map part; its name is committed with the records."""
        name = MapPartName(self.attempt, self.map_parts)
        for tp, reached_offset in reached.items():
            self.reached[tp] = reached_offset.next
        table = runs_table({tp: (run.source, run.target, run.count) for tp, run in runs.items()})
        self.work.journal.write_map_part(self.number, name, table, self.began_from, cut)
        progress: dict[TopicPartition, CommittedProgress] = {}
        for tp, offset in self.reached.items():
            if tp.topic not in self.given_up:
                progress[tp] = CommittedProgress(offset, str(name))
        return progress

    def committed(self) -> None:
        self.map_parts += 1

    def parts(self) -> tuple[MapPartName, ...]:
        """Return the map parts that this attempt and earlier ones committed, in order."""
        earlier = self.work.journal.map_parts_up_to(self.number, self.began_from)
        own = [MapPartName(self.attempt, n) for n in range(self.map_parts)]
        return (*earlier, *own)


def _last_part(
    unit: int,
    progress: Mapping[TopicPartition, CommittedProgress],
    before: Callable[[MapPartName], Sequence[MapPartName]],
) -> MapPartName | None:
    """Return the newest map part that progress was committed with; None without progress. Without it, neither the
    offset map nor the count of a window would have the records before it.

    As a rule all progress names that part. The progress of a topic that was given up names an older one, which
    `before` returns: the parts up to a given one, in order."""
    if not progress:
        return None
    names = [MapPartName.parse(committed.note) for committed in progress.values()]
    known = {name for name in names if name is not None}
    all_known = None not in names
    if all_known and len(known) == 1:
        return known.pop()
    if all_known:
        for name in known:
            if known.issubset(_parts_up_to(name, before)):
                return name
    raise ClusterError(
        f"the progress of unit {unit} on the target names no part of its offset map",
        "begin another restore, into new topics: another program has committed to the unit's group",
    )


def _parts_up_to(name: MapPartName, before: Callable[[MapPartName], Sequence[MapPartName]]) -> Sequence[MapPartName]:
    try:
        return before(name)
    except NotFoundError:
        return ()
