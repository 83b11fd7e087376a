"""The writer of a mirror: it follows an archive and brings the target of a flow up to each restore point."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from threading import Event
from typing import NamedTuple, Protocol

from kbackup.archive import layout
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import Manifest
from kbackup.archive.reader import Archive, open_archive
from kbackup.errors import FencedError, KbackupError, LeaseLostError, NoArchiveError
from kbackup.jobs.common import RETRIED, RoundLoop, Stop
from kbackup.kafka.control.cluster import Cluster
from kbackup.metrics import registry as metrics
from kbackup.metrics.registry import ProgressListener
from kbackup.mirror import metering
from kbackup.mirror.apply.applier import Applier
from kbackup.mirror.flow import AppliedPosition, Flow
from kbackup.mirror.internal import HeartbeatClock, InternalTopics
from kbackup.mirror.round import FlowRounds, RoundReport
from kbackup.mirror.schemas import MirrorSchemas
from kbackup.mirror.status import with_unreported
from kbackup.mirror.status_keeper import StatusKeeper
from kbackup.mirror.timetable import Timetable
from kbackup.spark.tasks import Spark
from kbackup.store.base import Store
from kbackup.types import TopicPartition


class FlowReporter(Protocol):
    """Shows what the rounds of a writer come to. `waiting` comes once while there is nothing to apply yet."""

    def waiting(self, flow: Flow, why: str) -> None: ...

    def warned(self, text: str) -> None: ...

    def applied(self, flow: Flow, report: RoundReport) -> None: ...

    def record_success(self) -> None: ...

    def failed(self, error: KbackupError, pause: float) -> None: ...


@dataclass
class ApplyReport:
    """Totals of a writer from start to end. `is_loss`: it ends with exit code 3."""

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


class OpenFlow(NamedTuple):
    """What a writer keeps open between rounds: the archive, the rounds with their clients of the target, and the
    flow's status."""

    archive: Archive
    rounds: FlowRounds
    keeper: StatusKeeper


_SLICE = 0.1  # s; a stop is noticed between two slices of a wait


@dataclass
class MirrorWriter:
    """Applies one flow: it follows an archive, round after round, and keeps the flow's status and heartbeats. `store`
    holds the archive, `state` the flow's state. To `finish` is to apply a restore point that is newer than the last
    round when asked to stop. It looks for a new restore point every `look_seconds`, by one LIST, and when `wakeup` is
    set."""

    flow: Flow
    store: Store
    state: Store
    spark: Spark
    listener: ProgressListener
    reporter: FlowReporter
    stop: Stop
    timetable: Timetable = field(default_factory=Timetable)
    finish: bool = False
    look_seconds: float = 0.5
    lease_seconds: float = 10.0
    wakeup: Event = field(default_factory=Event)

    def __post_init__(self) -> None:
        self.report = ApplyReport(self.flow.name)
        self._open: OpenFlow | None = None
        self._target = ExitStack()
        """Closes the clients of the target; `_stack` closes the heartbeats and gives the lease back."""
        self._stack = ExitStack()
        self._lease: HeldLease | None = None
        self._keeper: StatusKeeper | None = None
        self._heartbeats: HeartbeatClock | None = None
        self._reported_wait = ""
        self._reported_heartbeats = ""
        self._point = 0
        """The restore point of the last round."""
        self._has_looked = False
        """Whether the last wait ended by a look that found a new restore point."""
        self._positions: Mapping[TopicPartition, AppliedPosition] = {}
        metering.flow_begins(self.flow)

    @property
    def archive(self) -> str:
        return self.store.url

    def apply_archive(self) -> ApplyReport:
        """Apply restore points until stopped; exactly one if stopped before, with `NoArchiveError` if there is
        none."""
        try:
            if self.stop.asked:
                opened = self._open_flow()
                newest = opened.archive.restore_point("latest")
                self._run_round(opened, newest)
            else:
                self._follow_until_stopped()
            if self._keeper is not None:
                self._keeper.settle(at_once=True)
        except (FencedError, LeaseLostError):
            # Nothing is written: the status is that of the process which applies the flow now.
            raise
        except Exception as error:
            self._write_end(error)
            raise
        finally:
            # The lease goes last: a standby that gets it finds the producers closed, and no transaction open.
            self._close_target()
            self._stack.close()
        return self.report

    def _follow_until_stopped(self) -> None:
        metering.following_begins(self.flow)
        rounds = RoundLoop(self.stop)
        while rounds.begin():
            try:
                # With `finish` there is a last round, for a restore point that came since the round before.
                if not rounds.is_last or self.finish:
                    self._follow_archive(is_last=rounds.is_last)
            except RETRIED as error:
                pause = rounds.pause_after(error)
                self._write_failed_round(error)
                self.reporter.failed(error, pause)
                self.stop.wait(pause)

    def _write_failed_round(self, error: KbackupError) -> None:
        """Disconnect, and write that a round failed: the clients may be in any state, so the next one connects anew."""
        self._close_target()
        metering.round_failed(self.flow)
        self.report.retries += 1
        metrics.failed(error)
        metrics.counted.add("kbackup_retries_total")
        if self._keeper is not None:
            self._keeper.note_error(str(error))

    def _write_end(self, error: Exception) -> None:
        """Write what ended the process. Of an internal error only its class: its text may hold secrets."""
        text = str(error) if isinstance(error, KbackupError) else f"internal error: {type(error).__name__}"
        if self._keeper is not None:
            self._keeper.note_error(text)

    def _follow_archive(self, *, is_last: bool) -> None:
        """Apply the archive's newest restore point, and wait until there is something to do again."""
        try:
            opened = self._open_flow()
            # The look that ended the last wait has read the catalog already.
            if not self._has_looked:
                opened.archive.reopen()
            self._has_looked = False
        except NoArchiveError as error:
            self._close_target()
            self._wait_for_archive(error)
            return
        try:
            point = opened.archive.restore_point("latest")
        except NoArchiveError as error:
            # An archive without restore points: the target stays connected, as the first one may come at any moment.
            self._wait_for_archive(error)
            return
        if not is_last or point.number > self._point:
            self._run_round(opened, point)
        self._wait_for_work(opened)

    def _open_flow(self) -> OpenFlow:
        """Take the lease, and connect to both ends, unless that was done."""
        if self._open is None:
            archive = open_archive(self.store)
            # Before the status, whose first version is written when its keeper is made: a standby must not write over
            # the status of the process that applies the flow.
            self._take_lease()
            if self._keeper is None:
                self._keeper = StatusKeeper(self.flow, self.state, archive, self.timetable, self.reporter)
            rounds = self._connect_target()
            self._open = OpenFlow(archive, rounds, self._keeper)
        if self._lease is not None:
            self._lease.check()
        return self._open

    def _take_lease(self) -> None:
        """Take the lease of the flow, once: it is kept until the end. Wait as a standby while another writer has it."""
        if self._lease is None:
            key = layout.mirror_key(self.flow.source, self.flow.target, layout.LOCK)
            name = f"kbackup mirror --apply {self.flow.name}"
            lease = HeldLease(self.state, name, self.lease_seconds, self.stop.wait, standby=True, key=key)
            self._lease = self._stack.enter_context(lease)

    def _connect_target(self) -> FlowRounds:
        """Connect to the target. If that fails halfway, what was opened is closed again."""
        target = self.flow.client("target")
        with ExitStack() as stack:
            cluster = Cluster(target, "target")
            cluster.connect()
            internal = stack.enter_context(InternalTopics(self.flow, cluster))
            applier = stack.enter_context(Applier(self.flow, target, self.state, self.spark, self.listener))
            schemas = MirrorSchemas(self.flow, self.state)
            rounds = FlowRounds(self.flow, cluster, internal, applier, self.timetable, schemas)
            self._start_heartbeats(cluster)
            self._target = stack.pop_all()
        return rounds

    def _start_heartbeats(self, cluster: Cluster) -> None:
        """Start the clock of the heartbeats, once: it keeps its own producer when the writer connects anew."""
        if self._heartbeats is None:
            clock = HeartbeatClock(self.flow, InternalTopics(self.flow, cluster))
            self._heartbeats = self._stack.enter_context(clock)

    def _close_target(self) -> None:
        self._open = None
        self._target.close()

    def _run_round(self, opened: OpenFlow, point: Manifest) -> None:
        """Apply one restore point, and note what came of it: in the status, the metrics and for the reporter."""
        before = opened.keeper.status
        plan = opened.rounds.plan(opened.archive, point)
        # Before the records: `expire` looks at the status, and would delete what a new topic has still to apply.
        opened.keeper.begin_round(plan.topics)
        with opened.keeper.signs_of_life():
            report = opened.rounds.apply_point(opened.archive, point, plan)
        # A recreated topic that is held back is reported once, in the round that finds it.
        report = replace(report, applied=with_unreported(before, report.applied))
        self.report.add(report)
        opened.keeper.end_round(point, plan.topics, report)
        self._point = point.number
        self._count_round(report, opened.keeper.held_back)
        self.reporter.applied(self.flow, report)
        self._report_warnings(opened.rounds.internal)
        self._check_heartbeats()
        self.reporter.record_success()

    def _count_round(self, report: RoundReport, held_back: Sequence[str]) -> None:
        metering.round_applied(self.flow, self._positions, report.applied, held_back, report.topics)
        self._positions = report.applied.positions

    def _report_warnings(self, internal: InternalTopics) -> None:
        """Report what differs from the properties file, once."""
        for warning in internal.warnings:
            self.reporter.warned(warning)
        internal.warnings.clear()

    def _check_heartbeats(self) -> None:
        """Warn of heartbeats that fail, once for each error. Records are applied without them."""
        if self._heartbeats is None:
            return
        try:
            self._heartbeats.check()
        except KbackupError as error:
            if str(error) != self._reported_heartbeats:
                self._reported_heartbeats = str(error)
                self.reporter.warned(f"heartbeats of {self.flow.name} are not written: {error}")

    def _wait_for_archive(self, error: NoArchiveError) -> None:
        """Report that there is nothing to apply yet, once, and wait until it is time for another look."""
        if error.message != self._reported_wait:
            self._reported_wait = error.message
            self.reporter.waiting(self.flow, error.message)
        self._pause()

    def _wait_for_work(self, opened: OpenFlow) -> None:
        """Wait until there is a new restore point, a duty is due, or the writer is stopped."""
        while not self._pause():
            opened.archive.reopen()
            newest = opened.archive.state.newest
            if newest is not None and newest.number > self._point:
                self._has_looked = True
                return
            if opened.rounds.is_due:
                return
            opened.keeper.settle()
            if opened.keeper.is_sign_of_life_due():
                opened.keeper.give_sign_of_life()
                metering.nothing_to_apply(self.flow)
                self.reporter.record_success()

    def _pause(self) -> bool:
        """Wait until it is time for a look, or a wakeup. Return whether a stop was requested."""
        end = time.monotonic() + self.look_seconds
        while not self.stop.asked:
            left = end - time.monotonic()
            # In slices: a new restore point sets the event, a stop does not.
            if left <= 0 or self.wakeup.wait(min(left, _SLICE)):
                break
        self.wakeup.clear()
        return self.stop.asked
