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
    return np.ndarray((max(len(data) - kind.itemsize + 1, 0),), kind, np.ascontiguousarray(data), strides=(1,))


def heads(data: Bytes, positions: Int64Array) -> npt.NDArray[Any]:
    """`HEAD`[n] of the records at `positions`, each with at least 24 bytes to the end of `data`. Gathered as opaque 24
    bytes: numpy copies a structured dtype field by field, four times slower."""
    return windows(data, f"V{HEAD.itemsize}")[positions].view(HEAD)


def make_block(data: Bytes, offsets: Int64Array, positions: Int64Array, lengths: Int64Array) -> RecordBlock:
    """Return the block of these parts, with its range of timestamps and largest record; not checked."""
    if not len(offsets):
        return RecordBlock(data, offsets, positions, lengths, None, None, 0)
    head = heads(data, positions)
    timestamps = head["timestamp"][head["type"] >= 0].astype(np.int64)
    timed = len(timestamps) > 0
    return RecordBlock(
        data,
        offsets,
        positions,
        lengths,
        int(timestamps.min()) if timed else None,
        int(timestamps.max()) if timed else None,
        int(lengths.max()),
    )


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
    return make_block(block.data[first:end], block.offsets[rows], block.positions[rows] - first, block.lengths[rows])


def select_records(block: RecordBlock, mask: npt.NDArray[np.bool_]) -> RecordBlock:
    """Return the records where `mask` (bool[n]) is true, back to back. Adjacent records share the block's bytes; others
    are copied (by Arrow's filter: 0.1 ns a byte of the block; a mask of bytes took eight times that)."""
    rows = np.flatnonzero(mask)
    if len(rows) == len(block):
        return block
    first, last = (int(rows[0]), int(rows[-1])) if len(rows) else (0, -1)
    if last - first + 1 == len(rows):
        return slice_block(block, first, last + 1)
    # here: it makes pyarrow import pandas, which those who look at metadata alone can do without
    import pyarrow as pa

    from kbackup.formats import arrow

    whole = arrow.binary(np.append(block.positions, block.nbytes), arrow.octets(block.data))
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
    return min(int(np.searchsorted(ends, threshold, side="right")) + 1, len(lengths))
