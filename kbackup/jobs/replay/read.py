"""Read a range of a partition: its segments in order, and their records inside the range's window."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from kbackup.archive.restores.plan import UnitRange
from kbackup.archive.segments.read import read_segment, read_small
from kbackup.archive.segments.table import Segment
from kbackup.formats.block import slice_block
from kbackup.store.base import Store
from kbackup.types import RecordBlock

SMALL = 64 << 10
"""Bytes of a segment that is read as a whole, without its index: most of the time goes into requests."""

QUIET = 64 << 20  # bytes of a checked segment that may go by without a record inside the window


class ReadStep(NamedTuple):
    """One step of reading a segment: a block of records, never empty. `block` is None where the segment was read to
    its end and is undamaged, and where a segment that is checked first only needs a `pause`.

    `pause`: there is much to read before the next record may come, so that nothing should be left open meanwhile.
    What came before, and of this segment if its records have begun, is checked.

    `next` is the source offset from which to go on after it. `read` is how many bytes of records were read for it
    and `untimed` how many records were left out for want of a timestamp, both since the step before.
    """

    segment: Segment
    block: RecordBlock | None
    next: int
    read: int
    untimed: int
    pause: bool = False


def read_range(
    store: Store, range_: UnitRange, start: int = 0, check_first: int | None = None
) -> Iterator[ReadStep]:
    """Yield the records of `range_` from source offset `start` on, cut to its window, in order. Errors are those of
    `read_segment`. A segment of more than `check_first` bytes is read through before its first record comes out, with
    a pause before that and wherever `QUIET` bytes of it hold no record inside the window."""
    for segment in range_.segments:
        if segment.last < start:
            continue
        check = check_first is not None and segment.bytes > check_first
        if check:
            yield ReadStep(segment, None, max(start, segment.first), 0, 0, pause=True)
            for _ in read_segment(store, segment):
                pass
        yield from _read(store, range_, segment, start, QUIET if check else None)


def _read(
    store: Store, range_: UnitRange, segment: Segment, start: int, quiet: int | None
) -> Iterator[ReadStep]:
    read = untimed = 0
    blocks = read_small if segment.bytes <= SMALL else read_segment
    for block in blocks(store, segment):
        read += block.nbytes
        rest = _from(block, start)
        if range_.window is not None:
            rest, without_time = range_.window.cut(rest)
            untimed += without_time
        if len(rest):
            yield ReadStep(segment, rest, int(block.offsets[-1]) + 1, read, untimed)
            read = untimed = 0
        elif quiet is not None and read >= quiet:
            yield ReadStep(segment, None, max(start, int(block.offsets[-1]) + 1), read, untimed, pause=True)
            read = untimed = 0
    yield ReadStep(segment, None, segment.last + 1, read, untimed)


def _from(block: RecordBlock, offset: int) -> RecordBlock:
    """Return the block's records at or after `offset`."""
    at = int(np.searchsorted(block.offsets, offset))
    return slice_block(block, at, len(block)) if at else block
