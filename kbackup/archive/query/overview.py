"""What an archive holds, summed up from manifests and segment tables; no record is read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from kbackup.archive.catalog.state import Point, State
from kbackup.archive.java.content import is_java_archive, java_content, java_topics
from kbackup.archive.models import Loss, Manifest, Metadata
from kbackup.archive.query.content import (
    ArchivedPartition,
    ArchivedTopic,
    Content,
    content_of,
    narrowed,
    span,
)
from kbackup.archive.query.coverage import not_reached
from kbackup.archive.query.moment import NO_POINTS, choice_of, content_at, view_of
from kbackup.archive.query.window import Choice, Window
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.segments.table import Segment
from kbackup.errors import NoArchiveError
from kbackup.metadata.entities import NotCarried
from kbackup.metadata.parts import LABELS
from kbackup.store.base import Store


@dataclass(frozen=True, slots=True)
class PointOverview:
    """A restore point. Counts and sizes are what it added, `losses` and `warnings` are counts; `damaged` counts the
    segments that it has lost since. `origin` is what it was made from."""

    number: int
    origin: str
    started_at: str
    committed_at: str
    topics: int
    partitions: int
    segments: int
    records: int
    bytes: int
    stored_bytes: int
    groups: int
    losses: int
    warnings: int
    damaged: int = 0
    pinned: bool = False
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sums:
    """`bytes` of the documented records files, `stored_bytes` of the objects. `gaps` are offsets between start
    and end that no record has: compaction, transactions, losses. Timestamps in ms, None where none is known.

    `expired_records` were in the archive once, before the first ones that are.

    Of a moment (`ArchiveOverview.choice`) it is what has to be read: `records` are at most so many, timestamps are
    bounds, and gaps are not known (None)."""

    records: int
    bytes: int
    stored_bytes: int
    segments: int
    gaps: int | None
    min_timestamp: int | None
    max_timestamp: int | None
    expired_records: int = 0


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
    """`as_of` is the restore point that captured it last; `state` as in the manifest."""

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


@dataclass(frozen=True, slots=True)
class ArchiveOverview:
    """An archive as of `restore_point` (None: a folder of the Java tool). `oldest` and `newest` are its first and
    last restore points. `choice` says what was chosen for a moment, and why; `not_known` what a repair or an adoption
    could not find out; `let_go` counts restore points that expired or were lost. `settings` counts what was captured of
    the cluster's metadata, by its member of metadata.json; `not_carried` names what was not."""

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


def list_points(archive: Archive) -> list[PointOverview]:
    """Every restore point, oldest first."""
    damage = damaged_segments(archive.state)
    return [_point(point, archive.state, damage.get(point.number, 0)) for point in archive.restore_points]


def damaged_segments(state: State) -> dict[int, int]:
    """By restore point, how many of its segments were found lost or damaged; those with none are left out."""
    numbers: list[int] = state.numbers.tolist()
    last = state.last_points()
    found: dict[int, int] = {}
    for row in state.losses.dicts():
        if row["kind"] == "damaged":
            end = last.get((row["topic"], row["incarnation"]), 0)
            for number in numbers[bisect_left(numbers, row["point"]) : bisect_left(numbers, end + 1)]:
                found[number] = found.get(number, 0) + 1
    return found


def _point(point: Point, state: State, damaged: int = 0) -> PointOverview:
    columns = {name: value for name, value in point._asdict().items() if name in PointOverview.__slots__}
    return PointOverview(
        **columns,
        damaged=damaged,
        pinned=point.number in state.pins,
        labels=tuple(sorted(name for name, number in state.labels.items() if number == point.number)),
    )


def overview(store: Store, wanted: str, at: int | None = None, named: str | None = None) -> ArchiveOverview:
    """The archive as of the restore point `wanted` (number, label, or 'latest'); a folder of the Java tool as it is.

    `at` (ms since the epoch): what a restore of that moment would bring back, the topic `named` in any case.
    """
    try:
        archive = open_archive(store)
    except NoArchiveError:
        if not is_java_archive(store):
            raise
        content = java_content(store, java_topics(store))
        return _overview(store, content if at is None else java_as_restored(content, at), None, None, ())
    if at is None:
        manifest = archive.restore_point(wanted)
        content = content_of(archive, manifest, manifest.topics)
    else:
        content = as_restored(archive, wanted, at, named)
        manifest = archive.restore_point(content.restore_point)
    metadata = archive.metadata(manifest)
    whole = _overview(store, content, manifest, archive.state, archive.losses(manifest))
    return replace(whole, settings=_settings(metadata), not_carried=metadata.not_carried)


def _settings(metadata: Metadata) -> dict[str, int]:
    told = {name: getattr(metadata, name) for name in LABELS if name != "topics"}
    return {name: len(each) for name, each in told.items() if isinstance(each, tuple)}


def as_restored(archive: Archive, wanted: str, at: int, named: str | None) -> Content:
    """What a restore with that end in time has to choose from, and would choose where nothing else is said."""
    window = Window(to_time=at)
    view = view_of(archive, wanted, window)
    topics = [*view.topics, *(t for name, t in view.others.items() if name == named)]
    least = {t.name: len(t.partitions) for t in topics}
    content = content_at(archive, view, topics)
    beyond = not_reached(archive, view, content, window)
    choice = choice_of(view, window, (), (*view.left_out.values(), *beyond))
    return narrowed(content, lambda *_: window, least, choice)


def java_as_restored(content: Content, at: int) -> Content:
    """The same of a folder of the Java tool."""
    return narrowed(content, lambda *_: Window(to_time=at), {}, Choice(to_time=at, notes=(NO_POINTS,)))


def _overview(
    store: Store,
    content: Content,
    manifest: Manifest | None,
    state: State | None,
    losses: Sequence[Loss],
) -> ArchiveOverview:
    topics = tuple(_topic(t, content, losses) for t in content.topics)
    oldest, newest = (state.oldest, state.newest) if state is not None else (None, None)
    return ArchiveOverview(
        archive=store.url,
        archive_id=content.archive_id,
        restore_point=manifest.number if manifest is not None else None,
        committed_at=manifest.committed_at if manifest is not None else None,
        restore_points=len(state.points) if state is not None else 0,
        oldest=_point(oldest, state) if oldest is not None and state is not None else None,
        newest=_point(newest, state) if newest is not None and state is not None else None,
        sums=total(topic.sums for topic in topics),
        topics=topics,
        groups=tuple(content.groups),
        losses=tuple(loss.message for loss in losses),
        warnings=manifest.warnings if manifest is not None else content.warnings,
        choice=content.choice,
        not_known=manifest.not_known if manifest is not None else (),
        let_go=state.let_go if state is not None else 0,
    )


def _topic(topic: ArchivedTopic, content: Content, losses: Sequence[Loss]) -> TopicOverview:
    partitions = tuple(PartitionOverview(p.partition, p.start, p.end, sums_of([p])) for p in topic.partitions)
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
        groups=_positions(topic, content),
    )


def _positions(topic: ArchivedTopic, content: Content) -> tuple[GroupPosition, ...]:
    ends = {p.partition: p.end for p in topic.partitions}
    found = [
        GroupPosition(
            group, o.partition, o.offset, max(0, ends.get(o.partition, o.offset) - o.offset), o.metadata
        )
        for group, offsets in content.groups.items()
        for o in offsets
        if o.topic == topic.name
    ]
    return tuple(sorted(found, key=lambda g: (g.group, g.partition)))


def total(parts: Iterable[Sums]) -> Sums:
    every = list(parts)
    gaps = [each.gaps for each in every if each.gaps is not None]
    low, high = span((each.min_timestamp, each.max_timestamp) for each in every)
    return Sums(
        records=sum(each.records for each in every),
        bytes=sum(each.bytes for each in every),
        stored_bytes=sum(each.stored_bytes for each in every),
        segments=sum(each.segments for each in every),
        gaps=sum(gaps) if len(gaps) == len(every) else None,
        min_timestamp=low,
        max_timestamp=high,
        expired_records=sum(each.expired_records for each in every),
    )


def sums_of(partitions: Iterable[ArchivedPartition]) -> Sums:
    """Of some partitions, of whatever topics."""
    some = list(partitions)
    segments: list[Segment] = [s for p in some for s in p.segments]
    records = sum(p.records for p in some)
    low, high = span(p.timestamps for p in some)
    cut = any(p.window is not None for p in some)
    return Sums(
        records=records,
        bytes=sum(s.bytes for s in segments),
        stored_bytes=sum(s.stored for s in segments),
        segments=len(segments),
        gaps=None if cut else sum(p.end - p.start for p in some) - records,
        min_timestamp=low,
        max_timestamp=high,
        expired_records=sum(p.expired for p in some),
    )
