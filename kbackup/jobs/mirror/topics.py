"""The topics of a flow: selected by its filters, named by its policy, without cycles."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from kbackup.archive.models import Manifest, Metadata
from kbackup.jobs.mirror.flow import Flow, NameFilter, RemoteTopic
from kbackup.jobs.mirror.policy import is_cycle
from kbackup.kafka.admin.cluster import Cluster

Reason = Literal["not selected", "internal", "cycle", "deleted"]


@dataclass(frozen=True, slots=True)
class SourceTopic:
    """A topic of the source. `configs` are its dynamic ones, None where they are not known."""

    name: str
    partitions: int
    configs: dict[str, str] | None = None
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class SkippedTopic:
    """A topic of the source that the flow does not mirror, and why."""

    topic: str
    reason: Reason


@dataclass(frozen=True)
class TopicPlan:
    """The topics of a flow, in the order of their names."""

    topics: tuple[RemoteTopic, ...]
    skipped: tuple[SkippedTopic, ...]


def plan_topics(flow: Flow, topics: Iterable[SourceTopic], existing: Collection[str] = ()) -> TopicPlan:
    """Return the remote topics of a flow. `existing` are the names of the target's topics: a topic that is deleted in
    the source is mirrored to its end where its remote topic is there, and is not recreated."""
    planned: list[RemoteTopic] = []
    skipped: list[SkippedTopic] = []
    for topic in sorted(topics, key=lambda topic: topic.name):
        remote = flow.policy.format_remote_topic(flow.source, topic.name)
        reason = reason_to_skip(flow, topic.name)
        if reason is None and topic.deleted and remote not in existing:
            reason = "deleted"
        if reason is not None:
            skipped.append(SkippedTopic(topic.name, reason))
        else:
            planned.append(RemoteTopic(topic.name, remote, topic.partitions, topic.configs))
    return TopicPlan(tuple(planned), tuple(skipped))


def reason_to_skip(flow: Flow, topic: str) -> Reason | None:
    """Return why the flow does not mirror a topic of that name; None where it does. Heartbeats bypass the filter."""
    if flow.policy.is_internal_topic(topic):
        return "internal"
    if not flow.topics(topic) and not (flow.heartbeats_replicated and flow.policy.is_heartbeats_topic(topic)):
        return "not selected"
    if is_cycle(flow.policy, topic, flow.target) or flow.comes_back(topic):
        return "cycle"
    return None


def replicated(flow: Flow) -> NameFilter:
    """Return whether the flow mirrors a topic of a name, whether or not the topic exists."""
    return lambda name: reason_to_skip(flow, name) is None


def topics_of_point(manifest: Manifest, metadata: Metadata) -> list[SourceTopic]:
    """Return the topics of a restore point. `metadata` is that of the same restore point."""
    configs = {topic.name: topic.configs for topic in metadata.topics}
    return [
        SourceTopic(
            state.name,
            max((p.partition + 1 for p in state.partitions), default=0),
            configs.get(state.name),
            deleted=state.state == "deleted",
        )
        for state in manifest.topics
    ]


def topics_of_cluster(cluster: Cluster) -> list[SourceTopic]:
    """Return the topics of the source as they are now, for a dry run before the first restore point."""
    topics = {name: topic for name, topic in cluster.topics().items() if not topic.internal}
    configs = cluster.topic_configs(topics)
    return [SourceTopic(name, len(topic.partitions), configs.get(name)) for name, topic in topics.items()]
