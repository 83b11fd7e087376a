"""What `kbackup mirror` shows of the rounds of its apply halves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbackup.cli.backup import RoundReporter
from kbackup.util.text import human_size, plural

if TYPE_CHECKING:
    from kbackup.cli.common.command_context import CommandContext
    from kbackup.metrics.server import Health
    from kbackup.mirror.apply.pending import Applied
    from kbackup.mirror.flow import Flow
    from kbackup.mirror.round import RoundReport


class ApplyRoundReporter(RoundReporter):
    """Prints the result of each round of an apply half, and updates health and metrics file."""

    def __init__(self, context: CommandContext, health: Health | None) -> None:
        super().__init__(context, health)
        self._refused: dict[str, frozenset[str]] = {}
        """The refusals of each subject as of the last round that set it."""
        self._held_back: frozenset[str] = frozenset()

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
        name = f"flow {flow.name}"
        self._show_topics(name, report)
        self._show_incidents(name, report)
        self._show_refusals(name, report)
        self._show_released(name, report)
        self._show_records(name, report.restore_point, report.applied)

    def _show_topics(self, name: str, report: RoundReport) -> None:
        for topic in report.created:
            self._reporter.note(f"{name}: created topic {topic}")
        for topic, partitions in report.grown.items():
            self._reporter.note(f"{name}: topic {topic} has {plural(partitions, 'partition')} now")

    def _show_incidents(self, name: str, report: RoundReport) -> None:
        """Warn of what is lost, recreated or deleted; of losses and recreated topics, notify as well."""
        applied = report.applied
        incidents = [f"{name}: {recreated.message}" for recreated in applied.recreated]
        incidents += [f"{name}: {lost.message}" for lost in applied.too_late]
        self._reporter.warning(*incidents)
        if incidents:
            self._notify_loss(tuple(incidents), report)
        for deleted in applied.deleted:
            self._reporter.warning(f"{name}: {deleted.message}")
        for unmapped in applied.unmapped:
            self._reporter.warning(f"{name}: {unmapped.words}")

    def _show_refusals(self, name: str, report: RoundReport) -> None:
        """Warn of each refusal once, until it ends. A round reports only the subjects that it set."""
        for subject in report.refused:
            refused = frozenset(report.refusals(subject))
            known = self._refused.get(subject, frozenset())
            for text in sorted(refused - known):
                self._reporter.warning(f"{name}: {text}")
            self._refused[subject] = refused

    def _show_released(self, name: str, report: RoundReport) -> None:
        """Note the topics that were held back until this round."""
        if "topics" not in report.refused:
            return
        held_back = frozenset(report.refused["topics"])
        for topic in sorted(self._held_back - held_back):
            self._reporter.note(f"{name}: topic {topic} is no longer held back")
        self._held_back = held_back

    def _show_records(self, name: str, restore_point: int, applied: Applied) -> None:
        if applied.records:
            self._reporter.note(
                f"{name}: restore point {restore_point} applied, {plural(applied.records, 'record')}, "
                f"{human_size(applied.bytes)}"
            )
