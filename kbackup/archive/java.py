"""The segments of a folder of the Java tool, and which of their records are whole, whatever a killed sink left.

A sink that is killed leaves torn records and index entries, records without an entry, or no index; one that starts
again appends behind them. `JavaFolder` shows the whole records alone, under an index of theirs.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from kbackup.archive import layout
from kbackup.errors import CorruptError, NotFoundError
from kbackup.formats.block import rising
from kbackup.formats.fields import MIN_RECORD, ShortError, check_magic, record
from kbackup.formats.index import ENTRY, SegmentIndex, decode_index, encode_index
from kbackup.store.base import ObjectInfo, Store
from kbackup.store.wrappers import DelegatingStore
from kbackup.types import Int64Array


class Flaw(NamedTuple):
    """A defect of the file `key`, and how many of its bytes are left out. `damaged`: a killed sink can't have caused
    it."""

    key: str
    defect: str
    bytes: int = 0
    damaged: bool = False

    @property
    def message(self) -> str:
        return f"file {self.key} {self.defect}"


@dataclass(frozen=True, eq=False)
class JavaSegment:
    """A segment's index, and the size of its records file with the whole records alone. `ranges` are the positions and
    lengths of whole records in the file that is there, None if these are the file."""

    index: SegmentIndex
    stored: int
    ranges: Sequence[tuple[int, int]] | None = None
    flaws: tuple[Flaw, ...] = ()


def java_segment(store: Store, key: str, size: int) -> JavaSegment:
    """Return the segment of the records file `key`, which has `size` bytes. `CorruptError` if bytes that are no record
    may be records whose index is lost."""
    index_key = layout.index_key_of(key)
    # The Java tool compresses nothing. A compressed file is never torn, and its size says nothing about its records.
    is_plain = layout.compression_of(key) == "none"
    data: bytes | None = None
    with suppress(NotFoundError):
        data = store.get(index_key)
    try:
        index = decode_index(data or b"", index_key)
        # Records that the index has and the file lacks are lost: whoever reads them reports it.
        if not is_plain or index.file_size >= size:
            return JavaSegment(index, size)
    except CorruptError:
        if not is_plain:
            raise
    return _mended(store, key, size, data)


def _mended(store: Store, key: str, size: int, data: bytes | None) -> JavaSegment:
    """Return the segment by records that are read one by one: its records file and its index disagree."""
    index_key = layout.index_key_of(key)
    if size:
        first_byte = store.get_range(key, 0, 1)
        check_magic(first_byte[0], key)

    def read(start: int, length: int) -> bytes:
        return store.get_range(key, start, length)

    walk = Walk(key, size, read)
    entries = plausible_entries(data or b"", index_key)
    walk.take_entries(entries)
    walk.take_records()
    flaws = list(_of_index(index_key, data, walk))
    flaws += _of_records(key, walk)
    # Behind a whole index, bytes that are no record are a torn write. Without one they may be damage in the middle, and
    # whole records behind it would be lost in silence.
    is_index_lost = not data or any(flaw.damaged for flaw in flaws)
    if walk.broken is not None and is_index_lost:
        raise walk.broken
    records = walk.records()
    ranges = contiguous_ranges(records) if size else []
    stored = sum(length for _, length in ranges)
    return JavaSegment(joined(records), stored, ranges, tuple(flaws))


def _of_index(key: str, data: bytes | None, walk: Walk) -> Iterator[Flaw]:
    """Yield the flaws of the index file `key`, whose bytes are `data`."""
    if not data:
        state = "missing" if data is None else "empty"
        yield Flaw(key, f"is {state}: its records are read one by one")
        return
    # A writer that was killed leaves less than an entry.
    left = len(data) - 1 - ENTRY * walk.indexed
    if left >= ENTRY:
        yield Flaw(key, f"is damaged from entry {walk.indexed:,} on", left, damaged=True)
    elif left:
        yield Flaw(key, f"ends within entry {walk.indexed:,}", left)
    elif walk.walked:
        yield Flaw(key, f"has no entry from record {walk.indexed:,} on: records are read one by one from there")


def _of_records(key: str, walk: Walk) -> Iterator[Flaw]:
    """Yield the flaws of the records file `key`."""
    ranges = contiguous_ranges(walk.records())
    between = walk.at - sum(length for _, length in ranges)
    if between > 0:
        yield Flaw(key, f"has {between:,} bytes between its records that are torn or were written twice", between)
    if walk.rest:
        behind = f"offset {walk.last}" if walk.last >= 0 else "its first byte"
        yield Flaw(key, f"has {walk.rest:,} bytes behind {behind} that are no whole record", walk.rest)


class JavaFolder(DelegatingStore):
    """A store over `inner`, in which segments have their whole records alone. Other objects are as they are in `inner`,
    but for an empty file of group offsets, which reads as one without groups.

    Listings name the objects that are there, with the sizes that they have here. Topic folders are at the root."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._known: dict[str, JavaSegment | None] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return JavaFolder, (self.inner,)

    def segment(self, key: str, size: int) -> JavaSegment:
        """Return the segment of the records file `key`, which has `size` bytes."""
        segment = java_segment(self.inner, key, size)
        # Of one that is whole no index is kept: a folder may have a hundred thousand.
        self._known[key] = segment if segment.ranges is not None else None
        return segment

    def flaws(self, topic: str) -> Sequence[Flaw]:
        """Return the flaws of the segments of `topic` that were read so far."""
        flaws: list[Flaw] = []
        for key in sorted(self._known):
            if key.startswith(f"{topic}/"):
                flaws += self.flaws_of(key)
        return flaws

    def flaws_of(self, key: str) -> Sequence[Flaw]:
        """Return the flaws of the segment of the records file `key`, if it was read."""
        segment = self._known.get(key)
        return segment.flaws if segment is not None else ()

    def _torn(self, key: str, size: int | None = None) -> JavaSegment | None:
        """Return a records file without a whole index as a segment, read as far as it is intact. `size` is the size of
        the file, if it is known."""
        name = layout.parse_segment(key.partition("/")[2])
        if name is None or name.kind == "index" or layout.compression_of(key) != "none":
            return None
        if key not in self._known:
            if size is None:
                size = self.inner.stat(key).size
            self.segment(key, size)
        return self._known[key]

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        index = self._index(key)
        if index is not None:
            return index, ""
        torn = self._torn(key)
        if torn is not None:
            whole_records = self.open_range(key, 0, torn.stored)
            return b"".join(whole_records), ""
        data, etag = self.inner.get_with_etag(key)
        is_group_file = layout.parse_group_offsets(key.partition("/")[2]) is not None
        if is_group_file and not data:
            return b"{}", etag
        return data, etag

    def _index(self, key: str) -> bytes | None:
        """Return the bytes of the segment index `key` if they are other ones than in the file; else None."""
        name = layout.parse_segment(key.partition("/")[2])
        if name is None or name.kind != "index":
            return None
        # Suppressed: its records are compressed, or missing.
        with suppress(NotFoundError):
            torn = self._torn(f"{key.removesuffix('_index')}_records")
            if torn is not None:
                return encode_index(torn.index)
        return None

    def open_range(self, key: str, start: int, length: int) -> Iterator[bytes]:
        index = self._index(key)
        if index is not None:
            yield index[start : start + length]
            return
        for at, size in self._spans(key, start, length):
            yield from self.inner.open_range(key, at, size)

    def fill(self, key: str, start: int, into: memoryview) -> Iterator[memoryview]:
        index = self._index(key)
        if index is not None:
            into[:] = index[start : start + len(into)]
            yield into
            return
        done = 0
        for at, size in self._spans(key, start, len(into)):
            yield from self.inner.fill(key, at, into[done : done + size])
            done += size

    def _spans(self, key: str, start: int, length: int) -> Iterator[tuple[int, int]]:
        """Yield where the file that is there has `length` bytes from `start` of the whole records: positions and
        lengths."""
        torn = self._torn(key)
        if torn is None or torn.ranges is None:
            yield start, length
            return
        if start + length > torn.stored:
            raise CorruptError(
                f"file {key} has {torn.stored} bytes of whole records, wanted up to byte {start + length}",
                "run the command again: the file was probably changed while it was read",
            )
        # Where the present range begins among the whole records.
        base = 0
        for position, size in torn.ranges:
            low = max(start, base)
            high = min(start + length, base + size)
            if low < high:
                yield position + low - base, high - low
            base += size

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
        for entry in self.inner.list(prefix, start_after):
            torn = self._torn(entry.key, entry.size)
            yield _as_shown(entry, torn)

    def stat(self, key: str) -> ObjectInfo:
        torn = self._torn(key)
        return _as_shown(self.inner.stat(key), torn)

    def checksum(self, key: str) -> int | None:
        # The store has the checksum of the whole file.
        if self._torn(key) is not None:
            return None
        return self.inner.checksum(key)


def _as_shown(entry: ObjectInfo, torn: JavaSegment | None) -> ObjectInfo:
    """Return an object as `JavaFolder` shows it: a torn records file has the size of its whole records."""
    if torn is None:
        return entry
    return entry._replace(size=torn.stored, etag="")


# Segments that a killed writer of the Java tool left: the entries and records before the first torn one.
#
# The tool writes a record field by field, then its index entry number by number, and syncs neither. After a restart it
# appends behind what is torn, and gets the records again that have no entry.

_SPAN = 4 << 20
"""Bytes of one read. A record that is longer is read with twice as many, and so on."""

Read = Callable[[int, int], bytes]
"""Returns bytes of a records file, by their position and length."""


def plausible_entries(data: bytes, name: str) -> SegmentIndex:
    """Return the entries of the index file `name` before the first that is torn, or can't follow the one before it.
    Bytes of the records file may lie between two of them. `CorruptError` for another version of the format."""
    if not data:
        return _EMPTY
    check_magic(data[0], name)
    whole_entries = (len(data) - 1) // ENTRY
    numbers = np.frombuffer(data, ">i8", 3 * whole_entries, 1)
    index = SegmentIndex.of(numbers.reshape(-1, 3))
    ends = index.positions + index.lengths
    expected = _ends_before(index)
    # The last comparison is for numbers so large that their sum is negative.
    is_plausible = (
        rising(index.offsets) & (index.positions >= expected) & (index.lengths >= MIN_RECORD) & (ends > expected)
    )
    count = len(index) if is_plausible.all() else int(np.argmin(is_plausible))
    return _first(index, count)


def _ends_before(index: SegmentIndex) -> Int64Array:
    """Return for each record where the one before it ends; the first one begins behind the magic byte."""
    ends = index.positions + index.lengths
    return np.concatenate(([1], ends[:-1]))[: len(index)]


class Walk:
    """The whole records of the file `name` of `size` bytes: by their index entries, then one by one.

    `at` is where the last whole record ends, and `last` its offset. `broken` is why the bytes from there on are no
    record: None if they are the beginning of one.
    """

    def __init__(self, name: str, size: int, read: Read) -> None:
        self._name = name
        self._size = size
        self._read = read
        self._entries = _first(_EMPTY, 0)
        # Offset, position and length of each record, one after the other: a file may have millions.
        self._walked = array("q")
        self.at = 1
        self.last = -1
        self.broken: CorruptError | None = None

    @property
    def indexed(self) -> int:
        """How many records have index entries."""
        return len(self._entries)

    @property
    def walked(self) -> int:
        """How many records were read one by one."""
        return len(self._walked) // 3

    @property
    def rest(self) -> int:
        """Bytes behind the last whole record."""
        return max(self._size - self.at, 0)

    def take_entries(self, index: SegmentIndex) -> None:
        """Take the records of `index`, up to the first one behind a gap that is not there, and to the last one that is
        there: the entry before a damaged one may be wrong as well."""
        gaps = np.flatnonzero(index.positions != _ends_before(index)).tolist()
        count = len(index)
        for number in gaps:
            if not self._is_there(index, number):
                count = number
                break
        while count and not self._is_there(index, count - 1):
            count -= 1
        self._entries = _first(index, count)
        if count:
            last = count - 1
            self.at = int(index.positions[last] + index.lengths[last])
            self.last = int(index.offsets[last])

    def _is_there(self, index: SegmentIndex, number: int) -> bool:
        """Return whether the file has the record of entry `number`."""
        position = int(index.positions[number])
        length = int(index.lengths[number])
        if position + length > self._size:
            return False
        try:
            data = self._read(position, length)
            found = record(memoryview(data), 0, -1, self._name, position)
        except (ShortError, CorruptError):
            return False
        return found == (index.offsets[number], length)

    def take_records(self) -> None:
        """Take the whole records after the last one of the index. One with the offset of the record before it was
        written twice, and is skipped."""
        room = _SPAN
        while self.rest and self.broken is None:
            data = self._read(self.at, min(room, self.rest))
            view = memoryview(data)
            start = self.at
            used = 0
            try:
                while used < len(view):
                    offset, end = record(view, used, max(self.last - 1, -1), self._name, start)
                    if offset != self.last:
                        self._walked.extend((offset, start + used, end - used))
                    used = end
                    self.at = start + end
                    self.last = offset
            except ShortError:
                # The record goes on behind the bytes that were read: the next read begins with it.
                pass
            except CorruptError as error:
                self.broken = error
            if not used and len(view) == self.rest:
                # All that is left is less than a record.
                return
            room = _SPAN if used else 2 * room

    def records(self) -> SegmentIndex:
        """Return all of them, with their positions in the file."""
        known = self._entries
        entries = np.stack((known.offsets, known.positions, known.lengths), axis=1)
        walked = np.frombuffer(self._walked, np.int64).reshape(-1, 3)
        return SegmentIndex.of(np.concatenate((entries, walked)))


def contiguous_ranges(records: SegmentIndex) -> list[tuple[int, int]]:
    """Return (position, length) in their file of the magic byte and of every contiguous range of records, in order."""
    # The magic byte, at 0, comes before the first record.
    starts = np.concatenate(([0], records.positions))
    ends = np.concatenate(([1], records.positions + records.lengths))
    begins_range = np.flatnonzero(starts[1:] != ends[:-1]) + 1
    first = np.concatenate(([0], begins_range))
    last = np.concatenate((first[1:] - 1, [len(starts) - 1]))
    positions = starts[first]
    lengths = ends[last] - positions
    return list(zip(positions.tolist(), lengths.tolist(), strict=True))


def joined(records: SegmentIndex) -> SegmentIndex:
    """Return the index of a records file that holds `records` alone, without gaps between them."""
    ends = np.cumsum(records.lengths)
    positions = 1 + np.concatenate(([0], ends))[: len(records)]
    return SegmentIndex(records.offsets, positions.astype(np.int64), records.lengths)


def _first(index: SegmentIndex, count: int) -> SegmentIndex:
    return SegmentIndex(index.offsets[:count], index.positions[:count], index.lengths[:count])


_EMPTY = SegmentIndex.of(np.empty((0, 3), np.int64))
