"""Positions of groups in a target, translated as MirrorMaker 2 does or exactly, and synced to the target's groups.

The store keeps 64 offset syncs of a partition, dense near the newest one and ever sparser before it. It answers with
the newest kept sync at or before an offset, plus 1 where they differ: records behind the sync may be missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from kbackup.archive.query.content import captured_groups
from kbackup.archive.reader import Archive
from kbackup.archive.restores.offset_map import OffsetMap
from kbackup.errors import ClusterError, RefusedError, UsageError, suggest_name
from kbackup.kafka.control.cluster import Cluster
from kbackup.kafka.small_topic import read_records
from kbackup.mirror.apply.pending import Recovery, check_origin, heads_of, read_positions
from kbackup.mirror.flow import AppliedPosition, Flow, RemoteTopic
from kbackup.mirror.flow_map import FlowMap, open_map, read_flow, slot_of
from kbackup.mirror.records import Checkpoint, OffsetSync
from kbackup.mirror.topics import reason_to_skip
from kbackup.store.base import Store
from kbackup.types import CommittedOffset, TopicPartition

SYNCS = 64
"""Offset syncs that are kept of a partition."""

BEFORE_FIRST = -1
"""The answer for an offset before every kept sync."""


class OffsetSyncStore:
    """The offset syncs of a flow, by source partition."""

    def __init__(self) -> None:
        self._kept: dict[TopicPartition, list[OffsetSync]] = {}

    def add(self, sync: OffsetSync) -> None:
        """Take the next offset sync of the topic."""
        kept = self._kept.get(sync.tp)
        # A sync behind the newest one: the source's topic began anew, and the older syncs speak of another log. Java's
        # readers fill all slots with the one sync as well.
        if kept is None or kept[0].upstream > sync.upstream:
            self._kept[sync.tp] = [sync] * SYNCS
        else:
            _update(kept, sync)

    def translate(self, tp: TopicPartition, upstream: int) -> int | None:
        """Return the target's offset for an offset of the source's partition; None if no sync is known."""
        kept = self._kept.get(tp)
        if kept is None:
            return None
        sync = next((s for s in kept if s.upstream <= upstream), None)
        if sync is None:
            return BEFORE_FIRST
        return sync.offset if sync.upstream == upstream else sync.offset + 1


def _update(kept: list[OffsetSync], sync: OffsetSync) -> None:
    """Put `sync` in front. Each slot's sync moves to a later slot as long as it is near enough to the slot before
    (`_is_near`) and far enough from its neighbours (`_is_apart`); syncs are compared by identity, as in Java."""
    # Java's loops, step by step. Another way to thin the syncs would be simpler, but MirrorMaker 2's answer depends on
    # which of them stay, and this store must give the same answer.
    before = list(kept)
    replacement, at = sync, 0
    kept[0] = sync
    for slot in range(1, SYNCS):
        while True:
            old = before[at]
            apart = _is_apart(kept[slot - 1], old, slot - 1)
            usable = (
                apart
                and _is_near(kept[slot - 1], old, slot - 1, slot)
                and (slot + 1 >= SYNCS or _is_apart(old, kept[slot + 1], slot))
            )
            if usable:
                replacement = old
            skipped = not apart or (at + 1 < SYNCS and old is before[at + 1])
            at += usable or skipped
            if not skipped or at >= slot:
                break
        if _is_near(kept[slot - 1], kept[slot], slot - 1, slot):
            return
        kept[slot] = replacement


def _is_near(newer: OffsetSync, older: OffsetSync, i: int, j: int) -> bool:
    """Java's invariant B: a sync in slot `j` is at most 2^j - 2^i before the one in slot `i`."""
    bound = _long(older.upstream + (1 << j) - (1 << i))
    return newer is older or bound < 0 or newer.upstream <= bound


def _is_apart(newer: OffsetSync, older: OffsetSync, i: int) -> bool:
    """Java's invariant C: the sync in slot `i` is at least 2^(i-2) behind the next one."""
    bound = _long(older.upstream + (1 << max(i - 2, 0)))
    return newer is older or 0 <= bound <= newer.upstream


def _long(number: int) -> int:
    """Wrap a number as Java's long does: the bounds above overflow for the late slots, and Java tests for that."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


class Translator(Protocol):
    """Translates committed offsets of the source: exactly (`ExactTranslator`), or as MirrorMaker 2 does
    (`OffsetSyncStore`)."""

    def translate(self, tp: TopicPartition, upstream: int) -> int | None:
        """Return the target's offset for an offset of the source's partition. None or -1 if none is known."""


class Maps(Protocol):
    """A flow's offset map: of a remote partition for source offsets of one incarnation; None if none was applied."""

    def partition(self, remote: TopicPartition, incarnation: int) -> OffsetMap | None: ...


class AppliedTopics(NamedTuple):
    """What the target has of a flow: the remote topics, and by remote partition the applied positions and the offset
    map."""

    topics: Sequence[RemoteTopic]
    positions: Mapping[TopicPartition, AppliedPosition]
    maps: Maps

    @property
    def remote_names(self) -> dict[str, str]:
        """Return the name in the target of each topic of the source."""
        return {topic.source: topic.remote for topic in self.topics}


@dataclass
class ExactTranslator:
    """Translates by the offset map. `remote` and `incarnations` are by topic of the source.

    The answer is the first record at or after the committed offset; behind the last applied record the target's next
    offset, so that what is applied later is never skipped. There is no answer while a partition's position is in an
    older incarnation than the group's offset. Before the first applied record there is one only if the target's log
    begins with that record: others may have written what comes before, such as a MirrorMaker 2 that the flow replaced.
    """

    remote: Mapping[str, str]
    incarnations: Mapping[str, int]
    positions: Mapping[TopicPartition, AppliedPosition]
    maps: Maps
    _runs: dict[TopicPartition, OffsetMap | None] = field(default_factory=dict)
    """The map of each partition that was asked for: many groups ask for the same ones."""

    def translate(self, tp: TopicPartition, upstream: int) -> int | None:
        if tp not in self._runs:
            self._runs[tp] = self._read_runs(tp)
        runs = self._runs[tp]
        if runs is None or not len(runs.source):
            return None
        mapped = runs.map(upstream)
        is_before_first = mapped.how == "log start"
        if is_before_first and mapped.offset > 0:
            return None
        return mapped.offset

    def _read_runs(self, tp: TopicPartition) -> OffsetMap | None:
        """Return the map of a partition; None if the newest incarnation is not applied yet."""
        target = TopicPartition(self.remote[tp.topic], tp.partition)
        incarnation = self.incarnations[tp.topic]
        position = self.positions.get(target)
        if position is None or position.incarnation != incarnation:
            return None
        return self.maps.partition(target, incarnation)


@dataclass(frozen=True)
class GroupSync:
    """`written` counts the offsets set by group; `held_back` has, by group, the reason why nothing was set."""

    written: dict[str, int]
    held_back: dict[str, str]


def sync_group_offsets(checkpoints: Iterable[Checkpoint], cluster: Cluster) -> GroupSync:
    """Set the offsets of `checkpoints` in the target's groups of the same names, as MirrorMaker 2 does: in groups that
    are empty or absent, and only forward. A group with members is held back, also one that gets a member meanwhile.
    """
    by_group: dict[str, list[Checkpoint]] = {}
    for checkpoint in checkpoints:
        by_group.setdefault(checkpoint.group, []).append(checkpoint)
    # A group whose members are at work here has positions of its own: to move them would skip or repeat its records.
    members, held_back = cluster.groups.members(by_group)
    for group, live in members.items():
        if live:
            held_back[group] = f"it has {live}"
    free = [group for group in by_group if group not in held_back]
    committed, unread = cluster.groups.committed(free)
    held_back |= unread
    due: dict[str, list[CommittedOffset]] = {}
    for group, offsets in committed.items():
        forward = forward_offsets(by_group[group], offsets)
        if forward:
            due[group] = forward
    # The brokers refuse a group that has got a member since: then its members go first, too.
    written: dict[str, int] = {}
    for group, why in cluster.groups.commit_all(due).items():
        if why:
            held_back[group] = why
        else:
            written[group] = len(due[group])
    return GroupSync(written, held_back)


def forward_offsets(checkpoints: Iterable[Checkpoint], committed: Iterable[CommittedOffset]) -> list[CommittedOffset]:
    """Return the offsets of a group's checkpoints that are beyond what the group has `committed` in the target."""
    # Only forward, as a group that ran here may have read on by itself.
    own = {each.tp: each.offset for each in committed}
    forward: list[CommittedOffset] = []
    for checkpoint in checkpoints:
        if own.get(checkpoint.tp, -1) < checkpoint.offset:
            forward.append(CommittedOffset(checkpoint.tp, checkpoint.offset, None, checkpoint.metadata))
    return forward


class UnknownGroupError(UsageError):
    """A flow knows no position of a group. Another flow may."""


@dataclass(frozen=True, slots=True)
class Translated:
    """Positions of a group in one partition. `committed` is the group's offset in the source as of the restore point,
    `checkpoint` what `RemoteClusterUtils.translateOffsets` returns, `exact` the answer of the offset map. None: not
    known."""

    topic: str
    partition: int
    committed: int | None
    checkpoint: int | None
    exact: int | None


@dataclass(frozen=True, slots=True)
class Translation:
    """`offsets` are in order of remote topic and partition. `forgotten` are the partitions without an exact answer
    because the target has lost their applied position, with the reason why the offset map lacks it."""

    flow: str
    group: str
    restore_point: int
    captured_at: str
    offsets: tuple[Translated, ...]
    forgotten: Mapping[str, str] = field(default_factory=dict)


def translate_group(flow: Flow, group: str, archive: Archive, state: Store, cluster: Cluster) -> Translation:
    """Translate the positions of a group as of the newest restore point. `state` is where the flow keeps its state,
    `cluster` the target's. `UnknownGroupError` for a group of which neither the archive nor the target knows a
    position."""
    point = archive.head
    if point is None:
        raise RefusedError(f"the archive of {flow.source} has no restore point", "run kbackup mirror first")
    states = [state for state in point.topics if reason_to_skip(flow, state.name) is None]
    groups, _ = captured_groups(archive, states)
    remote = {topic.name: flow.policy.format_remote_topic(flow.source, topic.name) for topic in states}
    offsets = groups[group].offsets if group in groups else ()
    committed = {TopicPartition(remote[offset.topic], offset.partition): offset for offset in offsets}
    # From the topic, not from the map: this answer is the one that Java's clients get, whoever wrote the topic.
    checkpoints = read_checkpoints(flow, group, cluster)
    if not committed and not checkpoints:
        hint = suggest_name(group, groups, "'kbackup groups show' lists the groups of an archive")
        raise UnknownGroupError(f"flow {flow.name} knows no position of group {group}", hint)
    flow_map, positions, doubt = _applied(flow, archive.info.id, committed, state, cluster)
    incarnations = {topic.name: topic.incarnation for topic in point.topics}
    translator = ExactTranslator(remote, incarnations, positions, flow_map)
    translated: list[Translated] = []
    # A partition may have a checkpoint alone: a MirrorMaker 2 that ran before has written it.
    for tp in sorted({*committed, *checkpoints}):
        offset = committed.get(tp)
        in_source: int | None = None
        exact: int | None = None
        if offset is not None:
            in_source = offset.offset
            exact = translator.translate(TopicPartition(offset.topic, offset.partition), in_source)
        checkpoint = checkpoints.get(tp)
        translated.append(Translated(tp.topic, tp.partition, in_source, checkpoint, exact))
    forgotten: dict[str, str] = {}
    for tp, offset in sorted(committed.items()):
        # The map has records of the partition, so it was applied once: the target has lost the position.
        if tp not in positions and len(flow_map.partition(tp, incarnations[offset.topic]).source):
            forgotten[str(tp)] = doubt
    captured_at = archive.groups(point).captured_at
    return Translation(flow.name, group, point.number, captured_at, tuple(translated), forgotten)


def read_checkpoints(flow: Flow, group: str, cluster: Cluster) -> dict[TopicPartition, int]:
    """Return the checkpoints of a group in the target: the last one of each partition, as Java's clients read them."""
    topic = flow.policy.checkpoints_topic(flow.source)
    if not cluster.topics([topic]):
        return {}
    records = read_records(flow.client("target"), "target", topic, Checkpoint.decode)
    return {checkpoint.tp: checkpoint.offset for checkpoint in records if checkpoint.group == group}


def _applied(
    flow: Flow, archive_id: str, partitions: Iterable[TopicPartition], state: Store, cluster: Cluster
) -> tuple[FlowMap, Mapping[TopicPartition, AppliedPosition], str]:
    """Return a flow's offset map, its applied positions, and why positions that the target has expired were not read
    back: those of `partitions` are read back from the offset map, where the target's log agrees."""
    names = (flow.source, flow.target)
    doubt = "the target holds other records than the map says"
    noted = read_positions(cluster, *names)
    cluster_id, _ = cluster.connect()
    check_origin(flow, read_flow(state, *names), archive_id, cluster_id, noted, state)
    flow_map = open_map(state, *names)
    if flow_map.slots:
        flow_map.heads = heads_of(noted, flow_map.slots)
        missing = [tp for tp in partitions if tp not in noted]
        numbers = {slot_of(tp, flow_map.slots) for tp in missing}
        slots = [flow_map.slot(number) for number in numbers]
        topics = {tp.topic for tp in missing}
        recovery = Recovery(cluster, cluster.connection.properties, names, topics)
        try:
            noted = recovery.positions(slots, noted) | noted
        except ClusterError as error:
            # Translating only reads: the partitions that have their positions are answered, the others get this reason.
            doubt = error.message
    return flow_map, {tp: each.position for tp, each in noted.items()}, doubt
