"""The slots of a flow: each with its names, offset map and notes, so that every record is applied once.

Spark tasks do the work of slots in a large round, this process in a small one. Both use the slot's own transactional
id. So whoever begins a slot fences whoever had it before.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.restores.map_parts import Cut
from kbackup.archive.restores.plan import UnitRange
from kbackup.archive.restores.unmapped import UnmappedRecords, sum_unmapped
from kbackup.archive.segments.table import Segment
from kbackup.errors import ClusterError, CorruptError, FencedError, KbackupError, NotFoundError, RefusedError
from kbackup.jobs.replay import ReachedOffset, UnitRun
from kbackup.jobs.schemas.rewrite import SchemaRewrite
from kbackup.kafka.client import Properties
from kbackup.kafka.produce import TUNING, BlockProducer, RefusedTopicError
from kbackup.mirror.apply.held import RefusedTopic, reason_of
from kbackup.mirror.apply.pending import Noted, PositionNote
from kbackup.mirror.flow import AppliedPosition
from kbackup.mirror.flow_map import FlowMapPartName, MappedPartition, flow_runs_table, folder, write_flow_map_part
from kbackup.native.contract import CommittedProgress, Runs
from kbackup.native.kernel import Kernel, selected_kernel
from kbackup.spark.tasks import ProgressSender
from kbackup.store.base import Store
from kbackup.types import Int64Array, TopicPartition

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
    """Work for one slot."""

    slot: int
    ranges: tuple[UnitRange, ...]
    """The records to commit, in order of partition and incarnation."""
    partitions: tuple[TopicPartition, ...]
    """All remote partitions of the slot, those without work too."""
    expected: tuple[TopicPartition, ...]
    """The partitions whose applied position must be in the target."""
    head: FlowMapPartName | None
    """The last part of the slot's offset map that is known to be committed."""
    begins: Mapping[TopicPartition, AppliedPosition]
    """Positions at which partitions begin that have none."""
    topic_ids: Mapping[str, str]
    """The id of each remote topic. A position that was committed for a topic of another id does not count."""
    apart: frozenset[str] = frozenset()
    """Remote topics that were held back before: each goes in a transaction of its own, after the other topics."""
    message_limit: int | None = None
    """The least max.message.bytes of the remote topics; None where none is known."""

    @property
    def _segments(self) -> Iterator[Segment]:
        for range_ in self.ranges:
            yield from range_.segments

    @property
    def bytes(self) -> int:
        """The size of all segments of the ranges."""
        return sum(segment.bytes for segment in self._segments)

    @property
    def largest(self) -> int:
        """The size of the largest record, in bytes."""
        return max((segment.largest for segment in self._segments), default=0)

    @property
    def compression(self) -> str | None:
        """The codec to pack records by: the tightest one if a record has no room uncompressed; None: any."""
        # A broker holds the size of the packed batch against the limit. So a record that is larger than the limit may
        # still have room, packed by the tightest codec.
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
    """The `positions` of a slot, committed once more. Positions of the `refused` topics are not among them."""

    positions: dict[TopicPartition, Noted]
    refused: tuple[RefusedTopic, ...]


@dataclass
class SlotLedger:
    """The offset map and the applied positions of one slot.

    A map part is written before its transaction is committed, and the committed positions name the part. So a crash
    between the two leaves a part that no position names, and readers pass over it; the other order could leave records
    that no map has."""

    state: Store
    directory: str
    positions: dict[TopicPartition, Noted]
    """The committed positions, as the slot's producer found them."""
    head: FlowMapPartName | None
    """The last part of the slot's map that is known to be committed. The positions may not name it any more."""
    point: int = 0
    """The restore point that is applied."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    # Two processes may write parts of one number, the fenced one and its follower. The attempt keeps their names apart.
    attempt: str = field(default_factory=lambda: secrets.token_hex(8))
    map_parts: list[CommittedMapPart] = field(default_factory=list)
    """The parts that were committed since they were last taken."""
    unmapped: tuple[UnmappedRecords, ...] = ()
    """The unmapped records that were committed since they were last taken."""
    transactions: bool = True
    _uncommitted: tuple[UnmappedRecords, ...] = ()
    _next: tuple[CommittedMapPart, dict[TopicPartition, Noted]] | None = None

    def start(self, range_: UnitRange) -> int | None:
        """Return the source offset from which to apply a range; None if a later incarnation has begun."""
        noted = self.positions.get(range_.tp)
        incarnation = range_.segments[0].incarnation
        if noted is None or noted.position.incarnation < incarnation:
            return 0
        # All records of an incarnation come before those of the next one, so what is left of an earlier one is over.
        return noted.position.next if noted.position.incarnation == incarnation else None

    def publish(
        self, runs: Mapping[TopicPartition, Runs], reached: Mapping[TopicPartition, ReachedOffset], cut: Cut
    ) -> Mapping[TopicPartition, CommittedProgress]:
        """Write a map part, whose name is committed with the records."""
        self._uncommitted = cut.unmapped
        positions: dict[TopicPartition, AppliedPosition] = {}
        for tp, each in reached.items():
            incarnation = each.range.segments[0].incarnation
            positions[tp] = AppliedPosition(incarnation, each.next)
        return self.write(runs, positions)

    def write(
        self, runs: Mapping[TopicPartition, Runs], positions: Mapping[TopicPartition, AppliedPosition]
    ) -> Mapping[TopicPartition, CommittedProgress]:
        """Write a map part, without runs for positions that no records led to, and return the progress to commit."""
        number = self.head.number + 1 if self.head else 1
        name = FlowMapPartName(number, self.attempt)
        mapped: dict[MappedPartition, tuple[Int64Array, Int64Array, Int64Array]] = {}
        for tp, of_partition in runs.items():
            key = MappedPartition(tp, positions[tp].incarnation)
            mapped[key] = of_partition.source, of_partition.target, of_partition.count
        table = flow_runs_table(mapped)
        write_flow_map_part(self.state, self.directory, name, table, self.head)
        noted: dict[TopicPartition, Noted] = {}
        for tp, position in positions.items():
            topic_id = self.topic_ids.get(tp.topic, "")
            note = PositionNote(position.incarnation, name, self.point, topic_id)
            noted[tp] = Noted(position, note)
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
    progress: dict[TopicPartition, CommittedProgress] = {}
    for tp, each in noted.items():
        progress[tp] = CommittedProgress(each.position.next, str(each.note))
    return progress


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
        # The queue's size is fixed when a producer starts: one that began with small records, or with none to commit
        # positions alone, has no room for a large record.
        has_room = task.largest <= self.producer.room
        # The position of a partition that came later may have been committed by another process before this one.
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


@dataclass(frozen=True, kw_only=True)
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
        producer = BlockProducer(
            self.target,
            layout.mirror_transactional_id(source, target, task.slot),
            group,
            task.largest,
            fenced=(
                f"another process applies the flow {source}->{target} now",
                "let one apply half of a flow run; this one wrote nothing more",
            ),
            message_limit=task.message_limit,
            compression=task.compression,
        )
        try:
            # The positions are read after the fencing: before it, another producer of this slot could still commit.
            committed = producer.start(task.partitions)
            every = {tp: Noted.of(tp, progress) for tp, progress in committed.items()}
        except BaseException:
            _close(producer)
            raise
        noted: dict[TopicPartition, Noted] = {}
        for tp, each in every.items():
            # A position of a topic that was deleted since does not count: the new topic begins with the first record.
            if each.note.is_of(task.topic_ids.get(tp.topic, "")):
                noted[tp] = each
        # A partition without a position begins at its first record. If the target has only forgotten the position, that
        # would apply every record a second time.
        absent = [tp for tp in task.expected if tp not in noted]
        if absent:
            _close(producer)
            raise ClusterError(
                f"the applied position of {absent[0]} is missing in the target's group {group}",
                "wait for the next round: it reads the position back from the offset map",
            )
        # The map goes on after its newest part, whatever became of the topic that this part is about.
        map_parts = [each.note.map_part for each in every.values()]
        if task.head is not None:
            map_parts.append(task.head)
        ledger = SlotLedger(self.state, folder(source, target, task.slot), noted, max(map_parts, default=None))
        return OpenSlot(producer, ledger, frozenset(task.partitions), task.message_limit, task.compression)

    def begin_again(self, slot: OpenSlot, task: SlotTask) -> None:
        """Give a slot a new producer, after its transaction was refused. What was committed before holds: the new one
        reads it from the target."""
        slot.close()
        anew = self.begin(task)
        # The transactions before the refused one hold, and the caller has not taken over their map parts yet.
        anew.ledger.map_parts = slot.ledger.map_parts
        anew.ledger.unmapped = slot.ledger.unmapped
        slot.producer, slot.ledger, slot._is_closed = anew.producer, anew.ledger, False
        slot.partitions, slot.message_limit, slot.compression = anew.partitions, anew.message_limit, anew.compression

    def run(self, slot: OpenSlot, task: SlotTask, progress: ProgressSender) -> SlotResult:
        """Commit everything that is left of a task, but for the topics that are refused."""
        topics = {range_.target for range_ in task.ranges}
        topics.update(tp.topic for tp in task.begins)
        turns = TopicTurns(topics, task.apart)
        while together := turns.next_topics():
            try:
                # First where partitions begin: without a position, their records would be applied from offset 0 on.
                self._commit_begins(slot, task, together)
                self._commit_records(slot, task, together, progress)
            except KbackupError as error:
                if not turns.is_refusal(error, slot.producer):
                    raise
                self.begin_again(slot, task)
                turns.add_refusal(error)
        map_parts, slot.ledger.map_parts = slot.ledger.map_parts, []
        unmapped, slot.ledger.unmapped = slot.ledger.unmapped, ()
        positions = slot.ledger.positions
        return SlotResult(task.slot, map_parts, positions, selected_kernel(), tuple(turns.refused), unmapped)

    def _commit_begins(self, slot: OpenSlot, task: SlotTask, topics: Collection[str]) -> None:
        """Commit the positions at which partitions of these topics begin that have none."""
        ledger = slot.ledger
        ledger.point, ledger.topic_ids = self.point, task.topic_ids
        begins: dict[TopicPartition, AppliedPosition] = {}
        for tp, position in task.begins.items():
            if tp.topic in topics and tp not in ledger.positions:
                begins[tp] = position
        if begins:
            slot.producer.commit_alone(ledger.write({}, begins))
            ledger.committed()

    def _commit_records(
        self, slot: OpenSlot, task: SlotTask, topics: Collection[str], progress: ProgressSender
    ) -> None:
        """Commit the records of these topics. `RefusedTopicError` names the topic whose records can't be read."""
        ranges = [range_ for range_ in task.ranges if range_.target in topics]
        unit = UnitRun(
            self.store,
            ranges,
            slot.producer,
            slot.ledger,
            progress,
            self.transaction_bytes,
            slot.ledger.start,
            self.schemas,
        )
        try:
            unit.run()
        except _UNREADABLE as error:
            # Unless a range was being read, no topic is known to be the one at fault, and none is held back.
            if unit.unread is None:
                raise
            raise RefusedTopicError(unit.unread.target, error.message, error.hint) from error

    def refresh(self, slot: OpenSlot, task: SlotTask, missing: Mapping[TopicPartition, Noted]) -> SlotRefresh:
        """Commit the positions of a slot once more, also the positions that are `missing` in the target."""
        ledger = slot.ledger
        # What the producer found in the target wins: it may be newer than what was read back from the offset map.
        due: dict[TopicPartition, Noted] = {}
        for tp in task.partitions:
            if tp in missing:
                due[tp] = missing[tp]
        due |= ledger.positions
        renewed: dict[TopicPartition, Noted] = {}
        for tp, (position, note) in due.items():
            # A note that an older kbackup wrote without the id of its topic gets the id now.
            topic_id = note.topic_id or task.topic_ids.get(tp.topic, "")
            renewed[tp] = Noted(position, note._replace(topic_id=topic_id))
        turns = TopicTurns({tp.topic for tp in renewed}, task.apart)
        while together := turns.next_topics():
            own = {tp: noted for tp, noted in renewed.items() if tp.topic in together}
            try:
                slot.producer.commit_alone(progress_of(own))
            except KbackupError as error:
                if not turns.is_refusal(error, slot.producer):
                    raise
                self.begin_again(slot, task)
                turns.add_refusal(error)
        refused = {each.remote for each in turns.refused}
        ledger = slot.ledger  # each refusal has made another one
        ledger.positions |= {tp: noted for tp, noted in renewed.items() if tp.topic not in refused}
        # A position that was read back names a part that the positions in the target may not name any more.
        map_parts = [noted.note.map_part for noted in due.values()]
        if ledger.head is not None:
            map_parts.append(ledger.head)
        ledger.head = max(map_parts, default=None)
        return SlotRefresh(ledger.positions, tuple(turns.refused))


class TopicTurns:
    """The turns in which the topics of a slot are committed: first all together, then each one that goes `apart`.

    A refusal takes the whole transaction with it. If it names the topic, the others go again without that topic. If it
    names none, each goes alone, which shows the refused ones. `refused` are those so far: the others are done without
    them."""

    def __init__(self, topics: Iterable[str], apart: Collection[str]) -> None:
        self.refused: list[RefusedTopic] = []
        self._turn: list[str] = []
        every = sorted(topics)
        together = [topic for topic in every if topic not in apart]
        self._waiting = [[topic] for topic in every if topic in apart]
        if together:
            self._waiting.insert(0, together)

    def next_topics(self) -> list[str]:
        """Return the topics of the next turn; none if all had theirs."""
        self._turn = self._waiting.pop(0) if self._waiting else []
        return self._turn

    def is_refusal(self, error: KbackupError, producer: BlockProducer) -> bool:
        """Return whether the target refused a topic of this turn. `producer` remembers a refusal that names none."""
        return self._names_topic(error) or error is producer.unnamed_refusal

    def add_refusal(self, error: KbackupError) -> None:
        """Plan how the topics of this turn go again after a refusal."""
        is_named = self._names_topic(error)
        if not is_named and len(self._turn) > 1:
            # One by one: the refused topics show, and cost the others nothing but smaller transactions.
            self._waiting = [[topic] for topic in self._turn] + self._waiting
            return
        refused = error.topic if isinstance(error, RefusedTopicError) else self._turn[0]
        self.refused.append(RefusedTopic(refused, reason_of(error)))
        others = [topic for topic in self._turn if topic != refused]
        if others:
            self._waiting.insert(0, others)

    def _names_topic(self, error: KbackupError) -> bool:
        return isinstance(error, RefusedTopicError) and error.topic in self._turn


@dataclass
class OpenSlots:
    """The slots whose producers this process keeps open between rounds."""

    _open: dict[int, OpenSlot] = field(default_factory=dict)
    _threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(_THREADS, "kbackup-slot"))
    _under_way: list[Future[Any]] = field(default_factory=list)

    def run(self, work: SlotWork, tasks: Sequence[SlotTask]) -> list[SlotResult]:
        """Commit the work of a small round. After an error, close them all."""
        running = [self._threads.submit(self._run_slot, work, task) for task in tasks]
        return self._results(running)

    def _run_slot(self, work: SlotWork, task: SlotTask) -> SlotResult:
        return work.run(self._slot(work, task), task, ProgressSender(None, 0))

    def refresh(
        self, work: SlotWork, tasks: Sequence[SlotTask], missing: Mapping[TopicPartition, Noted]
    ) -> list[SlotRefresh]:
        """Commit the positions of slots once more, so that they don't expire, and those that are `missing` in the
        target; notes without an id of their topic get it."""
        running = [self._threads.submit(self._refresh_slot, work, task, missing) for task in tasks]
        return self._results(running)

    def _refresh_slot(self, work: SlotWork, task: SlotTask, missing: Mapping[TopicPartition, Noted]) -> SlotRefresh:
        return work.refresh(self._slot(work, task), task, missing)

    def _results(self, running: list[Future[R]]) -> list[R]:
        """Return the result of each call. Raise the first error, after every call has ended."""
        self._under_way = [*running]
        try:
            # After an error the calls that have not begun are cancelled: their work would only delay the next attempt.
            done, _ = wait(running, return_when=FIRST_EXCEPTION)
            raise_first(done)
            return [each.result() for each in running]
        finally:
            self._settle()

    def _settle(self) -> None:
        """Wait until no thread has a producer in use: to close one meanwhile would crash the process."""
        for each in self._under_way:
            each.cancel()  # only calls that have not begun
        wait(self._under_way)
        self._under_way = []

    def _slot(self, work: SlotWork, task: SlotTask) -> OpenSlot:
        slot = self._open.get(task.slot)
        if slot is not None:
            if slot.serves(task):
                return slot
            # Closed first: the next producer has the same id, and would fence this one.
            self._open.pop(task.slot).close()
        slot = self._open[task.slot] = work.begin(task)
        return slot

    def close(self) -> None:
        """Abort what is not committed, and close all producers, also if one fails."""
        self._settle()
        slots = [*self._open.values()]
        self._open = {}
        self._under_way = [self._threads.submit(slot.close) for slot in slots]
        wait(self._under_way)
        self._settle()


def raise_first(done: Iterable[Future[R]]) -> None:
    """Raise an error of calls that have ended, if there is one. That another process has fenced this one counts most:
    it explains the others."""
    first: BaseException | None = None
    for each in done:
        error = each.exception()
        if isinstance(error, FencedError):
            raise error
        if first is None:
            first = error
    if first is not None:
        raise first


def _close(producer: BlockProducer) -> None:
    """Close a producer, and log an error of closing."""
    try:
        producer.close()
    except Exception as error:
        log.warning("closing a producer of the mirror: %s", error, exc_info=not isinstance(error, KbackupError))
