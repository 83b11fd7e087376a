"""The take half of a source: a backup that follows the topics and groups that its flows select."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from kbackup.archive.query.selection import Selection, Selections
from kbackup.config.models import Backup, Follow
from kbackup.errors import KbackupError, UsageError
from kbackup.jobs.backup.follow import Follower, FollowReport, Watcher
from kbackup.jobs.backup.job import BackupReport, selections_of
from kbackup.jobs.common import Stop
from kbackup.jobs.mirror.flow import Flow
from kbackup.jobs.mirror.internal import HeartbeatClock, InternalTopics
from kbackup.jobs.mirror.topics import is_cycle
from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.client import Properties

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


def sources_of(flows: Sequence[Flow]) -> list[MirrorSource]:
    """Return the sources of flows, in order. `UsageError` if a source has no address or no archive."""
    by_source: dict[tuple[str, str], list[Flow]] = {}
    for flow in flows:
        by_source.setdefault((flow.source, flow.archive_address()), []).append(flow)
    sources: list[MirrorSource] = []
    for (alias, archive), members in by_source.items():
        properties = members[0].source_properties
        if properties is None:
            raise UsageError(
                f"the file names no brokers of {alias}",
                f"set {alias}.bootstrap.servers, or run the half that needs none: --apply",
            )
        sources.append(MirrorSource(alias, archive, properties, tuple(members)))
    return sources


def mirror_selections(options: Backup, flows: Iterable[Flow]) -> Selections:
    """Return the topics and groups that the flows mirror, unless `options` select topics, or groups, themselves.

    Others are left out, which asks for nothing: a cluster without groups is no reason for a warning.
    """
    members = tuple(flows)
    topics, groups = selections_of(options)

    def takes(flow: Flow, topic: str) -> bool:
        """Return whether a flow needs a topic of that name, which the target does not have already."""
        heartbeats = flow.heartbeats_replicated and flow.policy.is_heartbeats_topic(topic)
        return (heartbeats or flow.topics(topic)) and not is_cycle(flow.policy, topic, flow.target)

    if not options.topics and not options.exclude_topics:
        topics = Selection(leaves_out=lambda name: not any(takes(flow, name) for flow in members))
    if not options.groups and not options.exclude_groups:
        groups = Selection(leaves_out=lambda name: not any(flow.groups(name) for flow in members))
    return Selections(topics, groups)


def rhythm_of(follow: Follow, is_default: Iterable[str]) -> Follow:
    """`[follow]` for a mirror. `is_default` are the keys that nobody set: nothing waits for more records."""
    unset = set(is_default)
    interval = INTERVAL_SECONDS if "follow.interval_seconds" in unset else follow.interval_seconds
    age = interval if "follow.max_age_seconds" in unset else follow.max_age_seconds
    small = 0 if {"follow.small_bytes", "follow.max_age_seconds"} <= unset else follow.small_bytes
    return msgspec.structs.replace(follow, interval_seconds=interval, max_age_seconds=age, small_bytes=small)


@dataclass
class MirrorReader:
    """Backs one source up. `heartbeats` are the flows onto this source that emit heartbeats and do no more."""

    source: MirrorSource
    heartbeats: tuple[Flow, ...]
    follower: Follower
    wakeups: list[threading.Event] = field(default_factory=list)
    """Set at each restore point."""

    @property
    def archive(self) -> str:
        return self.follower.store.url

    def run(self) -> FollowReport:
        """Take restore points until stopped; exactly one if stopped before. A source that refuses heartbeats, or their
        topic, is backed up without."""
        clocks: list[HeartbeatClock] = []
        with ExitStack() as stack:
            for flow in self.heartbeats:
                try:
                    cluster = Cluster(self.source.properties, "source")
                    cluster.connect()
                    topics = stack.enter_context(InternalTopics(flow, cluster))
                    clocks.append(stack.enter_context(HeartbeatClock(flow, topics)))
                except KbackupError as error:
                    log.warning("heartbeats of %s are not written: %s", flow.name, error)
            self.follower.watcher = _TakeWatcher(self.follower.watcher, clocks, self.wakeups)
            return self.follower.follow()


@dataclass
class _TakeWatcher:
    """Rings at each restore point; logs failed heartbeats, each error of a flow once, and passes all events on. A
    backup goes on without heartbeats."""

    watcher: Watcher
    clocks: Sequence[HeartbeatClock]
    wakeups: Sequence[threading.Event]
    _logged: dict[str, str] = field(default_factory=dict)

    def committed(self, report: BackupReport) -> None:
        for wakeup in self.wakeups:
            wakeup.set()
        self.watcher.committed(report)

    def record_success(self) -> None:
        for clock in self.clocks:
            try:
                clock.check()
            except KbackupError as error:
                if str(error) != self._logged.get(clock.flow.name):
                    self._logged[clock.flow.name] = str(error)
                    log.warning("heartbeats of %s are not written: %s", clock.flow.name, error)
        self.watcher.record_success()

    def failed(self, error: KbackupError, pause: float) -> None:
        self.watcher.failed(error, pause)


T = TypeVar("T")

_LOOK = 0.2  # s; signal handlers run between two looks


def run_together(
    takes: Mapping[str, Callable[[], T]], stop: Stop, applies: Mapping[str, Callable[[], T]], last: Stop
) -> dict[str, T]:
    """Run each half until it ends, and return what they returned by name.

    `takes` must end when `stop` is asked, `applies` when `last` is: once all of `takes` have ended. Without
    `takes` somebody else asks. The error of the first half that fails is raised once all have ended. An interrupt is
    not kept waiting: the threads end with the process."""
    reports: dict[str, T] = {}
    errors: list[BaseException] = []

    def run(name: str, half: Callable[[], T]) -> None:
        try:
            reports[name] = half()
        except BaseException as error:  # noqa: BLE001 (raised in the thread that waits)
            errors.append(error)
            stop.ask()
            last.ask()

    taking, applying = (
        [threading.Thread(target=run, args=each, name=f"kbackup {each[0]}", daemon=True) for each in group]
        for group in (takes.items(), applies.items())
    )
    for thread in (*taking, *applying):
        thread.start()
    for group in (taking, applying):
        for thread in group:
            while thread.is_alive():
                thread.join(_LOOK)
        if taking:
            last.ask()
    if errors:
        raise errors[0]
    return reports
