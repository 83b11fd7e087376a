"""Geometry of the archived ranges of a partition over its offsets; the templates draw it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from kbackup.archive.query.content import ArchivedPartition
from kbackup.web.charts.axis import WIDTH


class Span(NamedTuple):
    x: float
    width: float
    start: int
    end: int


class Mark(NamedTuple):
    """A group's position. `outside` says if it is before or after the archived offsets."""

    x: float
    offset: int
    name: str
    outside: str


@dataclass(frozen=True, slots=True)
class Strip:
    """The archived ranges of a partition, and positions of groups, over its offsets."""

    spans: tuple[Span, ...]
    marks: tuple[Mark, ...]


def strip(
    partition: ArchivedPartition, groups: Iterable[tuple[str, int]] = (), end: int | None = None
) -> Strip:
    """Return the strip up to offset `end`, by default the partition's own; `groups` are (name, offset)."""
    start = min([partition.start, *(s.first for s in partition.segments[:1])])
    length = max((partition.end if end is None else end) - start, 1)

    def x(offset: int) -> float:
        return min(max((offset - start) / length, 0.0), 1.0) * WIDTH

    marks = [Mark(x(o), o, name, _outside(partition, o)) for name, o in groups]
    return Strip(tuple(_spans(partition, WIDTH / length, start)), tuple(marks))


def _outside(partition: ArchivedPartition, offset: int) -> str:
    if offset > partition.end:
        return "after the archive's end"
    return "before the archive's start" if offset < partition.start else ""


def _spans(partition: ArchivedPartition, scale: float, start: int) -> Iterable[Span]:
    """Yield spans of segments; segments less than half a unit apart are one span."""
    span: tuple[int, int] | None = None
    for s in partition.segments:
        if span is not None and (s.first - span[1]) * scale < 0.5:
            span = span[0], s.last + 1
            continue
        if span is not None:
            yield _span(*span, scale, start)
        span = s.first, s.last + 1
    if span is not None:
        yield _span(*span, scale, start)


def _span(first: int, end: int, scale: float, start: int) -> Span:
    return Span((first - start) * scale, max((end - first) * scale, 1.0), first, end)
