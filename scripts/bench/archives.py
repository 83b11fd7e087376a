"""Archives of many restore points, by kbackup's own commits. Segments are described and not written, unless they are
asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.catalog.operations import add_point
from kbackup.archive.catalog.state import IncarnationRow, LossRow, PointRow
from kbackup.archive.catalog.tables import SEGMENTS
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import Capture, Groups, Loss, Manifest, Metadata, PartitionState, TopicState
from kbackup.archive.run import TOOL, WritingRun, begin_writing, open_or_create, put_manifest, totals_of
from kbackup.archive.segments.table import Segment, in_table, to_batch
from kbackup.config.models import Backup
from kbackup.metadata.entities import TopicMetadata
from kbackup.store.base import Store
from kbackup.types import OffsetRange

TOPIC = "events"
RECORDS = 100  # of each segment
_AT = "2026-01-01T00:00:00.000Z"
_LOSS_EVERY = 500
_THREADS = 16
_FIRST = 1_700_000_000_000  # ms since the epoch
NEWEST = 50  # restore points of a sparse archive that have documents and segments


def segments_of(size: float) -> int:
    """Segments that `size` bytes of one partition make in one run."""
    return max(1, -(-int(size) // Backup().segment_bytes)) if size else 0


def described_segments(ranges: Iterable[OffsetRange], record: int) -> Iterator[Segment]:
    """Yield the segments of `ranges` with records of `record` bytes, at the default segment size."""
    for offsets in ranges:
        records = offsets.end - offsets.start
        count = segments_of(records * record)
        marks = [offsets.start + records * n // count for n in range(count + 1)] if count else []
        for first, end in pairwise(marks):
            size = (end - first) * record + 1
            crc = hashlib.blake2b(f"{offsets}:{first}".encode(), digest_size=16).hexdigest()
            yield Segment(
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


def build(
    store: Store,
    points: int,
    segments: int,
    partitions: int,
    write: Callable[[OffsetRange], Segment],
    topic_id: str = "id",
    *,
    sparse: bool = False,
    written: bool = False,
) -> None:
    """`points` restore points, each with `segments` segments more over the `partitions` of `TOPIC`, by one run.

    `sparse`: of all but the newest ones there are rows in the catalog alone, by one commit: no documents, and no
    segments by `write` unless all are to be `written`. What asks for the newest restore point sees no difference.
    """
    open_or_create(store)
    ends = [0] * partitions
    sums = [(0, 0)] * partitions
    older: list[tuple[int, list[Segment]]] = []
    with HeldLease(store, "kbackup soak", 3600) as lease:
        writing = begin_writing(store, lease, "backup")
        for number in range(1, points + 1):
            is_row = sparse and number <= points - NEWEST
            added: list[Segment] = []
            for n in range(segments):
                p = (number * segments + n) % partitions
                place = OffsetRange(TOPIC, p, ends[p], ends[p] + RECORDS)
                is_described = is_row and not written
                added.append(next(described_segments([place], 1000)) if is_described else write(place))
                ends[p] += RECORDS
                sums[p] = (sums[p][0] + RECORDS, sums[p][1] + added[-1].bytes)
            if is_row:
                older.append((number, added))
                continue
            if older:
                _commit_rows(writing, older, partitions, topic_id)
                older = []
            states = [
                PartitionState(partition=p, start=0, end=end, log_start=0, log_end=end, records=records, bytes=size)
                for p, (end, (records, size)) in enumerate(zip(ends, sums, strict=True))
            ]
            _commit_point(writing, number, topic_id, states, added)
        writing.refresh_derived()
        writing.end()


def _commit_rows(
    writing: WritingRun, points: Sequence[tuple[int, Sequence[Segment]]], partitions: int, topic_id: str
) -> None:
    """Commit many restore points that have no documents at once."""
    rows = [_row(writing.run, number, partitions, added) for number, added in points]
    table = pa.Table.from_batches([to_batch([segment for _, added in points for segment in added])])
    column = pa.array([number for number, added in points for _ in added], pa.int64())
    life = IncarnationRow(TOPIC, 1, topic_id, points[0][0], None, False)
    losses = [LossRow(number, 1, loss) for number, _ in points for loss in _losses(number)]
    writing.commit(
        lambda state: replace(
            state,
            next_point=points[-1][0] + 1,
            points=state.points.append(rows),
            segments=state.segments.append(table.append_column(SEGMENTS.field("point"), column)),
            incarnations=state.incarnations.append([life._asdict()]),
            losses=state.losses_with(losses),
        ),
        "backup",
        f"{len(points)} restore points",
    )


def _row(run: str, number: int, partitions: int, added: Sequence[Segment]) -> dict[str, Any]:
    names = (layout.MANIFEST, layout.GROUPS, layout.METADATA)
    point = PointRow(
        number=number,
        run=run,
        origin="cluster",
        started_at=_AT,
        committed_at=_AT,
        cluster_id="",
        isolation_level="read_committed",
        topics=1,
        partitions=partitions,
        segments=len(added),
        records=sum(s.count for s in added),
        bytes=sum(s.bytes for s in added),
        stored_bytes=sum(s.stored for s in added),
        groups=0,
        losses=len(_losses(number)),
        warnings=0,
        manifest="sha256:" + hashlib.sha256(b"%d" % number).hexdigest(),
        documents=tuple(layout.point_key(number, run, name) for name in names),
    )
    return point._asdict() | {"documents": list(point.documents)}


def copy(source: Store, target: Store) -> int:
    """All objects; returns how many."""
    keys = [entry.key for entry in source.list()]
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(lambda key: target.put(key, source.get(key)), keys))
    return len(keys)


def _commit_point(
    writing: WritingRun, number: int, topic_id: str, states: Sequence[PartitionState], added: Sequence[Segment]
) -> None:
    named: Any = {"name": TOPIC, "id": topic_id}
    topic = TopicState(**named, incarnation=1, captured=number, state="present", partitions=tuple(states))
    known = TopicMetadata(**named, partitions=len(states), replication_factor=1, internal=False, configs={})
    metadata = Metadata(captured_at=_AT, cluster_id="source", brokers=1, topics=(known,))
    capture = Capture(
        number=number,
        started_at=_AT,
        groups=writing.put_document(number, layout.GROUPS, Groups(captured_at=_AT, groups=())),
        metadata=writing.put_document(number, layout.METADATA, metadata),
    )
    manifest = Manifest(
        archive_id=writing.archive_id,
        number=number,
        run=writing.run,
        previous=writing.previous,
        tool=TOOL,
        started_at=_AT,
        committed_at=_AT,
        losses=_losses(number),
        totals=totals_of(added, topics=1, partitions=len(states), groups=0),
        captures=(capture,),
        topics=(topic,),
    )
    manifest, segments = put_manifest(writing, manifest), in_table(added)
    writing.commit(lambda state: add_point(state, manifest, segments), "backup", f"restore point {number}")


def _losses(number: int) -> tuple[Loss, ...]:
    if number % _LOSS_EVERY:
        return ()
    return (Loss(kind="retention", topic=TOPIC, partition=0, start=0, end=1, message=f"lost in {number}"),)
