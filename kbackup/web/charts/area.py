"""Geometry of a quantity over time; the templates draw it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, count
from math import ceil
from typing import Literal

from kbackup.archive.query.content import ArchivedPartition
from kbackup.web.charts.axis import HEIGHT, WIDTH, Level, Tick, ticks

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
        [known[n] for n in sorted({round(at * (len(known) - 1) / STEPS) for at in range(STEPS + 1)})]
        if known
        else []
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
    """Return round values from 0 to `most` or above, at most five steps."""
    step = next(step for step in _steps(unit) if step * 4 >= most)
    return [n * step for n in range(max(ceil(most / step), 1) + 1)]


def _steps(unit: Unit) -> Iterator[int]:
    """Yield round numbers, the smallest first."""
    if unit == "bytes":
        return (1 << n for n in count())
    if unit == "ms":
        return chain((1000 * seconds for seconds in _SECONDS), (86_400_000 * days for days in _decimal()))
    return _decimal()


_MINUTES = (1, 2, 5, 10, 15, 30, 60, 120, 240, 480)
_SECONDS = (1, 2, 5, 10, 15, 30, *(60 * minutes for minutes in _MINUTES))


def _decimal() -> Iterator[int]:
    return (digit * 10**power for power in count() for digit in (1, 2, 5))


def running_totals(samples: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return (time, sum of the values up to that time) for samples (time, value)."""
    total, totals = 0, []
    for time, value in samples:
        total += value
        totals.append((time, total))
    return totals


def records_over_time(partitions: Iterable[ArchivedPartition]) -> Area | None:
    """Return the chart of the number of records up to a time, by the newest times of their segments."""
    times = sorted(
        (s.max_timestamp, s.count) for p in partitions for s in p.segments if s.max_timestamp is not None
    )
    return area(running_totals((time, count) for time, count in times))
