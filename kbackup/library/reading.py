"""Reading archives in a program: topics, groups and records as of a restore point or a moment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING

import pyarrow as pa

from kbackup.archive.catalog.points import PointOverview, list_points
from kbackup.archive.models import Group, Schemas
from kbackup.archive.query import browse, overview
from kbackup.archive.query.content import Content, captured_groups
from kbackup.archive.query.java import JAVA, java_content, java_topics, open_archive_or_folder, readable
from kbackup.archive.reader import Archive
from kbackup.archive.segments.parallel import plan_reads, read_unit
from kbackup.archive.segments.rows import SCHEMA
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.window import Window
from kbackup.archive.topic_decoders import TopicDecoders, Unavailable, topic_decoders
from kbackup.config.times import moment_of
from kbackup.errors import UsageError, suggest_name
from kbackup.library import Configuration, archive_store, configured
from kbackup.store import Store
from kbackup.types import TopicPartition
from kbackup.util.system import in_threads

if TYPE_CHECKING:
    from kbackup.archive.restores.plan import UnitRange
    from kbackup.jobs.restore.plan import CountedRecords

Time = str | int | datetime
"""A time: text such as '2h ago' or RFC 3339, milliseconds since 1970, or a datetime with a zone. Text without a zone is
in the zone of this machine."""


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """A restore point. `records` and `bytes` are what the restore point added to the ones before; `losses` counts the
    losses of records that were gone before they could be archived."""

    number: int
    committed_at: datetime
    labels: tuple[str, ...]
    pinned: bool
    records: int
    bytes: int
    losses: int
    _archive: Archive = field(repr=False, compare=False)

    @classmethod
    def of(cls, shown: PointOverview, archive: Archive) -> RestorePoint:
        """Return a restore point of an archive for programs, which get its time as a value and not as text."""
        committed_at = datetime.fromisoformat(shown.committed_at)
        return cls(
            number=shown.number,
            committed_at=committed_at,
            labels=shown.labels,
            pinned=shown.pinned,
            records=shown.records,
            bytes=shown.bytes,
            losses=shown.losses,
            _archive=archive,
        )

    @property
    def topics(self) -> tuple[str, ...]:
        """The names of the topics that a restore of the restore point brings back."""
        manifest = self._archive.manifest(self.number)
        return tuple(topic.name for topic in manifest.topics if topic.state != "deleted")


class ArchiveReader:
    """An archive, or a folder of the Java tool, as of one restore point or moment. It needs neither Spark nor a JVM.

    A reader shows the archive as it was when it was opened: open the archive again to see later restore points.
    Compressed and encrypted archives read like others."""

    def __init__(
        self, store: Store, restore_point: str | int = "latest", at: int | None = None, opened: Archive | None = None
    ) -> None:
        self._store = store
        self._at = at
        self._point = str(restore_point)
        self._archive = open_archive_or_folder(store) if opened is None else opened
        if self._archive is not None:
            found = self._archive.find_point(self._point)
            if at is None:
                # A label may move, and "latest" be another one later: the number stays.
                self._point = str(found.number)

    def __repr__(self) -> str:
        return f"<kbackup archive {self.url}>"

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def id(self) -> str:
        """The archive's id; 'java' for a folder of the Java tool."""
        return self._archive.info.id if self._archive is not None else JAVA

    @cached_property
    def restore_points(self) -> tuple[RestorePoint, ...]:
        """Every restore point, oldest first; a folder of the Java tool has none."""
        archive = self._archive
        if archive is None:
            return ()
        return tuple(RestorePoint.of(shown, archive) for shown in list_points(archive.state))

    def at(self, *, restore_point: str | int = "latest", to_time: Time | None = None) -> ArchiveReader:
        """Return the archive as of a restore point (number or label), or as a restore up to a moment would bring it
        back; the moment is included."""
        moment = moment_of("to_time", to_time)
        return ArchiveReader(self._store, restore_point, moment, self._archive)

    @cached_property
    def topics(self) -> tuple[str, ...]:
        """The names of the topics that a restore would bring back, in order."""
        if self._archive is None:
            return tuple(sorted(java_topics(self._store)))
        if self._at is None:
            states = self._archive.restore_point(self._point).topics
            names = [topic.name for topic in states if topic.state != "deleted"]
        else:
            _, restored = overview.view_as_restored(self._archive, self._point, self._at, None)
            names = [topic.name for topic in restored]
        return tuple(sorted(names))

    @cached_property
    def _groups(self) -> Mapping[str, Group]:
        if self._archive is None:
            return java_content(self._store, java_topics(self._store)).groups
        if self._at is None:
            topics_there = self._archive.restore_point(self._point).topics
            groups, _ = captured_groups(self._archive, topics_there)
            return groups
        view, topics = overview.view_as_restored(self._archive, self._point, self._at, None)
        return overview.content_as_restored(self._archive, view, topics, self._at).groups

    @property
    def group_names(self) -> tuple[str, ...]:
        """The names of the consumer groups."""
        return tuple(self._groups)

    def groups(self, name: str) -> dict[TopicPartition, int]:
        """Return the offsets of a consumer group: for each partition, the next offset to read.

        Raises `UsageError` for an unknown group."""
        if name not in self._groups:
            hint = suggest_name(name, self._groups, "see group_names")
            raise UsageError(f"there is no group {name} in {self.url}", hint)
        offsets = {}
        for committed in self._groups[name].offsets:
            offsets[TopicPartition(committed.topic, committed.partition)] = committed.offset
        return offsets

    def records(
        self,
        topic: str,
        partition: int | None = None,
        *,
        from_time: Time | None = None,
        to_time: Time | None = None,
        from_offset: int | None = None,
        to_offset: int | None = None,
        columns: Sequence[str] = ("topic", "partition", "offset", "timestamp", "key", "value", "headers"),
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of a topic, or of one of its partitions, in batches of a few MiB, partition by partition
        in order of offsets.

        Times are included on both sides, `to_offset` is excluded. Columns are those of Spark's Kafka source; there are
        also `timestampType` and `segment`, the key of the object that a record is from. Every record is checked:
        `CorruptError` for damage, which may come after the last batch of a segment. `UsageError` for an unknown topic,
        partition or column."""
        for name in columns:
            if name not in SCHEMA.names:
                raise UsageError(f"records have no column {name}", f"use {', '.join(SCHEMA.names)}")
        # The reader's own moment is a bound as well: later records are not in the archive as of it.
        ends = [end for end in (moment_of("to_time", to_time), self._at) if end is not None]
        times = Window(from_time=moment_of("from_time", from_time, up=True), to_time=min(ends, default=None))
        window = times.at_offsets(from_offset, to_offset)

        def window_of(segment: Segment) -> Window:
            return window

        store = readable(self._store, self.id)
        for unit in plan_reads(self._segments(topic, partition), window_of):
            yield from read_unit(store, unit, columns)

    def _segments(self, topic: str, partition: int | None) -> Iterator[Segment]:
        """Yield the segments of a topic, or of one of its partitions."""
        found = self.catalogue(topic)
        if partition is not None:
            yield from found.partition(topic, partition).segments
            return
        for each in found.topics[0].partitions:
            yield from each.segments

    def schemas(self) -> Schemas | None:
        """Return what the restore point has of a schema registry; None if it has nothing."""
        archive = self._archive
        if archive is None:
            return None
        point = archive.restore_point(self._point)
        return archive.schemas(point)

    def overview(self, topic: str | None = None, *, count: bool = False) -> overview.ArchiveOverview:
        """Return what `kbackup info` shows: sums of records, bytes and times by topic and partition, and losses. As of
        a moment, `topic` is there in any case, and records are upper bounds, or counted with `count`."""
        counting = {"count": self._count} if count else {}
        return overview.overview(self._archive, self._store, self._point, self._at, topic, **counting)

    def _count(self, content: Content) -> Content:
        """Count the records in windows by a few threads that read them."""
        from kbackup.jobs.restore.plan import count_range, with_counts

        source = readable(self._store, self.id)

        def count_all(ranges: list[UnitRange]) -> list[CountedRecords]:
            return in_threads(partial(count_range, source), ranges, 8)

        return with_counts(content, count_all)

    def catalogue(self, topic: str | None = None) -> browse.Catalogue:
        """Return the topics, or one of them, with their partitions and segments. `UsageError` for an unknown topic."""
        if self._archive is None:
            return browse.java_catalogue(self._store, topic, self._at)
        return browse.catalogue(self._archive, self._point, topic, self._at)


def topic_decoders_of(reader: ArchiveReader, unavailable: Unavailable) -> TopicDecoders | None:
    """Return what decodes the records of an opened archive by its schemas; None if it has none. `unavailable` gets the
    reason if the schemas turn out not to be usable."""
    archive = reader._archive
    if archive is None:
        return None
    point = archive.restore_point(reader._point)
    return topic_decoders(archive, point, unavailable)


def open_archive(
    url: str | None = None,
    *,
    config: Configuration = None,
    restore_point: str | int = "latest",
    to_time: Time | None = None,
) -> ArchiveReader:
    """Open an archive to read: the one at `url`, or the configured one, as of its newest restore point, another one
    (number or label), or a moment. The configuration says how to log in and the key of an encrypted archive:
    `config={"encryption": {"key": "file:/run/secrets/key"}}`.

    Raises `NoArchiveError` if there is none, and `UnreachableError` or `DeniedError` for its store."""
    settings = configured(config)
    store, _ = archive_store(settings, url, cached=True)
    return ArchiveReader(store, restore_point, moment_of("to_time", to_time))
