"""Charts of the growth of topics."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence

from kbackup.archive.query.growth import Growth, added_after, growth_of
from kbackup.archive.query.points import PointOverview
from kbackup.types import Incarnation
from kbackup.util.times import ms_of
from kbackup.web.charts.area import Area, area
from kbackup.web.snapshot import Snapshot

LATELY = 7 * 86_400_000
"""Span in ms before the restore point that is shown: growth within it is a column of a table."""


def topic_charts(
    snapshot: Snapshot, points: Sequence[PointOverview], topics: Collection[Incarnation]
) -> dict[Incarnation, Area | None]:
    """Return the charts of stored bytes of topics at each restore point up to that of the snapshot."""
    if snapshot.archive is None or snapshot.point is None:
        return {}
    shown = _upto(snapshot, points)
    growth = growth_of(snapshot.archive, snapshot.point, topics)
    return {topic: area(_samples(growth[topic], shown), "bytes") for topic in topics if topic in growth}


def added_lately(snapshot: Snapshot, points: Sequence[PointOverview]) -> dict[Incarnation, int]:
    """Return the stored bytes that topics got within `LATELY` before the restore point of the snapshot."""
    if snapshot.archive is None or snapshot.point is None:
        return {}
    since = ms_of(snapshot.point.committed_at) - LATELY
    earlier = [p.number for p in _upto(snapshot, points) if ms_of(p.committed_at) <= since]
    return added_after(snapshot.archive, snapshot.point, max(earlier, default=0))


def _upto(snapshot: Snapshot, points: Sequence[PointOverview]) -> list[PointOverview]:
    return [p for p in points if snapshot.number is not None and p.number <= snapshot.number]


def _samples(growth: Growth, points: Sequence[PointOverview]) -> list[tuple[int, int]]:
    """Return (time in ms, stored bytes) at each restore point from the first one that has some of them."""
    numbers = [number for number, _ in growth]
    samples = []
    for point in points:
        at = bisect_left(numbers, point.number + 1)
        if at:
            samples.append((ms_of(point.committed_at), growth[at - 1][1]))
    return samples
