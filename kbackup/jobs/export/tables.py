"""The export job: append restore points to Delta tables or Parquet files, each once."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kbackup.archive.models import dump
from kbackup.archive.segments.parallel import WHOLE, ReadUnit, SegmentRange, plan_reads, read_range
from kbackup.archive.segments.rows import EXPORT_SCHEMA
from kbackup.config.models import Export
from kbackup.errors import AlreadyExistsError, KbackupError, LeaseLostError, RefusedError, UnreachableError, from_text
from kbackup.formats.block import rotation_cut, slice_block
from kbackup.jobs.export.destination import (
    FOLDER,
    Destination,
    ExportedFile,
    ExportedPoint,
    ExportInfo,
    point_key,
    point_of,
)
from kbackup.jobs.export.run import (
    Addition,
    ExportJob,
    ExportReport,
    ExportRun,
    ReadRows,
    TableReport,
    losses_of,
    run_export,
)
from kbackup.spark.delta import delta_session, hadoop_options, table_path
from kbackup.spark.jvm import jvm_has_ended
from kbackup.spark.tasks import ProgressSender, SparkEndedError, batch_frame, run_counted
from kbackup.store.base import Store
from kbackup.types import RecordBlock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def app_id(archive_id: str) -> str:
    """Return the application of Delta's transactions whose version is the number of a restore point."""
    return f"kbackup-{archive_id}"


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
        transactions = self._snapshot("transactions")
        version = transactions.get(app)
        return int(version.get()) if version.isDefined() else 0

    def append(self, rows: DataFrame, app: str, version: int, note: Mapping[str, object]) -> None:
        """One commit of `rows`, unless `app` has committed `version` or a later one; `note` is its `userMetadata`."""
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        writer = (
            rows.write.format("delta")
            .mode("append")
            .partitionBy("date")
            .option("txnAppId", app)
            .option("txnVersion", version)
            .option("userMetadata", json.dumps(note))
            .options(**self.options)
        )
        try:
            # in a thread: an interrupt would tear the main one's connection to the JVM, which it takes to cancel this
            with ThreadPoolExecutor(1) as apart:
                apart.submit(writer.save, self.path).result()
        except (Py4JError, PySparkException, ConnectionError) as error:
            raise self._error(error) from None

    def rows(self) -> DataFrame:
        """Return all of it, as of now, however often it is read."""
        from pyspark.errors import PySparkException

        reader = self.session.read.format("delta").option("versionAsOf", self._snapshot("version"))
        try:
            return reader.options(**self.options).load(self.path)
        except PySparkException as error:
            raise self._error(error) from None

    def _snapshot(self, of: str) -> Any:
        """Return property `of` of Delta's newest snapshot of the table."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        jvm: Any = self.session._jvm
        options = jvm.java.util.HashMap()
        for name, value in self.options.items():
            options.put(name, value)
        try:
            snapshot = jvm.org.apache.spark.sql.delta.DeltaLog.forTableWithSnapshot(
                self.session._jsparkSession,
                jvm.org.apache.hadoop.fs.Path(self.path),
                jvm.PythonUtils.toScalaMap(options),
            )
            return getattr(snapshot._2(), of)()
        except (Py4JError, PySparkException, ConnectionError) as error:
            raise self._error(error) from None

    def _error(self, error: Any) -> KbackupError:
        """Return the error of a task of kbackup, or the first line of Spark's or Delta's error."""
        if isinstance(error, ConnectionError) or jvm_has_ended():
            return SparkEndedError()
        text = str(error)
        known = from_text(text)
        if known is not None:
            return known
        java = getattr(error, "java_exception", None)
        message = str(java.getMessage() or java) if java is not None else text
        line = next((line.strip() for line in message.splitlines() if line.strip()), "?")
        return KbackupError(f"Delta table {self.url}: {line}", "run again with --debug to see Spark's own words")


# Delta tables kept in step with an archive: one commit for each restore point that added something.
#
# A commit carries the restore point's number as a transaction of Delta's (`txnAppId`, `txnVersion`): what is there
# already is not written again, whoever was killed when. The archive is only read.


PART_BYTES = 128 << 20
"""Of records that one task writes: a file for each date of them."""


@dataclass
class _DeltaExport:
    """An export of Delta tables under way, with its counts for the listener."""

    run: ExportRun
    records: int = 0
    bytes: int = 0
    expected: int = 0

    def every(self, topics: Mapping[str, str | None]) -> list[TableReport]:
        """Bring the tables of `topics`, by URL, up to date; return the tables with new records. An error of one
        table is raised after the others."""
        done: list[TableReport] = []
        failed: dict[str, KbackupError] = {}
        for url, topic in topics.items():
            table = DeltaTable(self.session, url, hadoop_options(self.run.job.s3, url))
            try:
                report = self.table(table, topic)
            except (LeaseLostError, UnreachableError):  # others would fail alike
                raise
            except KbackupError as error:
                failed[url] = error
                continue
            done += [report] if report is not None else []
        if failed:
            raise _all_of(failed, len(topics), self.run.losses)
        return done

    def table(self, table: DeltaTable, topic: str | None) -> TableReport | None:
        """Brings one table up to date; None if there is nothing for it."""
        app, additions = app_id(self.run.archive.info.id), self.run.additions
        reached = table.reached(app)
        due = list(additions.after(reached, topic))
        self.run.losses += losses_of(additions, max(reached, self.run.since), table.url, topic)
        self.expected += sum(addition.records for addition in due)
        for addition in due:
            self._append(table, app, addition)
        if not due:
            return None
        return TableReport(table.url, tuple(a.point.number for a in due), sum(a.records for a in due))

    def _append(self, table: DeltaTable, app: str, addition: Addition) -> None:
        point = addition.point
        note = {
            "archive": self.run.archive.info.id,
            "restorePoint": point.number,
            "committedAt": point.committed_at,
            "records": addition.records,
        }
        parts = plan_reads(addition.segments, part_bytes=PART_BYTES, cut_bytes=WHOLE)
        work = ReadRows(self.run.archive.store, point.number, addition.partitions)

        def show(records: int, size: int) -> None:
            self.run.job.listener.progress(self.records + records, self.bytes + size, self.expected)

        destination = self.run.destination.own
        with batch_frame(self.session, parts, work, EXPORT_SCHEMA, show, destination) as rows:
            self.run.lease.check()
            table.append(rows, app, point.number, note)
        self.records += addition.records
        self.bytes += addition.bytes

    @property
    def session(self) -> SparkSession:
        if self._session is None:
            self._session = delta_session(self.run.job.spark())
        return self._session

    _session: SparkSession | None = None


class DeltaFormat:
    """Delta tables: one of each topic, or one of all. A table that can't be written does not stop the others: its error
    is raised after them."""

    kind = "delta"

    def info(self, archive_id: str, options: Export) -> ExportInfo:
        if not options.one_table:
            return ExportInfo(archive_id=archive_id, kind="delta tables")
        return ExportInfo(
            archive_id=archive_id, kind="delta table", topics=options.topics, exclude_topics=options.exclude_topics
        )

    def write(self, run: ExportRun) -> Sequence[TableReport]:
        additions, url = run.additions, run.destination.url
        lacking = [*additions.missed(run.since), *additions.damaged(run.since)]
        topics = sorted({*additions.topics_after(run.since), *(tp.topic for tp, _ in lacking)})
        export = _DeltaExport(run)
        if run.job.options.one_table:
            return export.every({url: None} if topics else {})
        _check_folders(topics)
        return export.every({f"{url}/{topic}": topic for topic in topics})


def _all_of(failed: Mapping[str, KbackupError], tables: int, losses: Sequence[str]) -> KbackupError:
    """Return the error of the first failed table, with the names of all failed tables and the losses of the others."""
    first = next(iter(failed.values()))
    if tables == 1:
        return first
    return type(first)(
        f"{len(failed)} of {tables} Delta tables could not be brought up to date ({', '.join(failed)}): "
        + "; ".join([first.message, *losses]),
        first.hint,
    )


def _check_folders(topics: Sequence[str]) -> None:
    if FOLDER in topics:
        raise RefusedError(
            f"topic {FOLDER} can't have a table of its own: that is where exports keep what they are about",
            f"give --exclude-topic {FOLDER}, or --one-table",
        )


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


class ParquetFormat:
    """Parquet files in folders by topic and date, without a table format."""

    kind = "parquet"

    def info(self, archive_id: str, options: Export) -> ExportInfo:
        return ExportInfo(
            archive_id=archive_id, kind="parquet", topics=options.topics, exclude_topics=options.exclude_topics
        )

    def write(self, run: ExportRun) -> Sequence[TableReport]:
        destination = run.destination
        reached = _reached(destination)
        run.losses += losses_of(run.additions, max(reached, run.since), destination.url)
        done: list[Addition] = []
        for addition in list(run.additions.after(reached)):
            run.lease.check()
            files = _write(addition, run)
            point = ExportedPoint(
                archive_id=run.archive.info.id,
                restore_point=addition.point.number,
                committed_at=addition.point.committed_at,
                files=tuple(sorted(files, key=lambda f: f.path)),
            )
            run.lease.check()
            destination.own.put(point_key(addition.point.number), dump(point))
            done.append(addition)
        numbers = tuple(a.point.number for a in done)
        return [TableReport(destination.url, numbers, sum(a.records for a in done))] if done else []


def _reached(destination: Destination) -> int:
    """Return the newest restore point whose files are all there."""
    return max((point_of(entry.key) or 0 for entry in destination.own.list("points/")), default=0)


def _write(addition: Addition, run: ExportRun) -> list[ExportedFile]:
    job = run.job
    work = WriteFiles(run.destination.store, ReadRows(job.store, addition.point.number, addition.partitions))
    parts = plan_reads(addition.segments, cut_bytes=WHOLE)
    return run_counted(job.spark, parts, work, job.listener, addition.records)


# The export job: tables of an archive's records, as Delta tables or as Parquet files.


def export_delta(job: ExportJob) -> ExportReport:
    """Export an archive as Delta tables."""
    return run_export(job, DeltaFormat())


def export_parquet(job: ExportJob) -> ExportReport:
    """Export an archive as Parquet files."""
    return run_export(job, ParquetFormat())
