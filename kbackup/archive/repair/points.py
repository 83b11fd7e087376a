"""Restore points made of the segments that are there, where no catalog lists them or their manifest is lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import msgspec
import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.catalog.operations import drop_superseded
from kbackup.archive.catalog.points import loss_rows, point_row
from kbackup.archive.catalog.state import IncarnationRow, LossRow, PointRow, State
from kbackup.archive.models import Group, GroupOffset, Groups, Loss, Manifest, Metadata, PartitionState, TopicState
from kbackup.archive.repair.base import Documents, RepairBase, Sizes
from kbackup.archive.repair.segments import damaged_ranges
from kbackup.archive.run import TOOL, WritingRun, put_capture, totals_of
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.window import without
from kbackup.errors import CorruptError, NotFoundError
from kbackup.formats.index import decode_group_offsets
from kbackup.metadata.entities import NotCarried, TopicMetadata
from kbackup.store.base import Store
from kbackup.types import Incarnation, IncarnationPartition
from kbackup.util.text import join_names
from kbackup.util.times import now

_SHOWN = 5
Captured = Mapping[str, Sequence[tuple[int, TopicMetadata]]]
"""By name: each topic as metadata.json of a restore point has it, with the number of the restore point, in order."""


def captured_topics(documents: Documents) -> Captured:
    """Return the topics of all whole metadata documents."""
    # By the number in the key: a later restore point with the same settings refers to this document, and writes none.
    topics: dict[str, list[tuple[int, TopicMetadata]]] = defaultdict(list)
    for key, (document, _) in documents.items():
        parsed = layout.parse_point_key(key)
        if parsed is not None and isinstance(document, Metadata):
            number = parsed[0]
            for topic in document.topics:
                topics[topic.name].append((number, topic))
    for entries in topics.values():
        entries.sort(key=lambda entry: entry[0])
    return dict(topics)


def topic_at(captured: Captured, name: str, topic_id: str, number: int) -> TopicMetadata | None:
    """Return the topic as the last capture up to restore point `number` has it, or else as the first capture after
    that. If `topic_id` is empty, return a topic only where all documents mean the same one."""
    entries = captured.get(name, ())
    ids = {topic.id for _, topic in entries}
    if not topic_id and len(ids) > 1:
        # Two topics had this name, one after the other, and nothing says which of them is meant.
        return None
    closest: TopicMetadata | None = None
    for at, topic in entries:
        # Older brokers give no ids: a document without one may mean this topic.
        may_be_it = not topic_id or topic.id in ("", topic_id)
        if may_be_it and (closest is None or at <= number):
            closest = topic
    return closest


# A restore point that is made of segments and group files alone: by an adoption, or where manifests are lost.


def topic_states(
    number: int,
    partitions: Iterable[IncarnationPartition],
    segments: Mapping[IncarnationPartition, Sequence[Segment]],
    ids: Mapping[Incarnation, str],
    before: Mapping[IncarnationPartition, PartitionState],
    groups: Groups,
) -> tuple[TopicState, ...]:
    """Return the topics of restore point `number` with all of `partitions`. A partition ends after its last segment, or
    where it ended `before`. Group offsets beyond that show that its log was longer."""
    highest = _highest_offsets(groups)
    # Rising, so that the highest partition of a topic counts. Kafka numbers partitions from 0 without gaps.
    counts: dict[Incarnation, int] = {}
    for name, incarnation, partition in sorted(partitions):
        counts[name, incarnation] = partition + 1
    states: list[TopicState] = []
    for key, count in counts.items():
        name, incarnation = key
        own: list[PartitionState] = []
        for partition in range(count):
            place = (name, incarnation, partition)
            own_segments = segments.get(place, ())
            own.append(_partition_state(place, own_segments, before.get(place), highest[name, partition]))
        state = TopicState(
            name=name,
            id=ids.get(key, ""),
            incarnation=incarnation,
            captured=number,
            state="present",
            partitions=tuple(own),
        )
        states.append(state)
    return tuple(states)


def _highest_offsets(groups: Groups) -> dict[tuple[str, int], int]:
    """Return the highest offset that any group has committed, by topic and partition; 0 for all others."""
    highest: dict[tuple[str, int], int] = defaultdict(int)
    for group in groups.groups:
        for committed in group.offsets:
            key = (committed.topic, committed.partition)
            highest[key] = max(committed.offset, highest[key])
    return highest


def _partition_state(
    place: IncarnationPartition, segments: Sequence[Segment], before: PartitionState | None, highest_offset: int
) -> PartitionState:
    """Return the partition with `segments` added to what it was `before`."""
    partition = place[2]
    if before is None:
        first = segments[0].first if segments else 0
        before = PartitionState(
            partition=partition, start=first, end=first, log_start=first, log_end=0, records=0, bytes=0
        )
    end = before.end
    if segments:
        end = max(end, segments[-1].last + 1)
    # A restore point's counts are of all records since the partition's start: the new segments add to those before.
    # Records of open transactions that the restore point before left out are held no longer where a segment has them.
    added = [(segment.first, segment.last + 1) for segment in segments]
    held = without(before.held, added)
    records = sum(segment.count for segment in segments)
    size = sum(segment.bytes for segment in segments)
    return PartitionState(
        partition=partition,
        start=before.start,
        end=end,
        log_start=before.log_start,
        # A group that has committed an offset has read to there, so the log went on at least as far.
        log_end=max(end, before.log_end, highest_offset),
        records=before.records + records,
        bytes=before.bytes + size,
        held=held,
    )


def groups_of_files(
    store: Store, keys: Iterable[str], topics: Iterable[Incarnation], root: str = layout.TOPICS
) -> Groups:
    """Return the group offsets of `topics` from the group files among `keys`. Damaged files are skipped."""
    folders: dict[str, str] = {}
    for name, incarnation in topics:
        folder = layout.topic_dir(name, incarnation, root)
        folders[folder] = name
    offsets: dict[str, list[GroupOffset]] = defaultdict(list)
    for key in sorted(keys):
        folder, _, file = key.rpartition("/")
        partition = layout.parse_group_offsets(file)
        topic = folders.get(f"{folder}/")
        if partition is None or topic is None:
            continue
        with suppress(CorruptError, NotFoundError):
            committed = decode_group_offsets(store.get(key), key)
            for group, offset in committed.items():
                offsets[group].append(GroupOffset(topic=topic, partition=partition, offset=offset))
    groups: list[Group] = []
    for name, own in sorted(offsets.items()):
        groups.append(Group(group=name, type="", state="", offsets=tuple(own)))
    return Groups(captured_at=now(), groups=tuple(groups))


def manifest_behind(
    writing: WritingRun,
    head: Manifest | None,
    segments: Sequence[Segment],
    ids: Mapping[Incarnation, str],
    keys: Iterable[str],
    captured: Captured,
    number: int,
    *,
    last: bool,
) -> Manifest:
    """Return restore point `number` of `segments` behind `head`: their topics, with the partitions and configs that
    the topics had when they were `captured`. The `last` restore point has the other topics of `head` as well, as they
    are there."""
    by_partition: dict[IncarnationPartition, list[Segment]] = defaultdict(list)
    for segment in segments:
        by_partition[segment.incarnation_partition].append(segment)
    new = {place[:2] for place in by_partition}
    old = head.incarnations() if head is not None else {}
    before = _partitions_before(old, new)
    known: list[TopicMetadata] = []
    # A partition that never had a record has no segment: the capture tells that it was there.
    places = set(by_partition).union(before)
    for key in sorted(new):
        topic = topic_at(captured, key[0], ids.get(key, ""), number)
        if topic is not None:
            known.append(topic)
            places.update((*key, partition) for partition in range(topic.partitions))
    groups = groups_of_files(writing.store, keys, new)
    made = list(topic_states(number, places, by_partition, ids, before, groups))
    carried: list[TopicState] = []
    if last:
        names = {topic.name for topic in made}
        # Several restore points may be made, of former incarnations first. Only the last one stands for the present: a
        # restore of the newest restore point must find every topic, also those without new segments.
        carried = [topic for topic in old.values() if topic.name not in names]
        names.update(topic.name for topic in carried)
        behind = head.number if head is not None else 0
        for empty, settings in _empty_topics(captured, behind, names, ids, number):
            made.append(empty)
            known.append(settings)
    cluster_id = head.cluster_id if head is not None else ""
    found = manifest_of_files(writing, number, made, segments, groups, cluster_id=cluster_id, settings=known)
    return _following(found, head, carried)


def _partitions_before(
    old: Mapping[Incarnation, TopicState], incarnations: Collection[Incarnation]
) -> dict[IncarnationPartition, PartitionState]:
    """Return the partitions of some incarnations as the restore point before has them."""
    before: dict[IncarnationPartition, PartitionState] = {}
    for key in incarnations:
        if key in old:
            for partition in old[key].partitions:
                before[*key, partition.partition] = partition
    return before


def _following(found: Manifest, head: Manifest | None, carried: Sequence[TopicState]) -> Manifest:
    """Return the manifest of segments behind `head`, with the topics that it takes over from there."""
    topics = [*found.topics, *carried]
    topics.sort(key=lambda topic: topic.name)
    if head is None:
        return msgspec.structs.replace(found, topics=tuple(topics), isolation_level="read_committed", deletions=None)
    # A carried topic is as of its own run, whose capture has its configs and its groups.
    needed = {topic.captured for topic in carried}
    captures = [capture for capture in head.captures if capture.number in needed]
    captures.extend(found.captures)
    return msgspec.structs.replace(
        found,
        topics=tuple(topics),
        captures=tuple(captures),
        isolation_level=head.isolation_level,
        deletions=head.deletions,  # restores go on without the keys that were deleted at the source
    )


def _empty_topics(
    captured: Captured, head: int, names: Collection[str], ids: Mapping[Incarnation, str], number: int
) -> list[tuple[TopicState, TopicMetadata]]:
    """Return the topics, apart from `names`, that the newest capture has and no segment, if that capture is newer than
    restore point `head`."""
    newest = 0
    for entries in captured.values():
        at, _ = entries[-1]  # in order of restore points
        newest = max(newest, at)
    if newest <= head:
        # The manifest of `head` knows that capture, and so has its empty topics.
        return []
    no_groups = Groups(captured_at="", groups=())
    topics: list[tuple[TopicState, TopicMetadata]] = []
    for name, entries in sorted(captured.items()):
        at, topic = entries[-1]
        if at != newest or name in names:
            # A topic that the newest capture lacks was deleted by then.
            continue
        key = (name, _incarnation_of(name, topic.id, ids))
        places = [(*key, partition) for partition in range(topic.partitions)]
        for state in topic_states(number, places, {}, {key: topic.id}, {}, no_groups):
            topics.append((state, topic))
    return topics


def _incarnation_of(name: str, topic_id: str, ids: Mapping[Incarnation, str]) -> int:
    """Return the first incarnation of that name that has the id, or else a new number behind all of them."""
    highest = 0
    for (other, incarnation), known in ids.items():
        if other != name:
            continue
        if known == topic_id:
            return incarnation
        highest = max(highest, incarnation)
    return highest + 1


def manifest_of_files(
    writing: WritingRun,
    number: int,
    topics: Sequence[TopicState],
    segments: Sequence[Segment],
    groups: Groups,
    losses: Sequence[Loss] = (),
    warnings: Sequence[str] = (),
    cluster_id: str = "",
    settings: Sequence[TopicMetadata] = (),
) -> Manifest:
    """Write the documents of restore point `number` of `writing`, and return its manifest. `settings` are the configs
    that are known."""
    at = now()
    unknown = NotCarried(part=None, what="cluster", reason="failed", why="nothing tells of it")
    metadata = Metadata(
        captured_at=at, cluster_id=cluster_id, brokers=0, topics=tuple(settings), not_carried=(unknown,)
    )
    # The documents come before the manifest that refers to them, as in a backup.
    capture = put_capture(writing, number, at, groups, metadata)
    partitions = sum(len(topic.partitions) for topic in topics)
    totals = totals_of(segments, topics=len(topics), partitions=partitions, groups=len(groups.groups))
    with_settings = {topic.name for topic in settings}
    lacking = not_known(topics, with_settings)
    return Manifest(
        archive_id=writing.archive_id,
        number=number,
        run=writing.run,
        previous=writing.previous,
        origin="repair",
        tool=TOOL,
        started_at=at,
        committed_at=at,
        cluster_id=cluster_id,
        losses=tuple(losses),
        warnings=tuple(warnings),
        not_known=tuple(lacking),
        totals=totals,
        captures=(capture,),
        topics=tuple(topics),
    )


def not_known(topics: Sequence[TopicState], known: Collection[str] = ()) -> list[str]:
    """Describe what a restore point made from files alone lacks. Configs of the topics `known` are known."""
    if not topics:
        return []
    names = [topic.name for topic in topics if topic.name not in known]
    without_id = [topic.name for topic in topics if not topic.id]
    positions = "group positions are those of the group files"
    lacking: list[str] = []
    if names:
        lacking.append(partitions_not_known(names))
        positions = f"configs and replication factor of {join_names(names, _SHOWN)}; {positions}"
    lacking += [positions, "ACLs, users and settings of the cluster"]
    if without_id:
        lacking.append(f"Kafka's ids of {join_names(without_id, _SHOWN)}")
    return lacking


def partitions_not_known(names: Collection[str]) -> str:
    return f"partitions behind the last one with records of {join_names(sorted(names), _SHOWN)}"


# Restore points and incarnations that are found in a store and that no catalog lists.


def listed_manifests(state: State, documents: Documents) -> dict[int, Manifest]:
    """Return, by number, the manifests of restore points of `state` that have the listed checksum."""
    manifests: dict[int, Manifest] = {}
    for point in state.restore_points:
        document, _ = documents.get(point.documents[0], (None, None))
        if isinstance(document, Manifest) and document.checksum == point.manifest:
            manifests[point.number] = document
    return manifests


def unlisted_points(base: RepairBase, documents: Documents) -> dict[int, tuple[Manifest, PointRow]]:
    """Return, by number, the whole manifests of restore points that the base lacks. Where two have one number, return
    the later one.

    A number below the next one of the newest catalog is given away: such a restore point is returned only if the table
    of restore points may have lost its row. If the base is whole, only restore points of the open run are returned: the
    catalog of that run may be lost, and no later run has given the number away.
    """
    state = base.state
    known = set(state.numbers.tolist())
    may_lack_rows = "points" in base.stale or base.committed.catalog is None
    least = 0 if may_lack_rows else state.next_point
    open_run = state.open_run.run if state.open_run is not None else ""
    points: list[tuple[Manifest, PointRow]] = []
    for document, ref in documents.values():
        if not isinstance(document, Manifest) or document.archive_id != state.archive_id:
            continue
        if document.number < least or document.number in known:
            continue
        if base.is_whole and document.run != open_run:
            continue
        if state.past_manifests.get(document.number) == document.checksum:  # this one was let go
            continue
        points.append((document, point_row(document, ref.key)))
    points.sort(key=lambda entry: (entry[0].number, entry[0].committed_at))
    # Two runs may have written documents for one number, and only the later one can have committed: the earlier one was
    # fenced off. In this order the later manifest takes the place of the earlier.
    by_number: dict[int, tuple[Manifest, PointRow]] = {}
    for manifest, point in points:
        by_number[manifest.number] = (manifest, point)
    return by_number


def lives_of(state: State, manifests: Mapping[int, Manifest], sizes: Sizes) -> list[IncarnationRow]:
    """Return the incarnations of the restore points, from their manifests, the table and the rows of segments. Numbers
    of folders and reservations stay taken.

    A topic stays in all later restore points, until another incarnation takes its place.
    """
    newest = max(manifests, default=0)
    topics = manifests[newest].incarnations() if newest else {}
    is_newest = state.newest is None or state.newest.number <= newest
    seen = _points_with(state, manifests)
    firsts = {key: min(numbers) for key, numbers in seen.items() if numbers}
    ids = {key: life.topic_id for key, life in state.lives.items()}
    for manifest in manifests.values():
        for key, topic in manifest.incarnations().items():
            ids[key] = topic.id
    lives: list[IncarnationRow] = []
    for key in sorted(_folders(sizes).union(seen)):
        known = state.lives.get(key)
        if key not in firsts:
            # A folder without restore points, or a number that was reserved. The number stays taken: a new incarnation
            # under it would write into the folder of the old one.
            retired = known is None or known.retired
            lives.append(IncarnationRow(*key, ids.get(key, ""), None, None, retired))
            continue
        # The first restore point of each later incarnation: where one begins, this one has ended.
        successors = [first for other, first in firsts.items() if other[0] == key[0] and other > key]
        taken_over = min(successors, default=0)
        is_alive = key in topics
        if not is_newest:
            # The newest manifest is lost. Only the table of incarnations says which topics there were then.
            is_alive = known is None or known.last is None
        ended: int | None = None
        if taken_over or not is_alive:
            # Restore points whose manifests are lost may lie between the last one that is seen to have the topic and
            # the one where the next incarnation begins.
            numbers = [number for number in state.numbers.tolist() if number < taken_over]
            ended = max(seen[key].union(numbers))
        lives.append(IncarnationRow(*key, ids.get(key, ""), firsts[key], ended, False))
    return drop_superseded(lives)


def _points_with(state: State, manifests: Mapping[int, Manifest]) -> dict[Incarnation, set[int]]:
    """Return, by incarnation, the restore points that are known to have it: by manifests, segments, or the table."""
    seen: dict[Incarnation, set[int]] = defaultdict(set)
    for number, manifest in manifests.items():
        for key in manifest.incarnations():
            seen[key].add(number)
    for name, incarnation, point in set(state.segments.rows("topic", "incarnation", "point")):
        seen[name, incarnation].add(point)
    for key, life in state.lives.items():
        ends = [] if life.retired else [life.first, life.last]
        seen[key].update(number for number in ends if number is not None)
    return seen


def _folders(sizes: Sizes) -> set[Incarnation]:
    """Return the incarnations that have a folder with an object in it."""
    folders: set[Incarnation] = set()
    for key in sizes:
        place = layout.parse_topic_key(key)
        if place is not None:
            folders.add(place[0])
    return folders


def losses_of(state: State, manifests: Mapping[int, Manifest]) -> list[LossRow]:
    """Return the losses that manifests have and `state` lacks, in order of the restore points."""
    known = set(state.lost)  # there may be as many as segments: a set, so that each is looked up once
    lacking: list[LossRow] = []
    for _, manifest in sorted(manifests.items()):
        lacking += [row for row in loss_rows(manifest) if row not in known]
    return lacking


def without_expired(state: State) -> State:
    """Return `state` without rows of segments before the log start or among the losses, which an older table still
    has."""
    starts = state.starts
    damaged = damaged_ranges(state)

    def stays(topic: str, incarnation: int, partition: int, first: int, last: int) -> bool:
        place = (topic, incarnation, partition)
        if place in starts and last < starts[place].start:
            return False
        return (first, last) not in damaged.get(place, ())

    names = ("topic", "incarnation", "partition", "first", "last")
    return replace(state, segments=state.segments.where(stays, *names))


def with_rows(state: State, lives: Sequence[IncarnationRow], segments: pa.Table, losses: Sequence[LossRow]) -> State:
    """Return `state` with other incarnations, and with more segments and losses."""
    return replace(
        state,
        incarnations=state.incarnations.replace(lives),
        segments=state.segments.append(segments),
        losses=state.losses_with(losses),
    )


def with_points(state: State, points: Iterable[PointRow], next_point: int) -> State:
    """Return `state` with restore points that it lacks, and without the ones that have expired."""
    past = state.past_manifests
    every = [point for point in state.restore_points if past.get(point.number) != point.manifest]
    every.extend(points)
    every.sort()
    next_number = max(state.next_point, next_point)
    if every:
        # No number is given to two restore points, also if the catalog that counted them is lost.
        next_number = max(next_number, every[-1].number + 1)
    return replace(state, next_point=next_number, points=state.points.replace(every))
