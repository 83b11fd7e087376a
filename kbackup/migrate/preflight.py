"""Check whether a cluster is ready for its migration from ZooKeeper to KRaft."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from kbackup.errors import EXIT_LOSS, EXIT_OK, MismatchError
from kbackup.migrate.checks import access, cluster, controllers
from kbackup.migrate.checks.base import Check, listed
from kbackup.migrate.states import NotRead, ProblemError, UnreadError, need
from kbackup.migrate.znodes import MigrationFindings

Status = Literal["ok", "warning", "failed", "not looked at"]
Verdict = Literal["ready", "ready with warnings", "not ready"]

_EXIT_CODES: dict[Verdict, int] = {
    "ready": EXIT_OK,
    "ready with warnings": EXIT_LOSS,
    "not ready": MismatchError.exit_code,
}


@dataclass(frozen=True, slots=True)
class Line:
    """The outcome of one check. `hint` is the action for the user, and is '' if `status` is ok."""

    name: str
    status: Status
    detail: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class PreflightReport:
    """`exit_code` is 0 if the cluster is ready, 3 with warnings, 10 where it is not ready."""

    verdict: Verdict
    exit_code: int
    lines: tuple[Line, ...]


def judge(findings: MigrationFindings) -> PreflightReport:
    """Run every check on the findings."""
    lines = tuple(_line(check, findings) for check in CHECKS)
    verdict = _verdict({line.status for line in lines})
    return PreflightReport(verdict, _EXIT_CODES[verdict], lines)


def _verdict(statuses: Iterable[Status]) -> Verdict:
    distinct = set(statuses)
    if "failed" in distinct:
        return "not ready"
    # What was not looked at is a warning: nobody knows that it is ok.
    return "ready" if distinct <= {"ok"} else "ready with warnings"


def _line(check: Check, findings: MigrationFindings) -> Line:
    try:
        return Line(check.name, "ok", check.run(findings))
    except ProblemError as problem:
        status: Status = "warning" if problem.is_warning else "failed"
        return Line(check.name, status, problem.detail, problem.hint)
    except UnreadError as error:
        return Line(check.name, "not looked at", f"not looked at: {error.unread.why}", error.unread.hint)


_MAX_AGE = 3600.0  # s
_CLOCK_SKEW = 60.0  # s that the archive's time may lie ahead of this machine's


def whole_metadata(findings: MigrationFindings) -> str:
    """The archive holds the whole metadata of this cluster, not older than an hour."""
    again = "run 'kbackup migrate archive'"
    archive = need(findings.archive)
    if archive is None:
        raise ProblemError("there is no restore point", again)
    name = f"restore point {archive.restore_point}"
    ids = {side.cluster_id for side in (findings.brokers, findings.zookeeper) if not isinstance(side, NotRead)}
    if ids and archive.cluster_id not in ids:
        raise ProblemError(f"{name} is of cluster {archive.cluster_id}", "name the archive of this cluster")
    if archive.missing:
        raise ProblemError(
            f"{name} lacks {listed(archive.missing)}",
            "name ZooKeeper in [source], use an encrypted archive, and run 'kbackup migrate archive'",
        )
    # What was changed since is not in it, and could not be brought back if the migration fails.
    age = findings.now - archive.captured_at
    if age > _MAX_AGE:
        raise ProblemError(f"{name} is {age / 3600:.1f} hours old", again)
    if age < -_CLOCK_SKEW:
        raise ProblemError(f"{name} is {-age:.0f} s in the future", f"set the clocks, then {again}")
    return f"{name}, {max(age, 0) / 60:.0f} minutes old"


CHECKS = (*cluster.CHECKS, *controllers.CHECKS, *access.CHECKS, Check("archive: whole metadata", whole_metadata))
"""All checks, in the order of their lines."""
