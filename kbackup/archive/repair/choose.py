"""What a restore point that is made of files stands on: the restore points that stay, and the whole segments. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from kbackup.archive import layout
from kbackup.archive.expired import log_starts
from kbackup.archive.models import Loss, Manifest
from kbackup.archive.repair.left import Left, not_expired
from kbackup.archive.repair.scan import Damaged, Whole, place_of
from kbackup.archive.segments import Segment, in_order
from kbackup.types import TopicPartition

Place = tuple[str, int, int]
"""Topic, incarnation, partition."""


@dataclass(frozen=True, slots=True, order=True)
class LeftOut:
    """A records object under topics/ that the restore point does not stand on."""

    key: str
    why: str


@dataclass
class Chosen:
    """`kept` are the restore points that stay; `segments` all whole ones by partition, in order; `tabled` the keys of
    those that tables of `kept` name. `losses`, `warnings` and `not_known` are for the restore point to tell."""

    kept: list[Manifest]
    segments: dict[Place, list[Segment]]
    tabled: set[str]
    left_out: list[LeftOut] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    not_known: list[str] = field(default_factory=list)


class _Hole(NamedTuple):
    """Offsets from `first`, to before `end` where that is known, that were in the object `key`."""

    place: Place
    first: int
    end: int | None
    key: str
    why: str


def choose(left: Left, found: Sequence[Whole | Damaged]) -> Chosen:
    whole = {each.segment.key: each for each in found if isinstance(each, Whole)}
    kept = _standing(left, whole.keys())
    tabled = {s.key for manifest in kept for s in left.points.added[manifest.seq]}
    chosen = Chosen(kept, {}, tabled)
    candidates: dict[Place, list[Whole]] = defaultdict(list)
    starts = log_starts(left.points.expired)
    for each in whole.values():
        s = each.segment
        if not not_expired([s], starts):
            continue
        candidates[s.topic, s.incarnation, s.partition].append(each)
    for place, those in candidates.items():
        chosen.segments[place] = _fitting(those, left, chosen)
    damaged = [each for each in found if isinstance(each, Damaged)]
    chosen.left_out += [LeftOut(each.key, each.why) for each in damaged]
    chosen.left_out += [LeftOut(key, "has no records beside it") for key in _lone_indexes(left)]
    taken = {s.key for some in chosen.segments.values() for s in some}
    for hole in sorted(_holes(left, damaged, taken)):
        _tell(hole, chosen)
    for place, some in sorted(chosen.segments.items()):
        _tell_gaps(place, some, left, chosen)
    return chosen


def _lone_indexes(left: Left) -> list[str]:
    """Segment indexes without records: they would stand in the way of a segment of that name."""
    records = {layout.index_key_of(key) for key in left.sizes if not key.endswith("_index")}
    places = ((key, place_of(key)) for key in left.sizes)
    names = ((key, layout.parse_segment(place[2])) for key, place in places if place is not None)
    return [key for key, name in names if name is not None and name.kind == "index" and key not in records]


def _standing(left: Left, whole: Iterable[str]) -> list[Manifest]:
    """The restore points up to the first that stands on a segment that is not whole."""
    there = set(whole)
    kept: list[Manifest] = []
    for manifest in left.kept:
        if any(s.key not in there for s in left.points.added[manifest.seq]):
            break
        kept.append(manifest)
    return kept


def _fitting(some: Sequence[Whole], left: Left, chosen: Chosen) -> list[Segment]:
    """Those that don't overlap; where two do, the one that a restore point is known to stand on, then the longer."""

    def rank(each: Whole) -> tuple[bool, bool, bool, int, int]:
        s = each.segment
        return (s.key not in chosen.tabled, s.key not in left.rows, not each.vouched, s.first, -s.last)

    fitting: list[Segment] = []
    for each in sorted(some, key=rank):
        s = each.segment
        at = bisect_right([f.first for f in fitting], s.first)
        other = next(
            (f for f in fitting[max(0, at - 1) : at + 1] if f.first <= s.last and s.first <= f.last), None
        )
        if other is not None:
            chosen.left_out.append(LeftOut(s.key, f"overlaps {other.key}"))
        else:
            fitting.insert(at, s)
    return sorted(fitting, key=in_order)


def _holes(left: Left, damaged: Sequence[Damaged], taken: set[str]) -> set[_Hole]:
    """What tables say was there and is not whole, and what is there, not whole, and in no table."""
    why = {each.key: each.why for each in damaged}
    holes: set[_Hole] = set()
    for key, rows in left.rows.items():
        if key not in taken and place_of(key) is not None:
            row = rows[0]
            place = (row.topic, row.incarnation, row.partition)
            holes.add(_Hole(place, row.first, row.last + 1, key, why.get(key, "is missing")))
    for each in damaged:
        if each.key not in left.rows:
            place = (each.target.topic, each.target.incarnation, each.target.partition)
            holes.add(_Hole(place, each.start, None, each.key, each.why))
    return holes


def _tell(hole: _Hole, chosen: Chosen) -> None:
    """As a loss where later segments are there; else the next backup reads these offsets again, if it can."""
    topic, _, partition = hole.place
    some = chosen.segments.get(hole.place, [])
    covers = [s for s in some if s.first <= hole.first <= s.last]
    after = [s.first for s in some if s.first > hole.first]
    tp = TopicPartition(topic, partition)
    said = (
        f"file {hole.key} {hole.why}"
        if hole.why.startswith(("is ", "has ", "begins"))
        else (f"file {hole.key}: {hole.why}")
    )
    if covers:
        return  # another whole segment has these records
    if not after:
        chosen.warnings.append(
            f"{said}: what {tp} had from offset {hole.first} on is left out; the next backup reads it again, as far as "
            "the source still has it"
        )
        return
    end = min(hole.end if hole.end is not None else after[0], after[0])
    chosen.losses.append(
        Loss(
            kind="damaged",
            topic=topic,
            partition=partition,
            start=hole.first,
            end=end,
            message=f"offsets {hole.first} to {end - 1} of {tp}, or some of them, are lost from the archive: {said}",
        )
    )


def _tell_gaps(place: Place, some: Sequence[Segment], left: Left, chosen: Chosen) -> None:
    """Offsets between segments that no table explains: nobody can tell whether there was a segment."""
    told = [loss for point in (*left.manifests, *left.past.values()) for loss in point.losses]
    lost = {(loss.topic, loss.partition, loss.start) for loss in (*chosen.losses, *told)}
    gaps = [
        (a.last + 1, b.first)
        for a, b in pairwise(some)
        if b.first > a.last + 1 and not (a.key in left.rows and b.key in left.rows)
    ]
    gaps = [gap for gap in gaps if (place[0], place[2], gap[0]) not in lost]
    if gaps:
        tp = TopicPartition(place[0], place[2])
        more = f", and {len(gaps) - 1} more such gaps" if len(gaps) > 1 else ""
        chosen.not_known.append(
            f"whether {tp} had a segment with offsets {gaps[0][0]} to {gaps[0][1] - 1}: compaction and transactions "
            f"leave such gaps, too{more}"
        )
