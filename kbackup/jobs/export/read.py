"""Read blocks of segments in a task of an export, as rows of exported tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from kbackup.archive.query.export_rows import to_export_batch
from kbackup.archive.segments.parallel import ReadUnit, SegmentRange, read_range
from kbackup.formats.block import rotation_cut, slice_block
from kbackup.spark.progress import ProgressSender
from kbackup.store.base import Store
from kbackup.types import Incarnation, RecordBlock

BATCH_BYTES = 4 << 20
"""Bytes of records that become one batch, where one record is not more."""


@dataclass(frozen=True)
class ReadRows:
    """The work of a task: the rows of its part, `point` being the restore point that they came with."""

    store: Store
    point: int
    partitions: Mapping[Incarnation, int]

    def __call__(self, part: ReadUnit, progress: ProgressSender) -> Iterator[pa.RecordBatch]:
        for piece in part.ranges:
            for block in read_range(self.store, piece):
                for cut_block in cut(block, BATCH_BYTES):
                    yield self.rows(piece, cut_block)
                    progress.add(len(cut_block), cut_block.nbytes)

    def rows(self, piece: SegmentRange, block: RecordBlock) -> pa.RecordBatch:
        s = piece.segment
        count = self.partitions[s.topic, s.incarnation]
        return to_export_batch(block, s.topic, s.partition, s.key, s.incarnation, count, self.point)


def cut(block: RecordBlock, most: int) -> Iterator[RecordBlock]:
    """Yield the block in smaller blocks that end with the record that makes them larger than `most` bytes."""
    at = 0
    while at < len(block):
        count = rotation_cut(block.lengths[at:], 0, most)
        yield slice_block(block, at, at + count)
        at += count
