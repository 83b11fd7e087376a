"""Apply archived records to a target, exactly once: `Applier`, round after round, one round per restore point."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.models import Manifest, dump
from kbackup.archive.reader import Archive
from kbackup.archive.restores.offset_map import DOCUMENT, MAP_SCHEMA, SLOTS, FlowMap, FlowState, read_flow, slot_of
from kbackup.archive.restores.plan import UnitRange
from kbackup.archive.restores.unmapped import UnmappedRecords, sum_unmapped
from kbackup.errors import AlreadyExistsError
from kbackup.jobs.mirror.apply.held import HeldTopics, RoundRefusals, reason_of
from kbackup.jobs.mirror.apply.pending import (
    Applied,
    DeletedRemote,
    Noted,
    PartitionApplied,
    Pending,
    Recovery,
    check_origin,
    find_lost,
    find_pending,
    find_recreated,
    heads_of,
    read_positions,
    reported_positions,
)
from kbackup.jobs.mirror.apply.slots import OpenSlots, SlotResult, SlotTask, SlotWork
from kbackup.jobs.mirror.flow import AppliedPosition, Flow, FlowStatus, RemoteTopic, read_flow_status
from kbackup.jobs.mirror.settings import TopicsReport, sync_topics
from kbackup.jobs.schemas.rewrite import SchemaRewrite
from kbackup.kafka import kernel
from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.client import Properties
from kbackup.metrics.registry import Phases, ProgressListener
from kbackup.spark.tasks import run_tasks
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from kbackup.util.times import now

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Spark = Callable[[], "SparkSession"]

SMALL_BYTES, SMALL_SEGMENTS = 16 << 20, 5_000
"""A round of no more is applied in this process: Spark would take longer to begin."""

TRANSACTION_BYTES = 256 << 20
REFRESH = 86_400.0  # s; far less than any sensible offsets.retention.minutes
_THREADS = 8


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
    listener: ProgressListener
    transaction_bytes: int = TRANSACTION_BYTES
    held: HeldTopics = field(default_factory=HeldTopics)
    _session: ApplySession | None = None
    _slots: OpenSlots = field(default_factory=OpenSlots)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def map(self) -> FlowMap:
        """The offset map of the flow, with the runs of every round so far. After the first `apply`."""
        assert self._session is not None  # noqa: S101 (as documented)
        return self._session.map

    def apply(
        self,
        archive: Archive,
        point: Manifest,
        topics: Sequence[RemoteTopic],
        made: TopicsReport | None = None,
        schemas: SchemaRewrite | None = None,
        changed: Collection[str] = (),
        withheld: Mapping[str, str] = MappingProxyType({}),
    ) -> Applied:
        """Commit every record of `topics` up to `point` that the target does not have, with the ids that `schemas`
        gives. The remote topics exist. `made` is what the round did to create them; None: it did not look at them, and
        only those with new records are looked at. `changed` are remote topics of which the round changed something:
        held back ones are tried again at once. `withheld` says by remote topic why its records are not to be applied
        in this round.

        A topic that the target refuses, or that can't be read, is held back (`Applied.refused`), and tried again after
        a pause; the others go on.

        After an error that may be over in a while (`jobs.common.RETRIED`), call it again. `FencedError`: another
        process applies this flow now."""
        try:
            if self._session is None:
                self._session = open_session(self.flow, self.target, self.state, archive)
                self._suspect(self._session)
            self.held.try_again(changed)
            return self._apply(self._session, archive, point, topics, made, schemas, withheld)
        except BaseException:
            self.close()  # what was committed, and which positions hold, is asked for again
            raise

    def _suspect(self, session: ApplySession) -> None:
        """Have the topics go apart that were held back in the flow's last round: probably they are still refused."""
        known = session.status.topics if session.status is not None else ()
        for topic in known:
            if topic.held_back:
                self.held.suspect(topic.remote, topic.held_back)

    def close(self) -> None:
        """Close the producers; records that are not committed are discarded."""
        self._session = None
        self._slots.close()

    def _apply(
        self,
        session: ApplySession,
        archive: Archive,
        point: Manifest,
        every_topic: Sequence[RemoteTopic],
        made: TopicsReport | None,
        schemas: SchemaRewrite | None,
        withheld: Mapping[str, str],
    ) -> Applied:
        began = time.monotonic()
        flow = self.flow
        names = (flow.source, flow.target)
        work = SlotWork(self.target, archive.store, self.state, names, point.number, self.transaction_bytes, schemas)
        refusals = RoundRefusals(self.held, withheld)

        def find(among: Sequence[RemoteTopic]) -> Pending:
            stop = flow.on_recreate == "stop"
            pending = find_pending(archive, point, among, session.positions, session.applied, stop)
            return pending.without(refusals.left_out)

        session.recover(self.target, every_topic)
        pending = find(every_topic)
        new = {tp.topic for tp in pending.ranges} | ({t.remote for t in every_topic} - session.topic_ids.keys())
        asked = [t for t in every_topic if made is not None or t.remote in new or t.remote in refusals.on_trial]
        deleted, missing = session.check_topics(flow, asked, made.created if made is not None else ())
        refusals.add_missing(missing)
        if deleted:
            self._slots.close()  # their producers know the positions that hold no more
        topics = [topic for topic in every_topic if topic.remote not in missing]
        ends = positions_at_end(session, point, topics, {t.remote for t in deleted}) if flow.starts_at_end else {}
        ends = {tp: position for tp, position in ends.items() if tp.topic not in refusals.left_out}
        if ends:
            tasks = session.tasks(topics, begins=ends, apart=refusals.on_trial)
            for result in self._slots.run(work, tasks):
                session.add(result)
                refusals.add_refused(result.refused)
        before = session.positions
        if deleted or missing or ends:
            pending = find(topics)
        no_room = make_room(flow, session.cluster, topics, pending)
        refusals.add_missing(no_room)
        topics = [topic for topic in topics if topic.remote not in no_room]
        added: list[pa.Table] = []
        if session.refresh_is_due(refusals.left_out):
            added += self._refresh(session, work, topics, refusals)
        pending = pending.without(refusals.left_out)
        if pending.ranges:
            # a limit that was lowered since is found out by a refusal, and the trial asks again
            session.read_limits({tp.topic for tp in pending.ranges}, again=refusals.on_trial)
            with Phases(self.listener).step("apply"):
                tasks = session.tasks(topics, ranges=pending.ranges, apart=refusals.on_trial)
                added += self._produce(session, work, tasks, pending, refusals)
        refused = refusals.end_round({topic.remote for topic in every_topic})
        runs = pa.concat_tables([MAP_SCHEMA.empty_table(), *added])
        held_in_point = {t.name for t in point.topics if any(p.held for p in t.partitions)}
        waiting = held_in_point | {topic.source for topic in every_topic if topic.remote in refused}
        up_to = session.applied
        session.applied = {
            topic.source: up_to.get(topic.source, 0) if topic.source in waiting else point.number
            for topic in every_topic
        }
        reported = reported_positions(session.status, archive.info.id, before)
        after, session.status = session.positions, None
        partitions = count_applied(pending, runs)
        return Applied(
            point=point.number,
            records=sum(p.records for p in partitions.values()),
            bytes=sum(p.bytes for p in partitions.values()),
            positions=after,
            partitions=partitions,
            runs=runs,
            refused=refused,
            deleted=tuple(DeletedRemote(topic.source, topic.remote) for topic in deleted),
            recreated=find_recreated(archive, point, topics, reported, after),
            held_back=pending.held_back,
            too_late=find_lost(archive, point, topics, reported, after),
            unmapped=session.take_unmapped(),
            seconds=time.monotonic() - began,
        )

    def _refresh(
        self, session: ApplySession, work: SlotWork, topics: Sequence[RemoteTopic], refusals: RoundRefusals
    ) -> list[pa.Table]:
        """Commit every position once more, before brokers let it expire. Returns the runs that
        came to the offset map."""
        committed: dict[TopicPartition, Noted] = {}
        refused: set[str] = set()
        tasks = session.tasks(topics, apart=refusals.on_trial)
        for result in self._slots.refresh(work, tasks, session.uncommitted):
            committed |= result.positions
            refusals.add_refused(result.refused)
            refused |= {each.remote for each in result.refused}
        session.noted |= committed
        # a position that the target did not take is not there to go on from: its topic waits until it is
        session.uncommitted = {tp: noted for tp, noted in session.uncommitted.items() if tp.topic in refused}
        session.refreshed = time.monotonic()
        return session.catch_up(committed)

    def _produce(
        self,
        session: ApplySession,
        work: SlotWork,
        tasks: Sequence[SlotTask],
        pending: Pending,
        refusals: RoundRefusals,
    ) -> list[pa.Table]:
        """Do the tasks, and take over what they committed. Returns the runs that came to the offset map."""
        segments = [s for ranges in pending.ranges.values() for each in ranges for s in each.segments]
        size, records = sum(s.bytes for s in segments), sum(s.count for s in segments)
        if size <= SMALL_BYTES and len(segments) <= SMALL_SEGMENTS:
            results = self._slots.run(work, tasks)
            self.listener.progress(records, size, records)
        else:
            self._slots.close()  # the tasks fence their producers
            show = self.listener.progress
            results = run_tasks(self.spark(), tasks, work, lambda done, bytes_: show(done, bytes_, records))
            kernel.say(r.kernel for r in results)
        added: list[pa.Table] = []
        for result in results:
            added += session.add(result)
            refusals.add_refused(result.refused)
        return added


def positions_at_end(
    session: ApplySession, point: Manifest, topics: Sequence[RemoteTopic], deleted: Collection[str]
) -> dict[TopicPartition, AppliedPosition]:
    """Return positions at the ends of `point` for topics that have none, but for those that were `deleted` in the
    target."""
    known = {tp.topic for tp in session.noted} | {*deleted}
    remotes = {topic.source: topic.remote for topic in topics if topic.remote not in known}
    return {
        TopicPartition(remotes[state.name], partition.partition): AppliedPosition(state.incarnation, partition.unbroken)
        for state in point.topics
        if state.name in remotes
        for partition in state.partitions
    }


def make_room(flow: Flow, cluster: Cluster, topics: Sequence[RemoteTopic], pending: Pending) -> Mapping[str, str]:
    """Add the partitions that pending records need beyond the source's count. Returns why by remote topic, where the
    target refuses: the records of these topics must wait."""
    needed: dict[str, int] = {}
    for tp in pending.ranges:
        needed[tp.topic] = max(tp.partition + 1, needed.get(tp.topic, 0))
    short = [replace(t, partitions=needed[t.remote]) for t in topics if needed.get(t.remote, 0) > t.partitions]
    refused = sync_topics(flow, short, cluster).refused if short else {}
    return {
        remote: f"an earlier incarnation needs {needed[remote]} partitions; add them, or allow it to the mirror: {why}"
        for remote, why in refused.items()
    }


def count_applied(pending: Pending, runs: pa.Table) -> Mapping[TopicPartition, PartitionApplied]:
    """Return the records that the round committed to each partition; bytes and timestamps as the segments' descriptors
    have them."""
    records: dict[TopicPartition, int] = {}
    columns = (runs.column(name).to_pylist() for name in ("topic", "partition", "count"))
    for topic, partition, count in zip(*columns, strict=True):
        tp = TopicPartition(topic, partition)
        records[tp] = records.get(tp, 0) + count
    applied: dict[TopicPartition, PartitionApplied] = {}
    for tp, count in records.items():
        segments = [s for each in pending.ranges.get(tp, ()) for s in each.segments]
        oldest = min((s.min_timestamp for s in segments if s.min_timestamp is not None), default=None)
        newest = max((s.max_timestamp for s in segments if s.max_timestamp is not None), default=None)
        applied[tp] = PartitionApplied(count, sum(s.bytes for s in segments), oldest, newest)
    return applied


@dataclass
class ApplySession:
    """What an `Applier` knows between two rounds: the state of its flow, the offset map, and the applied positions
    (`noted`). `refreshed` is when all positions were committed last; None: they are due."""

    cluster: Cluster
    flow: FlowState
    noted: dict[TopicPartition, Noted]
    map: FlowMap
    refreshed: float | None = None
    applied: dict[str, int] = field(default_factory=dict)
    """By topic of the source, the restore point up to which everything is applied."""
    unmapped: tuple[UnmappedRecords, ...] = ()
    """Committed records whose schemas could not be mapped, and which no round has reported yet."""
    recovered: set[str] = field(default_factory=set)
    """Remote topics whose forgotten positions were read back."""
    uncommitted: dict[TopicPartition, Noted] = field(default_factory=dict)
    """Positions that were read back, and are not in the target yet."""
    topic_ids: dict[str, str] = field(default_factory=dict)
    """By remote topic, the id that the target gave it when it was last looked at."""
    message_limits: dict[str, int] = field(default_factory=dict)
    """By remote topic, its max.message.bytes as it was when the topic was last looked at."""
    hidden: frozenset[str] = frozenset()
    """Remote topics that the target does not show to this user."""
    status: FlowStatus | None = None
    """The flow's last status, until a round is done: the next round reports the losses of a round that failed."""

    @property
    def positions(self) -> dict[TopicPartition, AppliedPosition]:
        return {tp: noted.position for tp, noted in self.noted.items()}

    def tasks(
        self,
        topics: Sequence[RemoteTopic],
        ranges: Mapping[TopicPartition, Sequence[UnitRange]] | None = None,
        begins: Mapping[TopicPartition, AppliedPosition] | None = None,
        apart: Collection[str] = (),
    ) -> list[SlotTask]:
        """Return the tasks of the slots that have `ranges` to produce or `begins` to commit, the largest first; without
        both, a task without records for each slot that has a position, to commit its positions again.

        A task has all known remote partitions of its slot, also those that only an earlier incarnation had, but none
        of a topic that the target does not show. `apart` are the remote topics to commit in transactions of their
        own."""
        ranges, begins, slots = ranges or {}, begins or {}, self.flow.slots
        limits = self.message_limits
        due = {slot_of(tp, slots) for tp in (ranges or begins or self.noted)}
        by_slot: dict[int, list[TopicPartition]] = {}
        partitions = {tp for topic in topics for tp in topic.remote_partitions} | {*ranges, *begins, *self.noted}
        for tp in sorted(tp for tp in partitions if tp.topic not in self.hidden):
            by_slot.setdefault(slot_of(tp, slots), []).append(tp)
        committed = self.noted.keys() - self.uncommitted.keys()
        tasks = [
            SlotTask(
                slot,
                tuple(each for tp in partitions for each in ranges.get(tp, ())),
                tuple(partitions),
                tuple(tp for tp in partitions if tp in committed),
                self.map.slot(slot).head,
                {tp: begins[tp] for tp in partitions if tp in begins},
                {tp.topic: self.topic_ids[tp.topic] for tp in partitions if tp.topic in self.topic_ids},
                frozenset(apart),
                min((limits[topic] for topic in {tp.topic for tp in partitions} & limits.keys()), default=None),
            )
            for slot, partitions in by_slot.items()
            if slot in due
        ]
        return sorted(tasks, key=lambda t: -sum(s.bytes for each in t.ranges for s in each.segments))

    def check_topics(
        self, flow: Flow, topics: Sequence[RemoteTopic], created: Collection[str]
    ) -> tuple[list[RemoteTopic], Mapping[str, str]]:
        """Create the remote topics that are gone, and drop the applied positions of every topic that is not the one
        they were committed for, and of partitions that vanished. `created` are the topics that this round created
        before.

        Return the topics that were applied before and now begin anew; and why by remote topic, where the target refuses
        to create it."""
        before, hidden = self.cluster.described_topics({topic.remote for topic in topics})
        # nothing is known of a topic that the target does not show: its positions hold until it is seen again
        topics = [topic for topic in topics if topic.remote not in hidden]
        self.hidden = self.hidden.difference(before) | hidden.keys()
        short = [t for t in topics if t.remote not in before or len(before[t.remote].partitions) < t.partitions]
        made = sync_topics(flow, short, self.cluster) if short else TopicsReport((), {}, {})
        after = before | self.cluster.topics(made.created) if made.created else before
        created = {*created, *made.created}
        status = self.status.topics if self.status is not None else ()
        reported = {topic.remote for topic in status if topic.incarnation >= 0}
        noted: dict[str, list[TopicPartition]] = {}
        for tp in self.noted:
            noted.setdefault(tp.topic, []).append(tp)
        deleted: list[RemoteTopic] = []
        for topic in topics:
            remote = topic.remote
            existing = before.get(remote) if remote not in created else None
            known = self.topic_ids.get(remote, "")
            self.topic_ids[remote] = after[remote].id if remote in after else ""
            stale = [
                tp
                for tp in noted.get(remote, ())
                if existing is None
                or tp.partition not in existing.partitions
                or not self.noted[tp].note.is_of(existing.id)
                or known not in ("", existing.id)
            ]
            for tp in stale:
                del self.noted[tp]
                self.uncommitted.pop(tp, None)
            if stale or (remote in created and remote in reported):
                self.applied.pop(topic.source, None)
                deleted.append(topic)
        hidden_reasons = {remote: reason_of(error) for remote, error in hidden.items()}
        return deleted, {**made.refused, **hidden_reasons}

    def refresh_is_due(self, left_out: Collection[str]) -> bool:
        """Return whether to commit all positions again: once a day, and while the target lacks a position of a topic
        that is not left out of this round."""
        if self.refreshed is None or time.monotonic() - self.refreshed >= REFRESH:
            return True
        return any(tp.topic not in left_out for tp in self.uncommitted)

    def read_limits(self, remotes: Collection[str], again: Collection[str]) -> None:
        """Ask for the max.message.bytes of remote topics that are not known, or are to be asked `again`."""
        due = [remote for remote in remotes if remote in again or remote not in self.message_limits]
        if due:
            limits = self.cluster.readable_config(due, "max.message.bytes")
            self.message_limits |= {remote: int(limit) for remote, limit in limits.items()}

    def recover(self, target: Properties, topics: Sequence[RemoteTopic]) -> None:
        """Read positions back that the target has forgotten, of topics that come for the first time."""
        remotes = {topic.remote for topic in topics} - self.recovered
        if not remotes:
            return
        slots = [self.map.slot(number) for number in range(self.flow.slots)]
        names = (self.flow.source, self.flow.target)
        recovered = Recovery(self.cluster, target, names, remotes).positions(slots, self.noted)
        self.recovered |= remotes
        if recovered:
            self.noted |= recovered
            self.uncommitted |= recovered
            self.refreshed = None

    def add(self, result: SlotResult) -> list[pa.Table]:
        """Add what a slot has committed to the positions and the map. Returns the runs that came to the map."""
        self.noted |= result.positions
        self.unmapped = sum_unmapped((*self.unmapped, *result.unmapped))
        slot = self.map.slot(result.slot)
        added: list[pa.Table] = []
        for part in result.map_parts:
            # where it does not follow, an attempt before this one committed the parts between
            follows = slot.add(part.name, part.previous, part.runs)
            added.append(part.runs if follows else slot.load(part.name))
        added += self.catch_up(result.positions)
        if slot.merge_due:
            slot.merge_map_parts()
        return added

    def take_unmapped(self) -> tuple[UnmappedRecords, ...]:
        """Return the unmapped records that no round has reported yet: now one does."""
        unmapped, self.unmapped = self.unmapped, ()
        return unmapped

    def catch_up(self, positions: Mapping[TopicPartition, Noted]) -> list[pa.Table]:
        """Add the parts of the map that committed positions name and that this process did not load: an earlier
        attempt has committed them, or another process before it was fenced. Returns their runs."""
        added: list[pa.Table] = []
        for number, part in heads_of(positions, self.flow.slots).items():
            slot = self.map.slot(number)
            if slot.head is None or part > slot.head:
                added.append(slot.load(part))
        return added


def open_session(flow: Flow, target: Properties, state: Store, archive: Archive) -> ApplySession:
    """Look at the target and at the flow's state. `MismatchError` if the flow was begun from another archive, or
    onto another cluster."""
    cluster = Cluster(target, "target")
    cluster_id, _ = cluster.connect()
    names = (flow.source, flow.target)
    noted = read_positions(cluster, *names)
    begun = read_flow(state, *names)
    check_origin(flow, begun, archive.info.id, cluster_id, noted, state)
    if begun is None:
        begun = FlowState(
            source=flow.source,
            target=flow.target,
            archive_id=archive.info.id,
            target_cluster_id=cluster_id,
            slots=SLOTS,
            created_at=now(),
        )
        try:
            state.put_new(layout.mirror_key(*names, DOCUMENT), dump(begun))
        except AlreadyExistsError:
            begun = read_flow(state, *names) or begun
            check_origin(flow, begun, archive.info.id, cluster_id, noted, state)
    flow_map = FlowMap(state, *names, begun.slots, heads_of(noted, begun.slots))
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(flow_map.slot, range(begun.slots)))
    return ApplySession(cluster, begun, noted, flow_map, status=read_flow_status(state, *names))
