"""The apply half of a flow: one round a restore point."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.flow_map.reader import FlowMap
from kbackup.archive.flow_map.slots import DOCUMENT, SLOTS, FlowState, read_flow, slot_of
from kbackup.archive.flow_map.tables import SCHEMA
from kbackup.archive.models import Manifest, dump, now
from kbackup.archive.reader import Archive
from kbackup.errors import AlreadyExistsError, MismatchError
from kbackup.jobs.listen import Listener, Phases
from kbackup.jobs.mirror.apply.applied import Applied, PartitionApplied
from kbackup.jobs.mirror.apply.lost import find_lost
from kbackup.jobs.mirror.apply.missing import Recovery
from kbackup.jobs.mirror.apply.pending import Pending, find_pending
from kbackup.jobs.mirror.apply.positions import Noted, heads_of, read_positions
from kbackup.jobs.mirror.apply.recreated import find_recreated, told_positions
from kbackup.jobs.mirror.apply.room import make_room
from kbackup.jobs.mirror.apply.slots import OpenSlots, SlotResult, SlotTask, SlotWork
from kbackup.jobs.mirror.flow import AppliedPosition, Flow, RemoteTopic
from kbackup.jobs.mirror.status.document import FlowStatus, read_flow_status
from kbackup.jobs.tasks import run_tasks
from kbackup.kafka import kernel
from kbackup.kafka.admin import Cluster
from kbackup.kafka.client import Properties
from kbackup.store.base import Store
from kbackup.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Spark = Callable[[], "SparkSession"]

SMALL_BYTES, SMALL_SEGMENTS = 16 << 20, 5_000
"""A round of no more is applied in this process: Spark would take longer to begin."""

TRANSACTION_BYTES = 256 << 20
REFRESH = 86_400.0  # s; far less than any sensible offsets.retention.minutes

_THREADS = 8


@dataclass
class _Session:
    """What an `Applier` knows of the target and of the flow since it looked last."""

    cluster: Cluster
    flow: FlowState
    noted: dict[TopicPartition, Noted]
    map: FlowMap
    refreshed: float
    applied: dict[str, int] = field(default_factory=dict)
    """By topic of the source, the restore point up to which everything is applied."""
    recovered: set[str] = field(default_factory=set)
    """Remote topics whose forgotten positions were read back."""
    uncommitted: dict[TopicPartition, Noted] = field(default_factory=dict)
    """Positions that were read back, and are not in the target yet."""
    status: FlowStatus | None = None
    """What the flow told last, until a round is done: losses of a round that failed are told by the next one."""

    @property
    def positions(self) -> dict[TopicPartition, AppliedPosition]:
        return {tp: noted.position for tp, noted in self.noted.items()}


@dataclass
class Applier:
    """Applies round after round. It keeps producers, applied positions and the offset map between rounds.

    `state` is where the flow keeps its state, as a rule the archive's store. `spark` is called for large rounds only.
    A context manager: leaving it closes the producers.
    """

    flow: Flow
    target: Properties = field(repr=False)
    state: Store
    spark: Spark
    listener: Listener
    transaction_bytes: int = TRANSACTION_BYTES
    clock: Callable[[], float] = time.monotonic
    _session: _Session | None = None
    _slots: OpenSlots = field(default_factory=OpenSlots)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def map(self) -> FlowMap:
        """The offset map of the flow, with the runs of every round so far. After the first `apply`."""
        assert self._session is not None  # noqa: S101 (as documented)
        return self._session.map

    def apply(self, archive: Archive, point: Manifest, topics: Sequence[RemoteTopic]) -> Applied:
        """Commit every record of `topics` up to `point` that the target does not have. The remote topics exist.

        After an error that may be over in a while (`jobs.follow.RETRIED`), call it again. `FencedError`: another
        process applies this flow now."""
        try:
            session = self._session or self._open(archive)
            self._session = session
            return self._apply(session, archive, point, topics)
        except BaseException:
            self.close()  # what was committed, and which positions hold, is asked for again
            raise

    def close(self) -> None:
        """Give up what is not committed."""
        self._session = None
        self._slots.close()

    def _apply(
        self, session: _Session, archive: Archive, point: Manifest, topics: Sequence[RemoteTopic]
    ) -> Applied:
        began = self.clock()
        self._recover(session, topics)
        before = session.positions
        stop = self.flow.on_recreate == "stop"
        pending = find_pending(archive, point, topics, before, session.applied, stop)
        refused = make_room(self.flow, session.cluster, topics, pending)
        if refused:
            topics = [topic for topic in topics if topic.remote not in refused]
            pending = find_pending(archive, point, topics, before, session.applied, stop)
        work = SlotWork(
            self.target, archive.store, self.state, self._names, point.number, self.transaction_bytes
        )
        added: list[pa.Table] = []
        if self.clock() - session.refreshed >= REFRESH:
            added += self._refresh(session, work, topics)
        if pending.parts:
            with Phases(self.listener).step("apply"):
                added += self._produce(session, work, self._tasks(session, pending, topics), pending)
        runs = pa.concat_tables([SCHEMA.empty_table(), *added])
        session.applied = {topic.source: point.number for topic in topics}
        told = told_positions(session.status, archive.info.id, before)
        after, session.status = session.positions, None
        partitions = _counts(pending, runs)
        return Applied(
            point=point.number,
            records=sum(p.records for p in partitions.values()),
            bytes=sum(p.bytes for p in partitions.values()),
            positions=after,
            partitions=partitions,
            runs=runs,
            refused=refused,
            recreated=find_recreated(archive, point, topics, told, after),
            held_back=pending.held_back,
            too_late=find_lost(archive, point, topics, told, after),
            seconds=self.clock() - began,
        )

    @property
    def _names(self) -> tuple[str, str]:
        return self.flow.source, self.flow.target

    def _open(self, archive: Archive) -> _Session:
        """Look at the target and at the flow's state."""
        cluster = Cluster(self.target, "target")
        cluster_id, _ = cluster.connect()
        flow = read_flow(self.state, *self._names) or self._begin(archive, cluster_id)
        self._check(flow, archive, cluster_id)
        noted = read_positions(cluster, *self._names)
        flow_map = FlowMap(self.state, *self._names, flow.slots, heads_of(noted, flow.slots))
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(flow_map.slot, range(flow.slots)))
        status = read_flow_status(self.state, *self._names)
        return _Session(cluster, flow, noted, flow_map, self.clock() - REFRESH, status=status)

    def _recover(self, session: _Session, topics: Sequence[RemoteTopic]) -> None:
        """Read positions back that the target has forgotten, of topics that come for the first time."""
        remotes = {topic.remote for topic in topics} - session.recovered
        if not remotes:
            return
        slots = [session.map.slot(number) for number in range(session.flow.slots)]
        found = Recovery(session.cluster, self.target, self._names, remotes).positions(slots, session.noted)
        session.recovered |= remotes
        if found:
            session.noted |= found
            session.uncommitted |= found
            session.refreshed = self.clock() - REFRESH

    def _begin(self, archive: Archive, cluster_id: str) -> FlowState:
        flow = FlowState(
            source=self.flow.source,
            target=self.flow.target,
            archive_id=archive.info.id,
            target_cluster_id=cluster_id,
            slots=SLOTS,
            created_at=now(),
        )
        try:
            self.state.put_new(layout.mirror_key(*self._names, DOCUMENT), dump(flow))
        except AlreadyExistsError:
            return read_flow(self.state, *self._names) or flow
        return flow

    def _check(self, flow: FlowState, archive: Archive, cluster_id: str) -> None:
        name = f"flow {self.flow.name}"
        if flow.archive_id != archive.info.id:
            raise MismatchError(
                f"{name} was begun from archive {flow.archive_id}; {archive.store.url} is archive {archive.info.id}",
                "name the archive that it was begun from, or give the source another alias",
            )
        if flow.target_cluster_id != cluster_id:
            raise MismatchError(
                f"{name} was begun onto cluster {flow.target_cluster_id}; the target is cluster {cluster_id}",
                "give the new target another alias",
            )

    def _tasks(self, session: _Session, pending: Pending, topics: Sequence[RemoteTopic]) -> list[SlotTask]:
        """The work by slot, the largest first."""
        parts: dict[int, list[TopicPartition]] = {}
        for remote in pending.parts:
            parts.setdefault(slot_of(remote, session.flow.slots), []).append(remote)
        every = self._partitions(session, topics, pending.parts)
        tasks = [
            SlotTask(
                slot,
                tuple(part for tp in remotes for part in pending.parts[tp]),
                tuple(every[slot]),
                tuple(tp for tp in every[slot] if tp in session.noted),
                session.map.slot(slot).head,
            )
            for slot, remotes in parts.items()
        ]
        return sorted(tasks, key=lambda t: -sum(s.bytes for part in t.parts for s in part.segments))

    def _partitions(
        self, session: _Session, topics: Sequence[RemoteTopic], more: Collection[TopicPartition] = ()
    ) -> dict[int, list[TopicPartition]]:
        """By slot, all remote partitions of the flow that are known, in order. `more` are those of earlier
        incarnations, which may have had more of them."""
        known = {tp for topic in topics for tp in topic.remote_partitions} | {*more}
        found: dict[int, list[TopicPartition]] = {}
        for tp in sorted(known | session.noted.keys()):
            found.setdefault(slot_of(tp, session.flow.slots), []).append(tp)
        return found

    def _refresh(self, session: _Session, work: SlotWork, topics: Sequence[RemoteTopic]) -> list[pa.Table]:
        """Commit every position again: brokers forget those that were not committed for long. Returns the runs that
        came to the offset map."""
        known = {slot_of(tp, session.flow.slots) for tp in session.noted}
        committed = session.noted.keys() - session.uncommitted.keys()
        tasks = [
            SlotTask(
                slot,
                (),
                tuple(partitions),
                tuple(tp for tp in partitions if tp in committed),
                session.map.slot(slot).head,
            )
            for slot, partitions in self._partitions(session, topics).items()
            if slot in known
        ]
        noted = self._slots.commit_again(work, tasks, session.uncommitted)
        session.noted |= noted
        session.uncommitted = {}
        session.refreshed = self.clock()
        return _catch_up(session, noted)

    def _produce(
        self, session: _Session, work: SlotWork, tasks: Sequence[SlotTask], pending: Pending
    ) -> list[pa.Table]:
        """Do the tasks, and take over what they committed. Returns the runs that came to the offset map."""
        segments = list(pending.segments)
        size, records = sum(s.bytes for s in segments), sum(s.count for s in segments)
        if size <= SMALL_BYTES and len(segments) <= SMALL_SEGMENTS:
            results = self._slots.run(work, tasks)
            self.listener.progress(records, size, records)
        else:
            self._slots.close()  # the tasks fence their producers
            show = self.listener.progress
            results = run_tasks(self.spark(), tasks, work, lambda done, bytes_: show(done, bytes_, records))
            kernel.say(r.kernel for r in results)
        return [table for result in results for table in self._take(session, result)]

    def _take(self, session: _Session, result: SlotResult) -> list[pa.Table]:
        """Add what a slot has committed to the positions and the map."""
        session.noted |= result.positions
        slot = session.map.slot(result.slot)
        added: list[pa.Table] = []
        for part in result.parts:
            if not slot.add(part.name, part.previous, part.runs):
                added.append(slot.load(part.name))  # an attempt before this one committed the parts between
            else:
                added.append(part.runs)
        added += _catch_up(session, result.positions)
        if slot.fold_due:
            slot.fold()
        return added


def _catch_up(session: _Session, positions: Mapping[TopicPartition, Noted]) -> list[pa.Table]:
    """Add the parts of the map that committed positions name, and that nobody here knew of: an attempt before has
    committed them, or another process before it was fenced. Returns their runs."""
    added: list[pa.Table] = []
    for number, part in heads_of(positions, session.flow.slots).items():
        slot = session.map.slot(number)
        if slot.head is None or part > slot.head:
            added.append(slot.load(part))
    return added


def _counts(pending: Pending, runs: pa.Table) -> Mapping[TopicPartition, PartitionApplied]:
    """What the round brought to each partition; bytes and timestamps as the segments' descriptors have them."""
    records: dict[TopicPartition, int] = {}
    columns = (runs.column(name).to_pylist() for name in ("topic", "partition", "count"))
    for topic, partition, count in zip(*columns, strict=True):
        tp = TopicPartition(topic, partition)
        records[tp] = records.get(tp, 0) + count
    found: dict[TopicPartition, PartitionApplied] = {}
    for tp, count in records.items():
        segments = [s for part in pending.parts.get(tp, ()) for s in part.segments]
        oldest = [s.min_timestamp for s in segments if s.min_timestamp is not None]
        newest = [s.max_timestamp for s in segments if s.max_timestamp is not None]
        found[tp] = PartitionApplied(
            count, sum(s.bytes for s in segments), min(oldest, default=None), max(newest, default=None)
        )
    return found


def apply_round(
    flow: Flow,
    archive: Archive,
    point: Manifest,
    topics: Sequence[RemoteTopic],
    target: Properties,
    state: Store,
    spark: Spark,
    listener: Listener,
) -> Applied:
    """One round of an `Applier` of its own: for `--once`."""
    with Applier(flow, target, state, spark, listener) as applier:
        return applier.apply(archive, point, topics)
