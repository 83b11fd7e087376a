"""Expire restore points and records, take an expiration back within the grace time, and note damage. Pure.

What is to expire is decided by `jobs.retention`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from kbackup.archive.catalog.operations import check_listed, drop_superseded
from kbackup.archive.catalog.state import (
    ExpiredPoint,
    IncarnationRow,
    LogStart,
    LossRow,
    RetentionHold,
    State,
    damage_row,
    highest_incarnations,
)
from kbackup.archive.catalog.tables import SEGMENTS, Rows
from kbackup.errors import RefusedError
from kbackup.types import Incarnation, IncarnationPartition


def expire_points(state: State, numbers: Iterable[int]) -> State:
    """Expire restore points, and with them segments, incarnations and losses that no other restore point has."""
    expiring = set(numbers)
    if not expiring:
        return state
    check_listed(state, expiring)
    pinned = sorted(expiring & state.pins.keys())
    if pinned:
        raise RefusedError(f"restore point {pinned[0]} is pinned", f"run 'kbackup release {pinned[0]}' first")
    # The next backup continues at the ends of the newest restore point, and may refer to its documents.
    newest = state.restore_points[-1].number
    if newest in expiring:
        raise RefusedError(f"restore point {newest} is the newest one", "keep the newest restore point")
    return lose_points(state, expiring)


def lose_points(state: State, numbers: Collection[int]) -> State:
    """Return `state` without restore points, their pins and labels, and what no other restore point has. The numbers
    are not given again."""
    expired: list[ExpiredPoint] = []
    for point in state.restore_points:
        if point.number in numbers:
            expired.append(ExpiredPoint(point.number, point.manifest))
    if not expired:
        return state
    pins = {number: at for number, at in state.pins.items() if number not in numbers}
    labels = {name: number for name, number in state.labels.items() if number not in numbers}
    remaining = replace(
        state, points=state.points.without("number", numbers), past=state.past.append(expired), pins=pins, labels=labels
    )
    return drop_unreferenced(remaining)


def drop_unreferenced(state: State) -> State:
    """Return `state` without the rows that concern no restore point: segments, losses and log starts of incarnations
    that have ended.

    A segment is in all restore points from the one that added it to the last one of its incarnation. A loss concerns
    restore points with its incarnation, or with a later one of the topic, which shows that the loss is older.
    """
    # Numbers of restore points only grow, so a comparison with the last one that has an incarnation is enough: no list
    # of the restore points of each segment is kept.
    last = state.last_points()
    highest = highest_incarnations(last)

    def is_segment_of_a_point(topic: str, incarnation: int, point: int) -> bool:
        return point <= last.get((topic, incarnation), 0)

    def is_loss_of_a_point(topic: str, incarnation: int) -> bool:
        return incarnation <= highest.get(topic, 0)

    def is_incarnation_of_a_point(topic: str, incarnation: int) -> bool:
        return (topic, incarnation) in last

    return replace(
        state,
        incarnations=_retire(state, last),
        segments=state.segments.where(is_segment_of_a_point, "topic", "incarnation", "point"),
        losses=state.losses.where(is_loss_of_a_point, "topic", "incarnation"),
        log_starts=state.log_starts.where(is_incarnation_of_a_point, "topic", "incarnation"),
        erased=state.erased.where(is_incarnation_of_a_point, "topic", "incarnation"),
        rewritten=state.rewritten.where(is_incarnation_of_a_point, "topic", "incarnation"),
        compacted=state.compacted.where(is_incarnation_of_a_point, "topic", "incarnation"),
    )


def _retire(state: State, last: Mapping[Incarnation, int]) -> Rows:
    """Return the incarnations of `state`, those retired that no restore point has any more. `last` has the last restore
    point of each of the others."""
    lives: list[IncarnationRow] = []
    for key, life in state.lives.items():
        was_in_a_point = life.first is not None
        is_retired = was_in_a_point and key not in last
        now = life._replace(retired=True) if is_retired else life
        lives.append(now)
    kept = drop_superseded(lives)
    if kept == list(state.lives.values()):
        # The files of the table go on being used.
        return state.incarnations
    return state.incarnations.replace(kept)


def old_starts(
    state: State, cutoff: int, spared: Collection[Incarnation] = (), holds: Sequence[RetentionHold] = ()
) -> dict[IncarnationPartition, int]:
    """Return new log starts that expire records from before `cutoff` (ms since the epoch), by whole segments from the
    start of each partition. Segments of pinned restore points, of `holds` and of incarnations `spared` stay."""
    last = state.last_points()
    lives = state.lives
    pinned = sorted(state.pins)
    names = ["topic", "incarnation", "partition", "first", "last", "max_timestamp", "point"]
    unsorted = state.segments.read(names)
    # By offset within each partition; the catalog has segments in the order of their restore points.
    table = unsorted.sort_by([(name, "ascending") for name in names[:4]])
    columns = [column.to_pylist() for column in table.columns]
    starts: dict[IncarnationPartition, int] = {}
    # Records expire without a gap, so the first segment of a partition that stays keeps all later ones.
    stopped: set[IncarnationPartition] = set()
    for topic, incarnation, partition, _first, end, newest, point in zip(*columns, strict=True):
        incarnation_key = (topic, incarnation)
        key = (topic, incarnation, partition)
        if key in stopped or incarnation_key in spared:
            continue
        # A segment without any timestamp has no age, and stays.
        if newest is None or newest >= cutoff:
            stopped.add(key)
            continue
        first_point = lives[incarnation_key].first or 0
        first_with_it = max(point, first_point)
        is_pinned = _has_pin(pinned, first_with_it, last[incarnation_key])
        if is_pinned or any(hold.holds(topic, incarnation, partition, end, point) for hold in holds):
            stopped.add(key)
        else:
            starts[key] = end + 1
    return starts


def _has_pin(pinned: Iterable[int], first: int, last: int) -> bool:
    """Return whether a restore point from `first` to `last`, both included, is pinned: those that have a segment."""
    return any(first <= pin <= last for pin in pinned)


def expire_records(state: State, starts: Mapping[IncarnationPartition, int]) -> State:
    """Raise log starts: segments that end below them expire. `RefusedError` for a segment of a pinned restore point."""
    starts = _at_segments(state, starts)
    last = state.last_points()
    pinned = sorted(state.pins)
    expired_records: dict[IncarnationPartition, int] = defaultdict(int)
    expired_bytes: dict[IncarnationPartition, int] = defaultdict(int)
    rows = state.segments.rows("topic", "incarnation", "partition", "last", "count", "bytes", "point")
    for topic, incarnation, partition, end, count, size, point in rows:
        key = (topic, incarnation, partition)
        if end >= starts.get(key, 0):
            continue
        if _has_pin(pinned, point, last[topic, incarnation]):
            raise RefusedError(
                f"{topic}-{partition}: a pinned restore point has records below offset {starts[key]}",
                "release the restore point first",
            )
        expired_records[key] += count
        expired_bytes[key] += size
    if not expired_records:
        return state

    def is_kept(topic: str, incarnation: int, partition: int, end: int) -> bool:
        return end >= starts.get((topic, incarnation, partition), 0)

    # What expired before is counted on: a log start has the sum of all that went below it.
    log_starts = dict(state.starts)
    for key, count in expired_records.items():
        before = log_starts.get(key, LogStart(*key, start=0, records=0, bytes=0))
        start = max(before.start, starts[key])
        log_starts[key] = LogStart(*key, start, before.records + count, before.bytes + expired_bytes[key])
    return replace(
        state,
        segments=state.segments.where(is_kept, "topic", "incarnation", "partition", "last"),
        log_starts=log_start_rows(state, log_starts),
    )


def _at_segments(state: State, starts: Mapping[IncarnationPartition, int]) -> Mapping[IncarnationPartition, int]:
    """Return log starts that lie in no segment: a segment at whose end one was may have been merged with later ones."""
    moved = dict(starts)
    for topic, incarnation, partition, first, end in state.segments.rows(*SEGMENTS.names[:5]):
        place = (topic, incarnation, partition)
        if place in moved and first < moved[place] <= end:
            moved[place] = first
    return moved


def log_start_rows(state: State, starts: Mapping[IncarnationPartition, LogStart]) -> Rows:
    """Return the table of log starts of `state` with the rows `starts` in place of its own."""
    rows = [start for _, start in sorted(starts.items())]
    return state.log_starts.replace(rows)


def records_by_point(state: State) -> dict[int, int]:
    """Return the number of records of each restore point."""
    numbers = state.numbers
    last = state.last_points()
    topics, incarnations, points, counts = state.segments.columns("topic", "incarnation", "point", "count")
    last_points = [last.get(key, 0) for key in zip(topics, incarnations, strict=True)]
    # A segment is in the restore points from its own to the last of its incarnation. Its records are added where these
    # begin and subtracted where they end: so the running sum is what each restore point has, for one look per segment.
    begin = np.searchsorted(numbers, np.array(points, np.int64), "left")
    end = np.searchsorted(numbers, np.array(last_points, np.int64), "right")
    records = np.array(counts, np.int64)
    is_in_a_point = begin < end
    changes = np.zeros(len(numbers) + 1, np.int64)
    np.add.at(changes, begin[is_in_a_point], records[is_in_a_point])
    np.subtract.at(changes, end[is_in_a_point], records[is_in_a_point])
    sums = np.cumsum(changes)[:-1]
    return dict(zip(numbers.tolist(), sums.tolist(), strict=True))


def lose_segments(state: State, damaged: Mapping[str, str]) -> State:
    """Move segments that are missing or damaged to the losses. `damaged` maps keys of records objects to reasons."""
    losses: list[LossRow] = []
    rows = state.segments.rows("key", "topic", "incarnation", "partition", "first", "last", "point")
    for key, topic, incarnation, partition, first, last, point in rows:
        if key in damaged:
            place = (topic, incarnation, partition)
            losses.append(damage_row(point, place, first, last + 1, damaged[key]))
    if not losses:
        return state
    return replace(state, segments=state.segments.without("key", damaged), losses=state.losses_with(losses))


def undo_expiration(state: State, before: State, after: State) -> State:
    """Return `state` with the restore points and records back that the newest expiration, from `before` to `after`,
    dropped.

    What was done since stays: restore points that were added, damage that was found.

    `RefusedError` if a sweep may have deleted objects of that expiration. Also if restore points or records went since:
    they may share segments with what that expiration dropped.
    """
    if state.origin is not None:
        raise RefusedError("this archive is a copy", "undo the expiration at the source, then copy to an empty address")
    if state.swept >= before.number:
        raise RefusedError("objects of that expiration may be deleted already", "run --undo within the grace time")
    known_erased = set(before.erased.rows())
    if any(row not in known_erased for row in state.erased.rows()):
        # Nobody has looked for the erased records in what had expired by then, so it must not come back.
        raise RefusedError(
            "records were erased since that expiration; what has expired may have more of them",
            "leave the expiration as it is",
        )
    listed = {point.number for point in state.restore_points}
    kept = {point.number for point in after.restore_points}
    expired = {point.number for point in before.restore_points} - kept
    if expired <= listed and state.starts == before.starts:
        # Another undo was faster.
        return state
    if expired & listed or kept - listed or state.starts != after.starts:
        raise RefusedError(
            "more restore points or records have expired since that expiration", "see 'kbackup log', then run again"
        )
    points = [point for point in before.restore_points if point.number in expired]
    # A label may have been given to another restore point since: that one keeps it.
    labels = {name: number for name, number in before.labels.items() if number in expired}
    labels.update(state.labels)
    # A segment that was found damaged since is in `after` alone, and stays out.
    (keys_after,) = after.segments.columns("key")
    (keys_now,) = state.segments.columns("key")
    segments = before.segments.without("key", {*keys_after, *keys_now})
    known_losses = set(after.lost)
    losses = [row for row in before.lost if row not in known_losses]
    lives = _lives_before(state, before, after)

    def is_of_expired(number: int) -> bool:
        return number in expired

    # A repair may have made the manifest of a restore point anew: a copy may have the former one.
    former_manifests = before.past.where(is_of_expired, "number")
    return replace(
        state,
        # Readers may open this catalog, and the rows may expire again. A sweep then has to know that they were here:
        # a catalog that names itself decides as well.
        reinstated=state.number + 1,
        labels=labels,
        points=state.points.append(points),
        past=state.past.without("number", expired).append(former_manifests.read()),
        segments=state.segments.append(segments.read()),
        losses=state.losses_with(losses),
        incarnations=state.incarnations.replace(lives),
        log_starts=before.log_starts,
        # What is known of a dropped incarnation comes back with it. Segments may have been merged since, though none
        # across a restore point that comes back (`sweep.undoable_points`).
        erased=before.erased.with_rows_of(state.erased),
        rewritten=before.rewritten.with_rows_of(state.rewritten),
    )


def _lives_before(state: State, before: State, after: State) -> list[IncarnationRow]:
    """Return the incarnations of `state`. Those that lost their last restore point from `before` to `after` are as they
    were before; one that has restore points again is as it is now."""
    last_after = after.last_points()
    lives = dict(state.lives)
    for key, life in before.lives.items():
        is_retired_now = key not in state.lives or state.lives[key].retired
        if key not in last_after and is_retired_now:
            lives[key] = life
    return drop_superseded(lives.values())


def mark_swept(state: State, number: int) -> State:
    """Mark catalogs up to `number` as swept: objects that only they refer to may be deleted, and no undo reaches
    them."""
    return replace(state, swept=max(state.swept, number))
