"""The last archived records of a partition: what a later run holds against the log to know that it is the same one."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence

import msgspec

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


def digest_of(block: RecordBlock, number: int) -> str:
    """Return the digest of record `number` of the block (negative: from its end), as `LastRecord` has it."""
    start = int(block.positions[number])
    data = block.data[start : start + int(block.lengths[number])]
    return hashlib.sha256(data.tobytes()).hexdigest()[:_DIGITS]


def last_of(block: RecordBlock, before: Sequence[LastRecord] = ()) -> tuple[LastRecord, ...]:
    """Return the last `FEW` records of `before` followed by `block`; records of the block have no leader epoch."""
    few = tuple(
        LastRecord(offset=int(block.offsets[n]), leader_epoch=None, digest=digest_of(block, n))
        for n in range(-min(FEW, len(block)), 0)
    )
    return (*before, *few)[-FEW:]


def with_epoch(record: LastRecord, leader_epoch: int) -> LastRecord:
    """Return the record with a leader epoch; -1 is unknown."""
    return msgspec.structs.replace(record, leader_epoch=None if leader_epoch < 0 else leader_epoch)


def read_last_records(
    archive: Archive, manifest: Manifest, partitions: Collection[TopicPartition]
) -> Mapping[TopicPartition, tuple[LastRecord, ...] | str]:
    """Return the last records of each of `partitions` as they stand in the archive, without epochs, or why there are
    none.

    Two or three requests a partition. One whose records have all expired is left out.
    """
    topics = {tp.topic for tp in partitions}
    newest: dict[TopicPartition, Segment] = {}
    for segment in archive.segments(manifest, [t for t in manifest.topics if t.name in topics]):
        tp = TopicPartition(segment.topic, segment.partition)
        if tp in partitions and (tp not in newest or segment.first > newest[tp].first):
            newest[tp] = segment
    return last_records(archive.store, newest)


def last_records(
    store: Store, segments: Mapping[TopicPartition, Segment]
) -> Mapping[TopicPartition, tuple[LastRecord, ...] | str]:
    """Return the last `FEW` records of each segment, or why they can't be read."""

    def read(segment: Segment) -> tuple[LastRecord, ...] | str:
        few: tuple[LastRecord, ...] = ()
        try:
            for block in SegmentRanges(store, segment).last(FEW):
                few = last_of(block, few)
        except CorruptError as error:
            return error.message
        return few

    return dict(zip(segments, in_threads(read, segments.values()), strict=True))
