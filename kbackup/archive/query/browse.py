"""Look into an archive: what there is, and pages of records, in bounded memory and few requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from kbackup.archive.models import Manifest
from kbackup.archive.query.content import ArchivedPartition, ArchivedTopic, topic_of
from kbackup.archive.query.java import java_content, java_topics
from kbackup.archive.query.overview import content_as_restored, java_as_restored, view_as_restored
from kbackup.archive.reader import Archive
from kbackup.archive.segments.read import SegmentRanges
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.window import EVERYTHING, Choice, Window
from kbackup.errors import UsageError, suggest_name
from kbackup.formats.block import slice_block
from kbackup.formats.record import Row, rows
from kbackup.store.base import Store
from kbackup.types import RecordBlock, TopicPartition
from kbackup.util.system import in_threads
from kbackup.util.times import time_text


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Topics with their segments as of a restore point, without configs and groups. `restore_point` is None for a
    folder of the Java tool; `warnings` then name its torn files. `choice` is the selection for a point in time, with
    its reasons."""

    archive: str
    restore_point: int | None
    committed_at: str | None
    topics: tuple[ArchivedTopic, ...]
    choice: Choice | None = None
    warnings: tuple[str, ...] = ()

    def partition(self, topic: str, number: int) -> ArchivedPartition:
        """Return a partition of a topic. `UsageError` if the topic has no such partition."""
        partitions: dict[int, ArchivedPartition] = {}
        for each in self.topics:
            if each.name == topic:
                for partition in each.partitions:
                    partitions[partition.partition] = partition
        if number not in partitions:
            raise UsageError(
                f"topic {topic} has no partition {number} in {self.location}",
                f"run 'kbackup ls {topic}', which lists its {len(partitions)}",
            )
        return partitions[number]

    @property
    def location(self) -> str:
        if self.choice is not None and self.choice.to_time is not None:
            return f"{self.archive} as of {time_text(self.choice.to_time)}"
        if self.restore_point is not None:
            return f"restore point {self.restore_point}"
        return self.archive


def catalogue(archive: Archive, point_name: str, topic: str | None = None, at: int | None = None) -> Catalogue:
    """Return the catalogue of everything or of one topic, as of the restore point `point_name`: a number, a label, or
    'latest'. With `at` (ms since the epoch), return what a restore of that moment would read, as `overview` does.
    `UsageError` if there is no such topic. Only manifests and segment tables are read."""
    if at is None:
        return catalogue_of(archive, archive.restore_point(point_name), topic)
    url = archive.store.url
    view, topics = view_as_restored(archive, point_name, at, topic)
    if topic is not None:
        names = [state.name for state in topics]
        _chosen(names, topic, f"{url} as of {time_text(at)}")
        topics = [state for state in topics if state.name == topic]
        # What is said of other topics is of no use to somebody who looks at this one.
        excluded: dict[str, str] = {}
        if topic in view.excluded:
            excluded[topic] = view.excluded[topic]
        view = replace(view, excluded=excluded)
    content = content_as_restored(archive, view, topics, at)
    manifest = archive.restore_point(content.restore_point)
    return Catalogue(url, manifest.number, manifest.committed_at, content.topics, content.choice)


def java_catalogue(store: Store, topic: str | None = None, at: int | None = None) -> Catalogue:
    """Return the catalogue of a folder of the Java tool, by the indexes of its segments."""
    chosen = _chosen(java_topics(store), topic, store.url)
    content = java_content(store, chosen)
    if at is not None:
        content = java_as_restored(content, at)
    return Catalogue(store.url, None, None, content.topics, content.choice, content.warnings)


def catalogue_of(archive: Archive, manifest: Manifest, topic: str | None = None) -> Catalogue:
    """Return the catalogue of an archive that is open, of everything or one topic."""
    names = [state.name for state in manifest.topics]
    chosen = _chosen(names, topic, f"restore point {manifest.number}")
    states = [state for state in manifest.topics if state.name in chosen]
    states.sort(key=lambda state: state.name)
    held = archive.partitions(manifest, states)
    topics: list[ArchivedTopic] = []
    for state in states:
        segments = held.get((state.name, state.incarnation), {})
        topics.append(topic_of(state, None, segments, archive.state.starts))
    return Catalogue(archive.store.url, manifest.number, manifest.committed_at, tuple(topics))


def _chosen(names: Sequence[str], topic: str | None, location: str) -> Sequence[str]:
    """Return `topic` alone, or all names if it is None. `UsageError` if there is no such topic."""
    if topic is None:
        return names
    if topic in names:
        return [topic]
    raise UsageError(f"there is no topic {topic} in {location}", suggest_name(topic, names, "'kbackup ls' lists them"))


class PartitionRecords(NamedTuple):
    """Checked records of a partition, in order of their offsets."""

    tp: TopicPartition
    block: RecordBlock


def records(
    store: Store, topic: str, partition: ArchivedPartition, window: Window = EVERYTHING, most: int | None = None
) -> Iterator[PartitionRecords]:
    """Yield the first `most` records of a partition in `window`, in blocks of a few MiB.

    If the window is one of offsets, only these records are read. If it is one of times, all segments that may have some
    are read until `most` records are found. For a page of n records from offset o on, ask for
    `Window(ranges=((o, end),))` and `most=n`; the next page begins after the last offset of that one.
    """
    remaining = most
    tp = TopicPartition(topic, partition.partition)
    for segment in filter(window.may_hold, partition.segments):
        for start, end in window.ranges_in(segment):
            # Of a window in time nobody knows how many records must be read for `most` of them.
            limit = None if window.timed else remaining
            for block in SegmentRanges(store, segment).between(start, end, limit):
                selected, _ = window.cut(block)
                if remaining is not None:
                    count = min(remaining, len(selected))
                    selected = slice_block(selected, 0, count)
                    remaining -= count
                if len(selected):
                    yield PartitionRecords(tp, selected)
                if remaining == 0:
                    return


def tail(store: Store, topic: str, partition: ArchivedPartition, most: int) -> Iterator[PartitionRecords]:
    """Yield the last `most` records of a partition, in order. Records before them are not read."""
    tp = TopicPartition(topic, partition.partition)
    # From the end, until there are enough: how many records a segment has is known without reading it.
    newest: list[tuple[Segment, int]] = []
    for segment in reversed(partition.segments):
        if most <= 0:
            break
        newest.append((segment, min(most, segment.count)))
        most -= segment.count
    for segment, count in reversed(newest):
        for block in SegmentRanges(store, segment).last(count):
            yield PartitionRecords(tp, block)


# Pages of a partition's records, forwards and backwards. A page is bounded in records and in bytes, and takes as few
# requests as its segments allow.

MOST = 1000  # records of a page, at most
ROOM = 8 << 20
"""Bytes of a page's records. Once there are more, the page ends: it may take as much again, or one more record."""
SOUGHT = 256 << 20  # bytes of records that one search for a time looks at

_THREADS = 8


class Limit(NamedTuple):
    """What a page reads at most: bytes of records, and segments."""

    room: int
    segments: int


@dataclass(frozen=True, slots=True)
class Page:
    """Checked records in order of their offsets. `earlier` and `later`: there are others before, or after them."""

    blocks: tuple[RecordBlock, ...]
    earlier: bool
    later: bool

    def rows(self) -> Iterator[Row]:
        for block in self.blocks:
            yield from rows(block)

    @property
    def first(self) -> int | None:
        return int(self.blocks[0].offsets[0]) if self.blocks else None

    @property
    def last(self) -> int | None:
        return int(self.blocks[-1].offsets[-1]) if self.blocks else None


class Sought(NamedTuple):
    """The result of a search. If `matched`, `offset` is the offset of the record. Otherwise the search goes on there;
    None: no record matches."""

    offset: int | None
    matched: bool


def page_from(store: Store, partition: ArchivedPartition, offset: int, most: int, limit: Limit | None = None) -> Page:
    """Return the first records at or above `offset`, at most `most`."""
    nearest = [segment for segment in partition.segments if segment.last >= offset]
    return _page(store, partition, nearest, offset, min(most, MOST), limit, back=False)


def page_before(store: Store, partition: ArchivedPartition, offset: int, most: int, limit: Limit | None = None) -> Page:
    """Return the last records below `offset`, at most `most`."""
    nearest = [segment for segment in reversed(partition.segments) if segment.first < offset]
    return _page(store, partition, nearest, offset, min(most, MOST), limit, back=True)


def offset_at(
    store: Store, partition: ArchivedPartition, time: int, start: int = 0, most_bytes: int | None = None
) -> Sought:
    """Find the first record at or above offset `start` whose timestamp (ms) is `time` or later, among `most_bytes` of
    records (by default `SOUGHT`).

    Timestamps are in no order. So the segment with the first such record is read from its start, in blocks; if the
    archive has no timestamps of its segments (files of the Java tool), so is everything before that segment.
    """
    window = Window(from_time=time, ranges=((start, 2**63 - 1),))
    looked = 0
    for segment in filter(window.may_hold, partition.segments):
        for block in SegmentRanges(store, segment).between(start, segment.last + 1):
            selected, _ = window.cut(block)
            if len(selected):
                return Sought(int(selected.offsets[0]), True)
            looked += block.nbytes
            if looked >= (most_bytes or SOUGHT):
                return Sought(int(block.offsets[-1]) + 1, False)
    return Sought(None, False)


def _page(
    store: Store,
    partition: ArchivedPartition,
    nearest: Sequence[Segment],
    offset: int,
    most: int,
    limit: Limit | None,
    *,
    back: bool,
) -> Page:
    """Return a page of at most `most` records from `offset` on, or before it if `back`. `nearest` are the segments in
    the order in which the page takes them."""
    room = ROOM
    if limit is not None:
        room = limit.room
        nearest = nearest[: limit.segments]
    # The records of each segment, by number. Only the last segment that is planned can have more than a page's bytes,
    # and is cut short for it.
    planned: list[tuple[SegmentRanges, int, int]] = []
    size = 0
    for segment in nearest:
        ranges = SegmentRanges(store, segment)
        edge = ranges.number(offset)
        if back:
            low, high = max(0, edge - most), edge
        else:
            low, high = edge, min(segment.count, edge + most)
        planned.append((ranges, low, high))
        most -= high - low
        # At most: by the largest record of the segment.
        size += min(segment.bytes, (high - low) * segment.largest)
        if not most or size >= room:
            break

    def read(part: tuple[SegmentRanges, int, int]) -> list[RecordBlock]:
        ranges, low, high = part
        return list(ranges.fitting(low, high, room, last=back))

    if back:
        planned.reverse()  # blocks go in order of offsets, whichever way the page was leafed to
    blocks: list[RecordBlock] = []
    for of_segment in in_threads(read, planned, _THREADS):
        blocks += of_segment
    first, last = offset, offset - 1
    if blocks:
        first = int(blocks[0].offsets[0])
        last = int(blocks[-1].offsets[-1])
    earlier = later = False
    if partition.segments:
        earlier = partition.segments[0].first < first
        later = partition.segments[-1].last > last
    return Page(tuple(blocks), earlier, later)
