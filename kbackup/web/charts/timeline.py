"""Geometry of the timeline of restore points; the templates draw it. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from statistics import median
from typing import NamedTuple

from kbackup.archive.query.points import PointOverview
from kbackup.util.times import ms_of
from kbackup.web.charts.axis import HEIGHT, WIDTH, Level, Tick, ticks

COLUMNS = 160
LATE = 1.75
"""A pause between restore points is shown if it is this many times longer than usual."""


class Column(NamedTuple):
    """Restore points that were committed about the same time. The height stands for the bytes that they added."""

    x: float
    width: float
    height: float
    points: tuple[PointOverview, ...]

    @property
    def last(self) -> PointOverview:
        return self.points[-1]

    @property
    def added(self) -> int:
        return sum(p.stored_bytes for p in self.points)

    @property
    def records(self) -> int:
        return sum(p.records for p in self.points)

    @property
    def losses(self) -> int:
        return sum(p.losses for p in self.points)

    @property
    def damaged(self) -> bool:
        return any(p.damaged for p in self.points)


class Pause(NamedTuple):
    """A time without a restore point, longer than usual."""

    x: float
    width: float
    after: PointOverview
    before: PointOverview


@dataclass(frozen=True, slots=True)
class Timeline:
    columns: tuple[Column, ...]
    pauses: tuple[Pause, ...]
    levels: tuple[Level, ...]
    ticks: tuple[Tick, ...]
    usual: float | None
    """Median of the seconds from one restore point to the next."""


def timeline(points: Sequence[PointOverview], let_go: Sequence[int] = ()) -> Timeline:
    """Return the timeline of restore points, oldest first; at least one.

    `let_go` are the ascending numbers of expired and lost restore points: they explain a pause, which is not shown."""
    times = [ms_of(p.committed_at) for p in points]
    start, span = times[0], max(times[-1] - times[0], 1)
    step = WIDTH / COLUMNS

    def x(time: float) -> float:
        return (time - start) / span * (WIDTH - step) if len(times) > 1 else (WIDTH - step) / 2

    by_column: dict[int, list[PointOverview]] = {}
    for point, time in zip(points, times, strict=True):
        by_column.setdefault(round(x(time) / step), []).append(point)
    columns = [Column(at * step, step * 0.8, 0, tuple(members)) for at, members in sorted(by_column.items())]
    most = _top(max(c.added for c in columns))
    steps = [
        (p, q, a, b)
        for (p, a), (q, b) in pairwise(zip(points, times, strict=True))
        if bisect_left(let_go, p.number) == bisect_left(let_go, q.number)
    ]
    intervals = [b - a for _, _, a, b in steps]
    usual = median(intervals) if len(intervals) > 1 else None
    pauses = [
        Pause(x(a) + step, max(x(b) - x(a) - step, step / 2), p, q)
        for p, q, a, b in steps
        if usual and b - a > usual * LATE
    ]
    return Timeline(
        tuple(c._replace(height=max(sqrt(c.added / most) * HEIGHT, 2.0)) for c in columns),
        tuple(pauses),
        tuple(
            Level(HEIGHT - sqrt(value / most) * HEIGHT, value) for value in (0, most // 16, most // 4, most)
        ),
        ticks(times[0], times[-1]),
        usual / 1000 if usual is not None else None,
    )


def _top(most: int) -> int:
    """Return the value at the top of the axis: a power of two, so that a fourth and a sixteenth of it are round."""
    return max(16, 1 << (most - 1).bit_length())
