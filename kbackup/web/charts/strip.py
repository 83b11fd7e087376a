"""Geometry of what is archived of a partition, over its offsets; the templates draw it. Pure."""

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
