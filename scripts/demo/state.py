"""Read the state of a cluster with a plain consumer, without kbackup, and compare two states."""

from __future__ import annotations

import hashlib
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
)
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import AdminClient

from kbackup.types import TopicPartition

_SILENCE = 30.0  # s


class Record(NamedTuple):
    """`digest` is over timestamp and its type, key, value and headers: all but the offset."""

    offset: int
    digest: bytes


class Standing(NamedTuple):
    """The position of a group: the committed `offset`, the number of records before it (`passed`), and the `next`.

    `next` is the digest of the next record; None at the end.
    """

    offset: int
    passed: int
    next: bytes | None
    metadata: str


@dataclass(frozen=True)
class State:
    records: Mapping[TopicPartition, Sequence[Record]]
    groups: Mapping[tuple[str, TopicPartition], Standing]


class PartitionRow(NamedTuple):
    tp: TopicPartition
    records: tuple[int, int]
    digests: tuple[str | None, str | None]
    same: bool


class GroupRow(NamedTuple):
    """`passed` and `of`: records before the group's position and in the partition, each before and after."""

    group: str
    tp: TopicPartition
    offsets: tuple[int | None, int | None]
    passed: int | None
    of: int
    same: bool


def capture(client: dict[str, Any], topics: Mapping[str, int], groups: Sequence[str]) -> State:
    """All records of `topics` (name: partitions) that are not of aborted transactions, and where `groups` stand."""
    records = read_all(client, topics)
    admin = AdminClient({**client, "log_level": 3})
    asked = [admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]) for group in groups]
    standing: dict[tuple[str, TopicPartition], Standing] = {}
    for future in (future for some in asked for future in some.values()):
        found = future.result(30)
        for committed in found.topic_partitions:
            tp = TopicPartition(committed.topic, committed.partition)
            if committed.offset >= 0 and tp in records:
                standing[found.group_id, tp] = _standing(committed, records[tp])
    return State(records, standing)


def read_all(client: dict[str, Any], topics: Mapping[str, int]) -> dict[TopicPartition, list[Record]]:
    """The records of every partition of `topics`, from its start to its end."""
    partitions = [(topic, number) for topic, count in topics.items() for number in range(count)]
    records: dict[TopicPartition, list[Record]] = {TopicPartition(*tp): [] for tp in partitions}
    consumer = Consumer(
        {
            **client,
            "group.id": "demo-compare",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        consumer.assign([KafkaTopicPartition(*tp, OFFSET_BEGINNING) for tp in partitions])
        reading, heard = set(records), time.monotonic()
        while reading:
            for message in consumer.consume(10_000, 0.2):
                heard = time.monotonic()
                tp, error = TopicPartition(message.topic() or "", message.partition() or 0), message.error()
                if error is None:
                    records[tp].append(Record(message.offset() or 0, _digest(message)))
                elif error.code() == KafkaError._PARTITION_EOF:
                    reading.discard(tp)
                else:
                    raise KafkaException(error)
            if time.monotonic() - heard > _SILENCE:
                raise TimeoutError(f"nothing came for {_SILENCE:.0f} s from {sorted(reading)}")
    finally:
        consumer.close()
    return records


def ends(client: dict[str, Any], topics: Mapping[str, int]) -> dict[TopicPartition, int]:
    """The high watermark of each partition."""
    consumer = Consumer({**client, "group.id": "demo-compare"})
    try:
        return {
            TopicPartition(topic, number): consumer.get_watermark_offsets(
                KafkaTopicPartition(topic, number), timeout=_SILENCE
            )[1]
            for topic, partitions in topics.items()
            for number in range(partitions)
        }
    finally:
        consumer.close()


def compare_partitions(before: State, after: State) -> list[PartitionRow]:
    rows = []
    for tp in sorted(before.records.keys() | after.records.keys()):
        a, b = before.records.get(tp, ()), after.records.get(tp, ())
        digests = (_digest_of_all(a), _digest_of_all(b))
        rows.append(PartitionRow(tp, (len(a), len(b)), digests, len(a) == len(b) and digests[0] == digests[1]))
    return rows


def compare_groups(before: State, after: State) -> list[GroupRow]:
    """Compare groups: as many records passed, the same next record, the same metadata. Offsets may differ."""
    rows = []
    for group, tp in sorted(before.groups.keys() | after.groups.keys()):
        a, b = before.groups.get((group, tp)), after.groups.get((group, tp))
        rows.append(
            GroupRow(
                group,
                tp,
                (a.offset if a else None, b.offset if b else None),
                a.passed if a else None,
                len(before.records.get(tp, ())),
                a is not None and b is not None and a[1:] == b[1:],
            )
        )
    return rows


def _standing(committed: KafkaTopicPartition, records: Sequence[Record]) -> Standing:
    at = bisect_left(records, committed.offset, key=lambda record: record.offset)
    return Standing(committed.offset, at, records[at].digest if at < len(records) else None, committed.metadata or "")


def _digest(message: Message) -> bytes:
    whole = (message.timestamp(), message.key(), message.value(), message.headers() or [])
    return hashlib.sha256(repr(whole).encode()).digest()


def _digest_of_all(records: Sequence[Record]) -> str | None:
    """The first digits of a digest over all; None without a record."""
    if not records:
        return None
    return hashlib.sha256(b"".join(record.digest for record in records)).hexdigest()[:12]
