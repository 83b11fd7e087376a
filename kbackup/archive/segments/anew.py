"""Write segments of a partition anew: several as one, or without some of their records."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kbackup.archive import layout
from kbackup.archive.segments.read import read_segment, read_small
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.writer import PartitionWriter, SegmentTarget
from kbackup.errors import CorruptError
from kbackup.formats.block import select_records
from kbackup.store.base import Store
from kbackup.types import Int64Array, RecordBlock

NOTHING: Int64Array = np.empty(0, np.int64)
"""No offsets: every record is written."""
_SMALL_BYTES = 16 << 20
_NEVER_CUT = 1 << 62
"""The size in bytes at which a new segment would be cut: never. It takes the place of the old ones alone."""


def write_anew(
    store: Store, old: Sequence[Segment], left_out: Int64Array, rewrite: int, compacted: int = 0
) -> Segment | None:
    """Write adjacent segments of a partition as one, without the records at the offsets `left_out` (int64, rising, each
    of a record of these segments). Return the new segment, None if no record is left. Its name has the numbers
    `rewrite` and `compacted`, or a greater `compacted` of the old ones.

    The old ones are held against their checksums meanwhile: `CorruptError` if one is damaged, or has other records than
    its descriptor says.
    """
    last = old[-1]
    known = [layout.compacted_of(segment.key) for segment in old]
    target = SegmentTarget(
        *last.incarnation_partition,
        _NEVER_CUT,
        layout.compression_of(last.key),
        rewrite=rewrite,
        compacted=max(compacted, *known),
    )
    with PartitionWriter(store, target) as writer:
        for segment in old:
            # A small one takes one request, without its index, and is checked before its first record is written.
            read = read_small if segment.bytes <= _SMALL_BYTES else read_segment
            for block in read(store, segment):
                kept = _without(block, left_out)
                if len(kept):
                    writer.append(kept)
        # Only now is it known that the old bytes are those that were archived.
        written = writer.finish()
    new = written[0] if written else None
    count = new.count if new is not None else 0
    if count + len(left_out) != sum(segment.count for segment in old):
        raise CorruptError(
            f"file {last.key}, or one before it, has other records than the catalog says; it was not rewritten",
            "run 'kbackup verify', which lists every finding",
        )
    return new


def _without(block: RecordBlock, left_out: Int64Array) -> RecordBlock:
    """Return a block without the records at the offsets `left_out`."""
    start, stop = np.searchsorted(left_out, [block.offsets[0], block.offsets[-1] + 1])
    if start == stop:
        return block
    return select_records(block, ~np.isin(block.offsets, left_out[start:stop]))
