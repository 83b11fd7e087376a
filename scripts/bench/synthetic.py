"""A cluster that nobody has: its topics, groups and metadata, and the segments that a backup of it would write."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

from kbackup.archive import layout
from kbackup.archive.models import Group, GroupOffset, Groups, LastRecord, Metadata
from kbackup.archive.segments.table import Segment
from kbackup.jobs.capture import Live, LiveTopic
from kbackup.metadata.entities import TopicMetadata
from kbackup.types import OffsetRange, TopicPartition
from kbackup.util.times import now
from scripts.bench.model import segments_of

PARTITIONS_A_TOPIC = 50
GROUPS_A_TOPIC = 2
_FIRST = 1_700_000_000_000  # ms since the epoch
_CONFIGS = {"cleanup.policy": "delete", "retention.ms": "604800000", "min.insync.replicas": "2"}


def topic_names(partitions: int) -> list[str]:
    return [f"team-{n % 97:02d}.service-{n:05d}.events" for n in range(-(-partitions // PARTITIONS_A_TOPIC))]


def live_topics(partitions: int, records: int) -> list[LiveTopic]:
    """`records` in each of `partitions`."""
    found: list[LiveTopic] = []
    for number, name in enumerate(topic_names(partitions)):
        here = min(PARTITIONS_A_TOPIC, partitions - number * PARTITIONS_A_TOPIC)
        found.append(LiveTopic(name, _topic_id(name), {p: Live(0, records, records) for p in range(here)}))
    return found


def groups(topics: Iterable[LiveTopic]) -> Groups:
    """`GROUPS_A_TOPIC` consumer groups of every topic, with a commit in each partition."""
    return Groups(
        captured_at=now(),
        groups=tuple(
            Group(
                group=f"{topic.name}.consumer-{n}",
                type="classic",
                state="stable",
                offsets=tuple(
                    GroupOffset(topic=topic.name, partition=p, offset=live.end, leader_epoch=3)
                    for p, live in topic.partitions.items()
                ),
            )
            for topic in topics
            for n in range(GROUPS_A_TOPIC)
        ),
    )


def metadata(topics: Iterable[LiveTopic]) -> Metadata:
    return Metadata(
        captured_at=now(),
        cluster_id="simulated",
        brokers=100,
        topics=tuple(
            TopicMetadata(
                name=t.name,
                id=t.id,
                partitions=len(t.partitions),
                replication_factor=3,
                internal=False,
                configs=dict(_CONFIGS),
            )
            for t in topics
        ),
    )


def last_records(segments: Iterable[Segment]) -> Mapping[TopicPartition, tuple[LastRecord, ...]]:
    """Return the end of each partition as tasks report it that read `segments` in order of their offsets."""
    return {
        TopicPartition(s.topic, s.partition): (LastRecord(offset=s.last, leader_epoch=3, digest="0" * 16),)
        for s in segments
    }


def segments(ranges: Iterable[OffsetRange], record: int) -> Iterator[Segment]:
    """Yield the segments of `ranges` with records of `record` bytes, at the default segment size."""
    for offsets in ranges:
        records = offsets.end - offsets.start
        count = segments_of(records * record)
        marks = [offsets.start + records * n // count for n in range(count + 1)] if count else []
        for first, end in pairwise(marks):
            yield _segment(offsets, first, end, record)


def _segment(offsets: OffsetRange, first: int, end: int, record: int) -> Segment:
    size = (end - first) * record + 1
    crc = hashlib.blake2b(f"{offsets}:{first}".encode(), digest_size=16).hexdigest()
    return Segment(
        topic=offsets.topic,
        incarnation=1,
        partition=offsets.partition,
        first=first,
        last=end - 1,
        count=end - first,
        bytes=size,
        stored=size,
        min_timestamp=_FIRST + first,
        max_timestamp=_FIRST + end - 1,
        largest=record,
        crc=crc[:16],
        index_crc=crc[16:],
        key=layout.records_key(layout.topic_dir(offsets.topic), offsets.partition, first, "none"),
    )


def _topic_id(name: str) -> str:
    return base64.urlsafe_b64encode(hashlib.md5(name.encode()).digest()).decode().rstrip("=")
