"""Archives made by the archive's own writers, without a cluster: a small one of all kinds of files, and others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.catalog.operations import add_point, end_run
from kbackup.archive.catalog.state import State
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import (
    DeletedRecords,
    Deletions,
    DocumentRef,
    Group,
    GroupOffset,
    Groups,
    Loss,
    Manifest,
    Metadata,
    PartitionState,
    Schemas,
    TopicState,
    Transactions,
)
from kbackup.archive.query.content import ArchivedPartition, ArchivedTopic
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.restores.plan import PlannedTopic, RestorePlan
from kbackup.archive.run import TOOL, WritingRun, begin_writing, open_or_create, put_capture, put_manifest, totals_of
from kbackup.archive.segments.table import Segment, in_table
from kbackup.archive.segments.writer import PartitionWriter, SegmentTarget
from kbackup.formats.record import encode
from kbackup.jobs.retention import Expiry, Policy, expire
from kbackup.metadata.entities import TopicMetadata, Znode
from kbackup.metrics.registry import Silent
from kbackup.store.base import Store
from kbackup.store.file import FileStore
from kbackup.types import RECORDS, RecordBlock
from tests.support.memory_store import MemoryStore

KEPT = Path(__file__).parents[1] / "golden" / "kept"
"""Archives that earlier versions wrote: `<version>/plain`, and `encrypted` under the key in `key`."""

T0 = 1_700_000_000_000
"""The timestamp of offset 0, in ms; each offset is a second later."""

LOSS = "offsets 10 to 14 of orders-0 were deleted at the source before they were archived"


def records(partition: int, offsets: Sequence[int]) -> RecordBlock:
    rows: list[dict[str, Any]] = [
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


@cache
def _made() -> MemoryStore:
    store = MemoryStore()
    make_archive(store, copied=False)
    return store


def make_archive(store: Store, copied: bool = True) -> Archive:
    """Topics orders (three partitions, the last empty; a gap and a loss at 10 in partition 0) and clicks
    (zstd; deleted at the source before restore point 2); group billing in both, and group late without lag.

    An empty store in memory or in a directory gets a copy of one that was made before, which takes a seventh of the
    time: archives of one process have the same id, unless `copied` is False."""
    if copied and isinstance(store, MemoryStore) and not store.requests:
        store.take(_made())
        return open_archive(store)
    if copied and isinstance(store, FileStore) and next(iter(store.list()), None) is None:
        made = _made()
        for entry in made.list():
            store.put(entry.key, made.get(entry.key))
        return open_archive(store)
    archive = open_or_create(store)
    orders = [SegmentTarget("orders", 1, p, 1000, "none") for p in range(3)]
    clicks = SegmentTarget("clicks", 1, 0, 1000, "zstd")
    first = [write(store, orders[0], range(10)), write(store, orders[1], range(12)), []]
    seen = write(store, clicks, range(20))
    old_clicks = topic_state("clicks", [(0, 20, seen)])
    commit_point(
        archive,
        1,
        topics=[old_clicks, topic_state("orders", [(0, 10, first[0]), (0, 12, first[1]), (0, 0, [])])],
        segments=[*first[0], *first[1], *seen],
        groups=[group_at("billing", ("clicks", 0, 5), ("orders", 0, 4), ("orders", 1, 12))],
    )
    second = write(store, orders[0], [15, *range(17, 40)])
    commit_point(
        archive,
        2,
        topics=[
            TopicState(**{n: getattr(old_clicks, n) for n in old_clicks.__struct_fields__} | {"state": "deleted"}),
            topic_state("orders", [(0, 41, [*first[0], *second]), (0, 12, first[1]), (0, 0, [])], captured=2),
        ],
        segments=second,
        groups=[group_at("billing", ("orders", 0, 17), ("orders", 1, 12)), group_at("late", ("orders", 0, 41))],
        losses=[Loss(kind="retention", topic="orders", partition=0, start=10, end=15, message=LOSS)],
    )
    return archive


def topic_state(
    name: str,
    partitions: Sequence[tuple[int, int, Sequence[Segment]]],
    *,
    captured: int = 1,
    state: Literal["present", "deleted"] = "present",
) -> TopicState:
    """The first incarnation of a topic; each partition has its start, its end and its segments."""
    states = [
        partition_state(number, start, end, records=sum(s.count for s in segments), size=sum(s.bytes for s in segments))
        for number, (start, end, segments) in enumerate(partitions)
    ]
    return topic_of(name, states, captured=captured, state=state)


def topic_of(
    name: str,
    partitions: Sequence[PartitionState],
    *,
    captured: int = 1,
    incarnation: int = 1,
    topic_id: str = "",
    state: Literal["present", "deleted"] = "present",
) -> TopicState:
    return TopicState(
        name=name,
        id=topic_id or f"id of {name}",
        incarnation=incarnation,
        captured=captured,
        state=state,
        partitions=tuple(partitions),
    )


def partition_state(number: int, start: int, end: int, *, records: int = 0, size: int = 0) -> PartitionState:
    """A partition whose log is archived wholly."""
    return PartitionState(
        partition=number, start=start, end=end, log_start=start, log_end=end, records=records, bytes=size
    )


def an_archived_topic(
    name: str = "orders",
    partitions: Iterable[ArchivedPartition] = (),
    configs: Mapping[str, str] = MappingProxyType({}),
    replication_factor: int = 1,
) -> ArchivedTopic:
    """The first incarnation of a topic that restore point 1 has captured."""
    return ArchivedTopic(
        name=name,
        incarnation=1,
        as_of=1,
        state="present",
        partitions=tuple(partitions),
        configs=dict(configs),
        replication_factor=replication_factor,
    )


def group_at(name: str, *offsets: tuple[str, int, int]) -> Group:
    committed = tuple(GroupOffset(topic=t, partition=p, offset=o) for t, p, o in offsets)
    return Group(group=name, type="share" if name == "share" else "consumer", state="empty", offsets=committed)


def _metadata(
    captured: Sequence[TopicState],
    at: str,
    cluster_id: str,
    configs: Mapping[str, Mapping[str, str]],
    znodes: Sequence[Znode] | None,
    settings: Mapping[str, Any],
) -> Metadata:
    return Metadata(
        **settings,
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
    *,
    topics: Sequence[TopicState] | None = None,
    segments: Sequence[Segment] = (),
    groups: Sequence[Group] = (),
    losses: Sequence[Loss] = (),
    not_carried: Mapping[str, str] = MappingProxyType({}),
    at: str = "",
    warnings: Sequence[str] = (),
    cluster_id: str = "source",
    configs: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    znodes: Sequence[Znode] | None = None,
    schemas: Schemas | None = None,
    transactions: Transactions | None = None,
    deletions: Deletions | DocumentRef | None = None,
    writing: WritingRun | None = None,
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Commit restore point `number` by a run of its own, or by the run `writing`, which ends with it; `archive` is
    opened again at it.

    `topics` are those of the newest restore point, if none are given; `segments` are those added; `at` is the nth
    night of 2026, unless it is given. `settings` are other members of its metadata, such as acls."""
    if topics is None:
        topics = archive.restore_point("latest").topics
    at = at or f"2026-01-0{number}T00:00:00.000Z"
    captured = [t for t in topics if t.captured == number]
    metadata = _metadata(captured, at, cluster_id, configs, znodes, settings)
    store = archive.store
    with ExitStack() as held:
        if writing is None:
            lease = held.enter_context(HeldLease(store, "kbackup test", 60))
            writing = begin_writing(store, lease, "backup")
        run = writing.run
        assert writing.next_point <= number
        head = writing.archive.head
        older = {t.captured for t in topics} - {number}
        document = Groups(captured_at=at, groups=tuple(groups), not_carried=dict(not_carried))
        own = put_capture(writing, number, at, document, metadata)
        if isinstance(deletions, Deletions):
            deletions = writing.put_document(number, layout.DELETIONS, deletions)
        earlier = head.captures if head is not None else ()
        needed = tuple(capture for capture in earlier if capture.number in older)
        totals = totals_of(
            segments,
            topics=len(captured),
            partitions=sum(len(topic.partitions) for topic in captured),
            groups=len(groups),
        )
        manifest = Manifest(
            archive_id=writing.archive_id,
            number=number,
            run=writing.run,
            previous=writing.previous,
            tool=TOOL,
            started_at=at,
            committed_at=at,
            cluster_id=cluster_id,
            losses=tuple(losses),
            warnings=tuple(warnings),
            totals=totals,
            captures=(*needed, own),
            schemas=writing.put_document(number, layout.SCHEMAS, schemas) if schemas is not None else None,
            transactions=transactions,
            deletions=deletions,
            topics=tuple(topics),
        )
        manifest, added = put_manifest(writing, manifest), in_table(segments)

        def operation(state: State) -> State:
            state = replace(state, next_point=max(number, state.next_point))
            return end_run(add_point(state, manifest, added), run)

        writing.commit(operation, "backup", "test")
        writing.refresh_derived()
    archive.reopen()


def deletions_of(topic: str, *offsets: tuple[int, int], incarnation: int = 1) -> Deletions:
    """Ranges of archived records of partition 0 of a topic, whose keys were deleted at the source."""
    records = DeletedRecords(topic=topic, incarnation=incarnation, partition=0, offsets=offsets)
    return Deletions(found_at="2026-01-02T00:00:00.000Z", partitions=(records,))


def topic_archive(store: Store, topic: str, block: RecordBlock, segment_bytes: int = 1 << 24) -> list[Segment]:
    """Make an archive of one topic with one partition; return its segments."""
    segments = write_block(store, SegmentTarget(topic, 1, 0, segment_bytes, "none"), block)
    state = topic_state(topic, [(0, len(block), segments)])
    commit_point(open_or_create(store), 1, topics=[state], segments=segments)
    return segments


Did = int | Literal["out", "anew"]
"""The number of records in each partition of a topic at a run; or that the topic was left out, or created anew."""

START = datetime(2026, 1, 1, tzinfo=UTC)
PARTITIONS = 2


def day(number: int) -> datetime:
    return START + timedelta(days=number)


def _same_key(offset: int) -> bytes:
    return b"k"


def written(
    store: Store,
    target: SegmentTarget,
    first: int,
    count: int,
    at: datetime,
    key: Callable[[int], bytes | None] = _same_key,
) -> list[Segment]:
    """Segments of two records or so, all written `at`."""
    rows: list[dict[str, Any]] = [
        {
            "offset": offset,
            "timestamp_type": 0,
            "timestamp": int(at.timestamp() * 1000),
            "key": key(offset),
            "value": b"%d of %s" % (offset, target.topic.encode()),
            "headers": [],
        }
        for offset in range(first, first + count)
    ]
    return write_block(store, target, encode(pa.RecordBatch.from_pylist(rows, schema=RECORDS)))


@dataclass
class History:
    """Run n is of day n. `configs` are those of topics, `key` gives the key of the record at an offset. With `writing`,
    a run that has begun commits the next one."""

    store: Store
    configs: Mapping[str, dict[str, str]] = field(default_factory=dict)
    topics: dict[str, TopicState] = field(default_factory=dict)
    writing: WritingRun | None = None
    key: Callable[[int], bytes | None] = _same_key

    @property
    def archive(self) -> Archive:
        return open_archive(self.store)

    def run(self, seq: int, did: Mapping[str, Did], losses: Iterable[Loss] = ()) -> None:
        archive = open_or_create(self.store)
        segments: list[Segment] = []
        for name, change in did.items():
            before = self.topics.get(name)
            if change == "out" and before is not None:
                self.topics[name] = _left_out(before)
            elif change != "out":
                anew = change == "anew" or before is None
                made, added = self._captured(name, seq, None if anew else before, 2 if change == "anew" else change)
                self.topics[name] = made
                segments += added
        self._commit(archive, seq, segments, tuple(losses))

    def _captured(self, name: str, seq: int, before: TopicState | None, count: int) -> tuple[TopicState, list[Segment]]:
        known = self.topics.get(name)
        incarnation = known.incarnation if known is not None and before is not None else 1
        if known is not None and before is None:
            incarnation = known.incarnation + 1
        partitions, segments = [], list[Segment]()
        for number in range(PARTITIONS):
            old = before.partitions[number] if before is not None else None
            end = old.end if old is not None else 0
            target = SegmentTarget(name, incarnation, number, 60, "none")
            added = written(self.store, target, end, count, day(seq), self.key) if count else []
            segments += added
            partitions.append(
                partition_state(
                    number,
                    0,
                    end + count + 1,  # a transaction's marker
                    records=sum(s.count for s in added) + (old.records if old is not None else 0),
                    size=sum(s.bytes for s in added) + (old.bytes if old is not None else 0),
                )
            )
        state = topic_of(name, partitions, captured=seq, incarnation=incarnation, topic_id=f"{name} {incarnation}")
        return state, segments

    def _commit(self, archive: Archive, number: int, segments: Sequence[Segment], losses: tuple[Loss, ...]) -> None:
        topics = tuple(self.topics[name] for name in sorted(self.topics))
        captured = [t for t in topics if t.captured == number]
        group = group_at("g", *((t.name, p.partition, p.end // 2) for t in captured for p in t.partitions))
        commit_point(
            archive,
            number,
            topics=topics,
            segments=segments,
            groups=[group],
            losses=losses,
            at=day(number).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            cluster_id="c",
            configs={name: self.configs.get(name, {}) for name in self.topics},
            writing=self.writing,
        )


def _left_out(state: TopicState) -> TopicState:
    fields = {name: getattr(state, name) for name in state.__struct_fields__}
    return TopicState(**fields | {"state": "unselected"})


class Place(NamedTuple):
    """Where a record is."""

    topic: str
    partition: int
    offset: int


CLICKS = [Place("clicks", 0, o) for o in range(20)]
FIRST_ORDERS = [Place("orders", 0, o) for o in [*range(10), 15, *range(17, 40)]]
ORDERS = [*FIRST_ORDERS, *(Place("orders", 1, o) for o in range(12))]
"""All records that it begins with: (topic, partition, offset)."""


def grow(store: Store, seq: int, first: int, stop: int) -> None:
    """Restore point `seq`, with offsets `first` to `stop` of orders-1."""
    archive = open_archive(store)
    head = archive.head
    assert head is not None
    segments = write(store, SegmentTarget("orders", 1, 1, 1000, "none"), range(first, stop))
    states: list[TopicState] = [
        *(t for t in head.topics if t.name != "orders"),
        topic_state("orders", [(0, 41, []), (0, stop, segments), (0, 0, [])], captured=seq),
    ]
    commit_point(archive, seq, topics=states, segments=segments)


def grow_each(store: Store, numbers: Iterable[int]) -> None:
    """A restore point of each number, with ten offsets of orders-1 from ten times that number on."""
    for seq in numbers:
        grow(store, seq, seq * 10, seq * 10 + 10)


def expired(store: Store, before: int | None = None, **policy: Any) -> None:
    """By policy, and records up to `before` seconds after `T0`, deleted at once."""
    newest = open_archive(store).restore_points[-1].committed_at
    age = None
    if before is not None:
        moment = datetime.fromtimestamp(T0 / 1000, UTC) + timedelta(seconds=before)
        age = datetime.fromisoformat(newest) - moment
    report = expire(store, Expiry(Policy(**policy), age, timedelta(0)), 60, Silent(), confirm=True)
    assert report.expiration is not None


def restore_plan(**other: Any) -> RestorePlan:
    given = {"restore_id": "r", "archive_id": "x", "restore_point": 1, "target_cluster_id": "c", "created_at": ""}
    more = {"transactions": True, "transaction_bytes": 1, "into_existing": False}
    return RestorePlan(**{**given, **more, "topics": (), "units": (), "groups": (), **other})


def planned_topic(source: str, target: str) -> PlannedTopic:
    """A topic of two partitions with ten records."""
    return PlannedTopic(
        source=source,
        target=target,
        incarnation=1,
        as_of=1,
        partitions=2,
        records=10,
        bytes=100,
        configs={},
        replication_factor=1,
    )
