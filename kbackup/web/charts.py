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

from kbackup.archive.catalog.points import PointOverview
from kbackup.archive.query.content import ArchivedPartition
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
    """Yield 1, 2, 5, 10, 20, 50 and so on."""
    for power in count():
        for digit in (1, 2, 5):
            yield digit * 10**power


def _time_steps() -> Iterator[int]:
    """Yield steps of times in ms that are whole seconds, minutes, hours or days."""
    for seconds in (1, 2, 5, 10, 15, 30):
        yield seconds * 1000
    for minutes in (1, 2, 5, 10, 15, 30):
        yield minutes * _MINUTE
    for hours in (1, 2, 3, 6, 12):
        yield hours * _HOUR
    for days in _decimal():
        yield days * _DAY


def ticks(start: int, end: int, reach: float = 100.0, begin: float = 0.0) -> tuple[Tick, ...]:
    """Return labels of round times, in even steps, from `start` to `end` (ms). `start` is at `begin` percent of the
    axis, `end` at `reach` percent. If no round time is between them, `start` alone gets a label."""
    # A part of an axis gets its share of the labels, but two at least: one label alone shows no scale.
    most = max(round(_MOST * (reach - begin) / 100), 2)
    step = next(step for step in _time_steps() if end // step - (start - 1) // step <= most)
    times: Sequence[int] = ()
    if end > start:
        first_round = -(-start // step) * step
        times = range(first_round, end + 1, step)
    pattern = _pattern(step)
    if not times:
        times = (start,)
        pattern = "%Y-%m-%d %H:%M:%S"
    if end > start:
        at_start, percent_per_ms = begin, (reach - begin) / (end - start)
    else:
        # All points are of one time: its label stands in the middle, below the only column.
        at_start, percent_per_ms = (begin + reach) / 2, 0.0
    labels = []
    for ms in times:
        # Timestamps of records may be anything: one after the year 9999 has no calendar text.
        text = calendar_text(ms, pattern) or f"{ms:.1e} ms"
        labels.append(Tick(at_start + (ms - start) * percent_per_ms, text))
    return tuple(labels)


def _pattern(step: int) -> str:
    """Return the format of the labels of times that are multiples of `step`."""
    if step >= _DAY:
        return "%Y-%m-%d"
    if step >= _MINUTE:
        return "%m-%d %H:%M"
    return "%H:%M:%S"


# A quantity over time.


STEPS = 400
"""Number of samples that a chart draws, less one: more would be finer than the pixels of a screen."""

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
    drawn = _thinned(list(samples))
    if len(drawn) < 2 or drawn[-1][0] <= drawn[0][0]:
        return None
    start, end = drawn[0][0], drawn[-1][0]
    most = max(value for _, value in drawn)
    axis = _levels(most, unit)
    # Each value lasts until the next one; nobody knows how long the last one does.
    last_step = max(1 / (len(drawn) - 1), 0.02)
    reach = 1 / (1 + last_step)
    line = ""
    for time, value in drawn:
        x = (time - start) / (end - start) * WIDTH * reach
        y = HEIGHT - value / axis[-1] * HEIGHT
        line += f"H{x:.1f}V{y:.2f}" if line else f"M{x:.1f} {y:.2f}"
    line += f"H{WIDTH:.1f}"
    under = f"{line}V{HEIGHT:.0f}H0Z"
    last = drawn[-1][1]
    labels = ticks(start, end, 100 * reach)
    return Area(line, under, unit, most, last, _placed(axis), labels)


def _thinned(samples: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return at most `STEPS` + 1 samples in even distances, among them the first and the last one."""
    if not samples:
        return []
    last = len(samples) - 1
    chosen = {round(step * last / STEPS) for step in range(STEPS + 1)}
    return [samples[position] for position in sorted(chosen)]


def _levels(most: int, unit: Unit) -> list[int]:
    """Return round values from 0 to `most` or above, at most five."""
    steps: dict[Unit, Iterable[int]] = {"bytes": _byte_steps(), "ms": _time_steps(), "count": _decimal()}
    step = next(step for step in steps[unit] if step * 4 >= most)
    last = max(ceil(most / step), 1)
    return [n * step for n in range(last + 1)]


def _byte_steps() -> Iterator[int]:
    """Yield steps of sizes that are short in bytes, KiB, MiB and so on: 512 KiB comes after 200 KiB, then 1 MiB."""
    for power in count():
        for number in (1, 2, 5, 10, 20, 50, 100, 200, 512):
            yield number << 10 * power


def _placed(levels: Sequence[int]) -> tuple[Level, ...]:
    """Return the levels with their places on a vertical axis that ends at the last one."""
    top = levels[-1]
    return tuple(Level(HEIGHT - value / top * HEIGHT, value) for value in levels)


def running_totals(samples: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return (time, sum of the values up to that time) for samples (time, value)."""
    total, totals = 0, []
    for time, value in samples:
        total += value
        totals.append((time, total))
    return totals


def records_over_time(partitions: Iterable[ArchivedPartition]) -> Area | None:
    """Return the chart of the number of records up to a time, by the newest times of their segments."""
    counts_by_time: list[tuple[int, int]] = []
    for partition in partitions:
        if not partition.segments:
            continue
        newest_times = column_of(partition.segments, "max_timestamp").to_pylist()
        counts = column_of(partition.segments, "count").to_pylist()
        for newest_time, records in zip(newest_times, counts, strict=True):
            # A segment of a folder of the Java tool has no times: that tool does not write them down.
            if newest_time is not None and records is not None:
                counts_by_time.append((newest_time, records))
    return area(running_totals(sorted(counts_by_time)))


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
    expired_ranges = [expired] if expired else []
    shown_ranges = [(partition.start, partition.end), *lost, *expired_ranges]
    starts = [low for low, _ in shown_ranges]
    # The first segment may begin before the partition does: records were deleted at its beginning, not the file.
    starts += [segment.first for segment in partition.segments[:1]]
    start = min(starts)
    end = max(high for _, high in shown_ranges)
    # An empty partition has no width of its own.
    scale = WIDTH / max(end - start, 1)

    def drawn(ranges: Iterable[tuple[int, int]], least: float = 1.0) -> tuple[Span, ...]:
        """Draw ranges in order; those that touch on the chart are one. A span is at least `least` wide."""
        spans = []
        for low, high in _joined(ranges, scale):
            width = max((high - low) * scale, least)
            # A span that was widened at the right edge would leave the chart.
            x = min((low - start) * scale, WIDTH - width)
            spans.append(Span(x, width, low, high))
        return tuple(spans)

    archived = ((segment.first, segment.last + 1) for segment in partition.segments)
    spans = drawn(archived)
    lost_spans = drawn(sorted(lost), _LEAST)
    expired_spans = drawn(expired_ranges)
    return Strip(start, end, spans, lost_spans, expired_spans, _marks(partition, groups, start, scale))


def _marks(
    partition: ArchivedPartition, groups: Iterable[tuple[str, int]], start: int, scale: float
) -> tuple[Mark, ...]:
    """Return the marks of groups' positions on a strip that begins at offset `start`."""
    # One mark for each unit of the width: more could not be told apart.
    marks: dict[tuple[int, str], Mark] = {}
    for name, offset in groups:
        x = min(max((offset - start) * scale, 0.0), WIDTH)
        outside = ""
        if offset > partition.end:
            outside = "after the archive's end"
        if offset < partition.start:
            outside = "before the archive's start"
        place = round(x), outside
        known = marks.get(place)
        if known is None:
            marks[place] = Mark(x, offset, name, outside)
        else:
            marks[place] = known._replace(others=known.others + 1)
    return tuple(marks.values())


def _joined(ranges: Iterable[tuple[int, int]], scale: float) -> list[tuple[int, int]]:
    """Return ranges in order; ranges less than half a unit apart become one."""
    joined: list[tuple[int, int]] = []
    for low, high in ranges:
        if joined and (low - joined[-1][1]) * scale < 0.5:
            first_low, first_high = joined[-1]
            # Ranges are in order of their starts: a later one may end within the one before.
            joined[-1] = first_low, max(high, first_high)
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
    """The restore points of an archive along a time axis, as columns of the bytes that each added."""

    columns: tuple[ChartColumn, ...]
    pauses: tuple[Pause, ...]
    levels: tuple[Level, ...]
    ticks: tuple[Tick, ...]
    usual: float | None
    """Median of the seconds from one restore point to the next."""


def timeline(points: Sequence[PointOverview], expired: Sequence[int] = ()) -> Timeline:
    """Return the timeline of restore points, oldest first; at least one.

    `expired` are the ascending numbers of expired and lost restore points: they explain a pause, which is not shown."""
    times = [ms_of(point.committed_at) for point in points]
    start, span = times[0], max(times[-1] - times[0], 1)
    step = WIDTH / COLUMNS

    def x(time: float) -> float:
        """Return the left edge of a column; a single restore point stands in the middle."""
        room = WIDTH - step  # the last column begins a step before the edge
        if len(times) == 1:
            return room / 2
        return (time - start) / span * room

    by_column: dict[int, list[PointOverview]] = {}
    for point, time in zip(points, times, strict=True):
        column = round(x(time) / step)
        by_column.setdefault(column, []).append(point)
    columns: list[ChartColumn] = []
    for column, members in sorted(by_column.items()):
        columns.append(ChartColumn(column * step, step * 0.8, 0, tuple(members)))
    levels = _levels(_axis_end(columns), "bytes")
    steps = _steps(points, times, expired)
    usual = _usual_interval(steps)
    pauses: list[Pause] = []
    for each in steps:
        if usual and each.interval > usual * LATE:
            # The pause begins where the column of the restore point before it ends.
            begin = x(each.before_at) + step
            width = max(x(each.after_at) - x(each.before_at) - step, step / 2)
            pauses.append(Pause(begin, width, each.before, each.after))
    # The axis begins and ends in the middle of a column, which takes four fifths of a step.
    labels = ticks(times[0], times[-1], 100 - 60 / COLUMNS, 40 / COLUMNS)
    usual_seconds = usual / 1000 if usual is not None else None
    return Timeline(_with_heights(columns, levels[-1]), tuple(pauses), _placed(levels), labels, usual_seconds)


def _axis_end(columns: Sequence[ChartColumn]) -> int:
    """Return the most bytes that a column shows uncut: those of the largest column that is not `LARGE`."""
    sizes = [column.added for column in columns if column.added]
    if not sizes:
        return 0
    limit = LARGE * median(sizes)
    return max(size for size in sizes if size <= limit)


def _with_heights(columns: Sequence[ChartColumn], top: int) -> tuple[ChartColumn, ...]:
    """Return the columns with their heights on an axis that ends at `top` bytes."""
    drawn = []
    for column in columns:
        # A restore point without new records still shows, as a line.
        share = min(max(column.added / top, 0.02), 1.0)
        drawn.append(column._replace(height=share * HEIGHT, cut=column.added > top))
    return tuple(drawn)


class _Step(NamedTuple):
    """Two restore points that were committed one after the other, with their times in ms."""

    before: PointOverview
    after: PointOverview
    before_at: int
    after_at: int

    @property
    def interval(self) -> int:
        return self.after_at - self.before_at


def _steps(points: Sequence[PointOverview], times: Sequence[int], expired: Sequence[int]) -> list[_Step]:
    """Return each pair of neighbours that had no restore point between them that has since expired."""
    steps = []
    timed = zip(points, times, strict=True)
    for (before, before_at), (after, after_at) in pairwise(timed):
        if bisect_left(expired, before.number) == bisect_left(expired, after.number):
            steps.append(_Step(before, after, before_at, after_at))
    return steps


def _usual_interval(steps: Sequence[_Step]) -> float | None:
    """Return the median of the ms between neighbours; None for less than two pairs, which show no habit."""
    if len(steps) < 2:
        return None
    return median(step.interval for step in steps)
