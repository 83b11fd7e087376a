"""Geometry of the charts; the templates draw them. Pure.

Widths and heights are in units of a view box `WIDTH` wide, which is stretched to the page, so text is outside of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from math import ceil
from statistics import median
from typing import Literal, NamedTuple

from kbackup.archive.query.content import ArchivedPartition
from kbackup.archive.query.overview import PointOverview
from kbackup.archive.segments.table import column_of
from kbackup.util.times import calendar_text, ms_of

# The view box of the charts, and the labels of their axes.


WIDTH = 1000.0
HEIGHT = 100.0


class Tick(NamedTuple):
    """A label of a time axis, `at` percent of its length."""

    at: float
    text: str


class Level(NamedTuple):
    """A round value of the vertical axis, `y` from the top in `HEIGHT`."""

    y: float
    value: int


_MINUTE, _HOUR, _DAY = 60_000, 3_600_000, 86_400_000
_MOST = 5
"""Number of labels on the whole length of a time axis, at most: as many as fit."""


def _decimal() -> Iterator[int]:
    return (digit * 10**power for power in count() for digit in (1, 2, 5))


def _time_steps() -> Iterator[int]:
    """Yield steps of times in ms that are whole seconds, minutes, hours or days."""
    yield from (1000 * n for n in (1, 2, 5, 10, 15, 30))
    yield from (_MINUTE * n for n in (1, 2, 5, 10, 15, 30))
    yield from (_HOUR * n for n in (1, 2, 3, 6, 12))
    yield from (_DAY * n for n in _decimal())


def ticks(start: int, end: int, reach: float = 100.0, begin: float = 0.0) -> tuple[Tick, ...]:
    """Return labels of round times, in even steps, from `start` to `end` (ms), which are at `begin` and `reach` percent
    of the axis; of `start` alone if no round time is between."""
    most = max(round(_MOST * (reach - begin) / 100), 2)
    step = next(step for step in _time_steps() if end // step - (start - 1) // step <= most)
    times: Sequence[int] = range(-(-start // step) * step, end + 1, step) if end > start else ()
    pattern = "%Y-%m-%d" if step >= _DAY else "%m-%d %H:%M" if step >= _MINUTE else "%H:%M:%S"
    if not times:
        times, pattern = (start,), "%Y-%m-%d %H:%M:%S"
    first, scale = (begin, (reach - begin) / (end - start)) if end > start else ((begin + reach) / 2, 0.0)
    return tuple(Tick(first + (ms - start) * scale, calendar_text(ms, pattern) or f"{ms:.1e} ms") for ms in times)


# A quantity over time.


STEPS = 400
Unit = Literal["count", "bytes", "ms"]


@dataclass(frozen=True, slots=True)
class Area:
    """A quantity over time as a step chart: its line, the area under it, both axes, its greatest value and its last."""

    line: str
    under: str
    unit: Unit
    most: int
    last: int
    levels: tuple[Level, ...]
    ticks: tuple[Tick, ...]


def area(samples: Iterable[tuple[int, int]], unit: Unit = "count") -> Area | None:
    """Return the chart of samples (time in ms, value), in order of time; None with fewer than two times.

    The last value is drawn as long as the average value, and at least 2 percent of the chart."""
    known = list(samples)
    drawn = (
        [known[n] for n in sorted({round(at * (len(known) - 1) / STEPS) for at in range(STEPS + 1)})] if known else []
    )
    if len(drawn) < 2 or drawn[-1][0] <= drawn[0][0]:
        return None
    start, end = drawn[0][0], drawn[-1][0]
    most = max(value for _, value in drawn)
    axis = _levels(most, unit)
    reach = 1 / (1 + max(1 / (len(drawn) - 1), 0.02))
    path = ""
    for n, (time, value) in enumerate(drawn):
        x, y = (time - start) / (end - start) * WIDTH * reach, HEIGHT - value / axis[-1] * HEIGHT
        path += f"M{x:.1f} {y:.2f}" if n == 0 else f"H{x:.1f}V{y:.2f}"
    path += f"H{WIDTH:.1f}"
    return Area(
        path,
        f"{path}V{HEIGHT:.0f}H0Z",
        unit,
        most,
        drawn[-1][1],
        tuple(Level(HEIGHT - value / axis[-1] * HEIGHT, value) for value in axis),
        ticks(start, end, 100 * reach),
    )


def _levels(most: int, unit: Unit) -> list[int]:
    """Return round values from 0 to `most` or above, at most five."""
    steps: dict[Unit, Iterable[int]] = {
        "bytes": (n << 10 * power for power in count() for n in (1, 2, 5, 10, 20, 50, 100, 200, 512)),
        "ms": _time_steps(),
        "count": _decimal(),
    }
    step = next(step for step in steps[unit] if step * 4 >= most)
    return [n * step for n in range(max(ceil(most / step), 1) + 1)]


def running_totals(samples: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return (time, sum of the values up to that time) for samples (time, value)."""
    total, totals = 0, []
    for time, value in samples:
        total += value
        totals.append((time, total))
    return totals


def records_over_time(partitions: Iterable[ArchivedPartition]) -> Area | None:
    """Return the chart of the number of records up to a time, by the newest times of their segments."""
    columns = (
        [column_of(p.segments, name).to_pylist() for name in ("max_timestamp", "count")]
        for p in partitions
        if p.segments
    )
    times = sorted(each for of_partition in columns for each in zip(*of_partition, strict=True) if each[0] is not None)
    return area(running_totals((time, count) for time, count in times))


# The offsets of a partition: archived, lost and expired ranges, and positions of groups.


_LEAST = 4.0
"""Width of the smallest lost range: it must not be overlooked."""


class Span(NamedTuple):
    x: float
    width: float
    start: int
    end: int


class Mark(NamedTuple):
    """Positions of groups that coincide on the chart: the first one's offset and name, and how many `others` there are.

    `outside` says if it is before or after the archived offsets."""

    x: float
    offset: int
    name: str
    outside: str
    others: int = 0


@dataclass(frozen=True, slots=True)
class Strip:
    """Ranges of a partition, and positions of groups, over the offsets from `start` to `end` (exclusive)."""

    start: int
    end: int
    spans: tuple[Span, ...]
    lost: tuple[Span, ...]
    expired: tuple[Span, ...]
    marks: tuple[Mark, ...]


def strip(
    partition: ArchivedPartition,
    groups: Iterable[tuple[str, int]] = (),
    lost: Sequence[tuple[int, int]] = (),
    expired: tuple[int, int] | None = None,
) -> Strip:
    """Return the strip of a partition. `groups` are (name, offset); ranges have an exclusive end."""
    edges = [(partition.start, partition.end), *lost, *([expired] if expired else [])]
    start = min([*(low for low, _ in edges), *(s.first for s in partition.segments[:1])])
    end = max(high for _, high in edges)
    scale = WIDTH / max(end - start, 1)

    def span(low: int, high: int, least: float = 1.0) -> Span:
        width = max((high - low) * scale, least)
        return Span(min((low - start) * scale, WIDTH - width), width, low, high)

    marks: dict[tuple[int, str], Mark] = {}  # for each unit of the width
    for name, offset in groups:
        x = min(max((offset - start) * scale, 0.0), WIDTH)
        outside = "after the archive's end" if offset > partition.end else ""
        outside = "before the archive's start" if offset < partition.start else outside
        key = round(x), outside
        known = marks.get(key)
        marks[key] = Mark(x, offset, name, outside) if known is None else known._replace(others=known.others + 1)
    return Strip(
        start,
        end,
        tuple(span(*each) for each in _joined(((s.first, s.last + 1) for s in partition.segments), scale)),
        tuple(span(*each, _LEAST) for each in _joined(sorted(lost), scale)),
        (span(*expired),) if expired else (),
        tuple(marks.values()),
    )


def _joined(ranges: Iterable[tuple[int, int]], scale: float) -> list[tuple[int, int]]:
    """Return ranges in order; those less than half a unit apart are one."""
    joined: list[tuple[int, int]] = []
    for low, high in ranges:
        if joined and (low - joined[-1][1]) * scale < 0.5:
            joined[-1] = joined[-1][0], max(high, joined[-1][1])
        else:
            joined.append((low, high))
    return joined


# The timeline of restore points.


COLUMNS = 160
LARGE = 10
"""The axis shows this many times the usual bytes of a column: the first backup would hide all others."""
LATE = 1.75
"""A pause between restore points is shown if it is this many times longer than usual."""


class ChartColumn(NamedTuple):
    """Restore points that were committed about the same time. The height stands for the bytes that they added.

    A column that is `cut` added more than the axis shows."""

    x: float
    width: float
    height: float
    points: tuple[PointOverview, ...]
    cut: bool = False

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
    columns: tuple[ChartColumn, ...]
    pauses: tuple[Pause, ...]
    levels: tuple[Level, ...]
    ticks: tuple[Tick, ...]
    usual: float | None
    """Median of the seconds from one restore point to the next."""


def timeline(points: Sequence[PointOverview], expired: Sequence[int] = ()) -> Timeline:
    """Return the timeline of restore points, oldest first; at least one.

    `expired` are the ascending numbers of expired and lost restore points: they explain a pause, which is not shown."""
    times = [ms_of(p.committed_at) for p in points]
    start, span = times[0], max(times[-1] - times[0], 1)
    step = WIDTH / COLUMNS

    def x(time: float) -> float:
        return (time - start) / span * (WIDTH - step) if len(times) > 1 else (WIDTH - step) / 2

    by_column: dict[int, list[PointOverview]] = {}
    for point, time in zip(points, times, strict=True):
        by_column.setdefault(round(x(time) / step), []).append(point)
    columns = [ChartColumn(at * step, step * 0.8, 0, tuple(members)) for at, members in sorted(by_column.items())]
    sizes = [c.added for c in columns if c.added] or [0]
    most = max((size for size in sizes if size <= LARGE * median(sizes)), default=0)
    levels = _levels(most, "bytes")
    steps = [
        (p, q, a, b)
        for (p, a), (q, b) in pairwise(zip(points, times, strict=True))
        if bisect_left(expired, p.number) == bisect_left(expired, q.number)
    ]
    intervals = [b - a for _, _, a, b in steps]
    usual = median(intervals) if len(intervals) > 1 else None
    pauses = [
        Pause(x(a) + step, max(x(b) - x(a) - step, step / 2), p, q)
        for p, q, a, b in steps
        if usual and b - a > usual * LATE
    ]
    top = levels[-1]
    return Timeline(
        tuple(c._replace(height=min(max(c.added / top, 0.02), 1.0) * HEIGHT, cut=c.added > top) for c in columns),
        tuple(pauses),
        tuple(Level(HEIGHT - value / top * HEIGHT, value) for value in levels),
        ticks(times[0], times[-1], 100 - 60 / COLUMNS, 40 / COLUMNS),
        usual / 1000 if usual is not None else None,
    )
