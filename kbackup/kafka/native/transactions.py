"""librdkafka's transaction calls. They raise confluent-kafka's `KafkaException`; the interpreter goes on meanwhile.
Times are in seconds."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

from confluent_kafka import KafkaException

from kbackup.kafka.native.librdkafka import lib, taken
from kbackup.kafka.produce.outlet import Progress
from kbackup.types import TopicPartition


class _Place(ctypes.Structure):
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
    _check(lib.rd_kafka_init_transactions(client, _ms(timeout)))


def begin(client: int) -> None:
    _check(lib.rd_kafka_begin_transaction(client))


def send_progress(
    client: int, group: str, progress: Mapping[TopicPartition, Progress], timeout: float
) -> None:
    """Add the progress to the transaction, for a group that has no members."""
    places = lib.rd_kafka_topic_partition_list_new(len(progress))
    member = lib.rd_kafka_consumer_group_metadata_new(group.encode())
    try:
        for tp, at in progress.items():
            _add(places, tp, at)
        error = lib.rd_kafka_send_offsets_to_transaction(client, places, member, _ms(timeout))
    finally:
        lib.rd_kafka_consumer_group_metadata_destroy(member)
        lib.rd_kafka_topic_partition_list_destroy(places)
    _check(error)


def commit(client: int, timeout: float) -> None:
    """Waits for delivery reports itself where some are not taken yet, which nobody would take meanwhile: none
    may be left."""
    _check(lib.rd_kafka_commit_transaction(client, _ms(timeout)))


def abort(client: int, timeout: float) -> None:
    """Waits until every delivery report is taken: somebody has to, meanwhile."""
    _check(lib.rd_kafka_abort_transaction(client, _ms(timeout)))


def _add(places: int, tp: TopicPartition, at: Progress) -> None:
    made = lib.rd_kafka_topic_partition_list_add(places, tp.topic.encode(), tp.partition)
    place = _Place.from_address(made)
    place.offset = at.next
    note = at.note.encode() + b"\0"  # confluent-kafka writes it with the NUL byte, and reads up to one
    place.metadata = lib.rd_kafka_mem_malloc(None, len(note))  # it goes with the list, which frees it
    ctypes.memmove(place.metadata, note, len(note))
    place.metadata_size = len(note)


def _check(error: int | None) -> None:
    found = taken(error)
    if found is not None:
        raise KafkaException(found)


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
