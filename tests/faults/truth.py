"""What a cluster and an archive hold, record by record, read without the code under test where that is
possible."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as KafkaTopicPartition

from kbackup.archive import layout
from kbackup.archive.models import Manifest
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.segment_io import read_segment
from kbackup.archive.segments import Segment
from kbackup.formats.index import decode_partition_index
from kbackup.formats.record import decode
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from scripts.dev.kafka import Broker

Headers = tuple[tuple[str, bytes | None], ...]


class Row(NamedTuple):
    """A record as Kafka has it; `kind` is the timestamp type of the archive format."""

    offset: int
    kind: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def record(self) -> tuple[int, int, bytes | None, bytes | None, Headers]:
        """Without the offset, which a restore changes."""
        return self[1:]


Rows = dict[TopicPartition, list[Row]]


class Shop(NamedTuple):
    """`orders` has three partitions, `events` transactions, the last of them aborted; `committed` is where
    the group stands."""

    broker: Broker
    orders: str
    events: str
    group: str
    committed: dict[TopicPartition, int]

    @property
    def topics(self) -> list[str]:
        return [self.orders, self.events]


def open_shop(broker: Broker, name: str) -> Shop:
    """Empty topics, and a group that will stand in them."""
    orders, events = f"{name}-orders", f"{name}-events"
    broker.create_topic(orders, 3)
    broker.create_topic(events, 1)
    committed = {TopicPartition(orders, 0): 17, TopicPartition(orders, 1): 60, TopicPartition(events, 0): 50}
    return Shop(broker, orders, events, f"{name}-group", committed)


def sell(shop: Shop, records: int) -> None:
    """Fill the topics (further): records of all kinds, and transactions of which every other is aborted. The group
    moves on a little."""
    producer = Producer(shop.broker.client())
    for i in range(records):
        headers: list[tuple[str, str | bytes | None]] = [("n", str(i)), ("n", None)] if i % 7 == 0 else []
        value = None if i % 11 == 0 else bytes([i % 251]) * (50 + i % 90)
        key = f"key-{i}".encode() if i % 5 else None
        producer.produce(shop.orders, value, key, i % 3, headers=headers, timestamp=10**12 + i)
        producer.poll(0)
    assert producer.flush(60) == 0
    transactions = Producer(shop.broker.client(**{"transactional.id": shop.events}))
    transactions.init_transactions(60)
    for begun, size in enumerate((40, 30, 50, 20)):
        transactions.begin_transaction()
        for i in range(size):
            transactions.produce(shop.events, f"event-{begun}-{i}".encode() * 9, b"k", 0)
        transactions.flush(60)
        if begun % 2:
            transactions.abort_transaction(60)
        else:
            transactions.commit_transaction(60)
    for tp in shop.committed:
        shop.committed[tp] += 1
    commit(shop.broker, shop.group, shop.committed)


def commit(broker: Broker, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    consumer = _consumer(broker, group)
    try:
        wanted = [KafkaTopicPartition(*tp, offset) for tp, offset in offsets.items()]
        consumer.commit(offsets=wanted, asynchronous=False)
    finally:
        consumer.close()


def committed(broker: Broker, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    consumer = _consumer(broker, group)
    try:
        found = consumer.committed([KafkaTopicPartition(*tp) for tp in partitions], timeout=30)
    finally:
        consumer.close()
    return {TopicPartition(p.topic, p.partition): p.offset for p in found}


def in_cluster(broker: Broker, topics: Sequence[str]) -> Rows:
    """Every committed record of `topics`."""
    consumer = _consumer(broker, "kbackup-tests-truth")
    try:
        seen = consumer.list_topics(timeout=30).topics
        rows: Rows = {TopicPartition(t, p): [] for t in topics for p in seen[t].partitions}
        consumer.assign([KafkaTopicPartition(*tp, 0) for tp in rows])
        left, end = set(rows), time.monotonic() + 60
        while left:
            assert time.monotonic() < end, f"no end of {left}"
            for message in consumer.consume(500, 0.2):
                topic, partition, offset = message.topic(), message.partition(), message.offset()
                assert topic is not None
                assert partition is not None
                assert offset is not None
                tp, error = TopicPartition(topic, partition), message.error()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    left.discard(tp)
                    continue
                kind, stamp = message.timestamp()
                pairs: Any = message.headers() or []  # a list of pairs, whatever the stubs say
                headers = tuple((k, _bytes(v)) for k, v in pairs)
                rows[tp].append(Row(offset, kind - 1, stamp, message.key(), message.value(), headers))
        return rows
    finally:
        consumer.close()


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _consumer(broker: Broker, group: str) -> Consumer:
    return Consumer(
        broker.client(
            **{
                "group.id": group,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "log_level": 0,
            }
        )
    )


def in_archive(store: Store, manifest: Manifest | None = None) -> Rows:
    """Every record that a restore point (default: the newest) promises, each checked on its way."""
    archive = open_archive(store)
    point = manifest or archive.restore_point("latest")
    rows: Rows = {TopicPartition(t.name, p.partition): [] for t in point.topics for p in t.partitions}
    for segment in archive.segments(point):
        rows[TopicPartition(segment.topic, segment.partition)] += _rows(store, segment)
    return rows


def _rows(store: Store, segment: Segment) -> Iterator[Row]:
    for block in read_segment(store, segment):
        for r in decode(block).to_pylist():
            headers = tuple((h["key"], h["value"]) for h in r["headers"])
            yield Row(r["offset"], r["timestamp_type"], r["timestamp"], r["key"], r["value"], headers)


def check_archive(store: Store, shop: Shop) -> Archive:
    """What must hold after every run that succeeded, whatever came before it."""
    archive = open_archive(store)
    head = archive.restore_point("latest")
    source = in_cluster(shop.broker, shop.topics)
    held = in_archive(store)
    assert held == source
    segments = archive.added(0, head.number)
    promised = {s.key for s in segments} | {layout.index_key_of(s.key) for s in segments}
    there = {e.key for e in store.list(layout.TOPICS) if _is_segment(e.key)}
    assert there == promised, f"leftovers {sorted(there - promised)}, missing {sorted(promised - there)}"
    for tp, rows in held.items():
        state = next(
            p for t in head.topics if t.name == tp.topic for p in t.partitions if p.partition == tp.partition
        )
        assert state.records == len(rows)
    offsets = {
        TopicPartition(o.topic, o.partition): o.offset for g in archive.groups(head).groups for o in g.offsets
    }
    assert offsets == shop.committed
    _check_derived(archive, head)
    return archive


def _check_derived(archive: Archive, head: Manifest) -> None:
    for topic in head.topics:
        for partition in topic.partitions:
            key = layout.partition_index_key(
                layout.topic_dir(topic.name, topic.incarnation), partition.partition
            )
            starts = [entry.start_offset for entry in decode_partition_index(archive.store.get(key), key)]
            own = [s for s in archive.segments(head, [topic]) if s.partition == partition.partition]
            assert starts == [s.first for s in own]


def _is_segment(key: str) -> bool:
    return layout.parse_segment(key.rpartition("/")[2]) is not None
