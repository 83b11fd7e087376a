"""Read the content of a cluster and of an archive record by record, and compare them.

A cluster is read by confluent-kafka's message objects, an archive's files by the plain decoder of the unit
tests: neither goes through the code that reads and writes them in a backup.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import zstandard
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from kbackup.archive import layout
from kbackup.archive.models import Manifest, TopicState
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.segments.table import Segment
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from tests.support.kafka_raw import raw_positions
from tests.unit.formats.reference import Record, a_record, decode_records

_COORDINATOR_NOT_READY = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)

Records = dict[int, list[Record]]
"""Records by partition, in order; a partition with none is there too."""

PartitionRecords = dict[TopicPartition, list[Record]]
"""The same of several topics."""

_PATIENCE = 90.0  # s
_MOST = 1 << 30  # bytes; more than any segment of a test


class Position(NamedTuple):
    """The position of a consumer group in a partition."""

    offset: int
    metadata: str = ""


def read_topic(bootstrap: str, topic: str, isolation: str = "read_committed") -> Records:
    """All that a consumer of this isolation level gets to see."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "kbackup-tests-truth",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 20,
            "log_level": 0,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        consumer.assign([KafkaTopicPartition(topic, p, 0) for p in partitions])
        records: Records = {p: [] for p in sorted(partitions)}
        going, until = set(partitions), time.monotonic() + _PATIENCE
        while going:
            assert time.monotonic() < until, f"no end of {topic}, partitions {sorted(going)}"
            for message in consumer.consume(1000, 0.1):
                partition, error = message.partition(), message.error()
                assert partition is not None, error
                if error is None:
                    records[partition].append(record_of(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    going.discard(partition)
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()
    return records


def record_of(message: Message) -> Record:
    """A message with the archive's timestamp types: a create time of -1 is a record without a timestamp."""
    offset = message.offset()
    kind, stamp = message.timestamp()
    assert offset is not None
    kind = -2 if (kind, stamp) == (1, -1) else kind - 1
    # pairs of name and bytes; the stubs allow what produce() takes, dicts too
    headers: list[Any] = list(message.headers() or [])
    return a_record(
        offset,
        kind=kind,
        timestamp=stamp if kind >= 0 else None,
        key=message.key(),
        value=message.value(),
        headers=headers,
    )


def log_starts(bootstrap: str, topic: str) -> dict[int, int]:
    """The offset at which each log begins."""
    return _offsets(bootstrap, topic, OffsetSpec.earliest(), "read_committed")


def log_ends(bootstrap: str, topic: str, isolation: str = "read_committed") -> dict[int, int]:
    """The last stable offset of each partition, or its high watermark."""
    return _offsets(bootstrap, topic, OffsetSpec.latest(), isolation)


_LEADING_SECONDS = 30.0
"""A topic that was just created, or whose broker is busy, may have no leader that answers for a moment."""


def _offsets(bootstrap: str, topic: str, spec: OffsetSpec, isolation: str) -> dict[int, int]:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    partitions = admin.list_topics(topic, timeout=30).topics[topic].partitions
    level = IsolationLevel[isolation.upper()]
    asked = {KafkaTopicPartition(topic, p): spec for p in partitions}
    until = time.monotonic() + _LEADING_SECONDS
    while True:
        futures = admin.list_offsets(asked, isolation_level=level)
        try:
            return {tp.partition: future.result(30).offset for tp, future in futures.items()}
        except KafkaException as error:
            is_moving = error.args[0].code() == KafkaError.NOT_LEADER_FOR_PARTITION
            if not is_moving or time.monotonic() > until:
                raise
            time.sleep(0.2)


def commit(bootstrap: str, group: str, positions: Mapping[tuple[str, int], Position]) -> None:
    """Put a group without members at `positions`."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    offsets = [KafkaTopicPartition(*tp, at.offset, metadata=at.metadata) for tp, at in positions.items()]
    until = time.monotonic() + _PATIENCE
    try:
        while True:
            try:
                committed = consumer.commit(offsets=offsets, asynchronous=False) or []
                break
            except KafkaException as raised:  # right after the broker's start
                if raised.args[0].code() not in _COORDINATOR_NOT_READY or time.monotonic() > until:
                    raise
                time.sleep(0.1)
        for some in committed:
            assert some.error is None, some.error
    finally:
        consumer.close()


def group_names(admin: AdminClient) -> set[str]:
    """Of every group that there is, once all brokers have answered."""
    until = time.monotonic() + _PATIENCE
    while True:
        listing = admin.list_consumer_groups().result(_PATIENCE)
        if not listing.errors:
            return {group.group_id for group in listing.valid}
        assert time.monotonic() < until, f"groups can't be listed: {listing.errors}"
        time.sleep(0.2)


def positions(bootstrap: str, group: str) -> dict[tuple[str, int], Position]:
    """All that a group has committed."""
    stand = raw_positions(bootstrap, group)
    return {place: Position(offset, metadata) for place, (offset, _, metadata) in stand.items()}


def in_cluster(bootstrap: str, topics: Iterable[str]) -> PartitionRecords:
    """All that a consumer of committed records gets to see of `topics`."""
    return {
        TopicPartition(topic, partition): records
        for topic in topics
        for partition, records in read_topic(bootstrap, topic).items()
    }


def in_archive(store: Store, manifest: Manifest | None = None) -> PartitionRecords:
    """Return the records of a restore point (default: the newest), read from the files that it names."""
    archive = open_archive(store)
    point = manifest or archive.restore_point("latest")
    return {
        TopicPartition(topic.name, partition): records
        for topic in point.topics
        for partition, records in _topic_records(archive, point, topic).items()
    }


def without_offsets(records: PartitionRecords) -> dict[TopicPartition, list[tuple[Any, ...]]]:
    """Return records as they are compared with those of another cluster, where other offsets are theirs."""
    return {tp: [record[1:] for record in own] for tp, own in records.items()}


def archive_records(
    store: Store, topic: str, manifest: Manifest | None = None, incarnation: int | None = None
) -> Records:
    """The same of one topic, or of one of its incarnations."""
    archive = open_archive(store)
    point = manifest or archive.restore_point("latest")
    (state,) = [t for t in point.topics if t.name == topic and incarnation in (None, t.incarnation)]
    return _topic_records(archive, point, state)


def all_records(store: Store) -> dict[tuple[int, str], Records]:
    """The records of every topic of every restore point."""
    archive = open_archive(store)
    records: dict[tuple[int, str], Records] = {}
    for point in archive.restore_points:
        manifest = archive.manifest(point)
        for topic in manifest.topics:
            records[point.number, topic.name] = archive_records(store, topic.name, manifest)
    return records


def _topic_records(archive: Archive, point: Manifest, state: TopicState) -> Records:
    """Each segment's index is compared with its records on the way, and its descriptor with both."""
    records: Records = {p.partition: [] for p in state.partitions}
    expired = archive.state.starts
    for segment in archive.segments(point, [state]):
        records[segment.partition] += segment_records(archive.store, segment)
    for partition in state.partitions:
        held = records[partition.partition]
        went = expired.get((state.name, state.incarnation, partition.partition))
        gone = 0 if went is None else went.records if went.start <= partition.end else partition.records
        for row in archive.state.rewrites:
            if row.incarnation_partition == (state.name, state.incarnation, partition.partition):
                gone += row.records if row.point <= point.number else 0
        assert partition.records - gone == len(held)
        assert all(partition.start <= record.offset < partition.end for record in held)
    return records


def segment_records(store: Store, segment: Segment) -> list[Record]:
    """One segment's records; descriptor, index and records must say the same."""
    plain = plain_records(store, segment.key)
    records = decode_records(plain[1:])
    index = store.get(layout.index_key_of(segment.key))
    entries = list(struct.iter_unpack(">qqq", index[1:]))
    assert (plain[:1], index[:1]) == (b"\1", b"\1"), segment.key
    assert [offset for offset, _, _ in entries] == [r.offset for r in records], segment.key
    ends = [1, *(position + length for _, position, length in entries)]
    assert [position for _, position, _ in entries] == ends[:-1], segment.key
    assert ends[-1] == len(plain) == segment.bytes, segment.key
    assert (segment.first, segment.last) == (records[0].offset, records[-1].offset), segment.key
    assert (segment.count, segment.largest) == (len(records), max(n for _, _, n in entries)), segment.key
    stamps = [r.timestamp for r in records if r.timestamp is not None]
    extremes = (min(stamps, default=None), max(stamps, default=None))
    assert (segment.min_timestamp, segment.max_timestamp) == extremes, segment.key
    return records


def plain_records(store: Store, key: str) -> bytes:
    """A records file as documented, whatever it is stored as."""
    data = store.get(key)
    if not key.endswith(".zst"):
        return data
    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
        return reader.read(_MOST)


def documented_records(store: Store, folder: str) -> Records:
    """The same by the documented format alone: a topic folder's partition indexes lead to its records files."""
    names = [entry.key.removeprefix(folder) for entry in store.list(folder)]
    numbers = {n: p for n in names if (p := layout.parse_partition_index(n)) is not None}
    decoded: Records = {p: [] for p in sorted(numbers.values())}
    for name, partition in numbers.items():
        for stem, start in partition_index(store.get(folder + name)):
            stored = next(n for n in names if n in (f"{stem}_records", f"{stem}_records.zst"))
            records = decode_records(plain_records(store, folder + stored)[1:])
            assert [r.offset for r in records[:1]] == [start], folder + stored
            decoded[partition] += records
    return decoded


def partition_index(data: bytes) -> list[tuple[str, int]]:
    """The segments' names and first offsets."""
    assert data[:1] == b"\1"
    at, entries = 1, []
    while at < len(data):
        (length,) = struct.unpack_from(">i", data, at)
        stem = data[at + 4 : at + 4 + length].decode()
        entries.append((stem, struct.unpack_from(">q", data, at + 4 + length)[0]))
        at += 12 + length
    return entries


Content = tuple[int | None, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def content(record: Record) -> Content:
    """Return the content that a restore preserves: timestamp, key, value and headers.

    librdkafka can't send timestamp 0: it becomes 1.
    """
    return record.timestamp or (1 if record.timestamp == 0 else None), *record[3:]


def assert_restored(source: Records, target: Records) -> None:
    """The same records in the same partitions and order; offsets and the kind of timestamp may differ."""
    assert source.keys() == target.keys()
    for partition, records in source.items():
        expected, restored = list(map(content, records)), list(map(content, target[partition]))
        assert len(restored) == len(expected), f"partition {partition}"
        for number, (a, b) in enumerate(zip(expected, restored, strict=True)):
            assert a == b, f"partition {partition}, record {number}, source offset {records[number].offset}"


def expected_offset(committed: int, source: Sequence[Record], target: Sequence[Record], end: int) -> int:
    """Return the expected position of a group: the first restored record at or after `committed`, else `end`.

    `target` are the restored records, in the source's order.
    """
    pairs: Iterable[tuple[Record, Record]] = zip(source, target, strict=True)
    return next((t.offset for s, t in pairs if s.offset >= committed), end)
