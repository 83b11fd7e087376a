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
    """A segment's index, and the size of its records file with the whole records alone. `ranges` are their
    positions and lengths in the file that is there, None if they are the file."""

    index: SegmentIndex
    stored: int
    ranges: Sequence[tuple[int, int]] | None = None
    flaws: tuple[Flaw, ...] = ()


def java_segment(store: Store, key: str, size: int) -> JavaSegment:
    """Return the segment of the records file `key`, which has `size` bytes. `CorruptError` where bytes that are no
    record may be records whose index is lost."""
    index_key, is_plain = layout.index_key_of(key), layout.compression_of(key) == "none"
    data: bytes | None = None
    with suppress(NotFoundError):
        data = store.get(index_key)
    try:
        index = decode_index(data or b"", index_key)
        # records that the index has and the file has not are lost: whoever reads them says so
        if not is_plain or index.file_size >= size:
            return JavaSegment(index, size)
    except CorruptError:
        if not is_plain:
            raise
    return _mended(store, key, size, data)


def _mended(store: Store, key: str, size: int, data: bytes | None) -> JavaSegment:
    """Return the segment by records that are read one by one, where its records file and its index disagree."""
    index_key = layout.index_key_of(key)
    if size:
        check_magic(store.get_range(key, 0, 1)[0], key)
    walk = Walk(key, size, lambda start, length: store.get_range(key, start, length))
    walk.take_entries(plausible_entries(data or b"", index_key))
    walk.take_records()
    flaws = [*_of_index(index_key, data, walk), *_of_records(key, walk)]
    if walk.broken is not None and (not data or any(flaw.damaged for flaw in flaws)):
        raise walk.broken
    records = walk.records()
    runs = contiguous_ranges(records) if size else []
    return JavaSegment(joined(records), sum(length for _, length in runs), runs, tuple(flaws))


def _of_index(key: str, data: bytes | None, walk: Walk) -> Iterator[Flaw]:
    if not data:
        yield Flaw(key, f"is {'missing' if data is None else 'empty'}: its records are read one by one")
        return
    left = len(data) - 1 - ENTRY * walk.indexed
    if left >= ENTRY:
        yield Flaw(key, f"is damaged from entry {walk.indexed:,} on", left, damaged=True)
    elif left:
        yield Flaw(key, f"ends within entry {walk.indexed:,}", left)
    elif walk.walked:
        yield Flaw(key, f"has no entry from record {walk.indexed:,} on: records are read one by one from there")


def _of_records(key: str, walk: Walk) -> Iterator[Flaw]:
    runs = contiguous_ranges(walk.records())
    between = walk.at - sum(length for _, length in runs)
    if between > 0:
        yield Flaw(key, f"has {between:,} bytes between its records that are torn or were written twice", between)
    if walk.rest:
        behind = f"offset {walk.last}" if walk.last >= 0 else "its first byte"
        yield Flaw(key, f"has {walk.rest:,} bytes behind {behind} that are no whole record", walk.rest)


class JavaFolder(DelegatingStore):
    """`Store` over `inner`. Objects that are no segment of a topic folder at its root are as they are in `inner`. An
    empty file of group offsets reads as one without groups. Listings name the objects that are there, in their sizes
    here."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._known: dict[str, JavaSegment | None] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return JavaFolder, (self.inner,)

    def segment(self, key: str, size: int) -> JavaSegment:
        """Return the segment of the records file `key`, which has `size` bytes."""
        found = java_segment(self.inner, key, size)
        self._known[key] = found if found.ranges is not None else None
        return found

    def flaws(self, topic: str) -> Sequence[Flaw]:
        """Return the flaws of the segments of `topic` that were read so far."""
        return [f for key in sorted(self._known) if key.startswith(f"{topic}/") for f in self.flaws_of(key)]

    def flaws_of(self, key: str) -> Sequence[Flaw]:
        """Return the flaws of the segment of the records file `key`, if it was read."""
        found = self._known.get(key)
        return found.flaws if found is not None else ()

    def _torn(self, key: str, size: int | None = None) -> JavaSegment | None:
        """Return a records file without a whole index as a segment, read as far as it is intact. `size` is the size of
        the file, if it is known."""
        name = layout.parse_segment(key.partition("/")[2])
        if name is None or name.kind == "index" or layout.compression_of(key) != "none":
            return None
        if key not in self._known:
            self.segment(key, self.inner.stat(key).size if size is None else size)
        return self._known[key]

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        if (index := self._index(key)) is not None:
            return index, ""
        torn = self._torn(key)
        if torn is not None:
            return b"".join(self.open_range(key, 0, torn.stored)), ""
        data, etag = self.inner.get_with_etag(key)
        is_empty = not data and layout.parse_group_offsets(key.partition("/")[2]) is not None
        return b"{}" if is_empty else data, etag

    def _index(self, key: str) -> bytes | None:
        """Return the bytes of the segment index `key` where they are not as they are there."""
        name = layout.parse_segment(key.partition("/")[2])
        if name is not None and name.kind == "index":
            with suppress(NotFoundError):  # its records are compressed, or missing
                torn = self._torn(f"{key.removesuffix('_index')}_records")
                return encode_index(torn.index) if torn is not None else None
        return None

    def open_range(self, key: str, start: int, length: int) -> Iterator[bytes]:
        if (index := self._index(key)) is not None:
            yield index[start : start + length]
            return
        for at, size in self._spans(key, start, length):
            yield from self.inner.open_range(key, at, size)

    def fill(self, key: str, start: int, into: memoryview) -> Iterator[memoryview]:
        if (index := self._index(key)) is not None:
            into[:] = index[start : start + len(into)]
            yield into
            return
        done = 0
        for at, size in self._spans(key, start, len(into)):
            yield from self.inner.fill(key, at, into[done : done + size])
            done += size

    def _spans(self, key: str, start: int, length: int) -> Iterator[tuple[int, int]]:
        """Positions and lengths in the file that is there of `length` bytes from `start` of the whole records."""
        torn = self._torn(key)
        if torn is None or torn.ranges is None:
            yield start, length
            return
        if start + length > torn.stored:
            raise CorruptError(
                f"file {key} has {torn.stored} bytes of whole records, wanted up to byte {start + length}",
                "run the command again: the file was probably changed while it was read",
            )
        base = 0
        for at, size in torn.ranges:
            low, high = max(start, base), min(start + length, base + size)
            if low < high:
                yield at + low - base, high - low
            base += size

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
        for entry in self.inner.list(prefix, start_after):
            torn = self._torn(entry.key, entry.size)
            yield entry if torn is None else entry._replace(size=torn.stored, etag="")

    def stat(self, key: str) -> ObjectInfo:
        torn = self._torn(key)
        found = self.inner.stat(key)
        return found if torn is None else found._replace(size=torn.stored, etag="")

    def checksum(self, key: str) -> int | None:
        return self.inner.checksum(key) if self._torn(key) is None else None


# Segments that a killed writer of the Java tool left: the entries and records before the first torn one.
#
# The tool writes a record field by field, then its index entry number by number, and syncs neither. After a restart it
# appends behind what is torn, and gets the records again that have no entry.

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
