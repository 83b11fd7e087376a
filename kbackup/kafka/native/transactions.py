"""librdkafka's transaction calls. They raise confluent-kafka's `KafkaException` and don't hold the GIL.

Times are in seconds.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

from confluent_kafka import KafkaException

from kbackup.kafka.native.librdkafka import lib, taken
from kbackup.kafka.produce.outlet import Progress
from kbackup.types import TopicPartition


class _TopicPartition(ctypes.Structure):
    """`rd_kafka_topic_partition_t`."""

    _fields_ = (
        ("topic", ctypes.c_char_p),
        ("partition", ctypes.c_int32),
        ("offset", ctypes.c_int64),
        ("metadata", ctypes.c_void_p),
        ("metadata_size", ctypes.c_size_t),
        ("opaque", ctypes.c_void_p),
        ("error", ctypes.c_int),
        ("private", ctypes.c_void_p),
    )


def init(client: int, timeout: float) -> None:
    """Fence the id's earlier producer."""
    _check(lib.rd_kafka_init_transactions(client, _ms(timeout)))


def begin(client: int) -> None:
    _check(lib.rd_kafka_begin_transaction(client))


def send_progress(
    client: int, group: str, progress: Mapping[TopicPartition, Progress], timeout: float
) -> None:
    """Add the progress to the transaction, for a group that has no members."""
    partitions = lib.rd_kafka_topic_partition_list_new(len(progress))
    member = lib.rd_kafka_consumer_group_metadata_new(group.encode())
    try:
        for tp, at in progress.items():
            _add(partitions, tp, at)
        error = lib.rd_kafka_send_offsets_to_transaction(client, partitions, member, _ms(timeout))
    finally:
        lib.rd_kafka_consumer_group_metadata_destroy(member)
        lib.rd_kafka_topic_partition_list_destroy(partitions)
    _check(error)


def commit(client: int, timeout: float) -> None:
    """Commit the transaction. All delivery reports must be taken before: the call would wait for them forever."""
    _check(lib.rd_kafka_commit_transaction(client, _ms(timeout)))


def abort(client: int, timeout: float) -> None:
    """Abort the transaction; another thread must take the delivery reports that this call waits for."""
    _check(lib.rd_kafka_abort_transaction(client, _ms(timeout)))


def _add(partitions: int, tp: TopicPartition, at: Progress) -> None:
    made = lib.rd_kafka_topic_partition_list_add(partitions, tp.topic.encode(), tp.partition)
    entry = _TopicPartition.from_address(made)
    entry.offset = at.next
    note = at.note.encode() + b"\0"  # confluent-kafka writes it with the NUL byte, and reads up to one
    entry.metadata = lib.rd_kafka_mem_malloc(None, len(note))  # it goes with the list, which frees it
    ctypes.memmove(entry.metadata, note, len(note))
    entry.metadata_size = len(note)


def _check(error: int | None) -> None:
    failure = taken(error)
    if failure is not None:
        raise KafkaException(failure)


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
