"""The settings of a flow from one source to one target, as the properties file has them (`infra/docs/mirroring.md`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from kbackup.errors import UsageError
from kbackup.kafka.client.client import Properties
from kbackup.types import TopicPartition


class ReplicationPolicy(Protocol):
    """Names of topics in a target, as a Java class of the interface `ReplicationPolicy` answers."""

    def format_remote_topic(self, source: str, topic: str) -> str:
        """Return the name in a target of a topic of the cluster `source`."""
        ...

    def topic_source(self, topic: str) -> str | None:
        """Return the alias of the cluster that a remote topic comes from; None for a local topic."""
        ...

    def upstream_topic(self, topic: str) -> str | None:
        """Return the name of a remote topic in the cluster that it comes from; None for a local topic."""
        ...

    def original_topic(self, topic: str) -> str:
        """Return the name of a remote topic in the cluster where its first record was written."""
        ...

    def heartbeats_topic(self) -> str: ...

    def checkpoints_topic(self, alias: str) -> str: ...

    def offset_syncs_topic(self, alias: str) -> str: ...

    def is_heartbeats_topic(self, topic: str) -> bool: ...

    def is_checkpoints_topic(self, topic: str) -> bool: ...

    def is_mm2_internal_topic(self, topic: str) -> bool: ...

    def is_internal_topic(self, topic: str) -> bool: ...


class NameFilter(Protocol):
    """A selection of names by lists of Java regular expressions."""

    def __call__(self, name: str) -> bool:
        """Return whether a name is included and not excluded. A pattern must match the whole name."""
        ...


class Clock(NamedTuple):
    """Something that happens every `seconds`, where it is enabled."""

    enabled: bool
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Flow:
    """One direction of a mirror. Names follow MirrorMaker 2's keys; defaults are in `properties`.

    `source_properties` and `target_properties` are librdkafka's properties; `archive` is the address of the archive
    of `source`, None where the file names none.
    """

    source: str
    target: str
    source_properties: Properties | None = field(default=None, repr=False)
    target_properties: Properties | None = field(default=None, repr=False)
    archive: str | None = None
    policy: ReplicationPolicy
    topics: NameFilter
    groups: NameFilter
    excluded_configs: NameFilter
    use_defaults_from: Literal["source", "target"]
    replication_factor: int
    heartbeats_replication_factor: int
    checkpoints_replication_factor: int
    offset_syncs_replication_factor: int
    heartbeats_replicated: bool
    emit_heartbeats: Clock
    emit_checkpoints: Clock
    emit_offset_syncs: bool
    offset_syncs_location: Literal["source", "target"]
    offset_lag_max: int
    refresh_topics: Clock
    refresh_groups: Clock
    sync_topic_configs: Clock
    sync_topic_acls: Clock
    sync_group_offsets: Clock
    checkpoint_rule: Literal["exact", "mm2"]
    on_recreate: Literal["continue", "stop"]
    starts_at_end: bool = False
    """True for a flow that leaves out the records that the archive has in the first round of a topic."""
    comes_back: NameFilter = field(default=lambda name: False, repr=False)
    """Topics that would come back to the source by other flows, which only the Identity policy allows."""

    @property
    def name(self) -> str:
        return f"{self.source}->{self.target}"

    def client(self, side: Literal["source", "target"]) -> Properties:
        """Return librdkafka's properties for the source or the target. `UsageError` where the file names no brokers."""
        alias = self.source if side == "source" else self.target
        properties = self.source_properties if side == "source" else self.target_properties
        if properties is None:
            raise UsageError(
                f"flow {self.name}: the file names no brokers of {alias}", f"set {alias}.bootstrap.servers"
            )
        return properties

    def archive_address(self) -> str:
        """Return the address of the source's archive. `UsageError` where none is named."""
        if self.archive is None:
            raise UsageError(
                f"flow {self.name}: no archive is named",
                "write kbackup.archive = s3://bucket/{source} into the file, or give --archive",
            )
        return self.archive


@dataclass(frozen=True, slots=True)
class RemoteTopic:
    """A topic of the source and its counterpart in the target. `partitions` is the source's count."""

    source: str
    remote: str
    partitions: int
    configs: dict[str, str] | None = None
    """The dynamic configs of the source's topic; None where the archive does not know them."""

    @property
    def remote_partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.remote, number) for number in range(self.partitions)]


class AppliedPosition(NamedTuple):
    """Records of `incarnation` of the source's topic below offset `next` are committed in the target; `-1` and 0
    where none is."""

    incarnation: int
    next: int
