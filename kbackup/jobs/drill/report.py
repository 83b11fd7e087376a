"""Report of a drill: drills/<id>/report.json, and the same as an HTML page."""

from __future__ import annotations

from typing import Literal

import msgspec

from kbackup.archive import layout
from kbackup.archive.models import Document, FileSum, Member, dump, file_sum
from kbackup.archive.query.window import Choice
from kbackup.errors import KbackupError
from kbackup.jobs.compare.report import AgainstReport
from kbackup.metrics.registry import counted
from kbackup.store.base import Store

Result = Literal["passed", "failed", "interrupted"]


class DrillError(Member, frozen=True, kw_only=True):
    """Error that ended a drill early."""

    type: str
    message: str
    hint: str
    exit_code: int

    @classmethod
    def of(cls, error: KbackupError) -> DrillError:
        return cls(
            type=type(error).__name__, message=error.message, hint=error.hint, exit_code=error.exit_code
        )


class DrillReport(Document, frozen=True, kw_only=True):
    """drills/<id>/report.json. `passed`: all of the restore point came back as it is in the archive, and nothing of
    the drill is left on the target but what was to be kept.

    `findings` say what did not. `losses` are the records of what was chosen that were found missing or damaged in the
    archive; `damaged` are all restore points that lack such records. `left` names what could not be deleted, `kept`
    what was not to be. `data_age` is how old the restore point was when the drill began, `seconds` how long each phase
    took, both in seconds; the phases of the restore itself are those that begin with 'restore: '. `versions` are those
    of what took part.
    """

    format: Literal["kbackup-drill-report"] = "kbackup-drill-report"
    drill_id: str
    result: Result
    started_at: str
    ended_at: str
    archive: str
    archive_id: str
    restore_point: int
    restore_point_at: str | None
    choice: Choice | None
    data_age: float | None
    target: str
    target_cluster_id: str
    prefix: str
    restored_records: int
    restored_bytes: int
    comparison: AgainstReport | None
    findings: tuple[str, ...]
    warnings: tuple[str, ...]
    losses: tuple[str, ...] = ()
    damaged: tuple[int, ...] = ()
    left: tuple[str, ...]
    kept: tuple[str, ...]
    error: DrillError | None
    versions: dict[str, str]
    seconds: dict[str, float]
    page: FileSum | None = None
    """Size and checksum of report.html."""


def store_report(state: Store, report: DrillReport, page: str) -> None:
    """Store the page, then the report: a stored report always has its page."""
    data = page.encode()
    state.put(layout.drill_key(report.drill_id, layout.PAGE), data)
    stored = msgspec.structs.replace(report, page=file_sum(data))
    state.put(layout.drill_key(report.drill_id, layout.REPORT), dump(stored))


def count_drill(report: DrillReport) -> None:
    """Count what a drill did, for Prometheus."""
    counted.add("kbackup_records_total", report.restored_records)
    counted.add("kbackup_bytes_total", report.restored_bytes)
    counted.put("kbackup_findings", len(report.findings))
