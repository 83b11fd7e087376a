"""The topics of a flow: selected by its filters, named by its policy, without cycles."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kbackup.archive.models import Manifest, Metadata
from kbackup.errors import UsageError
from kbackup.kafka.control.cluster import Cluster
from kbackup.mirror.flow import DefaultPolicy, Flow, IdentityPolicy, RemoteTopic


def is_cycle(policy: DefaultPolicy, topic: str, target: str) -> bool:
    """Return whether `topic` has come from the cluster `target` by any number of hops."""
    while (source := policy.topic_source(topic)) is not None:
        if source == target:
            return True
        upstream = policy.upstream_topic(topic)
        # Under the Identity policy a topic is its own upstream: its name shows no further hop.
        if upstream is None or upstream == topic:
            return False
        topic = upstream
    return False


Reason = Literal["not selected", "internal", "cycle", "deleted"]


@dataclass(frozen=True, slots=True)
class SourceTopic:
    """A topic of the source. `configs` are its dynamic ones, None if they are not known."""

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
class MirrorTopicPlan:
    """The topics of a flow, in the order of their names."""

    topics: tuple[RemoteTopic, ...]
    skipped: tuple[SkippedTopic, ...]


def plan_topics(flow: Flow, topics: Iterable[SourceTopic], existing: Collection[str] = ()) -> MirrorTopicPlan:
    """Return the remote topics of a flow. `existing` are the names of the target's topics: a topic that is deleted in
    the source is mirrored to its end where its remote topic is there, and is not recreated."""
    planned: list[RemoteTopic] = []
    skipped: list[SkippedTopic] = []
    for topic in sorted(topics, key=lambda topic: topic.name):
        remote = flow.policy.format_remote_topic(flow.source, topic.name)
        reason = reason_to_skip(flow, topic.name)
        if reason is None and topic.deleted and remote not in existing:
            reason = "deleted"
        if reason is None:
            planned.append(RemoteTopic(topic.name, remote, topic.partitions, topic.configs))
        else:
            skipped.append(SkippedTopic(topic.name, reason))
    return MirrorTopicPlan(tuple(planned), tuple(skipped))


def reason_to_skip(flow: Flow, topic: str) -> Reason | None:
    """Return why the flow does not mirror a topic of that name; None if it does. Heartbeats bypass the filter."""
    if flow.policy.is_internal_topic(topic):
        return "internal"
    # MirrorMaker 2 mirrors heartbeats whatever the filters say: by their names, clients find upstream clusters and
    # hops.
    is_heartbeats = flow.heartbeats_replicated and flow.policy.is_heartbeats_topic(topic)
    if not flow.topics(topic) and not is_heartbeats:
        return "not selected"
    if is_cycle(flow.policy, topic, flow.target) or flow.comes_back(topic):
        return "cycle"
    return None


def topics_of_point(manifest: Manifest, metadata: Metadata) -> list[SourceTopic]:
    """Return the topics of a restore point. `metadata` is of the same restore point."""
    configs = {topic.name: topic.configs for topic in metadata.topics}
    topics: list[SourceTopic] = []
    for state in manifest.topics:
        # Partitions without records are listed as well: the highest number tells how many there are.
        partitions = max((partition.partition + 1 for partition in state.partitions), default=0)
        own_configs = configs.get(state.name)
        is_deleted = state.state == "deleted"
        topics.append(SourceTopic(state.name, partitions, own_configs, is_deleted))
    return topics


def topics_of_cluster(cluster: Cluster) -> list[SourceTopic]:
    """Return the topics of the source as they are now, for a dry run before the first restore point."""
    topics = {name: topic for name, topic in cluster.topics().items() if not topic.internal}
    configs = cluster.topic_configs(topics)
    found: list[SourceTopic] = []
    for name, topic in topics.items():
        found.append(SourceTopic(name, len(topic.partitions), configs.get(name)))
    return found


# Cycles that no name shows: under the Identity policy, topics keep their names on their way round.


_PROBES = ("orders", "a", "topic-1", "x.y")
"""Names that a topic may have, beside the ones that the properties file names."""


def without_cycles(flows: Sequence[Flow], names: Sequence[str], file: str) -> tuple[Flow, ...]:
    """Return the flows, each knowing which topics would come back to its source.

    Raise `UsageError` if one of `names`, or any likely name, goes round. Other topics that do are found by their
    names when they appear, and are held back.
    """
    # Under the Default policy the names show where a topic has been.
    if not any(isinstance(flow.policy, IdentityPolicy) for flow in flows):
        return tuple(flows)
    every = tuple(flows)
    aware = [replace(flow, comes_back=ReturningTopics(flow, every)) for flow in flows]
    for flow, knowing in zip(flows, aware, strict=True):
        for name in (*_PROBES, *names):
            if reason_to_skip(flow, name) is None and knowing.comes_back(name):
                raise UsageError(
                    f"{file}: topic {name!r} of {flow.source} would be mirrored in a circle: {flow.name} and the flows "
                    f"back to {flow.source} all select it, and the Identity policy can't tell where a topic came from",
                    "give the flows topics that don't meet, or use the Default policy",
                )
    return tuple(aware)


@dataclass(frozen=True)
class ReturningTopics:
    """The names of the topics of a flow's source that come back to it under a name that the flow selects again, by way
    of `flows`. It is a `NameFilter`."""

    flow: Flow
    flows: tuple[Flow, ...]

    def __call__(self, name: str) -> bool:
        remote = self.flow.policy.format_remote_topic(self.flow.source, name)
        return self._returns(self.flow.target, remote, frozenset({self.flow.target}))

    def _returns(self, cluster: str, name: str, passed: frozenset[str]) -> bool:
        """Return whether a topic of `cluster` comes to the flow's source, by clusters that it has not `passed`."""
        if cluster == self.flow.source:
            return reason_to_skip(self.flow, name) is None
        for flow in self.flows:
            if flow.source != cluster or flow.target in passed or reason_to_skip(flow, name) is not None:
                continue
            remote = flow.policy.format_remote_topic(flow.source, name)
            if self._returns(flow.target, remote, passed | {flow.target}):
                return True
        return False
