"""Segments that were read back, arranged by partition: which ones count, and what the others mean. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kbackup.archive.models import Loss
from kbackup.archive.repair.scan import Damaged, Whole
from kbackup.archive.segments.salvage import drop_overlaps
from kbackup.archive.segments.table import Segment
from kbackup.types import IncarnationPartition


@dataclass
class Arranged:
    """`segments` of each partition in order, without overlaps. `skipped` maps keys to reasons."""

    segments: dict[IncarnationPartition, list[Segment]] = field(default_factory=dict)
    losses: list[Loss] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)


def arrange(scanned: Iterable[Whole | Damaged]) -> Arranged:
    """Arrange whole segments by partition, without overlaps: of two that overlap the one that begins first counts, of
    two that begin alike the longer one. Damaged segments, and indexes that go on behind their records, are losses up to
    the next segment."""
    arranged = Arranged()
    holes: list[tuple[IncarnationPartition, int, int | None, str]] = []
    whole: list[Whole] = []
    for each in scanned:
        if isinstance(each, Whole):
            whole.append(each)
        else:
            key = each.target.incarnation_partition
            holes.append((key, each.start, None, each.why))
            arranged.skipped.append((each.key, each.why))
    kept, overlapping = drop_overlaps(whole, lambda each: each.segment)
    arranged.skipped += [(each.segment.key, "overlaps another segment") for each in overlapping]
    for each in kept:
        key = each.segment.incarnation_partition
        arranged.segments.setdefault(key, []).append(each.segment)
        if each.end is not None:
            holes.append((key, each.segment.last + 1, each.end, "records are cut off where one ends"))
    for key, start, end, why in sorted(holes, key=lambda hole: (hole[0], hole[1])):
        loss = _loss(key, start, end, why, arranged.segments.get(key, []))
        if loss is not None:
            arranged.losses.append(loss)
    return arranged


def _loss(
    key: IncarnationPartition, start: int, end: int | None, why: str, segments: list[Segment]
) -> Loss | None:
    """Return the loss of a range; None where other segments have its records."""
    if any(s.first <= start <= s.last for s in segments):
        return None
    following = min((s.first for s in segments if s.first > start), default=None)
    stop = following if end is None else end
    upto = f"to {stop - 1}" if stop is not None else "and later ones"
    return Loss(
        kind="damaged",
        topic=key[0],
        partition=key[2],
        start=start,
        end=stop,
        message=f"offsets {start} {upto} of {key[0]}-{key[2]}: {why}",
    )
