"""The status of an archive as a value: level, findings, and the figures behind them. Times are RFC 3339 in UTC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kbackup.archive.verify.findings import Scope
from kbackup.jobs.drill.report import Outcome
from kbackup.jobs.remains import Remains
from kbackup.metrics.registry import counted
from kbackup.util.text import human_size, plural
from kbackup.util.times import duration_text, ms_of

Level = Literal["ok", "warning", "critical"]
Subject = Literal["age", "losses", "damage", "drill", "lease", "schemas", "deletions", "transactions", "erasure"]
"""What a finding is about. Monitors match these words in --json."""
LEVELS: tuple[Level, ...] = ("ok", "warning", "critical")
"""From the best to the worst."""


@dataclass(frozen=True, slots=True)
class StatusFinding:
    """A reason why an archive needs attention. `command` shows the cause or removes it."""

    level: Literal["warning", "critical"]
    subject: Subject
    message: str
    command: str


@dataclass(frozen=True, slots=True)
class NewestPoint:
    """The newest restore point. `age_seconds` counts from its commit."""

    number: int
    committed_at: str
    age_seconds: float
    schemas: bool = False
    """Whether it has schemas of a registry."""


@dataclass(frozen=True, slots=True)
class LastVerification:
    """A recorded verification, with the number of its `findings`. `need_read` of them are of segments whose damage only
    reading shows; `unmendable` of them are of files that a repair can't write anew."""

    id: str
    scope: Scope
    ended_at: str
    age_seconds: float
    findings: int
    need_read: int = 0
    unmendable: int = 0


@dataclass(frozen=True, slots=True)
class LastDrill:
    """A drill. `restore_point` is what it restored; 0 if the drill ended before that was known."""

    id: str
    result: Outcome
    ended_at: str
    age_seconds: float
    restore_point: int


@dataclass(frozen=True, slots=True)
class LeaseStatus:
    """The lease of a writer: `alive` while a writer renews it, `dead` where the writer ended without a release."""

    state: Literal["alive", "dead"]
    command: str
    host: str
    pid: int
    acquired_at: str
    expires_at: str


@dataclass(frozen=True, slots=True)
class Growth:
    """What the restore points of the last `days` added together. Restore point 1 added the whole cluster."""

    days: int
    restore_points: int
    records: int
    bytes: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class ArchiveStatus:
    """The status of an archive at the time `at`.

    `newest` is null without restore points. `losses` counts losses that runs of the last seven days found.
    `damaged_points` counts restore points that lack damaged segments. `verified` is the newest recorded verification,
    `fully_verified` the newest that read every record. `drilled` is the newest drill, `fully_drilled` the newest that
    compared what it restored with the archive. `lease` is null if no writer holds or left one. `erased` counts the
    records that were ever erased; `remains` is what the store still has of their bytes, null if none were.
    """

    archive: str
    archive_id: str
    at: str
    level: Level
    findings: tuple[StatusFinding, ...]
    newest: NewestPoint | None
    max_age_seconds: float
    restore_points: int
    losses: int
    damaged_points: int
    verified: LastVerification | None
    fully_verified: LastVerification | None
    drilled: LastDrill | None
    fully_drilled: LastDrill | None
    lease: LeaseStatus | None
    growth: Growth
    erased: int
    remains: Remains | None


# The figures of a status, in one line and as metrics.


def count_of_losses(count: int) -> str:
    return "1 loss" if count == 1 else f"{count:,} losses"


def summary(status: ArchiveStatus) -> str:
    """Return the figures in one line, whether or not they are findings."""
    point = "no restore point"
    newest = status.newest
    if newest is not None:
        with_schemas = " with schemas" if newest.schemas else ""
        point = f"restore point {newest.number}{with_schemas} is {duration_text(newest.age_seconds)} old"
    verification = "never verified"
    verified = status.verified
    if verified is not None:
        found = plural(verified.findings, "finding") if verified.findings else "no findings"
        verification = f"verified ({verified.scope}) {duration_text(verified.age_seconds)} ago, {found}"
    drill = "no drill"
    drilled = status.drilled
    if drilled is not None:
        drill = f"drill {drilled.result} {duration_text(drilled.age_seconds)} ago"
    growth = f"{human_size(status.growth.stored_bytes)} added in {status.growth.days} days"
    parts = [point, count_of_losses(status.losses)]
    if status.damaged_points:
        # Damage is no loss of a backup, and "0 losses" alone would say that all is there.
        parts.append(plural(status.damaged_points, "damaged restore point"))
    parts += [verification, drill, growth]
    if status.lease is not None and status.lease.state == "alive":
        parts.append(f"{status.lease.command} runs on {status.lease.host}")
    remains = status.remains
    if remains is not None and not remains.objects and remains.versions is None:
        # No finding: it would stay for ever where a login may not list versions.
        parts.append(f"whether versions with some of {plural(status.erased, 'erased record')} are left is unknown")
    return "; ".join(parts)


def count_status(status: ArchiveStatus) -> None:
    """Count a status, for Prometheus."""
    counted.put("kbackup_status_level", LEVELS.index(status.level))
    if status.newest is not None:
        counted.put("kbackup_restore_point", status.newest.number)
        counted.put("kbackup_restore_point_timestamp_seconds", ms_of(status.newest.committed_at) / 1000)
