"""Geometry of a partition's offsets: archived, lost and expired ranges, and positions of groups. Pure.

The templates draw it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kbackup.archive.query.content import ArchivedPartition
from kbackup.web.charts.axis import WIDTH

_LEAST = 4.0
"""Width of the smallest lost range: it must not be overlooked."""


class Span(NamedTuple):
    x: float
    width: float
    start: int
    end: int


class Mark(NamedTuple):
    """Positions of groups that can't be told apart: the first one's offset and name, and how many `others` there are.

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
    return Strip(
        start,
        end,
        tuple(_span(*each, scale, start) for each in _joined(_archived(partition), scale)),
        tuple(_span(low, high, scale, start, _LEAST) for low, high in _joined(sorted(lost), scale)),
        tuple(_span(*each, scale, start) for each in ([expired] if expired else [])),
        tuple(_marks(partition, groups, scale, start)),
    )


def _marks(
    partition: ArchivedPartition, groups: Iterable[tuple[str, int]], scale: float, start: int
) -> Iterable[Mark]:
    """Return a mark for each unit of the width that has positions."""
    marks: dict[tuple[int, str], Mark] = {}
    for name, offset in groups:
        x = min(max((offset - start) * scale, 0.0), WIDTH)
        outside = _outside(partition, offset)
        key = round(x), outside
        known = marks.get(key)
        marks[key] = (
            Mark(x, offset, name, outside) if known is None else known._replace(others=known.others + 1)
        )
    return marks.values()


def _outside(partition: ArchivedPartition, offset: int) -> str:
    if offset > partition.end:
        return "after the archive's end"
    return "before the archive's start" if offset < partition.start else ""


def _archived(partition: ArchivedPartition) -> Iterable[tuple[int, int]]:
    return ((s.first, s.last + 1) for s in partition.segments)


def _joined(ranges: Iterable[tuple[int, int]], scale: float) -> Iterable[tuple[int, int]]:
    """Yield ranges in order; those less than half a unit apart are one."""
    joined: tuple[int, int] | None = None
    for low, high in ranges:
        if joined is not None and (low - joined[1]) * scale < 0.5:
            joined = joined[0], max(high, joined[1])
            continue
        if joined is not None:
            yield joined
        joined = low, high
    if joined is not None:
        yield joined


def _span(first: int, end: int, scale: float, start: int, least: float = 1.0) -> Span:
    width = max((end - first) * scale, least)
    return Span(min((first - start) * scale, WIDTH - width), width, first, end)
