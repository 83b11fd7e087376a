"""One segment of a folder of the Java tool: which of its records are whole, whatever a killed sink left of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kbackup.archive import layout
from kbackup.errors import CorruptError, NotFoundError
from kbackup.formats.index import SegmentIndex, decode_index
from kbackup.formats.magic import check_magic
from kbackup.formats.torn import ENTRY, Walk, contiguous_ranges, joined, plausible_entries
from kbackup.store.base import Store


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
    positions and lengths in the file that is there, None where they are the file."""

    index: SegmentIndex
    stored: int
    ranges: Sequence[tuple[int, int]] | None = None
    flaws: tuple[Flaw, ...] = ()


def java_segment(store: Store, key: str, size: int) -> JavaSegment:
    """The segment of the records file `key`, which has `size` bytes. `CorruptError` where bytes that are no record may
    be records whose index is lost."""
    try:
        data: bytes | None = store.get(layout.index_key_of(key))
    except NotFoundError:
        data = None
    return _whole(key, size, data) or _mended(store, key, size, data)


def _whole(key: str, size: int, data: bytes | None) -> JavaSegment | None:
    """Return the segment by the records file and its index; None where they disagree, and more than one of them can be
    read."""
    try:
        index = decode_index(data or b"", layout.index_key_of(key))
    except CorruptError:
        if layout.compression_of(key) != "none":
            raise
        return None
    # records that the index has and the file has not are lost: whoever reads them says so
    whole = layout.compression_of(key) != "none" or index.file_size >= size
    return JavaSegment(index, size) if whole else None


def _mended(store: Store, key: str, size: int, data: bytes | None) -> JavaSegment:
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
        yield Flaw(
            key, f"has no entry from record {walk.indexed:,} on: records are read one by one from there"
        )


def _of_records(key: str, walk: Walk) -> Iterator[Flaw]:
    runs = contiguous_ranges(walk.records())
    between = walk.at - sum(length for _, length in runs)
    if between > 0:
        yield Flaw(
            key, f"has {between:,} bytes between its records that are torn or were written twice", between
        )
    if walk.rest:
        behind = f"offset {walk.last}" if walk.last >= 0 else "its first byte"
        yield Flaw(key, f"has {walk.rest:,} bytes behind {behind} that are no whole record", walk.rest)
