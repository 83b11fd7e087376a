"""A session of the apply half: rooms in remote topics, and the Spark tasks that fill them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.models import dump
from kbackup.archive.reader import Archive
from kbackup.archive.restores.flow_map import DOCUMENT, SLOTS, FlowMap, FlowState, read_flow, slot_of
from kbackup.errors import AlreadyExistsError, MismatchError
from kbackup.jobs.mirror.apply.pending import Noted, PartitionApplied, Pending, Recovery, heads_of, read_positions
from kbackup.jobs.mirror.apply.slots import SlotResult, SlotTask
from kbackup.jobs.mirror.flow import AppliedPosition, Flow, FlowStatus, RemoteTopic, read_flow_status
from kbackup.jobs.mirror.settings import TopicsReport, sync_topics
from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.client import Properties
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from kbackup.util.times import now


def make_room(flow: Flow, cluster: Cluster, topics: Sequence[RemoteTopic], pending: Pending) -> Mapping[str, str]:
    """Add the partitions that pending records need beyond the source's count. Returns why by remote topic, where the
    target refuses: the records of these topics must wait."""
    needed: dict[str, int] = {}
    for tp in pending.ranges:
        needed[tp.topic] = max(tp.partition + 1, needed.get(tp.topic, 0))
    short = [
        replace(topic, partitions=needed[topic.remote])
        for topic in topics
        if needed.get(topic.remote, 0) > topic.partitions
    ]
    refused = sync_topics(flow, short, cluster).refused if short else {}
    return {
        remote: f"an earlier incarnation needs {needed[remote]} partitions; add them, or allow it to the mirror: {why}"
        for remote, why in refused.items()
    }


# State of an `Applier` between two rounds: positions, offset map and status of its flow.


_THREADS = 8


@dataclass
class ApplySession:
    """The state of a flow, its offset map, and its applied positions (`noted`). `refreshed` is when all positions were
    committed last; None: they are due."""

    cluster: Cluster
    flow: FlowState
    noted: dict[TopicPartition, Noted]
    map: FlowMap
    refreshed: float | None = None
    applied: dict[str, int] = field(default_factory=dict)
    """By topic of the source, the restore point up to which everything is applied."""
    recovered: set[str] = field(default_factory=set)
    """Remote topics whose forgotten positions were read back."""
    uncommitted: dict[TopicPartition, Noted] = field(default_factory=dict)
    """Positions that were read back, and are not in the target yet."""
    topic_ids: dict[str, str] = field(default_factory=dict)
    """By remote topic, the id that the target gave it when it was last looked at."""
    status: FlowStatus | None = None
    """The flow's last status, until a round is done: the next round reports the losses of a round that failed."""

    @property
    def positions(self) -> dict[TopicPartition, AppliedPosition]:
        return {tp: noted.position for tp, noted in self.noted.items()}

    def partitions(
        self, topics: Sequence[RemoteTopic], more: Collection[TopicPartition] = ()
    ) -> dict[int, list[TopicPartition]]:
        """Return all known remote partitions of the flow by slot, in order. `more` are partitions of earlier
        incarnations, which may have had more partitions."""
        known = {tp for topic in topics for tp in topic.remote_partitions} | {*more}
        by_slot: dict[int, list[TopicPartition]] = {}
        for tp in sorted(known | self.noted.keys()):
            by_slot.setdefault(slot_of(tp, self.flow.slots), []).append(tp)
        return by_slot

    def topic_ids_of(self, partitions: Iterable[TopicPartition]) -> dict[str, str]:
        return {tp.topic: self.topic_ids[tp.topic] for tp in partitions if tp.topic in self.topic_ids}

    def check_topics(
        self, flow: Flow, topics: Sequence[RemoteTopic], created: Collection[str]
    ) -> tuple[list[RemoteTopic], Mapping[str, str]]:
        """Create the remote topics that are gone, and drop the applied positions of every topic that is not the one
        they were committed for, and of partitions that vanished. `created` are the topics that this round created
        before.

        Return the topics that were applied before and now begin anew; and why by remote topic, where the target refuses
        to create it."""
        before = self.cluster.topics({topic.remote for topic in topics})
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
            known, own = self.topic_ids.get(remote, ""), noted.get(remote, [])
            self.topic_ids[remote] = after[remote].id if remote in after else ""
            stale = [
                tp
                for tp in own
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
        return deleted, made.refused

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
        slot = self.map.slot(result.slot)
        added: list[pa.Table] = []
        for part in result.map_parts:
            if not slot.add(part.name, part.previous, part.runs):
                added.append(slot.load(part.name))  # an attempt before this one committed the parts between
            else:
                added.append(part.runs)
        added += self.catch_up(result.positions)
        if slot.merge_due:
            slot.merge_map_parts()
        return added

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
    begun = read_flow(state, *names) or _begin(names, state, archive, cluster_id)
    _check(begun, archive, cluster_id)
    noted = read_positions(cluster, *names)
    flow_map = FlowMap(state, *names, begun.slots, heads_of(noted, begun.slots))
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(flow_map.slot, range(begun.slots)))
    return ApplySession(cluster, begun, noted, flow_map, status=read_flow_status(state, *names))


def _begin(names: tuple[str, str], state: Store, archive: Archive, cluster_id: str) -> FlowState:
    source, target = names
    flow = FlowState(
        source=source,
        target=target,
        archive_id=archive.info.id,
        target_cluster_id=cluster_id,
        slots=SLOTS,
        created_at=now(),
    )
    try:
        state.put_new(layout.mirror_key(*names, DOCUMENT), dump(flow))
    except AlreadyExistsError:
        return read_flow(state, *names) or flow
    return flow


def _check(flow: FlowState, archive: Archive, cluster_id: str) -> None:
    name = f"flow {flow.source}->{flow.target}"
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


# Cut the work of a round into slots, and count what the slots committed.


def tasks_to_produce(session: ApplySession, pending: Pending, topics: Sequence[RemoteTopic]) -> list[SlotTask]:
    """Return the work by slot, the largest first."""
    by_slot: dict[int, list[TopicPartition]] = {}
    for remote in pending.ranges:
        by_slot.setdefault(slot_of(remote, session.flow.slots), []).append(remote)
    every = session.partitions(topics, pending.ranges)
    tasks = [
        SlotTask(
            slot,
            tuple(each for tp in remotes for each in pending.ranges[tp]),
            tuple(every[slot]),
            tuple(tp for tp in every[slot] if tp in session.noted),
            session.map.slot(slot).head,
            topic_ids=session.topic_ids_of(every[slot]),
        )
        for slot, remotes in by_slot.items()
    ]
    return sorted(tasks, key=lambda t: -sum(s.bytes for each in t.ranges for s in each.segments))


def tasks_to_begin(
    session: ApplySession, topics: Sequence[RemoteTopic], begins: Mapping[TopicPartition, AppliedPosition]
) -> list[SlotTask]:
    """Return a task without records for each slot of `begins`, to commit the positions there."""
    by_slot: dict[int, dict[TopicPartition, AppliedPosition]] = {}
    for tp, position in begins.items():
        by_slot.setdefault(slot_of(tp, session.flow.slots), {})[tp] = position
    every = session.partitions(topics, begins)
    return [
        SlotTask(
            slot,
            (),
            tuple(every[slot]),
            tuple(tp for tp in every[slot] if tp in session.noted),
            session.map.slot(slot).head,
            positions,
            session.topic_ids_of(every[slot]),
        )
        for slot, positions in by_slot.items()
    ]


def tasks_to_refresh(session: ApplySession, topics: Sequence[RemoteTopic]) -> list[SlotTask]:
    """Return a task without records for each slot that has a position, to commit its positions again."""
    known = {slot_of(tp, session.flow.slots) for tp in session.noted}
    committed = session.noted.keys() - session.uncommitted.keys()
    return [
        SlotTask(
            slot,
            (),
            tuple(partitions),
            tuple(tp for tp in partitions if tp in committed),
            session.map.slot(slot).head,
            topic_ids=session.topic_ids_of(partitions),
        )
        for slot, partitions in session.partitions(topics).items()
        if slot in known
    ]


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
        oldest = [s.min_timestamp for s in segments if s.min_timestamp is not None]
        newest = [s.max_timestamp for s in segments if s.max_timestamp is not None]
        applied[tp] = PartitionApplied(
            count, sum(s.bytes for s in segments), min(oldest, default=None), max(newest, default=None)
        )
    return applied
