"""The export job: append restore points to Delta tables or Parquet files, each once."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
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
from kbackup.archive.reader import Archive, damaged, missed, open_archive
from kbackup.archive.schemas import SchemaSource
from kbackup.archive.segments.parallel import ReadUnit, SegmentRange, read_batches, read_range, whole_units
from kbackup.archive.segments.rows import EXPORT_SCHEMA, to_export_batch
from kbackup.archive.segments.table import Ordered, Segment, sum_of
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
from kbackup.metrics.registry import Phases, ProgressListener
from kbackup.schemas.base import RegistryOptions
from kbackup.schemas.columns import JSON, decoded_columns, merged_types
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
    """Segments to export for a restore point: `segments` in order of topic, incarnation, partition and offset;
    `partitions` is how many each of their topics had."""

    point: PointRow
    segments: Sequence[Segment]
    partitions: dict[Incarnation, int]

    @property
    def records(self) -> int:
        return sum_of(self.segments, "count")

    @property
    def bytes(self) -> int:
        return sum_of(self.segments, "bytes")


class Additions:
    """The selected additions of an archive. Remaining segments of expired restore points come with the next restore
    point."""

    def __init__(self, archive: Archive, selection: Selection) -> None:
        self._archive, self._selection = archive, selection
        self._added: dict[int, tuple[Ordered, dict[str, list[IncarnationPartition]]]] = {}
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
            added, places = self._of(point)
            topics |= {name for name in places if (added.points[added.span(places[name])] > number).any()}
        return sorted(topics)

    def after(self, number: int, topic: str | None = None) -> Iterator[Addition]:
        """Yield the additions (to `topic`) of restore points after `number`, oldest first; none for those without
        segments. `RefusedError` if the archive is behind."""
        for point in self._points(number):
            added, by_topic = self._of(point)
            places = [*added.places] if topic is None else by_topic.get(topic, [])
            places = [place for place in places if (added.points[added.places[place]] > number).any()]
            if places:
                part = added.span(places)
                segments = added.segments[part].where(added.points[part] > number)
                yield Addition(point, segments, self._partitions(point, places))

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

    def _partitions(self, point: PointRow, places: Iterable[IncarnationPartition]) -> dict[Incarnation, int]:
        """Return the number of partitions of each topic; of an ended incarnation, up to the last of `places`."""
        if point.number not in self._counts:
            topics = self._archive.manifest(point).topics
            self._counts[point.number] = {(t.name, t.incarnation): len(t.partitions) for t in topics}
        counts = self._counts[point.number]
        partitions: dict[Incarnation, int] = {}
        for topic, incarnation, partition in places:
            key = topic, incarnation
            partitions[key] = max(partitions.get(key, counts.get(key, 0)), partition + 1)
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

    def _of(self, point: PointRow) -> tuple[Ordered, dict[str, list[IncarnationPartition]]]:
        """Return the selected segments that came with `point`, and their partitions by topic."""
        if point.number not in self._added:
            before = max((p.number for p in self._archive.restore_points if p.number < point.number), default=0)
            every = {topic for topic, _ in self._archive.state.lives}
            topics = set(self._selection.topics(every))
            added = self._archive.ordered(before, point.number, None if topics == every else topics)
            by_topic: dict[str, list[IncarnationPartition]] = {}
            for place in added.places:
                by_topic.setdefault(place[0], []).append(place)
            self._added[point.number] = added._replace(segments=added.segments.checked()), by_topic
        return self._added[point.number]


# Read blocks of segments in a task of an export, as rows of exported tables.

DECODED = {"key": "key_decoded", "value": "value_decoded"}
Types = Mapping[str, pa.DataType]
"""Of the columns of decoded keys and values, by part."""


@dataclass(frozen=True)
class DecodedTopics:
    """The types of topics whose keys or values name schemas, and where tasks find these."""

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
    schemas = source.open(archive.store)
    if options.one_table:
        return lambda topics: DecodedTopics(source, dict.fromkeys(topics, dict.fromkeys(DECODED, JSON)))
    return lambda topics: DecodedTopics(source, {t.name: schemas.types(t) for t in head.topics if t.name in topics})


def table_schema(types: Types) -> pa.Schema:
    columns = [pa.field(DECODED[part], kind) for part, kind in types.items()]
    return pa.schema([*EXPORT_SCHEMA, *columns, *([pa.field("decode_error", pa.string())] if types else ())])


@dataclass(frozen=True)
class ReadRows:
    """The work of a task: the rows of its part, `point` being the restore point that they came with."""

    store: Store
    point: int
    partitions: Mapping[Incarnation, int]
    decoded: DecodedTopics = DecodedTopics()

    def __call__(self, part: ReadUnit, progress: ProgressSender) -> Iterator[pa.RecordBatch]:
        for piece in part.ranges:
            for block in read_batches(self.store, piece):
                yield self.rows(piece, block)
                progress.add(len(block), block.nbytes)

    def rows(self, piece: SegmentRange, block: RecordBlock) -> pa.RecordBatch:
        s = piece.segment
        count = self.partitions[s.topic, s.incarnation]
        batch = to_export_batch(block, s.topic, s.partition, s.key, s.incarnation, count, self.point)
        if types := self.decoded.types.get(s.topic):
            columns = [*batch.columns, *decoded_columns(batch, self._decoders, types)]
            return pa.RecordBatch.from_arrays(columns, schema=table_schema(types))
        return batch

    @cached_property
    def _decoders(self) -> Mapping[str, Decoder]:
        assert self.decoded.source is not None  # noqa: S101 (it has types)
        return self.decoded.source.open(self.store).decoders()


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
    losses: list[str] = field(default_factory=list)


def table_report(url: str, added: Sequence[Addition]) -> TableReport:
    return TableReport(url, tuple(a.point.number for a in added), sum(a.records for a in added))


def run_export(
    job: ExportJob, kind: str, holds: ExportKind, write: Callable[[ExportRun], Sequence[TableReport]]
) -> ExportReport:
    """Export every restore point that the destination does not have yet, in order. Where it fails, or is killed, each
    table is at a restore point, and the next export continues from there. `write` brings the destination to the newest
    restore point, and returns the tables with new records."""
    phases = Phases(job.listener)
    options, destination = job.options, Destination.at(job.url, job.stores)
    with phases.step("connect"):
        archive = open_archive(job.store)
        destination.check_apart(job.store)
        additions = Additions(archive, Selection.of(options.topics, options.exclude_topics))
        newest = additions.newest
        additions.check_names()
        decode = decode_topics(archive, options, job.registry)
    with HeldLease(destination.own, "kbackup export", job.lease_seconds) as lease:
        with phases.step("plan"):
            topics, exclude, each = options.topics, options.exclude_topics, holds == "delta tables"
            info = ExportInfo(archive_id=archive.info.id, kind=holds)
            destination.claim(info if each else replace(info, topics=topics, exclude_topics=exclude))
            destination.check_same_lineage(archive)
            due = Reached(archive_id=info.archive_id, restore_point=newest, topics=topics, exclude_topics=exclude)
            run = ExportRun(job, archive, destination, additions, lease, destination.reached(due), decode)
        with phases.step("run"):
            done = write(run)
        with phases.step("commit"):
            destination.note_reached(due)
    return ExportReport(kind, destination.url, job.store.url, newest, tuple(done), tuple(run.losses), phases.seconds)


def losses_of(additions: Additions, since: int, url: str, topic: str | None = None) -> list[str]:
    """Return the losses of a table that was at restore point `since`, in words. A new table does not lose records that
    expired before."""
    expired = [
        f"records of {tp} below offset {start} have expired, and may not all have been exported: {url} was at "
        f"restore point {since}"
        for tp, start in (additions.missed(since, topic) if since else [])
    ]
    return [*expired, *(message for _, message in additions.damaged(since, topic))]


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
        """One commit of `rows`, unless `app` has committed `version` or a later one; `note` is its `userMetadata`."""
        own: dict[str, Any] = {"txnAppId": app, "txnVersion": version, "userMetadata": json.dumps(note)}
        own["mergeSchema"] = "decode_error" in rows.columns
        writer = rows.write.format("delta").mode("append").partitionBy("date").options(**own, **self.options)
        # in a thread: an interrupt would tear the main one's connection to the JVM, which it takes to cancel this
        with self._errors(), ThreadPoolExecutor(1) as apart:
            apart.submit(writer.save, self.path).result()

    def decoded(self) -> Types:
        """Return the types of the columns of decoded keys and values that the table has."""
        from pyspark.sql.pandas.types import to_arrow_type
        from pyspark.sql.types import StructType

        columns = StructType.fromJson(json.loads(self._snapshot("schema").json()))
        held = {column.name: column.dataType for column in columns}
        return {part: to_arrow_type(held[name]) for part, name in DECODED.items() if name in held}

    def rows(self) -> DataFrame:
        """Return all of it, as of now, however often it is read."""
        reader = self.session.read.format("delta").option("versionAsOf", self._snapshot("version"))
        with self._errors():
            return reader.options(**self.options).load(self.path)

    def _snapshot(self, of: str) -> Any:
        """Return property `of` of Delta's newest snapshot of the table."""
        jvm: Any = self.session._jvm
        options = jvm.java.util.HashMap()
        for name, value in self.options.items():
            options.put(name, value)
        with self._errors():
            snapshot = jvm.org.apache.spark.sql.delta.DeltaLog.forTableWithSnapshot(
                self.session._jsparkSession,
                jvm.org.apache.hadoop.fs.Path(self.path),
                jvm.PythonUtils.toScalaMap(options),
            )
            return getattr(snapshot._2(), of)()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn an error of Spark's or Delta's into that of the task of kbackup, or into its own first line."""
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        try:
            yield
        except (Py4JError, PySparkException, ConnectionError) as error:
            if isinstance(error, ConnectionError) or jvm_has_ended():
                raise SparkEndedError from None
            text = str(error)
            known = from_text(text)
            if known is not None:
                raise known from None
            java = getattr(error, "java_exception", None)
            message = str(java.getMessage() or java) if java is not None else text
            line = next((line.strip() for line in message.splitlines() if line.strip()), "?")
            raise KbackupError(
                f"Delta table {self.url}: {line}", "run again with --debug to see Spark's own words"
            ) from None


# Delta tables kept in step with an archive: one commit for each restore point that added something.
#
# A commit carries the restore point's number as a transaction of Delta's (`txnAppId`, `txnVersion`): what is there
# already is not written again, whoever was killed when. The archive is only read.

PART_BYTES = 128 << 20  # of records that one task writes: a file for each date of them.


@dataclass
class _DeltaExport:
    """An export of Delta tables under way, with its counts for the listener."""

    run: ExportRun
    records: int = 0
    bytes: int = 0
    expected: int = 0

    @cached_property
    def session(self) -> SparkSession:
        return delta_session(self.run.job.spark())

    def every(self, topics: Mapping[str, str | None]) -> list[TableReport]:
        """Bring the tables of `topics`, by URL, up to date; return the tables with new records. An error of one
        table is raised after the others, with the names of all failed tables and the losses of the others."""
        done: list[TableReport] = []
        failed: dict[str, KbackupError] = {}
        for url, topic in topics.items():
            table = DeltaTable(self.session, url, hadoop_options(self.run.job.stores, url))
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
        raise type(first)(
            f"{len(failed)} of {len(topics)} Delta tables could not be brought up to date ({', '.join(failed)}): "
            + "; ".join([first.message, *self.run.losses]),
            first.hint,
        )

    def table(self, table: DeltaTable, topic: str | None) -> list[TableReport]:
        """Brings one table up to date; returns nothing if there is nothing for it."""
        app, additions = f"kbackup-{self.run.archive.info.id}", self.run.additions
        reached = table.reached(app)
        due = list(additions.after(reached, topic))
        decoded = self._decoded(table, [topic] if topic is not None else additions.topics_after(reached))
        self.run.losses += losses_of(additions, max(reached, self.run.since), table.url, topic)
        self.expected += sum(addition.records for addition in due)
        for addition in due:
            self._append(table, app, addition, decoded)
        return [table_report(table.url, due)] if due else []

    def _decoded(self, table: DeltaTable, topics: Collection[str]) -> DecodedTopics:
        """Return the types of topics, with columns that the table has as they are there."""
        decoded = self.run.decode(topics)
        held = table.decoded() if decoded.types else {}
        types = {
            topic: {part: merged_types(held.get(part, kind), kind, keep=True) for part, kind in own.items()}
            for topic, own in decoded.types.items()
        }
        return DecodedTopics(decoded.source, types)

    def _append(self, table: DeltaTable, app: str, addition: Addition, decoded: DecodedTopics) -> None:
        point, run = addition.point, self.run
        note = {
            "archive": run.archive.info.id,
            "restorePoint": point.number,
            "committedAt": point.committed_at,
            "records": addition.records,
        }
        parts = whole_units(addition.segments, PART_BYTES)
        work = ReadRows(run.archive.store, point.number, addition.partitions, decoded)
        schema = table_schema(decoded.types.get(addition.segments[0].topic, {}))

        def show(records: int, size: int) -> None:
            run.job.listener.progress(self.records + records, self.bytes + size, self.expected)

        with batch_frame(self.session, parts, work, schema, show, run.destination.own) as rows:
            run.lease.check()
            table.append(rows, app, point.number, note)
        self.records += addition.records
        self.bytes += addition.bytes


def export_delta(job: ExportJob) -> ExportReport:
    """Export an archive as Delta tables: one of each topic, or one of all. A table that can't be written does not stop
    the others: its error is raised after them."""
    return run_export(job, "delta", "delta table" if job.options.one_table else "delta tables", _write_tables)


def _write_tables(run: ExportRun) -> list[TableReport]:
    additions, url = run.additions, run.destination.url
    lacking = [*additions.missed(run.since), *additions.damaged(run.since)]
    topics = sorted({*additions.topics_after(run.since), *(tp.topic for tp, _ in lacking)})
    export = _DeltaExport(run)
    if run.job.options.one_table:
        run.destination.check_links([""])
        return export.every({url: None} if topics else {})
    if FOLDER in topics:
        raise RefusedError(
            f"topic {FOLDER} can't have a table of its own: that is where exports keep what they are about",
            f"give --exclude-topic {FOLDER}, or --one-table",
        )
    run.destination.check_links(topics)
    return export.every({f"{url}/{topic}": topic for topic in topics})


# Parquet files kept in step with an archive: written by kbackup's tasks into the store, without any jars.
#
# Which file holds a record follows from the record alone, and a file is there whole or not at all: a run that was
# killed is done again, and what is there already stays. `points/<n>.json` is the commit of a restore point.

CHUNK_BYTES = 64 << 20
"""Records of a segment up to the one that makes them larger than this go into one file for each date."""
_NO_DATE = "__HIVE_DEFAULT_PARTITION__"
_IN_PATH = ["topic", "date"]


@dataclass(frozen=True)
class WriteFiles:
    """The work of a task: the files of the segments of its part."""

    target: Store
    rows: ReadRows

    def __call__(self, part: ReadUnit, progress: ProgressSender) -> Iterator[ExportedFile]:
        for piece in part.ranges:
            for held in chunks(read_range(self.rows.store, piece)):
                table = pa.Table.from_batches([self.rows.rows(piece, block) for block in held])
                for day, some in by_date(table):
                    yield self._file(piece, int(held[0].offsets[0]), day, some)
                progress.add(len(table), sum(block.nbytes for block in held))

    def _file(self, piece: SegmentRange, first: int, day: str, rows: pa.Table) -> ExportedFile:
        s = piece.segment
        path = f"topic={s.topic}/date={day}/{s.incarnation}-{s.partition:03d}-{first:010d}.parquet"
        sink = io.BytesIO()
        pq.write_table(rows.drop_columns(_IN_PATH), sink, compression="zstd", store_schema=False)
        with suppress(AlreadyExistsError):  # of an attempt before this one: with the same records
            self.target.put_new(path, sink.getbuffer())
        return ExportedFile(path=path, records=len(rows), bytes=self.target.stat(path).size)


def chunks(blocks: Iterator[RecordBlock]) -> Iterator[list[RecordBlock]]:
    """Yield the blocks' records in chunks that end with the record that makes them larger than `CHUNK_BYTES`: wherever
    the blocks end."""
    gathered: list[RecordBlock] = []
    size = 0
    for block in blocks:
        at = 0
        while at < len(block):
            fits = rotation_cut(block.lengths[at:], size, CHUNK_BYTES)
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
    """Yield the rows of each date ('' never: see `_NO_DATE`), in their order."""
    date: Any = table.column("date").cast(pa.int32())
    days = pc.fill_null(date, -1).to_numpy()
    order = np.argsort(days, kind="stable")
    ordered = days[order]
    edges = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(ordered)]
    whole = table if len(edges) == 2 else table.take(order)
    for start, stop in pairwise(edges):
        day = int(ordered[start])
        yield (str(np.datetime64(day, "D")) if day >= 0 else _NO_DATE), whole.slice(start, stop - start)


def export_parquet(job: ExportJob) -> ExportReport:
    """Export an archive as Parquet files in folders by topic and date, without a table format."""
    return run_export(job, "parquet", "parquet", _write_points)


def _write_points(run: ExportRun) -> list[TableReport]:
    destination = run.destination
    reached = _reached(destination)
    run.losses += losses_of(run.additions, max(reached, run.since), destination.url)
    due = list(run.additions.after(reached))
    decoded = run.decode(run.additions.topics_after(reached))
    for addition in due:
        run.lease.check()
        rows = ReadRows(run.job.store, addition.point.number, addition.partitions, decoded)
        work = WriteFiles(destination.store, rows)
        parts = whole_units(addition.segments)
        files: list[ExportedFile] = run_counted(run.job.spark, parts, work, run.job.listener, addition.records)
        point = ExportedPoint(
            archive_id=run.archive.info.id,
            restore_point=addition.point.number,
            committed_at=addition.point.committed_at,
            files=tuple(sorted(files, key=lambda f: f.path)),
        )
        run.lease.check()
        destination.own.put(point_key(addition.point.number), dump(point))
    return [table_report(destination.url, due)] if due else []


def _reached(destination: Destination) -> int:
    """Return the newest restore point whose files are all there."""
    return max((point_of(entry.key) or 0 for entry in destination.own.list("points/")), default=0)
