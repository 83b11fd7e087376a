"""Record blocks: making, cutting, and where a segment ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kbackup.types import Bytes, Int64Array, RecordBlock

HEAD = np.dtype([("offset", ">i8"), ("type", ">i4"), ("timestamp", ">i8"), ("key_length", ">i4")])
"""The first 24 bytes of a record of type 0 or 1. The other types have no timestamp: their key length stands in its
upper half."""


def rising(offsets: Int64Array) -> npt.NDArray[np.bool_]:
    """bool[n]: which offsets are 0 or more and above the one before (compared, as a difference may overflow)."""
    return offsets > np.concatenate(([-1], offsets))[:-1]


def windows(data: Bytes, dtype: str) -> npt.NDArray[Any]:
    """Return a value of `dtype` at every byte of `data`, without a copy: indexing it is an unaligned gather."""
    kind = np.dtype(dtype)
    count = max(len(data) - kind.itemsize + 1, 0)
    contiguous = np.ascontiguousarray(data)
    return np.ndarray((count,), kind, contiguous, strides=(1,))


def heads(data: Bytes, positions: Int64Array) -> npt.NDArray[Any]:
    """`HEAD`[n] of the records at `positions`, each with at least 24 bytes to the end of `data`. Gathered as opaque 24
    bytes: numpy copies a structured dtype field by field, four times slower."""
    return windows(data, f"V{HEAD.itemsize}")[positions].view(HEAD)


def make_block(data: Bytes, offsets: Int64Array, positions: Int64Array, lengths: Int64Array) -> RecordBlock:
    """Return the block of these parts, with its range of timestamps and largest record; not checked."""
    if not len(offsets):
        return RecordBlock(data, offsets, positions, lengths, None, None, 0)
    head = heads(data, positions)
    is_timed = head["type"] >= 0
    timestamps = head["timestamp"][is_timed].astype(np.int64)
    first: int | None = None
    last: int | None = None
    if len(timestamps):
        first = int(timestamps.min())
        last = int(timestamps.max())
    largest = int(lengths.max())
    return RecordBlock(data, offsets, positions, lengths, first, last, largest)


def slice_block(block: RecordBlock, start: int, stop: int) -> RecordBlock:
    """Return records `start` (inclusive) to `stop` (exclusive), over the same bytes; `IndexError` past the ends."""
    if not 0 <= start <= stop <= len(block):
        raise IndexError(f"records {start} to {stop} of a block of {len(block)}")
    if start == stop:
        empty = np.empty(0, np.int64)
        return RecordBlock(block.data[:0], empty, empty, empty, None, None, 0)
    first = int(block.positions[start])
    end = int(block.positions[stop - 1] + block.lengths[stop - 1])
    rows = slice(start, stop)
    positions = block.positions[rows] - first
    return make_block(block.data[first:end], block.offsets[rows], positions, block.lengths[rows])


def select_records(block: RecordBlock, mask: npt.NDArray[np.bool_]) -> RecordBlock:
    """Return the records where `mask` (bool[n]) is true, back to back. Adjacent records share the block's bytes; others
    are copied (by Arrow's filter: 0.1 ns a byte of the block; a mask of bytes took eight times that)."""
    rows = np.flatnonzero(mask)
    if len(rows) == len(block):
        return block
    if not len(rows):
        return slice_block(block, 0, 0)
    first = int(rows[0])
    stop = int(rows[-1]) + 1
    if stop - first == len(rows):
        return slice_block(block, first, stop)
    # Not at import: it makes pyarrow import pandas, which commands that read metadata alone can do without.
    import pyarrow as pa

    from kbackup.formats import arrow

    edges_of_all = np.append(block.positions, block.nbytes)
    whole = arrow.binary(edges_of_all, arrow.octets(block.data))
    selected: Any = whole.filter(pa.array(mask))
    _, edges, data = selected.buffers()
    bounds = np.frombuffer(edges, np.int64)[: len(rows) + 1]
    return make_block(arrow.view(data)[: bounds[-1]], block.offsets[rows], bounds[:-1], block.lengths[rows])


def rotation_cut(lengths: Int64Array, size: int, threshold: int) -> int:
    """Return how many of the leading records go into a segment whose file has `size` bytes (magic byte included). A
    segment ends with the first record that makes its file larger than `threshold`; the check comes before the next
    record, so a new file (`size` 1) takes at least one. 0 means: start a new segment first."""
    if size > max(threshold, 1):
        return 0
    ends = size + np.cumsum(lengths, dtype=np.int64)
    within = int(np.searchsorted(ends, threshold, side="right"))
    # The record that goes beyond the threshold is the segment's last one.
    return min(within + 1, len(lengths))
