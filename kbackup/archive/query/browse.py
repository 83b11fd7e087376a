"""Looking into an archive: what there is, and pages of records, in bounded memory and few requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from kbackup.archive.java.content import is_java_archive, java_content, java_topics
from kbackup.archive.models import Manifest
from kbackup.archive.query.content import ArchivedPartition, ArchivedTopic, Content, by_incarnation, topic_of
from kbackup.archive.query.overview import content_as_restored, java_as_restored, view_as_restored
from kbackup.archive.query.window import Choice, Window
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.segments.ranged import SegmentRanges
from kbackup.archive.segments.table import Segment
from kbackup.errors import NoArchiveError, UsageError, suggest_name
from kbackup.formats.block import slice_block
from kbackup.store.base import Store
from kbackup.types import RecordBlock, TopicPartition
from kbackup.util.times import time_text

EVERYTHING = Window()


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Topics with their segments as of a restore point (None: a folder of the Java tool); neither configs nor
    groups. `choice` says what was chosen for a moment, and why. `warnings` name torn files of a folder of the Java
    tool."""

    archive: str
    restore_point: int | None
    committed_at: str | None
    topics: tuple[ArchivedTopic, ...]
    choice: Choice | None = None
    warnings: tuple[str, ...] = ()

    def partition(self, topic: str, number: int) -> ArchivedPartition:
        """Return a partition of a topic. `UsageError` where the topic has no such partition."""
        match = next(t for t in self.topics if t.name == topic)
        for partition in match.partitions:
            if partition.partition == number:
                return partition
        raise UsageError(
            f"topic {topic} has no partition {number} in {self.location}",
            f"run 'kbackup ls {topic}', which lists its {len(match.partitions)}",
        )

    @property
    def location(self) -> str:
        if self.choice is not None and self.choice.to_time is not None:
            return f"{self.archive} as of {time_text(self.choice.to_time)}"
        return f"restore point {self.restore_point}" if self.restore_point is not None else self.archive


def catalogue(
    store: Store, point_name: str = "latest", topic: str | None = None, at: int | None = None
) -> Catalogue:
    """As of the restore point `point_name` (a number, a label, or 'latest'), of everything or one topic. `at` (ms since
    the epoch): what a restore of that moment would read, as `overview` has it.

    `UsageError` where there is no such topic. It reads manifests and segment tables; of a folder of the Java tool the
    indexes of the segments.
    """
    try:
        archive = open_archive(store)
    except NoArchiveError:
        if not is_java_archive(store):
            raise
        names = _chosen(java_topics(store), topic, store.url)
        content = java_content(store, names)
        if at is not None:
            content = java_as_restored(content, at)
        return Catalogue(store.url, None, None, content.topics, content.choice, content.warnings)
    if at is None:
        return catalogue_of(archive, archive.restore_point(point_name), topic)
    content = _content_at(archive, point_name, topic, at)
    manifest = archive.restore_point(content.restore_point)
    return Catalogue(store.url, manifest.number, manifest.committed_at, content.topics, content.choice)


def _content_at(archive: Archive, point_name: str, topic: str | None, at: int) -> Content:
    """Return what a restore of that moment would read: everything, or one topic with what is to be said of it."""
    view, topics = view_as_restored(archive, point_name, at, topic)
    if topic is not None:
        _chosen([t.name for t in topics], topic, f"{archive.store.url} as of {time_text(at)}")
        topics = [t for t in topics if t.name == topic]
        view = replace(view, excluded={name: text for name, text in view.excluded.items() if name == topic})
    return content_as_restored(archive, view, topics, at)


def catalogue_of(archive: Archive, manifest: Manifest, topic: str | None = None) -> Catalogue:
    """Return the catalogue of an archive that is open, of everything or one topic."""
    chosen = _chosen([t.name for t in manifest.topics], topic, f"restore point {manifest.number}")
    states = sorted((t for t in manifest.topics if t.name in chosen), key=lambda t: t.name)
    held, starts = by_incarnation(archive.segments(manifest, states)), archive.state.starts
    topics = tuple(topic_of(t, None, held.get((t.name, t.incarnation), {}), starts) for t in states)
    return Catalogue(archive.store.url, manifest.number, manifest.committed_at, topics)


def _chosen(names: Sequence[str], topic: str | None, location: str) -> Sequence[str]:
    if topic is None:
        return names
    if topic in names:
        return [topic]
    raise UsageError(
        f"there is no topic {topic} in {location}", suggest_name(topic, names, "'kbackup ls' lists them")
    )


class PartitionRecords(NamedTuple):
    """Checked records of a partition, in order of their offsets."""

    tp: TopicPartition
    block: RecordBlock


def records(
    store: Store,
    topic: str,
    partition: ArchivedPartition,
    window: Window = EVERYTHING,
    most: int | None = None,
) -> Iterator[PartitionRecords]:
    """Yield the first `most` records of a partition in `window`, in blocks of a few MiB. By offsets it reads just these
    records; by times all segments that may have some, until `most` are found. A page of n records from offset o on is
    that of `Window(ranges=((o, end),))` and `most=n`; the next one begins after its last offset."""
    remaining = most
    tp = TopicPartition(topic, partition.partition)
    for segment in filter(window.may_hold, partition.segments):
        ranges = window.ranges if window.ranges is not None else ((segment.first, segment.last + 1),)
        for start, end in ranges:
            for block in SegmentRanges(store, segment).between(
                start, end, None if window.timed else remaining
            ):
                selected, _ = window.cut(block)
                if remaining is not None:
                    selected = slice_block(selected, 0, min(remaining, len(selected)))
                    remaining -= len(selected)
                if len(selected):
                    yield PartitionRecords(tp, selected)
                if remaining == 0:
                    return


def tail(store: Store, topic: str, partition: ArchivedPartition, most: int) -> Iterator[PartitionRecords]:
    """Yield the last `most` records of a partition, in order. Records before them are not read."""
    newest: list[tuple[Segment, int]] = []
    for segment in reversed(partition.segments):
        if most > 0:
            newest.append((segment, min(most, segment.count)))
            most -= segment.count
    for segment, count in reversed(newest):
        for block in SegmentRanges(store, segment).last(count):
            yield PartitionRecords(TopicPartition(topic, partition.partition), block)
