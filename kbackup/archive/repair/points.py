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
    topics: dict[str, list[tuple[int, TopicMetadata]]] = defaultdict(list)
    for key, (document, _) in documents.items():
        parsed = layout.parse_point_key(key)
        if parsed is not None and isinstance(document, Metadata):
            for topic in document.topics:
                topics[topic.name].append((parsed[0], topic))
    return {name: sorted(entries, key=lambda entry: entry[0]) for name, entries in topics.items()}


def topic_at(captured: Captured, name: str, topic_id: str, number: int) -> TopicMetadata | None:
    """Return a topic as it was captured at restore point `number` or last before, else first after. A topic of unknown
    id is only returned where all documents mean the same one."""
    entries = captured.get(name, ())
    if not topic_id and len({topic.id for _, topic in entries}) > 1:
        return None
    entries = [entry for entry in entries if not topic_id or entry[1].id in ("", topic_id)]
    earlier = [topic for at, topic in entries if at <= number]
    return earlier[-1] if earlier else next((topic for _, topic in entries), None)


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
    highest: dict[tuple[str, int], int] = defaultdict(int)
    for group in groups.groups:
        for o in group.offsets:
            highest[o.topic, o.partition] = max(o.offset, highest[o.topic, o.partition])

    def partition_state(topic: str, incarnation: int, partition: int) -> PartitionState:
        place = (topic, incarnation, partition)
        own = segments.get(place, ())
        first = own[0].first if own else 0
        old = before.get(place) or PartitionState(
            partition=partition, start=first, end=first, log_start=first, log_end=0, records=0, bytes=0
        )
        end = max(own[-1].last + 1 if own else 0, old.end)
        return PartitionState(
            partition=partition,
            start=old.start,
            end=end,
            log_start=old.log_start,
            log_end=max(end, old.log_end, highest[topic, partition]),
            records=old.records + sum(s.count for s in own),
            bytes=old.bytes + sum(s.bytes for s in own),
            held=without(old.held, [(s.first, s.last + 1) for s in own]),
        )

    counts = {(topic, incarnation): partition + 1 for topic, incarnation, partition in sorted(partitions)}
    return tuple(
        TopicState(
            name=key[0],
            id=ids.get(key, ""),
            incarnation=key[1],
            captured=number,
            state="present",
            partitions=tuple(partition_state(*key, partition) for partition in range(count)),
        )
        for key, count in counts.items()
    )


def groups_of_files(
    store: Store, keys: Iterable[str], topics: Iterable[Incarnation], root: str = layout.TOPICS
) -> Groups:
    """Return the group offsets of `topics` from the group files among `keys`; damaged files are skipped."""
    folders = {layout.topic_dir(*topic, root): topic[0] for topic in topics}
    offsets: dict[str, list[GroupOffset]] = defaultdict(list)
    for key in sorted(keys):
        folder, _, name = key.rpartition("/")
        partition, topic = layout.parse_group_offsets(name), folders.get(f"{folder}/")
        if partition is None or topic is None:
            continue
        with suppress(CorruptError, NotFoundError):
            for group, offset in decode_group_offsets(store.get(key), key).items():
                offsets[group].append(GroupOffset(topic=topic, partition=partition, offset=offset))
    return Groups(
        captured_at=now(),
        groups=tuple(Group(group=name, type="", state="", offsets=tuple(o)) for name, o in sorted(offsets.items())),
    )


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
    they had when they were `captured`. The `last` one has the other topics of `head` as well, as they are there."""
    by_partition: dict[IncarnationPartition, list[Segment]] = defaultdict(list)
    for s in segments:
        by_partition[s.incarnation_partition].append(s)
    old = head.incarnations() if head is not None else {}
    new = {place[:2] for place in by_partition}
    before = {(*key, p.partition): p for key in new & old.keys() for p in old[key].partitions}
    groups = groups_of_files(writing.store, keys, new)
    known = {key: topic_at(captured, key[0], ids.get(key, ""), number) for key in sorted(new)}
    counted = {(*key, p) for key, topic in known.items() if topic is not None for p in range(topic.partitions)}
    made = topic_states(number, {*by_partition, *before, *counted}, by_partition, ids, before, groups)
    names = {topic.name for topic in made}
    carried = [t for t in old.values() if last and t.name not in names]
    names |= {topic.name for topic in carried}
    empty = _empty_topics(captured, head.number if head is not None else 0, names, ids, number) if last else []
    made = (*made, *(topic for topic, _ in empty))
    needed = {t.captured for t in carried}
    captures = [c for c in head.captures if c.number in needed] if head is not None else []
    settings = [topic for topic in known.values() if topic is not None] + [topic for _, topic in empty]
    cluster_id = head.cluster_id if head is not None else ""
    found = manifest_of_files(writing, number, made, segments, groups, cluster_id=cluster_id, settings=settings)
    topics = sorted([*made, *carried], key=lambda t: t.name)
    return msgspec.structs.replace(
        found,
        topics=tuple(topics),
        captures=(*captures, *found.captures),
        isolation_level=head.isolation_level if head is not None else "read_committed",
        deletions=head.deletions if head is not None else None,
    )


def _empty_topics(
    captured: Captured, head: int, names: Collection[str], ids: Mapping[Incarnation, str], number: int
) -> list[tuple[TopicState, TopicMetadata]]:
    """Return the topics of the newest capture behind restore point `head`, apart from `names`: no segment was found."""
    newest = max((at for entries in captured.values() for at, _ in entries), default=0)
    topics: list[tuple[TopicState, TopicMetadata]] = []
    for name, entries in sorted(captured.items()):
        at, topic = entries[-1]
        if at != newest or newest <= head or name in names:
            continue
        given = {incarnation: id_ for (other, incarnation), id_ in ids.items() if other == name}
        same = [incarnation for incarnation, id_ in given.items() if id_ == topic.id]
        key = (name, same[0] if same else max(given, default=0) + 1)
        places = [(*key, p) for p in range(topic.partitions)]
        no_groups = Groups(captured_at="", groups=())
        topics += [(t, topic) for t in topic_states(number, places, {}, {key: topic.id}, {}, no_groups)]
    return topics


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
    """Return restore point `number` of `writing`, with documents of its own; `settings` are the configs that are
    known."""
    at = now()
    unknown = NotCarried(part=None, what="cluster", reason="failed", why="nothing tells of it")
    metadata = Metadata(
        captured_at=at, cluster_id=cluster_id, brokers=0, topics=tuple(settings), not_carried=(unknown,)
    )
    capture = put_capture(writing, number, at, groups, metadata)
    partitions = sum(len(topic.partitions) for topic in topics)
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
        not_known=tuple(not_known(topics, {t.name for t in settings})),
        totals=totals_of(segments, topics=len(topics), partitions=partitions, groups=len(groups.groups)),
        captures=(capture,),
        topics=tuple(topics),
    )


def not_known(topics: Sequence[TopicState], known: Collection[str] = ()) -> list[str]:
    """Describe what a restore point made from files alone lacks. Configs of the topics `known` are known."""
    if not topics:
        return []
    names = [t.name for t in topics if t.name not in known]
    nameless = [t.name for t in topics if not t.id]
    configs = f"configs and replication factor of {join_names(names, _SHOWN)}; " if names else ""
    return [
        *([partitions_not_known(names)] if names else []),
        f"{configs}group positions are those of the group files",
        "ACLs, users and settings of the cluster",
        *([f"Kafka's ids of {join_names(nameless, _SHOWN)}"] if nameless else []),
    ]


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
    """Return, by number, whole manifests of restore points that the base lacks. Of two with one number the later one is
    returned. Below the next number of the newest catalog only restore points that its table may have lost are returned.
    Beside a whole base only those of the open run are: its catalog may be lost, and no later run has given the number
    away."""
    state = base.state
    known = set(state.numbers.tolist())
    least = 0 if "points" in base.stale or base.committed.catalog is None else state.next_point
    open_run = state.open_run.run if state.open_run is not None else ""
    points = [
        (document, point_row(document, ref.key))
        for document, ref in documents.values()
        if isinstance(document, Manifest)
        and document.archive_id == state.archive_id
        and document.number >= least
        and (not base.is_whole or document.run == open_run)
        and document.number not in known
        and state.past_manifests.get(document.number) != document.checksum
    ]
    points.sort(key=lambda entry: (entry[0].number, entry[0].committed_at))
    return {manifest.number: (manifest, point) for manifest, point in points}


def lives_of(state: State, manifests: Mapping[int, Manifest], sizes: Sizes) -> list[IncarnationRow]:
    """Return the incarnations of the restore points, from their manifests, the table and the rows of segments. Numbers
    of folders and reservations stay taken.

    A topic stays in all later restore points, until another incarnation takes its place.
    """
    newest = max(manifests, default=0)
    is_newest = state.newest is None or state.newest.number <= newest
    topics = manifests[newest].incarnations() if newest else {}
    seen: dict[Incarnation, set[int]] = defaultdict(set)
    ids = {key: life.topic_id for key, life in state.lives.items()}
    for number, manifest in manifests.items():
        for key, topic in manifest.incarnations().items():
            seen[key].add(number)
            ids[key] = topic.id
    for name, incarnation, point in set(state.segments.rows("topic", "incarnation", "point")):
        seen[name, incarnation].add(point)
    for key, life in state.lives.items():
        seen[key] |= {number for number in (life.first, life.last) if number is not None and not life.retired}
    firsts = {key: min(numbers) for key, numbers in seen.items() if numbers}
    folders = {place[0] for key in sizes if (place := layout.parse_topic_key(key)) is not None}
    lives: list[IncarnationRow] = []
    for key in sorted({*seen, *folders}):
        known = state.lives.get(key)
        if key not in firsts:
            retired = known is None or known.retired
            lives.append(IncarnationRow(*key, ids.get(key, ""), None, None, retired))
            continue
        later = min((n for other, n in firsts.items() if other[0] == key[0] and other > key), default=0)
        is_alive = key in topics if is_newest else known is None or known.last is None
        last = max([*seen[key], *(number for number in state.numbers.tolist() if number < later)])
        ended = None if is_alive and not later else last
        lives.append(IncarnationRow(*key, ids.get(key, ""), firsts[key], ended, False))
    return drop_superseded(lives)


def losses_of(state: State, manifests: Mapping[int, Manifest]) -> list[LossRow]:
    """Return the losses that manifests have and `state` lacks."""
    known = set(state.lost)
    found = [row for _, manifest in sorted(manifests.items()) for row in loss_rows(manifest)]
    return [row for row in found if row not in known]


def without_expired(state: State) -> State:
    """Return `state` without rows of segments before the log start or among the losses, which an older table still
    has."""
    starts, damaged = state.starts, damaged_ranges(state)

    def stays(topic: str, incarnation: int, partition: int, first: int, last: int) -> bool:
        place = (topic, incarnation, partition)
        return (place not in starts or last >= starts[place].start) and (first, last) not in damaged.get(place, ())

    names = ("topic", "incarnation", "partition", "first", "last")
    return replace(state, segments=state.segments.where(stays, *names))


def with_rows(state: State, lives: Sequence[IncarnationRow], segments: pa.Table, losses: Sequence[LossRow]) -> State:
    return replace(
        state,
        incarnations=state.incarnations.replace(lives),
        segments=state.segments.append(segments),
        losses=state.losses_with(losses),
    )


def with_points(state: State, points: Iterable[PointRow], next_point: int) -> State:
    """`state` with restore points that it lacks, and without those that were let go."""
    past = state.past_manifests
    rows = [p for p in state.restore_points if past.get(p.number) != p.manifest]
    every = sorted([*rows, *points])
    return replace(
        state,
        next_point=max([state.next_point, next_point, *(p.number + 1 for p in every)]),
        points=state.points.replace(every),
    )
