"""Restore points made of the segments that are there, where no catalog lists them or their manifest is lost. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.catalog.operations import drop_superseded, loss_row
from kbackup.archive.catalog.state import Life, Point, State, mask
from kbackup.archive.models import Group, GroupOffset, Groups, Loss, Manifest, Metadata, PartitionState, TopicState
from kbackup.archive.new_point import Draft, point_of, put_capture
from kbackup.archive.repair.attribution import damaged_ranges
from kbackup.archive.repair.base import Documents, RepairBase, Sizes
from kbackup.archive.run import WritingRun
from kbackup.archive.segments.table import Segment
from kbackup.errors import CorruptError, NotFoundError
from kbackup.formats.index import decode_group_offsets
from kbackup.metadata.entities import NotCarried, TopicMetadata
from kbackup.store.base import Store
from kbackup.types import Incarnation, IncarnationPartition
from kbackup.util.text import join_names
from kbackup.util.times import now

Row = tuple[int, int, int, int, int, int]
"""Restore point, partition, first and last offset, records, bytes of a segment or of a loss."""
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
    for entries in topics.values():
        entries.sort(key=lambda entry: entry[0])
    return topics


def topic_at(captured: Captured, name: str, topic_id: str, number: int) -> TopicMetadata | None:
    """Return a topic as it was captured at restore point `number` or last before, else first after. A topic of unknown
    id is only returned where all documents mean the same one."""
    entries = captured.get(name, ())
    if not topic_id and len({topic.id for _, topic in entries}) > 1:
        return None
    entries = [entry for entry in entries if not topic_id or entry[1].id in ("", topic_id)]
    earlier = [topic for at, topic in entries if at <= number]
    return earlier[-1] if earlier else next((topic for _, topic in entries), None)


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
    highest: dict[tuple[str, int], int] = {}
    for group in groups.groups:
        for o in group.offsets:
            highest[o.topic, o.partition] = max(o.offset, highest.get((o.topic, o.partition), 0))
    by_topic: dict[Incarnation, list[int]] = {}
    for topic, incarnation, partition in sorted(partitions):
        by_topic.setdefault((topic, incarnation), []).append(partition)
    return tuple(
        TopicState(
            name=topic,
            id=ids.get((topic, incarnation), ""),
            incarnation=incarnation,
            captured=number,
            state="present",
            partitions=tuple(
                _new_partition(
                    partition,
                    segments.get((topic, incarnation, partition), ()),
                    before.get((topic, incarnation, partition)),
                    highest.get((topic, partition), 0),
                )
                for partition in range(max(numbers) + 1)
            ),
        )
        for (topic, incarnation), numbers in by_topic.items()
    )


def _new_partition(
    number: int, segments: Sequence[Segment], before: PartitionState | None, group: int
) -> PartitionState:
    first = segments[0].first if segments else 0
    start = before.start if before is not None else first
    end = max(segments[-1].last + 1 if segments else start, before.end if before is not None else 0)
    return PartitionState(
        partition=number,
        start=start,
        end=end,
        log_start=before.log_start if before is not None else start,
        log_end=max(end, before.log_end if before is not None else 0, group),
        records=sum(s.count for s in segments) + (before.records if before is not None else 0),
        bytes=sum(s.bytes for s in segments) + (before.bytes if before is not None else 0),
    )


def rows_by_incarnation(state: State) -> dict[Incarnation, list[Row]]:
    rows: dict[Incarnation, list[Row]] = defaultdict(list)
    names = ("topic", "incarnation", "point", "partition", "first", "last", "count", "bytes")
    for topic, incarnation, *row in zip(*state.segments.columns(*names), strict=True):
        rows[topic, incarnation].append((row[0], row[1], row[2], row[3], row[4], row[5]))
    for loss in state.losses.dicts():
        if loss["partition"] is not None and loss["end"] is not None:
            key = (loss["topic"], loss["incarnation"])
            start = loss["start"] if loss["start"] is not None else loss["end"]
            rows[key].append((loss["point"], loss["partition"], start, loss["end"] - 1, 0, 0))
    return rows


def lost_topic(
    state: State,
    point: Point,
    key: Incarnation,
    rows: Sequence[Row],
    beside: tuple[Manifest | None, Manifest | None],
    captured: set[str] | None,
    count: int,
) -> TopicState:
    """Return a topic of a restore point whose manifest is lost. `count` is its number of partitions by a capture, 0
    where no document has it: a partition that never had a record has no row."""
    before, after = (
        next((t for t in m.topics if (t.name, t.incarnation) == key), None) if m is not None else None for m in beside
    )
    if after is not None and after.captured <= point.number:  # it was captured then, and not since
        is_own = after.captured == point.number
        return msgspec.structs.replace(after, state="present") if is_own else after
    own = [row for row in rows if row[0] <= point.number]
    template = before if before is not None or count else after
    numbers = {p.partition for p in (template.partitions if template is not None else ())}
    numbers |= set(range(max([0 if numbers else 1, count, *(row[1] + 1 for row in own)])))
    number = point.number
    if before is not None and captured is not None and key[0] not in captured:
        number = before.captured
    is_carried = before is not None and number == before.captured
    return TopicState(
        name=key[0],
        id=state.lives[key].topic_id,
        incarnation=key[1],
        captured=number,
        state=before.state if before is not None and is_carried else "present",
        partitions=tuple(
            _lost_partition(state, (*key, n), [r for r in own if r[1] == n], before, after) for n in sorted(numbers)
        ),
    )


def _lost_partition(
    state: State, key: IncarnationPartition, rows: Iterable[Row], before: TopicState | None, after: TopicState | None
) -> PartitionState:
    old, new = (
        next((p for p in topic.partitions if p.partition == key[2]), None) if topic is not None else None
        for topic in (before, after)
    )
    every = list(rows)
    log_start = state.starts.get(key)
    known = old or new
    start = known.start if known is not None else min((row[2] for row in every), default=0)
    end = max([start, old.end if old is not None else 0, *(row[3] + 1 for row in every)])
    if log_start is not None and (new is None or new.end >= log_start.start):
        end = max(end, log_start.start)
    had_more = log_start is not None and end >= log_start.start
    return PartitionState(
        partition=key[2],
        start=start,
        end=end,
        log_start=known.log_start if known is not None else start,
        log_end=max(end, old.log_end if old is not None else 0),
        records=sum(r[4] for r in every) + (log_start.records if log_start is not None and had_more else 0),
        bytes=sum(r[5] for r in every) + (log_start.bytes if log_start is not None and had_more else 0),
    )


# A restore point that is made of segments and group files alone: by an adoption, or where manifests are lost.


_SHOWN = 5


def groups_of_files(
    store: Store, keys: Iterable[str], topics: Iterable[Incarnation], root: str = layout.TOPICS
) -> Groups:
    """Return the group offsets of `topics` from the group files among `keys`; damaged files are skipped."""
    folders = {layout.topic_dir(*topic, root): topic[0] for topic in topics}
    offsets: dict[str, list[GroupOffset]] = {}
    for key in sorted(keys):
        folder, _, name = key.rpartition("/")
        partition = layout.parse_group_offsets(name)
        topic = folders.get(f"{folder}/")
        if partition is None or topic is None:
            continue
        with suppress(CorruptError, NotFoundError):
            for group, offset in decode_group_offsets(store.get(key), key).items():
                offsets.setdefault(group, []).append(GroupOffset(topic=topic, partition=partition, offset=offset))
    return Groups(
        captured_at=now(),
        groups=tuple(Group(group=name, type="", state="", offsets=tuple(o)) for name, o in sorted(offsets.items())),
    )


def draft_behind(
    writing: WritingRun,
    head: Manifest | None,
    segments: Sequence[Segment],
    ids: Mapping[Incarnation, str],
    keys: Iterable[str],
    captured: Captured,
    number: int,
    *,
    last: bool,
) -> Draft:
    """Restore point `number` of `segments` behind `head`: their topics, with the partitions and configs that they had
    when they were `captured`. The `last` one has the other topics of `head` as well, as they are there."""
    by_partition: dict[IncarnationPartition, list[Segment]] = {}
    for s in segments:
        by_partition.setdefault(s.incarnation_partition, []).append(s)
    old = {(t.name, t.incarnation): t for t in (head.topics if head is not None else ())}
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
    captures = [c for c in (head.captures if head is not None else ()) if c.number in needed]
    settings = [topic for topic in (*known.values(), *(t for _, t in empty)) if topic is not None]
    draft = draft_of(
        writing, "repair", made, segments, groups, cluster_id=head.cluster_id if head is not None else "",
        number=number, settings=settings,
    )  # fmt: skip
    return replace(
        draft,
        topics=sorted([*made, *carried], key=lambda t: t.name),
        captures=[*captures, *draft.captures],
        isolation_level=head.isolation_level if head is not None else "read_committed",
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


def draft_of(
    writing: WritingRun,
    origin: str,
    topics: Sequence[TopicState],
    segments: Sequence[Segment],
    groups: Groups,
    losses: Sequence[Loss] = (),
    warnings: Sequence[str] = (),
    cluster_id: str = "",
    number: int = 0,
    settings: Sequence[TopicMetadata] = (),
) -> Draft:
    """Restore point `number` (default: the next) of `writing`, with documents of its own; `settings` are the configs
    that are known."""
    number, at = number or writing.next_point, now()
    unknown = NotCarried(part=None, what="cluster", reason="failed", why="nothing tells of it")
    metadata = Metadata(
        captured_at=at, cluster_id=cluster_id, brokers=0, topics=tuple(settings), not_carried=(unknown,)
    )
    return Draft(
        number=number,
        started_at=at,
        committed_at=at,
        origin="folder" if origin == "folder" else "repair",
        cluster_id=cluster_id,
        topics=topics,
        segments=segments,
        losses=losses,
        warnings=warnings,
        not_known=not_known(topics, {t.name for t in settings}),
        captures=[put_capture(writing, number, at, groups, metadata)],
        groups=len(groups.groups),
        captured_topics=len(topics),
        captured_partitions=sum(len(t.partitions) for t in topics),
    )


def not_known(topics: Sequence[TopicState], known: Collection[str] = ()) -> list[str]:
    """Describe what a restore point made from files alone lacks. Configs of the topics `known` are known."""
    if not topics:
        return []
    names = [t.name for t in topics if t.name not in known]
    configs = f"configs and replication factor of {join_names(names, _SHOWN)}; " if names else ""
    uncounted = [partitions_not_known(names)] if names else []
    unknown = [
        *uncounted,
        f"{configs}group positions are those of the group files",
        "ACLs, users and settings of the cluster",
    ]
    nameless = [t.name for t in topics if not t.id]
    return [*unknown, *([f"Kafka's ids of {join_names(nameless, _SHOWN)}"] if nameless else [])]


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


def unlisted_points(base: RepairBase, documents: Documents) -> dict[int, tuple[Manifest, Point]]:
    """Return, by number, whole manifests of restore points that the base lacks. Of two with one number the later one is
    returned. Below the next number of the newest catalog only restore points that its table may have lost are returned.
    Beside a whole base only those of the open run are: its catalog may be lost, and no later run has given the number
    away."""
    state = base.state
    known = set(state.numbers.tolist())
    least = 0 if "points" in base.stale or base.committed.catalog is None else state.next_point
    open_run = state.open_run.run if state.open_run is not None else ""
    points = [
        (document, point_of(document, ref))
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


def numbers_given(sizes: Sizes) -> int:
    """Return the highest number of a restore point that any object under points/ has."""
    return max((p[0] for key in sizes if (p := layout.parse_point_key(key)) is not None), default=0)


def lives_of(state: State, manifests: Mapping[int, Manifest], sizes: Sizes) -> list[Life]:
    """Return the incarnations of the restore points, from their manifests, the table and the rows of segments. Numbers
    of folders and reservations stay taken.

    A topic stays in all later restore points, until another incarnation takes its place.
    """
    newest = max(manifests, default=0)
    is_newest = state.newest is None or state.newest.number <= newest
    topics = {(t.name, t.incarnation) for t in manifests[newest].topics} if newest else set()
    seen: dict[Incarnation, set[int]] = defaultdict(set)
    ids = {key: life.topic_id for key, life in state.lives.items()}
    for number, manifest in manifests.items():
        for topic in manifest.topics:
            seen[topic.name, topic.incarnation].add(number)
            ids[topic.name, topic.incarnation] = topic.id
    names = ("topic", "incarnation", "point")
    for name, incarnation, point in set(zip(*state.segments.columns(*names), strict=True)):
        seen[name, incarnation].add(point)
    for key, life in state.lives.items():
        seen[key] |= {number for number in (life.first, life.last) if number is not None and not life.retired}
    firsts = {key: min(numbers) for key, numbers in seen.items() if numbers}
    folders = {place[0] for key in sizes if (place := layout.parse_topic_key(key)) is not None}
    lives: list[Life] = []
    for key in sorted({*seen, *folders}):
        known = state.lives.get(key)
        if key not in firsts:
            retired = known is None or known.retired
            lives.append(Life(*key, ids.get(key, ""), None, None, retired))
            continue
        later = min((n for other, n in firsts.items() if other[0] == key[0] and other > key), default=0)
        is_alive = key in topics if is_newest else known is None or known.last is None
        last = max([*seen[key], *(number for number in state.numbers.tolist() if number < later)])
        lives.append(Life(*key, ids.get(key, ""), firsts[key], None if is_alive and not later else last, False))
    return drop_superseded(lives)


def losses_of(state: State, manifests: Mapping[int, Manifest]) -> list[dict[str, Any]]:
    """Return the rows of `tables.LOSSES` that manifests have and `state` lacks."""
    known = {tuple(row.values()) for row in state.losses.dicts()}
    rows: list[dict[str, Any]] = []
    for number, manifest in sorted(manifests.items()):
        incarnations = {t.name: t.incarnation for t in manifest.topics}
        for loss in manifest.losses:
            row = loss_row(number, incarnations.get(loss.topic, 1), loss)
            if tuple(row.values()) not in known:
                rows.append(row)
    return rows


def without_let_go(state: State) -> State:
    """Return `state` without rows of segments before the log start or among the losses, which an older table still
    has."""
    damaged = damaged_ranges(state)
    columns = state.segments.columns("topic", "incarnation", "partition", "first", "last")
    return replace(
        state,
        segments=state.segments.where(
            mask(
                (place not in state.starts or last >= state.starts[place].start)
                and (first, last) not in damaged.get(place, ())
                for *place_, first, last in zip(*columns, strict=True)
                for place in [(place_[0], place_[1], place_[2])]
            )
        ),
    )


def with_rows(state: State, lives: Sequence[Life], segments: pa.Table, losses: Sequence[dict[str, Any]]) -> State:
    return replace(
        state,
        incarnations=state.incarnations.replace([life._asdict() for life in lives]),
        segments=state.segments.append(segments),
        losses=state.losses.append(list(losses)),
    )


def with_points(state: State, points: Iterable[Point], next_point: int) -> State:
    """`state` with restore points that it lacks, and without those that were let go."""
    past = state.past_manifests
    rows = [p for p in state.restore_points if past.get(p.number) != p.manifest]
    every = sorted([*rows, *points])
    return replace(
        state,
        next_point=max([state.next_point, next_point, *(p.number + 1 for p in every)]),
        points=state.points.replace([p._asdict() | {"documents": list(p.documents)} for p in every]),
    )
