"""Segments that a killed writer of the Java tool left: the entries and records before the first torn one.

The tool writes a record field by field, then its index entry number by number, and syncs neither. After a restart it
appends behind what is torn, and gets the records again that have no entry.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

import numpy as np

from kbackup.errors import CorruptError
from kbackup.formats.block import rising
from kbackup.formats.index import SegmentIndex
from kbackup.formats.layout import MIN_RECORD, ShortError, check_magic, record

ENTRY = 24  # bytes of an index entry
_SPAN = 4 << 20

Read = Callable[[int, int], bytes]  # gives the bytes of a records file from a position on, so many of them


def plausible_entries(data: bytes, name: str) -> SegmentIndex:
    """Return the entries of the index file `name` before the first that is torn, or can't follow the one before it.
    Bytes of the records file may lie between two of them. `CorruptError` for another version of the format."""
    if not data:
        return _EMPTY
    check_magic(data[0], name)
    index = SegmentIndex.of(np.frombuffer(data, ">i8", (len(data) - 1) // ENTRY * 3, 1).reshape(-1, 3))
    ends = index.positions + index.lengths
    due = np.concatenate(([1], ends[:-1]))[: len(index)]
    good = rising(index.offsets) & (index.positions >= due) & (index.lengths >= MIN_RECORD) & (ends > due)
    return _first(index, len(index) if good.all() else int(np.argmin(good)))


class Walk:
    """The whole records of the file `name` of `size` bytes: by their index entries, then one by one. `indexed` counts
    the records that have entries. `at` is where the last whole record ends, `broken` why the bytes from there on are
    none: None if they are the beginning of one."""

    def __init__(self, name: str, size: int, read: Read) -> None:
        self._name, self._size, self._read = name, size, read
        self._entries = _first(_EMPTY, 0)
        self._walked = array("q")  # offset, position and length of each
        self.at, self.last = 1, -1
        self.broken: CorruptError | None = None

    @property
    def indexed(self) -> int:
        return len(self._entries)

    @property
    def walked(self) -> int:
        return len(self._walked) // 3

    @property
    def rest(self) -> int:
        """Bytes behind the last whole record."""
        return max(self._size - self.at, 0)

    def take_entries(self, index: SegmentIndex) -> None:
        """The records of `index`, up to the first behind a gap that is not there, and to the last that is there: the
        entry before a damaged one may be wrong as well."""
        ends = index.positions + index.lengths
        due = np.concatenate(([1], ends[:-1]))[: len(index)]
        gaps = np.flatnonzero(index.positions != due).tolist()
        count = next((k for k in gaps if not self._is_there(index, k)), len(index))
        while count and not self._is_there(index, count - 1):
            count -= 1
        self._entries = _first(index, count)
        if count:
            self.at, self.last = int(ends[count - 1]), int(index.offsets[count - 1])

    def _is_there(self, index: SegmentIndex, number: int) -> bool:
        at, length = int(index.positions[number]), int(index.lengths[number])
        if at + length > self._size:
            return False
        try:
            found = record(memoryview(self._read(at, length)), 0, -1, self._name, at)
        except (ShortError, CorruptError):
            return False
        return found == (index.offsets[number], length)

    def take_records(self) -> None:
        """Take the whole records after the last one of the index. One with the offset of the record before it was
        written twice, and is skipped."""
        room = _SPAN
        while self.rest and self.broken is None:
            view = memoryview(self._read(self.at, min(room, self.rest)))
            start, used = self.at, 0
            try:
                while used < len(view):
                    offset, end = record(view, used, max(self.last - 1, -1), self._name, start)
                    if offset != self.last:
                        self._walked.extend((offset, start + used, end - used))
                    used, self.at, self.last = end, start + end, offset
            except ShortError:
                pass
            except CorruptError as error:
                self.broken = error
            if not used and len(view) == self.rest:
                return
            room = _SPAN if used else 2 * room

    def records(self) -> SegmentIndex:
        """All of them, with their positions in the file."""
        known = self._entries
        entries = np.stack((known.offsets, known.positions, known.lengths), axis=1)
        return SegmentIndex.of(np.concatenate((entries, np.frombuffer(self._walked, np.int64).reshape(-1, 3))))


def contiguous_ranges(records: SegmentIndex) -> list[tuple[int, int]]:
    """Return (position, length) in their file of the magic byte and of every contiguous range of records, in order."""
    starts = np.concatenate(([0], records.positions))
    ends = np.concatenate(([1], records.positions + records.lengths))
    first = np.concatenate(([0], np.flatnonzero(starts[1:] != ends[:-1]) + 1))
    last = np.concatenate((first[1:] - 1, [len(starts) - 1]))
    return list(zip(starts[first].tolist(), (ends[last] - starts[first]).tolist(), strict=True))


def joined(records: SegmentIndex) -> SegmentIndex:
    """Return the index of a records file that holds `records` alone, without gaps between them."""
    positions = 1 + np.concatenate(([0], np.cumsum(records.lengths)))[: len(records)]
    return SegmentIndex(records.offsets, positions.astype(np.int64), records.lengths)


def _first(index: SegmentIndex, count: int) -> SegmentIndex:
    return SegmentIndex(index.offsets[:count], index.positions[:count], index.lengths[:count])


_EMPTY = SegmentIndex.of(np.empty((0, 3), np.int64))
