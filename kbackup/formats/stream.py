"""An index made from record bytes alone, as repairs need it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from kbackup.formats.block import make_block
from kbackup.formats.fields import Buffer, ShortError, check, check_magic, corrupt, record
from kbackup.formats.index import SegmentIndex
from kbackup.types import Bytes, RecordBlock
from kbackup.util.system import BufferPool


def scan(data: Buffer, *, name: str, base: int = 0, first_after: int = -1, partial: bool = False) -> RecordBlock:
    """Return the records of `data` (no magic byte) as a checked block. `base` is the position of `data` in the file
    `name`; offsets must increase from above `first_after`. With `partial` an incomplete last record is left out instead
    of refused: `len(data)` less the block's `nbytes` is how many bytes of it there are."""
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


# A records file as a stream: chunks of bytes in, checked blocks of whole records out, in bounded memory.

_SMALL = 1 << 20
"""Up to so many bytes are not worth a buffer of 17 MiB."""
_GATHERED = BufferPool(17 << 20)
"""Buffers for blocks of 16 MiB made of small chunks: fresh memory for each takes twice as long to fill."""


class _ByIndex:
    """Cuts records off by their index. `take` returns the whole records that `data`, at position `base` of the file,
    starts with, checked, and how many bytes, counted from their end, it takes to find more. `final`: all bytes must be
    used up."""

    def __init__(self, index: SegmentIndex, name: str) -> None:
        index.validate(name)
        self._index = index
        self._name = name
        self._done = 0
        self._ends = index.positions + index.lengths

    def take(self, data: Bytes, base: int, final: bool) -> tuple[RecordBlock, int]:
        reach = base + len(data)
        size = self._index.file_size
        stop = int(np.searchsorted(self._ends, reach, side="right"))
        if reach > size:
            raise corrupt(self._name, size, "bytes after the last record of the index")
        if final and reach < size:
            raise corrupt(self._name, reach, f"the file ends here, its index at {size}")
        part = slice(self._done, stop)
        positions = self._index.positions[part] - base
        lengths = self._index.lengths[part]
        block = make_block(data[: lengths.sum()], self._index.offsets[part], positions, lengths)
        check(block, self._name, base)
        self._done = stop
        need = 1
        if stop < len(self._ends):
            need = int(self._ends[stop] - base - block.nbytes)
        return block, need


class _ByScan:
    """As `_ByIndex`, record by record."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._last = -1

    def take(self, data: Bytes, base: int, final: bool) -> tuple[RecordBlock, int]:
        block = scan(data, name=self._name, base=base, first_after=self._last, partial=not final)
        if len(block):
            self._last = int(block.offsets[-1])
            return block, len(data) - block.nbytes + 1
        # A record longer than what is held: look again at twice the size, not after every chunk.
        return block, 2 * len(data)


def record_cuts(index: SegmentIndex, size: int) -> list[tuple[int, int, slice]]:
    """Return a records file in ranges of at most `size` bytes, or of one record, that end where records end: the start
    and end in the file of each, and its records in the index. The first has the magic byte as well."""
    ends = index.positions + index.lengths
    cuts: list[tuple[int, int, slice]] = []
    start = 0
    done = 0
    while start < index.file_size:
        fitting = int(np.searchsorted(ends, start + size, side="right"))
        # A record that is longer than `size` has a range of its own.
        one_more = min(done + 1, len(ends))
        stop = max(fitting, one_more)
        end = int(ends[stop - 1]) if stop else 1
        cuts.append((start, end, slice(done, stop)))
        start = end
        done = stop
    return cuts


def block_of(data: Bytes, start: int, index: SegmentIndex, records: slice, name: str) -> Iterator[RecordBlock]:
    """Yield the checked block of `records` over `data`, the bytes of the file `name` from `start` on that `record_cuts`
    named; none for an empty file's magic byte."""
    if not start:
        check_magic(int(data[0]), name)
        data = data[1:]
        start = 1
    if len(data):
        positions = index.positions[records] - start
        block = make_block(data, index.offsets[records], positions, index.lengths[records])
        check(block, name, start)
        yield block


def blocks(chunks: Iterable[Buffer], index: SegmentIndex | None, *, name: str, least: int = 1) -> Iterator[RecordBlock]:
    """Yield the records file `name`, given as chunks of any size (magic byte first), as checked blocks. Holds a few
    chunks, or the largest record (twice that without an index). With an index the records must agree with it to the
    last byte; without, they are walked one by one. `CorruptError` for a cut file, trailing bytes, offsets that don't
    increase. Blocks share the chunks' memory: don't alter chunks later. Chunks are gathered until they have `least`
    bytes, so that small ones don't make small blocks."""
    cutter = _ByScan(name) if index is None else _ByIndex(index, name)
    waiting: list[Bytes] = []
    size = 0
    need = least
    base = 1
    for chunk in _body(chunks, name):
        waiting.append(chunk)
        size += len(chunk)
        if size < need:
            continue
        data = _joined(waiting)
        block, need = cutter.take(data, base, final=False)
        need = max(need, least)
        waiting = [data[block.nbytes :]]
        size -= block.nbytes
        base += block.nbytes
        if len(block):
            yield block
    block, _ = cutter.take(_joined(waiting), base, final=True)
    if len(block):
        yield block


def _joined(parts: list[Bytes]) -> Bytes:
    """Return the bytes of all parts, without a copy if one part has them all."""
    filled = [part for part in parts if len(part)]
    if not filled:
        return np.empty(0, np.uint8)
    if len(filled) == 1:
        return filled[0]
    size = sum(map(len, filled))
    if size <= _SMALL or size > _GATHERED.size:
        return np.concatenate(filled)
    buffer = _GATHERED.take()[:size]
    return np.concatenate(filled, out=buffer)


def _body(chunks: Iterable[Buffer], name: str) -> Iterator[Bytes]:
    """Yield the file's chunks after its magic byte, which is checked."""
    is_first = True
    for chunk in chunks:
        part: Bytes = np.frombuffer(chunk, np.uint8)
        if not len(part):
            continue
        if is_first:
            check_magic(int(part[0]), name)
            part = part[1:]
            is_first = False
        yield part
    if is_first:
        check_magic(None, name)
