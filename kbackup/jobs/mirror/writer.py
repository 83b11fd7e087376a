"""The apply half of a mirror: its timetable, its rounds, and the reports by which others see that it is alive."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from datetime import datetime
from threading import Event
from typing import Protocol

import msgspec

from kbackup.archive import layout
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import SHARE, Manifest
from kbackup.archive.reader import Archive, open_archive
from kbackup.errors import FencedError, KbackupError, LeaseLostError, NoArchiveError
from kbackup.jobs.common import Stop, run_rounds
from kbackup.jobs.mirror import metering
from kbackup.jobs.mirror.apply.applier import Applier, Spark
from kbackup.jobs.mirror.apply.pending import Applied
from kbackup.jobs.mirror.flow import (
    AppliedPosition,
    Clock,
    Flow,
    FlowStatus,
    RemoteTopic,
    read_flow_status,
    write_status,
)
from kbackup.jobs.mirror.internal import HeartbeatClock, InternalTopics, emit_checkpoints, emit_offset_syncs
from kbackup.jobs.mirror.positions import sync_group_offsets
from kbackup.jobs.mirror.schemas import MirrorSchemas, TopicSchemas
from kbackup.jobs.mirror.settings import TopicsReport, sync_acls, sync_configs, sync_topics
from kbackup.jobs.mirror.status import (
    after_error,
    after_round,
    first_status,
    news_of,
    planned,
    round_lag,
    with_unreported,
)
from kbackup.jobs.mirror.topics import MirrorTopicPlan, SkippedTopic, plan_topics, replicated, topics_of_point
from kbackup.kafka.admin.cluster import Cluster
from kbackup.metrics import registry as metrics
from kbackup.metrics.registry import ProgressListener
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from kbackup.util.times import now


@dataclass
class Timetable:
    """By duty, when it was done last. `now` is in seconds. A duty that failed was not done, and stays due."""

    now: Callable[[], float] = time.monotonic
    _done: dict[str, float] = field(default_factory=dict)

    def is_due(self, duty: str, clock: Clock, *, once: bool = False) -> bool:
        """Return whether a duty is due. `once`: a duty whose clock is not enabled is due the first time."""
        if duty not in self._done:
            return clock.enabled or once
        return clock.enabled and self.now() >= self._done[duty] + clock.seconds

    def done(self, duty: str) -> None:
        self._done[duty] = self.now()

    def forget(self, *duties: str) -> None:
        """Mark duties as never done: each is due at once."""
        for duty in duties:
            self._done.pop(duty, None)

    def seconds_idle(self, clocks: dict[str, Clock], most: float) -> float:
        """Return how long none of the duties is due, `most` at most."""
        ends = [self._done.get(duty, 0.0) + clock.seconds for duty, clock in clocks.items() if clock.enabled]
        return max(0.0, min([most, *(end - self.now() for end in ends)]))


ALIVE = Clock(enabled=True, seconds=60.0)
"""Between signs of life of a flow, in a round and while it has nothing to do."""

SIGN_OF_LIFE = "sign of life"

_PROGRESS = Clock(enabled=True, seconds=5.0)  # between documents that tell of nothing but progress


class StatusKeeper:
    """The status of one flow while its apply half runs. `status` is that of now, `settle` writes it.

    The keeper has a view of its own on the archive: what is committed while a round runs counts as behind, and the
    round itself goes on with the catalog that it began with."""

    def __init__(
        self, flow: Flow, state: Store, archive: Archive, timetable: Timetable, warn: Callable[[str], None]
    ) -> None:
        self._flow, self._state, self._timetable, self._warn = flow, state, timetable, warn
        self._archive = Archive(archive.store, archive.info, archive.committed)
        self.status = first_status(flow, archive.info.id, read_flow_status(state, flow.source, flow.target))
        self._write(self.status)
        self.count_lag()

    def alive(self) -> None:
        """Give a sign of life."""
        self._write(msgspec.structs.replace(self.status, written_at=now()))
        self.count_lag()

    @contextmanager
    def round(self, plan: MirrorTopicPlan) -> Iterator[None]:
        """Write the topics that a round begins with, and give signs of life while it runs, so that `expire` retains the
        records that are not applied yet. One that can't be written is repeated at the next time; the last error is a
        warning at the end, an internal error is raised there."""
        status = planned(self.status, plan.topics)
        if status != self.status:
            self._write(status)
        done = Event()

        def beat() -> KbackupError | None:
            refused: KbackupError | None = None
            while not done.wait(ALIVE.seconds):
                try:
                    self.alive()
                except KbackupError as error:
                    refused = error
            return refused

        with ThreadPoolExecutor(1, "sign-of-life") as pool:
            beating = pool.submit(copy_context().run, beat)  # metrics count for the same archive
            try:
                yield
            finally:
                done.set()
                if (refused := beating.result()) is not None:
                    self._unwritten(refused)

    def applied(self, point: Manifest, plan: MirrorTopicPlan, report: RoundReport) -> None:
        before = self.status
        self.status = after_round(before, point, plan.topics, report.applied, report.refused)
        self._pending = True
        self.settle(at_once=news_of(before) != news_of(self.status))

    def settle(self, *, at_once: bool = False) -> None:
        """Write the status of the last rounds, unless that is done or the last one was written just now."""
        if self._pending and (at_once or self._timetable.is_due(SIGN_OF_LIFE, _PROGRESS)):
            self._write(self.status)
            self.count_lag()

    def failed(self, message: str) -> None:
        """A round failed, or an error ends the process. The flow falls behind meanwhile."""
        try:
            try:
                self._write(after_error(self.status, message))
            finally:
                self.count_lag()
        except KbackupError as error:
            self._unwritten(error)

    def count_lag(self) -> None:
        """Measure how far the flow is behind; where the archive can't be read, by its last known state."""
        try:
            self._archive.reopen()
        finally:
            metering.lag_now(self._flow, round_lag(self._archive.state, self.status))

    def _write(self, status: FlowStatus) -> None:
        write_status(self._state, status)
        self.status = status
        self._pending = False
        self._timetable.done(SIGN_OF_LIFE)

    def _unwritten(self, error: KbackupError) -> None:
        self._warn(f"flow {self._flow.name}: the status was not written: {error}")


Refused = Mapping[str, Mapping[str, str] | Iterable[str]]
"""The target's reasons by subject, as far as a round set it: 'topics', 'configs', 'acls', 'groups'."""


@dataclass(frozen=True)
class RoundReport:
    flow: str
    restore_point: int
    topics: tuple[RemoteTopic, ...]
    skipped: tuple[SkippedTopic, ...]
    applied: Applied
    created: tuple[str, ...] = ()
    grown: Mapping[str, int] = field(default_factory=dict)
    configured: tuple[str, ...] = ()
    acls: tuple[str, ...] = ()
    offset_syncs: int = 0
    checkpoints: int = 0
    group_offsets: int = 0
    refused: Refused = field(default_factory=dict)

    @property
    def is_loss(self) -> bool:
        """Return whether the process ends with exit code 3 for this round."""
        told = ("topics", "configs", "acls", "schemas")
        return self.applied.is_loss or any(self.refused.get(subject) for subject in told)

    def refusals(self, subject: str) -> list[str]:
        """Return the target's refusals of a subject, in words."""
        reasons = self.refused[subject]
        if isinstance(reasons, Mapping):
            return [f"{subject}: {name}: {why}" for name, why in reasons.items()]
        return [f"{subject}: {why}" for why in reasons]


@dataclass
class Rounds:
    """Rounds of one flow onto one target. A new object knows no topics and no groups yet: both are due at once."""

    flow: Flow
    cluster: Cluster
    internal: InternalTopics
    applier: Applier
    timetable: Timetable
    schemas: MirrorSchemas
    _known: frozenset[str] = frozenset()
    _groups: frozenset[str] = frozenset()
    _made: tuple[tuple[str, int], ...] | None = None

    def __post_init__(self) -> None:
        self.topic_schemas = TopicSchemas(self.schemas)
        self.timetable.forget("topics", "groups")

    @property
    def clocks(self) -> dict[str, Clock]:
        """The duties that are due by the clock, without a new restore point."""
        flow = self.flow
        return {
            "topics": flow.refresh_topics,
            "configs": flow.sync_topic_configs,
            "acls": flow.sync_topic_acls,
            "groups": flow.refresh_groups,
            "checkpoints": flow.emit_checkpoints,
            "group offsets": flow.sync_group_offsets,
        }

    @property
    def is_due(self) -> bool:
        """Return whether a round has something to do without a new restore point: a duty, or a topic that is held back
        and to be tried again."""
        return not self.timetable.seconds_idle(self.clocks, ALIVE.seconds) or bool(self.applier.held.due)

    def plan(self, archive: Archive, point: Manifest) -> MirrorTopicPlan:
        """Return the topics of a restore point that the flow selects, also those that it does not know yet."""
        existing = self.cluster.topic_names() if any(t.state == "deleted" for t in point.topics) else ()
        return plan_topics(self.flow, topics_of_point(point, archive.metadata(point)), existing)

    def run(self, archive: Archive, point: Manifest, plan: MirrorTopicPlan) -> RoundReport:
        """Bring the target to a restore point, in the order that the design gives: topics, configs, records, positions,
        ACLs."""
        flow = self.flow
        if self._is_due("topics", once=True):  # only then are new topics noticed
            self._known = frozenset(topic.source for topic in plan.topics)
            self._made = None
            self.timetable.done("topics")
        topics = tuple(topic for topic in plan.topics if topic.source in self._known)
        looked = self._make(topics)
        made = looked or TopicsReport((), {}, {})
        changed = {*made.created, *made.grown}
        served = tuple(topic for topic in topics if topic.remote not in made.refused)
        refused: dict[str, Mapping[str, str] | Iterable[str]] = {}
        configured: tuple[str, ...] = ()
        if self._is_due("configs"):
            configs = sync_configs(flow, served, self.cluster)
            configured, refused["configs"] = tuple(configs.changed), configs.refused
            changed |= configs.changed.keys()
            self.timetable.done("configs")
        schemas, withheld = self.topic_schemas.register(archive, point, served)
        refused["schemas"] = self.schemas.uncovered
        applied = self.applier.apply(archive, point, served, looked, schemas, changed, withheld)
        syncs = emit_offset_syncs(flow, self.internal, served, applied.positions, self.applier.map)
        checkpoints, offsets = self._positions(archive, point, served, applied, refused)
        created: tuple[str, ...] = ()
        if self._is_due("acls"):
            acls = sync_acls(flow, archive.metadata(point).acls, replicated(flow), self.cluster)
            created, refused["acls"] = acls.created, acls.refused
            self.timetable.done("acls")
        return RoundReport(
            flow=flow.name,
            restore_point=point.number,
            topics=topics,
            skipped=plan.skipped,
            applied=applied,
            created=made.created,
            grown=made.grown,
            configured=configured,
            acls=created,
            offset_syncs=syncs,
            checkpoints=checkpoints,
            group_offsets=offsets,
            refused={"topics": {**made.refused, **applied.refused}, **refused},
        )

    def _is_due(self, duty: str, *, once: bool = False) -> bool:
        return self.timetable.is_due(duty, self.clocks[duty], once=once)

    def _make(self, topics: Sequence[RemoteTopic]) -> TopicsReport | None:
        """Create topics and add partitions; None if that was done for the same topics before."""
        shape = tuple((topic.remote, topic.partitions) for topic in topics)
        if shape == self._made:
            return None
        report = sync_topics(self.flow, topics, self.cluster)
        self._made = None if report.refused else shape
        return report

    def _positions(
        self,
        archive: Archive,
        point: Manifest,
        topics: Sequence[RemoteTopic],
        applied: Applied,
        refused: dict[str, Mapping[str, str] | Iterable[str]],
    ) -> tuple[int, int]:
        """Write the checkpoints that are due, and groups of the target. Return how many of each."""
        if self._is_due("groups", once=True):
            groups = (g for g in archive.groups(point).groups if g.type != SHARE)  # checkpoints have no type
            self._groups = frozenset(g.group for g in groups if self.flow.groups(g.group))
            self.timetable.done("groups")
        due, due_groups = self._is_due("checkpoints"), self._is_due("group offsets")
        if not due and not due_groups:
            return 0, 0
        flow = replace(self.flow, groups=lambda name: name in self._groups)
        current, written = emit_checkpoints(
            flow, self.internal, archive, point, topics, applied.positions, self.applier.map
        )
        self.timetable.done("checkpoints")
        captured_at = datetime.fromisoformat(archive.groups(point).captured_at).timestamp()
        metering.checkpoints_written(self.flow, {c.group for c in written}, captured_at, {c.group for c in current})
        if not due_groups:
            return len(written), 0
        synced = sync_group_offsets(current, self.cluster)
        refused["groups"] = synced.held_back
        self.timetable.done("group offsets")
        return len(written), sum(synced.written.values())


class ApplyWatcher(Protocol):
    """Receives the events of an apply half's rounds. `waiting` reports once that there is nothing to apply yet."""

    def waiting(self, flow: Flow, why: str) -> None: ...

    def warned(self, text: str) -> None: ...

    def applied(self, flow: Flow, report: RoundReport) -> None: ...

    def record_success(self) -> None: ...

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


_SLICE = 0.1  # s; a stop is noticed between two slices of a wait


@dataclass
class MirrorWriter:
    """Applies one flow: it follows an archive, round after round, and keeps the flow's status and heartbeats. `store`
    holds the archive, `state` the flow's state. To `finish` is to apply a restore point that is newer than the last
    round when asked to stop. It looks for a new restore point every `look_seconds`, by one LIST, and where `wakeup`
    rings."""

    flow: Flow
    store: Store
    state: Store
    spark: Spark
    listener: ProgressListener
    watcher: ApplyWatcher
    stop: Stop
    timetable: Timetable = field(default_factory=Timetable)
    finish: bool = False
    look_seconds: float = 0.5
    lease_seconds: float = 10.0
    wakeup: Event = field(default_factory=Event)

    def __post_init__(self) -> None:
        self.report = ApplyReport(self.flow.name)
        self._open: tuple[Archive, Rounds] | None = None
        self._target = ExitStack()
        """Closes the clients of the target; `_stack` closes the heartbeats."""
        self._stack = ExitStack()
        self._lease: HeldLease | None = None
        self._keeper: StatusKeeper | None = None
        self._heartbeats: HeartbeatClock | None = None
        self._reported = ""
        self._heartbeat_error = ""
        self._point, self._looked = 0, False
        self._positions: Mapping[TopicPartition, AppliedPosition] = {}
        metering.flow_begins(self.flow)

    @property
    def archive(self) -> str:
        return self.store.url

    def run(self) -> ApplyReport:
        """Apply restore points until stopped; exactly one if stopped before, with `NoArchiveError` if there is
        none."""
        try:
            if self.stop.asked:
                archive, rounds, keeper = self._opened()
                self._round(archive, rounds, keeper, archive.restore_point("latest"))
            else:
                metering.following_begins(self.flow)
                run_rounds(self.stop, self._attempt, self._failed)
            if self._keeper is not None:
                self._keeper.settle(at_once=True)
        except (FencedError, LeaseLostError):
            raise  # the status is that of the process which applies the flow now
        except Exception as error:
            if self._keeper is not None:  # of an internal error only its class: its text may hold secrets
                text = str(error) if isinstance(error, KbackupError) else f"internal error: {type(error).__name__}"
                self._keeper.failed(text)
            raise
        finally:
            self._close_target()
            self._stack.close()
        return self.report

    def _attempt(self, last: bool) -> None:
        if last and not self.finish:
            return
        try:
            archive, rounds, keeper = self._opened()
            if not self._looked:
                archive.reopen()
            self._looked = False
        except NoArchiveError as error:
            self._close_target()
            self._wait_for_archive(error)
            return
        try:
            point = archive.restore_point("latest")
        except NoArchiveError as error:  # the target stays connected meanwhile
            self._wait_for_archive(error)
            return
        if not last or point.number > self._point:
            self._round(archive, rounds, keeper, point)
        self._wait(archive, rounds, keeper)

    def _wait_for_archive(self, error: NoArchiveError) -> None:
        if error.message != self._reported:
            self._reported = error.message
            self.watcher.waiting(self.flow, error.message)
        self._pause()

    def _round(self, archive: Archive, rounds: Rounds, keeper: StatusKeeper, point: Manifest) -> None:
        before = keeper.status
        plan = rounds.plan(archive, point)
        with keeper.round(plan):
            report = rounds.run(archive, point, plan)
        applied = with_unreported(before, report.applied)
        report = replace(report, applied=applied)
        totals = self.report
        totals.restore_point = report.restore_point
        totals.rounds += 1
        totals.records += applied.records
        totals.bytes += applied.bytes
        totals.is_loss = totals.is_loss or report.is_loss
        keeper.applied(point, plan, report)
        self._point = point.number
        held_back = [topic.remote for topic in keeper.status.topics if topic.held_back]
        metering.round_applied(self.flow, self._positions, applied, held_back, report.topics)
        self._positions = applied.positions
        self.watcher.applied(self.flow, report)
        for warning in rounds.internal.warnings:
            self.watcher.warned(warning)
        rounds.internal.warnings.clear()
        self._check_heartbeats()
        self.watcher.record_success()

    def _check_heartbeats(self) -> None:
        """Warn of heartbeats that fail, once for each error. Records are applied without them."""
        try:
            if self._heartbeats is not None:
                self._heartbeats.check()
        except KbackupError as error:
            if str(error) != self._heartbeat_error:
                self._heartbeat_error = str(error)
                self.watcher.warned(f"heartbeats of {self.flow.name} are not written: {error}")

    def _pause(self) -> bool:
        """Wait until it is time for a look, or a wakeup comes. Return whether a stop was requested."""
        end = time.monotonic() + self.look_seconds
        while not self.stop.asked and (left := end - time.monotonic()) > 0 and not self.wakeup.wait(min(left, _SLICE)):
            pass
        self.wakeup.clear()
        return self.stop.asked

    def _wait(self, archive: Archive, rounds: Rounds, keeper: StatusKeeper) -> None:
        """Wait until there is a new restore point, a duty is due, or the half is stopped."""
        while not self._pause():
            archive.reopen()
            newest = archive.state.newest
            if newest is not None and newest.number > self._point:
                self._looked = True
                return
            if rounds.is_due:
                return
            keeper.settle()
            if self.timetable.is_due(SIGN_OF_LIFE, ALIVE):
                keeper.alive()
                metering.nothing_to_apply(self.flow)
                self.watcher.record_success()

    def _opened(self) -> tuple[Archive, Rounds, StatusKeeper]:
        """Connect to both ends, unless that was done. The clock of the heartbeats keeps its own producer when the half
        connects anew."""
        if self._open is None or self._keeper is None:
            archive = open_archive(self.store)
            if self._lease is None:
                key = layout.mirror_key(self.flow.source, self.flow.target, layout.LOCK)
                pause, name = self.stop.wait, f"kbackup mirror --apply {self.flow.name}"
                lease = HeldLease(self.state, name, self.lease_seconds, pause, standby=True, key=key)
                self._lease = self._stack.enter_context(lease)
            if self._keeper is None:
                self._keeper = StatusKeeper(self.flow, self.state, archive, self.timetable, self.watcher.warned)
            target = self.flow.client("target")
            with ExitStack() as stack:
                cluster = Cluster(target, "target")
                cluster.connect()
                internal = stack.enter_context(InternalTopics(self.flow, cluster))
                applier = stack.enter_context(Applier(self.flow, target, self.state, self.spark, self.listener))
                schemas = MirrorSchemas(self.flow, self.state)
                rounds = Rounds(self.flow, cluster, internal, applier, self.timetable, schemas)
                if self._heartbeats is None:
                    clock = HeartbeatClock(self.flow, InternalTopics(self.flow, cluster))
                    self._heartbeats = self._stack.enter_context(clock)
                self._open, self._target = (archive, rounds), stack.pop_all()
        if self._lease is not None:
            self._lease.check()
        return *self._open, self._keeper

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

    def _close_target(self) -> None:
        self._open = None
        self._target.close()
