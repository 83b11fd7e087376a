"""Reading archives in a program: topics, groups and records as of a restore point or a moment."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Literal, overload

import pyarrow as pa

from kbackup.archive.catalog.points import PointOverview, list_points
from kbackup.archive.models import Group, Schemas
from kbackup.archive.query import browse, overview
from kbackup.archive.query.content import Content, captured_groups
from kbackup.archive.query.java import JAVA, java_content, java_topics, open_archive_or_folder, readable
from kbackup.archive.reader import Archive
from kbackup.archive.segments.parallel import ReadUnit, plan_reads, read_batches, read_unit
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.window import Window
from kbackup.archive.topic_decoders import TopicDecoders, Unavailable, topic_decoders
from kbackup.config.times import moment_of, now_ms
from kbackup.errors import KbackupError, UsageError, suggest_name
from kbackup.formats.record import rows
from kbackup.library import Configuration, archive_store, configured
from kbackup.library.decoded import FrameKind, RecordColumns, decoded_record, frame_of
from kbackup.library.decoded import Record as Record
from kbackup.library.settings import Time
from kbackup.store import Store
from kbackup.types import TopicPartition
from kbackup.util.system import in_threads

if TYPE_CHECKING:
    import pandas
    import polars

    from kbackup.archive.restores.plan import UnitRange
    from kbackup.jobs.restore.plan import CountedRecords

log = logging.getLogger(__name__)


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

    @overload
    def records(
        self,
        topic: str,
        partition: int | None = None,
        *,
        from_time: Time | None = None,
        to_time: Time | None = None,
        from_offset: int | None = None,
        to_offset: int | None = None,
        columns: Sequence[str] | None = None,
        decode: Literal[False] | None = None,
    ) -> Iterator[pa.RecordBatch]: ...

    @overload
    def records(
        self,
        topic: str,
        partition: int | None = None,
        *,
        from_time: Time | None = None,
        to_time: Time | None = None,
        from_offset: int | None = None,
        to_offset: int | None = None,
        decode: Literal[True],
    ) -> Iterator[Record]: ...

    def records(
        self,
        topic: str,
        partition: int | None = None,
        *,
        from_time: Time | None = None,
        to_time: Time | None = None,
        from_offset: int | None = None,
        to_offset: int | None = None,
        columns: Sequence[str] | None = None,
        decode: bool | None = None,
    ) -> Iterator[pa.RecordBatch] | Iterator[Record]:
        """Yield the records of a topic, or of one of its partitions, partition by partition in order of offsets: in
        batches of a few MiB, or with `decode=True` one by one as a `Record`, whose key and value are decoded.

        Times are included on both sides, `to_offset` is excluded. Columns are those of Spark's Kafka source; there are
        also `timestampType` and `segment`, the key of the object that a record is from. Where the archive has the
        schemas of a topic, `key_decoded`, `value_decoded` and `decode_error` stand beside the bytes, unless `columns`
        leaves them out or with `decode=False`; what is left out costs nothing. A record that can't be decoded has the
        reason in `decode_error`, and the others go on.

        Every record is checked: `CorruptError` for damage, which may come after the last batch of a segment.
        `UsageError` for an unknown topic, partition or column, and with `decode=True` if the archive has no schemas,
        or a library is missing that they need."""
        window = self._window(from_time, to_time, from_offset, to_offset)
        units = self._units(topic, partition, window)
        store = readable(self._store, self.id)
        if decode:
            if columns is not None:
                raise UsageError("decode=True yields whole records", "leave columns out, or decode=True")
            return self._each_record(store, units, topic)
        made = RecordColumns(topic, columns, None if decode is False else self._decoders)
        return made.batches(self._batches(store, units, made.archived))

    @overload
    def frame(
        self,
        topic: str,
        partition: int | None = None,
        *,
        kind: Literal["pandas"] = "pandas",
        from_time: Time | None = None,
        to_time: Time | None = None,
        from_offset: int | None = None,
        to_offset: int | None = None,
        columns: Sequence[str] | None = None,
        decode: bool | None = None,
    ) -> pandas.DataFrame: ...

    @overload
    def frame(
        self,
        topic: str,
        partition: int | None = None,
        *,
        kind: Literal["polars"],
        from_time: Time | None = None,
        to_time: Time | None = None,
        from_offset: int | None = None,
        to_offset: int | None = None,
        columns: Sequence[str] | None = None,
        decode: bool | None = None,
    ) -> polars.DataFrame: ...

    @overload
    def frame(
        self,
        topic: str,
        partition: int | None = None,
        *,
        kind: Literal["arrow"],
        from_time: Time | None = None,
        to_time: Time | None = None,
        from_offset: int | None = None,
        to_offset: int | None = None,
        columns: Sequence[str] | None = None,
        decode: bool | None = None,
    ) -> pa.Table: ...

    def frame(
        self,
        topic: str,
        partition: int | None = None,
        *,
        kind: FrameKind = "pandas",
        from_time: Time | None = None,
        to_time: Time | None = None,
        from_offset: int | None = None,
        to_offset: int | None = None,
        columns: Sequence[str] | None = None,
        decode: bool | None = None,
    ) -> pandas.DataFrame | polars.DataFrame | pa.Table:
        """Return the records of a topic as a frame of pandas or Polars, or as a table of Arrow: all of them, in memory.

        The columns and the selection are those of `records`. With `decode=True`, `UsageError` if the archive has no
        schemas of the topic. `UsageError` if the library of the frame is not installed."""
        window = self._window(from_time, to_time, from_offset, to_offset)
        units = self._units(topic, partition, window)
        store = readable(self._store, self.id)
        decoders: TopicDecoders | None = None
        if decode is not False:
            decoders = self._sure_decoders() if decode else self._decoders
        made = RecordColumns(topic, columns, decoders)
        if decode and not made.decodes:
            raise UsageError(
                f"the archive does not show by which schemas records of topic {topic} were written",
                "leave decode=True out to get their bytes",
            )
        batches = made.batches(self._batches(store, units, made.archived))
        # Batches have the columns in this order, also those of a topic without records.
        table = pa.Table.from_batches(list(batches), schema=made.schema)
        frame: pandas.DataFrame | polars.DataFrame | pa.Table = frame_of(table, kind)
        return frame

    def _window(
        self, from_time: Time | None, to_time: Time | None, from_offset: int | None, to_offset: int | None
    ) -> Window:
        now = now_ms()
        start = moment_of("from_time", from_time, now=now, up=True)
        end = moment_of("to_time", to_time, now=now)
        # The reader's own moment is a bound as well: later records are not in the archive as of it.
        ends = [bound for bound in (end, self._at) if bound is not None]
        times = Window(from_time=start, to_time=min(ends, default=None))
        return times.at_offsets(from_offset, to_offset)

    def _units(self, topic: str, partition: int | None, window: Window) -> list[ReadUnit]:
        def window_of(segment: Segment) -> Window:
            return window

        return plan_reads(self._segments(topic, partition), window_of)

    def _batches(self, store: Store, units: Sequence[ReadUnit], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for unit in units:
            yield from read_unit(store, unit, columns)

    def _each_record(self, store: Store, units: Sequence[ReadUnit], topic: str) -> Iterator[Record]:
        decoders = self._sure_decoders().decoders(topic)
        for unit in units:
            for each in unit.ranges:
                tp = TopicPartition(topic, each.segment.partition)
                for block in read_batches(store, each):
                    for row in rows(block, str(tp)):
                        yield decoded_record(tp, row, decoders)

    @cached_property
    def _decoders(self) -> TopicDecoders | None:
        """What decodes records unasked. If it turns out not to be usable, records stay as they are."""

        def unavailable(error: KbackupError) -> None:
            log.warning("keys and values are not decoded: %s", error.message)

        return topic_decoders_of(self, unavailable)

    def _sure_decoders(self) -> TopicDecoders:
        """Return what decodes records that somebody has asked to decode: it raises what makes it unusable.

        Raises `UsageError` if the restore point has no schemas."""

        def unavailable(error: KbackupError) -> None:
            raise error

        decoders = topic_decoders_of(self, unavailable)
        if decoders is None:
            raise UsageError(
                "the restore point has no schemas to decode by",
                "set schema_registry.url: later backups keep its schemas",
            )
        return decoders

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

    @contextmanager
    def serve(self, *, topics: Sequence[str] = (), listen: str = "127.0.0.1:0") -> Iterator[str]:
        """Serve the archive to Kafka's own clients as `kbackup serve` does, in a thread, for the time of a `with`
        block: it gives the address for `bootstrap.servers`. Port 0 takes a free one.

        `topics` are names or `/regex/`; all by default. Raises `UsageError` for a topic that is not there, or an
        address that can't be used or is reached from other machines."""
        # Here: it loads compiled code and the messages of Kafka, which readers of files need not wait for.
        from kbackup.archive.query.selection import Selection
        from kbackup.config.models import Serve
        from kbackup.serve.logs import Choosing
        from kbackup.serve.service import ArchiveServer, Listening, serving_in_thread

        choosing = Choosing(Selection.of(topics, ()), self._point, self._at)
        server = ArchiveServer(self._store, choosing, Listening.of(Serve(listen=listen)))
        with serving_in_thread(server) as serving:
            yield serving.bootstrap

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
