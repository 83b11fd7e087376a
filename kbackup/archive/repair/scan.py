"""Read segments back without trusting a catalog, and sort them by partition and offset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kbackup.archive import layout
from kbackup.archive.models import Loss
from kbackup.archive.segments.salvage import IndexState, drop_overlaps, parse_records_object, read_unlisted
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.writer import SegmentTarget
from kbackup.errors import CorruptError, NotFoundError
from kbackup.store.base import Store
from kbackup.types import IncarnationPartition


class ToScan(NamedTuple):
    """A records object, and its row in the catalog's table; None if it has none."""

    target: SegmentTarget
    key: str
    size: int
    start: int
    row: Segment | None = None

    def damaged(self, error: CorruptError | NotFoundError) -> Damaged:
        why = error.message.removeprefix("file ").removeprefix(self.key).lstrip(": ")
        return Damaged(self.target, self.start, self.key, why)


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

    target: SegmentTarget
    start: int
    key: str
    why: str


def to_scan(sizes: Mapping[str, int], rows: Mapping[str, Segment], keys: Iterable[str]) -> list[ToScan]:
    """Return the records objects among `keys`, with the catalog's `rows` by key."""
    objects = filter(None, map(parse_records_object, keys))
    return [ToScan(target, key, sizes[key], start, rows.get(key)) for target, key, start in objects]


def scan(store: Store, item: ToScan, mend: bool) -> Whole | Damaged:
    """Reads it whole; with `mend` an index that is missing or not its own is written anew where a catalog lists the
    segment: nobody else gives a segment that name then."""
    try:
        segment, data, state, end = read_unlisted(store, item.target, item.key)
    except (CorruptError, NotFoundError) as error:
        return item.damaged(error)
    if not layout.is_records_key(item.key, item.target.directory, segment.partition, segment.first):
        return Damaged(item.target, item.start, item.key, f"begins with offset {segment.first}")
    if item.row is not None and segment.crc != item.row.crc:
        return Damaged(item.target, item.start, item.key, "is not what its restore point says (checksum)")
    if mend and state != "whole" and item.row is not None:
        store.put(layout.index_key_of(item.key), data)
    return Whole(segment, state, item.row is not None, end)


@dataclass
class Arranged:
    """`segments` of each partition in order, without overlaps. `skipped` maps keys to reasons."""

    segments: dict[IncarnationPartition, list[Segment]] = field(default_factory=dict)
    losses: list[Loss] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)


def arrange(scanned: Iterable[Whole | Damaged]) -> Arranged:
    """Arrange whole segments by partition, without overlaps: of two that overlap the one that begins first counts, of
    two that begin alike the longer one. Damaged segments, and indexes that go on behind their records, are losses up to
    the next segment."""
    arranged = Arranged()
    holes: list[tuple[IncarnationPartition, int, int | None, str]] = []
    whole: list[Whole] = []
    for each in scanned:
        if isinstance(each, Whole):
            whole.append(each)
        else:
            holes.append((each.target.incarnation_partition, each.start, None, each.why))
            arranged.skipped.append((each.key, each.why))
    kept, overlapping = drop_overlaps(whole, lambda each: each.segment)
    arranged.skipped += [(each.segment.key, "overlaps another segment") for each in overlapping]
    for each in kept:
        key = each.segment.incarnation_partition
        arranged.segments.setdefault(key, []).append(each.segment)
        if each.end is not None:
            holes.append((key, each.segment.last + 1, each.end, "records are cut off where one ends"))
    for key, start, end, why in sorted(holes, key=lambda hole: (hole[0], hole[1])):
        segments = arranged.segments.get(key, [])
        if any(s.first <= start <= s.last for s in segments):
            continue  # other segments have its records
        stop = end if end is not None else min((s.first for s in segments if s.first > start), default=None)
        upto = f"to {stop - 1}" if stop is not None else "and later ones"
        message = f"offsets {start} {upto} of {key[0]}-{key[2]}: {why}"
        loss = Loss(kind="damaged", topic=key[0], partition=key[2], start=start, end=stop, message=message)
        arranged.losses.append(loss)
    return arranged
