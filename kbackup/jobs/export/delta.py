"""Delta tables kept in step with an archive: one commit for each restore point that added something.

A commit carries the restore point's number as a transaction of Delta's (`txnAppId`, `txnVersion`): what is there
already is not written again, whoever was killed when. The archive is only read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kbackup.archive.query.export_rows import SCHEMA
from kbackup.archive.segments.parallel import WHOLE, plan_reads
from kbackup.config.jobs import Export
from kbackup.errors import KbackupError, LeaseLostError, RefusedError, UnreachableError
from kbackup.jobs.export.delta_table import DeltaTable, app_id
from kbackup.jobs.export.destination import FOLDER, ExportInfo
from kbackup.jobs.export.plan import Addition
from kbackup.jobs.export.read import ReadRows
from kbackup.jobs.export.run import ExportRun, TableReport, losses_of
from kbackup.spark.delta import delta_session, hadoop_options
from kbackup.spark.frames import batch_frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
        """Brings one table up to date; None where there is nothing for it."""
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
        with batch_frame(self.session, parts, work, SCHEMA, show, destination) as rows:
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
            archive_id=archive_id,
            kind="delta table",
            topics=options.topics,
            exclude_topics=options.exclude_topics,
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
