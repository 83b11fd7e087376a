"""What is known of a flow and its target between two rounds: applied positions, the offset map, the remote topics."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.models import Manifest, dump
from kbackup.archive.reader import Archive
from kbackup.archive.restores.plan import UnitRange
from kbackup.archive.restores.unmapped import UnmappedRecords, sum_unmapped
from kbackup.errors import AlreadyExistsError
from kbackup.kafka.client import Properties
from kbackup.kafka.control.cluster import Cluster
from kbackup.kafka.control.topics import Topic
from kbackup.mirror.apply.held import reason_of
from kbackup.mirror.apply.pending import Noted, Recovery, check_origin, heads_of, read_positions
from kbackup.mirror.apply.slots import SlotResult, SlotTask
from kbackup.mirror.flow import AppliedPosition, Flow, FlowStatus, RemoteTopic, read_flow_status
from kbackup.mirror.flow_map import DOCUMENT, SLOTS, FlowMap, FlowState, read_flow, slot_of
from kbackup.mirror.settings import TopicsReport, sync_topics
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from kbackup.util.times import now

REFRESH = 86_400.0  # s; far less than any sensible offsets.retention.minutes
_THREADS = 8


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
        ranges, begins = ranges or {}, begins or {}
        due = {slot_of(tp, self.flow.slots) for tp in (ranges or begins or self.noted)}
        partitions = set[TopicPartition]()
        for topic in topics:
            partitions.update(topic.remote_partitions)
        partitions.update(ranges, begins, self.noted)
        by_slot: dict[int, list[TopicPartition]] = {}
        for tp in sorted(partitions):
            if tp.topic not in self.hidden:
                by_slot.setdefault(slot_of(tp, self.flow.slots), []).append(tp)
        alone = frozenset(apart)
        tasks: list[SlotTask] = []
        for slot, own in by_slot.items():
            if slot in due:
                tasks.append(self._task(slot, own, ranges, begins, alone))
        # Spark begins with the first ones: a large task at the end would be waited for alone.
        return sorted(tasks, key=lambda task: task.bytes, reverse=True)

    def _task(
        self,
        slot: int,
        partitions: Sequence[TopicPartition],
        ranges: Mapping[TopicPartition, Sequence[UnitRange]],
        begins: Mapping[TopicPartition, AppliedPosition],
        apart: frozenset[str],
    ) -> SlotTask:
        """Return the task of a slot, which has these `partitions`."""
        topics = {tp.topic for tp in partitions}
        # The task fails if one of these positions is missing. The ones that were read back are not in the target yet.
        expected = [tp for tp in partitions if tp in self.noted and tp not in self.uncommitted]
        own_ranges: list[UnitRange] = []
        for tp in partitions:
            own_ranges += ranges.get(tp, ())
        own_begins = {tp: begins[tp] for tp in partitions if tp in begins}
        topic_ids = {topic: self.topic_ids[topic] for topic in topics if topic in self.topic_ids}
        # The slot's producer is shared, so the topic that takes the least sets the size of all its batches.
        limits = [self.message_limits[topic] for topic in topics if topic in self.message_limits]
        return SlotTask(
            slot=slot,
            ranges=tuple(own_ranges),
            partitions=tuple(partitions),
            expected=tuple(expected),
            head=self.map.slot(slot).head,
            begins=own_begins,
            topic_ids=topic_ids,
            apart=apart,
            message_limit=min(limits, default=None),
        )

    def check_topics(
        self, flow: Flow, topics: Sequence[RemoteTopic], created: Collection[str]
    ) -> tuple[list[RemoteTopic], Mapping[str, str]]:
        """Create the remote topics that are gone, and drop the applied positions of every topic that is not the one
        they were committed for, and of partitions that vanished. `created` are the topics that this round created
        before.

        Return the topics that were applied before and now begin anew; and why by remote topic, where the target refuses
        to create it."""
        before, hidden = self.cluster.described_topics({topic.remote for topic in topics})
        # Nothing is known of a topic that the target does not show: its positions hold until it is seen again.
        topics = [topic for topic in topics if topic.remote not in hidden]
        self.hidden = self.hidden.difference(before) | hidden.keys()
        made = self._create_missing(flow, topics, before)
        after = before | self.cluster.topics(made.created) if made.created else before
        created = {*created, *made.created}
        reported = self._reported_topics()
        partitions = self._noted_partitions()
        deleted: list[RemoteTopic] = []
        for topic in topics:
            remote = topic.remote
            # A topic that this round created is not the one that any position was committed for.
            existing = before.get(remote) if remote not in created else None
            has_stale = self._drop_stale(partitions.get(remote, ()), existing)
            self.topic_ids[remote] = after[remote].id if remote in after else ""
            # Kafka deletes the committed offsets of a topic with the topic. So a deleted topic may have left no stale
            # position, and only the flow's status knows that records of the topic were applied.
            if has_stale or (remote in created and remote in reported):
                self.applied.pop(topic.source, None)
                deleted.append(topic)
        hidden_reasons = {remote: reason_of(error) for remote, error in hidden.items()}
        return deleted, {**made.refused, **hidden_reasons}

    def _create_missing(self, flow: Flow, topics: Sequence[RemoteTopic], existing: Mapping[str, Topic]) -> TopicsReport:
        """Create the topics, and partitions of topics, that the target lacks."""
        missing: list[RemoteTopic] = []
        for topic in topics:
            there = existing.get(topic.remote)
            if there is None or len(there.partitions) < topic.partitions:
                missing.append(topic)
        if not missing:
            return TopicsReport((), {}, {})
        return sync_topics(flow, missing, self.cluster)

    def _reported_topics(self) -> set[str]:
        """Return the remote topics that had applied records when the flow's last status was written."""
        known = self.status.topics if self.status is not None else ()
        return {topic.remote for topic in known if topic.incarnation >= 0}

    def _noted_partitions(self) -> dict[str, list[TopicPartition]]:
        """Return the partitions that have an applied position, by remote topic."""
        partitions: dict[str, list[TopicPartition]] = {}
        for tp in self.noted:
            partitions.setdefault(tp.topic, []).append(tp)
        return partitions

    def _drop_stale(self, partitions: Iterable[TopicPartition], existing: Topic | None) -> bool:
        """Drop the positions of a topic's partitions that were not committed for the topic as it exists now; None: it
        does not exist. Return whether there were any."""
        stale = [tp for tp in partitions if existing is None or self._is_stale(tp, existing)]
        for tp in stale:
            del self.noted[tp]
            self.uncommitted.pop(tp, None)
        return bool(stale)

    def _is_stale(self, tp: TopicPartition, existing: Topic) -> bool:
        # Two ids are compared: the one in the committed note, and the one that this process saw last. A note without
        # an id can't show that its topic was deleted; what this process has seen can.
        known_id = self.topic_ids.get(tp.topic, "")
        is_of_topic = self.noted[tp].note.is_of(existing.id) and known_id in ("", existing.id)
        return tp.partition not in existing.partitions or not is_of_topic

    def note_applied(self, point: Manifest, topics: Sequence[RemoteTopic], refused: Collection[str]) -> None:
        """Note up to which restore point each topic is applied: a topic that waits stays where it was."""
        # A topic whose newest records the restore point holds was applied up to the first of them only, so the next
        # round has to look at its segments again.
        held_in_point = set[str]()
        for state in point.topics:
            if any(partition.held for partition in state.partitions):
                held_in_point.add(state.name)
        applied: dict[str, int] = {}
        for topic in topics:
            waits = topic.source in held_in_point or topic.remote in refused
            applied[topic.source] = self.applied.get(topic.source, 0) if waits else point.number
        self.applied = applied

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
            # Where the part does not follow, an attempt before this one committed the parts between.
            follows = slot.add(part.name, part.previous, part.runs)
            runs = part.runs if follows else slot.load(part.name)
            added.append(runs)
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
            # Another process began the flow at the same moment. Its document counts, its number of slots above all:
            # with another number, both would apply the same partition in different slots, and neither would be fenced.
            begun = read_flow(state, *names) or begun
            check_origin(flow, begun, archive.info.id, cluster_id, noted, state)
    flow_map = FlowMap(state, *names, begun.slots, heads_of(noted, begun.slots))
    # Every slot's files are listed and read at the start, side by side: an object store answers slowly, but many at
    # once.
    with ThreadPoolExecutor(_THREADS) as pool:
        loading = [pool.submit(flow_map.slot, slot) for slot in range(begun.slots)]
        for each in loading:
            each.result()  # raises what went wrong
    status = read_flow_status(state, *names)
    return ApplySession(cluster, begun, noted, flow_map, status=status)
