"""Segments that a repair reads back, the restore points that added them, and which of them are lost.

A segment is read without trusting a catalog. Which restore point added it follows from the offsets that the manifests
reach.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.catalog.state import IncarnationRow, LogStart, LossRow, State, damage_row
from kbackup.archive.catalog.tables import SEGMENTS, segment_rows
from kbackup.archive.models import Loss, Manifest, PartitionState
from kbackup.archive.repair.base import Sizes
from kbackup.archive.segments.salvage import IndexState, drop_overlaps, parse_records_object, read_unlisted
from kbackup.archive.segments.table import PLACE, Segment, in_order
from kbackup.archive.segments.writer import SegmentTarget
from kbackup.errors import CorruptError, NotFoundError
from kbackup.formats.index import PartitionIndexEntry, decode_partition_index
from kbackup.store.base import Store
from kbackup.types import Incarnation, IncarnationPartition


class ToScan(NamedTuple):
    """A records object, and its row in the catalog's table; None if it has none."""

    target: SegmentTarget
    key: str
    size: int
    start: int
    row: Segment | None = None

    def damaged(self, error: CorruptError | NotFoundError) -> Damaged:
        why = error.message.removeprefix("file ").removeprefix(self.key).lstrip(": ")
        return Damaged(self.target, self.start, self.key, why)


@dataclass(frozen=True, slots=True)
class Whole:
    """A records object that is a whole segment.

    `vouched`: a table has its checksum. Otherwise the records are whole by their own lengths and order alone. `end` is
    set if the index goes on after these records, to before that offset: the object was cut off where a record ends.
    `warnings` name what was left out of the files that the segment was made of.
    """

    segment: Segment
    index: IndexState
    vouched: bool
    end: int | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Damaged:
    """A records object that is no whole segment, or not the segment that it was."""

    target: SegmentTarget
    start: int
    key: str
    why: str


def to_scan(key: str, size: int, row: Segment | None = None) -> ToScan | None:
    """Return the records object that has this key, with its `row`; None for the key of anything else."""
    found = parse_records_object(key)
    if found is None:
        return None
    return ToScan(found.target, key, size, found.start, row)


def scan(store: Store, item: ToScan, mend: bool) -> Whole | Damaged:
    """Read a records object whole. With `mend`, write its index anew if the index is missing or wrong and a catalog
    lists the segment: then no other writer can give a segment of its own that name."""
    try:
        segment, data, state, end = read_unlisted(store, item.target, item.key)
    except (CorruptError, NotFoundError) as error:
        return item.damaged(error)
    # Whole, and yet the wrong one: somebody may have put an object of another place under this key.
    if not layout.is_records_key(item.key, item.target.directory, segment.partition, segment.first):
        return Damaged(item.target, item.start, item.key, f"begins with offset {segment.first}")
    if item.row is not None and segment.crc != item.row.crc:
        return Damaged(item.target, item.start, item.key, "is not what its restore point says (checksum)")
    if mend and state != "whole" and item.row is not None:
        store.put(layout.index_key_of(item.key), data)
    return Whole(segment, state, item.row is not None, end)


@dataclass
class Arranged:
    """The `segments` of each partition in order, without overlaps; losses between them; and the keys that were
    `skipped`, with reasons."""

    segments: dict[IncarnationPartition, list[Segment]] = field(default_factory=dict)
    losses: list[Loss] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)


class _Hole(NamedTuple):
    """Offsets of a partition that no segment may have any more. `end` is None if nobody knows where they end."""

    place: IncarnationPartition
    start: int
    end: int | None
    why: str


def arrange(scanned: Iterable[Whole | Damaged]) -> Arranged:
    """Arrange whole segments by partition, without overlaps: of two that overlap the one that begins first counts, of
    two that begin alike the longer one. Damaged segments, and indexes that go on behind their records, are losses up to
    the next segment."""
    arranged = Arranged()
    holes: list[_Hole] = []
    whole: list[Whole] = []
    for each in scanned:
        if isinstance(each, Whole):
            whole.append(each)
        else:
            holes.append(_Hole(each.target.incarnation_partition, each.start, None, each.why))
            arranged.skipped.append((each.key, each.why))
    # Two objects may hold the same offsets: a run that was killed wrote one, and the next run the other.
    kept, overlapping = drop_overlaps(whole, lambda each: each.segment)
    arranged.skipped += [(each.segment.key, "overlaps another segment") for each in overlapping]
    for each in kept:
        key = each.segment.incarnation_partition
        arranged.segments.setdefault(key, []).append(each.segment)
        if each.end is not None:
            holes.append(_Hole(key, each.segment.last + 1, each.end, "records are cut off where one ends"))
    for hole in sorted(holes, key=lambda hole: (hole.place, hole.start)):
        loss = _loss_of(hole, arranged.segments.get(hole.place, []))
        if loss is not None:
            arranged.losses.append(loss)
    return arranged


def _loss_of(hole: _Hole, segments: Sequence[Segment]) -> Loss | None:
    """Return the loss that a hole is, None if one of the partition's `segments` has its records."""
    if any(segment.first <= hole.start <= segment.last for segment in segments):
        return None
    end = hole.end
    if end is None:  # nobody knows where it ended: at the next segment at the latest
        later = [segment.first for segment in segments if segment.first > hole.start]
        end = min(later, default=None)
    topic, _, partition = hole.place
    upto = f"to {end - 1}" if end is not None else "and later ones"
    message = f"offsets {hole.start} {upto} of {topic}-{partition}: {hole.why}"
    return Loss(kind="damaged", topic=topic, partition=partition, start=hole.start, end=end, message=message)


Manifests = Mapping[int, Manifest]
Starts = Mapping[IncarnationPartition, Sequence[int]]
"""The first offset of each segment that a partition index names."""


def attribute(
    segments: Iterable[Segment],
    state: State,
    manifests: Manifests,
    modified: Mapping[str, float] = MappingProxyType({}),
) -> pa.Table:
    """Return rows of `tables.SEGMENTS`: each segment with the restore point that added it. Segments are left out that
    no restore point reaches, that lie before the log start, that overlap others, or that are known to be damaged.

    The first restore point added a segment whose manifest reaches behind the segment. Listed restore points before it
    whose manifests are lost may have added it as well: each takes the oldest objects, by `modified`, as many as its row
    counts.
    """
    partitions = partitions_of(manifests)
    # The restore points that are listed and whose manifests are lost: nothing says how far their partitions reached.
    lost = sorted(set(state.numbers.tolist()) - manifests.keys())
    damaged = damaged_ranges(state)
    listed = _listed_offsets(state)
    kept: list[tuple[Segment, list[int]]] = []

    def preference(segment: Segment) -> tuple[object, ...]:
        # Rewritten segments come last where a restore point needs other records than theirs.
        is_other = _is_other_for_a_point(segment, partitions.get(segment.incarnation_partition, ()))
        return (is_other, *by_preference(segment))

    for segment in sorted(segments, key=preference):
        key = segment.incarnation_partition
        points = _possible(segment, partitions.get(key, ()), lost, state.lives.get(key[:2]))
        start = state.starts.get(key)
        if not points or (start is not None and segment.last < start.start):
            continue
        # The segments of a partition are in order and don't overlap: only the two beside this one can overlap it.
        taken = listed[key]
        at = bisect_right(taken, (segment.first, 1 << 63))  # behind all that begin where this one does, or before
        beside = [(first, last) for first, last, _ in taken[max(0, at - 1) : at + 1]]
        if _overlaps(segment, beside) or _overlaps(segment, damaged.get(key, ())):
            continue
        # What was erased from it may not come back: it waits for a sweep.
        if state.erased_in(key, segment.first, segment.last, segment.key) is not None:
            continue
        next_point = taken[at][2] if at < len(taken) else 0
        if next_point and not points[-1]:
            # No manifest reaches this segment, but a later one of the partition is attributed. Segments are added in
            # order, so this one was there by then.
            points = [point for point in points if 0 < point < next_point]
            points.append(next_point)
        # From here on the segment counts as listed, so that a later one can't overlap it.
        taken.insert(at, (segment.first, segment.last, points[-1]))
        kept.append((segment, points))
    chosen = _chosen(kept, state, manifests, modified)
    added: list[Segment] = []
    added_by: list[int] = []
    for (segment, _), point in zip(kept, chosen, strict=True):
        if point:
            added.append(segment)
            added_by.append(point)
    return segment_rows(added, added_by)


def _listed_offsets(state: State) -> dict[IncarnationPartition, list[tuple[int, int, int]]]:
    """Return, by partition, the first and last offset of each listed segment and its restore point, in order."""
    listed: dict[IncarnationPartition, list[tuple[int, int, int]]] = defaultdict(list)
    for topic, incarnation, partition, first, last, number in state.segments.rows(*SEGMENTS.names[:5], "point"):
        listed[topic, incarnation, partition].append((first, last, number))
    for segments in listed.values():
        segments.sort()
    return listed


def _overlaps(segment: Segment, ranges: Iterable[tuple[int, int]]) -> bool:
    """Return whether a segment has offsets in one of the ranges, of which each is a first and a last offset."""
    return any(first <= segment.last and segment.first <= last for first, last in ranges)


def by_preference(segment: Segment) -> tuple[object, ...]:
    """Return the key to sort segments by: those of the latest rewrite first, which were written in place of others;
    then in order; of two that begin alike, the one with the padded name first, because the other is an orphan."""
    name = layout.parse_segment(segment.key.rpartition("/")[2])
    extra_zeros = name.extra_zeros if name is not None else 0
    rewrite = name.rewrite if name is not None else 0
    return (-rewrite, *in_order(segment), -extra_zeros, -segment.last)


def _is_other_for_a_point(segment: Segment, states: Sequence[tuple[int, PartitionState]]) -> bool:
    """Return whether a restore point has a part of a rewritten segment's records, as it ends between them, or needs
    superseded records that the segment lacks."""
    if not layout.rewrite_of(segment.key):
        return False
    compacted = layout.compacted_of(segment.key)
    for number, partition in states:
        ends_inside = segment.first < partition.end <= segment.last
        needs_superseded = number < compacted and segment.first < partition.end
        if ends_inside or needs_superseded:
            return True
    return False


def _possible(
    segment: Segment, states: Sequence[tuple[int, PartitionState]], lost: Sequence[int], life: IncarnationRow | None
) -> list[int]:
    """Return the restore points that may have added a segment: the ones with `lost` manifests after the last restore
    point that ends before the segment, or needs other records, then the first that includes it, or 0 if none does."""
    # A partition's end only grows, so its states come in this order: before the segment, then from it on. Restore
    # points that need what was superseded count as before it.
    compacted = layout.compacted_of(segment.key)
    reaching: int | None = None
    before = 0
    for number, partition in states:
        if not partition.has(segment.first) or number < compacted:
            before = max(before, number)
        elif reaching is None and partition.end > segment.last:
            reaching = number
    if reaching is not None:
        points = [number for number in lost if before < number < reaching]
        points.append(reaching)
        return points
    last = max(lost, default=0)
    if life is not None and life.last is not None:
        last = life.last
    points = [number for number in lost if before < number <= last]
    if points:
        points.append(0)
    return points


def _chosen(
    kept: Sequence[tuple[Segment, Sequence[int]]], state: State, manifests: Manifests, modified: Mapping[str, float]
) -> list[int]:
    """Return for each segment one of the restore points that may have added it; 0 for a segment of an interrupted
    run."""
    chosen = [points[-1] for _, points in kept]
    # The segments that each restore point certainly added, damaged ones among them, because its row counts them as
    # well.
    counted = Counter(state.segments.columns("point")[0])
    counted.update(loss.point for loss in state.damage)
    unsure: set[int] = set()
    for at, (_, points) in enumerate(kept):
        if len(points) == 1:
            counted[points[0]] += 1
        else:
            unsure.add(at)
    for point in state.restore_points:
        if point.number in manifests or _may_have_expired(point.number, state, manifests):
            continue
        pool = [at for at in unsure if point.number in kept[at][1]]
        # Restore points are gone through in rising order, and each wrote its segments before the next one began: so the
        # oldest objects are the ones of the earliest restore point.
        oldest = sorted(pool, key=lambda at: (modified.get(kept[at][0].key, 0.0), at))
        lacking = max(0, point.segments - counted[point.number])
        for at in oldest[:lacking]:
            chosen[at] = point.number
            unsure.remove(at)
    return chosen


def _may_have_expired(number: int, state: State, manifests: Manifests) -> bool:
    """Return whether segments that restore point `number` added may have expired: then the count in its row says
    nothing of the segments that are there."""
    earlier = [other for other in manifests if other < number]
    before = manifests.get(max(earlier, default=0))
    ends: dict[IncarnationPartition, int] = {}
    if before is not None:
        for place, partition in before.partitions().items():
            ends[place] = partition.end
    return any(start.start > ends.get(place, 0) for place, start in state.starts.items())


def partitions_of(manifests: Manifests) -> dict[IncarnationPartition, list[tuple[int, PartitionState]]]:
    """Return the state of each partition at each restore point."""
    states: dict[IncarnationPartition, list[tuple[int, PartitionState]]] = defaultdict(list)
    for number, manifest in sorted(manifests.items()):
        for place, partition in manifest.partitions().items():
            states[place].append((number, partition))
    return states


def damaged_ranges(state: State) -> dict[IncarnationPartition, list[tuple[int, int]]]:
    """Return, by partition, the first and last offsets of losses by damage."""
    found: dict[IncarnationPartition, list[tuple[int, int]]] = defaultdict(list)
    for row in state.damage:
        loss = row.loss
        if loss.partition is not None and loss.start is not None and loss.end is not None:
            found[loss.topic, row.incarnation, loss.partition].append((loss.start, loss.end - 1))
    return found


def unreached(segments: Iterable[Segment], state: State, manifests: Manifests, named: Starts) -> list[Segment]:
    """Return the whole segments behind the end of every restore point, without overlaps, in order.

    Of known incarnations only segments that a partition index names are returned: the index was written after a commit.
    Other segments are of an interrupted run, and the next backup salvages them.
    """
    known: set[Incarnation] = set()
    for manifest in manifests.values():
        known.update(manifest.incarnations())
    for topic_key, life in state.lives.items():
        # The open run has reserved this number, and has not committed a restore point with the topic yet.
        if life.first is None and not life.retired:
            known.add(topic_key)
    reached: dict[IncarnationPartition, int] = {}
    for key, states in partitions_of(manifests).items():
        reached[key] = max(partition.end for _, partition in states)
    unlisted: list[Segment] = []
    for segment in sorted(segments, key=by_preference):
        key = segment.incarnation_partition
        is_named = key[:2] not in known or segment.first in named.get(key, ())
        if is_named and segment.first >= reached.get(key, 0):
            unlisted.append(segment)
            # The next segment of the partition must begin behind this one: what overlaps it has the same records.
            reached[key] = segment.last + 1
    return unlisted


def by_rank(segments: Sequence[Segment], newest: Mapping[str, int]) -> list[list[Segment]]:
    """Split segments into new restore points, each with one incarnation of a topic, former incarnations first. `newest`
    maps topics to their incarnation in the newest restore point. A manifest can't have two topics of one name."""
    every: dict[str, set[int]] = defaultdict(set)
    for name, incarnation in newest.items():
        every[name].add(incarnation)
    for segment in segments:
        every[segment.topic].add(segment.incarnation)
    ranked: dict[int, list[Segment]] = defaultdict(list)
    for segment in segments:
        rank = sum(other > segment.incarnation for other in every[segment.topic])
        ranked[rank].append(segment)
    if ranked:  # the newest incarnations have a restore point, also without segments
        ranked.setdefault(0, [])
    return [ranked[rank] for rank in sorted(ranked, reverse=True)]


def named_starts(store: Store, sizes: Sizes) -> dict[IncarnationPartition, list[int]]:
    """Return, by partition, the first offsets that the partition index names. Damaged indexes are left out, and so are
    indexes whose names and offsets don't agree."""
    # The index is written after the commit, so what it names was committed, whatever became of the catalog since.
    starts_by_partition: dict[IncarnationPartition, list[int]] = {}
    for key in sizes:
        parsed = layout.parse_topic_key(key)
        if parsed is None:
            continue
        (topic, incarnation), file = parsed
        partition = layout.parse_partition_index(file)
        if partition is None:
            continue
        with suppress(CorruptError, NotFoundError):
            entries = decode_partition_index(store.get(key), key)
            if all(_agrees(entry, partition) for entry in entries):
                starts = [entry.start_offset for entry in entries]
                starts_by_partition[topic, incarnation, partition] = starts
    return starts_by_partition


def _agrees(entry: PartitionIndexEntry, partition: int) -> bool:
    """Return whether the name in an entry is of a segment of the partition that begins at the entry's offset."""
    name = layout.parse_segment(f"{entry.name}_index")
    return name is not None and (name.partition, name.start) == (partition, entry.start_offset)


def missing_segments(state: State, manifests: Manifests, named: Starts) -> list[LossRow]:
    """Return losses for records that restore points promise and no segment has: segments that a partition index names,
    and between two restore points fewer records than their manifests count."""
    sums: dict[IncarnationPartition, list[tuple[int, int]]] = defaultdict(list)
    firsts: dict[IncarnationPartition, set[int]] = defaultdict(set)
    for topic, incarnation, partition, first, count, point in state.segments.rows(*PLACE.names, "count", "point"):
        sums[topic, incarnation, partition].append((point, count))
        firsts[topic, incarnation, partition].add(first)
    damaged = damaged_ranges(state)
    losses: list[LossRow] = []
    for key, states in partitions_of(manifests).items():
        log_start = state.starts.get(key)
        start = log_start.start if log_start is not None else 0
        last = max(partition_state.end for _, partition_state in states)
        edges = [first for first in named.get(key, ()) if start <= first < last]
        edges.append(last)
        holes = list(damaged.get(key, ()))
        for first, end in pairwise(edges):
            # A segment that an earlier repair found damaged is a loss already.
            is_known = any(low <= first <= high for low, high in holes)
            if first not in firsts[key] and not is_known:
                point = _first_with(states, first)
                losses.append(damage_row(point, key, first, end, "the segment is missing or damaged"))
                holes.append((first, end - 1))
        losses += _uncounted(key, states, log_start, sums[key], holes)
    return losses


def _first_with(states: Sequence[tuple[int, PartitionState]], offset: int) -> int:
    """Return the first restore point that has an offset of a partition, or else the last one."""
    for number, partition in states:
        if partition.has(offset):
            return number
    return states[-1][0]


def _uncounted(
    key: IncarnationPartition,
    states: Sequence[tuple[int, PartitionState]],
    log_start: LogStart | None,
    sums: Sequence[tuple[int, int]],
    holes: Sequence[tuple[int, int]],
) -> Iterator[LossRow]:
    """Yield a loss for each restore point that counts more records than its segments have, beyond what an earlier
    restore point lacks already, unless one of the `holes` explains it."""
    start = expired = 0
    if log_start is not None:
        start, expired = log_start.start, log_start.records
    lacking = 0
    for number, partition in states:
        if partition.end <= start:
            continue
        found = sum(count for point, count in sums if point <= number)
        # a manifest goes on counting the records that have expired
        missing = partition.records - expired - found
        first = max(start, partition.start)
        start = partition.end
        explained = any(low < partition.end and first <= high for low, high in holes)
        if missing > lacking and not explained:
            yield damage_row(number, key, first, partition.end, "some of these records are missing")
        lacking = max(lacking, missing)
