"""What is still to be applied in a round: topics missing, made anew or lost, positions, and the round's result."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.models import Manifest
from kbackup.archive.reader import Archive
from kbackup.archive.restores.flow_map import MAP_SCHEMA, FlowMapPartName, SlotMap, by_incarnation, read_flow, slot_of
from kbackup.archive.restores.offset_map import Runs, runs_table
from kbackup.archive.restores.plan import UnitRange
from kbackup.archive.segments.table import (
    SCHEMA,
    Segment,
    from_batches,
    in_order,
    integers,
    of_topics,
    rows_where,
    with_checked_key,
)
from kbackup.errors import ClusterError
from kbackup.jobs.mirror.flow import AppliedPosition, FlowStatus, RemoteTopic
from kbackup.jobs.replay import committed_partitions, first_committed
from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.client import Properties
from kbackup.kafka.kernel_protocol import CommittedProgress
from kbackup.store.base import Store
from kbackup.types import Int64Array, TopicPartition


class PartitionApplied(NamedTuple):
    """Records that a round committed in one remote partition. Timestamps in ms; None if no record has one."""

    records: int
    bytes: int
    oldest: int | None
    newest: int | None


class Recreated(NamedTuple):
    """The source's topic was deleted and created again, or a log of it was cut (`kind`): `incarnation` continues in
    the remote topic, or is held back."""

    topic: str
    remote: str
    incarnation: int
    held_back: bool
    kind: Literal["recreated", "truncated"] = "recreated"

    @property
    def message(self) -> str:
        then = "is held back (kbackup.on.recreate = stop)" if self.held_back else "goes on in the same remote topic"
        if self.kind == "recreated":
            return f"topic {self.topic} was deleted and created again: its incarnation {self.incarnation} {then}"
        if not self.held_back:
            then += "; what the source still has is there twice"
        return f"a log of topic {self.topic} was cut: its incarnation {self.incarnation} {then}"


class DeletedRemote(NamedTuple):
    """A remote topic that was deleted in the target: it was created again, and `topic` is applied anew."""

    topic: str
    remote: str

    @property
    def message(self) -> str:
        return (
            f"remote topic {self.remote} was deleted in the target: every record of {self.topic} that the archive has "
            "is applied anew"
        )


class Lost(NamedTuple):
    """Records [`start`, `end`) of a partition of the source that the flow never applies. None: not known."""

    topic: str
    incarnation: int
    partition: int | None
    remote: str
    start: int | None
    end: int | None
    message: str


@dataclass(frozen=True)
class Applied:
    """Everything up to restore point `point` is committed in the target, but for what is held back.

    `positions` has all remote partitions of the flow, not only those of this round. `runs` are what the round added to
    the offset map (`archive.flow_map.SCHEMA`), `partitions` the counts of partitions with new records. `recreated` are
    the new incarnations that were noticed, `held_back` all of those that wait. `refused` says by remote topic why the
    target has no room for its records: they wait.
    """

    point: int
    records: int = 0
    bytes: int = 0
    positions: Mapping[TopicPartition, AppliedPosition] = field(default_factory=dict)
    partitions: Mapping[TopicPartition, PartitionApplied] = field(default_factory=dict)
    runs: pa.Table = field(default_factory=MAP_SCHEMA.empty_table)
    recreated: tuple[Recreated, ...] = ()
    held_back: tuple[Recreated, ...] = ()
    too_late: tuple[Lost, ...] = ()
    deleted: tuple[DeletedRemote, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def is_loss(self) -> bool:
        """Return whether the process ends with exit code 3 for this round."""
        return bool(self.recreated or self.held_back or self.too_late)


# Applied positions: how far the records of each remote partition are committed in the target.
#
# They are offsets of a consumer group on the target, committed in the transaction that carries the records. Nothing
# else says what comes next.


class PositionNote(NamedTuple):
    """The metadata of an applied position: `map_part` is the part of the slot's offset map that was committed with it,
    `point` the restore point that was applied then. `topic_id` is the id of the remote topic, '' if it is not
    known."""

    incarnation: int
    map_part: FlowMapPartName
    point: int
    topic_id: str = ""

    def __str__(self) -> str:
        return "/".join(map(str, self if self.topic_id else self[:3]))

    @classmethod
    def parse(cls, text: str) -> PositionNote | None:
        incarnation, name, point, topic_id = (*text.split("/", 3), "", "", "")[:4]
        part = FlowMapPartName.parse(name)
        return (
            cls(int(incarnation), part, int(point), topic_id)
            if part and incarnation.isdecimal() and point.isdecimal()
            else None
        )

    def is_of(self, topic_id: str) -> bool:
        """Return whether the remote topic is the one that the position was committed for, as far as that is known."""
        return topic_id in ("", self.topic_id) or not self.topic_id


class Noted(NamedTuple):
    """A committed position with its note."""

    position: AppliedPosition
    note: PositionNote

    @classmethod
    def of(cls, tp: TopicPartition, progress: CommittedProgress) -> Noted:
        """Parse a committed position; `ClusterError` where another program committed it."""
        note = PositionNote.parse(progress.note)
        if note is None:
            raise ClusterError(
                f"the applied position of {tp} on the target has no note of a mirror: {progress.note!r}",
                "reset that partition's offset: another program has committed to the flow's consumer group",
            )
        return cls(AppliedPosition(note.incarnation, progress.next), note)


def read_positions(cluster: Cluster, source: str, target: str) -> dict[TopicPartition, Noted]:
    """Return every applied position of a flow, as the target's consumer group has it."""
    group = layout.mirror_group(source, target)
    committed, refused = cluster.groups.committed([group])
    if refused:
        raise ClusterError(
            f"the applied positions can't be read: {refused[group]}", "let this user describe that group"
        )
    # a note is written with the NUL byte behind it that confluent-kafka wants
    return {
        c.tp: Noted.of(c.tp, CommittedProgress(c.offset, c.metadata.rstrip("\0"))) for c in committed.get(group, [])
    }


def read_heads(cluster: Cluster, store: Store, source: str, target: str) -> dict[int, FlowMapPartName]:
    """Return the last committed part of the offset map of each slot, for `archive.flow_map.open_map`. `store` is where
    the flow keeps its state."""
    flow = read_flow(store, source, target)
    return heads_of(read_positions(cluster, source, target), flow.slots) if flow is not None else {}


def heads_of(positions: Mapping[TopicPartition, Noted], slots: int) -> dict[int, FlowMapPartName]:
    """Return the last committed part of the offset map of each slot that has a position."""
    heads: dict[int, FlowMapPartName] = {}
    for tp, noted in positions.items():
        slot = slot_of(tp, slots)
        heads[slot] = max(noted.note.map_part, heads.get(slot, noted.note.map_part))
    return heads


# Read applied positions back that the target has forgotten, though the flow's offset map knows of them.
#
# A broker drops the offsets of a group without members after `offsets.retention.minutes`. The map says what was
# applied. Whether a slot's last transaction was committed, whose note is gone too, the target's log tells.


_TAIL = 100
"""Records of a partition that are looked for in the target: its last ones, since compaction may take others."""

_THREADS = 8


@dataclass
class Recovery:
    """Read positions back from the offset map. `remotes` are the remote topics, which exist."""

    cluster: Cluster
    target: Properties = field(repr=False)
    names: tuple[str, str]
    remotes: Collection[str]

    def positions(
        self, slots: Collection[SlotMap], known: Mapping[TopicPartition, Noted]
    ) -> dict[TopicPartition, Noted]:
        """Return the positions that are not among the `known` ones. A remote topic that was recreated has none: its
        records are applied from the start. `slots` are all of the flow; each is loaded up to its last committed part,
        which may be one that no known position names."""
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(lambda slot: self._go_on(slot, known), slots))
        restored: dict[TopicPartition, Noted] = {}
        last: dict[TopicPartition, Runs] = {}
        for slot in slots:
            for key in slot.incarnations:  # the newest comes last
                if key.remote in known or key.remote.topic not in self.remotes or slot.head is None:
                    continue
                source, target, count = slot.runs(key)
                position = AppliedPosition(key.incarnation, int(source[-1] + count[-1]))
                restored[key.remote] = Noted(position, PositionNote(key.incarnation, slot.head, 0))
                last[key.remote] = _tail(source, target, count)
        complete = self._with_last_records(last)
        return {tp: noted for tp, noted in restored.items() if tp in complete}

    def _with_last_records(self, last: Mapping[TopicPartition, Runs]) -> set[TopicPartition]:
        """Return the partitions whose last records in the map the target has, or had before retention deleted them. A
        log of the same length may hold other records: of a transaction that was aborted after the topic was recreated.
        """
        last = self._on_target(last)
        if not last:
            return set()
        ends = self.cluster.log_ends(last, "read_uncommitted")
        last = {tp: run for tp, run in last.items() if ends[tp] >= _end(run)}
        starts = self.cluster.log_starts(last)
        expired = {tp for tp, run in last.items() if starts[tp] >= _end(run)}
        remaining = runs_table({tp: run for tp, run in last.items() if tp not in expired})
        return expired | committed_partitions(self.target, layout.mirror_group(*self.names), remaining)

    def _go_on(self, slot: SlotMap, known: Collection[TopicPartition]) -> None:
        """Load the parts after the head that another part names, and the one after them if that was committed. A part
        with a partition whose position is known was given up: that position would name it."""
        slot.load(None)
        for name, runs in slot.followers():
            if not any(key.remote in known for key, _ in by_incarnation(runs)) and self._is_committed(name, runs):
                slot.load(name)
                return

    def _is_committed(self, name: FlowMapPartName, runs: pa.Table) -> bool:
        """Return whether the target holds the records of an offset map part. A transaction is complete or absent."""
        every = {key.remote: run for key, run in by_incarnation(runs)}
        rows = self._on_target(every)
        ends = self.cluster.log_ends(rows, "read_uncommitted")
        rows = {tp: run for tp, run in rows.items() if ends[tp] >= _end(run)}
        starts = self.cluster.log_starts(rows)
        whole = {tp: run for tp, run in rows.items() if starts[tp] <= int(run[1][0])}
        if not rows:
            return False
        if not whole:
            raise ClusterError(
                f"the applied positions of flow {'->'.join(self.names)} are gone from the target, and so are the "
                f"records of {min(rows)} by which to tell what part {name} of its offset map committed",
                "delete that remote topic: the next round applies it anew, from the archive's first record",
            )
        return first_committed(self.target, layout.mirror_group(*self.names), [runs_table(whole)]) is not None

    def _on_target(self, runs: Mapping[TopicPartition, Runs]) -> dict[TopicPartition, Runs]:
        """Return the runs of partitions that the target has. A recreated topic may have fewer."""
        topics = self.cluster.topics({tp.topic for tp in runs}) if runs else {}
        return {
            tp: run for tp, run in runs.items() if tp.topic in topics and tp.partition in topics[tp.topic].partitions
        }


def _tail(*runs: Int64Array) -> Runs:
    """Return the last records of the last run."""
    source, target, count = (column[-1:] for column in runs)
    skipped = np.maximum(count - _TAIL, 0)
    return source + skipped, target + skipped, count - skipped


def _end(runs: Runs) -> int:
    """Return the target offset after the last record."""
    return int(runs[1][-1] + runs[2][-1])


# Find records that a flow can't apply any more: they expired or were lost before the flow read them. Pure.


_KINDS = ("retention", "damaged")
"""Kinds of losses whose records are not in the archive. The archive still has the records of truncated and recreated
topics."""


def find_lost(
    archive: Archive,
    point: Manifest,
    topics: Sequence[RemoteTopic],
    before: Mapping[TopicPartition, AppliedPosition],
    after: Mapping[TopicPartition, AppliedPosition],
) -> tuple[Lost, ...]:
    """Return each range of records that the positions passed over since `before` because the archive lacks it. A range
    is passed once, so it is reported once. A partition's first position is taken for the start of its topic where the
    flow has applied that topic before; for a new topic nothing is lost."""
    moved = {tp: position for tp, position in after.items() if before.get(tp) != position}
    if not moved:
        return ()
    known: dict[str, int] = {}
    for tp, position in before.items():
        known[tp.topic] = min(position.incarnation, known.get(tp.topic, position.incarnation))
    sources = {topic.remote: topic.source for topic in topics}
    lost: list[Lost] = []
    gaps = _gaps(archive, point)
    for tp, position in sorted(moved.items()):
        first = before.get(tp)
        if first is None and tp.topic in known:
            first = AppliedPosition(known[tp.topic], 0)
        if first is None or tp.topic not in sources:
            continue
        source = sources[tp.topic]
        for incarnation, start, end, why in gaps.get((source, tp.partition), ()):
            begin = max(start, first.next) if incarnation == first.incarnation else start
            passed = (incarnation, end) <= position and (incarnation, end) > first and begin < end
            if passed:
                message = f"offsets {begin} to {end - 1} of {source}-{tp.partition}, or some of them, {why}"
                lost.append(Lost(source, incarnation, tp.partition, tp.topic, begin, end, message))
    return tuple(lost)


Gap = tuple[int, int, int, str]
"""Incarnation, start, end (exclusive), and why."""


def _gaps(archive: Archive, point: Manifest) -> dict[tuple[str, int], list[Gap]]:
    """Return the missing offsets of the archive, by topic and partition of the source, in order."""
    gaps_by_partition: dict[tuple[str, int], list[Gap]] = {}
    for key, gap in [*_expired(archive), *_losses(archive, point)]:
        gaps_by_partition.setdefault(key, []).append(gap)
    return {key: sorted(gaps) for key, gaps in gaps_by_partition.items()}


def _expired(archive: Archive) -> Iterator[tuple[tuple[str, int], Gap]]:
    for (topic, incarnation, partition), start in archive.state.starts.items():
        why = "expired in the archive before they were applied"
        yield (topic, partition), (incarnation, 0, start.start, why)


def _losses(archive: Archive, point: Manifest) -> Iterator[tuple[tuple[str, int], Gap]]:
    for row in archive.state.losses.dicts():
        if row["kind"] not in _KINDS or row["point"] > point.number:
            continue
        if row["partition"] is None or row["start"] is None or row["end"] is None:
            continue
        yield (
            (row["topic"], row["partition"]),
            (
                row["incarnation"],
                row["start"],
                row["end"],
                "were lost before they were archived" if row["kind"] == "retention" else "are damaged in the archive",
            ),
        )


# New incarnations of topics, and the positions that the flow reported last. Pure.


def reported_positions(
    status: FlowStatus | None, archive_id: str, positions: Mapping[TopicPartition, AppliedPosition]
) -> dict[TopicPartition, AppliedPosition]:
    """Return the positions that `status` was written with, as far as `positions` are beyond them: a round that
    failed may have committed some and reported none. Partitions that came since have none. Topics that the status does
    not know keep their positions."""
    if status is None or status.archive_id != archive_id:
        return dict(positions)
    topics = {topic.remote: topic for topic in status.topics if topic.incarnation >= 0}
    reported: dict[TopicPartition, AppliedPosition] = {}
    for tp, position in positions.items():
        topic = topics.get(tp.topic)
        if topic is None:
            reported[tp] = position
        elif tp.partition < len(topic.applied):
            reported[tp] = min(position, AppliedPosition(topic.incarnation, topic.applied[tp.partition]))
    return reported


def find_recreated(
    archive: Archive,
    point: Manifest,
    topics: Sequence[RemoteTopic],
    before: Mapping[TopicPartition, AppliedPosition],
    after: Mapping[TopicPartition, AppliedPosition],
) -> tuple[Recreated, ...]:
    """Return the topics of which a new incarnation has begun between two sets of positions."""
    begun, reached = _newest(before), _newest(after)
    return tuple(
        Recreated(t.source, t.remote, incarnation, False, incarnation_kind(archive, point, t.source, incarnation))
        for t in sorted(topics, key=lambda t: t.source)
        if (incarnation := reached.get(t.remote, 0)) > begun.get(t.remote, incarnation)
    )


def incarnation_kind(
    archive: Archive, point: Manifest, topic: str, incarnation: int
) -> Literal["recreated", "truncated"]:
    """Return why a topic has this incarnation: the archive notes a loss for each log that was cut."""
    cut = any(
        (row["kind"], row["topic"], row["incarnation"]) == ("truncated", topic, incarnation)
        and row["point"] <= point.number
        for row in archive.state.losses.dicts()
    )
    return "truncated" if cut else "recreated"


def _newest(positions: Mapping[TopicPartition, AppliedPosition]) -> dict[str, int]:
    """Return the newest incarnation of each remote topic."""
    reported: dict[str, int] = {}
    for tp, position in positions.items():
        reported[tp.topic] = max(position.incarnation, reported.get(tp.topic, position.incarnation))
    return reported


# Find the archived segments beyond the applied positions, in order of incarnation and offset. Pure.


_LARGE = 10_000  # rows from which on columns are compared instead of rows


@dataclass(frozen=True)
class Lives:
    """The incarnations of a topic that a round applies: from `first` to `last`."""

    topic: RemoteTopic
    first: int
    last: int


@dataclass(frozen=True)
class Pending:
    """The ranges to apply. `ranges` has them by remote partition, in order of incarnation."""

    ranges: dict[TopicPartition, list[UnitRange]] = field(default_factory=dict)
    held_back: tuple[Recreated, ...] = ()

    @property
    def segments(self) -> Iterable[Segment]:
        return (s for ranges in self.ranges.values() for each in ranges for s in each.segments)


def find_pending(
    archive: Archive,
    point: Manifest,
    topics: Sequence[RemoteTopic],
    positions: Mapping[TopicPartition, AppliedPosition],
    after: Mapping[str, int],
    stop: bool,
) -> Pending:
    """Return the segments beyond `positions` up to restore point `point`. `after` names, by topic, a restore point up
    to which everything is applied; by default 0. `stop`: a new incarnation of a topic is held back."""
    lives = topic_lives(point, topics, positions, stop)
    newest = {t.name: t.incarnation for t in point.topics}
    held_back = [
        Recreated(name, life.topic.remote, newest[name], True, incarnation_kind(archive, point, name, newest[name]))
        for name, life in sorted(lives.items())
        if life.last < newest[name]
    ]
    ranges: dict[TopicPartition, list[UnitRange]] = {}
    for (remote, _), segments in sorted(
        _by_partition(_segments(archive, point, lives, positions, after), lives).items()
    ):
        part = UnitRange(
            topic=segments[0].topic, partition=segments[0].partition, target=remote.topic, segments=tuple(segments)
        )
        ranges.setdefault(remote, []).append(part)
    return Pending(ranges, tuple(held_back))


def topic_lives(
    point: Manifest, topics: Sequence[RemoteTopic], positions: Mapping[TopicPartition, AppliedPosition], stop: bool
) -> dict[str, Lives]:
    """Return the incarnations to apply of each topic that the restore point has. A topic that was never applied begins
    with its newest one."""
    reached: dict[str, list[int]] = {}
    for tp, position in positions.items():
        reached.setdefault(tp.topic, []).append(position.incarnation)
    newest = {t.name: t.incarnation for t in point.topics}
    lives: dict[str, Lives] = {}
    for topic in topics:
        if topic.source not in newest:
            continue
        last, own = newest[topic.source], reached.get(topic.remote)
        if own is None:
            lives[topic.source] = Lives(topic, last, last)
        else:
            lives[topic.source] = Lives(topic, min(own), max(own) if stop else last)
    return lives


def _by_partition(
    segments: Iterable[Segment], lives: Mapping[str, Lives]
) -> dict[tuple[TopicPartition, int], list[Segment]]:
    """Segments by remote partition and incarnation."""
    by_partition: dict[tuple[TopicPartition, int], list[Segment]] = {}
    for segment in segments:
        remote = TopicPartition(lives[segment.topic].topic.remote, segment.partition)
        by_partition.setdefault((remote, segment.incarnation), []).append(segment)
    return by_partition


def _segments(
    archive: Archive,
    point: Manifest,
    lives: Mapping[str, Lives],
    positions: Mapping[TopicPartition, AppliedPosition],
    after: Mapping[str, int],
) -> list[Segment]:
    """Segments beyond the positions, in order."""
    segments: list[Segment] = []
    groups: dict[int, set[str]] = {}
    for name in lives:
        groups.setdefault(after.get(name, 0), set()).add(name)
    for number, names in groups.items():
        if number >= point.number:
            continue
        table = of_topics(archive.table(point.number, SCHEMA.names, number), names)
        if len(table) > _LARGE:
            table = rows_where(table, _beyond(table, lives, positions))
        segments += [s for s in from_batches(table.to_batches()) if _is_pending(s, lives[s.topic], positions)]
    return sorted(map(with_checked_key, segments), key=in_order)


def _is_pending(segment: Segment, life: Lives, positions: Mapping[TopicPartition, AppliedPosition]) -> bool:
    if not life.first <= segment.incarnation <= life.last:
        return False
    position = positions.get(TopicPartition(life.topic.remote, segment.partition))
    return position is None or (segment.incarnation, segment.last) >= (position.incarnation, position.next)


def _beyond(
    table: pa.Table, lives: Mapping[str, Lives], positions: Mapping[TopicPartition, AppliedPosition]
) -> npt.NDArray[np.bool_]:
    """bool[rows]: `_is_pending`, by columns. A partition's position is looked up once."""
    topics: list[Any] = table.column("topic").to_pylist()
    incarnation, partition, last = (integers(table, name) for name in ("incarnation", "partition", "last"))
    names, codes = np.unique(np.array(topics, object), return_inverse=True)
    keys = (codes.astype(np.int64) << 32) | partition
    unique, rows = np.unique(keys, return_inverse=True)
    at = np.zeros((len(unique), 2), np.int64)
    for n, key in enumerate(unique.tolist()):
        remote = lives[str(names[key >> 32])].topic.remote
        position = positions.get(TopicPartition(remote, key & 0xFFFFFFFF))
        if position is not None:
            at[n] = position
    begun, following = at[rows, 0], at[rows, 1]
    pending: npt.NDArray[np.bool_] = (incarnation > begun) | ((incarnation == begun) & (last >= following))
    return pending
