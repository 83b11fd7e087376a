"""The internal topics of a flow, made as MirrorMaker 2 makes them: one partition, compacted."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from kbackup.errors import KbackupError, UnreachableError, UsageError
from kbackup.jobs.mirror.flow import AppliedPosition, Flow
from kbackup.jobs.mirror.internal.journal import Journal, SyncJournal
from kbackup.kafka.admin import Cluster
from kbackup.kafka.client import Properties
from kbackup.kafka.mirror_records import Checkpoint, OffsetSync
from kbackup.kafka.mirror_records.reader import read_records
from kbackup.kafka.mirror_records.writer import RecordWriter
from kbackup.types import TopicPartition

CONFIGS = {"cleanup.policy": "compact"}


@dataclass(frozen=True)
class InternalTopic:
    """`in_source`: whether the topic is in the flow's source, not in its target."""

    name: str
    replication_factor: int
    in_source: bool = False


class InternalTopics:
    """A flow's internal topics, and the producers that write them. One object serves all rounds of a process:

        with InternalTopics(flow, cluster) as target: ...

    Entering creates missing topics. `warnings` says what differs from the properties file.
    """

    def __init__(self, flow: Flow, cluster: Cluster, *, heartbeats_only: bool = False) -> None:
        """`cluster` is the target's. `heartbeats_only`: for a pair of clusters that is not enabled, whose heartbeats
        MirrorMaker 2 writes nevertheless; no other topic is made."""
        self.flow, self.cluster = flow, cluster
        self._heartbeats_only = heartbeats_only
        self.warnings: list[str] = []
        self.synced: dict[TopicPartition, AppliedPosition] = {}
        """By remote partition: the position up to which offset syncs are written."""
        self._writers: dict[bool, RecordWriter] = {}

    def __enter__(self) -> Self:
        self.create()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def heartbeats(self) -> InternalTopic:
        """Where this flow's own heartbeats go."""
        return InternalTopic(self.flow.policy.heartbeats_topic(), self.flow.heartbeats_replication_factor)

    @property
    def remote_heartbeats(self) -> InternalTopic:
        """The source's heartbeats in the target. Java's clients tell by its name that the source is upstream."""
        name = self.flow.policy.format_remote_topic(self.flow.source, self.flow.policy.heartbeats_topic())
        return InternalTopic(name, self.flow.replication_factor)

    @property
    def checkpoints(self) -> InternalTopic:
        name = self.flow.policy.checkpoints_topic(self.flow.source)
        return InternalTopic(name, self.flow.checkpoints_replication_factor)

    @functools.cached_property
    def offset_syncs(self) -> InternalTopic:
        """Named after the other cluster: in the source after the target, in the target after the source."""
        flow = self.flow
        in_source = flow.offset_syncs_location == "source" and self._reaches_source()
        name = flow.policy.offset_syncs_topic(flow.target if in_source else flow.source)
        return InternalTopic(name, flow.offset_syncs_replication_factor, in_source=in_source)

    @functools.cached_property
    def sync_journal(self) -> SyncJournal:
        topic = self.offset_syncs
        return SyncJournal(
            lambda: read_records(*self.properties(topic), topic.name, OffsetSync.decode),
            lambda records: self.writer(topic).write(topic.name, records),
        )

    @functools.cached_property
    def checkpoint_journal(self) -> Journal[Checkpoint]:
        topic = self.checkpoints
        return Journal(
            lambda: read_records(*self.properties(topic), topic.name, Checkpoint.decode),
            lambda records: self.writer(topic).write(topic.name, records),
        )

    def create(self) -> None:
        """Create the topics that the flow writes, where they are missing. Topics that exist stay as they are."""
        due = [self.heartbeats] if self.flow.emit_heartbeats.enabled else []
        if not self._heartbeats_only:
            due += self._topics_of_an_enabled_flow()
        for in_source in (False, True):
            topics = [topic for topic in due if topic.in_source is in_source]
            if topics:
                _create(self.cluster if not in_source else self._source_cluster(), topics)

    def _topics_of_an_enabled_flow(self) -> list[InternalTopic]:
        flow = self.flow
        return [
            *([self.remote_heartbeats] if flow.heartbeats_replicated else []),
            *([self.checkpoints] if flow.emit_checkpoints.enabled else []),
            *([self.offset_syncs] if flow.emit_offset_syncs else []),
        ]

    def properties(self, topic: InternalTopic) -> tuple[Properties, str]:
        """Return the properties of the cluster that a topic is in, and that cluster's role."""
        role: Literal["source", "target"] = "source" if topic.in_source else "target"
        return self.flow.client(role), role

    def writer(self, topic: InternalTopic) -> RecordWriter:
        """Return the producer for a topic; it is kept until `close`."""
        if topic.in_source not in self._writers:
            self._writers[topic.in_source] = RecordWriter(*self.properties(topic))
        return self._writers[topic.in_source]

    def close(self) -> None:
        """Close the producers; idempotent."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _reaches_source(self) -> bool:
        try:
            self._source_cluster().connect()
        except (UnreachableError, UsageError) as error:
            self.warnings.append(
                f"flow {self.flow.name}: offset syncs go to {self.flow.target}, not to {self.flow.source} as "
                f"offset-syncs.topic.location says: {error.message}"
            )
            return False
        return True

    def _source_cluster(self) -> Cluster:
        return Cluster(*self.properties(InternalTopic("", 0, in_source=True)))


def _create(cluster: Cluster, topics: list[InternalTopic]) -> None:
    present = cluster.topics({topic.name for topic in topics})
    for topic in topics:
        if topic.name in present:
            continue
        try:
            cluster.create_topic(topic.name, 1, topic.replication_factor, CONFIGS)
        except KbackupError:
            if not cluster.topics([topic.name]):  # another process may have made it meanwhile
                raise
