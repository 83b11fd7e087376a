"""Sums over the segments of partitions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kbackup.archive.query.content import ArchivedPartition, span
from kbackup.archive.segments.table import Segment


@dataclass(frozen=True, slots=True)
class Sums:
    """`bytes` of the documented records files, `stored_bytes` of the objects. `gaps` are offsets between start
    and end that no record has: compaction, transactions, losses. Timestamps in ms, None where none is known.

    `expired_records` were in the archive once, before the first ones that are.

    Of a moment (`ArchiveOverview.choice`) it is what has to be read: `records` are at most so many, timestamps are
    bounds, and gaps are not known (None)."""

    records: int
    bytes: int
    stored_bytes: int
    segments: int
    gaps: int | None
    min_timestamp: int | None
    max_timestamp: int | None
    expired_records: int = 0


def total(parts: Iterable[Sums]) -> Sums:
    every = list(parts)
    gaps = [each.gaps for each in every if each.gaps is not None]
    low, high = span((each.min_timestamp, each.max_timestamp) for each in every)
    return Sums(
        records=sum(each.records for each in every),
        bytes=sum(each.bytes for each in every),
        stored_bytes=sum(each.stored_bytes for each in every),
        segments=sum(each.segments for each in every),
        gaps=sum(gaps) if len(gaps) == len(every) else None,
        min_timestamp=low,
        max_timestamp=high,
        expired_records=sum(each.expired_records for each in every),
    )


def sums_of(partitions: Iterable[ArchivedPartition]) -> Sums:
    """Sum up partitions, of one topic or several."""
    counted = list(partitions)
    segments: list[Segment] = [s for p in counted for s in p.segments]
    records = sum(p.records for p in counted)
    low, high = span(p.timestamps for p in counted)
    cut = any(p.window is not None for p in counted)
    return Sums(
        records=records,
        bytes=sum(s.bytes for s in segments),
        stored_bytes=sum(s.stored for s in segments),
        segments=len(segments),
        gaps=None if cut else sum(p.end - p.start for p in counted) - records,
        min_timestamp=low,
        max_timestamp=high,
        expired_records=sum(p.expired for p in counted),
    )
