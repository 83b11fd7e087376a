"""The apply half of a flow: it follows an archive, round after round, and keeps the flow's status and heartbeats."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from kbackup.archive.models import Manifest
from kbackup.archive.reader import open_archive
from kbackup.errors import FencedError, KbackupError, NoArchiveError
from kbackup.jobs.common.rounds import run_rounds
from kbackup.jobs.common.stop import Stop
from kbackup.jobs.mirror import metering
from kbackup.jobs.mirror.apply.applier import Spark
from kbackup.jobs.mirror.flow import AppliedPosition, Flow
from kbackup.jobs.mirror.halves.connection import Connection, connect
from kbackup.jobs.mirror.halves.reports import ApplyReport, ApplyWatcher
from kbackup.jobs.mirror.halves.round import RoundReport
from kbackup.jobs.mirror.halves.status_keeper import ALIVE, SIGN_OF_LIFE, StatusKeeper
from kbackup.jobs.mirror.halves.timetable import Timetable
from kbackup.jobs.mirror.internal import HeartbeatClock, InternalTopics
from kbackup.jobs.mirror.status import with_unreported
from kbackup.kafka.admin.cluster import Cluster
from kbackup.metrics import registry as metrics
from kbackup.metrics.events import Listener
from kbackup.store.base import Store
from kbackup.types import TopicPartition

LOOK_SECONDS = 0.5
"""Between looks at the archive for a new restore point; a look is one LIST."""


@dataclass
class ApplyHalf:
    """Applies one flow. `store` is that of the archive, `state` that of the flow's state. To `finish` is to apply a
    restore point that is newer than the last round when asked to stop."""

    flow: Flow
    store: Store
    state: Store
    spark: Spark
    listener: Listener
    watcher: ApplyWatcher
    stop: Stop
    timetable: Timetable = field(default_factory=Timetable)
    finish: bool = False

    def __post_init__(self) -> None:
        self.report = ApplyReport(self.flow.name)
        self._open: Connection | None = None
        self._keeper: StatusKeeper | None = None
        self._heartbeats: HeartbeatClock | None = None
        self._stack = ExitStack()
        self._reported = ""
        self._heartbeat_error = ""
        self._point = 0
        self._positions: Mapping[TopicPartition, AppliedPosition] = {}
        metering.flow_begins(self.flow)

    @property
    def archive(self) -> str:
        return self.store.url

    def run(self) -> ApplyReport:
        """Apply restore points until stopped; exactly one if stopped before, with `NoArchiveError` where there is
        none."""
        try:
            if self.stop.asked:
                opened, keeper = self._opened()
                self._round(opened, keeper, opened.archive.restore_point("latest"))
            else:
                metering.following_begins(self.flow)
                run_rounds(self.stop, self._attempt, self._failed)
        except FencedError:
            raise  # the status is that of the process which applies the flow now
        except Exception as error:
            self._ends_with(error)
            raise
        finally:
            self._close()
        return self.report

    def _attempt(self, last: bool) -> None:
        if last and not self.finish:
            return
        try:
            opened, keeper = self._opened()
            opened.archive.reopen()
        except NoArchiveError as error:
            self._close_target()
            self._wait_for_archive(error)
            return
        try:
            point = opened.archive.restore_point("latest")
        except NoArchiveError as error:  # the target stays connected meanwhile
            self._wait_for_archive(error)
            return
        if not last or point.number > self._point:
            self._round(opened, keeper, point)
        self._wait(opened, keeper)

    def _wait_for_archive(self, error: NoArchiveError) -> None:
        if error.message != self._reported:
            self._reported = error.message
            self.watcher.waiting(self.flow, error.message)
        self.stop.wait(LOOK_SECONDS)

    def _round(self, opened: Connection, keeper: StatusKeeper, point: Manifest) -> None:
        before = keeper.status
        plan = opened.rounds.plan(opened.archive, point)
        with keeper.round(plan):
            report = opened.rounds.run(opened.archive, point, plan)
        report = replace(report, applied=with_unreported(before, report.applied))
        self.report.add(report)
        keeper.applied(point, plan, report)
        self._point = point.number
        self._count(report, sum(1 for topic in keeper.status.topics if topic.held_back))
        self.watcher.applied(self.flow, report)
        for warning in opened.rounds.internal.warnings:
            self.watcher.warned(warning)
        opened.rounds.internal.warnings.clear()
        self._check_heartbeats()
        self.watcher.well()

    def _check_heartbeats(self) -> None:
        """Warn of heartbeats that fail, once for each error. Records are applied without them."""
        try:
            if self._heartbeats is not None:
                self._heartbeats.check()
        except KbackupError as error:
            if str(error) != self._heartbeat_error:
                self._heartbeat_error = str(error)
                self.watcher.warned(f"heartbeats of {self.flow.name} are not written: {error}")

    def _count(self, report: RoundReport, held_back: int) -> None:
        metering.round_applied(self.flow, self._positions, report.applied, held_back, report.topics)
        self._positions = report.applied.positions

    def _wait(self, opened: Connection, keeper: StatusKeeper) -> None:
        """Wait until there is a new restore point, a duty is due, or the half is stopped."""
        while not self.stop.wait(LOOK_SECONDS):
            opened.archive.reopen()
            newest = opened.archive.state.newest
            if newest is not None and newest.number > self._point:
                return
            if not self.timetable.seconds_idle(opened.rounds.clocks, ALIVE.seconds):
                return
            if self.timetable.is_due(SIGN_OF_LIFE, ALIVE):
                keeper.alive()
                metering.nothing_to_apply(self.flow)
                self.watcher.well()

    def _opened(self) -> tuple[Connection, StatusKeeper]:
        """Connect to both ends, unless that was done."""
        if self._open is None or self._keeper is None:
            archive = open_archive(self.store)
            if self._keeper is None:
                self._keeper = StatusKeeper(
                    self.flow, self.state, archive, self.timetable, self.watcher.warned
                )
            self._open = connect(self.flow, archive, self.state, self.spark, self.listener, self.timetable)
            self._start_heartbeats(self._open.cluster)
        return self._open, self._keeper

    def _start_heartbeats(self, cluster: Cluster) -> None:
        """Start the clock of the heartbeats. It keeps its own producer when the half connects anew."""
        if self._heartbeats is None:
            self._heartbeats = self._stack.enter_context(
                HeartbeatClock(self.flow, InternalTopics(self.flow, cluster))
            )

    def _failed(self, error: KbackupError, pause: float) -> None:
        """Report a round that failed, and disconnect: clients may be in any state, so the next round connects anew."""
        self._close_target()
        metering.round_failed(self.flow)
        self.report.retries += 1
        metrics.failed(error)
        metrics.counted.add("kbackup_retries_total")
        if self._keeper is not None:
            self._keeper.failed(str(error))
        self.watcher.failed(error, pause)

    def _ends_with(self, error: Exception) -> None:
        """Write the error that ended the process to the status; of an internal error only its class, because its
        text may hold secrets."""
        if self._keeper is not None:
            text = (
                str(error) if isinstance(error, KbackupError) else f"internal error: {type(error).__name__}"
            )
            self._keeper.failed(text)

    def _close_target(self) -> None:
        if self._open is not None:
            opened, self._open = self._open, None
            opened.stack.close()

    def _close(self) -> None:
        self._close_target()
        self._stack.close()
