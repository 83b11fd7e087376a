"""Plain records and their blocks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from kbackup.formats import record
from kbackup.formats.index import SegmentIndex
from kbackup.types import RecordBlock
from tests.unit.formats.reference import Record, a_record, to_batch


def plain(offset: int, **changes: Any) -> Record:
    return a_record(offset, timestamp=1_600_000_000_000)._replace(**changes)


def encoded(*made: Record) -> RecordBlock:
    return record.encode(to_batch(list(made)))


def index_of(blocks: Iterable[RecordBlock]) -> SegmentIndex:
    """The index of a records file that holds `blocks`, in order, after its magic byte."""
    offsets, positions, lengths = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    base = 1
    for block in blocks:
        offsets.append(block.offsets)
        positions.append(block.positions + base)
        lengths.append(block.lengths)
        base += block.nbytes
    return SegmentIndex(np.concatenate(offsets), np.concatenate(positions), np.concatenate(lengths))
