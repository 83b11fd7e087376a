"""Reading segments back without trusting a catalogue: each records object by itself, and its index against it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from kbackup.archive import layout
from kbackup.archive.segments.read import read_whole
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.writer import Target
from kbackup.errors import CorruptError, NotFoundError
from kbackup.formats.index import decode_index
from kbackup.store.base import Store

MOST_PARTITIONS = 1_000_000
"""A name with a higher number is not of a partition."""

IndexState = Literal["whole", "missing", "damaged"]


class ToScan(NamedTuple):
    """A records object, and its row in the catalog's table; None where it has none."""

    target: Target
    key: str
    size: int
    start: int
    row: Segment | None = None


@dataclass(frozen=True, slots=True)
class Whole:
    """`vouched`: a table has this checksum. Otherwise the records are whole by their own lengths and order alone.
    `end`: its index goes on after these records, to before that offset: they were cut off where one ends. `warnings`
    name what is left out of the files that it was made of."""

    segment: Segment
    index: IndexState
    vouched: bool
    end: int | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Damaged:
    """A records object that is no whole segment, or not the one that it was."""

    target: Target
    start: int
    key: str
    why: str


def to_scan(sizes: Mapping[str, int], rows: Mapping[str, Segment], keys: Iterable[str]) -> list[ToScan]:
    """The records objects among `keys`, with the catalog's `rows` by key."""
    found: list[ToScan] = []
    for key in keys:
        place = layout.parse_topic_key(key)
        name = layout.parse_segment(place[1]) if place is not None else None
        if place is None or name is None or name.kind == "index" or name.partition >= MOST_PARTITIONS:
            continue
        # the threshold plays no part in reading
        target = Target(*place[0], name.partition, 0, layout.compression_of(key))
        found.append(ToScan(target, key, sizes[key], name.start, rows.get(key)))
    return found


def scan(store: Store, item: ToScan, mend: bool) -> Whole | Damaged:
    """Reads it whole; with `mend` an index that is missing or not its own is written anew where a catalog lists the
    segment: nobody else gives a segment that name then."""
    try:
        segment, data, state, end = read_any(store, item)
    except (CorruptError, NotFoundError) as error:
        why = error.message.removeprefix("file ").removeprefix(item.key).lstrip(": ")
        return Damaged(item.target, item.start, item.key, why)
    if not layout.is_records_key(item.key, item.target.directory, segment.partition, segment.first):
        return Damaged(item.target, item.start, item.key, f"begins with offset {segment.first}")
    if item.row is not None and segment.crc != item.row.crc:
        return Damaged(item.target, item.start, item.key, "is not what its restore point says (checksum)")
    if mend and state != "whole" and item.row is not None:
        store.put(layout.index_key_of(item.key), data)
    return Whole(segment, state, item.row is not None, end)


class ReadBack(NamedTuple):
    """A segment, its index's bytes, and how the index that is there is: it may go on, to before `end`."""

    segment: Segment
    data: bytes
    state: IndexState
    end: int | None = None


def read_any(store: Store, item: ToScan) -> ReadBack:
    """By its index, which is thirty times as fast as record by record; without it where they don't fit."""
    key = layout.index_key_of(item.key)
    there, index = b"", None
    state: IndexState = "damaged"
    try:
        there = store.get(key)
        index = decode_index(there, key)
        segment, data = read_whole(store, item.target, item.key, index)
        if data == there:
            return ReadBack(segment, data, "whole")
    except NotFoundError:
        state = "missing"
    except CorruptError:
        pass  # of the index or of the records: reading without it tells
    segment, data = read_whole(store, item.target, item.key, None)
    longer = index is not None and len(there) > len(data) and there.startswith(data)
    return ReadBack(
        segment, data, state, int(index.offsets[-1]) + 1 if longer and index is not None else None
    )
