"""The apply half of a flow: one round per restore point."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from kbackup.archive.models import Manifest
from kbackup.archive.reader import Archive
from kbackup.archive.restores.flow_map import MAP_SCHEMA, FlowMap
from kbackup.jobs.mirror.apply.pending import (
    Applied,
    DeletedRemote,
    Lost,
    PartitionApplied,
    Pending,
    Recreated,
    find_lost,
    find_pending,
    find_recreated,
    read_heads,
    reported_positions,
)
from kbackup.jobs.mirror.apply.session import (
    ApplySession,
    count_applied,
    make_room,
    open_session,
    tasks_to_begin,
    tasks_to_produce,
    tasks_to_refresh,
)
from kbackup.jobs.mirror.apply.slots import OpenSlots, SlotTask, SlotWork
from kbackup.jobs.mirror.flow import AppliedPosition, Flow, RemoteTopic
from kbackup.jobs.mirror.settings import TopicsReport
from kbackup.kafka import kernel
from kbackup.kafka.client import Properties
from kbackup.metrics.registry import Phases, ProgressListener
from kbackup.spark.tasks import run_tasks
from kbackup.store.base import Store
from kbackup.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Spark = Callable[[], "SparkSession"]

SMALL_BYTES, SMALL_SEGMENTS = 16 << 20, 5_000
"""A round of no more is applied in this process: Spark would take longer to begin."""

TRANSACTION_BYTES = 256 << 20
REFRESH = 86_400.0  # s; far less than any sensible offsets.retention.minutes


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
    clock: Callable[[], float] = time.monotonic
    _session: ApplySession | None = None
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

    def apply(
        self, archive: Archive, point: Manifest, topics: Sequence[RemoteTopic], made: TopicsReport | None = None
    ) -> Applied:
        """Commit every record of `topics` up to `point` that the target does not have. The remote topics exist.
        `made` is what the round did to create them; None: it did not look at them, and only those with new records are
        looked at.

        After an error that may be over in a while (`jobs.follow.RETRIED`), call it again. `FencedError`: another
        process applies this flow now."""
        try:
            session = self._session or open_session(self.flow, self.target, self.state, archive)
            self._session = session
            return self._apply(session, archive, point, topics, made)
        except BaseException:
            self.close()  # what was committed, and which positions hold, is asked for again
            raise

    def close(self) -> None:
        """Close the producers; records that are not committed are discarded."""
        self._session = None
        self._slots.close()

    def _apply(
        self,
        session: ApplySession,
        archive: Archive,
        point: Manifest,
        topics: Sequence[RemoteTopic],
        made: TopicsReport | None,
    ) -> Applied:
        began = self.clock()
        session.recover(self.target, topics)
        stop = self.flow.on_recreate == "stop"
        pending = find_pending(archive, point, topics, session.positions, session.applied, stop)
        new = {tp.topic for tp in pending.ranges} | ({t.remote for t in topics} - session.topic_ids.keys())
        asked = [topic for topic in topics if made is not None or topic.remote in new]
        deleted, missing = session.check_topics(self.flow, asked, made.created if made is not None else ())
        if deleted:
            self._slots.close()  # their producers know the positions that hold no more
        topics = [topic for topic in topics if topic.remote not in missing]
        work = SlotWork(self.target, archive.store, self.state, self._names, point.number, self.transaction_bytes)
        begun = self._begin_at_end(session, work, point, topics, {topic.remote for topic in deleted})
        before = session.positions
        if deleted or missing or begun:
            pending = find_pending(archive, point, topics, before, session.applied, stop)
        refused = make_room(self.flow, session.cluster, topics, pending)
        if refused:
            topics = [topic for topic in topics if topic.remote not in refused]
            pending = find_pending(archive, point, topics, before, session.applied, stop)
        added: list[pa.Table] = []
        if session.refreshed is None or self.clock() - session.refreshed >= REFRESH:
            added += self._refresh(session, work, topics)
        if pending.ranges:
            with Phases(self.listener).step("apply"):
                added += self._produce(session, work, tasks_to_produce(session, pending, topics), pending)
        runs = pa.concat_tables([MAP_SCHEMA.empty_table(), *added])
        session.applied = {topic.source: point.number for topic in topics}
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
            refused={**missing, **refused},
            deleted=tuple(DeletedRemote(topic.source, topic.remote) for topic in deleted),
            recreated=find_recreated(archive, point, topics, reported, after),
            held_back=pending.held_back,
            too_late=find_lost(archive, point, topics, reported, after),
            seconds=self.clock() - began,
        )

    @property
    def _names(self) -> tuple[str, str]:
        return self.flow.source, self.flow.target

    def _begin_at_end(
        self,
        session: ApplySession,
        work: SlotWork,
        point: Manifest,
        topics: Sequence[RemoteTopic],
        deleted: Collection[str],
    ) -> bool:
        """Commit positions at the ends of `point` for topics that have none, but for those that were `deleted` in the
        target, if the flow starts at the end. Return whether there were any."""
        if not self.flow.starts_at_end:
            return False
        known = {tp.topic for tp in session.noted} | {*deleted}
        remotes = {topic.source: topic.remote for topic in topics if topic.remote not in known}
        ends = {
            TopicPartition(remotes[state.name], partition.partition): AppliedPosition(state.incarnation, partition.end)
            for state in point.topics
            if state.name in remotes
            for partition in state.partitions
        }
        for result in self._slots.run(work, tasks_to_begin(session, topics, ends)) if ends else ():
            session.add(result)
        return bool(ends)

    def _refresh(self, session: ApplySession, work: SlotWork, topics: Sequence[RemoteTopic]) -> list[pa.Table]:
        """Commit every position once more, before brokers let it expire. Returns the runs that
        came to the offset map."""
        noted = self._slots.refresh(work, tasks_to_refresh(session, topics), session.uncommitted)
        session.noted |= noted
        session.uncommitted = {}
        session.refreshed = self.clock()
        return session.catch_up(noted)

    def _produce(
        self, session: ApplySession, work: SlotWork, tasks: Sequence[SlotTask], pending: Pending
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
        return [table for result in results for table in session.add(result)]


# Apply archived records to a target, exactly once: `Applier`, round after round.


__all__ = ["Applied", "Applier", "DeletedRemote", "Lost", "PartitionApplied", "Recreated", "read_heads"]
