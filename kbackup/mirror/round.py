"""A round of a flow: bring the target to a restore point, by phases in their order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from kbackup.archive.models import SHARE, Manifest
from kbackup.archive.reader import Archive
from kbackup.kafka.control.cluster import Cluster
from kbackup.mirror import metering
from kbackup.mirror.apply.applier import Applier, Preparation
from kbackup.mirror.apply.pending import Applied
from kbackup.mirror.flow import Clock, Flow, RemoteTopic
from kbackup.mirror.internal import InternalTopics, emit_checkpoints, emit_offset_syncs
from kbackup.mirror.positions import AppliedTopics, sync_group_offsets
from kbackup.mirror.records import Checkpoint
from kbackup.mirror.schemas import MirrorSchemas, TopicSchemas
from kbackup.mirror.settings import AclsReport, ConfigsReport, TopicsReport, sync_acls, sync_configs, sync_topics
from kbackup.mirror.timetable import Timetable
from kbackup.mirror.topics import MirrorTopicPlan, SkippedTopic, plan_topics, topics_of_point

Refused = Mapping[str, Mapping[str, str] | Iterable[str]]
"""The target's reasons by subject, as far as a round set it: 'topics', 'configs', 'acls', 'groups'."""

_IDLE = 60.0  # s; a writer looks again after this time, whatever its clocks say

_NO_TOPICS = TopicsReport((), {}, {})


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


@dataclass(frozen=True)
class MirroredGroups:
    """What a round did for consumer groups: the numbers of checkpoints and of committed offsets. `held_back` has, by
    group, why the target's group was not set; None if the round set no groups."""

    checkpoints: int = 0
    offsets: int = 0
    held_back: Mapping[str, str] | None = None


@dataclass
class FlowRounds:
    """Rounds of one flow onto one target. A new object knows no topics and no groups yet: both are due at once."""

    flow: Flow
    cluster: Cluster
    internal: InternalTopics
    applier: Applier
    timetable: Timetable
    schemas: MirrorSchemas
    _known: frozenset[str] = frozenset()
    """The source's topics as of the last refresh."""
    _groups: frozenset[str] = frozenset()
    """The source's groups that the flow selects, as of the last refresh."""
    _created: tuple[tuple[str, int], ...] | None = None
    """The remote topics, with their partitions, that the target has by a round before; None: not known."""

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
        is_duty_due = not self.timetable.seconds_idle(self.clocks, _IDLE)
        return is_duty_due or bool(self.applier.held.due)

    def plan(self, archive: Archive, point: Manifest) -> MirrorTopicPlan:
        """Return the topics of a restore point that the flow selects, also topics that the flow does not know yet."""
        existing: Sequence[str] = ()
        # Of a topic that is deleted in the source it matters whether its remote topic exists. For the others, the list
        # of names would be a request in every round.
        if any(topic.state == "deleted" for topic in point.topics):
            existing = self.cluster.topic_names()
        return plan_topics(self.flow, topics_of_point(point, archive.metadata(point)), existing)

    def apply_point(self, archive: Archive, point: Manifest, plan: MirrorTopicPlan) -> RoundReport:
        """Bring the target to a restore point, phase by phase: topics, configs, records, positions, ACLs."""
        topics = self._topics_of_round(plan)
        created = self._create_topics(topics)
        served = without_refused(topics, created)
        # Before the records: a raised max.message.bytes lets records in that the topic would have refused.
        configs = self._sync_configs(served)
        preparation = self._prepare(archive, point, served, created, configs)
        applied = self.applier.apply(archive, point, served, preparation)
        # After the records, as only applied records have a place in the target. The offset syncs go before the
        # checkpoints, which MirrorMaker 2's rule translates by them.
        in_target = AppliedTopics(served, applied.positions, self.applier.map)
        syncs = emit_offset_syncs(self.flow, self.internal, in_target)
        groups = self._sync_groups(archive, point, in_target)
        acls = self._sync_acls(archive, point)
        changes = created or _NO_TOPICS
        # None: neither was due in this round.
        configured = () if configs is None else tuple(configs.changed)
        created_acls = () if acls is None else acls.created
        refused = refusals_of(changes, configs, preparation.uncovered_schemas, applied, groups, acls)
        return RoundReport(
            flow=self.flow.name,
            restore_point=point.number,
            topics=topics,
            skipped=plan.skipped,
            applied=applied,
            created=changes.created,
            grown=changes.grown,
            configured=configured,
            acls=created_acls,
            offset_syncs=syncs,
            checkpoints=groups.checkpoints,
            group_offsets=groups.offsets,
            refused=refused,
        )

    def _topics_of_round(self, plan: MirrorTopicPlan) -> tuple[RemoteTopic, ...]:
        """Return the planned topics that the flow knows. New ones are noticed when the topics are refreshed."""
        if self._is_due("topics", once=True):
            self._known = frozenset(topic.source for topic in plan.topics)
            self._created = None
            self.timetable.done("topics")
        return tuple(topic for topic in plan.topics if topic.source in self._known)

    def _create_topics(self, topics: Sequence[RemoteTopic]) -> TopicsReport | None:
        """Create topics and add partitions; None if that was done for the same topics before."""
        shape = tuple((topic.remote, topic.partitions) for topic in topics)
        if shape == self._created:
            return None
        report = sync_topics(self.flow, topics, self.cluster)
        # A refusal may be over in the next round, so it is asked again until all topics are there.
        self._created = None if report.refused else shape
        return report

    def _sync_configs(self, topics: Sequence[RemoteTopic]) -> ConfigsReport | None:
        """Give the remote topics the configs of their sources; None if that is not due."""
        if not self._is_due("configs"):
            return None
        report = sync_configs(self.flow, topics, self.cluster)
        self.timetable.done("configs")
        return report

    def _prepare(
        self,
        archive: Archive,
        point: Manifest,
        topics: Sequence[RemoteTopic],
        created: TopicsReport | None,
        configs: ConfigsReport | None,
    ) -> Preparation:
        """Register the schemas of the records, and return what the round did before it applies them."""
        schemas, withheld = self.topic_schemas.register(archive, point, topics)
        changed = set[str]()
        if created is not None:
            changed.update(created.created, created.grown)
        if configs is not None:
            changed.update(configs.changed)
        return Preparation(created, frozenset(changed), schemas, withheld, self.schemas.uncovered)

    def _sync_groups(self, archive: Archive, point: Manifest, in_target: AppliedTopics) -> MirroredGroups:
        """Write the checkpoints that are due, and the offsets of the target's groups."""
        self._refresh_groups(archive, point)
        is_checkpoint_due = self._is_due("checkpoints")
        is_offset_due = self._is_due("group offsets")
        if not is_checkpoint_due and not is_offset_due:
            return MirroredGroups()
        # The groups' offsets are set from checkpoints, so these come first, also if only the offsets are due.
        current, written = emit_checkpoints(self.flow, self.internal, archive, point, in_target, self._groups)
        self.timetable.done("checkpoints")
        self._count_checkpoints(archive, point, current, written)
        if not is_offset_due:
            return MirroredGroups(len(written))
        synced = sync_group_offsets(current, self.cluster)
        self.timetable.done("group offsets")
        offsets = sum(synced.written.values())
        return MirroredGroups(len(written), offsets, synced.held_back)

    def _refresh_groups(self, archive: Archive, point: Manifest) -> None:
        """Notice the groups that came or went since the last refresh, if one is due."""
        if not self._is_due("groups", once=True):
            return
        selected: set[str] = set()
        for group in archive.groups(point).groups:
            # A checkpoint does not say of which type its group is: a reader would take a share group for another one.
            if group.type != SHARE and self.flow.groups(group.group):
                selected.add(group.group)
        self._groups = frozenset(selected)
        self.timetable.done("groups")

    def _count_checkpoints(
        self, archive: Archive, point: Manifest, current: Iterable[Checkpoint], written: Iterable[Checkpoint]
    ) -> None:
        captured_at = datetime.fromisoformat(archive.groups(point).captured_at).timestamp()
        written_groups = {checkpoint.group for checkpoint in written}
        groups = {checkpoint.group for checkpoint in current}
        metering.checkpoints_written(self.flow, written_groups, captured_at, groups)

    def _sync_acls(self, archive: Archive, point: Manifest) -> AclsReport | None:
        """Create the ACLs of the remote topics; None if that is not due."""
        if not self._is_due("acls"):
            return None
        report = sync_acls(self.flow, archive.metadata(point).acls, self.cluster)
        self.timetable.done("acls")
        return report

    def _is_due(self, duty: str, *, once: bool = False) -> bool:
        return self.timetable.is_due(duty, self.clocks[duty], once=once)


def without_refused(topics: Iterable[RemoteTopic], created: TopicsReport | None) -> tuple[RemoteTopic, ...]:
    """Return the topics that the target has. The records of the others wait."""
    refused = created.refused if created is not None else {}
    return tuple(topic for topic in topics if topic.remote not in refused)


def refusals_of(
    topics: TopicsReport,
    configs: ConfigsReport | None,
    uncovered_schemas: Iterable[str],
    applied: Applied,
    groups: MirroredGroups,
    acls: AclsReport | None,
) -> Refused:
    """Return the refusals by subject. A subject that the round did not set is not in it: its last refusals hold."""
    refused: dict[str, Mapping[str, str] | Iterable[str]] = {"topics": {**topics.refused, **applied.refused}}
    if configs is not None:
        refused["configs"] = configs.refused
    refused["schemas"] = uncovered_schemas
    if groups.held_back is not None:
        refused["groups"] = groups.held_back
    if acls is not None:
        refused["acls"] = acls.refused
    return refused
