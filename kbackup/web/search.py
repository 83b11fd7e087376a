"""Search records within the bounds of a page: so many matches, bytes and seconds. A later page resumes the search."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from msgspec.structs import replace

from kbackup.archive.query.content import ArchivedPartition
from kbackup.archive.query.find import Pattern, Searched, search, to_search
from kbackup.archive.segments.window import Window
from kbackup.config.windows import TopicAddress
from kbackup.errors import CorruptError, KbackupError
from kbackup.formats.record import Row, rows
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from kbackup.web.archive_cache import ArchiveSnapshot

MOST = 50
"""Number of matches of a page."""
BYTES = 256 << 20
"""Bytes of records that a page searches; the last unit may exceed them."""
SECONDS = 5.0
"""Seconds after which a page ends with the unit that it waits for."""

ROOM = 8 << 20
"""Bytes of matches after which a page ends."""

_THREADS = 2
_UNIT = 2 << 20
_END = 2**63 - 1


@dataclass
class SearchResult:
    """Matches of a page. `resume_at` is the address of the next record to search, None at the end.

    `bytes` were searched of `total` that may hold matches. `error` is the damage that ended the search."""

    matches: list[tuple[TopicPartition, Row]] = field(default_factory=list)
    bytes: int = 0
    total: int = 0
    resume_at: TopicAddress | None = None
    error: KbackupError | None = None
    room: int = field(default_factory=lambda: ROOM)

    @property
    def is_full(self) -> bool:
        return len(self.matches) >= MOST or self.room <= 0


class _Due(NamedTuple):
    """A partition to search, and the window of its records."""

    topic: str
    partition: ArchivedPartition
    window: Window

    @property
    def number(self) -> tuple[str, int]:
        return self.topic, self.partition.partition

    def after(self, start: TopicAddress) -> _Due:
        """Return the partition without the records before `start`."""
        ((low, high),) = self.window.ranges or ((0, _END),)
        low = max(low, start.start or 0)
        ranges = ((low, high),) if low < high else ()
        return self._replace(window=replace(self.window, ranges=ranges))


def search_page(
    snapshot: ArchiveSnapshot, pattern: Pattern, address: TopicAddress | None, times: Window, start: TopicAddress | None
) -> SearchResult:
    """Search the records of `address` (None: all topics) in the times of `times`, from `start` until the first bound of
    a page.

    Raises `UsageError` for an unknown topic or partition."""
    due = _due(snapshot, address, times, start)
    result = SearchResult(total=sum(to_search(each.partition, each.window)[1] for each in due))
    end = time.monotonic() + SECONDS
    with closing(_units(snapshot.store, due, pattern)) as units:
        try:
            for unit in units:
                _take(unit, result)
                if result.is_full or result.bytes >= BYTES or time.monotonic() >= end:
                    break
            else:
                result.resume_at = None
        except CorruptError as error:
            result.error, result.resume_at = error, None
    return result


def _take(unit: Searched, result: SearchResult) -> None:
    """Add the matches of a unit, as many as the page has room for."""
    result.bytes += unit.bytes
    result.resume_at = TopicAddress(*unit.tp, unit.end)
    for tp, block in unit.matches:
        for row, length in zip(rows(block), block.lengths, strict=True):
            result.matches.append((tp, row))
            result.room -= int(length)
            if result.is_full:
                result.resume_at = TopicAddress(*tp, row.offset + 1)
                return


def _units(store: Store, due: Sequence[_Due], pattern: Pattern) -> Generator[Searched, None, None]:
    """Search partitions in order; those with the same window share one search."""
    for window, members in groupby(due, lambda each: each.window):
        partitions = [(each.topic, each.partition) for each in members]
        with closing(search(store, partitions, pattern, window, threads=_THREADS, unit_bytes=_UNIT)) as units:
            yield from units


def _due(
    snapshot: ArchiveSnapshot, address: TopicAddress | None, times: Window, start: TopicAddress | None
) -> list[_Due]:
    """Return the partitions to search, each with the window of its records, in order of topic and number."""
    number: int | None
    topics, window, number = snapshot.catalogue.topics, times, None
    if address is not None:
        topics, number = (snapshot.topic(address.topic),), address.partition
        window = times.at_offsets(address.start, address.end)
        if number is not None:
            snapshot.partition(address.topic, number)
    every = [_Due(topic.name, p, window) for topic in topics for p in topic.partitions if number in (None, p.partition)]
    every.sort(key=lambda each: each.number)
    if start is None:
        return every
    first = (start.topic, start.partition or 0)
    return [each.after(start) if each.number == first else each for each in every if each.number >= first]
