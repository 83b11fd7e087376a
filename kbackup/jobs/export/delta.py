"""Delta tables kept in step with an archive: one commit for each restore point that added something.

A commit carries the restore point's number as a transaction of Delta's (`txnAppId`, `txnVersion`): what is there
already is not written again, whoever was killed when. The archive is only read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kbackup.archive.lease.hold import HeldLease
from kbackup.archive.query.export_rows import SCHEMA
from kbackup.archive.query.selection import Selection
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.segments.parallel import WHOLE, plan_reads
from kbackup.config.jobs import Export
from kbackup.errors import KbackupError, LeaseLostError, RefusedError, UnreachableError
from kbackup.jobs.export.delta_table import DeltaTable, app_id
from kbackup.jobs.export.destination import FOLDER, Destination, ExportInfo, Reached
from kbackup.jobs.export.plan import Addition, Additions
from kbackup.jobs.export.read import ReadRows
from kbackup.metrics.events import Listener, Phases
from kbackup.spark.delta import delta_session, hadoop_options
from kbackup.spark.frames import batch_frame
from kbackup.spark.tasks import Spark
from kbackup.store import S3Options
from kbackup.store.base import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PART_BYTES = 128 << 20
"""Of records that one task writes: a file for each date of them."""


@dataclass(frozen=True)
class TableReport:
    """Restore points, in order, and records that were appended to a table."""

    url: str
    restore_points: tuple[int, ...]
    records: int


@dataclass(frozen=True)
class ExportReport:
    """`restore_point` is the newest one, which all tables are at now; `tables` are those that got something. `losses`
    says, in words, of what records may have expired before they were exported."""

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


@dataclass
class _Export:
    """An export under way. `since` is the restore point that all tables are known to have been at."""

    archive: Archive
    destination: Destination
    s3: S3Options
    additions: Additions
    lease: HeldLease
    spark: Spark
    listener: Listener
    since: int
    losses: list[str] = field(default_factory=list)
    records: int = 0
    bytes: int = 0
    expected: int = 0

    def every(self, topics: Mapping[str, str | None]) -> list[TableReport]:
        """Bring the tables of `topics`, by URL, up to date; return the tables with new records. An error of one
        table is raised after the others."""
        done: list[TableReport] = []
        failed: dict[str, KbackupError] = {}
        for url, topic in topics.items():
            table = DeltaTable(self.session, url, hadoop_options(self.s3, url))
            try:
                report = self.table(table, topic)
            except (LeaseLostError, UnreachableError):  # others would fail alike
                raise
            except KbackupError as error:
                failed[url] = error
                continue
            done += [report] if report is not None else []
        if failed:
            raise _all_of(failed, len(topics), self.losses)
        return done

    def table(self, table: DeltaTable, topic: str | None) -> TableReport | None:
        """Brings one table up to date; None where there is nothing for it."""
        app = app_id(self.archive.info.id)
        reached = table.reached(app)
        due = list(self.additions.after(reached, topic))
        self.losses += losses_of(self.additions, max(reached, self.since), table.url, topic)
        self.expected += sum(addition.records for addition in due)
        for addition in due:
            self._append(table, app, addition)
        if not due:
            return None
        return TableReport(table.url, tuple(a.point.number for a in due), sum(a.records for a in due))

    def _append(self, table: DeltaTable, app: str, addition: Addition) -> None:
        point = addition.point
        note = {
            "archive": self.archive.info.id,
            "restorePoint": point.number,
            "committedAt": point.committed_at,
            "records": addition.records,
        }
        parts = plan_reads(addition.segments, part_bytes=PART_BYTES, cut_bytes=WHOLE)
        work = ReadRows(self.archive.store, point.number, addition.partitions)

        def show(records: int, size: int) -> None:
            self.listener.progress(self.records + records, self.bytes + size, self.expected)

        with batch_frame(self.session, parts, work, SCHEMA, show) as rows:
            self.lease.check()
            table.append(rows, app, point.number, note)
        self.records += addition.records
        self.bytes += addition.bytes

    @property
    def session(self) -> SparkSession:
        if self._session is None:
            self._session = delta_session(self.spark())
        return self._session

    _session: SparkSession | None = None


def export_delta(
    options: Export,
    url: str,
    store: Store,
    s3: S3Options,
    spark: Spark,
    listener: Listener,
    lease_seconds: float,
) -> ExportReport:
    """Export every restore point of `store` that the tables at `url` don't have yet, in order. Where it fails, or is
    killed, the tables are at a restore point each, and the next export continues from there. A table that can't be
    written does not stop the others: its error is raised after them."""
    phases = Phases(listener)
    destination = Destination.at(url, s3)
    selection = Selection.of(options.topics, options.exclude_topics)
    with phases.step("connect"):
        archive = open_archive(store)
        destination.check_apart(store)
        additions = Additions(archive, selection)
        newest = additions.newest
        additions.check_names()
    with destination.held(lease_seconds) as lease:
        with phases.step("plan"):
            destination.claim(_info(archive, options))
            destination.check_same_lineage(archive)
            due = Reached(
                archive_id=archive.info.id,
                restore_point=newest,
                topics=options.topics,
                exclude_topics=options.exclude_topics,
            )
            since = destination.reached(due)
            topics = additions.topics_after(since)
            lacking = [*additions.missed(since), *additions.damaged(since)]
            topics = sorted({*topics, *(tp.topic for tp, _ in lacking)})
        with phases.step("run"):
            run = _Export(archive, destination, s3, additions, lease, spark, listener, since)
            if options.one_table:
                done = run.every({destination.url: None} if topics else {})
            else:
                _check_folders(topics)
                done = run.every({f"{destination.url}/{topic}": topic for topic in topics})
        with phases.step("commit"):
            destination.note_reached(due)
    return ExportReport(
        "delta", destination.url, store.url, newest, tuple(done), tuple(run.losses), phases.seconds
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


def _info(archive: Archive, options: Export) -> ExportInfo:
    if not options.one_table:
        return ExportInfo(archive_id=archive.info.id, kind="delta tables")
    return ExportInfo(
        archive_id=archive.info.id,
        kind="delta table",
        topics=options.topics,
        exclude_topics=options.exclude_topics,
    )
