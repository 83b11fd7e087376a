"""MirrorMaker 2's internal topics: names, heartbeats, checkpoints and offset syncs, as a flow writes them."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from kbackup.archive.models import GroupOffset, Manifest, TopicState
from kbackup.archive.query.content import captured_groups
from kbackup.archive.reader import Archive
from kbackup.archive.restores.offset_map import OffsetMap
from kbackup.errors import ClusterError, KbackupError, UnreachableError, UsageError
from kbackup.kafka.client import Properties
from kbackup.kafka.control.cluster import Cluster
from kbackup.kafka.control.topics import TopicToCreate
from kbackup.kafka.small_topic import RecordWriter, read_records
from kbackup.mirror.flow import AppliedPosition, Flow
from kbackup.mirror.positions import AppliedTopics, ExactTranslator, OffsetSyncStore, Translator
from kbackup.mirror.records import Checkpoint, Heartbeat, OffsetSync, fits
from kbackup.types import Int64Array, TopicPartition


@dataclass(frozen=True)
class InternalTopic:
    """`factor_key` is the key of the properties file that gives `replication_factor`. `in_source`: whether the topic is
    in the flow's source, not in its target."""

    name: str
    replication_factor: int
    factor_key: str = "replication.factor"
    in_source: bool = False


@dataclass(frozen=True)
class InternalNames:
    """`syncs_in_source`: whether the apply half writes offset syncs to the source, not to the target."""

    flow: Flow
    syncs_in_source: bool

    @property
    def heartbeats(self) -> InternalTopic:
        """Return the topic of this flow's own heartbeats."""
        name = self.flow.policy.heartbeats_topic()
        factor = self.flow.heartbeats_replication_factor
        return InternalTopic(name, factor, "heartbeats.topic.replication.factor")

    @property
    def checkpoints(self) -> InternalTopic:
        name = self.flow.policy.checkpoints_topic(self.flow.source)
        factor = self.flow.checkpoints_replication_factor
        return InternalTopic(name, factor, "checkpoints.topic.replication.factor")

    @property
    def offset_syncs(self) -> InternalTopic:
        """Return the topic of offset syncs. In the source it is named after the target, in the target after the
        source."""
        flow = self.flow
        other = flow.target if self.syncs_in_source else flow.source
        name = flow.policy.offset_syncs_topic(other)
        factor = flow.offset_syncs_replication_factor
        return InternalTopic(name, factor, "offset-syncs.topic.replication.factor", self.syncs_in_source)

    def written(self) -> list[InternalTopic]:
        """Return the topics that the flow writes. They are created where they are missing.

        The topic of the source's heartbeats in the target shows Java's clients by its name that the source is upstream.
        """
        flow = self.flow
        topics: list[InternalTopic] = []
        if flow.emit_heartbeats.enabled:
            topics.append(self.heartbeats)
        if flow.heartbeats_replicated:
            remote_heartbeats = flow.policy.format_remote_topic(flow.source, flow.policy.heartbeats_topic())
            topics.append(InternalTopic(remote_heartbeats, flow.replication_factor))
        if flow.emit_checkpoints.enabled:
            topics.append(self.checkpoints)
        if flow.emit_offset_syncs:
            topics.append(self.offset_syncs)
        return topics


R = TypeVar("R", Checkpoint, OffsetSync)


class JournalTopic(Protocol[R]):
    """The topic of a journal. `read` returns all its records; `write` appends some and returns when brokers have
    them."""

    def read(self) -> Iterable[R]: ...

    def write(self, records: Sequence[R]) -> None: ...


class Journal(Generic[R]):
    """The last record of each key in an internal topic.

    The topic is read when its last records are first asked for, and again after a write that failed: some of its
    records may be there.
    """

    def __init__(self, topic: JournalTopic[R]) -> None:
        self._topic: JournalTopic[R] = topic
        self._last: dict[bytes, R] = {}
        self._known = False

    def last(self) -> Mapping[bytes, R]:
        """Return the last record of each key."""
        if not self._known:
            self._begin()
            for record in self._topic.read():
                self._add(record)
            self._known = True
        return self._last

    def append(self, records: Sequence[R]) -> None:
        if not records:
            return
        self.last()
        # Until the write has ended well, nobody knows which of its records the topic has.
        self._known = False
        self._topic.write(records)
        for record in records:
            self._add(record)
        self._known = True

    def _begin(self) -> None:
        self._last = {}

    def _add(self, record: R) -> None:
        self._last[record.key] = record


class SyncJournal(Journal[OffsetSync]):
    """The offset syncs of a flow, and the syncs that Java's readers retain."""

    _store: OffsetSyncStore | None = None

    def store(self) -> OffsetSyncStore:
        """Return the syncs that a reader of the whole topic retains."""
        if self._store is None:
            # The topic is read again from its start: which syncs a reader keeps depends on all that came before.
            self._known = False
            self._store = OffsetSyncStore()
        self.last()
        return self._store

    def _begin(self) -> None:
        super()._begin()
        if self._store is not None:
            self._store = OffsetSyncStore()

    def _add(self, record: OffsetSync) -> None:
        super()._add(record)
        if self._store is not None:
            self._store.add(record)


class InternalTopics:
    """A flow's internal topics, and the producers that write them. One object serves all rounds of a process:

    with InternalTopics(flow, cluster) as target: ...

    Entering creates missing topics. `warnings` lists what differs from the properties file. `cluster` is the target's.
    """

    def __init__(self, flow: Flow, cluster: Cluster) -> None:
        self.flow, self.cluster = flow, cluster
        self.warnings: list[str] = []
        self.synced: dict[TopicPartition, AppliedPosition] = {}
        """By remote partition: the position up to which offset syncs are written."""
        self._writers: dict[bool, RecordWriter] = {}

    def __enter__(self) -> Self:
        """Create the topics that the flow writes, where they are missing. Topics that exist stay as they are."""
        due = self.names.written()
        for in_source in (False, True):
            topics = [topic for topic in due if topic.in_source is in_source]
            if topics:
                cluster = self._source_cluster() if in_source else self.cluster
                _create(cluster, topics)
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    @functools.cached_property
    def names(self) -> InternalNames:
        """Return the names; where offset syncs go to the source, this checks that the source can be reached."""
        flow = self.flow
        in_source = flow.emit_offset_syncs and flow.offset_syncs_location == "source"
        # MirrorMaker 2 always reaches its source. An apply half may see no more of the source than the archive: then
        # the offset syncs go to the target, as with `offset-syncs.topic.location = target`.
        if in_source:
            try:
                self._source_cluster().connect()
            except (UnreachableError, UsageError) as error:
                in_source = False
                self.warnings.append(
                    f"flow {flow.name}: offset syncs go to {flow.target}, not to {flow.source} as "
                    f"offset-syncs.topic.location says: {error.message}"
                )
        return InternalNames(flow, in_source)

    @functools.cached_property
    def sync_journal(self) -> SyncJournal:
        return SyncJournal(FlowTopic(self, self.names.offset_syncs, OffsetSync))

    @functools.cached_property
    def checkpoint_journal(self) -> Journal[Checkpoint]:
        return Journal(FlowTopic(self, self.names.checkpoints, Checkpoint))

    def properties(self, topic: InternalTopic) -> tuple[Properties, str]:
        """Return the properties of the cluster that a topic is in, and that cluster's role."""
        role: Literal["source", "target"] = "source" if topic.in_source else "target"
        return self.flow.client(role), role

    def writer(self, topic: InternalTopic) -> RecordWriter:
        """Return the producer for a topic; it is kept until the end."""
        if topic.in_source not in self._writers:
            self._writers[topic.in_source] = RecordWriter(*self.properties(topic))
        return self._writers[topic.in_source]

    def _source_cluster(self) -> Cluster:
        return Cluster(self.flow.client("source"), "source")


@dataclass(frozen=True)
class FlowTopic(Generic[R]):
    """The records of one kind in an internal topic of a flow, which a `Journal` keeps."""

    topics: InternalTopics
    topic: InternalTopic
    kind: type[R]

    def read(self) -> Iterable[R]:
        properties, role = self.topics.properties(self.topic)
        return read_records(properties, role, self.topic.name, self.kind.decode)

    def write(self, records: Sequence[R]) -> None:
        self.topics.writer(self.topic).write(self.topic.name, records)


def _create(cluster: Cluster, topics: list[InternalTopic]) -> None:
    """Create the topics that are missing. Raise the first refusal."""
    present = cluster.topics({topic.name for topic in topics})
    missing = [topic for topic in topics if topic.name not in present]
    errors = _ask_to_create(cluster, missing)
    if errors:
        raise errors[0]


def refused_internal_topics(cluster: Cluster, topics: Sequence[InternalTopic]) -> tuple[str, ...]:
    """Return why a cluster would not create internal topics that are missing there, in words."""
    return tuple(str(error) for error in _ask_to_create(cluster, topics, dry_run=True))


def _ask_to_create(cluster: Cluster, topics: Sequence[InternalTopic], *, dry_run: bool = False) -> list[KbackupError]:
    """Create internal topics; `dry_run`: the cluster only checks whether it would. Return why some are refused."""
    compact = {"cleanup.policy": "compact"}
    due = [TopicToCreate(topic.name, 1, topic.replication_factor, compact) for topic in topics]
    refused = cluster.topic_admin.create(due, exist_ok=True, dry_run=dry_run)
    return [_explained(topic, refused[topic.name]) for topic in topics if topic.name in refused]


def _explained(topic: InternalTopic, error: KbackupError) -> KbackupError:
    """Return the refusal of an internal topic with a hint of what to set in the properties file."""
    if not isinstance(error, ClusterError):
        return error
    hint = f"set {topic.factor_key} to less than {topic.replication_factor} where there are fewer brokers"
    if "collides" in error.message:
        hint = (
            f"delete the topic that it collides with, which differs from {topic.name} in '.' and '_' only, or "
            "set another replication.policy.separator"
        )
    return ClusterError(error.message, hint)


_TIMEOUT = 10.0  # s; an older heartbeat is of no use


class HeartbeatClock:
    """Writes a heartbeat at once and then every `emit.heartbeats.interval.seconds`, in a thread of its own:

        with HeartbeatClock(flow, target) as clock: ...

    Does nothing where the flow emits none. While the target is away, the clock keeps trying. `count` are the heartbeats
    that were written.
    """

    def __init__(self, flow: Flow, target: InternalTopics) -> None:
        self.flow = flow
        self.count = 0
        self._topic = target.names.heartbeats.name
        self._writer = RecordWriter(*target.properties(target.names.heartbeats), timeout=_TIMEOUT)
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"heartbeats {flow.name}", daemon=True)

    def __enter__(self) -> Self:
        if self.flow.emit_heartbeats.enabled:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the thread and wait for its end."""
        self._stop.set()
        while self._thread.is_alive():
            # Again and again: the thread may begin a write to a target that is away just after the one before was
            # failed.
            self._writer.abort()
            self._thread.join(0.1)

    def check(self) -> None:
        """Raise the error of the newest heartbeat, where it failed."""
        if (error := self._error) is not None:
            raise error

    def _run(self) -> None:
        """Write heartbeats until the clock is closed. Each is due an interval after the last one was due; beats that a
        slow one delays are left out."""
        flow, due = self.flow, time.monotonic()
        try:
            while True:
                pause = max(0.0, due - time.monotonic())
                if self._stop.wait(pause):
                    break
                due = max(due + flow.emit_heartbeats.seconds, time.monotonic())
                now = int(time.time() * 1000)
                try:
                    self._writer.write(self._topic, [Heartbeat(flow.source, flow.target, now)], timestamp=now)
                    self._error = None
                    self.count += 1
                except KbackupError as error:
                    # A heartbeat that fails because the clock is being closed was failed by `__exit__` itself.
                    self._error = None if self._stop.is_set() else error
        except Exception as error:  # noqa: BLE001 (`check` raises it in the thread that can act on it)
            # An internal error ends the clock: it would only come again with every heartbeat.
            self._error = error
        finally:
            self._writer.close()


class Emitted(NamedTuple):
    """`current` are the checkpoints of now, whether written or not; `written` are the checkpoints that were due."""

    current: list[Checkpoint]
    written: list[Checkpoint]


def emit_checkpoints(
    flow: Flow,
    target: InternalTopics,
    archive: Archive,
    point: Manifest,
    applied: AppliedTopics,
    groups: Collection[str] | None = None,
) -> Emitted:
    """Write the checkpoints of a restore point's `groups` that are due; None: all that the flow selects. `current` is
    for `positions.sync_group_offsets`; by MirrorMaker 2's rule, it has the last one written of each group and
    partition.

    Call `emit_offset_syncs` before: `kbackup.checkpoints = mm2` translates by its records.
    """
    remote = applied.remote_names
    states = [topic for topic in point.topics if topic.name in remote]
    # The offsets of these topics alone: of others the target has no records that an offset could mean.
    captured, _ = captured_groups(archive, states)
    offsets: dict[str, Sequence[GroupOffset]] = {}
    for name, group in captured.items():
        is_selected = flow.groups(name) if groups is None else name in groups
        if is_selected:
            offsets[name] = group.offsets
    is_exact = flow.checkpoint_rule == "exact"
    translator = exact_translator(states, applied) if is_exact else target.sync_journal.store()
    current = [*checkpoints(offsets, remote, translator)]
    if not current or not flow.emit_checkpoints.enabled:
        return Emitted(current, [])
    last = target.checkpoint_journal.last()
    due = [checkpoint for checkpoint in current if is_due(checkpoint, last.get(checkpoint.key), is_exact)]
    target.checkpoint_journal.append(due)
    if is_exact:
        return Emitted(current, due)
    # By MirrorMaker 2's rule a group's answer may become less while the group stays where it is, as readers keep ever
    # fewer syncs of the past. The target's groups get what was written, which goes back only with the group in the
    # source. The journal has it by now: `last` is the same mapping.
    newest = [last[checkpoint.key] for checkpoint in current]
    return Emitted(newest, due)


def exact_translator(states: Iterable[TopicState], applied: AppliedTopics) -> ExactTranslator:
    """Return the translator by the offset map. `states` are the source's topics in the restore point."""
    incarnations = {topic.name: topic.incarnation for topic in states}
    return ExactTranslator(applied.remote_names, incarnations, applied.positions, applied.maps)


def checkpoints(
    groups: Mapping[str, Sequence[GroupOffset]], remote: Mapping[str, str], translator: Translator
) -> Iterator[Checkpoint]:
    """Yield the checkpoint of each group and partition whose position is known. `remote` are the names of the source's
    topics in the target."""
    for group, offsets in groups.items():
        for committed in offsets:
            offset = translator.translate(TopicPartition(committed.topic, committed.partition), committed.offset)
            # -1 stands for a position before every offset sync: MirrorMaker 2 writes no checkpoint of it.
            if offset is not None and offset >= 0:
                tp = TopicPartition(remote[committed.topic], committed.partition)
                # The field takes no null, and 32,767 bytes at most. A group's metadata may be longer where its brokers
                # allow it.
                metadata = committed.metadata if fits(committed.metadata) else ""
                yield Checkpoint(group, tp, committed.offset, offset, metadata)


def is_due(checkpoint: Checkpoint, last: Checkpoint | None, exact: bool) -> bool:
    """Return whether a checkpoint is written: the first, one that went back in the source, or one that advanced in the
    target. An `exact` one also where it went back in the target: the remote topic was recreated."""
    # MirrorMaker 2 writes no checkpoint that stays where it is: the topic would grow with every interval.
    if last is None or checkpoint.upstream < last.upstream or checkpoint.offset > last.offset:
        return True
    return exact and checkpoint.offset < last.offset


# Offset syncs, from which MirrorMaker 2's own readers translate: made from the flow's offset map, thinned.


_EVEN = 32
"""Syncs at the end of a round with `offset.lag.max` between them; before those, the distance doubles from sync to sync.
Java's readers keep 64, ever sparser, so that more would be of no use to them."""


def emit_offset_syncs(flow: Flow, target: InternalTopics, applied: AppliedTopics) -> int:
    """Write the offset syncs of records that were applied since the last ones, and return their number.

    A partition whose position is unchanged costs nothing. Syncs that a killed process did not write are written now:
    the last sync is read from the topic.
    """
    if not flow.emit_offset_syncs:
        return 0
    sources = {topic.remote: topic.source for topic in applied.topics}
    due: dict[TopicPartition, AppliedPosition] = {}
    for remote, position in sorted(applied.positions.items()):
        if remote.topic in sources and target.synced.get(remote) != position:
            due[remote] = position
    # The topic is read at the first need alone: a flow without new records asks the cluster for nothing.
    last = target.sync_journal.last() if due else {}
    syncs: list[OffsetSync] = []
    for remote, position in due.items():
        runs = applied.maps.partition(remote, position.incarnation)
        if runs is not None:
            tp = TopicPartition(sources[remote.topic], remote.partition)
            last_sync = last.get(OffsetSync(tp, 0, 0).key)
            syncs += offset_syncs(tp, runs, last_sync, flow.offset_lag_max)
    # In this order: positions whose syncs could not be written are due again in the next round.
    target.sync_journal.append(syncs)
    target.synced.update(due)
    return len(syncs)


def offset_syncs(tp: TopicPartition, runs: OffsetMap, last: OffsetSync | None, lag: int) -> list[OffsetSync]:
    """Return the syncs for records of `runs` behind the `last` sync: one every `lag` + 1 target offsets, and one for
    the last record. Where `last` is no record of `runs`, another log begins: its first record gets one, too."""
    if not len(runs.source):
        return []
    # Records are counted through all runs: `begins` has the number of each run's first record, and at its end how many
    # there are. So the gaps between runs, which transaction markers leave in the target, don't matter below.
    begins = np.concatenate([[0], np.cumsum(runs.count)])
    total = int(begins[-1])
    known = -1 if last is None else _number(runs, begins, last)
    base = int(runs.target[0]) if last is None or known < 0 else last.offset
    newest = int(runs.target[-1] + runs.count[-1]) - 1
    distance = lag + 1
    offsets = base + distance * _steps((newest - base) // distance)
    # An offset in a gap has no record: its sync is the next record's.
    # The run that an offset lies in, or the one before its gap: clipped to that run's length, the number is then the
    # one of the next run's first record.
    run = np.maximum(np.searchsorted(runs.target, offsets, side="right") - 1, 0)
    numbers = begins[run] + np.clip(offsets - runs.target[run], 0, runs.count[run])
    first = [0] if known < 0 else []
    candidates = np.concatenate([first, numbers, [total - 1]]).astype(np.int64)
    is_new = (candidates > known) & (candidates < total)
    chosen = np.unique(candidates[is_new])
    run = np.searchsorted(begins, chosen, side="right") - 1
    into_run = chosen - begins[run]
    upstreams: list[int] = (runs.source[run] + into_run).tolist()
    downstreams: list[int] = (runs.target[run] + into_run).tolist()
    return [OffsetSync(tp, upstream, offset) for upstream, offset in zip(upstreams, downstreams, strict=True)]


def _number(runs: OffsetMap, begins: Int64Array, sync: OffsetSync) -> int:
    """Return the number of a sync's record in `runs`, -1 if it is not there."""
    at = int(np.searchsorted(runs.source, sync.upstream, side="right")) - 1
    into = sync.upstream - int(runs.source[at])
    there = at >= 0 and into < runs.count[at] and int(runs.target[at]) + into == sync.offset
    return int(begins[at]) + into if there else -1


def _steps(count: int) -> Int64Array:
    """Return which of the numbers 1 to `count` get a sync, in order."""
    even = np.arange(max(1, count - _EVEN + 1), count + 1, dtype=np.int64)
    # 32, 64, 128 … back from the end; 58 doublings are as many as an int64 holds.
    back = np.int64(_EVEN) << np.arange(58, dtype=np.int64)
    sparse = np.sort(count - back[back < count])
    return np.concatenate([sparse, even])
