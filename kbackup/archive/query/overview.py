"""Sum up an archive from manifests and segment tables; no record is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kbackup.archive.catalog.state import State
from kbackup.archive.java.content import is_java_archive, java_content, java_topics
from kbackup.archive.models import Loss, Manifest, Metadata, TopicState
from kbackup.archive.query.content import ArchivedTopic, Content, content_of, narrowed
from kbackup.archive.query.coverage import not_reached
from kbackup.archive.query.moment import NO_POINTS, View, choice_of, content_at, view_of
from kbackup.archive.query.points import PointOverview, point_overview
from kbackup.archive.query.sums import Sums, sums_of, total
from kbackup.archive.query.window import Choice, Window
from kbackup.archive.reader import Archive, open_archive
from kbackup.errors import NoArchiveError
from kbackup.metadata.entities import NotCarried
from kbackup.metadata.parts import LABELS
from kbackup.store.base import Store


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


def overview(
    store: Store, point_name: str, at: int | None = None, named: str | None = None
) -> ArchiveOverview:
    """The archive as of the restore point `point_name` (number, label, or 'latest'); a folder of the Java tool as it
    is.

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
        manifest = archive.restore_point(point_name)
        content = content_of(archive, manifest, manifest.topics)
    else:
        content = content_as_restored(archive, *view_as_restored(archive, point_name, at, named), at)
        manifest = archive.restore_point(content.restore_point)
    metadata = archive.metadata(manifest)
    whole = _overview(store, content, manifest, archive.state, archive.losses(manifest))
    return replace(whole, settings=_settings(metadata), not_carried=metadata.not_carried)


def _settings(metadata: Metadata) -> dict[str, int]:
    told = {name: getattr(metadata, name) for name in LABELS if name != "topics"}
    return {name: len(each) for name, each in told.items() if isinstance(each, tuple)}


def view_as_restored(
    archive: Archive, point_name: str, at: int, named: str | None
) -> tuple[View, list[TopicState]]:
    """Return the view of a restore with that end in time, and the topics that it selects: all, and `named`."""
    view = view_of(archive, point_name, Window(to_time=at))
    return view, [*view.topics, *(t for name, t in view.others.items() if name == named)]


def content_as_restored(archive: Archive, view: View, topics: Sequence[TopicState], at: int) -> Content:
    """Return what a restore with that end in time brings back of `topics`."""
    window = Window(to_time=at)
    least = {t.name: len(t.partitions) for t in topics}
    content = content_at(archive, view, topics)
    beyond = not_reached(archive, view, content, window)
    choice = choice_of(view, window, (), (*view.excluded.values(), *beyond))
    return narrowed(content, lambda *_: window, least, choice)


def java_as_restored(content: Content, at: int) -> Content:
    """Return the content of a folder of the Java tool as a restore of moment `at` would read it."""
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
        oldest=point_overview(oldest, state) if oldest is not None and state is not None else None,
        newest=point_overview(newest, state) if newest is not None and state is not None else None,
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
    positions = [
        GroupPosition(
            group, o.partition, o.offset, max(0, ends.get(o.partition, o.offset) - o.offset), o.metadata
        )
        for group, offsets in content.groups.items()
        for o in offsets
        if o.topic == topic.name
    ]
    return tuple(sorted(positions, key=lambda g: (g.group, g.partition)))
