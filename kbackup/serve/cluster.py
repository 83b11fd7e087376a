"""Answer what clients ask of a cluster: its one broker, its topics and their partitions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from kbackup.kafka.control.messages import admin, metadata
from kbackup.serve.current import Current
from kbackup.serve.logs import ServedArchive
from kbackup.serve.protocol import BROKER_ID, Api, ClientRequest, ErrorCode, ServedTopic

_NO_ID = UUID(int=0)
_READ = 3
_DESCRIBE = 8
_DESCRIBE_CONFIGS = 10
_TOPIC_OPERATIONS = (1 << _READ) | (1 << _DESCRIBE) | (1 << _DESCRIBE_CONFIGS)
_CLUSTER_OPERATIONS = (1 << _DESCRIBE) | (1 << _DESCRIBE_CONFIGS)
"""What may be done, as the bits of Kafka's operations: everything that reads."""

_MOST_PARTITIONS = 2000
"""Partitions of one answer to DescribeTopicPartitions."""

_Broker = metadata.MetadataResponse.MetadataResponseBroker
_Topic = metadata.MetadataResponse.MetadataResponseTopic
_Partition = _Topic.MetadataResponsePartition
_ClusterBroker = admin.DescribeClusterResponse.DescribeClusterBroker
_Described = admin.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
_DescribedPartition = _Described.DescribeTopicPartitionsResponsePartition
_Cursor = admin.DescribeTopicPartitionsResponse.Cursor


class ClusterView:
    """Answers what is asked of the cluster: one broker, which leads everything."""

    def __init__(self, current: Current) -> None:
        self._current = current

    def apis(self) -> list[Api]:
        return [
            Api(metadata.MetadataRequest, metadata.MetadataResponse, 0, 13, self.metadata),
            Api(admin.DescribeClusterRequest, admin.DescribeClusterResponse, 0, 2, self.describe_cluster),
            Api(
                admin.DescribeTopicPartitionsRequest,
                admin.DescribeTopicPartitionsResponse,
                0,
                0,
                self.describe_partitions,
            ),
        ]

    async def metadata(self, request: ClientRequest) -> Any:
        archive = self._current.archive
        host, port = self._current.address()
        asked = request.message.topics
        # No list is every topic; in version 0, whose lists can't be absent, an empty one is.
        if asked is None or (request.version == 0 and not asked):
            topics = [_topic(archive, topic) for topic in archive.topics.values()]
        else:
            topics = [_asked_topic(archive, each) for each in asked]
        broker = _Broker(node_id=BROKER_ID, host=host, port=port, rack=None)
        response = metadata.MetadataResponse(
            brokers=[broker], cluster_id=cluster_id(archive), controller_id=BROKER_ID, topics=topics
        )
        if request.message.include_topic_authorized_operations:
            for topic in topics:
                topic.authorized_operations = _bits(_TOPIC_OPERATIONS)
        if request.message.include_cluster_authorized_operations:
            response.authorized_operations = _bits(_CLUSTER_OPERATIONS)
        return response

    async def describe_cluster(self, request: ClientRequest) -> Any:
        host, port = self._current.address()
        operations: set[int] | None = None
        if request.message.include_cluster_authorized_operations:
            operations = _bits(_CLUSTER_OPERATIONS)
        return admin.DescribeClusterResponse(
            error_code=0,
            error_message=None,
            endpoint_type=request.message.endpoint_type or 1,
            cluster_id=cluster_id(self._current.archive),
            controller_id=BROKER_ID,
            brokers=[_ClusterBroker(broker_id=BROKER_ID, host=host, port=port, rack=None, is_fenced=False)],
            authorized_operations=operations,
        )

    async def describe_partitions(self, request: ClientRequest) -> Any:
        archive = self._current.archive
        message = request.message
        names = sorted({each.name for each in message.topics} or archive.topics)
        first = 0
        if message.cursor is not None:
            names = [name for name in names if name >= message.cursor.topic_name]
            if names and names[0] == message.cursor.topic_name:
                first = max(0, message.cursor.partition_index)
        room = min(max(1, message.response_partition_limit), _MOST_PARTITIONS)
        topics: list[Any] = []
        following = None
        for name in names:
            topic = archive.topics.get(name)
            if topic is None:
                topics.append(_Described(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name, topic_id=_NO_ID))
                continue
            if room <= 0:
                following = _Cursor(topic_name=name, partition_index=0)
                break
            last = min(topic.partitions, first + room)
            topics.append(_described(archive, topic, range(first, last)))
            room -= last - first
            if last < topic.partitions:
                following = _Cursor(topic_name=name, partition_index=last)
                break
            first = 0
        return admin.DescribeTopicPartitionsResponse(topics=topics, next_cursor=following)


def cluster_id(archive: ServedArchive) -> str:
    """Return the id of the archived cluster, or a name for one that is not known."""
    return archive.cluster_id or "kbackup"


def leader_epochs(archive: ServedArchive, topic: ServedTopic) -> list[int]:
    """Return the leader epoch of each partition of a topic.

    It is at least the one of every archived group's offset: a client with a later epoch than its metadata's waits for
    newer metadata, and ours would never come."""
    epochs = [log.leader_epoch for log in archive.logs_of(topic.name)]
    for partition, committed in archive.committed_epochs.get(topic.name, {}).items():
        epochs[partition] = max(epochs[partition], committed)
    return epochs


def _asked_topic(archive: ServedArchive, asked: Any) -> Any:
    """Return the answer for a topic that a request names, by its name or its id."""
    name = asked.name
    if name is None:
        name = archive.by_id.get(asked.topic_id)
        if name is None:
            return _Topic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=asked.topic_id, partitions=[])
    topic = archive.topics.get(name)
    if topic is None:
        # Nothing is created here, whatever the client allows.
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return _Topic(error_code=code, name=name, topic_id=_NO_ID, partitions=[])
    return _topic(archive, topic)


def _topic(archive: ServedArchive, topic: ServedTopic) -> Any:
    partitions: list[Any] = []
    for number, epoch in enumerate(leader_epochs(archive, topic)):
        partition = _Partition(
            error_code=0,
            partition_index=number,
            leader_id=BROKER_ID,
            leader_epoch=epoch,
            replica_nodes=[BROKER_ID],
            isr_nodes=[BROKER_ID],
            offline_replicas=[],
        )
        partitions.append(partition)
    return _Topic(error_code=0, name=topic.name, topic_id=topic.topic_id, is_internal=False, partitions=partitions)


def _described(archive: ServedArchive, topic: ServedTopic, numbers: Iterable[int]) -> Any:
    epochs = leader_epochs(archive, topic)
    partitions: list[Any] = []
    for number in numbers:
        partition = _DescribedPartition(
            error_code=0,
            partition_index=number,
            leader_id=BROKER_ID,
            leader_epoch=epochs[number],
            replica_nodes=[BROKER_ID],
            isr_nodes=[BROKER_ID],
            eligible_leader_replicas=[],
            last_known_elr=[],
            offline_replicas=[],
        )
        partitions.append(partition)
    return _Described(
        error_code=0,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=False,
        partitions=partitions,
        topic_authorized_operations=_TOPIC_OPERATIONS,
    )


def _bits(operations: int) -> set[int]:
    """Return a set of operations as kafka-python takes it."""
    return {bit for bit in range(32) if operations >> bit & 1}
