"""Print the rounds of a mirror's halves on stderr while they run, and their totals at the end."""

from __future__ import annotations

from collections.abc import Mapping

from kbackup.cli.common.frame import Frame
from kbackup.cli.common.human import human_size, plural
from kbackup.cli.follow import RoundReporter
from kbackup.jobs.backup.follow import FollowReport
from kbackup.jobs.mirror.flow import Flow
from kbackup.jobs.mirror.halves.reports import ApplyReport
from kbackup.jobs.mirror.halves.round import RoundReport
from kbackup.metrics.server import Health


class TakeRoundReporter(RoundReporter):
    """Prints the result of each round of a take half."""

    def __init__(self, frame: Frame, health: Health | None, name: str) -> None:
        super().__init__(frame, health, f"{name.partition(' into ')[0]}: ")


class ApplyRoundReporter(RoundReporter):
    """Prints the result of each round of an apply half, and updates health and metrics file."""

    def __init__(self, frame: Frame, health: Health | None) -> None:
        super().__init__(frame, health)
        self._refused: dict[str, frozenset[str]] = {}

    def _count_success(self) -> None:
        """Do nothing: flows have the metric `kbackup_mirror_last_round_timestamp_seconds`."""

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
        messages = [
            *(r.message for r in report.applied.recreated),
            *(r.message for r in report.applied.too_late),
        ]
        incidents = tuple(f"flow {flow.name}: {message}" for message in messages)
        for text in incidents:
            self._reporter.warning(text)
        if incidents:
            self._notify_loss(incidents, report)
        for deleted in report.applied.deleted:
            self._reporter.warning(f"flow {flow.name}: {deleted.message}")
        self._warn_of_refusals(flow, report)
        if report.applied.records:
            self._reporter.note(
                f"flow {flow.name}: restore point {report.restore_point} applied, "
                f"{plural(report.applied.records, 'record')}, {human_size(report.applied.bytes)}"
            )

    def _warn_of_refusals(self, flow: Flow, report: RoundReport) -> None:
        """Print each refusal once, until it ends. A round reports only the subjects that it set."""
        for subject in report.refused:
            refused = frozenset(report.refusals(subject))
            for text in sorted(refused - self._refused.get(subject, frozenset())):
                self._reporter.warning(f"flow {flow.name}: {text}")
            self._refused[subject] = refused


def show_reports(frame: Frame, reports: Mapping[str, FollowReport | ApplyReport]) -> bool:
    """Print the totals of each half. Return whether anything was lost or refused."""
    is_loss = False
    for name, report in reports.items():
        if isinstance(report, FollowReport):
            is_loss = is_loss or (bool(report.losses) and not frame.config.backup.allow_loss)
            summary = (
                f"{plural(report.restore_points, 'restore point')}; newest {report.restore_point or 'none'}"
            )
        else:
            is_loss = is_loss or report.is_loss
            summary = (
                f"{plural(report.rounds, 'round')}; applied restore point {report.restore_point or 'none'}"
            )
        frame.reporter.line(
            f"{name}: {plural(report.records, 'record')}, {human_size(report.bytes)}, {summary}"
        )
    frame.reporter.document({"halves": reports})
    return is_loss
