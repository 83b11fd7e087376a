"""Read the state of a cluster with a plain consumer, without kbackup, and compare two states."""

from __future__ import annotations

import hashlib
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from kafka.admin import KafkaAdminClient

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


def capture(client: dict[str, Any], topics: Mapping[str, int], groups: Sequence[str]) -> State:
    """All records of `topics` (name: partitions) that are not of aborted transactions, and where `groups` stand."""
    records = read_all(client, topics)
    # confluent-kafka reads past the end of a metadata string
    admin = KafkaAdminClient(bootstrap_servers=client["bootstrap.servers"])
    try:
        committed = admin.list_group_offsets(list(groups))
    finally:
        admin.close()
    standing: dict[tuple[str, TopicPartition], Standing] = {}
    for group, offsets in committed.items():
        for place, at in offsets.items():
            tp = TopicPartition(place.topic, place.partition)
            if at.offset >= 0 and tp in records:
                passed = bisect_left(records[tp], at.offset, key=lambda record: record.offset)
                following = records[tp][passed].digest if passed < len(records[tp]) else None
                standing[group, tp] = Standing(at.offset, passed, following, at.metadata or "")
    return State(records, standing)


def read_all(client: dict[str, Any], topics: Mapping[str, int]) -> dict[TopicPartition, list[Record]]:
    """The records of every partition of `topics`, from its start to its end."""
    partitions = [(topic, number) for topic, count in topics.items() for number in range(count)]
    records: dict[TopicPartition, list[Record]] = {TopicPartition(*tp): [] for tp in partitions}
    own = {"isolation.level": "read_committed", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer({**client, "group.id": "demo-compare", **own})
    try:
        consumer.assign([KafkaTopicPartition(*tp, OFFSET_BEGINNING) for tp in partitions])
        reading, heard = set(records), time.monotonic()
        while reading:
            for message in consumer.consume(10_000, 0.2):
                heard = time.monotonic()
                tp, error = TopicPartition(message.topic() or "", message.partition() or 0), message.error()
                if error is None:
                    whole = (message.timestamp(), message.key(), message.value(), message.headers() or [])
                    records[tp].append(Record(message.offset() or 0, hashlib.sha256(repr(whole).encode()).digest()))
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
    partitions = [KafkaTopicPartition(topic, number) for topic, count in topics.items() for number in range(count)]
    admin = AdminClient({**client, "log_level": 3})  # kept until its futures are done: they fail when it goes
    futures = admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.latest()))
    return {TopicPartition(tp.topic, tp.partition): future.result(_SILENCE).offset for tp, future in futures.items()}


class PartitionRow(NamedTuple):
    """`digests` are the first digits of a digest over all records; None without a record."""

    tp: TopicPartition
    records: tuple[int, int]
    digests: tuple[str | None, str | None]

    @property
    def same(self) -> bool:
        return self.records[0] == self.records[1] and self.digests[0] == self.digests[1]


class GroupRow(NamedTuple):
    """The group is at the same place if it passed as many records, the same one is next, and its metadata is the same;
    offsets may differ. `of` counts the records of the partition before."""

    group: str
    tp: TopicPartition
    before: Standing | None
    after: Standing | None
    of: int

    @property
    def same(self) -> bool:
        return self.before is not None and self.after is not None and self.before[1:] == self.after[1:]


def compare_partitions(before: State, after: State) -> list[PartitionRow]:
    both = {tp: (before.records.get(tp, ()), after.records.get(tp, ())) for tp in {**before.records, **after.records}}
    return [PartitionRow(tp, (len(a), len(b)), (_digest(a), _digest(b))) for tp, (a, b) in sorted(both.items())]


def compare_groups(before: State, after: State) -> list[GroupRow]:
    return [
        GroupRow(*place, before.groups.get(place), after.groups.get(place), len(before.records.get(place[1], ())))
        for place in sorted(before.groups.keys() | after.groups.keys())
    ]


def _digest(records: Sequence[Record]) -> str | None:
    return hashlib.sha256(b"".join(record.digest for record in records)).hexdigest()[:12] if records else None
