"""The internal topics of a flow, made as MirrorMaker 2 makes them: one partition, compacted."""

from __future__ import annotations

import functools
from types import TracebackType
from typing import Literal, Self

from kbackup.errors import ClusterError, KbackupError, UnreachableError, UsageError
from kbackup.jobs.mirror.flow import AppliedPosition, Flow
from kbackup.jobs.mirror.internal.journal import Journal, SyncJournal
from kbackup.jobs.mirror.internal.names import InternalNames, InternalTopic
from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.client.client import Properties
from kbackup.kafka.mirror_records import Checkpoint, OffsetSync
from kbackup.kafka.mirror_records.reader import read_records
from kbackup.kafka.mirror_records.writer import RecordWriter
from kbackup.types import TopicPartition

CONFIGS = {"cleanup.policy": "compact"}


class InternalTopics:
    """A flow's internal topics, and the producers that write them. One object serves all rounds of a process:

        with InternalTopics(flow, cluster) as target: ...

    Entering creates missing topics. `warnings` says what differs from the properties file.
    """

    def __init__(self, flow: Flow, cluster: Cluster) -> None:
        """`cluster` is the target's."""
        self.flow, self.cluster = flow, cluster
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

    @functools.cached_property
    def names(self) -> InternalNames:
        """Return the names; where offset syncs go to the source, this checks that the source can be reached."""
        flow = self.flow
        in_source = flow.emit_offset_syncs and flow.offset_syncs_location == "source"
        return InternalNames(flow, in_source and self._reaches_source())

    @functools.cached_property
    def sync_journal(self) -> SyncJournal:
        topic = self.names.offset_syncs
        return SyncJournal(
            lambda: read_records(*self.properties(topic), topic.name, OffsetSync.decode),
            lambda records: self.writer(topic).write(topic.name, records),
        )

    @functools.cached_property
    def checkpoint_journal(self) -> Journal[Checkpoint]:
        topic = self.names.checkpoints
        return Journal(
            lambda: read_records(*self.properties(topic), topic.name, Checkpoint.decode),
            lambda records: self.writer(topic).write(topic.name, records),
        )

    def create(self) -> None:
        """Create the topics that the flow writes, where they are missing. Topics that exist stay as they are."""
        due = self.names.written()
        for in_source in (False, True):
            topics = [topic for topic in due if topic.in_source is in_source]
            if topics:
                _create(self.cluster if not in_source else self._source_cluster(), topics)

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
        except KbackupError as error:
            if cluster.topics([topic.name]):  # another process has made it meanwhile
                continue
            if not isinstance(error, ClusterError):
                raise
            hint = f"set {topic.factor_key} to less than {topic.replication_factor} where there are fewer brokers"
            if "collides" in error.message:
                hint = (
                    f"delete the topic that it collides with, which differs from {topic.name} in '.' and '_' only, or "
                    "set another replication.policy.separator"
                )
            raise ClusterError(error.message, hint) from error
