"""Reports of an apply half: to a watcher while the half runs, and in a report at its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kbackup.errors import KbackupError
from kbackup.jobs.mirror.flow import Flow
from kbackup.jobs.mirror.halves.round import RoundReport


class ApplyWatcher(Protocol):
    """Receives the events of an apply half's rounds."""

    def waiting(self, flow: Flow, why: str) -> None:
        """Report once that there is nothing to apply yet."""
        ...

    def warned(self, text: str) -> None: ...

    def applied(self, flow: Flow, report: RoundReport) -> None: ...

    def well(self) -> None: ...

    def failed(self, error: KbackupError, pause: float) -> None: ...


@dataclass
class ApplyReport:
    """Totals of an apply half from start to end. `is_loss`: it ends with exit code 3."""

    flow: str
    restore_point: int = 0
    rounds: int = 0
    retries: int = 0
    records: int = 0
    bytes: int = 0
    is_loss: bool = False

    def add(self, report: RoundReport) -> None:
        self.restore_point = report.restore_point
        self.rounds += 1
        self.records += report.applied.records
        self.bytes += report.applied.bytes
        self.is_loss = self.is_loss or report.is_loss
