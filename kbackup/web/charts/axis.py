"""The view box of the charts, and the labels of their axes. Pure.

Widths and heights are in units of a view box `WIDTH` wide, which is stretched to the page, so text is outside of it.
"""

from __future__ import annotations

from typing import NamedTuple

from kbackup.util.times import calendar_text

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


def ticks(start: int, end: int, reach: float = 100.0, intervals: int = 4) -> tuple[Tick, ...]:
    """Return labels from `start` to `end` (ms); `end` is `reach` percent along the axis."""
    if end <= start:
        return (Tick(50.0, _label(start, 0)),)
    return tuple(
        Tick(reach * n / intervals, _label(start + (end - start) * n // intervals, end - start))
        for n in range(intervals + 1)
    )


def _label(ms: int, span: int) -> str:
    pattern = "%Y-%m-%d" if not 0 < span < 4 * 86_400_000 else "%m-%d %H:%M"
    return calendar_text(ms, pattern) or str(ms)
