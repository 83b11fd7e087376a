"""Reading segments back without trusting a catalogue: each records object by itself, and its index against it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kbackup.archive import layout
from kbackup.archive.segments.salvage import IndexState, parse_records_object, read_unlisted
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.writer import Target
from kbackup.errors import CorruptError, NotFoundError
from kbackup.store.base import Store


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
    objects = filter(None, map(parse_records_object, keys))
    return [ToScan(target, key, sizes[key], start, rows.get(key)) for target, key, start in objects]


def scan(store: Store, item: ToScan, mend: bool) -> Whole | Damaged:
    """Reads it whole; with `mend` an index that is missing or not its own is written anew where a catalog lists the
    segment: nobody else gives a segment that name then."""
    try:
        segment, data, state, end = read_unlisted(store, item.target, item.key)
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
