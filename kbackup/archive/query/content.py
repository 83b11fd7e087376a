"""The content that can be restored: topics with their segments and their groups' offsets, of any kind of archive."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from kbackup.archive.catalog.operations import loss_of
from kbackup.archive.catalog.state import LogStart
from kbackup.archive.models import GroupOffset, Loss, Manifest, TopicState
from kbackup.archive.query.window import Choice, Window
from kbackup.archive.reader import Archive
from kbackup.archive.segments.table import Segment
from kbackup.metadata.entities import TopicMetadata
from kbackup.types import Incarnation, IncarnationPartition


@dataclass(frozen=True, slots=True)
class ArchivedPartition:
    """Offsets [`start`, `end`) as far as `segments` hold them, in order; records in `window` alone are wanted.
    `expired` counts records before `start` that were in the archive once."""

    partition: int
    start: int
    end: int
    segments: tuple[Segment, ...]
    window: Window | None = None
    expired: int = 0

    @property
    def records(self) -> int:
        """Return the number of records; an upper bound where there is a window."""
        if self.window is None:
            return sum(s.count for s in self.segments)
        return sum(map(self.window.at_most, self.segments))

    @property
    def bytes(self) -> int:
        return sum(s.bytes for s in self.segments)

    @property
    def timestamps(self) -> tuple[int | None, int | None]:
        """Return the least and the greatest timestamp, as far as they are known; bounds on them where there is a
        window."""
        low = min((s.min_timestamp for s in self.segments if s.min_timestamp is not None), default=None)
        high = max((s.max_timestamp for s in self.segments if s.max_timestamp is not None), default=None)
        return (low, high) if self.window is None else self.window.clip(low, high)


@dataclass(frozen=True, slots=True)
class ArchivedTopic:
    """`as_of` is the restore point that captured it. `configs` and `replication_factor` are None where they
    are unknown."""

    name: str
    incarnation: int
    as_of: int
    state: str
    partitions: tuple[ArchivedPartition, ...]
    configs: dict[str, str] | None
    replication_factor: int | None

    @property
    def key(self) -> Incarnation:
        return self.name, self.incarnation

    @property
    def segments(self) -> list[Segment]:
        return [s for p in self.partitions for s in p.segments]

    @property
    def timestamps(self) -> tuple[int | None, int | None]:
        return span(p.timestamps for p in self.partitions)


def span(bounds: Iterable[tuple[int | None, int | None]]) -> tuple[int | None, int | None]:
    """Return the least and the greatest of some bounds."""
    some = list(bounds)
    return (
        min((low for low, _ in some if low is not None), default=None),
        max((high for _, high in some if high is not None), default=None),
    )


@dataclass(frozen=True, slots=True)
class Content:
    """`groups` is group -> its offsets of these topics, `not_carried` group -> why the captures that those are of are
    without it. `restore_point` is 0 for a folder of the Java tool, of which `warnings` name torn files. `choice` is
    there where a window was asked for. `damaged` are losses by damage of records that are asked for."""

    archive_id: str
    restore_point: int
    topics: tuple[ArchivedTopic, ...]
    groups: dict[str, tuple[GroupOffset, ...]]
    losses: tuple[str, ...] = ()
    choice: Choice | None = None
    not_carried: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    damaged: tuple[Loss, ...] = ()


def content_of(
    archive: Archive,
    manifest: Manifest,
    topics: Sequence[TopicState],
    groups: Sequence[TopicState] | None = None,
) -> Content:
    """Return `topics` with all segments up to a restore point. A topic that its run did not capture is as of the run
    that did. The groups' offsets are from the captures that `groups` names, by default from those of the topics."""
    segments = by_incarnation(archive.segments(manifest, topics))
    metadata = {
        number: {t.name: t for t in archive.metadata(number).topics}
        for number in {t.captured for t in topics}
    }
    archived = tuple(
        topic_of(
            t,
            metadata[t.captured].get(t.name),
            segments.get((t.name, t.incarnation), {}),
            archive.state.starts,
        )
        for t in topics
    )
    chosen = {(t.name, t.incarnation) for t in topics}
    told = [t for t in (topics if groups is None else groups) if (t.name, t.incarnation) in chosen]
    offsets, not_carried = group_offsets(archive, told)
    return Content(
        archive.info.id,
        manifest.number,
        archived,
        offsets,
        tuple(loss.message for loss in archive.losses(manifest)),
        not_carried=not_carried,
        damaged=_damaged(archive, manifest, chosen),
    )


def by_incarnation(segments: Iterable[Segment]) -> dict[Incarnation, dict[int, list[Segment]]]:
    """Group segments by incarnation, then by partition, in the given order."""
    found: dict[Incarnation, dict[int, list[Segment]]] = {}
    for s in segments:
        found.setdefault((s.topic, s.incarnation), {}).setdefault(s.partition, []).append(s)
    return found


def _damaged(archive: Archive, manifest: Manifest, topics: Container[Incarnation]) -> tuple[Loss, ...]:
    """Return the losses of `topics` up to a restore point by missing or damaged objects."""
    rows = [
        row
        for row in archive.state.losses.dicts()
        if row["kind"] == "damaged"
        and row["point"] <= manifest.number
        and (row["topic"], row["incarnation"]) in topics
    ]
    return tuple(
        loss_of(row) for row in sorted(rows, key=lambda row: (row["topic"], row["partition"], row["start"]))
    )


def narrowed(
    content: Content, window_of: Callable[[str, int], Window], least: Mapping[str, int], choice: Choice
) -> Content:
    """Return the content cut to the window of each topic and partition. A partition above the first `least[topic]` ones
    is kept only up to the last one with records in its window."""
    topics = []
    for topic in content.topics:
        cut = [_cut(p, window_of(topic.name, p.partition)) for p in topic.partitions]
        while len(cut) > least.get(topic.name, len(cut)) and not cut[-1].segments:
            cut.pop()
        topics.append(replace(topic, partitions=tuple(cut)))
    damaged = tuple(loss for loss in content.damaged if _is_asked(loss, window_of))
    return replace(content, topics=tuple(topics), choice=choice, damaged=damaged)


def _is_asked(loss: Loss, window_of: Callable[[str, int], Window]) -> bool:
    """Return whether records of a loss may lie in the window. Their times are not known."""
    window = window_of(loss.topic, loss.partition or 0)
    start, end = loss.start or 0, loss.end if loss.end is not None else 1 << 63
    return window.ranges is None or any(low < end and start < high for low, high in window.ranges)


def _cut(partition: ArchivedPartition, window: Window) -> ArchivedPartition:
    segments = tuple(s for s in partition.segments if window.may_hold(s))
    return replace(partition, segments=segments, window=window)


def topic_of(
    state: TopicState,
    known: TopicMetadata | None,
    segments: Mapping[int, Sequence[Segment]],
    starts: Mapping[IncarnationPartition, LogStart] = MappingProxyType({}),
) -> ArchivedTopic:
    """Return a topic with the segments of later runs, where they are among `segments` (by partition), and without
    records before the log `starts`."""
    states = {p.partition: (p.start, p.end) for p in state.partitions}
    records = {p.partition: p.records for p in state.partitions}
    partitions = []
    for number in sorted({*states, *range(max(segments, default=-1) + 1)}):
        ours = tuple(segments.get(number, ()))
        start, end = states.get(number, (ours[0].first if ours else 0, 0))
        went = starts.get((state.name, state.incarnation, number))
        gone = 0
        if went is not None:
            gone = went.records if went.start <= end else records.get(number, 0)
            start = min(max(start, went.start), max(start, end))
        last = max(end, ours[-1].last + 1 if ours else 0)
        partitions.append(ArchivedPartition(number, start, last, ours, expired=gone))
    return ArchivedTopic(
        state.name,
        state.incarnation,
        state.captured,
        state.state,
        tuple(partitions),
        known.configs if known is not None else None,
        known.replication_factor if known is not None else None,
    )


def group_offsets(
    archive: Archive, topics: Sequence[TopicState]
) -> tuple[dict[str, tuple[GroupOffset, ...]], dict[str, str]]:
    """Return the offsets of `topics` by group, and why by group that a capture is without."""
    offsets_by_group: dict[str, list[GroupOffset]] = {}
    not_carried: dict[str, str] = {}
    for number in sorted({t.captured for t in topics}):
        captured = {t.name for t in topics if t.captured == number}
        document = archive.groups(number)
        for name, why in document.not_carried.items():
            not_carried[name] = f"restore point {number} does not carry it: {why}"
        for group in document.groups:
            for offset in group.offsets:
                if offset.topic in captured:
                    offsets_by_group.setdefault(group.group, []).append(offset)
    return {group: tuple(offsets) for group, offsets in sorted(offsets_by_group.items())}, not_carried
