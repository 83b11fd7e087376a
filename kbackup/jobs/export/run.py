"""An export under way, of every kind of tables: claim the destination, write the restore points that it lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kbackup.archive.lease.hold import HeldLease
from kbackup.archive.query.selection import Selection
from kbackup.archive.reader import Archive, open_archive
from kbackup.config.jobs import Export
from kbackup.jobs.export.destination import Destination, ExportInfo, Reached
from kbackup.jobs.export.plan import Additions
from kbackup.metrics.events import Listener, Phases
from kbackup.spark.tasks import Spark
from kbackup.store import S3Options
from kbackup.store.base import Store


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


@dataclass(frozen=True)
class ExportJob:
    """The archive in `store`, and the options of its export to `url`. The destination is held by a lease meanwhile."""

    options: Export
    url: str
    store: Store
    s3: S3Options
    spark: Spark
    listener: Listener
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
        """Return what a destination says of itself."""
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
