"""The take half of a source: a backup that follows the topics and groups that its flows select."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import msgspec

from kbackup.config.jobs import Backup, Follow
from kbackup.errors import KbackupError, UsageError
from kbackup.jobs.backup.follow import Follower, FollowReport, Watcher
from kbackup.jobs.backup.job import BackupReport
from kbackup.jobs.mirror.filters import PatternFilter
from kbackup.jobs.mirror.flow import Flow, NameFilter
from kbackup.jobs.mirror.internal import HeartbeatClock, InternalTopics
from kbackup.jobs.mirror.policy import DefaultPolicy, IdentityPolicy
from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.client.client import Properties

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 5.0
"""Between restore points, unless the configuration says otherwise."""


@dataclass(frozen=True)
class Source:
    """A source and the flows from it. One archive of it serves all of them."""

    alias: str
    archive: str
    properties: Properties = field(repr=False)
    flows: tuple[Flow, ...]


def sources_of(flows: Sequence[Flow]) -> list[Source]:
    """Return the sources of flows, in order. `UsageError` where a source has no address or no archive."""
    by_source: dict[tuple[str, str], list[Flow]] = {}
    for flow in flows:
        by_source.setdefault((flow.source, flow.archive_address()), []).append(flow)
    return [_source(alias, archive, members) for (alias, archive), members in by_source.items()]


def _source(alias: str, archive: str, flows: list[Flow]) -> Source:
    if flows[0].source_properties is None:
        raise UsageError(
            f"the file names no brokers of {alias}",
            f"set {alias}.bootstrap.servers, or run the half that needs none: --apply",
        )
    return Source(alias, archive, flows[0].source_properties, tuple(flows))


def backup_options(options: Backup, flows: Iterable[Flow]) -> Backup:
    """Return `[backup]` with the selections of all flows, unless it selects topics, or groups, itself."""
    members = tuple(flows)
    selected: dict[str, tuple[str, ...]] = {}
    if not options.topics and not options.exclude_topics:
        selected["exclude_topics"] = (_others(_topics(flow) for flow in members),)
    if not options.groups and not options.exclude_groups:
        selected["exclude_groups"] = (_others(_selected(flow.groups) for flow in members),)
    return msgspec.structs.replace(options, **selected)


def _others(patterns: Iterable[str]) -> str:
    """An entry of a selection for all names that match none of the patterns. To leave them out asks for nothing: a
    cluster without groups is no reason for a warning."""
    return f"/(?s:(?!(?:{'|'.join(patterns)})\\Z).*)/"


def rhythm_of(follow: Follow, is_default: Iterable[str]) -> Follow:
    """`[follow]` for a mirror. `is_default` are the keys that nobody set: nothing waits for more records."""
    unset = set(is_default)
    interval = INTERVAL_SECONDS if "follow.interval_seconds" in unset else follow.interval_seconds
    age = interval if "follow.max_age_seconds" in unset else follow.max_age_seconds
    small = 0 if {"follow.small_bytes", "follow.max_age_seconds"} <= unset else follow.small_bytes
    return msgspec.structs.replace(follow, interval_seconds=interval, max_age_seconds=age, small_bytes=small)


def _topics(flow: Flow) -> str:
    """A pattern of the topics that a flow mirrors, and of few others: those that come from the target are left out,
    which the target has already."""
    pattern = _selected(flow.topics)
    policy = flow.policy
    if not isinstance(policy, DefaultPolicy):
        return pattern
    separator = re.escape(policy.separator)
    if flow.heartbeats_replicated:
        pattern = f"(?:{pattern}|(?:.*{separator})?{policy.heartbeats_topic()})"
    if isinstance(policy, IdentityPolicy) or policy.separator in flow.target:
        return pattern
    return f"(?!(?:.*{separator})?{re.escape(flow.target)}{separator}.)(?:{pattern})"


def _selected(names: NameFilter) -> str:
    """The pattern of a filter."""
    assert isinstance(names, PatternFilter)  # noqa: S101 (a flow of a properties file has no other)
    include = names.include.pattern if names.include is not None else "(?!)"
    exclude = f"(?!(?:{names.exclude.pattern})\\Z)" if names.exclude is not None else ""
    return f"(?a:{exclude}(?:{include}))"


@dataclass
class TakeHalf:
    """Backs one source up. `heartbeats` are the flows onto this source that emit heartbeats and do no more."""

    source: Source
    heartbeats: tuple[Flow, ...]
    follower: Follower

    def run(self) -> FollowReport:
        """Take restore points until stopped; exactly one if stopped before."""
        with ExitStack() as stack:
            clocks = self._clocks(stack)
            self.follower.watcher = _HeartbeatWatcher(self.follower.watcher, clocks)
            return self.follower.follow()

    def _clocks(self, stack: ExitStack) -> list[HeartbeatClock]:
        """Start the heartbeats. A source that refuses them, or their topic, is backed up without."""
        clocks: list[HeartbeatClock] = []
        for flow in self.heartbeats:
            try:
                cluster = Cluster(self.source.properties, "source")
                cluster.connect()
                topics = stack.enter_context(InternalTopics(flow, cluster))
                clocks.append(stack.enter_context(HeartbeatClock(flow, topics)))
            except KbackupError as error:
                log.warning("heartbeats of %s are not written: %s", flow.name, error)
        return clocks


@dataclass
class _HeartbeatWatcher:
    """Logs heartbeats that fail, each error once, and passes on what it is told. A backup goes on without them."""

    watcher: Watcher
    clocks: Sequence[HeartbeatClock]
    _logged: str = ""

    def committed(self, report: BackupReport) -> None:
        self.watcher.committed(report)

    def well(self) -> None:
        for clock in self.clocks:
            try:
                clock.check()
            except KbackupError as error:
                if str(error) != self._logged:
                    self._logged = str(error)
                    log.warning("heartbeats of %s are not written: %s", clock.flow.name, error)
        self.watcher.well()

    def failed(self, error: KbackupError, pause: float) -> None:
        self.watcher.failed(error, pause)
