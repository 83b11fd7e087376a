"""Apply archived records to a target, exactly once: `Applier`, round after round, one round per restore point."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import pyarrow as pa

from kbackup.archive.models import Manifest
from kbackup.archive.reader import Archive
from kbackup.archive.segments.table import Segment
from kbackup.jobs.schemas.rewrite import SchemaRewrite
from kbackup.kafka.client import Properties
from kbackup.kafka.control.cluster import Cluster
from kbackup.metrics.registry import Phases, ProgressListener
from kbackup.mirror.apply.held import HeldTopics, RoundRefusals
from kbackup.mirror.apply.pending import (
    Applied,
    DeletedRemote,
    Noted,
    PartitionApplied,
    Pending,
    find_lost,
    find_pending,
    find_recreated,
    reported_positions,
)
from kbackup.mirror.apply.session import ApplySession, open_session
from kbackup.mirror.apply.slots import OpenSlots, SlotResult, SlotTask, SlotWork
from kbackup.mirror.flow import AppliedPosition, Flow, RemoteTopic
from kbackup.mirror.flow_map import MAP_SCHEMA, FlowMap
from kbackup.mirror.settings import TopicsReport, sync_topics
from kbackup.native.kernel import log_kernels
from kbackup.spark.tasks import Spark, run_counted
from kbackup.store.base import Store
from kbackup.types import TopicPartition

SMALL_BYTES, SMALL_SEGMENTS = 16 << 20, 5_000
"""A round of no more is applied in this process: Spark would take longer to begin."""

TRANSACTION_BYTES = 256 << 20


@dataclass(frozen=True)
class Preparation:
    """What a round has done before it applies records.

    `created` is what it did to create the remote topics; None: it did not look at them, and only those with new records
    are looked at. `changed` are remote topics of which the round changed something: held back ones are tried again at
    once. `schemas` gives the new ids of the records, None if they keep theirs. `withheld` says by remote topic why its
    records are not to be applied in this round. `uncovered_schemas` is what names schemas and is not mapped."""

    created: TopicsReport | None = None
    changed: frozenset[str] = frozenset()
    schemas: SchemaRewrite | None = None
    withheld: Mapping[str, str] = field(default_factory=dict)
    uncovered_schemas: tuple[str, ...] = ()


@dataclass(frozen=True)
class ApplyRound:
    """The restore point that a round applies, to which remote topics, and what it learns of their refusals. `work` has
    the settings of every slot."""

    archive: Archive
    point: Manifest
    topics: tuple[RemoteTopic, ...]
    work: SlotWork
    refusals: RoundRefusals


@dataclass(frozen=True)
class CheckedTopics:
    """The remote topics that the target has: all of a round but for `missing` ones. `deleted` were applied before, and
    begin anew."""

    topics: tuple[RemoteTopic, ...]
    missing: frozenset[str]
    deleted: tuple[RemoteTopic, ...]


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
        self, archive: Archive, point: Manifest, topics: Sequence[RemoteTopic], preparation: Preparation = Preparation()
    ) -> Applied:
        """Commit every record of `topics` up to `point` that the target does not have. The remote topics exist.

        A topic that the target refuses, or that can't be read, is held back (`Applied.refused`), and tried again after
        a pause; the others go on.

        After an error that may be over in a while (`jobs.common.RETRIED`), call it again. `FencedError`: another
        process applies this flow now."""
        try:
            if self._session is None:
                self._session = open_session(self.flow, self.target, self.state, archive)
                self._suspect(self._session)
            round_ = self._begin_round(archive, point, tuple(topics), preparation)
            return self._apply(self._session, round_, preparation.created)
        except BaseException:
            # An error in the middle leaves unknown what was committed and which positions hold: the next call asks
            # again.
            self.close()
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

    def _begin_round(
        self, archive: Archive, point: Manifest, topics: tuple[RemoteTopic, ...], preparation: Preparation
    ) -> ApplyRound:
        # Something has changed about these topics: the target may take their records now.
        self.held.try_again(preparation.changed)
        names = (self.flow.source, self.flow.target)
        work = SlotWork(
            target=self.target,
            store=archive.store,
            state=self.state,
            names=names,
            point=point.number,
            transaction_bytes=self.transaction_bytes,
            schemas=preparation.schemas,
        )
        refusals = RoundRefusals(self.held, preparation.withheld)
        return ApplyRound(archive, point, topics, work, refusals)

    def _apply(self, session: ApplySession, round_: ApplyRound, created: TopicsReport | None) -> Applied:
        """Do a round, by phases in their order: which records are missing, which topics are there, where new ones
        begin, and the records. `created` as in `Preparation`."""
        began = time.monotonic()
        refusals = round_.refusals
        # First the positions that the target forgot: without them, everything that was applied would be pending again.
        session.recover(self.target, round_.topics)
        # Before the topics are looked at: that is a request for each topic, and topics without new records need none.
        pending = self._find_pending(session, round_, round_.topics)
        checked = self._check_topics(session, round_, pending, created)
        has_begun = self._begin_at_ends(session, round_, checked)
        before = session.positions
        if has_begun or checked.missing or checked.deleted:
            # What was found above is not true any more: positions have come or gone.
            pending = self._find_pending(session, round_, checked.topics)
        topics = self._make_room(session, refusals, checked.topics, pending)
        # The refresh comes before the records: a position that was read back must be in the target again before records
        # go on from it.
        added = self._refresh_if_due(session, round_, topics)
        pending = pending.without(refusals.left_out)
        added += self._produce(session, round_, topics, pending)
        refused = refusals.end_round({topic.remote for topic in round_.topics})
        session.note_applied(round_.point, round_.topics, refused)
        reported = reported_positions(session.status, round_.archive.info.id, before)
        # Once only: this round reports what a round that failed before it committed and lost.
        session.status = None
        runs = pa.concat_tables([MAP_SCHEMA.empty_table(), *added])
        partitions = count_applied(pending, runs)
        after = session.positions
        deleted = [DeletedRemote(topic.source, topic.remote) for topic in checked.deleted]
        recreated = find_recreated(round_.archive, round_.point, topics, reported, after)
        lost = find_lost(round_.archive, round_.point, topics, reported, after)
        unmapped = session.take_unmapped()
        records = size = 0
        for partition in partitions.values():
            records += partition.records
            size += partition.bytes
        return Applied(
            point=round_.point.number,
            records=records,
            bytes=size,
            positions=after,
            partitions=partitions,
            runs=runs,
            refused=refused,
            deleted=tuple(deleted),
            recreated=recreated,
            held_back=pending.held_back,
            too_late=lost,
            unmapped=unmapped,
            seconds=time.monotonic() - began,
        )

    def _find_pending(self, session: ApplySession, round_: ApplyRound, topics: Sequence[RemoteTopic]) -> Pending:
        """Return the records that the target lacks, without records of topics that are held back."""
        stops = self.flow.on_recreate == "stop"
        pending = find_pending(round_.archive, round_.point, topics, session.positions, session.applied, stops)
        return pending.without(round_.refusals.left_out)

    def _check_topics(
        self, session: ApplySession, round_: ApplyRound, pending: Pending, created: TopicsReport | None
    ) -> CheckedTopics:
        """Look at the remote topics: at all of them if this round has created some, otherwise at those with new
        records, at unknown topics, and at topics that are tried again. Each look is a request to the target."""
        with_records = {tp.topic for tp in pending.ranges}
        # A topic without new records is not looked at: if it was deleted, the round that has records for it finds out.
        asked: list[RemoteTopic] = []
        for topic in round_.topics:
            is_known = topic.remote in session.topic_ids
            is_new = topic.remote in with_records or not is_known
            if created is not None or is_new or topic.remote in round_.refusals.on_trial:
                asked.append(topic)
        just_created = created.created if created is not None else ()
        deleted, missing = session.check_topics(self.flow, asked, just_created)
        round_.refusals.add_missing(missing)
        if deleted:
            # The open producers go on from positions that hold no more. New ones read what is left of them.
            self._slots.close()
        topics = tuple(topic for topic in round_.topics if topic.remote not in missing)
        return CheckedTopics(topics, frozenset(missing), tuple(deleted))

    def _begin_at_ends(self, session: ApplySession, round_: ApplyRound, checked: CheckedTopics) -> bool:
        """Commit positions at the end of the restore point for new topics, if the flow leaves out what is there before
        its first round. Return whether there were any."""
        if not self.flow.starts_at_end:
            return False
        ends = positions_at_end(session, round_.point, checked)
        left_out = round_.refusals.left_out
        begins = {tp: position for tp, position in ends.items() if tp.topic not in left_out}
        if not begins:
            return False
        tasks = session.tasks(checked.topics, begins=begins, apart=round_.refusals.on_trial)
        for result in self._slots.run(round_.work, tasks):
            session.add(result)
            round_.refusals.add_refused(result.refused)
        return True

    def _make_room(
        self, session: ApplySession, refusals: RoundRefusals, topics: Sequence[RemoteTopic], pending: Pending
    ) -> tuple[RemoteTopic, ...]:
        """Add the partitions that earlier incarnations need. Return the topics that have room for all their records."""
        no_room = make_room(self.flow, session.cluster, topics, pending)
        refusals.add_missing(no_room)
        return tuple(topic for topic in topics if topic.remote not in no_room)

    def _refresh_if_due(
        self, session: ApplySession, round_: ApplyRound, topics: Sequence[RemoteTopic]
    ) -> list[pa.Table]:
        if not session.refresh_is_due(round_.refusals.left_out):
            return []
        return self._refresh(session, round_.work, topics, round_.refusals)

    def _refresh(
        self, session: ApplySession, work: SlotWork, topics: Sequence[RemoteTopic], refusals: RoundRefusals
    ) -> list[pa.Table]:
        """Commit every position once more, before brokers let it expire. Return the runs that came to the offset
        map."""
        committed: dict[TopicPartition, Noted] = {}
        refused: set[str] = set()
        tasks = session.tasks(topics, apart=refusals.on_trial)
        for result in self._slots.refresh(work, tasks, session.uncommitted):
            committed |= result.positions
            refusals.add_refused(result.refused)
            refused |= {each.remote for each in result.refused}
        session.noted |= committed
        # A position that the target did not take is not there to go on from: its topic waits until it is.
        session.uncommitted = {tp: noted for tp, noted in session.uncommitted.items() if tp.topic in refused}
        session.refreshed = time.monotonic()
        return session.catch_up(committed)

    def _produce(
        self, session: ApplySession, round_: ApplyRound, topics: Sequence[RemoteTopic], pending: Pending
    ) -> list[pa.Table]:
        """Commit the pending records, and take over what was committed. Return the runs that came to the offset map."""
        if not pending.ranges:
            return []
        on_trial = round_.refusals.on_trial
        # Limits are asked for once, not in every round. One that was lowered since shows by a refusal, and the trial
        # after that asks again.
        session.read_limits({tp.topic for tp in pending.ranges}, again=on_trial)
        added: list[pa.Table] = []
        with Phases(self.listener).step("apply"):
            tasks = session.tasks(topics, ranges=pending.ranges, apart=on_trial)
            for result in self._run_tasks(round_.work, tasks, pending):
                added += session.add(result)
                round_.refusals.add_refused(result.refused)
        return added

    def _run_tasks(self, work: SlotWork, tasks: Sequence[SlotTask], pending: Pending) -> list[SlotResult]:
        """Do the tasks of a round: of a small one in this process, of a large one on Spark."""
        # Both bounds count, because each segment is read by requests of its own.
        segments = pending.segments
        size = sum(segment.bytes for segment in segments)
        records = sum(segment.count for segment in segments)
        if size <= SMALL_BYTES and len(segments) <= SMALL_SEGMENTS:
            results = self._slots.run(work, tasks)
            self.listener.progress(records, size, records)
        else:
            # Spark's tasks begin producers with the same ids, which fence the open ones: those could commit nothing
            # more.
            self._slots.close()
            results = run_counted(self.spark, tasks, work, self.listener, records)
            log_kernels(result.kernel for result in results)
        return results


def positions_at_end(
    session: ApplySession, point: Manifest, checked: CheckedTopics
) -> dict[TopicPartition, AppliedPosition]:
    """Return positions at the ends of `point` for topics that have none. A topic that was deleted in the target has
    none either, but it is applied from its first record on, so it gets no position here."""
    known = {tp.topic for tp in session.noted}
    known.update(topic.remote for topic in checked.deleted)
    remotes = {topic.source: topic.remote for topic in checked.topics if topic.remote not in known}
    ends: dict[TopicPartition, AppliedPosition] = {}
    for state in point.topics:
        remote = remotes.get(state.name)
        if remote is None:
            continue
        for partition in state.partitions:
            tp = TopicPartition(remote, partition.partition)
            ends[tp] = AppliedPosition(state.incarnation, partition.unbroken)
    return ends


def make_room(flow: Flow, cluster: Cluster, topics: Sequence[RemoteTopic], pending: Pending) -> Mapping[str, str]:
    """Add the partitions that pending records need beyond the source's count. Return why by remote topic, if the
    target refuses: the records of these topics must wait."""
    # A topic that was recreated with fewer partitions: its earlier incarnation still has records in the others.
    needed: dict[str, int] = {}
    for tp in pending.ranges:
        needed[tp.topic] = max(tp.partition + 1, needed.get(tp.topic, 0))
    short: list[RemoteTopic] = []
    for topic in topics:
        count = needed.get(topic.remote, 0)
        if count > topic.partitions:
            short.append(replace(topic, partitions=count))
    if not short:
        return {}
    refused = sync_topics(flow, short, cluster).refused
    reasons: dict[str, str] = {}
    for remote, why in refused.items():
        text = f"an earlier incarnation needs {needed[remote]} partitions; add them, or allow it to the mirror"
        reasons[remote] = f"{text}: {why}"
    return reasons


def count_applied(pending: Pending, runs: pa.Table) -> Mapping[TopicPartition, PartitionApplied]:
    """Return the records that the round committed to each partition; bytes and timestamps as the segments' descriptors
    have them."""
    # The runs count, not the pending segments: a range begins in the middle of a segment where an earlier round
    # stopped.
    topics: list[Any] = runs.column("topic").to_pylist()
    partitions: list[Any] = runs.column("partition").to_pylist()
    counts: list[Any] = runs.column("count").to_pylist()
    records: dict[TopicPartition, int] = {}
    for topic, partition, count in zip(topics, partitions, counts, strict=True):
        tp = TopicPartition(topic, partition)
        records[tp] = records.get(tp, 0) + count
    applied: dict[TopicPartition, PartitionApplied] = {}
    for tp, count in records.items():
        segments: list[Segment] = []
        for range_ in pending.ranges.get(tp, ()):
            segments += range_.segments
        oldest = [segment.min_timestamp for segment in segments if segment.min_timestamp is not None]
        newest = [segment.max_timestamp for segment in segments if segment.max_timestamp is not None]
        applied[tp] = PartitionApplied(
            records=count,
            bytes=sum(segment.bytes for segment in segments),
            oldest=min(oldest, default=None),
            newest=max(newest, default=None),
        )
    return applied
