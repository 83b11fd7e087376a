"""The replication policies of MirrorMaker 2, Default and Identity, quirks included."""

from __future__ import annotations

from dataclasses import dataclass

from kbackup.jobs.mirror.flow import ReplicationPolicy

HEARTBEATS = "heartbeats"


@dataclass(frozen=True)
class DefaultPolicy:
    """`DefaultReplicationPolicy`: a remote topic is called alias, separator, topic.

    A local topic whose name holds the separator looks remote: `order.events` comes from a cluster `order`.
    """

    separator: str = "."
    internal_separator_enabled: bool = True
    """Internal topics take the separator, too; `.` otherwise."""

    def format_remote_topic(self, source: str, topic: str) -> str:
        return f"{source}{self.separator}{topic}"

    def topic_source(self, topic: str) -> str | None:
        # Java's split drops empty parts at the end: `A.` has no source, and `.x` has the source ``
        parts = topic.split(self.separator)
        while parts and not parts[-1]:
            parts.pop()
        return parts[0] if len(parts) > 1 else None

    def upstream_topic(self, topic: str) -> str | None:
        source = self.topic_source(topic)
        return None if source is None else topic[len(source) + len(self.separator) :]

    def original_topic(self, topic: str) -> str:
        while (upstream := self.upstream_topic(topic)) is not None and upstream != topic:
            topic = upstream
        return topic

    def heartbeats_topic(self) -> str:
        return HEARTBEATS

    def checkpoints_topic(self, alias: str) -> str:
        return f"{alias}{self._checkpoints_suffix}"

    def offset_syncs_topic(self, alias: str) -> str:
        return f"mm2-offset-syncs{self._internal_separator}{alias}{self._internal_suffix}"

    def is_heartbeats_topic(self, topic: str) -> bool:
        return self.original_topic(topic) == self.heartbeats_topic()

    def is_checkpoints_topic(self, topic: str) -> bool:
        return topic.endswith(self._checkpoints_suffix)

    def is_mm2_internal_topic(self, topic: str) -> bool:
        return (topic.startswith("mm2") and topic.endswith(self._internal_suffix)) or (
            self.is_checkpoints_topic(topic)
        )

    def is_internal_topic(self, topic: str) -> bool:
        return topic.startswith(("__", ".")) or self.is_mm2_internal_topic(topic)

    @property
    def _internal_separator(self) -> str:
        return self.separator if self.internal_separator_enabled else "."

    @property
    def _internal_suffix(self) -> str:
        return f"{self._internal_separator}internal"

    @property
    def _checkpoints_suffix(self) -> str:
        return f"{self._internal_separator}checkpoints{self._internal_suffix}"


@dataclass(frozen=True)
class IdentityPolicy(DefaultPolicy):
    """`IdentityReplicationPolicy`: topics keep their names, but those that end in `heartbeats`, which the Default
    policy names."""

    source_alias: str | None = None

    def format_remote_topic(self, source: str, topic: str) -> str:
        return super().format_remote_topic(source, topic) if _is_like_heartbeats(topic) else topic

    def topic_source(self, topic: str) -> str | None:
        return super().topic_source(topic) if _is_like_heartbeats(topic) else self.source_alias

    def upstream_topic(self, topic: str) -> str | None:
        return super().upstream_topic(topic) if _is_like_heartbeats(topic) else topic


def is_cycle(policy: ReplicationPolicy, topic: str, target: str) -> bool:
    """Return whether `topic` has come from the cluster `target` by any number of hops."""
    while (source := policy.topic_source(topic)) is not None:
        if source == target:
            return True
        upstream = policy.upstream_topic(topic)
        if upstream is None or upstream == topic:
            return False
        topic = upstream
    return False


def _is_like_heartbeats(topic: str) -> bool:
    return topic.endswith(HEARTBEATS)
