"""Segments that were read back, arranged by partition: which ones count, and what the others mean. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kbackup.archive.catalog.state import IncarnationPartition
from kbackup.archive.models import Loss
from kbackup.archive.repair.scan import Damaged, Whole
from kbackup.archive.segments.table import Segment


@dataclass
class Arranged:
    """`segments` of each partition in order, without overlaps. `left_out` maps keys to reasons."""

    segments: dict[IncarnationPartition, list[Segment]] = field(default_factory=dict)
    losses: list[Loss] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)


def arrange(found: Iterable[Whole | Damaged]) -> Arranged:
    """Whole segments count, of two that overlap the one that begins first, of two that begin alike the longer. Damaged
    ones, and indexes that go on behind their records, are losses up to the next segment."""
    arranged = Arranged()
    holes: list[tuple[IncarnationPartition, int, int | None, str]] = []
    whole: list[Whole] = []
    for each in found:
        if isinstance(each, Whole):
            whole.append(each)
        else:
            place = (each.target.topic, each.target.incarnation, each.target.partition)
            holes.append((place, each.start, None, each.why))
            arranged.left_out.append((each.key, each.why))
    reached: dict[IncarnationPartition, int] = {}
    for each in sorted(whole, key=_order):
        s = each.segment
        place = (s.topic, s.incarnation, s.partition)
        if s.first < reached.get(place, 0):
            arranged.left_out.append((s.key, "overlaps another segment"))
            continue
        arranged.segments.setdefault(place, []).append(s)
        reached[place] = s.last + 1
        if each.end is not None:
            holes.append((place, s.last + 1, each.end, "records are cut off where one ends"))
    for place, start, end, why in sorted(holes, key=lambda hole: (hole[0], hole[1])):
        loss = _loss(place, start, end, why, arranged.segments.get(place, []))
        if loss is not None:
            arranged.losses.append(loss)
    return arranged


def _order(each: Whole) -> tuple[str, int, int, int, int]:
    s = each.segment
    return s.topic, s.incarnation, s.partition, s.first, -s.last


def _loss(
    place: IncarnationPartition, start: int, end: int | None, why: str, segments: list[Segment]
) -> Loss | None:
    """None where other segments hold those records."""
    if any(s.first <= start <= s.last for s in segments):
        return None
    following = min((s.first for s in segments if s.first > start), default=None)
    stop = following if end is None else end
    upto = f"to {stop - 1}" if stop is not None else "and later ones"
    return Loss(
        kind="damaged",
        topic=place[0],
        partition=place[2],
        start=start,
        end=stop,
        message=f"offsets {start} {upto} of {place[0]}-{place[2]}: {why}",
    )
