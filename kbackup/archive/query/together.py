"""Pages of the records of several partitions together, in order of time.

Timestamps are in no order within a partition: producers set them. So the partitions are merged: each keeps the order of
its log, and of the next records of all partitions the one with the earliest time comes first. A record that is older
than those before it in its partition follows them.

A page lies between two positions, which are an offset for each partition. The next page begins where this one ends, and
the page before ends where this one begins: no record is lost or repeated on the way, whatever the timestamps are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from kbackup.archive.query.browse import ROOM, SOUGHT, Limit, Page, Sought, offset_at, page_before, page_from
from kbackup.archive.query.content import ArchivedPartition
from kbackup.formats.record import Row
from kbackup.store.base import Store
from kbackup.util.system import in_threads

PARTITIONS = 64
"""Number of partitions that are merged, at most: a page reads records of each."""
SEGMENTS = 128
"""Number of segments that a page reads, shared by its partitions: each gets one at least."""
_THREADS = 16
_END = 2**63 - 1

Position = Mapping[int, int]
"""The offset that comes next in each partition, by the partition's number."""


class PlacedRow(NamedTuple):
    """A record with the number of its partition."""

    partition: int
    row: Row


@dataclass(frozen=True, slots=True)
class TogetherPage:
    """Records from the position `start` up to `end` (exclusive). `earlier` and `later`: there are others before, or
    after them."""

    rows: tuple[PlacedRow, ...]
    start: Position
    end: Position
    earlier: bool
    later: bool


class TimePosition(NamedTuple):
    """The position of a time. If a partition is not `found`, the search goes on from the position."""

    position: Position
    found: bool


def together_from(store: Store, partitions: Sequence[ArchivedPartition], start: Position, most: int) -> TogetherPage:
    """Return the first records from a position on, at most `most`. Partitions that `start` leaves out begin with their
    first record. The page may have less where records are large, or segments small."""
    limit = _limit(partitions)
    begins = {partition.partition: start.get(partition.partition, 0) for partition in partitions}

    def read(partition: ArchivedPartition) -> Page:
        return page_from(store, partition, begins[partition.partition], most, limit)

    read_pages = in_threads(read, partitions, _THREADS)
    pages = dict(zip(begins, read_pages, strict=True))
    logs = {number: page.rows() for number, page in pages.items()}
    rows: list[PlacedRow] = []
    end = dict(begins)
    for placed in _in_order(logs):
        rows.append(placed)
        number, offset = placed.partition, placed.row.offset
        end[number] = offset + 1
        # What follows in this partition was not read: any record of another one may belong behind it.
        is_unread = offset == pages[number].last and pages[number].later
        if is_unread or len(rows) == most:
            break
    return _page(partitions, rows, begins, end)


def together_before(store: Store, partitions: Sequence[ArchivedPartition], end: Position, most: int) -> TogetherPage:
    """Return the last records before a position, at most `most`. Partitions that `end` leaves out end with their last
    record."""
    limit = _limit(partitions)
    ends: dict[int, int] = {}
    for partition in partitions:
        asked = end.get(partition.partition, _END)
        ends[partition.partition] = min(asked, _end_of(partition))

    def read(partition: ArchivedPartition) -> Page:
        return page_before(store, partition, ends[partition.partition], most, limit)

    read_pages = in_threads(read, partitions, _THREADS)
    pages = dict(zip(ends, read_pages, strict=True))
    start = dict(ends)
    taken: dict[int, list[Row]] = {}
    for count, placed in enumerate(_latest_first(pages), 1):
        number, offset = placed.partition, placed.row.offset
        taken.setdefault(number, []).append(placed.row)
        start[number] = offset
        is_unread = offset == pages[number].first and pages[number].earlier
        if is_unread or count == most:
            break
    # Within the page the order is that of a page that is reached forwards.
    logs: dict[int, Iterator[Row]] = {}
    for number, latest_first in taken.items():
        logs[number] = reversed(latest_first)
    rows = list(_in_order(logs))
    return _page(partitions, rows, start, ends)


def position_at(
    store: Store, partitions: Sequence[ArchivedPartition], time: int, start: Position, most_bytes: int = SOUGHT
) -> TimePosition:
    """Find the first record of each partition, from `start` on, whose timestamp (ms) is `time` or later. A partition
    without such a record gets its end. The partitions share `most_bytes` of records, which are looked at."""
    share = max(most_bytes // max(len(partitions), 1), 1)

    def search(partition: ArchivedPartition) -> Sought:
        return offset_at(store, partition, time, start.get(partition.partition, 0), share)

    # Also without a match: the search goes on in each partition from where it is, and no record is looked at twice.
    position: dict[int, int] = {}
    found = True
    for partition, sought in zip(partitions, in_threads(search, partitions, _THREADS), strict=True):
        if sought.offset is None:
            position[partition.partition] = _end_of(partition)
        else:
            position[partition.partition] = sought.offset
            found = found and sought.matched
    return TimePosition(position, found)


def _end_of(partition: ArchivedPartition) -> int:
    """Return the offset after the last record of a partition. Its own end may lie far beyond: behind markers of
    transactions, or records that compaction removed."""
    if not partition.segments:
        return 0
    return partition.segments[-1].last + 1


def _limit(partitions: Sequence[ArchivedPartition]) -> Limit:
    """Return the share of a partition in what a page reads."""
    count = max(len(partitions), 1)
    return Limit(room=ROOM // count, segments=max(SEGMENTS // count, 1))


def _page(
    partitions: Sequence[ArchivedPartition], rows: Sequence[PlacedRow], start: Position, end: Position
) -> TogetherPage:
    earlier = later = False
    for partition in partitions:
        if partition.segments:
            earlier = earlier or partition.segments[0].first < start[partition.partition]
            later = later or partition.segments[-1].last >= end[partition.partition]
    return TogetherPage(tuple(rows), start, end, earlier, later)


def _in_order(logs: Mapping[int, Iterator[Row]]) -> Iterator[PlacedRow]:
    """Merge the records of partitions, by number: each time the next record with the earliest time, of equal ones the
    one of the lowest partition. A record without a time waits for no other."""
    heads: list[tuple[float, int, Row]] = []
    for number, log in logs.items():
        first = next(log, None)
        if first is not None:
            heads.append((_time(first, -math.inf), number, first))
    heapify(heads)
    # No two heads are of one partition, so the comparison of two never comes to the records themselves.
    while heads:
        _, number, row = heappop(heads)
        yield PlacedRow(number, row)
        following = next(logs[number], None)
        if following is not None:
            heappush(heads, (_time(following, -math.inf), number, following))


def _latest_first(pages: Mapping[int, Page]) -> Iterator[PlacedRow]:
    """Merge the records of partitions backwards, as `_in_order` does forwards: each time the last record with the
    latest time."""
    rest: dict[int, list[Row]] = {}
    # A heap gives its least entry, and here the latest time and the highest partition come first: so both are negated.
    tails: list[tuple[float, int]] = []
    for number, page in pages.items():
        rows = list(page.rows())
        rest[number] = rows
        if rows:
            tails.append((-_time(rows[-1], math.inf), -number))
    heapify(tails)
    while tails:
        _, negative = heappop(tails)
        log = rest[-negative]
        yield PlacedRow(-negative, log.pop())
        if log:
            heappush(tails, (-_time(log[-1], math.inf), negative))


def _time(row: Row, otherwise: float) -> float:
    return row.timestamp if row.timestamp is not None else otherwise
