"""One line of the preflight, and the outcome of all lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from kbackup.errors import EXIT_LOSS, EXIT_OK, MismatchError
from kbackup.jobs.migrate.unread import NotRead
from kbackup.util.text import shorten

Status = Literal["ok", "warning", "failed", "not looked at"]
Verdict = Literal["ready", "ready with warnings", "not ready"]

_NAMES = 5  # that a line shows
_EXIT_CODES: dict[Verdict, int] = {
    "ready": EXIT_OK,
    "ready with warnings": EXIT_LOSS,
    "not ready": MismatchError.exit_code,
}


@dataclass(frozen=True, slots=True)
class Line:
    """The outcome of one check. `hint` is the action for the user, and is '' where `status` is ok."""

    name: str
    status: Status
    detail: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class PreflightReport:
    """`exit_code` is 0 where the cluster is ready, 3 with warnings, 10 where it is not ready."""

    verdict: Verdict
    exit_code: int
    lines: tuple[Line, ...]

    @classmethod
    def of(cls, lines: tuple[Line, ...]) -> PreflightReport:
        statuses = {line.status for line in lines}
        verdict: Verdict = (
            "not ready" if "failed" in statuses else "ready" if statuses <= {"ok"} else "ready with warnings"
        )
        return cls(verdict, _EXIT_CODES[verdict], lines)


def ok(name: str, detail: str) -> Line:
    return Line(name, "ok", detail)


def failed(name: str, detail: str, hint: str) -> Line:
    return Line(name, "failed", detail, hint)


def warning(name: str, detail: str, hint: str) -> Line:
    return Line(name, "warning", detail, hint)


def not_looked_at(name: str, unread: NotRead) -> Line:
    return Line(name, "not looked at", f"not looked at: {unread.why}", unread.hint)


def listed(names: Iterable[object]) -> str:
    """Sorted names, shortened: '1, 2 and 7 more'."""
    return shorten([str(name) for name in sorted(names, key=_by_number)], _NAMES)


def _by_number(name: object) -> tuple[int, str]:
    return (name, "") if isinstance(name, int) else (0, str(name))


def each(values: Mapping[int, str]) -> str:
    """'broker 1: 3.3, broker 2: 3.2', shortened."""
    return shorten([f"broker {broker}: {text}" for broker, text in sorted(values.items())], _NAMES)
