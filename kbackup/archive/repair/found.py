"""Restore points and segments that are found in a store and that no catalog lists. Pure but for reading."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.catalog.operations import drop_superseded, loss_row
from kbackup.archive.catalog.state import (
    Incarnation,
    IncarnationPartition,
    Life,
    LogStart,
    Point,
    State,
    mask,
)
from kbackup.archive.catalog.tables import SEGMENTS
from kbackup.archive.models import Loss, Manifest, PartitionState
from kbackup.archive.new_point import point_of
from kbackup.archive.repair.base import Base, Documents, Sizes
from kbackup.archive.segments import Segment, in_order, to_batch
from kbackup.errors import CorruptError, NotFoundError
from kbackup.formats.index import decode_partition_index
from kbackup.store.base import Store

Starts = Mapping[IncarnationPartition, Sequence[int]]
"""(topic, incarnation, partition) -> the first offset of each segment that a partition index names."""


def listed_manifests(state: State, documents: Documents) -> dict[int, Manifest]:
    """By number, the manifests of restore points of `state` that are what it says."""
    found: dict[int, Manifest] = {}
    for point in state.restore_points:
        document, _ = documents.get(point.documents[0], (None, None))
        if isinstance(document, Manifest) and document.checksum == point.manifest:
            found[point.number] = document
    return found


def unlisted_points(base: Base, documents: Documents) -> dict[int, tuple[Manifest, Point]]:
    """By number, restore points whose manifests are whole and that the base lacks. Of two with one number, the later
    one. Below the next number of the newest catalog only those that its table of restore points may have lost. Beside
    a whole base those of the open run alone: its catalog may be lost, and no later run has given the number away."""
    state = base.state
    known = set(state.numbers.tolist())
    least = 0 if "points" in base.stale or base.committed.catalog is None else state.next_point
    open_run = state.open_run.run if state.open_run is not None else ""
    found = [
        (document, point_of(document, ref))
        for document, ref in documents.values()
        if isinstance(document, Manifest)
        and document.archive_id == state.archive_id
        and document.number >= least
        and (not base.is_whole or document.run == open_run)
        and document.number not in known
        and state.past_manifests.get(document.number) != document.checksum
    ]
    found.sort(key=lambda entry: (entry[0].number, entry[0].committed_at))
    return {manifest.number: (manifest, point) for manifest, point in found}


def numbers_given(sizes: Sizes) -> int:
    """The highest number of a restore point that any object under points/ has."""
    return max((p[0] for key in sizes if (p := layout.parse_point_key(key)) is not None), default=0)


def lives_of(state: State, manifests: Mapping[int, Manifest], sizes: Sizes) -> list[Life]:
    """The incarnations that restore points have, by their manifests, by the table, and by the segments' rows. Numbers
    that folders or reservations tell of stay given.

    A topic stays in all later restore points, until another incarnation takes its place.
    """
    newest = max(manifests, default=0)
    is_newest = state.newest is None or state.newest.number <= newest
    topics = {(t.name, t.incarnation) for t in manifests[newest].topics} if newest else set()
    seen: dict[Incarnation, set[int]] = defaultdict(set)
    ids = {key: life.topic_id for key, life in state.lives.items()}
    for number, manifest in manifests.items():
        for topic in manifest.topics:
            seen[topic.name, topic.incarnation].add(number)
            ids[topic.name, topic.incarnation] = topic.id
    names = ("topic", "incarnation", "point")
    for name, incarnation, point in set(zip(*state.segments.columns(*names), strict=True)):
        seen[name, incarnation].add(point)
    for key, life in state.lives.items():
        seen[key] |= {number for number in (life.first, life.last) if number is not None and not life.retired}
    firsts = {key: min(numbers) for key, numbers in seen.items() if numbers}
    folders = {place[0] for key in sizes if (place := layout.parse_topic_key(key)) is not None}
    lives: list[Life] = []
    for key in sorted({*seen, *folders}):
        known = state.lives.get(key)
        if key not in firsts:
            retired = known is None or known.retired
            lives.append(Life(*key, ids.get(key, ""), None, None, retired))
            continue
        later = min((n for other, n in firsts.items() if other[0] == key[0] and other > key), default=0)
        is_alive = key in topics if is_newest else known is None or known.last is None
        last = max([*seen[key], *(number for number in state.numbers.tolist() if number < later)])
        lives.append(
            Life(*key, ids.get(key, ""), firsts[key], None if is_alive and not later else last, False)
        )
    return drop_superseded(lives)


def without_let_go(state: State) -> State:
    """`state` without rows of segments that lie before the log start, or that are among the losses: an older table has
    them still."""
    damaged = _damaged(state)
    columns = state.segments.columns("topic", "incarnation", "partition", "first", "last")
    return replace(
        state,
        segments=state.segments.keep(
            mask(
                (place not in state.starts or last >= state.starts[place].start)
                and (first, last) not in damaged.get(place, ())
                for *place_, first, last in zip(*columns, strict=True)
                for place in [(place_[0], place_[1], place_[2])]
            )
        ),
    )


def attribute(
    segments: Iterable[Segment],
    state: State,
    manifests: Mapping[int, Manifest],
    modified: Mapping[str, float] = MappingProxyType({}),
) -> pa.Table:
    """Rows of `tables.SEGMENTS`: each segment by the restore point that added it. Left out are segments that no restore
    point reaches, that lie before the log start, that overlap others, and that are known to be damaged.

    The first restore point added a segment whose manifest reaches behind the segment. Listed restore points before it
    whose manifests are lost may have added it as well: each takes the oldest objects, by `modified`, as many as its
    row counts.
    """
    partitions = _partitions(manifests)
    lost = sorted(set(state.numbers.tolist()) - manifests.keys())
    damaged = _damaged(state)
    taken: dict[IncarnationPartition, list[tuple[int, int, int]]] = defaultdict(list)
    columns = state.segments.columns("topic", "incarnation", "partition", "first", "last", "point")
    for topic, incarnation, partition, first, last, number in zip(*columns, strict=True):
        taken[topic, incarnation, partition].append((first, last, number))
    for known in taken.values():
        known.sort()
    kept: list[tuple[Segment, list[int]]] = []
    for segment in sorted(segments, key=by_preference):
        place = place_of(segment)
        points = _possible(segment, partitions.get(place, ()), lost, state.lives.get(place[:2]))
        start = state.starts.get(place)
        if not points or (start is not None and segment.last < start.start):
            continue
        at = bisect_right(taken[place], (segment.first, 1 << 63))
        beside = [each[:2] for each in taken[place][max(0, at - 1) : at + 1]]
        if any(a <= segment.last and segment.first <= b for a, b in [*beside, *damaged.get(place, ())]):
            continue
        next_point = next((point for _, _, point in taken[place][at : at + 1] if point), None)
        if next_point is not None and not 0 < points[-1] <= next_point:
            points = [*(point for point in points if 0 < point < next_point), next_point]
        taken[place].insert(at, (segment.first, segment.last, points[-1]))
        kept.append((segment, points))
    chosen = _chosen(kept, state, manifests, modified)
    rows = [(segment, point) for (segment, _), point in zip(kept, chosen, strict=True) if point]
    table = pa.Table.from_batches([to_batch([segment for segment, _ in rows])])
    return table.append_column(SEGMENTS.field("point"), pa.array([point for _, point in rows], pa.int64()))


def by_preference(segment: Segment) -> tuple[object, ...]:
    """The key to sort by: in order, and of two that begin alike first the one beside which the other is an orphan."""
    name = layout.parse_segment(segment.key.rpartition("/")[2])
    return (*in_order(segment), -(name.spare if name is not None else 0), -segment.last)


def _possible(
    segment: Segment,
    states: Sequence[tuple[int, PartitionState]],
    lost: Sequence[int],
    life: Life | None,
) -> list[int]:
    """The restore points that may have added a segment: those of `lost` manifests after the last one that does not
    reach it, then the first one that does, 0 where none does."""
    reaching = next((number for number, p in states if p.end > segment.last), None)
    before = max((number for number, p in states if p.end <= segment.first), default=0)
    if reaching is not None:
        return [*(n for n in lost if before < n < reaching), reaching]
    last = life.last if life is not None and life.last is not None else max(lost, default=0)
    later = [n for n in lost if before < n <= last]
    return [*later, 0] if later else []


def _chosen(
    kept: Sequence[tuple[Segment, Sequence[int]]],
    state: State,
    manifests: Mapping[int, Manifest],
    modified: Mapping[str, float],
) -> list[int]:
    """Of the restore points that may have added each segment, one; 0 for a segment of an interrupted run."""
    chosen = [points[-1] for _, points in kept]
    counted = Counter(state.segments.columns("point")[0])
    counted.update(row["point"] for row in state.losses.dicts() if row["kind"] == "damaged")
    counted.update(points[0] for _, points in kept if len(points) == 1)
    unsure = {at for at, (_, points) in enumerate(kept) if len(points) > 1}
    for point in state.restore_points:
        pool = [at for at in unsure if point.number in kept[at][1]]
        if point.number in manifests or _has_expired(state, manifests, point.number):
            continue
        oldest = sorted(pool, key=lambda at: (modified.get(kept[at][0].key, 0.0), at))
        for at in oldest[: max(0, point.segments - counted[point.number])]:
            chosen[at] = point.number
            unsure.remove(at)
    return chosen


def _has_expired(state: State, manifests: Mapping[int, Manifest], number: int) -> bool:
    """Whether segments that restore point `number` added may have been let go."""
    before = manifests.get(max((n for n in manifests if n < number), default=0))
    topics = before.topics if before is not None else ()
    ends = {(t.name, t.incarnation, p.partition): p.end for t in topics for p in t.partitions}
    return any(start.start > ends.get(place, 0) for place, start in state.starts.items())


def _partitions(
    manifests: Mapping[int, Manifest],
) -> dict[IncarnationPartition, list[tuple[int, PartitionState]]]:
    """By partition, how each restore point has it."""
    found: dict[IncarnationPartition, list[tuple[int, PartitionState]]] = defaultdict(list)
    for number, manifest in sorted(manifests.items()):
        for topic in manifest.topics:
            for p in topic.partitions:
                found[topic.name, topic.incarnation, p.partition].append((number, p))
    return found


def _damaged(state: State) -> dict[IncarnationPartition, list[tuple[int, int]]]:
    """By partition, the first and last offsets of losses by damage."""
    found: dict[IncarnationPartition, list[tuple[int, int]]] = defaultdict(list)
    for row in state.losses.dicts():
        if row["kind"] == "damaged" and row["start"] is not None and row["end"] is not None:
            found[row["topic"], row["incarnation"], row["partition"]].append((row["start"], row["end"] - 1))
    return found


def unreached(
    segments: Iterable[Segment], state: State, manifests: Mapping[int, Manifest], named: Starts
) -> list[Segment]:
    """Whole segments that lie behind everything that restore points have, without overlaps, in order. Of incarnations
    that are known only those that a partition index names, which was written after a commit: others belong to a run
    that was interrupted, and the next backup takes them over."""
    partitions = _partitions(manifests)
    known = {(t.name, t.incarnation) for m in manifests.values() for t in m.topics}
    known |= {key for key, life in state.lives.items() if life.first is None and not life.retired}
    reached = {place: max(p.end for _, p in states) for place, states in partitions.items()}
    found: list[Segment] = []
    for segment in sorted(segments, key=by_preference):
        place = place_of(segment)
        if place[:2] in known and segment.first not in named.get(place, ()):
            continue
        if segment.first >= reached.get(place, 0):
            found.append(segment)
            reached[place] = segment.last + 1
    return found


def by_rank(segments: Sequence[Segment], newest: Mapping[str, int]) -> list[list[Segment]]:
    """`segments` for one restore point each, which has one incarnation of a topic: the former ones first. `newest` maps
    topics to their incarnation in the newest restore point."""
    every: dict[str, set[int]] = defaultdict(set)
    for name, incarnation in newest.items():
        every[name].add(incarnation)
    for segment in segments:
        every[segment.topic].add(segment.incarnation)
    ranks = {
        (name, incarnation): rank
        for name, numbers in every.items()
        for rank, incarnation in enumerate(sorted(numbers, reverse=True))
    }
    found: dict[int, list[Segment]] = defaultdict(list)
    for segment in segments:
        found[ranks[segment.topic, segment.incarnation]].append(segment)
    if found:
        found[0] = found[0]
    return [found[rank] for rank in sorted(found, reverse=True)]


def place_of(segment: Segment) -> IncarnationPartition:
    return segment.topic, segment.incarnation, segment.partition


def named_starts(store: Store, sizes: Sizes) -> dict[IncarnationPartition, list[int]]:
    """What the partition indexes say; damaged ones, whose names and offsets don't agree, are left out."""
    found: dict[IncarnationPartition, list[int]] = {}
    for key in sizes:
        place = layout.parse_topic_key(key)
        partition = layout.parse_partition_index(place[1]) if place is not None else None
        if place is not None and partition is not None:
            with suppress(CorruptError, NotFoundError):
                entries = decode_partition_index(store.get(key), key)
                starts = [entry.start_offset for entry in entries]
                names = [layout.parse_segment(f"{entry.name}_index") for entry in entries]
                if [name and name[:2] for name in names] == [(partition, start) for start in starts]:
                    found[*place[0], partition] = starts
    return found


def losses_of(state: State, manifests: Mapping[int, Manifest]) -> list[dict[str, Any]]:
    """Rows of `tables.LOSSES` that manifests tell of and `state` lacks."""
    known = {tuple(row.values()) for row in state.losses.dicts()}
    found: list[dict[str, Any]] = []
    for number, manifest in sorted(manifests.items()):
        incarnations = {t.name: t.incarnation for t in manifest.topics}
        for loss in manifest.losses:
            row = loss_row(number, incarnations.get(loss.topic, 1), loss)
            if tuple(row.values()) not in known:
                found.append(row)
    return found


def missing_segments(state: State, manifests: Mapping[int, Manifest], named: Starts) -> list[dict[str, Any]]:
    """Rows of `tables.LOSSES` for records that restore points promise and no segment has: segments that a partition
    index names, and between two restore points fewer records than their manifests count."""
    names = ("topic", "incarnation", "partition", "first", "last", "count", "point")
    sums: dict[IncarnationPartition, list[tuple[int, int]]] = defaultdict(list)
    firsts: dict[IncarnationPartition, set[int]] = defaultdict(set)
    columns = state.segments.columns(*names)
    for topic, incarnation, partition, first, _, count, point in zip(*columns, strict=True):
        key = (topic, incarnation, partition)
        sums[key].append((point, count))
        firsts[key].add(first)
    damaged = _damaged(state)
    found: list[dict[str, Any]] = []
    for place, states in _partitions(manifests).items():
        start = state.starts[place].start if place in state.starts else 0
        holes = list(damaged.get(place, ()))
        last = max(p.end for _, p in states)
        starts = [first for first in named.get(place, ()) if start <= first < last]
        for first, end in zip(starts, [*starts[1:], last], strict=False):
            if first not in firsts[place] and not any(a <= first <= b for a, b in holes):
                point = next(number for number, p in states if p.end > first)
                found.append(_hole(point, place, first, end, "the segment is missing or damaged"))
                holes.append((first, end - 1))
        found += _uncounted(place, states, state.starts.get(place), sums[place], holes)
    return found


def _uncounted(
    place: IncarnationPartition,
    states: Sequence[tuple[int, PartitionState]],
    log_start: LogStart | None,
    sums: Sequence[tuple[int, int]],
    holes: Sequence[tuple[int, int]],
) -> Iterable[dict[str, Any]]:
    start, let_go = (log_start.start, log_start.records) if log_start is not None else (0, 0)
    lacking = 0
    for number, p in states:
        if p.end <= start:
            continue
        missing = p.records - let_go - sum(count for point, count in sums if point <= number)
        first, start = max(start, p.start), p.end
        explained = any(a < p.end and first <= b for a, b in holes)
        if missing > lacking and not explained:
            yield _hole(number, place, first, p.end, "some of these records are missing")
        lacking = max(lacking, missing)


def _hole(point: int, place: IncarnationPartition, start: int, end: int, why: str) -> dict[str, Any]:
    message = f"offsets {start} to {end - 1} of {place[0]}-{place[2]}: {why}"
    loss = Loss(kind="damaged", topic=place[0], partition=place[2], start=start, end=end, message=message)
    return loss_row(point, place[1], loss)


def with_rows(
    state: State, lives: Sequence[Life], segments: pa.Table, losses: Sequence[dict[str, Any]]
) -> State:
    return replace(
        state,
        incarnations=state.incarnations.replace([life._asdict() for life in lives]),
        segments=state.segments.append(segments),
        losses=state.losses.append(list(losses)),
    )


def with_points(state: State, points: Iterable[Point], next_point: int) -> State:
    """`state` with restore points that it lacks, and without those that were let go."""
    past = state.past_manifests
    rows = [p for p in state.restore_points if past.get(p.number) != p.manifest]
    every = sorted([*rows, *points])
    return replace(
        state,
        next_point=max([state.next_point, next_point, *(p.number + 1 for p in every)]),
        points=state.points.replace([p._asdict() | {"documents": list(p.documents)} for p in every]),
    )
