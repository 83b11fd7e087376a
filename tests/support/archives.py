"""A small archive made by the archive's own writers, without a cluster: two restore points, all kinds of files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Literal

import pyarrow as pa

from kbackup.archive.catalog.operations import add_point, end_run
from kbackup.archive.catalog.state import State
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import Group, GroupOffset, Groups, Loss, Metadata, PartitionState, TopicState
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.run import Draft, begin_writing, open_or_create, put_capture, put_manifest
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.writer import PartitionWriter, SegmentTarget
from kbackup.formats.record import encode
from kbackup.metadata.entities import TopicMetadata, Znode
from kbackup.store.base import Store
from kbackup.types import RECORDS, RecordBlock
from tests.support.memory_store import MemoryStore

T0 = 1_700_000_000_000
"""The timestamp of offset 0, in ms; each offset is a second later."""

LOSS = "offsets 10 to 14 of orders-0 were deleted at the source before they were archived"


def records(partition: int, offsets: Sequence[int]) -> RecordBlock:
    rows = [
        {
            "offset": offset,
            "timestamp_type": 0,
            "timestamp": T0 + offset * 1000,
            "key": f"key {offset % 3}".encode(),
            "value": f"value {offset} of {partition} ".encode() * 6,
            "headers": [{"key": "trace", "value": b"1"}],
        }
        for offset in offsets
    ]
    return encode(pa.RecordBatch.from_pylist(rows, schema=RECORDS))


def write(store: Store, target: SegmentTarget, offsets: Sequence[int]) -> list[Segment]:
    return write_block(store, target, records(target.partition, offsets))


def write_block(store: Store, target: SegmentTarget, block: RecordBlock) -> list[Segment]:
    with PartitionWriter(store, target) as writer:
        return [*writer.append(block), *writer.finish()]


_made: list[MemoryStore] = []


def make_archive(store: Store, copied: bool = True) -> Archive:
    """Topics orders (three partitions, the last empty; a gap and a loss at 10 in partition 0) and clicks
    (zstd; deleted at the source before restore point 2); group billing in both, and group late without lag.

    An empty store in memory gets a copy of one that was made before: archives of one process have the same id, unless
    `copied` is False."""
    if copied and isinstance(store, MemoryStore) and not store.requests:
        if not _made:
            _made.append(MemoryStore())
            make_archive(_made[0], copied=False)
        store.take(_made[0])
        return open_archive(store)
    archive = open_or_create(store)
    orders = [SegmentTarget("orders", 1, p, 1000, "none") for p in range(3)]
    clicks = SegmentTarget("clicks", 1, 0, 1000, "zstd")
    first = [write(store, orders[0], range(10)), write(store, orders[1], range(12)), []]
    seen = write(store, clicks, range(20))
    old_clicks = topic_state("clicks", 1, "present", [(0, 20, seen)])
    commit_point(
        archive,
        1,
        [old_clicks, topic_state("orders", 1, "present", [(0, 10, first[0]), (0, 12, first[1]), (0, 0, [])])],
        [*first[0], *first[1], *seen],
        [group_at("billing", ("clicks", 0, 5), ("orders", 0, 4), ("orders", 1, 12))],
    )
    second = write(store, orders[0], [15, *range(17, 40)])
    commit_point(
        archive,
        2,
        [
            TopicState(**{n: getattr(old_clicks, n) for n in old_clicks.__struct_fields__} | {"state": "deleted"}),
            topic_state("orders", 2, "present", [(0, 41, [*first[0], *second]), (0, 12, first[1]), (0, 0, [])]),
        ],
        second,
        [group_at("billing", ("orders", 0, 17), ("orders", 1, 12)), group_at("late", ("orders", 0, 41))],
        [Loss(kind="retention", topic="orders", partition=0, start=10, end=15, message=LOSS)],
    )
    return archive


def topic_state(
    name: str, captured: int, state: str, partitions: Sequence[tuple[int, int, Sequence[Segment]]]
) -> TopicState:
    """The first incarnation of a topic; each partition has its start, its end and its segments."""
    states = [
        partition_state(number, start, end, sum(s.count for s in segments), sum(s.bytes for s in segments))
        for number, (start, end, segments) in enumerate(partitions)
    ]
    return topic_of(name, captured, states, state="present" if state == "present" else "deleted")


def topic_of(
    name: str,
    captured: int,
    partitions: Sequence[PartitionState],
    incarnation: int = 1,
    id_: str = "",
    state: Literal["present", "deleted"] = "present",
) -> TopicState:
    return TopicState(
        name=name,
        id=id_ or f"id of {name}",
        incarnation=incarnation,
        captured=captured,
        state=state,
        partitions=tuple(partitions),
    )


def partition_state(number: int, start: int, end: int, records: int = 0, size: int = 0) -> PartitionState:
    """A partition whose log is archived wholly."""
    return PartitionState(
        partition=number, start=start, end=end, log_start=start, log_end=end, records=records, bytes=size
    )


def group_at(name: str, *offsets: tuple[str, int, int]) -> Group:
    committed = tuple(GroupOffset(topic=t, partition=p, offset=o) for t, p, o in offsets)
    return Group(group=name, type="consumer", state="empty", offsets=committed)


def _metadata(
    captured: Sequence[TopicState],
    at: str,
    cluster_id: str,
    configs: Mapping[str, Mapping[str, str]],
    znodes: Sequence[Znode] | None,
) -> Metadata:
    return Metadata(
        captured_at=at,
        cluster_id=cluster_id,
        brokers=1,
        topics=tuple(
            TopicMetadata(
                name=t.name,
                id=t.id,
                partitions=len(t.partitions),
                replication_factor=1,
                internal=False,
                configs=dict(configs.get(t.name, {"retention.ms": "-1"})),
            )
            for t in captured
        ),
        znodes=None if znodes is None else tuple(znodes),
    )


def commit_point(
    archive: Archive,
    number: int,
    topics: Sequence[TopicState],
    segments: Sequence[Segment],
    groups: Sequence[Group],
    losses: Sequence[Loss] = (),
    not_carried: Mapping[str, str] = MappingProxyType({}),
    at: str = "",
    warnings: Sequence[str] = (),
    cluster_id: str = "source",
    configs: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    znodes: Sequence[Znode] | None = None,
) -> None:
    """Commit restore point `number` by a run of its own; `archive` is opened again at it."""
    at = at or f"2026-01-0{number}T00:00:00.000Z"
    captured = [t for t in topics if t.captured == number]
    metadata = _metadata(captured, at, cluster_id, configs, znodes)
    store = archive.store
    with HeldLease(store, "kbackup test", 60) as lease:
        writing = begin_writing(store, lease, "backup")
        assert writing.next_point <= number
        head = writing.archive.head
        older = {t.captured for t in topics} - {number}
        document = Groups(captured_at=at, groups=tuple(groups), not_carried=dict(not_carried))
        own = put_capture(writing, number, at, document, metadata)
        draft = Draft(
            number=number,
            started_at=at,
            committed_at=at,
            cluster_id=cluster_id,
            topics=topics,
            segments=segments,
            losses=losses,
            warnings=warnings,
            captures=(*(c for c in (head.captures if head is not None else ()) if c.number in older), own),
            groups=len(groups),
            captured_topics=len(captured),
            captured_partitions=sum(len(t.partitions) for t in captured),
        )
        _, new = put_manifest(writing, draft)

        def operation(state: State) -> State:
            state = replace(state, next_point=max(number, state.next_point))
            return end_run(add_point(state, writing.run, new), writing.run)

        writing.commit(operation, "backup", "test")
        writing.refresh_derived()
    archive.reopen()


def topic_archive(store: Store, topic: str, block: RecordBlock, segment_bytes: int = 1 << 24) -> list[Segment]:
    """Make an archive of one topic with one partition; return its segments."""
    segments = write_block(store, SegmentTarget(topic, 1, 0, segment_bytes, "none"), block)
    state = topic_state(topic, 1, "present", [(0, len(block), segments)])
    commit_point(open_or_create(store), 1, [state], segments, [])
    return segments
