"""What is still to be applied in a round: topics missing, made anew or lost, positions, and the round's result."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.deletions import deleted_offsets
from kbackup.archive.models import Manifest
from kbackup.archive.reader import Archive
from kbackup.archive.restores.offset_map import Runs, runs_table
from kbackup.archive.restores.plan import UnitRange
from kbackup.archive.restores.unmapped import UnmappedRecords
from kbackup.archive.segments.table import Segment, Segments
from kbackup.archive.segments.window import EVERY_OFFSET, Window, without
from kbackup.errors import ClusterError, MismatchError
from kbackup.jobs.replay import committed_partitions, first_committed
from kbackup.kafka.client import Properties
from kbackup.kafka.control.cluster import Cluster
from kbackup.kafka.control.topics import Topic
from kbackup.mirror.flow import AppliedPosition, Flow, FlowStatus, RemoteTopic
from kbackup.mirror.flow_map import MAP_SCHEMA, FlowMapPartName, FlowState, SlotMap, by_incarnation, slot_of
from kbackup.native.contract import CommittedProgress
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from kbackup.util.system import in_threads


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
    the offset map (`offset_map.MAP_SCHEMA`), `partitions` the counts of partitions with new records. `recreated` are
    the new incarnations that were noticed, `held_back` all of those that wait. `refused` says by remote topic why its
    records wait: the target refuses them or has no room for them, or they can't be read. `unmapped` are records whose
    schemas could not be mapped, and which were applied as they are.
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
    unmapped: tuple[UnmappedRecords, ...] = ()
    seconds: float = 0.0

    @property
    def is_loss(self) -> bool:
        """Return whether the process ends with exit code 3 for this round."""
        return bool(self.recreated or self.held_back or self.too_late or self.unmapped)


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
        text = f"{self.incarnation}/{self.map_part}/{self.point}"
        return f"{text}/{self.topic_id}" if self.topic_id else text

    @classmethod
    def parse(cls, text: str) -> PositionNote | None:
        """Parse a note; None for a text that no mirror has written."""
        incarnation, _, rest = text.partition("/")
        name, _, rest = rest.partition("/")
        # a note ends with the restore point if the id of the topic was not known
        point, _, topic_id = rest.partition("/")
        part = FlowMapPartName.parse(name)
        if part is None or not incarnation.isdecimal() or not point.isdecimal():
            return None
        return cls(int(incarnation), part, int(point), topic_id)

    def is_of(self, topic_id: str) -> bool:
        """Return whether the remote topic is the one that the position was committed for, as far as that is known."""
        # Brokers before 2.8 give topics no id, and notes of an older kbackup have none: then the name has to do.
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
    positions: dict[TopicPartition, Noted] = {}
    for offset in committed.get(group, []):
        # A note is written with the NUL byte behind it that confluent-kafka wants.
        note = offset.metadata.rstrip("\0")
        positions[offset.tp] = Noted.of(offset.tp, CommittedProgress(offset.offset, note))
    return positions


def check_origin(
    flow: Flow, begun: FlowState | None, archive_id: str, cluster_id: str, positions: Collection[object], state: Store
) -> None:
    """Raise `MismatchError` if a flow was begun from another archive than `archive_id`, or onto another cluster than
    `cluster_id`. `begun` is the flow's document in `state`, None if there is none; `positions` are its applied
    positions in the target."""
    if begun is not None and begun.archive_id != archive_id:
        raise MismatchError(
            f"flow {flow.name} was begun from archive {begun.archive_id}; this is archive {archive_id}",
            "name the archive that it was begun from, or give the source another alias",
        )
    if begun is not None and begun.target_cluster_id != cluster_id:
        raise MismatchError(
            f"flow {flow.name} was begun onto cluster {begun.target_cluster_id}; the target is cluster {cluster_id}",
            "give the new target another alias",
        )
    # A map part is written before the position that names it is committed. So positions without any map belong to a
    # flow whose state is elsewhere.
    parts = state.list(layout.mirror_key(flow.source, flow.target, "map/"))
    if positions and next(iter(parts), None) is None:
        raise MismatchError(
            f"the target holds applied positions of flow {flow.name}, and {state.url} has no offset map of that flow: "
            "it was begun from another archive with the same aliases, or with another --state",
            "name that archive, or that --state; to mirror this archive as well, give its source another alias",
        )


def heads_of(positions: Mapping[TopicPartition, Noted], slots: int) -> dict[int, FlowMapPartName]:
    """Return the last committed part of the offset map of each slot that has a position."""
    heads: dict[int, FlowMapPartName] = {}
    # A slot's partitions share the map: the position that was committed last names its newest part.
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

        def load_slot(slot: SlotMap) -> None:
            self._load_committed_parts(slot, known)

        in_threads(load_slot, slots, _THREADS)
        restored: dict[TopicPartition, Noted] = {}
        last: dict[TopicPartition, Runs] = {}
        for slot in slots:
            if slot.head is None:
                continue
            for key in slot.incarnations:  # the newest comes last, and replaces the ones before
                if key.remote in known or key.remote.topic not in self.remotes:
                    continue
                # The last run ends where the applied records end.
                source, target, count = (column[-1:] for column in slot.runs(key))
                position = AppliedPosition(key.incarnation, int(source[-1] + count[-1]))
                restored[key.remote] = Noted(position, PositionNote(key.incarnation, slot.head, 0))
                skipped = np.maximum(count - _TAIL, 0)
                last[key.remote] = source + skipped, target + skipped, count - skipped
        complete = self._still_there(last)
        return {tp: noted for tp, noted in restored.items() if tp in complete}

    def _still_there(self, last: Mapping[TopicPartition, Runs]) -> set[TopicPartition]:
        """Return the partitions whose `last` applied records the target holds, or has let expire.

        A log of the same length may hold other records: of a transaction that was aborted after the topic was
        recreated. So the last records must be there, unless retention deleted them."""
        # To take a hidden topic for one that is gone would apply its records a second time: it is an error here.
        if not last:
            return set()
        topics = self.cluster.topics({tp.topic for tp in last})
        whole, starts = self._long_enough(last, topics)
        expired: set[TopicPartition] = set()
        remaining: dict[TopicPartition, Runs] = {}
        for tp, run in whole.items():
            if starts[tp] >= _end(run):
                expired.add(tp)
            else:
                remaining[tp] = run
        group = layout.mirror_group(*self.names)
        return expired | committed_partitions(self.target, group, runs_table(remaining))

    def _load_committed_parts(self, slot: SlotMap, known: Collection[TopicPartition]) -> None:
        """Load the parts after the head that another part names, and the one after them if that was committed. A part
        with a partition whose position is known was given up: that position would name it."""
        slot.load(None)
        for name, runs in slot.followers():
            is_given_up = any(key.remote in known for key, _ in by_incarnation(runs))
            if not is_given_up and self._is_committed(name, runs):
                slot.load(name)
                return

    def _is_committed(self, name: FlowMapPartName, runs: pa.Table) -> bool:
        """Return whether the target holds the records of an offset map part. A transaction is complete or absent."""
        rows_of = {key.remote: run for key, run in by_incarnation(runs)}
        # A topic that is hidden from our user is held back, and judged when it is seen again.
        topics, _ = self.cluster.described_topics({tp.topic for tp in rows_of})
        rows, starts = self._long_enough(rows_of, topics)
        if not rows:
            return False
        # A transaction that wrote to several partitions is judged by any of them. One whose log was cut at the front by
        # retention can't tell an aborted transaction from expired records.
        whole = {tp: run for tp, run in rows.items() if starts[tp] <= int(run[1][0])}
        if not whole:
            raise ClusterError(
                f"the applied positions of flow {'->'.join(self.names)} are gone from the target, and so are the "
                f"records of {min(rows)} by which to tell what part {name} of its offset map committed",
                "delete that remote topic: the next round applies it anew, from the archive's first record",
            )
        return first_committed(self.target, layout.mirror_group(*self.names), [runs_table(whole)]) is not None

    def _long_enough(
        self, runs: Mapping[TopicPartition, Runs], topics: Mapping[str, Topic]
    ) -> tuple[dict[TopicPartition, Runs], Mapping[TopicPartition, int]]:
        """Return the runs of partitions whose log in the target reaches to their end, and where these logs start.
        `topics` are the target's topics; a recreated one may have fewer partitions."""
        present = [tp for tp in runs if tp.topic in topics and tp.partition in topics[tp.topic].partitions]
        ends = self.cluster.log_ends(present, "read_uncommitted") if present else {}
        whole = {tp: runs[tp] for tp in present if ends[tp] >= _end(runs[tp])}
        return whole, self.cluster.log_starts(whole) if whole else {}


def _end(runs: Runs) -> int:
    """Return the target offset after the last record."""
    return int(runs[1][-1] + runs[2][-1])


_WHY_LOST = {"retention": "were lost before they were archived", "damaged": "are damaged in the archive"}
"""By the kind of a loss. The archive still has the records of truncated and recreated topics."""


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
        return ()  # most rounds of a quiet flow: the archive's tables of losses are not even read
    known: dict[str, int] = {}
    for tp, position in before.items():
        known[tp.topic] = min(position.incarnation, known.get(tp.topic, position.incarnation))
    sources = {topic.remote: topic.source for topic in topics}
    lost: list[Lost] = []
    gaps = _gaps(archive, point)
    for tp, position in sorted(moved.items()):
        first = before.get(tp)
        if first is None and tp.topic in known:
            # A partition that was added to a known topic: what the archive lacks at its start was never applied.
            first = AppliedPosition(known[tp.topic], 0)
        if first is None or tp.topic not in sources:
            continue
        source = sources[tp.topic]
        for incarnation, start, end, why in sorted(gaps.get((source, tp.partition), ())):
            begin = max(start, first.next) if incarnation == first.incarnation else start
            if first < (incarnation, end) <= position and begin < end:
                message = f"offsets {begin} to {end - 1} of {source}-{tp.partition}, or some of them, {why}"
                lost.append(Lost(source, incarnation, tp.partition, tp.topic, begin, end, message))
    return tuple(lost)


def _gaps(archive: Archive, point: Manifest) -> Mapping[tuple[str, int], list[tuple[int, int, int, str]]]:
    """Return (incarnation, start, end, why) of the archive's missing offsets, by topic and partition of the source."""
    gaps: defaultdict[tuple[str, int], list[tuple[int, int, int, str]]] = defaultdict(list)
    for (topic, incarnation, partition), start in archive.state.starts.items():
        gap = (incarnation, 0, start.start, "expired in the archive before they were applied")
        gaps[topic, partition].append(gap)
    for row in archive.state.losses.dicts():
        unknown = None in (row["partition"], row["start"], row["end"])
        if row["kind"] in _WHY_LOST and row["point"] <= point.number and not unknown:
            gap = (row["incarnation"], row["start"], row["end"], _WHY_LOST[row["kind"]])
            gaps[row["topic"], row["partition"]].append(gap)
    return gaps


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
    begun = _newest(before)
    reached = _newest(after)
    recreated: list[Recreated] = []
    for topic in sorted(topics, key=lambda topic: topic.source):
        incarnation = reached.get(topic.remote, 0)
        # A topic that comes for the first time was not recreated, whatever its incarnation in the archive.
        if incarnation > begun.get(topic.remote, incarnation):
            kind = incarnation_kind(archive, point, topic.source, incarnation)
            recreated.append(Recreated(topic.source, topic.remote, incarnation, False, kind))
    return tuple(recreated)


def incarnation_kind(
    archive: Archive, point: Manifest, topic: str, incarnation: int
) -> Literal["recreated", "truncated"]:
    """Return why a topic has this incarnation: the archive notes a loss for each log that was cut."""
    for row in archive.state.losses.dicts():
        is_of_topic = (row["topic"], row["incarnation"]) == (topic, incarnation)
        if row["kind"] == "truncated" and is_of_topic and row["point"] <= point.number:
            return "truncated"
    return "recreated"


def _newest(positions: Mapping[TopicPartition, AppliedPosition]) -> dict[str, int]:
    """Return the newest incarnation of each remote topic."""
    newest: dict[str, int] = {}
    for tp, position in positions.items():
        newest[tp.topic] = max(position.incarnation, newest.get(tp.topic, position.incarnation))
    return newest


class TopicIncarnations(NamedTuple):
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
    def segments(self) -> list[Segment]:
        """Return the segments of all ranges. A segment counts for each partition that it is applied to."""
        segments: list[Segment] = []
        for ranges in self.ranges.values():
            for range_ in ranges:
                segments += range_.segments
        return segments

    def without(self, remotes: Collection[str]) -> Pending:
        """Return the same without the ranges of some remote topics."""
        if not remotes:
            return self
        ranges = {tp: of_partition for tp, of_partition in self.ranges.items() if tp.topic not in remotes}
        return Pending(ranges, self.held_back)


def find_pending(
    archive: Archive,
    point: Manifest,
    topics: Sequence[RemoteTopic],
    positions: Mapping[TopicPartition, AppliedPosition],
    after: Mapping[str, int],
    stop: bool,
) -> Pending:
    """Return the segments beyond `positions` up to restore point `point`, and in a partition up to the first record
    that it holds: a mirror keeps the order of records. Records whose keys were deleted at the source by then are left
    out. `after` names, by topic, a restore point up to which everything is applied; by default 0. `stop`: a new
    incarnation of a topic is held back."""
    newest = {topic.name: topic.incarnation for topic in point.topics}
    applied = incarnations_to_apply(newest, topics, positions, stop)
    held_back = held_back_incarnations(archive, point, newest, applied)
    # A restore point holds the records of transactions that were not decided when it was taken; the next one adds them.
    # A mirror keeps the order of records, so it does not go beyond the first one that is held.
    ends = {place: partition.unbroken for place, partition in point.partitions().items() if partition.held}
    deleted = deleted_offsets(archive.deletions(point))
    found: list[tuple[TopicPartition, int, UnitRange]] = []
    for number, names in by_restore_point(applied, after).items():
        # These topics are applied up to this restore point already: their segments need not even be read.
        if number >= point.number:
            continue
        segments, _, places = archive.ordered(number, point.number, names)
        for (topic, incarnation, partition), rows in places.items():
            own = applied[topic]
            remote = TopicPartition(own.topic.remote, partition)
            position = positions.get(remote, AppliedPosition(0, 0))
            if not max(position.incarnation, own.first) <= incarnation <= own.last:
                continue
            place = topic, incarnation, partition
            # Offsets begin anew with each incarnation.
            following = position.next if incarnation == position.incarnation else 0
            due = segments_to_apply(segments[rows], following, ends.get(place))
            if due:
                unit = range_to_apply(topic, remote, tuple(due), deleted.get(place, ()))
                found.append((remote, incarnation, unit))
    ranges: defaultdict[TopicPartition, list[UnitRange]] = defaultdict(list)
    for remote, _, unit in sorted(found, key=_by_partition_and_incarnation):
        ranges[remote].append(unit)
    return Pending(ranges, held_back)


def _by_partition_and_incarnation(found: tuple[TopicPartition, int, UnitRange]) -> tuple[TopicPartition, int]:
    remote, incarnation, _ = found
    return remote, incarnation


def held_back_incarnations(
    archive: Archive, point: Manifest, newest: Mapping[str, int], applied: Mapping[str, TopicIncarnations]
) -> tuple[Recreated, ...]:
    """Return the topics whose `newest` incarnation waits, as the flow stops where a topic was recreated."""
    held_back: list[Recreated] = []
    for name, each in sorted(applied.items()):
        if each.last < newest[name]:
            kind = incarnation_kind(archive, point, name, newest[name])
            held_back.append(Recreated(name, each.topic.remote, newest[name], True, kind))
    return tuple(held_back)


def by_restore_point(topics: Iterable[str], after: Mapping[str, int]) -> dict[int, set[str]]:
    """Return the topics by the restore point up to which they are applied: their segments are read in one go."""
    since: defaultdict[int, set[str]] = defaultdict(set)
    for topic in topics:
        since[after.get(topic, 0)].add(topic)
    return since


def segments_to_apply(segments: Segments, following: int, end: int | None) -> Segments:
    """Return the segments of a partition that have records from offset `following` on, up to `end` if that is given."""
    if end is not None:
        segments = segments.where(segments.integers("first") < end)
    if following:
        segments = segments.where(segments.integers("last") >= following)
    return segments


def range_to_apply(
    topic: str, remote: TopicPartition, segments: tuple[Segment, ...], deleted: Sequence[tuple[int, int]]
) -> UnitRange:
    """Return the range of these segments, without the records whose keys were `deleted` at the source before they were
    applied."""
    window = Window(ranges=without(EVERY_OFFSET, deleted)) if deleted else None
    return UnitRange(topic=topic, partition=remote.partition, target=remote.topic, segments=segments, window=window)


def incarnations_to_apply(
    newest: Mapping[str, int],
    topics: Sequence[RemoteTopic],
    positions: Mapping[TopicPartition, AppliedPosition],
    stop: bool,
) -> dict[str, TopicIncarnations]:
    """Return the incarnations to apply of each topic that has a `newest` one. A topic that was never applied begins
    with that."""
    reached: defaultdict[str, list[int]] = defaultdict(list)
    for tp, position in positions.items():
        reached[tp.topic].append(position.incarnation)
    incarnations: dict[str, TopicIncarnations] = {}
    for topic in topics:
        last = newest.get(topic.source)
        if last is None:
            continue
        own = reached.get(topic.remote, [last])
        # Partitions may stand at different incarnations. What one of them has reached is applied to the others as well,
        # also if the flow stops where a topic is recreated: that decision was made before.
        upto = max(own) if stop else last
        incarnations[topic.source] = TopicIncarnations(topic, min(own), upto)
    return incarnations
