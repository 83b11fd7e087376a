"""What can be restored: topics with their segments and their groups' offsets, wherever they were archived
by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kbackup.archive.models import GroupOffset, Manifest, TopicMetadata, TopicState
from kbackup.archive.reader import Archive
from kbackup.archive.segments import Segment


@dataclass(frozen=True, slots=True)
class ArchivedPartition:
    """Offsets [`start`, `end`) as far as `segments` hold them, in order."""

    partition: int
    start: int
    end: int
    segments: tuple[Segment, ...]

    @property
    def records(self) -> int:
        return sum(s.count for s in self.segments)

    @property
    def bytes(self) -> int:
        return sum(s.bytes for s in self.segments)


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
    def segments(self) -> list[Segment]:
        return [s for p in self.partitions for s in p.segments]


@dataclass(frozen=True, slots=True)
class Content:
    """`groups` is group -> its offsets of these topics. `restore_point` is 0 for a folder of the Java
    tool."""

    archive_id: str
    restore_point: int
    topics: tuple[ArchivedTopic, ...]
    groups: dict[str, tuple[GroupOffset, ...]]
    losses: tuple[str, ...] = ()


def content_of(archive: Archive, manifest: Manifest, topics: Sequence[TopicState]) -> Content:
    """`topics` of a restore point; a topic that its run did not look at comes as of the run that did."""
    segments: dict[tuple[str, int, int], list[Segment]] = {}
    for segment in archive.segments(manifest, topics):
        segments.setdefault((segment.topic, segment.incarnation, segment.partition), []).append(segment)
    points = {m.seq: m for m in archive.restore_points if m.seq in {t.captured for t in topics}}
    metadata = {seq: {t.name: t for t in archive.metadata(m).topics} for seq, m in points.items()}
    archived = tuple(_topic(t, metadata[t.captured].get(t.name), segments) for t in topics)
    return Content(
        archive.info.id,
        manifest.seq,
        archived,
        _groups(archive, points, topics),
        tuple(loss.message for m in archive.restore_points if m.seq <= manifest.seq for loss in m.losses),
    )


def _topic(
    state: TopicState, known: TopicMetadata | None, segments: dict[tuple[str, int, int], list[Segment]]
) -> ArchivedTopic:
    partitions = tuple(
        ArchivedPartition(
            p.partition, p.start, p.end, tuple(segments.get((state.name, state.incarnation, p.partition), ()))
        )
        for p in state.partitions
    )
    return ArchivedTopic(
        state.name,
        state.incarnation,
        state.captured,
        state.state,
        partitions,
        known.configs if known is not None else None,
        known.replication_factor if known is not None else None,
    )


def _groups(
    archive: Archive, points: dict[int, Manifest], topics: Sequence[TopicState]
) -> dict[str, tuple[GroupOffset, ...]]:
    found: dict[str, list[GroupOffset]] = {}
    for seq, manifest in points.items():
        captured = {t.name for t in topics if t.captured == seq}
        for group in archive.groups(manifest).groups:
            for offset in group.offsets:
                if offset.topic in captured:
                    found.setdefault(group.group, []).append(offset)
    return {group: tuple(offsets) for group, offsets in sorted(found.items())}
