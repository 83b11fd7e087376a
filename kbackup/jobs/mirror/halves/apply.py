"""The apply half of a flow: it follows an archive, round after round, and keeps the flow's status and heartbeats."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Protocol

from kbackup import metrics
from kbackup.archive.models import Manifest
from kbackup.archive.reader import Archive, open_archive
from kbackup.errors import KbackupError, NoArchiveError, StoreError
from kbackup.jobs.listen import Listener
from kbackup.jobs.mirror import metering
from kbackup.jobs.mirror.apply import Applier
from kbackup.jobs.mirror.apply.applier import Spark
from kbackup.jobs.mirror.flow import AppliedPosition, Clock, Flow
from kbackup.jobs.mirror.halves.alive import signs_of_life
from kbackup.jobs.mirror.halves.round import RoundReport, Rounds
from kbackup.jobs.mirror.halves.timetable import Timetable
from kbackup.jobs.mirror.internal import HeartbeatClock, InternalTopics
from kbackup.jobs.mirror.status import (
    FlowStatus,
    after_error,
    after_round,
    first_status,
    read_flow_status,
    round_lag,
    still_alive,
    write_status,
)
from kbackup.jobs.rounds import run_rounds
from kbackup.jobs.stop import Stop
from kbackup.kafka.admin import Cluster
from kbackup.store.base import Store
from kbackup.types import TopicPartition

LOOK_SECONDS = 0.5
"""Between looks at the archive for a new restore point; a look is one LIST."""

ALIVE = Clock(enabled=True, seconds=60.0)
"""Between signs of life of a flow, in a round and while it has nothing to do."""


class ApplyWatcher(Protocol):
    """What is told of the rounds of an apply half."""

    def waiting(self, flow: Flow, why: str) -> None:
        """There is nothing to apply yet. Told once."""
        ...

    def warned(self, text: str) -> None: ...

    def applied(self, flow: Flow, report: RoundReport) -> None: ...

    def well(self) -> None: ...

    def failed(self, error: KbackupError, pause: float) -> None: ...


@dataclass
class ApplyReport:
    """What an apply half did from start to end. `is_loss`: it ends with exit code 3."""

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


@dataclass
class _Open:
    """An archive and a target that are connected."""

    archive: Archive
    rounds: Rounds
    stack: ExitStack


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
        self._open: _Open | None = None
        self._status: FlowStatus | None = None
        self._heartbeats: HeartbeatClock | None = None
        self._stack = ExitStack()
        self._told = ""
        self._heartbeat_error = ""
        self._point = 0
        self._positions: Mapping[TopicPartition, AppliedPosition] = {}
        metering.flow_begins(self.flow)

    def run(self) -> ApplyReport:
        """Apply restore point after restore point until asked to stop; one, where it was asked before: then
        `NoArchiveError` where there is none."""
        try:
            if self.stop.asked:
                opened = self._opened()
                self._round(opened, opened.archive.restore_point("latest"))
            else:
                run_rounds(self.stop, self._attempt, self._failed)
        finally:
            self._close()
        return self.report

    def _attempt(self, last: bool) -> None:
        if last and not self.finish:
            return
        try:
            opened = self._opened()
            opened.archive.reopen()
            point = opened.archive.restore_point("latest")
        except NoArchiveError as error:
            self._close_target()
            self._wait_for_archive(error)
            return
        if not last or point.number > self._point:
            self._round(opened, point)
        self._wait(opened)

    def _wait_for_archive(self, error: NoArchiveError) -> None:
        if error.message != self._told:
            self._told = error.message
            self.watcher.waiting(self.flow, error.message)
        self.watcher.well()
        self.stop.wait(LOOK_SECONDS)

    def _round(self, opened: _Open, point: Manifest) -> None:
        before = self._status
        assert before is not None  # noqa: S101 (it is open)
        with signs_of_life(
            ALIVE.seconds, lambda: write_status(self.state, still_alive(before)), self._unwritten
        ):
            report = opened.rounds.run(opened.archive, point)
        self.report.add(report)
        self._write(after_round(before, point, report.topics, report.applied, report.refused))
        self._point = point.number
        self._count(opened, report)
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

    def _count(self, opened: _Open, report: RoundReport) -> None:
        assert self._status is not None  # noqa: S101 (it is open)
        held_back = sum(1 for topic in self._status.topics if topic.held_back)
        lag = round_lag(opened.archive.state, self._status)
        metering.round_applied(self.flow, self._positions, report.applied, lag, held_back)
        self._positions = report.applied.positions
        metrics.well()

    def _wait(self, opened: _Open) -> None:
        """Until there is a new restore point, a duty is due, or it is asked to stop."""
        while not self.stop.wait(LOOK_SECONDS):
            opened.archive.reopen()
            newest = opened.archive.state.newest
            if newest is not None and newest.number > self._point:
                return
            if not self.timetable.seconds_left(opened.rounds.clocks, ALIVE.seconds):
                return
            if self.timetable.is_due("sign of life", ALIVE):
                assert self._status is not None  # noqa: S101 (it is open)
                self._write(still_alive(self._status))
                metering.nothing_to_apply(self.flow, round_lag(opened.archive.state, self._status))
                metrics.well()
                self.watcher.well()

    def _opened(self) -> _Open:
        """Connect to both ends, unless that was done."""
        if self._open is not None:
            return self._open
        archive = open_archive(self.store)
        target = self.flow.client("target")
        with ExitStack() as stack:
            cluster = Cluster(target, "target")
            cluster.connect()
            internal = stack.enter_context(InternalTopics(self.flow, cluster))
            applier = stack.enter_context(Applier(self.flow, target, self.state, self.spark, self.listener))
            if self._heartbeats is None:
                self._heartbeats = self._stack.enter_context(
                    HeartbeatClock(self.flow, InternalTopics(self.flow, cluster))
                )
            if self._status is None:
                before = read_flow_status(self.state, self.flow.source, self.flow.target)
                self._write(first_status(self.flow, archive.info.id, before))
            rounds = Rounds(self.flow, cluster, internal, applier, self.timetable)
            self._open = _Open(archive, rounds, stack.pop_all())
        return self._open

    def _failed(self, error: KbackupError, pause: float) -> None:
        """What failed may have left clients in any state: the next round connects anew."""
        self._close_target()
        metering.round_failed(self.flow)
        self.report.retries += 1
        metrics.failed(error)
        metrics.counted.add("kbackup_retries_total")
        if self._status is not None:
            try:
                self._write(after_error(self._status, str(error)))
            except StoreError as unwritten:
                self._unwritten(unwritten)
        self.watcher.failed(error, pause)

    def _unwritten(self, error: StoreError) -> None:
        self.watcher.warned(f"flow {self.flow.name}: the status was not written: {error}")

    def _write(self, status: FlowStatus) -> None:
        write_status(self.state, status)
        self._status = status
        self.timetable.done("sign of life")

    def _close_target(self) -> None:
        if self._open is not None:
            opened, self._open = self._open, None
            opened.stack.close()

    def _close(self) -> None:
        self._close_target()
        self._stack.close()
