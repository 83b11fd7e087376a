"""Figures of an archive: records, bytes and times by topic, partition and restore point, what was lost, and growth."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.catalog.points import PointOverview, cluster_changes, point_overview
from kbackup.archive.catalog.state import State
from kbackup.archive.deletions import deleted_records
from kbackup.archive.models import Loss, Manifest, TopicState, Transactions
from kbackup.archive.query.content import (
    NO_POINTS,
    ArchivedPartition,
    ArchivedTopic,
    Content,
    View,
    choice_of,
    content_at,
    content_of,
    narrowed,
    span,
    view_of,
)
from kbackup.archive.query.java import java_content, java_topics
from kbackup.archive.reader import Archive
from kbackup.archive.schemas import SchemaIndex, UnknownId, unknown_ids
from kbackup.archive.segments.table import Segment, rows_of, sum_of
from kbackup.archive.segments.window import Choice, Window
from kbackup.archive.uncovered_schemas import uncovered
from kbackup.metadata.entities import LABELS, NotCarried
from kbackup.store.base import Store
from kbackup.types import Incarnation, IncarnationPartition
from kbackup.util.text import join_names
from kbackup.util.times import ms_of


@dataclass(frozen=True, slots=True)
class Sums:
    """Figures of one or more partitions.

    `bytes` is the size of the records files as documented, `stored_bytes` the size of the objects. `gaps` counts the
    offsets between start and end that no record has, because of compaction, transactions or losses. Timestamps are in
    ms, and None if none is known. `expired_records` were in the archive once, before the first records that are there
    now.

    For a moment (`ArchiveOverview.choice`) the figures are of what has to be read: `records` is an upper bound,
    timestamps are bounds, and gaps are not known (None).
    """

    records: int
    bytes: int
    stored_bytes: int
    segments: int
    gaps: int | None
    min_timestamp: int | None
    max_timestamp: int | None
    expired_records: int = 0


def total(parts: Iterable[Sums]) -> Sums:
    """Sum up figures. The gaps of the whole are known only if the gaps of every part are known."""
    records = size = stored = segments = expired = 0
    gaps: int | None = 0
    times: list[tuple[int | None, int | None]] = []
    for part in parts:
        records += part.records
        size += part.bytes
        stored += part.stored_bytes
        segments += part.segments
        expired += part.expired_records
        if gaps is not None and part.gaps is not None:
            gaps += part.gaps
        else:
            gaps = None
        times.append((part.min_timestamp, part.max_timestamp))
    low, high = span(times)
    return Sums(
        records=records,
        bytes=size,
        stored_bytes=stored,
        segments=segments,
        gaps=gaps,
        min_timestamp=low,
        max_timestamp=high,
        expired_records=expired,
    )


def sums_of(partitions: Iterable[ArchivedPartition]) -> Sums:
    """Sum up partitions, of one topic or several."""
    return total(_sums_of_one(partition) for partition in partitions)


def _sums_of_one(partition: ArchivedPartition) -> Sums:
    records = partition.records
    low, high = partition.timestamps
    gaps: int | None = None
    if partition.window is None:
        gaps = partition.end - partition.start - records
    return Sums(
        records=records,
        bytes=partition.bytes,
        stored_bytes=sum_of(partition.segments, "stored"),
        segments=len(partition.segments),
        gaps=gaps,
        min_timestamp=low,
        max_timestamp=high,
        expired_records=partition.expired,
    )


# Say what an archive can't have of a window that ends in time, for records in order of their timestamps.
#
# Otherwise the end of the archive would be taken for the end of the window.

_NAMED = 10  # so many topics or partitions are named: a follower may hold back thousands.


def not_reached(
    archive: Archive,
    view: View,
    content: Content,
    to_time: int | None,
    asked: Callable[[str, int], bool] = lambda topic, partition: True,
) -> tuple[str, ...]:
    """Describe what the runs up to `view.upto` can't have of a window up to `to_time` (ms): records later than these
    runs, and records that they saw in partitions that are `asked` for and left for later. `content` is not cut to the
    window yet."""
    if to_time is None:
        return ()
    states = view.upto.incarnations()
    known: list[TopicState] = []
    notes: list[str] = []
    for topic in content.topics:
        seen = states.get(topic.key)
        if seen is None:
            continue
        known.append(seen)
        archived: dict[int, ArchivedPartition] = {}
        for each in topic.partitions:
            if asked(topic.name, each.partition):
                archived[each.partition] = each
        for state in seen.partitions:
            if state.end >= state.log_end or state.partition not in archived:
                continue
            latest = _last_timestamp(archived[state.partition].segments)
            # If the last archived segment goes past the window, so do the records after it, in order of time.
            if latest is None or latest <= to_time:
                notes.append(
                    f"offsets {state.end} to {state.log_end - 1} of {topic.name}-{state.partition}, or some of them, "
                    f"are not in restore point {view.upto.number}"
                )
    if len(notes) > _NAMED:
        notes[_NAMED:] = [f"nor are offsets of {len(notes) - _NAMED} more partitions"]
    ends = list(_ends(archive, view, known, to_time))
    return (*ends, *notes, *_compacted_later(archive, content, to_time))


def _compacted_later(archive: Archive, content: Content, to_time: int) -> Iterator[str]:
    """Yield a note if records of compacted topics are gone for which the archive has later ones, perhaps later than the
    window."""
    if not len(archive.state.compacted):
        return
    names: set[str] = set()
    newest = 0
    for topic in content.topics:
        for partition in topic.partitions:
            # In columns: no segment becomes a Python value.
            for (key,) in rows_of(partition.segments, "key"):
                compacted = layout.compacted_of(key)
                if compacted:
                    names.add(topic.name)
                    newest = max(newest, compacted)
    if not names:
        return
    # The restore point may have expired since: the next one has no fewer records.
    point = next(point for point in archive.restore_points if point.number >= newest)
    if to_time < ms_of(point.committed_at):
        yield (
            f"what had been superseded by restore point {point.number} of {point.committed_at} was compacted away: "
            f"keys whose last record is later than the window are missing: {join_names(sorted(names), _NAMED)}"
        )


def _last_timestamp(segments: Sequence[Segment]) -> int | None:
    """Return the greatest timestamp of the last segment that has one."""
    for segment in reversed(segments):
        if segment.max_timestamp is not None:
            return segment.max_timestamp
    return None


def _ends(archive: Archive, view: View, states: Sequence[TopicState], to_time: int) -> Iterator[str]:
    """Yield a note for each run that began before the window ends and was the last to capture a topic."""
    last = view.upto.number
    begun = archive.capture(last).started_at
    if ms_of(begun) < to_time:
        yield f"restore point {last} was begun at {begun}, before the window ends: it has no later records"
    names_by_capture: dict[int, list[str]] = {}
    for state in states:
        names_by_capture.setdefault(state.captured, []).append(state.name)
    names_by_capture.pop(last, None)
    for number, names in sorted(names_by_capture.items()):
        begun = archive.capture(number).started_at
        if ms_of(begun) < to_time:
            yield (
                f"restore point {last} has topics as of restore point {number}, which was begun at {begun}, before "
                f"the window ends, without later records: {join_names(sorted(names), _NAMED)}"
            )


def lost_ranges(archive: Archive, manifest: Manifest) -> dict[IncarnationPartition, list[tuple[int, int]]]:
    """Return ranges of offsets (end exclusive) whose records the archive lacks at a restore point, as far as they are
    known."""
    ranges: dict[IncarnationPartition, list[tuple[int, int]]] = {}
    for row in archive.state.lost:
        loss = row.loss
        if loss.partition is None or loss.start is None or loss.end is None:
            continue
        if loss.kind in ("retention", "damaged") and row.point <= manifest.number:
            key = loss.topic, row.incarnation, loss.partition
            ranges.setdefault(key, []).append((loss.start, loss.end))
    return ranges


# Growth of topics, by the catalog's table of segments alone: no object of a restore point is read.

Growth = list[tuple[int, int]]
"""Pairs of a restore point's number and the stored bytes that it and earlier restore points added."""


def growth_of(archive: Archive, manifest: Manifest, topics: Collection[Incarnation]) -> dict[Incarnation, Growth]:
    """Return the growth of topics up to a restore point, of the segments that the archive still has. A number may be of
    an expired restore point."""
    # By name first, as row groups without these topics are not even decoded; incarnations are told apart below.
    names = {name for name, _ in topics}
    table = archive.table(manifest.number, ["topic", "incarnation", "point", "stored"], topics=names)
    growth: dict[Incarnation, Growth] = {}
    for topic, incarnation, point, stored in sorted(_sums(table, ["topic", "incarnation", "point"])):
        key = (topic, incarnation)
        if key not in topics:
            continue
        known = growth.setdefault(key, [])
        earlier = known[-1][1] if known else 0
        known.append((point, earlier + stored))
    return growth


def added_after(archive: Archive, manifest: Manifest, number: int) -> dict[Incarnation, int]:
    """Return the stored bytes that restore points after `number` added, by topic; topics without any are left out."""
    table = archive.table(manifest.number, ["topic", "incarnation", "stored"], number)
    added: dict[Incarnation, int] = {}
    for topic, incarnation, stored in _sums(table, ["topic", "incarnation"]):
        added[topic, incarnation] = stored
    return added


def _sums(table: pa.Table, keys: list[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the different keys with the sum of their stored bytes."""
    summed = table.group_by(keys).aggregate([("stored", "sum")])
    names = [*keys, "stored_sum"]
    columns = [summed.column(name).to_pylist() for name in names]
    return zip(*columns, strict=True)


# Sum up an archive from manifests and segment tables; no record is read.


@dataclass(frozen=True, slots=True)
class PartitionOverview:
    """A partition of which the offsets [`start`, `end`) are archived."""

    partition: int
    start: int
    end: int
    sums: Sums


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """A group's position in a partition. `offset` is the next to read; `lag` is how many offsets are archived from
    there on."""

    group: str
    partition: int
    offset: int
    lag: int
    metadata: str


@dataclass(frozen=True, slots=True)
class TopicOverview:
    """A topic's figures. `as_of` is the restore point that captured the topic last; `state` is as in the manifest.
    Restores leave out `deleted_records` archived records, since their keys were deleted at the source."""

    name: str
    incarnation: int
    state: str
    as_of: int
    replication_factor: int | None
    configs: dict[str, str] | None
    partitions: tuple[PartitionOverview, ...]
    sums: Sums
    losses: tuple[str, ...]
    groups: tuple[GroupPosition, ...]
    deleted_records: int = 0


@dataclass(frozen=True, slots=True)
class SchemasOverview:
    """What a restore point has of a schema registry. `unknown` are ids in records that the restore point has no schema
    for. `uncovered` describes what else names schemas in records and is not mapped."""

    registry: str
    captured_at: str
    subjects: int
    versions: int
    unknown: tuple[UnknownId, ...]
    uncovered: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ArchiveOverview:
    """An archive as of `restore_point` (None: a folder of the Java tool).

    `oldest` and `newest` are its first and last restore points. `choice` is what was selected for a moment, and why.
    `not_known` describes what a repair or an adoption could not find out. `let_go` counts restore points that expired
    or were lost, `erased` the records that were erased, `superseded` those that compactions left out. `settings` counts
    what was captured of the cluster's metadata, by its member of metadata.json; `not_carried` names what was not
    captured. `transactions` says whether transactions are whole; it is null for a moment, which cuts inside of them.
    """

    archive: str
    archive_id: str
    restore_point: int | None
    committed_at: str | None
    restore_points: int
    oldest: PointOverview | None
    newest: PointOverview | None
    sums: Sums
    topics: tuple[TopicOverview, ...]
    groups: tuple[str, ...]
    losses: tuple[str, ...]
    warnings: tuple[str, ...]
    choice: Choice | None = None
    not_known: tuple[str, ...] = ()
    let_go: int = 0
    settings: dict[str, int] = field(default_factory=dict)
    not_carried: tuple[NotCarried, ...] = ()
    schemas: SchemasOverview | None = None
    transactions: Transactions | None = None
    erased: int = 0
    superseded: int = 0


def overview(
    archive: Archive | None,
    store: Store,
    point_name: str,
    at: int | None = None,
    named: str | None = None,
    count: Callable[[Content], Content] = lambda content: content,
) -> ArchiveOverview:
    """Return the archive as of the restore point `point_name` (number, label, or 'latest'). Without an `archive`,
    return the folder of the Java tool as it is.

    With `at` (ms since the epoch), return what a restore of that moment would bring back, and the topic `named` in any
    case; `count` then adds the counts of its records.
    """
    if archive is None:
        content = java_content(store, java_topics(store))
        if at is not None:
            content = count(java_as_restored(content, at))
        return _overview(store, content, None, None, ())
    if at is None:
        manifest = archive.restore_point(point_name)
        content = content_of(archive, manifest, manifest.topics)
    else:
        view, asked = view_as_restored(archive, point_name, at, named)
        content = count(content_as_restored(archive, view, asked, at))
        manifest = archive.restore_point(content.restore_point)
    metadata = archive.metadata(manifest)
    shown = _overview(store, content, manifest, archive.state, archive.losses(manifest))
    deleted = deleted_records(archive.deletions(manifest))
    topics: list[TopicOverview] = []
    for topic in shown.topics:
        records = deleted.get((topic.name, topic.incarnation), 0)
        topics.append(replace(topic, deleted_records=records))
    settings: dict[str, int] = {}
    for name in LABELS:
        part = getattr(metadata, name)
        if name != "topics" and isinstance(part, tuple):  # None: it was not captured
            settings[name] = len(part)
    return replace(
        shown,
        topics=tuple(topics),
        settings=settings,
        not_carried=metadata.not_carried,
        schemas=schemas_overview(archive, manifest),
    )


def schemas_overview(archive: Archive, manifest: Manifest) -> SchemasOverview | None:
    """Sum up the schemas of a restore point, None if it has none."""
    schemas = archive.schemas(manifest)
    if schemas is None:
        return None
    unknown = unknown_ids(manifest.topics, SchemaIndex(schemas))
    subjects = {version.subject for version in schemas.versions}
    return SchemasOverview(
        registry=schemas.registry,
        captured_at=schemas.captured_at,
        subjects=len(subjects),
        versions=len(schemas.versions),
        unknown=tuple(unknown),
        uncovered=tuple(uncovered(manifest.topics, schemas)),
    )


def view_as_restored(archive: Archive, point_name: str, at: int, named: str | None) -> tuple[View, list[TopicState]]:
    """Return the view of a restore with that end in time, and the topics that it selects: all, and `named`."""
    view = view_of(archive, point_name, Window(to_time=at))
    topics = list(view.topics)
    if named is not None and named in view.others:
        topics.append(view.others[named])
    return view, topics


def content_as_restored(archive: Archive, view: View, topics: Sequence[TopicState], at: int) -> Content:
    """Return what a restore with that end in time brings back of `topics`."""
    window = Window(to_time=at)
    captured = {topic.name: len(topic.partitions) for topic in topics}
    content = content_at(archive, view, topics)
    left_out = list(view.excluded.values())
    left_out += not_reached(archive, view, content, at)
    choice = choice_of(view, window, (), left_out)
    return narrowed(content, lambda topic, partition: window, captured, choice)


def java_as_restored(content: Content, at: int) -> Content:
    """Return the content of a folder of the Java tool as a restore of moment `at` would read it."""
    window = Window(to_time=at)
    choice = Choice(to_time=at, notes=(NO_POINTS,))
    return narrowed(content, lambda topic, partition: window, {}, choice)


def _overview(
    store: Store, content: Content, manifest: Manifest | None, state: State | None, losses: Sequence[Loss]
) -> ArchiveOverview:
    topics = [_topic(topic, content, losses) for topic in content.topics]
    messages = [loss.message for loss in losses]
    shown = ArchiveOverview(
        archive=store.url,
        archive_id=content.archive_id,
        restore_point=None,
        committed_at=None,
        restore_points=0,
        oldest=None,
        newest=None,
        sums=total(topic.sums for topic in topics),
        topics=tuple(topics),
        groups=tuple(content.groups),
        losses=tuple(messages),
        warnings=content.warnings,
        choice=content.choice,
    )
    if manifest is None or state is None:
        return shown  # a folder of the Java tool has topics and groups, and nothing else
    oldest = newest = None
    if state.oldest is not None and state.newest is not None:
        changed = cluster_changes(state)
        oldest = point_overview(state.oldest, state, changed)
        newest = point_overview(state.newest, state, changed)
    # a moment cuts inside of transactions
    transactions = manifest.transactions if content.choice is None else None
    return replace(
        shown,
        restore_point=manifest.number,
        committed_at=manifest.committed_at,
        restore_points=len(state.points),
        oldest=oldest,
        newest=newest,
        warnings=manifest.warnings,
        not_known=manifest.not_known,
        let_go=state.expired,
        transactions=transactions,
        erased=state.erased_records,
        superseded=state.superseded_records,
    )


def _topic(topic: ArchivedTopic, content: Content, losses: Sequence[Loss]) -> TopicOverview:
    partitions: list[PartitionOverview] = []
    for partition in topic.partitions:
        sums = sums_of([partition])
        partitions.append(PartitionOverview(partition.partition, partition.start, partition.end, sums))
    ends = {partition.partition: partition.end for partition in topic.partitions}
    positions: list[GroupPosition] = []
    for group, captured in content.groups.items():
        for committed in captured.offsets:
            if committed.topic != topic.name:
                continue
            end = ends.get(committed.partition, committed.offset)
            lag = max(0, end - committed.offset)  # a group may be ahead of what is archived
            positions.append(GroupPosition(group, committed.partition, committed.offset, lag, committed.metadata))
    positions.sort(key=lambda position: (position.group, position.partition))
    of_topic = [loss.message for loss in losses if loss.topic == topic.name]
    return TopicOverview(
        name=topic.name,
        incarnation=topic.incarnation,
        state=topic.state,
        as_of=topic.as_of,
        replication_factor=topic.replication_factor,
        configs=topic.configs,
        partitions=tuple(partitions),
        sums=total(partition.sums for partition in partitions),
        losses=tuple(of_topic),
        groups=tuple(positions),
    )
