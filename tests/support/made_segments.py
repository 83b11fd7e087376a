"""Blocks, segments and restore points made by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from kbackup.archive import layout
from kbackup.archive.models import Manifest, TopicState
from kbackup.archive.reader import Archive
from kbackup.archive.run import open_or_create
from kbackup.archive.segments.read import read_segment
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.writer import SegmentTarget
from kbackup.formats.record import encode
from kbackup.formats.schema_ids import SchemaCounter, SchemaUse
from kbackup.store.base import Store
from kbackup.types import RecordBlock, TopicPartition
from kbackup.util.times import now
from tests.support.archives import commit_point, group_at, partition_state, topic_of, write_block
from tests.unit.formats.reference import Record, a_record, to_batch

TOPIC = "orders"
TOPIC_ID = "id-of-orders"


def target(partition: int = 0, threshold: int = 400, compression: str = "none", incarnation: int = 1) -> SegmentTarget:
    return SegmentTarget(TOPIC, incarnation, partition, threshold, compression)


def records(offsets: Iterable[int]) -> list[Record]:
    """Values begin with the ids 1 to 3 of a schema registry."""
    return [
        a_record(o, timestamp=1000 + o, key=b"key-%d" % o, value=bytes([0, 0, 0, 0, 1 + o % 3]) + b"v" * (15 + o % 7))
        for o in offsets
    ]


def block(offsets: Iterable[int]) -> RecordBlock:
    return encode(to_batch(records(offsets)))


def a_segment(
    topic: str = "orders", first: int = 0, last: int = 9, *, incarnation: int = 1, partition: int = 0, **changed: Any
) -> Segment:
    """A segment that is in no store: a record of ten bytes at each offset, each a second after the one before."""
    count = last - first + 1
    folder = layout.topic_dir(topic, incarnation)
    usual = Segment(
        topic=topic,
        incarnation=incarnation,
        partition=partition,
        first=first,
        last=last,
        count=count,
        bytes=10 * count,
        stored=10 * count,
        min_timestamp=first * 1000,
        max_timestamp=last * 1000,
        largest=10,
        crc="0" * 16,
        index_crc="0" * 16,
        key=layout.records_key(folder, partition, first, "none"),
    )
    return replace(usual, **changed)


def write(store: Store, to: SegmentTarget, offsets: Iterable[int]) -> list[Segment]:
    return write_block(store, to, block(offsets))


def schemas_of(store: Store, segments: Iterable[Segment]) -> list[SchemaUse]:
    """What the records of segments name, as they are read back."""
    counter = SchemaCounter()
    for segment in segments:
        for each in read_segment(store, segment):
            counter.add(TopicPartition(segment.topic, segment.partition), each)
    return counter.result()


def state(*partitions: tuple[int, int, int], number: int, name: str = TOPIC, incarnation: int = 1) -> TopicState:
    """`partitions` are (number, start, end)."""
    states = [partition_state(*p) for p in partitions]
    return topic_of(name, states, captured=number, incarnation=incarnation, topic_id=TOPIC_ID)


def committed(
    store: Store,
    number: int,
    *,
    segments: Sequence[Segment] = (),
    topics: Sequence[TopicState] = (),
    offsets: dict[str, int] | None = None,
) -> tuple[Archive, Manifest]:
    """A whole restore point after the newest one; `offsets` are where groups stand in partition 0."""
    archive = open_or_create(store)
    groups = [group_at(group, (TOPIC, 0, offset)) for group, offset in (offsets or {}).items()]
    commit_point(
        archive, number, topics=topics, segments=segments, groups=groups, at=now(), cluster_id="", configs={TOPIC: {}}
    )
    return archive, archive.restore_point(number)
