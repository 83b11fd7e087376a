"""Archives of many restore points, by kbackup's own commits. Segments are described and not
written, unless they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from kbackup.archive import layout
from kbackup.archive.catalog.operations import add_point
from kbackup.archive.catalog.run import WritingRun, begin_writing, open_or_create
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import (
    Capture,
    Groups,
    Loss,
    Metadata,
    PartitionState,
    TopicMetadata,
    TopicState,
)
from kbackup.archive.new_point import Draft, new_point, put_manifest
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.segments import Segment
from kbackup.store.base import Store
from kbackup.types import OffsetRange
from scripts.bench.synthetic import segments as described

TOPIC = "events"
RECORDS = 100
"""Of each segment."""
_AT = "2026-01-01T00:00:00.000Z"
_LOSS_EVERY = 500
_THREADS = 16


Write = Callable[[int, OffsetRange], Segment]
"""Makes the segment that a restore point adds."""


def describe(number: int, wanted: OffsetRange) -> Segment:
    (segment,) = described([wanted], 1000)
    return segment


def build(
    store: Store,
    points: int,
    segments: int,
    partitions: int = 10,
    write: Write = describe,
    topic_id: str = "id",
) -> Archive:
    """`points` restore points, each with `segments` segments more over the `partitions` of `TOPIC`, by one run."""
    open_or_create(store)
    ends = [0] * partitions
    sums = [(0, 0)] * partitions
    with HeldLease(store, "kbackup soak", 3600) as lease:
        writing = begin_writing(store, lease, "backup")
        for number in range(1, points + 1):
            added: list[Segment] = []
            for n in range(segments):
                p = (number * segments + n) % partitions
                added.append(write(number, OffsetRange(TOPIC, p, ends[p], ends[p] + RECORDS)))
                ends[p] += RECORDS
                sums[p] = (sums[p][0] + RECORDS, sums[p][1] + added[-1].bytes)
            _commit(writing, number, _state(number, topic_id, ends, sums), added)
        writing.refresh_derived()
        writing.end()
    return open_archive(store)


def newest_documents(points: int) -> Callable[[str], bool]:
    """For `copy`: without the documents of restore points long past, which nothing asks for."""

    def wanted(key: str) -> bool:
        parsed = layout.parse_point_key(key)
        return parsed is None or parsed[0] > points - 50

    return wanted


def copy(source: Store, target: Store, wanted: Callable[[str], bool] = lambda key: True) -> int:
    """Objects whose key is wanted; returns how many."""
    keys = [entry.key for entry in source.list() if wanted(entry.key)]
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(lambda key: target.put(key, source.get(key)), keys))
    return len(keys)


def _state(number: int, topic_id: str, ends: Sequence[int], sums: Sequence[tuple[int, int]]) -> TopicState:
    return TopicState(
        name=TOPIC,
        id=topic_id,
        incarnation=1,
        captured=number,
        state="present",
        partitions=tuple(
            PartitionState(
                partition=p, start=0, end=end, log_start=0, log_end=end, records=records, bytes=size
            )
            for p, (end, (records, size)) in enumerate(zip(ends, sums, strict=True))
        ),
    )


def _commit(writing: WritingRun, number: int, topic: TopicState, added: Sequence[Segment]) -> None:
    known = TopicMetadata(
        name=TOPIC,
        id=topic.id,
        partitions=len(topic.partitions),
        replication_factor=1,
        internal=False,
        configs={},
    )
    metadata = Metadata(captured_at=_AT, cluster_id="source", brokers=1, topics=(known,))
    draft = Draft(
        number=number,
        started_at=_AT,
        committed_at=_AT,
        cluster_id="",
        topics=[topic],
        segments=added,
        losses=_losses(number),
        captures=[
            Capture(
                number=number,
                started_at=_AT,
                groups=writing.put_document(number, layout.GROUPS, Groups(captured_at=_AT, groups=())),
                metadata=writing.put_document(number, layout.METADATA, metadata),
            )
        ],
        groups=0,
        captured_topics=1,
        captured_partitions=len(topic.partitions),
    )
    manifest, ref = put_manifest(writing, draft)
    new = new_point(manifest, ref, added)
    writing.commit(lambda state: add_point(state, writing.run, new), "backup", f"restore point {number}")


def _losses(number: int) -> tuple[Loss, ...]:
    if number % _LOSS_EVERY:
        return ()
    return (Loss(kind="retention", topic=TOPIC, partition=0, start=0, end=1, message=f"lost in {number}"),)
