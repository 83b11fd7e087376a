"""The archived records of a partition that are remembered: the last ones, and some before them at growing distance.

A later run holds them against the log to know that it is the same one. One record alone proves little: a log that was
cut and grew again may end with the same record, of a producer that repeats itself.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec
import numpy as np

from kbackup.archive.models import LastRecord, Manifest
from kbackup.archive.reader import Archive
from kbackup.archive.segments.read import SegmentRanges
from kbackup.archive.segments.table import Segment
from kbackup.errors import CorruptError
from kbackup.store.base import Store
from kbackup.types import RecordBlock, TopicPartition
from kbackup.util.system import in_threads

_DIGITS = 16
FEW = 4
"""Records of a partition that are remembered: compaction may take the last one, and leave one before it."""


OffsetDigest = tuple[int, str]
"""An archived record by its offset, and its digest as `LastRecord` has it."""

DISTANCES = (1, 2, 4, 8, 16, 32, 64, 512, 4096, 32768)
"""Distances in offsets before the last record at which one earlier record each is remembered.

They double as long as one fetch usually brings the records: a fetch has 64 KiB or more. Beyond, each record costs a
fetch of its own, so they grow eightfold. Ten records add about 300 bytes a partition to a manifest.
"""


def digest_of(block: RecordBlock, number: int) -> str:
    """Return the digest of record `number` of the block (negative: from its end), as `LastRecord` has it."""
    start = int(block.positions[number])
    data = block.data[start : start + int(block.lengths[number])]
    return hashlib.sha256(data.tobytes()).hexdigest()[:_DIGITS]


def last_of(block: RecordBlock, before: Sequence[LastRecord] = ()) -> tuple[LastRecord, ...]:
    """Return the last `FEW` records of `before` followed by `block`; records of the block have no leader epoch."""
    records = list(before)
    for number in range(max(0, len(block) - FEW), len(block)):
        offset = int(block.offsets[number])
        records.append(LastRecord(offset=offset, leader_epoch=None, digest=digest_of(block, number)))
    return tuple(records[-FEW:])


def earlier_offsets(end: int) -> tuple[int, ...]:
    """Return the offsets at which a reader of records below `end` remembers records, in order."""
    return tuple(end - 1 - distance for distance in reversed(DISTANCES))


def records_at(block: RecordBlock, offsets: Sequence[int]) -> list[OffsetDigest]:
    """Return the records of the block at `offsets`, in order. If an offset has no record, the one before it counts;
    offsets that lie outside the block are passed over."""
    first = int(block.offsets[0])
    last = int(block.offsets[-1])
    within = [offset for offset in offsets if first <= offset <= last]
    if not within:
        return []
    numbers = np.searchsorted(block.offsets, within, side="right") - 1
    # Two offsets without a record of their own may mean the same one before them.
    distinct: set[int] = set(numbers.tolist())
    records: list[OffsetDigest] = []
    for number in sorted(distinct):
        offset = int(block.offsets[number])
        records.append((offset, digest_of(block, number)))
    return records


def spread(records: Iterable[OffsetDigest], last: int) -> dict[int, str]:
    """Return which of `records` a partition with the last offset `last` goes on to remember: digests by offset, in
    order.

    Between two neighbours of `DISTANCES`, one record is kept. It is the oldest: while it moves on to the next distance,
    run by run, younger ones follow, so that no distance stays empty for long. Behind the greatest distance it is the
    youngest, or the same record would be kept until retention deletes it.
    """
    kept: dict[int, OffsetDigest] = {}
    for record in sorted(set(records)):
        distance = last - record[0]
        if distance < DISTANCES[0]:
            continue
        step = bisect_right(DISTANCES, distance)
        if step not in kept or step == len(DISTANCES):
            kept[step] = record
    return dict(sorted(kept.values()))


def with_epoch(record: LastRecord, leader_epoch: int) -> LastRecord:
    """Return the record with a leader epoch; -1 is unknown."""
    known = leader_epoch if leader_epoch >= 0 else None
    return msgspec.structs.replace(record, leader_epoch=known)


def read_last_records(
    archive: Archive, manifest: Manifest, partitions: Collection[TopicPartition]
) -> Mapping[TopicPartition, tuple[LastRecord, ...] | str]:
    """Return the last records of each of `partitions` as they stand in the archive, without epochs, or why there are
    none.

    Two or three requests a partition. One whose records have all expired is left out.
    """
    names = {tp.topic for tp in partitions}
    topics = [topic for topic in manifest.topics if topic.name in names]
    newest: dict[TopicPartition, Segment] = {}
    # Segments come in order of their offsets, so the last one of each partition remains.
    for segment in archive.segments(manifest, topics):
        tp = TopicPartition(segment.topic, segment.partition)
        if tp in partitions:
            newest[tp] = segment
    return last_records(archive.store, newest)


def last_records(
    store: Store, segments: Mapping[TopicPartition, Segment]
) -> Mapping[TopicPartition, tuple[LastRecord, ...] | str]:
    """Return the last `FEW` records of each segment, or why they can't be read."""

    def read(segment: Segment) -> tuple[LastRecord, ...] | str:
        records: tuple[LastRecord, ...] = ()
        try:
            for block in SegmentRanges(store, segment).last(FEW):
                records = last_of(block, records)
        except CorruptError as error:
            return error.message
        return records

    answers = in_threads(read, segments.values())
    return dict(zip(segments, answers, strict=True))


def earlier_records(
    store: Store, segments: Mapping[TopicPartition, Sequence[Segment]]
) -> Mapping[TopicPartition, dict[int, str]]:
    """Return digests of archived records before the last one of each partition's `segments`, which are in order, by
    offset at growing distance. What can't be read is left out. Two or three requests a record."""

    def read(own: Sequence[Segment]) -> dict[int, str]:
        records: list[OffsetDigest] = []
        last = own[-1].last
        targets = earlier_offsets(last + 1)
        for segment in own:
            ranges = SegmentRanges(store, segment)
            for target in targets:
                if not segment.first <= target <= segment.last:
                    continue
                # Suppressed: a verification reports the damage. Here, a record less is remembered.
                with suppress(CorruptError):
                    for block in ranges.between(target, segment.last + 1, 1):
                        offset = int(block.offsets[0])
                        records.append((offset, digest_of(block, 0)))
        return spread(records, last)

    answers = in_threads(read, segments.values())
    return dict(zip(segments, answers, strict=True))
