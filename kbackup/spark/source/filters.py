"""Translate Spark's filters on topic, partition, segment, offset and timestamp into segments and windows to read."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from kbackup.archive.query.window import Window
from kbackup.archive.segments.table import Segment

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

Ranges = tuple[tuple[int, int], ...]
"""Offsets, from and to (exclusive), disjoint and rising."""

_EVERYTHING = Window()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOST = 2**63 - 1
_OF_SEGMENT: dict[str, tuple[type, Callable[[Segment], object]]] = {
    "topic": (str, lambda segment: segment.topic),
    "partition": (int, lambda segment: segment.partition),
    "segment": (str, lambda segment: segment.key),
}
"""Columns with one value in a whole segment: the type of the value, and how it is read from the segment."""
_TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "EqualTo": operator.eq,
    "EqualNullSafe": operator.eq,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "In": lambda mine, values: mine in values,
    "StringStartsWith": str.startswith,
    "StringEndsWith": str.endswith,
    "StringContains": operator.contains,
}


@dataclass(frozen=True)
class Condition:
    """A condition on a column that has one value in a whole segment."""

    column: str
    test: str
    value: object
    negated: bool

    def holds(self, segment: Segment) -> bool:
        mine = _OF_SEGMENT[self.column][1](segment)
        return _TESTS[self.test](mine, self.value) != self.negated


@dataclass(frozen=True)
class Pushed:
    """The filters of a query: all `conditions` on segments, and the `window` on their records, must hold."""

    conditions: tuple[Condition, ...] = ()
    window: Window = _EVERYTHING

    def wants(self, segment: Segment) -> bool:
        return all(condition.holds(segment) for condition in self.conditions)


def push(filters: Sequence[Filter]) -> Pushed:
    """Combine `filters` as far as they can be translated; every record that passes them is in the result."""
    pushed = Pushed()
    for one in filters:
        pushed = _pushed(pushed, one)
    return pushed


def window_of(asked: Sequence[Pushed], segment: Segment) -> Window | None:
    """Return the window of a segment that contains the records of all queries; None where no query needs it."""
    windows = [p.window for p in asked if p.wants(segment) and p.window.may_hold(segment)]
    return either(windows) if windows else None


def either(windows: Sequence[Window]) -> Window:
    """Return a window that contains the records of each given window (at least one), and maybe more."""
    low = [w.from_time for w in windows if w.from_time is not None]
    high = [w.to_time for w in windows if w.to_time is not None]
    ranges = [w.ranges for w in windows if w.ranges is not None]
    count = len(windows)
    return Window(
        from_time=min(low) if len(low) == count else None,
        to_time=max(high) if len(high) == count else None,
        ranges=joined([pair for pairs in ranges for pair in pairs]) if len(ranges) == count else None,
    )


def both(a: Window, b: Window) -> Window:
    """Return the window of the records that lie in both windows."""
    low = max((t for t in (a.from_time, b.from_time) if t is not None), default=None)
    high = min((t for t in (a.to_time, b.to_time) if t is not None), default=None)
    some = [ranges for ranges in (a.ranges, b.ranges) if ranges is not None]
    ranges = None if not some else some[0] if len(some) == 1 else common(*some)
    if low is not None and high is not None and low > high:
        ranges = ()
    return Window(from_time=low, to_time=high, ranges=ranges)


def common(a: Ranges, b: Ranges) -> Ranges:
    """The offsets that are in both."""
    overlaps: list[tuple[int, int]] = []
    i = j = 0
    while i < len(a) and j < len(b):
        low, high = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if low < high:
            overlaps.append((low, high))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return tuple(overlaps)


def joined(ranges: Sequence[tuple[int, int]]) -> Ranges:
    """Return the same offsets as disjoint, rising ranges."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        elif low < high:
            merged.append((low, high))
    return tuple(merged)


def _pushed(pushed: Pushed, one: Filter) -> Pushed:
    """`pushed` and `one`, as far as that can be said."""
    negated = type(one).__name__ == "Not"
    plain: Any = one.child if negated else one  # type: ignore[attr-defined]
    test = type(plain).__name__
    column = plain.attribute[0] if len(plain.attribute) == 1 else ""
    value = getattr(plain, "value", None)
    if column in _OF_SEGMENT and _fits(test, value, _OF_SEGMENT[column][0]):
        condition = Condition(column, test, _frozen(value), negated)
        return replace(pushed, conditions=(*pushed.conditions, condition))
    window = _EVERYTHING
    if column == "offset" and _fits(test, value, int):
        window = _of_offsets(test, value, negated)
    elif column == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None and not negated:
        window = _of_time(test, (value - _EPOCH) // timedelta(microseconds=1))
    return replace(pushed, window=both(pushed.window, window))


def _fits(test: str, value: object, kind: type) -> bool:
    """Return True when `test` is known and its values have this type: never null, and no boolean for a number."""
    if test == "In":
        return isinstance(value, list | tuple) and all(type(item) is kind for item in value)
    return test in _TESTS and type(value) is kind


def _frozen(value: object) -> object:
    return frozenset(value) if isinstance(value, list | tuple) else value


def _of_offsets(test: str, value: Any, negated: bool) -> Window:
    ranges: dict[str, Callable[[], list[tuple[int, int]]]] = {
        "EqualTo": lambda: [(value, value + 1)],
        "EqualNullSafe": lambda: [(value, value + 1)],
        "In": lambda: [(item, item + 1) for item in value],
        "GreaterThan": lambda: [(value + 1, _MOST)],
        "GreaterThanOrEqual": lambda: [(value, _MOST)],
        "LessThan": lambda: [(0, value)],
        "LessThanOrEqual": lambda: [(0, value + 1)],
    }
    if test not in ranges:
        return _EVERYTHING
    wanted = common(joined(ranges[test]()), ((0, _MOST),))
    return Window(ranges=_others(wanted) if negated else wanted)


def _others(ranges: Ranges) -> Ranges:
    edges = [0, *(edge for pair in ranges for edge in pair), _MOST]
    return joined(list(zip(edges[::2], edges[1::2], strict=True)))


def _of_time(test: str, micros: int) -> Window:
    """Return the window of a condition on a column of whole milliseconds."""
    down, up = micros // 1000, -(-micros // 1000)
    windows: dict[str, tuple[int | None, int | None]] = {
        "EqualTo": (up, down),
        "EqualNullSafe": (up, down),
        "GreaterThan": (down + 1, None),
        "GreaterThanOrEqual": (up, None),
        "LessThan": (None, up - 1),
        "LessThanOrEqual": (None, down),
    }
    low, high = windows.get(test, (None, None))
    return both(Window(from_time=low, to_time=high), _EVERYTHING)
