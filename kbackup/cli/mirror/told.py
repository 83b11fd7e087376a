"""What `kbackup mirror` says of its halves: on stderr while they run, and in the end."""

from __future__ import annotations

import time
from collections.abc import Mapping

from kbackup.cli.common.frame import Frame
from kbackup.cli.common.human import human_size, plural
from kbackup.cli.follow import Told
from kbackup.jobs.backup.follow import FollowReport
from kbackup.jobs.mirror.flow import Flow
from kbackup.jobs.mirror.halves.reports import ApplyReport
from kbackup.jobs.mirror.halves.round import RoundReport
from kbackup.metrics import registry as metrics
from kbackup.metrics.server import Health


class ToldOfTake(Told):
    """Says what each round of a take half did. `successes` are shared by the take halves of a process: by name, when a
    round ended well last, in seconds since the epoch."""

    def __init__(self, frame: Frame, health: Health | None, name: str, successes: dict[str, float]) -> None:
        super().__init__(frame, health, f"{name.partition(' into ')[0]}: ")
        self._name, self._successes = name, successes
        successes[name] = 0.0

    def _count_success(self) -> None:
        """The metric is of the half that is longest without a success: another one must not hide it."""
        self._successes[self._name] = time.time()
        oldest = min(self._successes.values())
        if oldest:
            metrics.well(oldest)


class ToldOfApply(Told):
    """Says what each round of an apply half did, and keeps health and metrics file up to date."""

    def __init__(self, frame: Frame, health: Health | None) -> None:
        super().__init__(frame, health)
        self._refused: dict[str, frozenset[str]] = {}

    def _count_success(self) -> None:
        """Flows have a metric of their own: `kbackup_mirror_last_round_timestamp_seconds`."""

    def waiting(self, flow: Flow, why: str) -> None:
        self._reporter.note(f"flow {flow.name} waits: {why}")
        if self._health is not None:
            self._health.failed(why)
        self._write()

    def warned(self, text: str) -> None:
        self._reporter.warning(text)

    def applied(self, flow: Flow, report: RoundReport) -> None:
        for topic in report.created:
            self._reporter.note(f"flow {flow.name}: created topic {topic}")
        for topic, partitions in report.grown.items():
            self._reporter.note(f"flow {flow.name}: topic {topic} has {plural(partitions, 'partition')} now")
        for text in (
            *(r.message for r in report.applied.recreated),
            *(lost.message for lost in report.applied.too_late),
        ):
            self._reporter.warning(f"flow {flow.name}: {text}")
        self._warn_of_refusals(flow, report)
        if report.applied.records:
            self._reporter.note(
                f"flow {flow.name}: restore point {report.restore_point} applied, "
                f"{plural(report.applied.records, 'record')}, {human_size(report.applied.bytes)}"
            )

    def _warn_of_refusals(self, flow: Flow, report: RoundReport) -> None:
        """Once each, as long as the target goes on to refuse the same. A round tells only of subjects that it set."""
        for subject in report.refused:
            refused = frozenset(report.refusals(subject))
            for text in sorted(refused - self._refused.get(subject, frozenset())):
                self._reporter.warning(f"flow {flow.name}: {text}")
            self._refused[subject] = refused


def show_reports(frame: Frame, reports: Mapping[str, FollowReport | ApplyReport]) -> bool:
    """Say what was done from start to end. Return whether anything was lost or refused."""
    is_loss = False
    for name, report in reports.items():
        if isinstance(report, FollowReport):
            is_loss = is_loss or (bool(report.losses) and not frame.config.backup.allow_loss)
            did = f"{plural(report.restore_points, 'restore point')}; newest {report.restore_point or 'none'}"
        else:
            is_loss = is_loss or report.is_loss
            did = f"{plural(report.rounds, 'round')}; applied restore point {report.restore_point or 'none'}"
        frame.reporter.line(f"{name}: {plural(report.records, 'record')}, {human_size(report.bytes)}, {did}")
    frame.reporter.document({"halves": reports})
    return is_loss
