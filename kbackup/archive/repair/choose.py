"""What a restore point that is made of files stands on: the restore points that stay, and the whole segments. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from dataclasses import astuple, dataclass, field
from itertools import accumulate, pairwise
from typing import NamedTuple

from kbackup.archive import layout
from kbackup.archive.expired import log_starts
from kbackup.archive.models import Loss, Manifest, PartitionState
from kbackup.archive.repair.left import Left, not_expired, place_of
from kbackup.archive.repair.scan import Damaged, Whole
from kbackup.archive.segments import Segment, in_order
from kbackup.archive.writer import Target
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
    those that tables of `kept` name; `cut` the partitions of which the last records are not there. `losses`, `warnings`
    and `not_known` are for the restore point to tell."""

    kept: list[Manifest]
    segments: dict[Place, list[Segment]]
    tabled: set[str]
    cut: set[Place] = field(default_factory=set)
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
    overlapping = dict(map(astuple, chosen.left_out))
    damaged = [each for each in found if isinstance(each, Damaged)]
    missing = [_missing(key) for key in sorted(left.unaccounted - left.sizes.keys())]
    chosen.left_out += [LeftOut(each.key, each.why) for each in damaged]
    chosen.left_out += [LeftOut(key, "has no records beside it") for key in _lone_indexes(left)]
    taken = {s.key for some in chosen.segments.values() for s in some}
    holes = _holes(left, [*damaged, *missing], taken, overlapping)
    for place, those in candidates.items():
        left_out = [each.segment for each in those if each.segment.key not in taken]
        holes |= {_Hole(place, s.first, s.last + 1, s.key, overlapping[s.key]) for s in left_out}
    for each in (each for each in whole.values() if each.end is not None and each.segment.key in taken):
        s, why = each.segment, "has fewer records than its index"
        holes.add(_Hole((s.topic, s.incarnation, s.partition), s.last + 1, each.end, s.key, why))
    for hole in sorted(holes):
        _tell(hole, chosen)
    _tell_missing(left, chosen)
    for place, some in sorted(chosen.segments.items()):
        _tell_gaps(place, some, left, chosen)
    return chosen


def _missing(key: str) -> Damaged:
    """A records object that is in a partition index alone."""
    place = place_of(key)
    name = layout.parse_segment(place[2]) if place is not None else None
    assert place is not None and name is not None  # noqa: S101, PT018 (they were told by that)
    target = Target(place[0], place[1], name.partition, 0, layout.compression_of(key))
    return Damaged(target, name.start, key, "is missing")


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


def _holes(
    left: Left, damaged: Sequence[Damaged], taken: set[str], overlapping: Container[str]
) -> set[_Hole]:
    """What tables say was there and is not whole, and what is there, not whole, and in no table."""
    why = {each.key: each.why for each in damaged}
    holes: set[_Hole] = set()
    for key, rows in left.rows.items():
        if key not in taken and key not in overlapping and place_of(key) is not None:
            row = rows[0]
            place = (row.topic, row.incarnation, row.partition)
            holes.add(_Hole(place, row.first, row.last + 1, key, why.get(key, "is missing")))
    for each in damaged:
        if each.key not in left.rows:
            place = (each.target.topic, each.target.incarnation, each.target.partition)
            holes.add(_Hole(place, each.start, None, each.key, each.why))
    return holes


def _tell(hole: _Hole, chosen: Chosen) -> None:
    """What no other whole segment has of it: as a loss where later segments are there; else the next backup reads these
    offsets again, if it can."""
    said = (
        f"file {hole.key} {hole.why}"
        if hole.why.startswith(("is ", "has ", "begins", "overlaps "))
        else (f"file {hole.key}: {hole.why}")
    )
    at = hole.first
    for s in chosen.segments.get(hole.place, []):
        if hole.end is not None and at >= hole.end:
            return
        if s.last < at:
            continue
        if s.first > at:
            _tell_loss(hole.place, at, min(hole.end or s.first, s.first), said, chosen)
        if hole.end is None:
            return  # the rest is told of by what comes then
        at = s.last + 1
    if hole.end is None or at < hole.end:
        _tell_tail(hole.place, at, said, chosen)


def _tell_loss(place: Place, first: int, end: int, said: str, chosen: Chosen) -> None:
    tp = TopicPartition(place[0], place[2])
    chosen.losses.append(
        Loss(
            kind="damaged",
            topic=tp.topic,
            partition=tp.partition,
            start=first,
            end=end,
            message=f"offsets {first} to {end - 1} of {tp}, or some of them, are lost from the archive: {said}",
        )
    )


def _tell_tail(place: Place, first: int, said: str, chosen: Chosen) -> None:
    tp = TopicPartition(place[0], place[2])
    chosen.cut.add(place)
    chosen.warnings.append(
        f"{said}: what {tp} had from offset {first} on is left out; the next backup reads it again, as far as the "
        "source still has it"
    )


def _tell_missing(left: Left, chosen: Chosen) -> None:
    """Where a restore point counted more records up to its end of a partition than there are, or than tables name, it
    may be the last ones that are not there."""
    starts = log_starts(left.points.expired)
    named: dict[Place, dict[str, tuple[int, int]]] = defaultdict(dict)
    for row in (rows[0] for rows in left.rows.values()):
        named[row.topic, row.incarnation, row.partition][row.key] = (row.last, row.count)
    for place, some in chosen.segments.items():
        named[place] |= {s.key: (s.last, s.count) for s in some}
    for place, states in sorted(_states(left).items()):
        went = starts.get(place)
        gone, begin = (went.records, went.start) if went is not None else (0, 0)
        counts = sorted(named[place].values())
        sums = [0, *accumulate(count for _, count in counts)]
        lasts = [last for last, _ in counts]
        told = 0
        for state, seq in states.items():
            there = sums[bisect_left(lasts, state.end)]
            if state.end >= begin and there + told < state.records - gone:
                told = state.records - gone - there
                what = f"restore point {seq} had {told:,} records more of it than are there"
                _tell_end(place, max(state.start, begin), state.end, what, chosen)


def _states(left: Left) -> dict[Place, dict[PartitionState, int]]:
    """What restore points say of each partition, with the first that says so, oldest first."""
    found: dict[Place, dict[PartitionState, int]] = defaultdict(dict)
    for manifest in left.manifests:
        for topic in manifest.topics:
            for state in topic.partitions:
                found[topic.name, topic.incarnation, state.partition].setdefault(state, manifest.seq)
    return found


def _tell_end(place: Place, start: int, end: int, said: str, chosen: Chosen) -> None:
    """That offsets before `end` are not there, unless there is nothing between the segments there."""
    some = chosen.segments.get(place, [])
    last = max((s.last + 1 for s in some if s.last < end), default=start)
    later = min((s.first for s in some if s.first >= last), default=None)
    if last >= end or place in chosen.cut:
        return
    if later is None:
        _tell_tail(place, last, said, chosen)
    elif not any(
        (loss.topic, loss.partition, loss.start) == (place[0], place[2], last) for loss in chosen.losses
    ):
        _tell_loss(place, last, min(end, later), said, chosen)


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
