"""The reader of a mirror's source: a backup that follows the topics and groups that its flows select."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import msgspec

from kbackup.archive.query.selection import Selection, Selections
from kbackup.config.models import Backup, Follow
from kbackup.errors import KbackupError, UsageError
from kbackup.jobs.backup.follow import Follower, FollowReport, FollowReporter
from kbackup.jobs.backup.job import BackupReport, selections_of
from kbackup.kafka.client import Properties
from kbackup.kafka.control.cluster import Cluster
from kbackup.mirror.flow import Flow
from kbackup.mirror.internal import HeartbeatClock, InternalTopics
from kbackup.mirror.topics import is_cycle

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 5.0
"""The default time between restore points."""


@dataclass(frozen=True)
class MirrorSource:
    """A source and the flows from it. One archive of it serves all of them."""

    alias: str
    archive: str
    properties: Properties = field(repr=False)
    flows: tuple[Flow, ...]


def sources_of(flows: Iterable[Flow]) -> list[MirrorSource]:
    """Return the sources of flows, in order. `UsageError` if a source has no address or no archive."""
    by_source: dict[tuple[str, str], list[Flow]] = {}
    for flow in flows:
        source = flow.source, flow.archive_address()
        by_source.setdefault(source, []).append(flow)
    sources: list[MirrorSource] = []
    for (alias, archive), members in by_source.items():
        properties = members[0].source_properties
        if properties is None:
            raise UsageError(
                f"the file names no brokers of {alias}",
                f"set {alias}.bootstrap.servers, or run the half that needs none: --apply",
            )
        source_flows = tuple(members)
        sources.append(MirrorSource(alias, archive, properties, source_flows))
    return sources


def mirror_selections(options: Backup, flows: Iterable[Flow]) -> Selections:
    """Return the topics and groups that the flows mirror, unless `options` select topics, or groups, themselves.

    Others are left out, which asks for nothing: a cluster without groups is no reason for a warning.
    """
    members = tuple(flows)
    topics, groups = selections_of(options)

    def is_topic_left_out(name: str) -> bool:
        return not any(needs_topic(flow, name) for flow in members)

    def is_group_left_out(name: str) -> bool:
        return not any(flow.groups(name) for flow in members)

    # A user who names topics for the archive may want more in it than a mirror needs.
    if not options.topics and not options.exclude_topics:
        topics = Selection(leaves_out=is_topic_left_out)
    if not options.groups and not options.exclude_groups:
        groups = Selection(leaves_out=is_group_left_out)
    return Selections(topics, groups)


def needs_topic(flow: Flow, topic: str) -> bool:
    """Return whether a flow needs a topic of that name, which the target does not have already."""
    is_heartbeats = flow.heartbeats_replicated and flow.policy.is_heartbeats_topic(topic)
    is_selected = is_heartbeats or flow.topics(topic)
    return is_selected and not is_cycle(flow.policy, topic, flow.target)


def rhythm_of(follow: Follow, is_default: Iterable[str]) -> Follow:
    """`[follow]` for a mirror. `is_default` are the keys that nobody set: nothing waits for more records."""
    unset = set(is_default)
    interval = INTERVAL_SECONDS if "follow.interval_seconds" in unset else follow.interval_seconds
    age = interval if "follow.max_age_seconds" in unset else follow.max_age_seconds
    small = 0 if {"follow.small_bytes", "follow.max_age_seconds"} <= unset else follow.small_bytes
    return msgspec.structs.replace(follow, interval_seconds=interval, max_age_seconds=age, small_bytes=small)


@dataclass
class MirrorReader:
    """Backs one source up. `heartbeat_flows` are the flows onto this source that emit heartbeats and do no more."""

    source: MirrorSource
    heartbeat_flows: tuple[Flow, ...]
    follower: Follower
    reporter: FollowReporter
    wakeups: Sequence[threading.Event] = ()
    """Set at each restore point, for the writers in this process that wait for one."""

    @property
    def archive(self) -> str:
        return self.follower.store.url

    def back_up_source(self) -> FollowReport:
        """Take restore points until stopped; exactly one if stopped before."""
        with ExitStack() as stack:
            clocks = self._start_heartbeats(stack)
            return self.follower.follow_until_stopped(SourceReporter(self.reporter, clocks, self.wakeups))

    def _start_heartbeats(self, stack: ExitStack) -> list[HeartbeatClock]:
        """Start the heartbeats of each flow; `stack` ends them. A source that refuses heartbeats, or their topic, is
        backed up without."""
        clocks: list[HeartbeatClock] = []
        for flow in self.heartbeat_flows:
            try:
                cluster = Cluster(self.source.properties, "source")
                cluster.connect()
                topics = stack.enter_context(InternalTopics(flow, cluster))
                clock = stack.enter_context(HeartbeatClock(flow, topics))
                clocks.append(clock)
            except KbackupError as error:
                log.warning("heartbeats of %s are not written: %s", flow.name, error)
        return clocks


@dataclass
class SourceReporter:
    """The reporter of a reader's follower. It wakes the writers at each restore point, checks the heartbeats at the end
    of each round, and hands everything on to `reporter`, which shows it."""

    reporter: FollowReporter
    clocks: Sequence[HeartbeatClock]
    wakeups: Sequence[threading.Event]
    _logged: dict[str, str] = field(default_factory=dict)
    """By flow, the error of its heartbeats that was logged last."""

    def committed(self, report: BackupReport) -> None:
        # Before it is shown: a writer in this process need not wait for its next look.
        for wakeup in self.wakeups:
            wakeup.set()
        self.reporter.committed(report)

    def record_success(self) -> None:
        self._check_heartbeats()
        self.reporter.record_success()

    def failed(self, error: KbackupError, pause: float) -> None:
        self.reporter.failed(error, pause)

    def _check_heartbeats(self) -> None:
        """Log heartbeats that fail, each error of a flow once: the backup goes on without them."""
        for clock in self.clocks:
            try:
                clock.check()
            except KbackupError as error:
                if str(error) != self._logged.get(clock.flow.name):
                    self._logged[clock.flow.name] = str(error)
                    log.warning("heartbeats of %s are not written: %s", clock.flow.name, error)
