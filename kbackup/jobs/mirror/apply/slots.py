"""The slots of a flow: each with its names, offset map and notes, so that every record is applied once.

Spark tasks do the work of slots in a large round, this process in a small one. Both use the slot's own transactional
id. So whoever begins a slot fences whoever had it before.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.restores.offset_map import (
    Cut,
    FlowMapPartName,
    MappedPartition,
    flow_runs_table,
    folder,
    write_flow_map_part,
)
from kbackup.archive.restores.plan import UnitRange
from kbackup.errors import ClusterError, FencedError, KbackupError
from kbackup.jobs.mirror.apply.pending import Noted, PositionNote
from kbackup.jobs.mirror.flow import AppliedPosition
from kbackup.jobs.replay import ReachedOffset, SchemaRewrite, UnitRun
from kbackup.kafka.client import Properties
from kbackup.kafka.kernel import Kernel, selected_kernel
from kbackup.kafka.kernel_protocol import CommittedProgress, Runs
from kbackup.kafka.produce import BlockProducer
from kbackup.spark.tasks import ProgressSender
from kbackup.store.base import Store
from kbackup.types import TopicPartition

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

_THREADS = 8  # slots that a small round works on at a time
_ROOM = 16 << 20  # bytes of a record that every producer's queue has room for


class CommittedMapPart(NamedTuple):
    """An offset map part whose transaction is committed."""

    name: FlowMapPartName
    previous: FlowMapPartName | None
    runs: pa.Table


@dataclass(frozen=True, slots=True)
class SlotTask:
    """Work for one slot. `ranges` are in order of partition and incarnation. `partitions` are all of the slot, those
    without work too; `expected` are those whose position must be there. `head` is the last part of the slot's map that
    is known to be committed. `topic_ids` has the ids of the remote topics: positions of other ones don't count."""

    slot: int
    ranges: tuple[UnitRange, ...]
    partitions: tuple[TopicPartition, ...]
    expected: tuple[TopicPartition, ...]
    head: FlowMapPartName | None
    begins: Mapping[TopicPartition, AppliedPosition]
    """Positions at which partitions begin that have none."""
    topic_ids: Mapping[str, str]

    @property
    def largest(self) -> int:
        """The size of the largest record, in bytes."""
        return max((s.largest for each in self.ranges for s in each.segments), default=0)


class SlotResult(NamedTuple):
    """The map parts that one attempt committed; `positions` are all of the slot."""

    slot: int
    map_parts: list[CommittedMapPart]
    positions: dict[TopicPartition, Noted]
    kernel: Kernel


@dataclass
class SlotLedger:
    """The offset map and positions of one slot. `positions` are the committed ones, as its producer found them. `head`
    is the last part of the slot's map that is known to be committed, which they may not name any more. `point` is the
    restore point that is applied. `map_parts` are those committed since they were last taken. `topic_ids` has the ids
    of the remote topics."""

    state: Store
    directory: str
    positions: dict[TopicPartition, Noted]
    head: FlowMapPartName | None
    point: int = 0
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    attempt: str = field(default_factory=lambda: secrets.token_hex(8))
    map_parts: list[CommittedMapPart] = field(default_factory=list)
    transactions: bool = True
    _next: tuple[CommittedMapPart, dict[TopicPartition, Noted]] | None = None

    def start(self, range_: UnitRange) -> int | None:
        """Return the source offset from which to apply a range; None if a later incarnation has begun."""
        noted = self.positions.get(range_.tp)
        incarnation = range_.segments[0].incarnation
        if noted is None or noted.position.incarnation < incarnation:
            return 0
        return noted.position.next if noted.position.incarnation == incarnation else None

    def publish(
        self, runs: Mapping[TopicPartition, Runs], reached: Mapping[TopicPartition, ReachedOffset], cut: Cut
    ) -> Mapping[TopicPartition, CommittedProgress]:
        """Write a map part; its name is committed with the records."""
        return self.write(
            runs, {tp: AppliedPosition(each.range.segments[0].incarnation, each.next) for tp, each in reached.items()}
        )

    def write(
        self, runs: Mapping[TopicPartition, Runs], positions: Mapping[TopicPartition, AppliedPosition]
    ) -> Mapping[TopicPartition, CommittedProgress]:
        """Write a map part, without runs for positions that no records led to, and return the progress to commit."""
        name = FlowMapPartName(self.head.number + 1 if self.head else 1, self.attempt)
        table = flow_runs_table(
            {MappedPartition(tp, positions[tp].incarnation): (r.source, r.target, r.count) for tp, r in runs.items()}
        )
        write_flow_map_part(self.state, self.directory, name, table, self.head)
        noted = {
            tp: Noted(each, PositionNote(each.incarnation, name, self.point, self.topic_ids.get(tp.topic, "")))
            for tp, each in positions.items()
        }
        self._next = CommittedMapPart(name, self.head, table), noted
        return progress_of(noted)

    def committed(self) -> None:
        assert self._next is not None  # noqa: S101 (it follows `publish`)
        part, noted = self._next
        self.map_parts.append(part)
        self.positions |= noted
        self.head = part.name


def progress_of(noted: Mapping[TopicPartition, Noted]) -> dict[TopicPartition, CommittedProgress]:
    """Return positions as a producer commits them."""
    return {tp: CommittedProgress(each.position.next, str(each.note)) for tp, each in noted.items()}


@dataclass(frozen=True)
class OpenSlot:
    """A slot whose producer this process has. `largest` is the size of the largest record that it has room for, and
    `partitions` are those whose positions it read after it had fenced every other producer of the slot."""

    producer: BlockProducer
    ledger: SlotLedger
    largest: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True)
class SlotWork:
    """The settings of every slot. `store` has the segments, `state` the state of the flow."""

    target: Properties = field(repr=False)
    store: Store
    state: Store
    names: tuple[str, str]
    point: int
    transaction_bytes: int
    schemas: SchemaRewrite | None = None

    def __call__(self, task: SlotTask, progress: ProgressSender) -> Iterator[SlotResult]:
        """Apply a slot in a Spark task, with a producer of its own."""
        slot = self.begin(task)
        try:
            yield self.run(slot, task, progress)
        finally:
            _close(slot.producer)

    def begin(self, task: SlotTask) -> OpenSlot:
        """Start the producer of a slot, and read the positions that its last one committed."""
        source, target = self.names
        group = layout.mirror_group(source, target)
        txid = layout.mirror_transactional_id(source, target, task.slot)
        fenced = (
            f"another process applies the flow {source}->{target} now",
            "let one apply half of a flow run; this one wrote nothing more",
        )
        producer = BlockProducer(self.target, txid, group, task.largest, fenced)
        try:
            every = {tp: Noted.of(tp, progress) for tp, progress in producer.start(task.partitions).items()}
        except BaseException:
            _close(producer)
            raise
        noted = {tp: n for tp, n in every.items() if n.note.is_of(task.topic_ids.get(tp.topic, ""))}
        if absent := [tp for tp in task.expected if tp not in noted]:
            _close(producer)
            raise ClusterError(
                f"the applied position of {absent[0]} is missing in the target's group {group}",
                "wait for the next round: it reads the position back from the offset map",
            )
        heads = [n.note.map_part for n in every.values()] + ([task.head] if task.head else [])
        ledger = SlotLedger(self.state, folder(source, target, task.slot), noted, max(heads, default=None))
        return OpenSlot(producer, ledger, task.largest, frozenset(task.partitions))

    def run(self, slot: OpenSlot, task: SlotTask, progress: ProgressSender) -> SlotResult:
        """Commit everything that is left of a task."""
        producer, ledger = slot.producer, slot.ledger
        ledger.point, ledger.topic_ids = self.point, task.topic_ids
        begins = {tp: position for tp, position in task.begins.items() if tp not in ledger.positions}
        if begins:
            producer.commit_alone(ledger.write({}, begins))
            ledger.committed()
        ends = self.store, task.ranges, producer, ledger, progress, self.transaction_bytes, ledger.start
        UnitRun(*ends, self.schemas).run()
        map_parts, ledger.map_parts = ledger.map_parts, []
        return SlotResult(task.slot, map_parts, ledger.positions, selected_kernel())


@dataclass
class OpenSlots:
    """The slots whose producers this process keeps open between rounds."""

    _open: dict[int, OpenSlot] = field(default_factory=dict)
    _threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(_THREADS, "kbackup-slot"))
    _under_way: list[Future[Any]] = field(default_factory=list)

    def run(self, work: SlotWork, tasks: Sequence[SlotTask]) -> list[SlotResult]:
        """Commit the work of a small round. After an error, close them all."""
        return self._each(lambda task: work.run(self._slot(work, task), task, ProgressSender(None, 0)), tasks)

    def refresh(
        self, work: SlotWork, tasks: Sequence[SlotTask], missing: Mapping[TopicPartition, Noted]
    ) -> dict[TopicPartition, Noted]:
        """Commit the positions of slots once more, so that they don't expire, and those that are `missing` in the
        target; notes without an id of their topic get it. Returns all positions of these slots."""

        def commit(task: SlotTask) -> dict[TopicPartition, Noted]:
            slot = self._slot(work, task)
            ledger = slot.ledger
            due = {tp: missing[tp] for tp in task.partitions if tp in missing} | ledger.positions
            ledger.positions = {
                tp: Noted(position, note._replace(topic_id=note.topic_id or task.topic_ids.get(tp.topic, "")))
                for tp, (position, note) in due.items()
            }
            parts = [noted.note.map_part for noted in due.values()]
            ledger.head = max([*parts, *([ledger.head] if ledger.head else [])], default=None)
            if ledger.positions:
                slot.producer.commit_alone(progress_of(ledger.positions))
            return ledger.positions

        return {tp: noted for own in self._each(commit, tasks) for tp, noted in own.items()}

    def _each(self, do: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Return the result of `do` for each item. Raise the first error, after every call has ended."""
        self._under_way = [self._threads.submit(do, item) for item in items]
        try:
            done, _ = wait(self._under_way, return_when=FIRST_EXCEPTION)
            failed = [error for each in done if (error := each.exception()) is not None]
            if failed:
                raise next((error for error in failed if isinstance(error, FencedError)), failed[0])
            return [each.result() for each in self._under_way]
        finally:
            self._settle()

    def _settle(self) -> None:
        """Wait until no thread has a producer in use: to close one meanwhile would crash the process."""
        for each in self._under_way:
            each.cancel()
        wait(self._under_way)
        self._under_way = []

    def _slot(self, work: SlotWork, task: SlotTask) -> OpenSlot:
        slot = self._open.get(task.slot)
        if slot is not None:
            if task.largest <= max(slot.largest, _ROOM) and slot.partitions.issuperset(task.partitions):
                return slot
            _close(self._open.pop(task.slot).producer)
        slot = self._open[task.slot] = work.begin(task)
        return slot

    def close(self) -> None:
        """Abort what is not committed, and close all producers, also if one fails."""
        self._settle()
        slots, self._open = [*self._open.values()], {}
        self._under_way = [self._threads.submit(_close, slot.producer) for slot in slots]
        wait(self._under_way)
        self._settle()


def _close(producer: BlockProducer) -> None:
    """Close a producer, and log an error of closing: the next producer with its id ends its transaction. The
    caller's own error counts."""
    try:
        producer.close()
    except Exception as error:
        log.warning("closing a producer of the mirror: %s", error, exc_info=not isinstance(error, KbackupError))
