"""Plan an export and read its records: the segments that each restore point added."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import pyarrow as pa

from kbackup.archive.catalog.state import Point
from kbackup.archive.lease import HeldLease
from kbackup.archive.query.selection import Selection, check_selection
from kbackup.archive.reader import Archive, damaged, missed, open_archive
from kbackup.archive.segments.parallel import ReadUnit, SegmentRange, read_range
from kbackup.archive.segments.rows import to_export_batch
from kbackup.archive.segments.table import Segment, in_order, with_checked_key
from kbackup.config.models import Export
from kbackup.errors import RefusedError
from kbackup.formats.block import rotation_cut, slice_block
from kbackup.jobs.export.destination import Destination, ExportInfo, Reached
from kbackup.metrics.registry import Phases, ProgressListener
from kbackup.spark.tasks import ProgressSender, Spark
from kbackup.store import S3Options
from kbackup.store.base import Store
from kbackup.types import Incarnation, RecordBlock, TopicPartition

_Added = tuple[int, Segment]
"""A segment and the number of the run that added it."""


class Addition(NamedTuple):
    """Segments to export for a restore point: `segments` in order of topic, incarnation, partition and offset;
    `partitions` is how many each of their topics had."""

    point: Point
    segments: tuple[Segment, ...]
    partitions: dict[Incarnation, int]

    @property
    def records(self) -> int:
        return sum(s.count for s in self.segments)

    @property
    def bytes(self) -> int:
        return sum(s.bytes for s in self.segments)


class Additions:
    """The selected additions of an archive. Remaining segments of expired restore points come with the next restore
    point."""

    def __init__(self, archive: Archive, selection: Selection) -> None:
        self._archive, self._selection = archive, selection
        self._added: dict[int, dict[str, list[_Added]]] = {}
        self._counts: dict[int, dict[Incarnation, int]] = {}
        self._missed: dict[int, list[tuple[TopicPartition, int]]] = {}

    @property
    def newest(self) -> int:
        """The newest restore point; `NoArchiveError` if there is none."""
        return self._archive.find_point("latest").number

    def check_names(self) -> None:
        """Raise `UsageError` for a selection that matches no topic that was ever archived."""
        known = [t.name for t in self._archive.restore_point("latest").topics]
        check_selection(self._selection, "topic", known, f"in {self._archive.store.url}", "'kbackup ls' lists them")

    def topics_after(self, number: int) -> list[str]:
        """Return the topics with records of restore points after `number`, sorted; `RefusedError` if the archive is
        behind."""
        self._check_not_ahead(number)
        topics = (
            topic
            for point in self._points(number)
            for topic, added in self._of(point).items()
            if any(run > number for run, _ in added)
        )
        return sorted(set(topics))

    def after(self, number: int, topic: str | None = None) -> Iterator[Addition]:
        """Yield the additions (to `topic`) of restore points after `number`, oldest first; none for those without
        segments. `RefusedError` if the archive is behind."""
        self._check_not_ahead(number)
        for point in self._points(number):
            by_topic = self._of(point)
            selected = by_topic.values() if topic is None else [by_topic.get(topic, [])]
            segments = sorted((s for added in selected for run, s in added if run > number), key=in_order)
            if segments:
                yield Addition(point, tuple(segments), self._partitions(point, segments))

    def missed(self, number: int, topic: str | None = None) -> list[tuple[TopicPartition, int]]:
        """Return the partitions (of `topic`) of which records that came after `number` may have expired, and below
        which offset: they are in no `Addition`."""
        if number not in self._missed:
            topics = set(self._selection.topics({key[0] for key in self._archive.state.starts}))
            self._missed[number] = missed(self._archive, number, lambda tp: tp.topic in topics)
        return [(tp, start) for tp, start in self._missed[number] if topic is None or tp.topic == topic]

    def damaged(self, number: int, topic: str | None = None) -> list[tuple[TopicPartition, str]]:
        """Return the partitions (of `topic`) with records of restore points after `number` that were found missing or
        damaged, each with a sentence: they are in no `Addition`."""
        topics = set(self._selection.topics(set(self._archive.state.losses.columns("topic")[0])))
        last = self._archive.state.next_point
        return damaged(self._archive, number, last, lambda tp: tp.topic in topics and topic in (None, tp.topic))

    def _check_not_ahead(self, number: int) -> None:
        if number >= self._archive.state.next_point:
            raise RefusedError(
                f"records were exported up to restore point {number}, the newest of {self._archive.store.url} is "
                f"{self.newest}",
                "export from the archive that is ahead, or to another destination",
            )

    def _partitions(self, point: Point, segments: Sequence[Segment]) -> dict[Incarnation, int]:
        """Return the number of partitions of each topic; of an ended incarnation, those with segments."""
        if point.number not in self._counts:
            topics = self._archive.manifest(point).topics
            self._counts[point.number] = {(t.name, t.incarnation): len(t.partitions) for t in topics}
        counts = self._counts[point.number]
        partitions: dict[Incarnation, int] = {}
        for s in segments:
            key = s.topic, s.incarnation
            partitions[key] = max(partitions.get(key, counts.get(key, 0)), s.partition + 1)
        return partitions

    def _points(self, number: int) -> list[Point]:
        return [p for p in self._archive.restore_points if p.number > number]

    def _of(self, point: Point) -> dict[str, list[_Added]]:
        """Return the selected segments that came with `point`, by topic."""
        if point.number not in self._added:
            before = max((p.number for p in self._archive.restore_points if p.number < point.number), default=0)
            added = self._archive.added_by(before, point.number)
            topics = set(self._selection.topics({s.topic for _, s in added}))
            by_topic: dict[str, list[_Added]] = {}
            for run, s in added:
                if s.topic in topics:
                    by_topic.setdefault(s.topic, []).append((run, with_checked_key(s)))
            self._added[point.number] = by_topic
        return self._added[point.number]


# Read blocks of segments in a task of an export, as rows of exported tables.


BATCH_BYTES = 4 << 20
"""Bytes of records that become one batch, where one record is not more."""


@dataclass(frozen=True)
class ReadRows:
    """The work of a task: the rows of its part, `point` being the restore point that they came with."""

    store: Store
    point: int
    partitions: Mapping[Incarnation, int]

    def __call__(self, part: ReadUnit, progress: ProgressSender) -> Iterator[pa.RecordBatch]:
        for piece in part.ranges:
            for block in read_range(self.store, piece):
                for cut_block in cut(block, BATCH_BYTES):
                    yield self.rows(piece, cut_block)
                    progress.add(len(cut_block), cut_block.nbytes)

    def rows(self, piece: SegmentRange, block: RecordBlock) -> pa.RecordBatch:
        s = piece.segment
        count = self.partitions[s.topic, s.incarnation]
        return to_export_batch(block, s.topic, s.partition, s.key, s.incarnation, count, self.point)


def cut(block: RecordBlock, most: int) -> Iterator[RecordBlock]:
    """Yield the block in smaller blocks that end with the record that makes them larger than `most` bytes."""
    at = 0
    while at < len(block):
        count = rotation_cut(block.lengths[at:], 0, most)
        yield slice_block(block, at, at + count)
        at += count


# An export under way, of every kind of tables: claim the destination, write the restore points that it lacks.


@dataclass(frozen=True)
class TableReport:
    """Restore points, in order, and records that were appended to a table."""

    url: str
    restore_points: tuple[int, ...]
    records: int


@dataclass(frozen=True)
class ExportReport:
    """`restore_point` is the newest one, which all tables have reached; `tables` are the ones that got records.
    `losses` describes records that may have expired before they were exported."""

    kind: str
    url: str
    archive: str
    restore_point: int
    tables: tuple[TableReport, ...]
    losses: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def records(self) -> int:
        return sum(t.records for t in self.tables)


@dataclass(frozen=True)
class ExportJob:
    """The archive in `store`, and the options of its export to `url`. The destination is held by a lease meanwhile."""

    options: Export
    url: str
    store: Store
    s3: S3Options
    spark: Spark
    listener: ProgressListener
    lease_seconds: float


@dataclass
class ExportRun:
    """An export under way. `since` is the restore point that the destination is known to have been at."""

    job: ExportJob
    archive: Archive
    destination: Destination
    additions: Additions
    lease: HeldLease
    since: int
    losses: list[str] = field(default_factory=list)


class TableFormat(Protocol):
    """A kind of exported tables."""

    kind: str

    def info(self, archive_id: str, options: Export) -> ExportInfo:
        """Return the description that a destination holds."""
        ...

    def write(self, run: ExportRun) -> Sequence[TableReport]:
        """Bring the destination to the newest restore point; return the tables with new records."""
        ...


def run_export(job: ExportJob, tables: TableFormat) -> ExportReport:
    """Export every restore point that the destination does not have yet, in order. Where it fails, or is killed, each
    table is at a restore point, and the next export continues from there."""
    phases = Phases(job.listener)
    options, destination = job.options, Destination.at(job.url, job.s3)
    selection = Selection.of(options.topics, options.exclude_topics)
    with phases.step("connect"):
        archive = open_archive(job.store)
        destination.check_apart(job.store)
        additions = Additions(archive, selection)
        newest = additions.newest
        additions.check_names()
    with destination.held(job.lease_seconds) as lease:
        with phases.step("plan"):
            destination.claim(tables.info(archive.info.id, options))
            destination.check_same_lineage(archive)
            due = Reached(
                archive_id=archive.info.id,
                restore_point=newest,
                topics=options.topics,
                exclude_topics=options.exclude_topics,
            )
            run = ExportRun(job, archive, destination, additions, lease, destination.reached(due))
        with phases.step("run"):
            done = tables.write(run)
        with phases.step("commit"):
            destination.note_reached(due)
    return ExportReport(
        tables.kind, destination.url, job.store.url, newest, tuple(done), tuple(run.losses), phases.seconds
    )


def losses_of(additions: Additions, since: int, url: str, topic: str | None = None) -> list[str]:
    """Return the losses of a table that was at restore point `since`, in words. A new table does not lose records that
    expired before."""
    expired = [
        f"records of {tp} below offset {start} have expired, and may not all have been exported: {url} was at "
        f"restore point {since}"
        for tp, start in (additions.missed(since, topic) if since else [])
    ]
    return [*expired, *(message for _, message in additions.damaged(since, topic))]
