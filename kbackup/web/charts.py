"""Geometry of the charts; the templates draw it. Pure.

Widths and heights are in units of a view box `WIDTH` wide, which is stretched to the page: text stands beside it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, count, pairwise
from math import ceil, sqrt
from statistics import median
from typing import Literal, NamedTuple

from kbackup.archive.query.content import ArchivedPartition
from kbackup.archive.query.moment import ms_of
from kbackup.archive.query.overview import PointOverview

WIDTH = 1000.0
HEIGHT = 100.0
COLUMNS = 160
STEPS = 400
LATE = 1.75
"""A restore point that comes so many times later than usual leaves a gap."""


class Column(NamedTuple):
    """Restore points that were committed about the same time: x and width, height of what they added."""

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


class Gap(NamedTuple):
    """A time without a restore point, longer than usual."""

    x: float
    width: float
    after: PointOverview
    before: PointOverview


class Tick(NamedTuple):
    """A label of a time axis, `at` percent of its length."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Timeline:
    columns: tuple[Column, ...]
    gaps: tuple[Gap, ...]
    ticks: tuple[Tick, ...]
    usual: float | None
    """Seconds from one restore point to the next, mostly."""


def timeline(points: Sequence[PointOverview], let_go: Sequence[int] = ()) -> Timeline:
    """The timeline of restore points, oldest first; one at least. `let_go` are rising numbers of restore points that
    are not there any more: where they were, there is no gap."""
    times = [ms_of(p.committed_at) for p in points]
    start, span = times[0], max(times[-1] - times[0], 1)
    step = WIDTH / COLUMNS

    def x(time: float) -> float:
        return (time - start) / span * (WIDTH - step) if len(times) > 1 else (WIDTH - step) / 2

    held: dict[int, list[PointOverview]] = {}
    for point, time in zip(points, times, strict=True):
        held.setdefault(round(x(time) / step), []).append(point)
    columns = [Column(at * step, step * 0.8, 0, tuple(some)) for at, some in sorted(held.items())]
    most = max(sqrt(c.added) for c in columns) or 1
    steps = [
        (p, q, a, b)
        for (p, a), (q, b) in pairwise(zip(points, times, strict=True))
        if bisect_left(let_go, p.number) == bisect_left(let_go, q.number)
    ]
    intervals = [b - a for _, _, a, b in steps]
    usual = median(intervals) if len(intervals) > 1 else None
    gaps = [
        Gap(x(a) + step, max(x(b) - x(a) - step, step / 2), p, q)
        for p, q, a, b in steps
        if usual and b - a > usual * LATE
    ]
    return Timeline(
        tuple(c._replace(height=max(sqrt(c.added) / most * HEIGHT, 2.0)) for c in columns),
        tuple(gaps),
        ticks(times[0], times[-1]),
        usual / 1000 if usual is not None else None,
    )


def ticks(start: int, end: int, reach: float = 100.0, intervals: int = 4) -> tuple[Tick, ...]:
    """Labels from `start` to `end` (ms), which is `reach` percent along a time axis."""
    if end <= start:
        return (Tick(50.0, _label(start, 0)),)
    return tuple(
        Tick(reach * n / intervals, _label(start + (end - start) * n // intervals, end - start))
        for n in range(intervals + 1)
    )


def _label(ms: int, span: int) -> str:
    pattern = "%Y-%m-%d" if not 0 < span < 4 * 86_400_000 else "%m-%d %H:%M"
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime(pattern)
    except (OverflowError, ValueError, OSError):
        return str(ms)


Unit = Literal["count", "bytes", "ms"]


class Level(NamedTuple):
    """A round value of the vertical axis, `y` from the top in `HEIGHT`."""

    y: float
    value: int


@dataclass(frozen=True, slots=True)
class Area:
    """A quantity over time, in steps: its line, the area under it, both axes, its greatest value and its last."""

    line: str
    under: str
    unit: Unit
    most: int
    last: int
    levels: tuple[Level, ...]
    ticks: tuple[Tick, ...]


def area(samples: Iterable[tuple[int, int]], unit: Unit = "count") -> Area | None:
    """Of (time in ms, value), in order of time; None where there are less than two times. The last value is drawn as
    long as a value usually lasts, and 2 percent of the chart at least."""
    known = list(samples)
    some = (
        [known[n] for n in sorted({round(at * (len(known) - 1) / STEPS) for at in range(STEPS + 1)})]
        if known
        else []
    )
    if len(some) < 2 or some[-1][0] <= some[0][0]:
        return None
    start, end = some[0][0], some[-1][0]
    most = max(value for _, value in some)
    axis = _levels(most, unit)
    reach = 1 / (1 + max(1 / (len(some) - 1), 0.02))
    path = ""
    for n, (time, value) in enumerate(some):
        x, y = (time - start) / (end - start) * WIDTH * reach, HEIGHT - value / axis[-1] * HEIGHT
        path += f"M{x:.1f} {y:.2f}" if n == 0 else f"H{x:.1f}V{y:.2f}"
    path += f"H{WIDTH:.1f}"
    return Area(
        path,
        f"{path}V{HEIGHT:.0f}H0Z",
        unit,
        most,
        some[-1][1],
        tuple(Level(HEIGHT - value / axis[-1] * HEIGHT, value) for value in axis),
        ticks(start, end, 100 * reach),
    )


def _levels(most: int, unit: Unit) -> list[int]:
    """Round values from 0 to `most` or above, five at most."""
    step = next(step for step in _steps(unit) if step * 4 >= most)
    return [n * step for n in range(max(ceil(most / step), 1) + 1)]


def _steps(unit: Unit) -> Iterator[int]:
    """Round numbers, the smallest first."""
    if unit == "bytes":
        return (1 << n for n in count())
    if unit == "ms":
        return chain((1000 * seconds for seconds in _SECONDS), (86_400_000 * days for days in _decimal()))
    return _decimal()


_MINUTES = (1, 2, 5, 10, 15, 30, 60, 120, 240, 480)
_SECONDS = (1, 2, 5, 10, 15, 30, *(60 * minutes for minutes in _MINUTES))


def _decimal() -> Iterator[int]:
    return (digit * 10**power for power in count() for digit in (1, 2, 5))


def added_up(samples: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    total, found = 0, []
    for time, value in samples:
        total += value
        found.append((time, total))
    return found


class Span(NamedTuple):
    x: float
    width: float
    start: int
    end: int


class Mark(NamedTuple):
    """A group's position. `outside`: before or behind what is archived."""

    x: float
    offset: int
    name: str
    outside: str


@dataclass(frozen=True, slots=True)
class Strip:
    """What is archived of a partition, over its offsets."""

    spans: tuple[Span, ...]
    marks: tuple[Mark, ...]


def strip(
    partition: ArchivedPartition, groups: Iterable[tuple[str, int]] = (), end: int | None = None
) -> Strip:
    """`groups` are (name, offset); up to offset `end`, by default the partition's own."""
    start = min([partition.start, *(s.first for s in partition.segments[:1])])
    length = max((partition.end if end is None else end) - start, 1)

    def x(offset: int) -> float:
        return min(max((offset - start) / length, 0.0), 1.0) * WIDTH

    marks = [Mark(x(o), o, name, _outside(partition, o)) for name, o in groups]
    return Strip(tuple(_spans(partition, WIDTH / length, start)), tuple(marks))


def _outside(partition: ArchivedPartition, offset: int) -> str:
    if offset > partition.end:
        return "behind the archive's end"
    return "before the archive's start" if offset < partition.start else ""


def _spans(partition: ArchivedPartition, scale: float, start: int) -> Iterable[Span]:
    """Segments that follow one another, but for less than half a unit, are one."""
    held: tuple[int, int] | None = None
    for s in partition.segments:
        if held is not None and (s.first - held[1]) * scale < 0.5:
            held = held[0], s.last + 1
            continue
        if held is not None:
            yield _span(*held, scale, start)
        held = s.first, s.last + 1
    if held is not None:
        yield _span(*held, scale, start)


def _span(first: int, end: int, scale: float, start: int) -> Span:
    return Span((first - start) * scale, max((end - first) * scale, 1.0), first, end)


def records_over_time(partitions: Iterable[ArchivedPartition]) -> Area | None:
    """Records up to a time, by the times of their segments."""
    times = sorted(
        (s.max_timestamp, s.count) for p in partitions for s in p.segments if s.max_timestamp is not None
    )
    return area(added_up((time, count) for time, count in times))
