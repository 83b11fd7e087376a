"""An index from record bytes alone: the repair path, one record at a time (about 5 µs each)."""

from __future__ import annotations

import numpy as np

from kbackup.formats.block import make_block
from kbackup.formats.layout import check
from kbackup.formats.magic import Buffer, corrupt
from kbackup.formats.walk import ShortError, record
from kbackup.types import RecordBlock


def scan(
    data: Buffer, *, name: str, base: int = 0, first_after: int = -1, partial: bool = False
) -> RecordBlock:
    """The records of `data` (no magic byte) as a checked block.

    `base` is the position of `data` in the file `name`; offsets must increase from above `first_after`.
    With `partial` an incomplete last record is left out instead of refused: `len(data)` less the block's
    `nbytes` is how many bytes of it there are.
    """
    octets = np.frombuffer(data, np.uint8)
    view = octets.data
    offsets: list[int] = []
    edges = [0]
    last = first_after
    try:
        while edges[-1] < len(view):
            last, end = record(view, edges[-1], last, name, base)
            offsets.append(last)
            edges.append(end)
    except ShortError:
        if not partial:
            raise corrupt(name, base + edges[-1], "the file ends within this record") from None
    bounds = np.array(edges, np.int64)
    block = make_block(octets[: edges[-1]], np.array(offsets, np.int64), bounds[:-1], np.diff(bounds))
    check(block, name, base)
    return block
