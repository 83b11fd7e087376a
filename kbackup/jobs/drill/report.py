"""The report of a drill, drills/<id>/report.json, and the reports that an archive keeps."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

import msgspec

from kbackup.archive import layout
from kbackup.archive.models import USE_NEWER, Document, FileSum, Member, dump, file_sum, load
from kbackup.archive.segments.window import Choice
from kbackup.errors import CorruptError, KbackupError, NotFoundError, UsageError
from kbackup.jobs.compare.report import AgainstReport
from kbackup.jobs.finding_kinds import kind_of, of_kind
from kbackup.metrics.registry import counted
from kbackup.store.base import Store
from kbackup.util.text import kafka_command

Result = Literal["passed", "failed", "interrupted"]
Outcome = Literal["passed", "passed in part", "failed", "could not run", "interrupted"]
"""What a drill says of the archive.

`failed`: something did not come back as it is in the archive. `passed in part`: what was compared is as archived, but
the target refused topics or groups, or something of the drill is left there. `could not run`: nothing was compared, or
not to the end, so the drill says nothing of the archive.
"""
CONCLUSIVE: tuple[Outcome, ...] = ("passed", "passed in part", "failed")
"""The outcomes of drills that compared what they restored."""


class DrillError(Member, frozen=True, kw_only=True):
    """Error that ended a drill early."""

    type: str
    message: str
    hint: str
    exit_code: int

    @classmethod
    def of(cls, error: KbackupError) -> DrillError:
        return cls(type=type(error).__name__, message=error.message, hint=error.hint, exit_code=error.exit_code)


class DrillReport(Document, frozen=True, kw_only=True):
    """drills/<id>/report.json. `passed`: all of the restore point came back as it is in the archive, and nothing of
    the drill is left on the target but the topics and groups that were to be kept.

    `findings` say what did not come back, or is left. `losses` are selected records that were found missing or damaged
    in the archive; `damaged` are all restore points that lack such records. `left` names the topics and groups that
    could not be deleted, `kept` those that were to be kept. `data_age` is how old the restore point was when the drill
    began, `seconds` how long each phase took, both in seconds; the phases of the restore itself begin with 'restore: '.
    `versions` are the versions of the programs and libraries that took part.
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

    # What the findings say is derived here, so that a report of an earlier version is judged likewise.

    @property
    def differences(self) -> tuple[str, ...]:
        """The findings of the comparison: what is not as in the archive."""
        if self.comparison is None:
            return ()
        return tuple(finding for finding in self.comparison.findings if kind_of(finding) != "unread group")

    @property
    def lost(self) -> tuple[str, ...]:
        """The findings of records that the archive itself lacks, because they were found missing or damaged."""
        return of_kind("loss", self.findings)

    @property
    def shortfalls(self) -> tuple[str, ...]:
        """The findings that are about the target: what it refused, and what is left there."""
        others = {*self.differences, *self.lost}
        return tuple(finding for finding in self.findings if finding not in others)

    @property
    def is_damage(self) -> bool:
        """Whether damage of the archive ended the drill. A file of a newer version is no damage."""
        error = self.error
        return error is not None and error.exit_code == CorruptError.exit_code and error.hint != USE_NEWER

    @property
    def obstacle(self) -> str:
        """Why the drill compared nothing, or not all, with a hint; '' if it came to its end."""
        if self.error is not None:
            return f"{self.error.message}; {self.error.hint}" if self.error.hint else self.error.message
        for finding in of_kind("nothing compared", self.findings):
            return finding
        return ""

    @property
    def outcome(self) -> Outcome:
        if self.result == "passed":
            return "passed"
        if self.differences or self.is_damage:
            return "failed"
        if self.result == "interrupted":
            return "interrupted"
        if self.obstacle:
            return "could not run"
        return "failed" if self.lost else "passed in part"


def deletion_commands(report: DrillReport) -> list[str]:
    """Return the commands of Kafka's tools that delete what the drill left on the target."""
    names = [*report.kept, *report.left]
    groups = []
    for name in names:
        if name.startswith("group "):
            # What could not be deleted has the reason after its name.
            group, _, _ = name.removeprefix("group ").partition(": ")
            groups.append(group)
    commands = []
    if any(name.startswith("topic") for name in names):
        # kafka-topics takes a regular expression.
        pattern = report.prefix.replace(".", r"\.") + ".*"
        commands.append(kafka_command("kafka-topics", report.target, "--delete", "--topic", pattern))
    if groups:
        options = []
        for group in groups:
            options += ["--group", group]
        commands.append(kafka_command("kafka-consumer-groups", report.target, "--delete", *options))
    return commands


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
    counted.put("kbackup_drill_differences", len(report.differences))


# Read the stored reports of drills and their pages.

_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_REPORT = re.compile(rf"{layout.DRILLS}({_ID.pattern})/{re.escape(layout.REPORT)}")
_HINT = "read report.json beside it, or run 'kbackup verify'"
MAX_PAGE = 16 << 20
"""Size in bytes of the largest page that is read: a drill writes at most 200 rows of each table."""


class StoredDrill(NamedTuple):
    """A drill whose report is stored. `modified` is in seconds since the epoch by the store's clock."""

    drill_id: str
    modified: float


def list_drills(store: Store) -> list[StoredDrill]:
    """Return the stored drills, the newest first. Costs one listing."""

    def newest_first(drill: StoredDrill) -> tuple[float, str]:
        return -drill.modified, drill.drill_id

    drills: list[StoredDrill] = []
    for entry in store.list(layout.DRILLS):
        match = _REPORT.fullmatch(entry.key)
        if match is not None:
            drills.append(StoredDrill(match[1], entry.modified))
    return sorted(drills, key=newest_first)


def read_report(store: Store, drill_id: str) -> DrillReport:
    """Return the report of a drill. Raises `UsageError` if there is none, `CorruptError` if it is damaged."""
    key = layout.drill_key(drill_id, layout.REPORT)
    try:
        data = store.get(key) if _ID.fullmatch(drill_id) else None
    except NotFoundError:
        data = None
    if data is None:
        raise UsageError(f"there is no drill {drill_id} in the archive", "select another drill")
    report = load(DrillReport, data, key)
    if report.drill_id != drill_id:
        raise CorruptError(f"file {key} is of drill {report.drill_id}", "run 'kbackup verify'")
    return report


def read_page(store: Store, drill_id: str) -> bytes:
    """Return the HTML page of a drill: the bytes that its report names. Raises `CorruptError` for other bytes."""
    report = read_report(store, drill_id)
    key = layout.drill_key(drill_id, layout.PAGE)
    if report.page is None or report.page.size > MAX_PAGE:
        raise CorruptError(f"the report of drill {drill_id} names no page of {MAX_PAGE:,} bytes or less", _HINT)
    try:
        data = store.get_range(key, 0, report.page.size)
    except NotFoundError as error:
        raise CorruptError(f"file {key} is missing", _HINT) from error
    if file_sum(data) != report.page:
        raise CorruptError(f"file {key} is not what its report says", _HINT)
    return data
