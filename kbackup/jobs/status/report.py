"""The status of an archive as a value: level, findings, and the figures behind them. Times are RFC 3339 in UTC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kbackup.jobs.drill.report import Result
from kbackup.jobs.verify.report import Scope

Level = Literal["ok", "warning", "critical"]
Subject = Literal["age", "losses", "damage", "drill", "lease"]
LEVELS: tuple[Level, ...] = ("ok", "warning", "critical")
"""From the best to the worst."""


@dataclass(frozen=True, slots=True)
class StatusFinding:
    """A reason why an archive is not well. `command` shows the cause or mends it."""

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


@dataclass(frozen=True, slots=True)
class LastVerification:
    """A recorded verification. `findings` is their number. Of them, `need_read` are of segments whose damage only
    reading shows, and `unmendable` of files that a repair can't make anew."""

    id: str
    scope: Scope
    ended_at: str
    age_seconds: float
    findings: int
    need_read: int = 0
    unmendable: int = 0


@dataclass(frozen=True, slots=True)
class LastDrill:
    """The newest drill. `restore_point` is what it restored; 0 where the drill ended before that was known."""

    id: str
    result: Result
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
    """Sums of what the restore points of the last `days` added, without restore point 1, the whole cluster."""

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
    `fully_verified` the newest that read every record. `lease` is null where no writer holds or left one.
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
    lease: LeaseStatus | None
    growth: Growth
