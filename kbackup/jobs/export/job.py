"""The export job: append restore points to Delta tables or Parquet files, each once."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec.structs import replace

from kbackup.archive.catalog.state import PointRow
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import dump
from kbackup.archive.query.selection import Selection, check_selection
from kbackup.archive.reader import Archive, damaged, missed, new_offsets, open_archive, refuse_if_swept
from kbackup.archive.schemas import SchemaSource
from kbackup.archive.segments.parallel import PART_BYTES as READ_BYTES
from kbackup.archive.segments.parallel import ReadUnit, SegmentRange, plan_reads, read_batches, read_range, whole_units
from kbackup.archive.segments.read import read_index
from kbackup.archive.segments.rows import EXPORT_SCHEMA, to_export_batch
from kbackup.archive.segments.table import Ordered, Segment, sum_of
from kbackup.archive.segments.window import EVERYTHING, Window
from kbackup.config.models import Export
from kbackup.errors import AlreadyExistsError, KbackupError, LeaseLostError, RefusedError, UnreachableError, from_text
from kbackup.formats.block import rotation_cut, slice_block
from kbackup.jobs.export.destination import (
    FOLDER,
    Destination,
    ExportedFile,
    ExportedPoint,
    ExportInfo,
    ExportKind,
    Reached,
    point_key,
    point_of,
)
from kbackup.jobs.transform import Transform, transform_of, with_schemas
from kbackup.metrics.registry import Phases, ProgressListener
from kbackup.schemas.base import RegistryOptions
from kbackup.schemas.columns import DECODE_ERROR, DECODED, JSON, decoded_columns, merged_types
from kbackup.schemas.decoder import Decoder
from kbackup.spark.delta import delta_session, hadoop_options, table_path
from kbackup.spark.jvm import jvm_has_ended
from kbackup.spark.tasks import ProgressSender, Spark, SparkEndedError, batch_frame, run_counted
from kbackup.store import StoreOptions
from kbackup.store.base import Store
from kbackup.types import Incarnation, IncarnationPartition, RecordBlock, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Addition(NamedTuple):
    """The segments to export for a restore point, in order of topic, incarnation, partition and offset. `partitions`
    has the number of partitions of each of their topics. `begins` has the keys of segments of which only records from
    some offset on are exported: a table has the `known` ones before it."""

    point: PointRow
    segments: Sequence[Segment]
    partitions: dict[Incarnation, int]
    begins: Mapping[str, int] = MappingProxyType({})
    known: int = 0

    @property
    def records(self) -> int:
        return sum_of(self.segments, "count") - self.known

    @property
    def bytes(self) -> int:
        return sum_of(self.segments, "bytes")

    def units(self, part_bytes: int = READ_BYTES) -> list[ReadUnit]:
        """Return what tasks read."""
        if not self.begins:
            return whole_units(self.segments, part_bytes)

        def window(segment: Segment) -> Window:
            return EVERYTHING.at_offsets(self.begins.get(segment.key), None)

        return plan_reads(self.segments, window, part_bytes=part_bytes)


class AddedSegments(NamedTuple):
    """The selected segments that came with a restore point, and their partitions by topic."""

    ordered: Ordered
    by_topic: dict[str, list[IncarnationPartition]]

    def is_newer_than(self, number: int, span: slice) -> bool:
        """Return whether one of the segments in `span` was committed after restore point `number`."""
        return bool((self.ordered.points[span] > number).any())


class Additions:
    """The selected additions of an archive. Remaining segments of expired restore points come with the next restore
    point."""

    # A table is written for each topic, and each of them asks for the same restore points again: what was read of a
    # restore point is kept.
    def __init__(self, archive: Archive, selection: Selection) -> None:
        self._archive = archive
        self._selection = selection
        self._added: dict[int, AddedSegments] = {}
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
        topics: set[str] = set()
        for point in self._points(number):
            added = self._added_by(point)
            for topic, places in added.by_topic.items():
                if added.is_newer_than(number, added.ordered.span(places)):
                    topics.add(topic)
        return sorted(topics)

    def after(self, number: int, topic: str | None = None) -> Iterator[Addition]:
        """Yield the additions (to `topic`) of restore points after `number`, oldest first; none for those without
        segments. `RefusedError` if the archive is behind."""
        for point in self._points(number):
            added = self._added_by(point)
            candidates = list(added.ordered.places) if topic is None else added.by_topic.get(topic, [])
            places = [place for place in candidates if added.is_newer_than(number, added.ordered.places[place])]
            if not places:
                continue
            span = added.ordered.span(places)
            # Segments of an expired restore point came with this one: a table that had that point has them already.
            is_new = added.ordered.points[span] > number
            segments = added.ordered.segments[span].where(is_new)
            begins = new_offsets(self._archive, number, segments)
            known = self._records_before(segments, begins)
            yield Addition(point, segments, self._partitions(point, places), begins, known)

    def _records_before(self, segments: Sequence[Segment], begins: Mapping[str, int]) -> int:
        """Return how many records segments have before the offsets from which on they are exported."""
        records = 0
        for segment in segments if begins else ():
            if segment.key in begins:
                offsets = read_index(self._archive.store, segment).offsets
                records += int(np.searchsorted(offsets, begins[segment.key]))
        return records

    def missed(self, number: int, topic: str | None = None) -> list[tuple[TopicPartition, int]]:
        """Return the partitions (of `topic`) of which records that came after `number` may have expired, and below
        which offset: they are in no `Addition`."""
        if number not in self._missed:
            with_log_starts = {name for name, _, _ in self._archive.state.starts}
            topics = set(self._selection.topics(with_log_starts))
            self._missed[number] = missed(self._archive, number, lambda tp: tp.topic in topics)
        return [(tp, start) for tp, start in self._missed[number] if topic is None or tp.topic == topic]

    def damaged(self, number: int, topic: str | None = None) -> list[tuple[TopicPartition, str]]:
        """Return the partitions (of `topic`) with records of restore points after `number` that were found missing or
        damaged, each with a sentence: they are in no `Addition`."""
        (with_losses,) = self._archive.state.losses.columns("topic")
        topics = set(self._selection.topics(set(with_losses)))

        def is_asked_for(tp: TopicPartition) -> bool:
            return tp.topic in topics and topic in (None, tp.topic)

        last = self._archive.state.next_point
        return damaged(self._archive, number, last, is_asked_for)

    def _partitions(self, point: PointRow, places: Iterable[IncarnationPartition]) -> dict[Incarnation, int]:
        """Return the number of partitions of each topic; of an ended incarnation, up to the last of `places`."""
        if point.number not in self._counts:
            topics = self._archive.manifest(point).topics
            self._counts[point.number] = {(t.name, t.incarnation): len(t.partitions) for t in topics}
        counts = self._counts[point.number]
        partitions: dict[Incarnation, int] = {}
        for topic, incarnation, partition in places:
            key = topic, incarnation
            # The manifest lists only the incarnations of its time: of others, the segments alone tell a number.
            known = partitions.get(key, counts.get(key, 0))
            partitions[key] = max(known, partition + 1)
        return partitions

    def _points(self, number: int) -> list[PointRow]:
        """Return the restore points after `number`; `RefusedError` if the archive is behind."""
        if number >= self._archive.state.next_point:
            raise RefusedError(
                f"records were exported up to restore point {number}, the newest of {self._archive.store.url} is "
                f"{self.newest}",
                "export from the archive that is ahead, or to another destination",
            )
        return [p for p in self._archive.restore_points if p.number > number]

    def _added_by(self, point: PointRow) -> AddedSegments:
        if point.number not in self._added:
            self._added[point.number] = self._read_added(point)
        return self._added[point.number]

    def _read_added(self, point: PointRow) -> AddedSegments:
        earlier = [other.number for other in self._archive.restore_points if other.number < point.number]
        # Numbers between the two restore points are of expired ones: their segments are read with this one.
        before = max(earlier, default=0)
        all_topics = {topic for topic, _ in self._archive.state.lives}
        topics = set(self._selection.topics(all_topics))
        added = self._archive.ordered(before, point.number, None if topics == all_topics else topics)
        by_topic: dict[str, list[IncarnationPartition]] = {}
        for place in added.places:
            topic, _, _ = place
            by_topic.setdefault(topic, []).append(place)
        checked = added._replace(segments=added.segments.checked())
        return AddedSegments(checked, by_topic)


# Read blocks of segments in a task of an export, as rows of exported tables.

Types = Mapping[str, pa.DataType]
"""The types of the columns of decoded keys and values, by part ("key", "value")."""


@dataclass(frozen=True)
class DecodedTopics:
    """The column types of topics whose keys or values name schemas, and where tasks find the schemas."""

    source: SchemaSource | None = None
    types: Mapping[str, Types] = field(default_factory=dict)


DecodeTopics = Callable[[Collection[str]], DecodedTopics]


def decode_topics(archive: Archive, options: Export, registry: RegistryOptions) -> DecodeTopics:
    """Return the function that describes topics as of the newest restore point: it has the schemas of all earlier
    records. In one table of all topics, columns are JSON. Raises `UsageError` without schemas."""
    if not options.decode:
        return lambda topics: DecodedTopics()
    head = archive.restore_point("latest")
    source = SchemaSource(head.schemas, registry)
    # Opened here, before the destination is claimed: an export without schemas is refused before it leaves a trace.
    schemas = source.open(archive.store)
    if options.one_table:
        as_json: Types = dict.fromkeys(DECODED, JSON)
        return lambda topics: DecodedTopics(source, dict.fromkeys(topics, as_json))

    def typed(topics: Collection[str]) -> DecodedTopics:
        types = {topic.name: schemas.types(topic) for topic in head.topics if topic.name in topics}
        return DecodedTopics(source, types)

    return typed


def table_schema(types: Types) -> pa.Schema:
    """Return the schema of a table whose decoded columns have `types`; without any, no error can occur."""
    fields = list(EXPORT_SCHEMA)
    for part, kind in types.items():
        fields.append(pa.field(DECODED[part], kind))
    if types:
        fields.append(pa.field(DECODE_ERROR, pa.string()))
    return pa.schema(fields)


@dataclass(frozen=True)
class ReadRows:
    """The work of a task: reading the rows of its part, as `transform` makes them. `point` is the restore point that
    the records came with."""

    store: Store
    point: int
    partitions: Mapping[Incarnation, int]
    decoded: DecodedTopics = DecodedTopics()
    transform: Transform | None = None

    def __call__(self, part: ReadUnit, progress: ProgressSender) -> Iterator[pa.RecordBatch]:
        for piece in part.ranges:
            for block in read_batches(self.store, piece):
                yield self.rows(piece, block)
                progress.add(len(block), block.nbytes)

    def rows(self, piece: SegmentRange, block: RecordBlock) -> pa.RecordBatch:
        s = piece.segment
        count = self.partitions[s.topic, s.incarnation]
        if self.transform is not None:
            block = self.transform(TopicPartition(s.topic, s.partition), block)
        batch = to_export_batch(block, s.topic, s.partition, s.key, s.incarnation, count, self.point)
        types = self.decoded.types.get(s.topic)
        if not types:
            return batch
        decoded = decoded_columns(batch, self._decoders, types)
        return pa.RecordBatch.from_arrays([*batch.columns, *decoded], schema=table_schema(types))

    @cached_property
    def _decoders(self) -> Mapping[str, Decoder]:
        assert self.decoded.source is not None  # noqa: S101 (it has types)
        return self.decoded.source.open(self.store).decoders()


# An export under way, of every kind of tables: claim the destination, write the restore points that it lacks.


@dataclass(frozen=True)
class TableReport:
    """The restore points, in order, and the number of records that were appended to a table. `left_out` are those that
    a transform left out."""

    url: str
    restore_points: tuple[int, ...]
    records: int
    left_out: int = 0


@dataclass(frozen=True)
class ExportReport:
    """What an export did. `restore_point` is the newest restore point, which all tables have reached. `tables` are the
    tables that got records. `losses` describes records that may have expired before they were exported."""

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

    @property
    def left_out(self) -> int:
        return sum(table.left_out for table in self.tables)


@dataclass(frozen=True, kw_only=True)
class ExportJob:
    """An export of the archive in `store` to `url`. The job holds a lease of `lease_seconds` on the destination."""

    options: Export
    url: str
    store: Store
    stores: StoreOptions
    spark: Spark
    listener: ProgressListener
    lease_seconds: float
    registry: RegistryOptions = RegistryOptions()  # noqa: RUF009 (immutable)


@dataclass
class ExportRun:
    """An export under way. `since` is the restore point that the destination is known to have been at."""

    job: ExportJob
    archive: Archive
    destination: Destination
    additions: Additions
    lease: HeldLease
    since: int
    decode: DecodeTopics
    transform: Transform | None = None
    losses: list[str] = field(default_factory=list)


def table_report(url: str, added: Sequence[Addition], written: int) -> TableReport:
    """Return the report of a table to which `written` of the added records were appended."""
    points = tuple(addition.point.number for addition in added)
    records = sum(addition.records for addition in added)
    return TableReport(url, points, written, records - written)


def run_export(
    job: ExportJob, kind: str, holds: ExportKind, write: Callable[[ExportRun], Sequence[TableReport]]
) -> ExportReport:
    """Export every restore point that the destination does not have yet, in order. If the export fails or is killed,
    each table is at a restore point, and the next export continues from there. `write` brings the destination to the
    newest restore point, and returns the tables with new records."""
    phases = Phases(job.listener)
    options = job.options
    asked = transform_of(options.transform)
    destination = Destination.at(job.url, job.stores)
    with phases.step("connect"):
        archive = open_archive(job.store)
        destination.check_apart(job.store)
        additions = Additions(archive, Selection.of(options.topics, options.exclude_topics))
        newest = additions.newest
        additions.check_names()
        decode = decode_topics(archive, options, job.registry)
        # As for decoding: the newest restore point has the schemas of all earlier records.
        transform = with_schemas(asked, archive, "latest")
    with HeldLease(destination.own, "kbackup export", job.lease_seconds) as lease:
        with phases.step("plan"):
            destination.claim(_export_info(archive, options, holds, transform))
            destination.check_same_lineage(archive)
            due = Reached(
                archive_id=archive.info.id,
                restore_point=newest,
                topics=options.topics,
                exclude_topics=options.exclude_topics,
            )
            since = destination.reached(due)
            run = ExportRun(job, archive, destination, additions, lease, since, decode, transform)
        with phases.step("run"), refuse_if_swept(archive):
            tables = tuple(write(run))
        # Only after all tables: the next export looks for nothing up to this restore point.
        with phases.step("commit"):
            destination.note_reached(due)
    losses = tuple(run.losses)
    return ExportReport(kind, destination.url, job.store.url, newest, tables, losses, phases.seconds)


def _export_info(archive: Archive, options: Export, holds: ExportKind, transform: Transform | None) -> ExportInfo:
    """Return what the destination is claimed for. Delta tables by topic are independent of one another, so each export
    may select other topics; a table of several topics, or a commit of their files, has one selection for good."""
    info = ExportInfo(archive_id=archive.info.id, kind=holds)
    if transform is not None:
        info = replace(info, transform=transform.ref)
    if holds == "delta tables":
        return info
    return replace(info, topics=options.topics, exclude_topics=options.exclude_topics)


def losses_of(additions: Additions, since: int, url: str, topic: str | None = None) -> list[str]:
    """Return the losses of a table that was at restore point `since`, in words. A new table does not lose records that
    expired before."""
    losses: list[str] = []
    if since:
        for tp, start in additions.missed(since, topic):
            losses.append(
                f"records of {tp} below offset {start} have expired, and may not all have been exported: {url} was at "
                f"restore point {since}"
            )
    for _, message in additions.damaged(since, topic):
        losses.append(message)
    return losses


# Delta tables, as Spark has them.


@dataclass(frozen=True)
class DeltaTable:
    """`options` are Hadoop's for the store (`delta_session.hadoop_options`)."""

    session: SparkSession
    url: str
    options: Mapping[str, str]

    @property
    def path(self) -> str:
        return table_path(self.url)

    def reached(self, app: str) -> int:
        """Return the restore point that `app` appended last; 0 if there is none, or no table."""
        version = self._snapshot("transactions").get(app)
        return int(version.get()) if version.isDefined() else 0

    def append(self, rows: DataFrame, app: str, version: int, note: Mapping[str, object]) -> None:
        """Commit `rows`, unless `app` has committed `version` or a later one. `note` is the commit's `userMetadata`."""
        options: dict[str, Any] = {
            "txnAppId": app,
            "txnVersion": version,
            "userMetadata": json.dumps(note),
            # Columns of decoded records grow with new versions of schemas. The other columns never change.
            "mergeSchema": "decode_error" in rows.columns,
        }
        writer = rows.write.format("delta").mode("append").partitionBy("date").options(**options, **self.options)
        # in a thread: an interrupt would tear the main one's connection to the JVM, which it takes to cancel this
        with self._errors(), ThreadPoolExecutor(1) as apart:
            apart.submit(writer.save, self.path).result()

    def written(self, destination: Destination) -> int | None:
        """Return how many rows the newest commit added, by the table's log in the destination; None if the log does not
        say."""
        version = self._snapshot("version")
        folder = self.url.removeprefix(destination.url).strip("/")
        log = destination.store.get(f"{folder}/_delta_log/{version:020d}.json".lstrip("/"))
        for line in log.splitlines():
            metrics = json.loads(line).get("commitInfo", {}).get("operationMetrics", {})
            if "numOutputRows" in metrics:
                return int(metrics["numOutputRows"])
        return None

    def decoded(self) -> Types:
        """Return the types of the columns of decoded keys and values that the table has."""
        from pyspark.sql.pandas.types import to_arrow_type
        from pyspark.sql.types import StructType

        schema = json.loads(self._snapshot("schema").json())
        kinds = {column.name: column.dataType for column in StructType.fromJson(schema)}
        return {part: to_arrow_type(kinds[name]) for part, name in DECODED.items() if name in kinds}

    def rows(self) -> DataFrame:
        """Return all rows as of now. The version is fixed: a frame that is read twice gives the same rows."""
        version = self._snapshot("version")
        reader = self.session.read.format("delta").option("versionAsOf", version)
        with self._errors():
            return reader.options(**self.options).load(self.path)

    def _snapshot(self, of: str) -> Any:
        """Return property `of` of Delta's newest snapshot of the table."""
        jvm: Any = self.session._jvm
        options = jvm.java.util.HashMap()
        for name, value in self.options.items():
            options.put(name, value)
        with self._errors():
            path = jvm.org.apache.hadoop.fs.Path(self.path)
            scala_options = jvm.PythonUtils.toScalaMap(options)
            log = jvm.org.apache.spark.sql.delta.DeltaLog
            pair = log.forTableWithSnapshot(self.session._jsparkSession, path, scala_options)
            snapshot = pair._2()  # the first is the log
            return getattr(snapshot, of)()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn an error of Spark's or Delta's into the error that a task of kbackup raised, or into a `KbackupError`
        with the first line of Spark's message."""
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        try:
            yield
        except (Py4JError, PySparkException, ConnectionError) as error:
            if isinstance(error, ConnectionError) or jvm_has_ended():
                raise SparkEndedError from None
            text = str(error)
            # An error of a task comes back as text within Spark's own, and has its own exit code and hint.
            known = from_text(text)
            if known is not None:
                raise known from None
            java = getattr(error, "java_exception", None)
            message = str(java.getMessage() or java) if java is not None else text
            raise KbackupError(
                f"Delta table {self.url}: {_first_line(message)}", "run again with --debug to see Spark's own words"
            ) from None


def _first_line(text: str) -> str:
    """Return the first line with any text; '?' if there is none."""
    for line in text.splitlines():
        if line.strip():
            return line.strip()
    return "?"


# Delta tables kept in step with an archive: one commit for each restore point that added something.
#
# A commit carries the restore point's number as a transaction of Delta's (`txnAppId`, `txnVersion`): what is there
# already is not written again, whoever was killed when. The archive is only read.

PART_BYTES = 128 << 20  # of records that one task writes: a file for each date of them.


@dataclass(frozen=True)
class DeltaTools:
    """What an export makes Delta tables with. A task writes units of `part_bytes`, but a segment is never cut."""

    open_session: Callable[[SparkSession], SparkSession] = delta_session
    open_table: Callable[[SparkSession, str, Mapping[str, str]], DeltaTable] = DeltaTable
    batch_frame: Callable[..., AbstractContextManager[DataFrame]] = batch_frame
    part_bytes: int = PART_BYTES


@dataclass
class _DeltaExport:
    """An export of Delta tables under way, with its counts for the listener."""

    run: ExportRun
    tools: DeltaTools
    records: int = 0
    bytes: int = 0
    expected: int = 0

    @cached_property
    def session(self) -> SparkSession:
        return self.tools.open_session(self.run.job.spark())

    def every(self, topics: Mapping[str, str | None]) -> list[TableReport]:
        """Bring the tables of `topics`, by URL, up to date; return the tables with new records. An error of one
        table is raised after the others, with the names of all failed tables and the losses of the others."""
        done: list[TableReport] = []
        failed: dict[str, KbackupError] = {}
        for url, topic in topics.items():
            table = self.tools.open_table(self.session, url, hadoop_options(self.run.job.stores, url))
            try:
                done += self.table(table, topic)
            except (LeaseLostError, UnreachableError):  # others would fail alike
                raise
            except KbackupError as error:
                failed[url] = error
        if not failed:
            return done
        first = next(iter(failed.values()))
        if len(topics) == 1:
            raise first
        reasons = "; ".join([first.message, *self.run.losses])
        raise type(first)(
            f"{len(failed)} of {len(topics)} Delta tables could not be brought up to date ({', '.join(failed)}): "
            + reasons,
            first.hint,
        )

    def table(self, table: DeltaTable, topic: str | None) -> list[TableReport]:
        """Bring one table up to date. Return the table's report, or nothing if there were no records for it."""
        additions = self.run.additions
        app = f"kbackup-{self.run.archive.info.id}"
        reached = table.reached(app)
        due = list(additions.after(reached, topic))
        topics = [topic] if topic is not None else additions.topics_after(reached)
        decoded = self._decoded(table, topics)
        # A table without new records keeps its older number, though the export has looked at it since.
        since = max(reached, self.run.since)
        self.run.losses += losses_of(additions, since, table.url, topic)
        self.expected += sum(addition.records for addition in due)
        written = 0
        for addition in due:
            self._append(table, app, addition, decoded)
            written += self._written(table, addition)
        return [table_report(table.url, due, written)] if due else []

    def _written(self, table: DeltaTable, addition: Addition) -> int:
        """Return how many records of an addition the table got: what a transform left out, Delta's own log tells."""
        if self.run.transform is None:
            return addition.records
        written = table.written(self.run.destination)
        return addition.records if written is None else written

    def _decoded(self, table: DeltaTable, topics: Collection[str]) -> DecodedTopics:
        """Return the column types of topics. A column that the table has keeps its type there."""
        decoded = self.run.decode(topics)
        in_table = table.decoded() if decoded.types else {}
        types: dict[str, Types] = {}
        for topic, own in decoded.types.items():
            merged: dict[str, pa.DataType] = {}
            for part, kind in own.items():
                merged[part] = merged_types(in_table.get(part, kind), kind, keep=True)
            types[topic] = merged
        return DecodedTopics(decoded.source, types)

    def _append(self, table: DeltaTable, app: str, addition: Addition, decoded: DecodedTopics) -> None:
        point = addition.point
        run = self.run
        note = {
            "archive": run.archive.info.id,
            "restorePoint": point.number,
            "committedAt": point.committed_at,
            "records": addition.records,
        }
        parts = addition.units(self.tools.part_bytes)
        work = ReadRows(run.archive.store, point.number, addition.partitions, decoded, run.transform)
        # One table of all topics has the same columns for each of them, so the first topic speaks for all.
        first_topic = addition.segments[0].topic
        schema = table_schema(decoded.types.get(first_topic, {}))

        def show(records: int, size: int) -> None:
            run.job.listener.progress(self.records + records, self.bytes + size, self.expected)

        with self.tools.batch_frame(self.session, parts, work, schema, show, run.destination.own) as rows:
            # Delta's log on S3 is safe with one writer alone: no commit without the lease.
            run.lease.check()
            table.append(rows, app, point.number, note)
        self.records += addition.records
        self.bytes += addition.bytes


def export_delta(job: ExportJob, tools: DeltaTools = DeltaTools()) -> ExportReport:
    """Export an archive as Delta tables: one of each topic, or one of all. A table that can't be written does not stop
    the others: its error is raised after them."""

    def write(run: ExportRun) -> list[TableReport]:
        return _write_tables(run, tools)

    return run_export(job, "delta", "delta table" if job.options.one_table else "delta tables", write)


def _write_tables(run: ExportRun, tools: DeltaTools) -> list[TableReport]:
    additions = run.additions
    url = run.destination.url
    selected = set(additions.topics_after(run.since))
    # A topic of which all new records are lost has nothing to write, and its losses are reported all the same.
    selected.update(tp.topic for tp, _ in additions.missed(run.since))
    selected.update(tp.topic for tp, _ in additions.damaged(run.since))
    topics = sorted(selected)
    export = _DeltaExport(run, tools)
    if run.job.options.one_table:
        run.destination.check_links([""])
        return export.every({url: None} if topics else {})
    if FOLDER in topics:
        raise RefusedError(
            f"topic {FOLDER} can't have a table of its own: exports keep their own files in the folder of that name",
            f"give --exclude-topic {FOLDER}, or --one-table",
        )
    run.destination.check_links(topics)
    return export.every({f"{url}/{topic}": topic for topic in topics})


# Parquet files kept in step with an archive: written by kbackup's tasks into the store, without any jars.
#
# Which file holds a record follows from the record alone, and a file is there whole or not at all: a run that was
# killed is done again, and what is there already stays. `points/<n>.json` is the commit of a restore point.

CHUNK_BYTES = 64 << 20
"""A chunk of a segment ends with the record that makes it larger than this. It has one file for each date."""
_NO_DATE = "__HIVE_DEFAULT_PARTITION__"
_IN_PATH = ["topic", "date"]


@dataclass(frozen=True)
class WriteFiles:
    """The work of a task: the files of the segments of its part."""

    target: Store
    rows: ReadRows

    def __call__(self, part: ReadUnit, progress: ProgressSender) -> Iterator[ExportedFile]:
        for piece in part.ranges:
            for chunk in chunks(read_range(self.rows.store, piece)):
                batches = [self.rows.rows(piece, block) for block in chunk]
                table = pa.Table.from_batches(batches)
                first_offset = int(chunk[0].offsets[0])
                for date, rows in by_date(table):
                    yield self._write_file(piece, first_offset, date, rows)
                size = sum(block.nbytes for block in chunk)
                progress.add(len(table), size)

    def _write_file(self, piece: SegmentRange, first: int, date: str, rows: pa.Table) -> ExportedFile:
        s = piece.segment
        path = f"topic={s.topic}/date={date}/{s.incarnation}-{s.partition:03d}-{first:010d}.parquet"
        sink = io.BytesIO()
        pq.write_table(rows.drop_columns(_IN_PATH), sink, compression="zstd", store_schema=False)
        with suppress(AlreadyExistsError):  # of an attempt before this one: with the same records
            self.target.put_new(path, sink.getbuffer())
        # The size of the file that is there, whichever attempt wrote it.
        size = self.target.stat(path).size
        return ExportedFile(path=path, records=len(rows), bytes=size)


def chunks(blocks: Iterator[RecordBlock], chunk_bytes: int = CHUNK_BYTES) -> Iterator[list[RecordBlock]]:
    """Yield the blocks' records in chunks. A chunk ends with the record that makes it larger than `chunk_bytes`,
    wherever the blocks end: a file's name is its first offset, so a second attempt must cut at the same records."""
    gathered: list[RecordBlock] = []
    size = 0
    for block in blocks:
        at = 0
        while at < len(block):
            fits = rotation_cut(block.lengths[at:], size, chunk_bytes)
            if fits:
                gathered.append(slice_block(block, at, at + fits))
                size += gathered[-1].nbytes
                at += fits
            if at < len(block):
                yield gathered
                gathered, size = [], 0
    if gathered:
        yield gathered


def by_date(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yield each date and its rows, in their order. Rows without a date come under `_NO_DATE`, Hive's name for none."""
    if not len(table):
        return  # a transform has left out all of them
    dates: Any = table.column("date").cast(pa.int32())
    days = pc.fill_null(dates, -1).to_numpy()
    order = np.argsort(days, kind="stable")
    sorted_days = days[order]
    changes = np.flatnonzero(np.diff(sorted_days)) + 1
    edges = [0, *changes.tolist(), len(sorted_days)]
    # Most chunks are of one date: then the rows need no copy.
    rows = table if len(edges) == 2 else table.take(order)
    for start, stop in pairwise(edges):
        day = int(sorted_days[start])
        name = str(np.datetime64(day, "D")) if day >= 0 else _NO_DATE
        yield name, rows.slice(start, stop - start)


def export_parquet(job: ExportJob) -> ExportReport:
    """Export an archive as Parquet files in folders by topic and date, without a table format."""
    return run_export(job, "parquet", "parquet", _write_points)


def _write_points(run: ExportRun) -> list[TableReport]:
    destination = run.destination
    reached = _reached(destination)
    run.losses += losses_of(run.additions, max(reached, run.since), destination.url)
    due = list(run.additions.after(reached))
    decoded = run.decode(run.additions.topics_after(reached))
    written = 0
    for addition in due:
        written += _write_point(run, addition, decoded)
    return [table_report(destination.url, due, written)] if due else []


def _write_point(run: ExportRun, addition: Addition, decoded: DecodedTopics) -> int:
    """Write the files of a restore point, and then its commit. Return how many records they have."""
    destination = run.destination
    number = addition.point.number
    run.lease.check()
    rows = ReadRows(run.job.store, number, addition.partitions, decoded, run.transform)
    work = WriteFiles(destination.store, rows)
    parts = addition.units()
    files: list[ExportedFile] = run_counted(run.job.spark, parts, work, run.job.listener, addition.records)
    files.sort(key=attrgetter("path"))
    point = ExportedPoint(
        archive_id=run.archive.info.id,
        restore_point=number,
        committed_at=addition.point.committed_at,
        files=tuple(files),
    )
    # Once more: the files may have taken hours, and another export may have taken the lease over meanwhile.
    run.lease.check()
    destination.own.put(point_key(number), dump(point))
    return sum(file.records for file in files)


def _reached(destination: Destination) -> int:
    """Return the newest restore point whose files are all there."""
    newest = 0
    for entry in destination.own.list("points/"):
        number = point_of(entry.key)
        if number is not None:
            newest = max(newest, number)
    return newest
