"""The slots of a flow: each with its names, offset map and notes, so that every record is applied once.

Spark tasks do the work of slots in a large round, this process in a small one. Both use the slot's own transactional
id. So whoever begins a slot fences whoever had it before.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
from kbackup.archive.restores.unmapped import UnmappedRecords, sum_unmapped
from kbackup.errors import ClusterError, CorruptError, FencedError, KbackupError, NotFoundError, RefusedError
from kbackup.jobs.mirror.apply.held import RefusedTopic, reason_of
from kbackup.jobs.mirror.apply.pending import Noted, PositionNote
from kbackup.jobs.mirror.flow import AppliedPosition
from kbackup.jobs.replay import ReachedOffset, UnitRun
from kbackup.jobs.schemas.rewrite import SchemaRewrite
from kbackup.kafka.client import Properties
from kbackup.kafka.kernel import Kernel, selected_kernel
from kbackup.kafka.kernel_protocol import CommittedProgress, Runs
from kbackup.kafka.produce import TUNING, BlockProducer, RefusedTopicError
from kbackup.spark.tasks import ProgressSender
from kbackup.store.base import Store
from kbackup.types import TopicPartition

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

_THREADS = 8  # slots that a small round works on at a time

_ANY_LIMIT = int(str(TUNING["batch.size"]))
"""A limit of messages from this many bytes on does not make batches smaller."""

_BATCH_OVERHEAD = 100  # bytes that a record batch of one record takes beside the record

_UNREADABLE = (CorruptError, NotFoundError, RefusedError)
"""Errors of reading a topic's records from the archive that concern this topic alone: damaged or missing segments, and
records whose schema has no id in the target's registry."""


class CommittedMapPart(NamedTuple):
    """An offset map part whose transaction is committed."""

    name: FlowMapPartName
    previous: FlowMapPartName | None
    runs: pa.Table


@dataclass(frozen=True, slots=True)
class SlotTask:
    """Work for one slot. `ranges` are in order of partition and incarnation. `partitions` are all of the slot, those
    without work too; `expected` are those whose position must be there. `head` is the last part of the slot's map that
    is known to be committed. `topic_ids` has the ids of the remote topics: positions of other ones don't count. `apart`
    are the remote topics that were held back before: they go in transactions of their own, after the others.
    `message_limit` is the least max.message.bytes of the remote topics; None where none is known."""

    slot: int
    ranges: tuple[UnitRange, ...]
    partitions: tuple[TopicPartition, ...]
    expected: tuple[TopicPartition, ...]
    head: FlowMapPartName | None
    begins: Mapping[TopicPartition, AppliedPosition]
    """Positions at which partitions begin that have none."""
    topic_ids: Mapping[str, str]
    apart: frozenset[str] = frozenset()
    message_limit: int | None = None

    @property
    def bytes(self) -> int:
        """The size of all segments of the ranges."""
        return sum(segment.bytes for range_ in self.ranges for segment in range_.segments)

    @property
    def largest(self) -> int:
        """The size of the largest record, in bytes."""
        return max((s.largest for each in self.ranges for s in each.segments), default=0)

    @property
    def compression(self) -> str | None:
        """The codec to pack records by: the tightest one if a record has no room uncompressed; None: any."""
        fits = self.message_limit is None or self.largest + _BATCH_OVERHEAD <= self.message_limit
        return None if fits else "zstd"


class SlotResult(NamedTuple):
    """The map parts that one attempt committed; `positions` are all of the slot. Of the `refused` topics some records,
    or all, are not committed."""

    slot: int
    map_parts: list[CommittedMapPart]
    positions: dict[TopicPartition, Noted]
    kernel: Kernel
    refused: tuple[RefusedTopic, ...] = ()
    unmapped: tuple[UnmappedRecords, ...] = ()
    """The committed records whose schemas could not be mapped."""


class SlotRefresh(NamedTuple):
    """The `positions` of a slot, committed once more but for those of the `refused` topics."""

    positions: dict[TopicPartition, Noted]
    refused: tuple[RefusedTopic, ...]


@dataclass
class SlotLedger:
    """The offset map and positions of one slot. `positions` are the committed ones, as its producer found them. `head`
    is the last part of the slot's map that is known to be committed, which they may not name any more. `point` is the
    restore point that is applied. `map_parts` are those committed since they were last taken, and so are the
    `unmapped` records. `topic_ids` has the ids of the remote topics."""

    state: Store
    directory: str
    positions: dict[TopicPartition, Noted]
    head: FlowMapPartName | None
    point: int = 0
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    attempt: str = field(default_factory=lambda: secrets.token_hex(8))
    map_parts: list[CommittedMapPart] = field(default_factory=list)
    unmapped: tuple[UnmappedRecords, ...] = ()
    transactions: bool = True
    _uncommitted: tuple[UnmappedRecords, ...] = ()
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
        self._uncommitted = cut.unmapped
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
        self.unmapped = sum_unmapped((*self.unmapped, *self._uncommitted))
        self._uncommitted = ()


def progress_of(noted: Mapping[TopicPartition, Noted]) -> dict[TopicPartition, CommittedProgress]:
    """Return positions as a producer commits them."""
    return {tp: CommittedProgress(each.position.next, str(each.note)) for tp, each in noted.items()}


@dataclass
class OpenSlot:
    """A slot whose producer this process has. `partitions` are those whose positions it read after it had fenced every
    other producer of the slot. Its batches are no larger than `message_limit`, and packed by `compression`."""

    producer: BlockProducer
    ledger: SlotLedger
    partitions: frozenset[TopicPartition]
    message_limit: int | None = None
    compression: str | None = None
    _is_closed: bool = False

    def serves(self, task: SlotTask) -> bool:
        """Return whether the producer can do a task."""
        has_room = task.largest <= self.producer.room
        knows_positions = self.partitions.issuperset(task.partitions)
        own_limit = _ANY_LIMIT if self.message_limit is None else self.message_limit
        limit = _ANY_LIMIT if task.message_limit is None else task.message_limit
        packs_tightly = task.compression in (None, self.compression)
        return has_room and knows_positions and own_limit <= limit and packs_tightly

    def close(self) -> None:
        """Close the producer, once: what is not committed is discarded. An error of closing is logged, as the next
        producer with its id ends its transaction, and the caller's own error counts."""
        if not self._is_closed:
            self._is_closed = True
            _close(self.producer)


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
            slot.close()

    def begin(self, task: SlotTask) -> OpenSlot:
        """Start the producer of a slot, and read the positions that its last one committed."""
        source, target = self.names
        group = layout.mirror_group(source, target)
        txid = layout.mirror_transactional_id(source, target, task.slot)
        fenced = (
            f"another process applies the flow {source}->{target} now",
            "let one apply half of a flow run; this one wrote nothing more",
        )
        limit, codec = task.message_limit, task.compression
        producer = BlockProducer(self.target, txid, group, task.largest, fenced, message_limit=limit, compression=codec)
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
        return OpenSlot(producer, ledger, frozenset(task.partitions), limit, codec)

    def begin_again(self, slot: OpenSlot, task: SlotTask) -> None:
        """Give a slot a new producer, after its transaction was refused. What was committed before holds: the new one
        reads it from the target."""
        slot.close()
        anew = self.begin(task)
        anew.ledger.map_parts = slot.ledger.map_parts
        anew.ledger.unmapped = slot.ledger.unmapped
        slot.producer, slot.ledger, slot._is_closed = anew.producer, anew.ledger, False
        slot.partitions, slot.message_limit, slot.compression = anew.partitions, anew.message_limit, anew.compression

    def run(self, slot: OpenSlot, task: SlotTask, progress: ProgressSender) -> SlotResult:
        """Commit everything that is left of a task, but for the topics that are refused."""

        def apply(topics: Collection[str]) -> None:
            producer, ledger = slot.producer, slot.ledger
            ledger.point, ledger.topic_ids = self.point, task.topic_ids
            begins = {
                tp: position
                for tp, position in task.begins.items()
                if tp.topic in topics and tp not in ledger.positions
            }
            if begins:
                producer.commit_alone(ledger.write({}, begins))
                ledger.committed()
            ranges = [range_ for range_ in task.ranges if range_.target in topics]
            ends = self.store, ranges, producer, ledger, progress, self.transaction_bytes, ledger.start
            unit = UnitRun(*ends, self.schemas)
            try:
                unit.run()
            except _UNREADABLE as error:
                if unit.unread is None:
                    raise
                raise RefusedTopicError(unit.unread.target, error.message, error.hint) from error

        topics = {range_.target for range_ in task.ranges} | {tp.topic for tp in task.begins}
        refused = self.in_turns(slot, task, topics, apply)
        map_parts, slot.ledger.map_parts = slot.ledger.map_parts, []
        unmapped, slot.ledger.unmapped = slot.ledger.unmapped, ()
        return SlotResult(task.slot, map_parts, slot.ledger.positions, selected_kernel(), refused, unmapped)

    def in_turns(
        self, slot: OpenSlot, task: SlotTask, topics: Iterable[str], do: Callable[[Collection[str]], None]
    ) -> tuple[RefusedTopic, ...]:
        """Call `do` with the topics together, then with each one that goes apart. Return those that were refused: the
        others are done without them.

        A refusal takes the whole transaction with it. Where it names the topic, the others go again without that
        topic. Where it names none, each goes alone, which shows the refused ones."""
        every = sorted(topics)
        together = [topic for topic in every if topic not in task.apart]
        alone = [[topic] for topic in every if topic in task.apart]
        waiting = [together, *alone] if together else alone
        refused: list[RefusedTopic] = []
        while waiting:
            group = waiting.pop(0)
            try:
                do(group)
            except KbackupError as error:
                is_named = isinstance(error, RefusedTopicError) and error.topic in group
                if not is_named and error is not slot.producer.unnamed_refusal:
                    raise
                self.begin_again(slot, task)
                if not is_named and len(group) > 1:
                    waiting = [[topic] for topic in group] + waiting
                    continue
                culprit = error.topic if isinstance(error, RefusedTopicError) else group[0]
                refused.append(RefusedTopic(culprit, reason_of(error)))
                others = [topic for topic in group if topic != culprit]
                if others:
                    waiting.insert(0, others)
        return tuple(refused)


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
    ) -> list[SlotRefresh]:
        """Commit the positions of slots once more, so that they don't expire, and those that are `missing` in the
        target; notes without an id of their topic get it."""

        def refresh_slot(task: SlotTask) -> SlotRefresh:
            slot = self._slot(work, task)
            due = {tp: missing[tp] for tp in task.partitions if tp in missing} | slot.ledger.positions
            renewed = {
                tp: Noted(position, note._replace(topic_id=note.topic_id or task.topic_ids.get(tp.topic, "")))
                for tp, (position, note) in due.items()
            }

            def commit(topics: Collection[str]) -> None:
                slot.producer.commit_alone(progress_of({tp: n for tp, n in renewed.items() if tp.topic in topics}))

            refused = work.in_turns(slot, task, {tp.topic for tp in renewed}, commit)
            names = {each.remote for each in refused}
            slot.ledger.positions |= {tp: noted for tp, noted in renewed.items() if tp.topic not in names}
            parts = [noted.note.map_part for noted in due.values()]
            if slot.ledger.head is not None:
                parts.append(slot.ledger.head)
            slot.ledger.head = max(parts, default=None)
            return SlotRefresh(slot.ledger.positions, refused)

        return self._each(refresh_slot, tasks)

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
            if slot.serves(task):
                return slot
            self._open.pop(task.slot).close()
        slot = self._open[task.slot] = work.begin(task)
        return slot

    def close(self) -> None:
        """Abort what is not committed, and close all producers, also if one fails."""
        self._settle()
        slots, self._open = [*self._open.values()], {}
        self._under_way = [self._threads.submit(slot.close) for slot in slots]
        wait(self._under_way)
        self._settle()


def _close(producer: BlockProducer) -> None:
    """Close a producer, and log an error of closing."""
    try:
        producer.close()
    except Exception as error:
        log.warning("closing a producer of the mirror: %s", error, exc_info=not isinstance(error, KbackupError))
