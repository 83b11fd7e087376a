"""Name the internal topics of a flow and the cluster of each. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from kbackup.jobs.mirror.flow import Flow


@dataclass(frozen=True)
class InternalTopic:
    """`factor_key` is the key of the properties file that gives `replication_factor`. `in_source`: whether the topic is
    in the flow's source, not in its target."""

    name: str
    replication_factor: int
    factor_key: str = "replication.factor"
    in_source: bool = False


@dataclass(frozen=True)
class InternalNames:
    """`syncs_in_source`: whether the apply half writes offset syncs to the source, not to the target."""

    flow: Flow
    syncs_in_source: bool

    @property
    def heartbeats(self) -> InternalTopic:
        """Return the topic of this flow's own heartbeats."""
        flow = self.flow
        key = "heartbeats.topic.replication.factor"
        return InternalTopic(flow.policy.heartbeats_topic(), flow.heartbeats_replication_factor, key)

    @property
    def remote_heartbeats(self) -> InternalTopic:
        """Return the topic of the source's heartbeats in the target. Its name shows Java's clients that the source
        is upstream."""
        name = self.flow.policy.format_remote_topic(self.flow.source, self.flow.policy.heartbeats_topic())
        return InternalTopic(name, self.flow.replication_factor)

    @property
    def checkpoints(self) -> InternalTopic:
        name = self.flow.policy.checkpoints_topic(self.flow.source)
        key = "checkpoints.topic.replication.factor"
        return InternalTopic(name, self.flow.checkpoints_replication_factor, key)

    @property
    def offset_syncs(self) -> InternalTopic:
        """Return the topic of offset syncs. In the source it is named after the target, in the target after the
        source."""
        flow, in_source = self.flow, self.syncs_in_source
        name = flow.policy.offset_syncs_topic(flow.target if in_source else flow.source)
        key = "offset-syncs.topic.replication.factor"
        return InternalTopic(name, flow.offset_syncs_replication_factor, key, in_source)

    def written(self) -> list[InternalTopic]:
        """Return the topics that the flow writes. They are created where they are missing."""
        flow = self.flow
        return [
            *([self.heartbeats] if flow.emit_heartbeats.enabled else []),
            *([self.remote_heartbeats] if flow.heartbeats_replicated else []),
            *([self.checkpoints] if flow.emit_checkpoints.enabled else []),
            *([self.offset_syncs] if flow.emit_offset_syncs else []),
        ]
