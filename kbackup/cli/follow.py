"""`kbackup backup --follow`: write restore points until stopped."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from kbackup.cli.common.frame import Frame
from kbackup.cli.common.human import human_duration, human_size, plural
from kbackup.cli.common.listener import ShownProgress
from kbackup.cli.common.session import archive_store, show_connecting, spark_session
from kbackup.cli.common.stop_signals import stop_at_signals
from kbackup.errors import EXIT_LOSS, EXIT_OK, KbackupError, UsageError
from kbackup.jobs.common.stop import Stop
from kbackup.metrics import registry as metrics
from kbackup.metrics.registry import counted

if TYPE_CHECKING:
    from kbackup.config.jobs import Follow
    from kbackup.jobs.backup.follow import FollowReport
    from kbackup.jobs.backup.job import BackupReport
    from kbackup.metrics.server import Health


class RoundReporter:
    """Prints the result of each round on stderr, and updates health and metrics file.

    `label` begins each line, if a process follows several clusters."""

    def __init__(self, frame: Frame, health: Health | None, label: str = "") -> None:
        self._reporter, self._metrics, self._health = frame.reporter, frame.metrics, health
        self._label = label
        self._notifier, self._is_failing = frame.notifier, False
        self._allow_loss = frame.config.backup.allow_loss

    def committed(self, report: BackupReport) -> None:
        totals = report.totals
        losses = tuple(f"loss: {loss.message}" for loss in report.losses)
        for text in (*report.warnings, *losses):
            self._reporter.warning(f"{self._label}{text}")
        if losses and not self._allow_loss:
            self._notify_loss(losses, report)
        waiting = f", {plural(report.held_back, 'partition')} held back" if report.held_back else ""
        self._reporter.note(
            f"{self._label}restore point {report.restore_point}: {plural(totals.records, 'new record')}, "
            f"{human_size(totals.bytes)} in {plural(totals.segments, 'segment')}{waiting}"
        )

    def _notify_loss(self, messages: tuple[str, ...], report: object) -> None:
        if self._notifier is not None:
            self._notifier.records_lost(tuple(f"{self._label}{message}" for message in messages), report)

    def well(self) -> None:
        self._count_success()
        if self._is_failing and self._notifier is not None:
            self._notifier.rounds_recovered()
        self._is_failing = False
        if self._health is not None:
            self._health.well()
        self._write()

    def _count_success(self) -> None:
        metrics.well()

    def failed(self, error: KbackupError, pause: float) -> None:
        self._reporter.warning(f"{self._label}{error}; retrying in {human_duration(pause)}")
        if not self._is_failing and self._notifier is not None:
            self._notifier.round_failed(error)
        self._is_failing = True
        if self._health is not None:
            self._health.failed(error.message)
        self._write()

    def _write(self) -> None:
        if self._metrics is None:
            return
        try:
            self._metrics.write(counted.snapshot())
        except OSError as error:
            self._reporter.warning(f"the metrics were not written: {error}")


def follow_until_stopped(frame: Frame) -> int:
    config = frame.config
    store = archive_store(frame)
    with ExitStack() as stack:
        health: Health | None = None
        if config.follow.listen:
            check_stale_after(config.follow)
            from kbackup.metrics.server import Health, Server

            health = Health(config.follow.stale_after_seconds)
            server = stack.enter_context(Server(config.follow.listen, health))
            frame.reporter.note(f"metrics on port {server.port}")
        show_connecting(frame, "source")
        session = stack.enter_context(spark_session(config, at_once=True, reporter=frame.reporter))
        shown = stack.enter_context(ShownProgress(frame.reporter))
        stop = stack.enter_context(closing(Stop()))
        stack.enter_context(stop_at_signals(stop))
        from kbackup.jobs.backup.follow import Follower  # while the JVM starts

        follower = Follower(
            config.backup,
            config.follow,
            config.source,
            store,
            session,
            shown,
            RoundReporter(frame, health),
            stop,
        )
        report = follower.follow()
    _show(report, frame)
    return EXIT_LOSS if report.losses and not config.backup.allow_loss else EXIT_OK


def check_stale_after(follow: Follow) -> None:
    """Raise `UsageError` for a limit under which a healthy process counts as stale."""
    if follow.stale_after_seconds <= follow.interval_seconds:
        raise UsageError(
            f"follow.stale_after_seconds is {human_duration(follow.stale_after_seconds)}, no longer than the interval",
            "give --stale-after more than --interval: else /healthz answers 503 between rounds",
        )


def _show(report: FollowReport, frame: Frame) -> None:
    frame.reporter.line(
        f"stopped after {human_duration(report.seconds)}: "
        f"{plural(report.restore_points, 'restore point')} of {report.archive}, "
        f"{plural(report.records, 'new record')}, {human_size(report.bytes)} "
        f"({human_size(report.stored_bytes)} stored); newest {report.restore_point or 'none'}"
    )
    frame.reporter.document(report)
