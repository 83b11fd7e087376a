"""Figures of an archive: records, bytes and times by topic, partition and restore point, what was lost, and growth."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from kbackup.archive.catalog.points import PointOverview, point_overview
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
from kbackup.archive.segments.table import sum_of
from kbackup.archive.segments.window import Choice, Window
from kbackup.archive.uncovered_schemas import uncovered
from kbackup.metadata.entities import LABELS, NotCarried
from kbackup.store.base import Store
from kbackup.types import Incarnation, IncarnationPartition
from kbackup.util.text import join_names
from kbackup.util.times import ms_of


@dataclass(frozen=True, slots=True)
class Sums:
    """`bytes` of the documented records files, `stored_bytes` of the objects. `gaps` are offsets between start and end
    that no record has: compaction, transactions, losses. Timestamps in ms, None if none is known. `expired_records`
    were in the archive once, before the first ones that are. Of a moment (`ArchiveOverview.choice`) it is what has to
    be read: `records` are at most so many, timestamps are bounds, and gaps are not known (None)."""

    records: int
    bytes: int
    stored_bytes: int
    segments: int
    gaps: int | None
    min_timestamp: int | None
    max_timestamp: int | None
    expired_records: int = 0


def total(parts: Iterable[Sums]) -> Sums:
    every = list(parts)
    gaps = [each.gaps for each in every if each.gaps is not None]
    low, high = span((each.min_timestamp, each.max_timestamp) for each in every)
    counts = ("records", "bytes", "stored_bytes", "segments", "expired_records")
    return Sums(
        **{name: sum(getattr(each, name) for each in every) for name in counts},
        gaps=sum(gaps) if len(gaps) == len(every) else None,
        min_timestamp=low,
        max_timestamp=high,
    )


def sums_of(partitions: Iterable[ArchivedPartition]) -> Sums:
    """Sum up partitions, of one topic or several."""
    return total(
        Sums(
            p.records,
            p.bytes,
            sum_of(p.segments, "stored"),
            len(p.segments),
            None if p.window is not None else p.end - p.start - p.records,
            *p.timestamps,
            p.expired,
        )
        for p in partitions
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
    """Return what of a window up to `to_time` (ms) the runs up to `view.upto` can't have, in words: records later than
    they were, and what they saw in partitions that are `asked` for and left for later. `content` is not cut to the
    window yet."""
    if to_time is None:
        return ()
    states = {(t.name, t.incarnation): t for t in view.upto.topics}
    known = [(t, s) for t in content.topics if (s := states.get((t.name, t.incarnation))) is not None]
    notes = []
    for topic, seen in known:
        archived = {p.partition: p for p in topic.partitions if asked(topic.name, p.partition)}
        for state in seen.partitions:
            if state.end >= state.log_end or state.partition not in archived:
                continue
            stamps = [s.max_timestamp for s in archived[state.partition].segments if s.max_timestamp is not None]
            if not stamps or stamps[-1] <= to_time:  # else the last archived segment goes past the window
                notes.append(
                    f"offsets {state.end} to {state.log_end - 1} of {topic.name}-{state.partition}, or some of them, "
                    f"are not in restore point {view.upto.number}"
                )
    if len(notes) > _NAMED:
        notes[_NAMED:] = [f"nor are offsets of {len(notes) - _NAMED} more partitions"]
    return (*_ends(archive, view, [state for _, state in known], to_time), *notes)


def _ends(archive: Archive, view: View, states: Sequence[TopicState], to_time: int) -> Iterator[str]:
    """Yield a note for each run that began before the window ends and was the last to capture a topic."""
    begun = {number: archive.capture(number).started_at for number in {s.captured for s in states} | {view.upto.number}}
    last = view.upto.number
    if ms_of(begun[last]) < to_time:
        yield f"restore point {last} was begun at {begun[last]}, before the window ends: it has no later records"
    for seq in sorted({s.captured for s in states} - {last}):
        if ms_of(begun[seq]) < to_time:
            names = sorted(s.name for s in states if s.captured == seq)
            yield (
                f"restore point {last} has topics as of restore point {seq}, which was begun at {begun[seq]}, before "
                f"the window ends, without later records: {join_names(names, _NAMED)}"
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
    names = {name for name, _ in topics}
    table = archive.table(manifest.number, ["topic", "incarnation", "point", "stored"], topics=names)
    growth: dict[Incarnation, Growth] = {}
    for topic, incarnation, point, stored in sorted(_sums(table, ["topic", "incarnation", "point"])):
        if (key := (topic, incarnation)) in topics:
            known = growth.setdefault(key, [])
            known.append((point, stored + (known[-1][1] if known else 0)))
    return growth


def added_after(archive: Archive, manifest: Manifest, number: int) -> dict[Incarnation, int]:
    """Return the stored bytes that restore points after `number` added, by topic; topics without any are left out."""
    table = archive.table(manifest.number, ["topic", "incarnation", "stored"], number)
    return {(topic, incarnation): stored for topic, incarnation, stored in _sums(table, ["topic", "incarnation"])}


def _sums(table: pa.Table, keys: list[str]) -> Iterator[tuple[Any, ...]]:
    """Return the keys and the sum of their stored bytes."""
    summed = table.group_by(keys).aggregate([("stored", "sum")])
    return zip(*(summed.column(n).to_pylist() for n in (*keys, "stored_sum")), strict=True)


# Sum up an archive from manifests and segment tables; no record is read.


@dataclass(frozen=True, slots=True)
class PartitionOverview:
    """Offsets [`start`, `end`) are archived."""

    partition: int
    start: int
    end: int
    sums: Sums


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """`offset` is the next to read; `lag` is how many offsets are archived from there on."""

    group: str
    partition: int
    offset: int
    lag: int
    metadata: str


@dataclass(frozen=True, slots=True)
class TopicOverview:
    """`as_of` is the restore point that captured it last; `state` as in the manifest. Restores leave out
    `deleted_records` archived records, since their keys were deleted at the source."""

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
    """What a restore point has of a schema registry. `unknown` are ids that records carry and it has no schema for;
    `uncovered` says what names schemas in records and is not mapped."""

    registry: str
    captured_at: str
    subjects: int
    versions: int
    unknown: tuple[UnknownId, ...]
    uncovered: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ArchiveOverview:
    """An archive as of `restore_point` (None: a folder of the Java tool). `oldest` and `newest` are its first and
    last restore points. `choice` says what was chosen for a moment, and why; `not_known` what a repair or an adoption
    could not find out; `let_go` counts restore points that expired or were lost. `settings` counts what was captured of
    the cluster's metadata, by its member of metadata.json; `not_carried` names what was not. `transactions` says
    whether they are whole; null for a moment, which cuts inside of them."""

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


def overview(
    archive: Archive | None,
    store: Store,
    point_name: str,
    at: int | None = None,
    named: str | None = None,
    count: Callable[[Content], Content] = lambda content: content,
) -> ArchiveOverview:
    """Return the archive as of the restore point `point_name` (number, label, or 'latest'); None: the folder of the
    Java tool as it is. `at` (ms since the epoch): what a restore of that moment would bring back, the topic `named` in
    any case; `count` adds the counts of its records."""
    if archive is None:
        content = java_content(store, java_topics(store))
        return _overview(store, content if at is None else count(java_as_restored(content, at)), None, None, ())
    if at is None:
        manifest = archive.restore_point(point_name)
        content = content_of(archive, manifest, manifest.topics)
    else:
        content = count(content_as_restored(archive, *view_as_restored(archive, point_name, at, named), at))
        manifest = archive.restore_point(content.restore_point)
    metadata = archive.metadata(manifest)
    parts = {name: getattr(metadata, name) for name in LABELS if name != "topics"}
    shown = _overview(store, content, manifest, archive.state, archive.losses(manifest))
    deleted = deleted_records(archive.deletions(manifest))
    topics = [replace(t, deleted_records=deleted.get((t.name, t.incarnation), 0)) for t in shown.topics]
    return replace(
        shown,
        topics=tuple(topics),
        settings={name: len(part) for name, part in parts.items() if isinstance(part, tuple)},
        not_carried=metadata.not_carried,
        schemas=schemas_overview(archive, manifest),
    )


def schemas_overview(archive: Archive, manifest: Manifest) -> SchemasOverview | None:
    schemas = archive.schemas(manifest)
    if schemas is None:
        return None
    unknown = unknown_ids(manifest.topics, SchemaIndex(schemas))
    subjects = len({v.subject for v in schemas.versions})
    return SchemasOverview(
        registry=schemas.registry,
        captured_at=schemas.captured_at,
        subjects=subjects,
        versions=len(schemas.versions),
        unknown=tuple(unknown),
        uncovered=tuple(uncovered(manifest.topics, schemas)),
    )


def view_as_restored(archive: Archive, point_name: str, at: int, named: str | None) -> tuple[View, list[TopicState]]:
    """Return the view of a restore with that end in time, and the topics that it selects: all, and `named`."""
    view = view_of(archive, point_name, Window(to_time=at))
    return view, [*view.topics, *(t for name, t in view.others.items() if name == named)]


def content_as_restored(archive: Archive, view: View, topics: Sequence[TopicState], at: int) -> Content:
    """Return what a restore with that end in time brings back of `topics`."""
    window = Window(to_time=at)
    least = {t.name: len(t.partitions) for t in topics}
    content = content_at(archive, view, topics)
    beyond = not_reached(archive, view, content, at)
    choice = choice_of(view, window, (), (*view.excluded.values(), *beyond))
    return narrowed(content, lambda *_: window, least, choice)


def java_as_restored(content: Content, at: int) -> Content:
    """Return the content of a folder of the Java tool as a restore of moment `at` would read it."""
    return narrowed(content, lambda *_: Window(to_time=at), {}, Choice(to_time=at, notes=(NO_POINTS,)))


def _overview(
    store: Store, content: Content, manifest: Manifest | None, state: State | None, losses: Sequence[Loss]
) -> ArchiveOverview:
    topics = tuple(_topic(t, content, losses) for t in content.topics)
    shown = ArchiveOverview(
        archive=store.url,
        archive_id=content.archive_id,
        restore_point=None,
        committed_at=None,
        restore_points=0,
        oldest=None,
        newest=None,
        sums=total(topic.sums for topic in topics),
        topics=topics,
        groups=tuple(content.groups),
        losses=tuple(loss.message for loss in losses),
        warnings=content.warnings,
        choice=content.choice,
    )
    if manifest is None or state is None:
        return shown  # a folder of the Java tool has topics and groups, and nothing else
    oldest, newest = state.oldest, state.newest
    return replace(
        shown,
        restore_point=manifest.number,
        committed_at=manifest.committed_at,
        restore_points=len(state.points),
        oldest=point_overview(oldest, state) if oldest is not None else None,
        newest=point_overview(newest, state) if newest is not None else None,
        warnings=manifest.warnings,
        not_known=manifest.not_known,
        let_go=state.expired,
        transactions=manifest.transactions if content.choice is None else None,  # a moment cuts inside of them
    )


def _topic(topic: ArchivedTopic, content: Content, losses: Sequence[Loss]) -> TopicOverview:
    partitions = tuple(PartitionOverview(p.partition, p.start, p.end, sums_of([p])) for p in topic.partitions)
    ends = {p.partition: p.end for p in topic.partitions}
    positions = [
        GroupPosition(group, o.partition, o.offset, max(0, ends.get(o.partition, o.offset) - o.offset), o.metadata)
        for group, captured in content.groups.items()
        for o in captured.offsets
        if o.topic == topic.name
    ]
    return TopicOverview(
        name=topic.name,
        incarnation=topic.incarnation,
        state=topic.state,
        as_of=topic.as_of,
        replication_factor=topic.replication_factor,
        configs=topic.configs,
        partitions=partitions,
        sums=total(partition.sums for partition in partitions),
        losses=tuple(loss.message for loss in losses if loss.topic == topic.name),
        groups=tuple(sorted(positions, key=lambda g: (g.group, g.partition))),
    )
