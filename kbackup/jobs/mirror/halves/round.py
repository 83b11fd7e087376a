"""Run one round of the apply half: bring the target to the newest restore point."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from kbackup.archive.models import Manifest
from kbackup.archive.reader import Archive
from kbackup.jobs.mirror import metering
from kbackup.jobs.mirror.apply import Applied, Applier
from kbackup.jobs.mirror.flow import Clock, Flow, RemoteTopic
from kbackup.jobs.mirror.halves.timetable import Timetable
from kbackup.jobs.mirror.internal import InternalTopics, emit_checkpoints, emit_offset_syncs
from kbackup.jobs.mirror.positions import sync_group_offsets
from kbackup.jobs.mirror.settings import TopicsReport, sync_acls, sync_configs, sync_topics
from kbackup.jobs.mirror.topics import (
    SkippedTopic,
    TopicPlan,
    plan_topics,
    replicated,
    topics_of_point,
)
from kbackup.kafka.admin.cluster import Cluster


@dataclass(frozen=True)
class RoundReport:
    """Result of a round. `refused` has the target's reasons by subject ('topics', 'configs', 'acls', 'groups'), if the
    round set it."""

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
    refused: Mapping[str, Mapping[str, str] | Iterable[str]] = field(default_factory=dict)

    @property
    def is_loss(self) -> bool:
        """Return whether the process ends with exit code 3 for this round."""
        return self.applied.is_loss or any(
            self.refused.get(subject) for subject in ("topics", "configs", "acls")
        )

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
    _known: frozenset[str] = frozenset()
    _groups: frozenset[str] = frozenset()
    _made: tuple[tuple[str, int], ...] | None = None

    def __post_init__(self) -> None:
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

    def plan(self, archive: Archive, point: Manifest) -> TopicPlan:
        """Return the topics of a restore point that the flow selects, also those that it does not know yet."""
        existing = self.cluster.topic_names() if any(t.state == "deleted" for t in point.topics) else ()
        return plan_topics(self.flow, topics_of_point(point, archive.metadata(point)), existing)

    def run(self, archive: Archive, point: Manifest, plan: TopicPlan) -> RoundReport:
        """Bring the target to a restore point, in the order that the design gives: topics, configs, records, positions,
        ACLs."""
        topics = self._admitted(plan.topics)
        looked = self._make(topics)
        made = looked or TopicsReport((), {}, {})
        served = tuple(topic for topic in topics if topic.remote not in made.refused)
        refused: dict[str, Mapping[str, str] | Iterable[str]] = {"topics": made.refused}
        configured = self._configure(served, refused)
        applied = self.applier.apply(archive, point, served, looked)
        refused["topics"] = {**made.refused, **applied.refused}
        syncs = emit_offset_syncs(self.flow, self.internal, served, applied.positions, self.applier.map)
        checkpoints, offsets = self._positions(archive, point, served, applied, refused)
        acls: tuple[str, ...] = ()
        if self._is_due("acls"):
            acls_of_source = archive.metadata(point).acls
            report = sync_acls(self.flow, acls_of_source, replicated(self.flow), self.cluster)
            acls, refused["acls"] = report.created, report.refused
            self.timetable.done("acls")
        return RoundReport(
            flow=self.flow.name,
            restore_point=point.number,
            topics=topics,
            skipped=plan.skipped,
            applied=applied,
            created=made.created,
            grown=made.grown,
            configured=configured,
            acls=acls,
            offset_syncs=syncs,
            checkpoints=checkpoints,
            group_offsets=offsets,
            refused=refused,
        )

    def _is_due(self, duty: str, *, once: bool = False) -> bool:
        return self.timetable.is_due(duty, self.clocks[duty], once=once)

    def _admitted(self, topics: tuple[RemoteTopic, ...]) -> tuple[RemoteTopic, ...]:
        """Return the topics that the flow knows: new ones are noticed when `refresh.topics` is due."""
        if self._is_due("topics", once=True):
            self._known = frozenset(topic.source for topic in topics)
            self._made = None
            self.timetable.done("topics")
        return tuple(topic for topic in topics if topic.source in self._known)

    def _make(self, topics: tuple[RemoteTopic, ...]) -> TopicsReport | None:
        """Create topics and add partitions; None where that was done for the same topics before."""
        shape = tuple((topic.remote, topic.partitions) for topic in topics)
        if shape == self._made:
            return None
        report = sync_topics(self.flow, topics, self.cluster)
        self._made = None if report.refused else shape
        return report

    def _configure(
        self, topics: tuple[RemoteTopic, ...], refused: dict[str, Mapping[str, str] | Iterable[str]]
    ) -> tuple[str, ...]:
        if not self._is_due("configs"):
            return ()
        report = sync_configs(self.flow, topics, self.cluster)
        refused["configs"] = report.refused
        self.timetable.done("configs")
        return tuple(report.changed)

    def _positions(
        self,
        archive: Archive,
        point: Manifest,
        topics: tuple[RemoteTopic, ...],
        applied: Applied,
        refused: dict[str, Mapping[str, str] | Iterable[str]],
    ) -> tuple[int, int]:
        """Write the checkpoints that are due, and groups of the target. Return how many of each."""
        if self._is_due("groups", once=True):
            self._groups = frozenset(
                g.group for g in archive.groups(point).groups if self.flow.groups(g.group)
            )
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
        metering.checkpoints_written(
            self.flow, {c.group for c in written}, captured_at, {c.group for c in current}
        )
        if not due_groups:
            return len(written), 0
        synced = sync_group_offsets(current, self.cluster)
        refused["groups"] = synced.held_back
        self.timetable.done("group offsets")
        return len(written), sum(synced.written.values())
