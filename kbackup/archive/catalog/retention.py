"""Let restore points and records go, and take them back within the grace period. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kbackup.archive.catalog.operations import check_listed, drop_superseded
from kbackup.archive.catalog.state import Hold, Life, LogStart, LostRange, PastPoint, Point, State, mask
from kbackup.archive.catalog.tables import SEGMENTS, Rows
from kbackup.errors import RefusedError
from kbackup.types import Incarnation, IncarnationPartition


def expire_points(state: State, numbers: Iterable[int]) -> State:
    """Let restore points go, and segments, incarnations and losses that no other restore point has."""
    going = set(numbers)
    if not going:
        return state
    check_listed(state, going)
    pinned = sorted(going & state.pins.keys())
    if pinned:
        raise RefusedError(f"restore point {pinned[0]} is pinned", f"run 'kbackup release {pinned[0]}' first")
    newest = state.restore_points[-1].number
    if newest in going:
        raise RefusedError(f"restore point {newest} is the newest one", "keep the newest restore point")
    return drop_points(state, going)


def drop_points(state: State, numbers: Collection[int]) -> State:
    """Return `state` without restore points, their pins and labels, and what no other restore point has. The numbers
    are not given again."""
    gone = [PastPoint(p.number, p.manifest) for p in state.restore_points if p.number in numbers]
    return drop_unreferenced(
        replace(
            state,
            points=state.points.without("number", numbers),
            past=state.past.append(gone),
            pins={number: at for number, at in state.pins.items() if number not in numbers},
            labels={name: number for name, number in state.labels.items() if number not in numbers},
        )
    )


def drop_unreferenced(state: State) -> State:
    """Return `state` without the rows that concern no restore point: segments, losses and log starts of incarnations
    that have ended."""
    last = state.last_points()
    lives = [
        life if life.first is None or key in last else life._replace(retired=True) for key, life in state.lives.items()
    ]
    kept = drop_superseded(lives)
    if kept != list(state.lives.values()):
        state = replace(state, incarnations=state.incarnations.replace(kept))
    return replace(
        state,
        segments=state.segments.where(_had(state, last)),
        losses=state.losses.where(_concern(state.losses, last)),
        log_starts=state.log_starts.where(_of(state.log_starts, last)),
    )


def _had(state: State, last: Mapping[Incarnation, int]) -> npt.NDArray[np.bool_]:
    """Return for each segment whether any restore point has it: bool[segments]. A segment is in all restore points from
    the one that added it to the last one of its incarnation."""
    topics, incarnations, points = state.segments.columns("topic", "incarnation", "point")
    keys = zip(topics, incarnations, strict=True)
    return mask(point <= last.get(key, 0) for key, point in zip(keys, points, strict=True))


def _concern(losses: Rows, last: Mapping[Incarnation, int]) -> npt.NDArray[np.bool_]:
    """Return for each loss whether a restore point has its incarnation, or a later one of the topic: bool[losses]. A
    later incarnation shows that the loss is older."""
    highest: dict[str, int] = {}
    for topic, incarnation in last:
        highest[topic] = max(incarnation, highest.get(topic, 0))
    return mask(
        incarnation <= highest.get(topic, 0)
        for topic, incarnation in zip(*losses.columns("topic", "incarnation"), strict=True)
    )


def _of(rows: Rows, last: Mapping[Incarnation, int]) -> npt.NDArray[np.bool_]:
    return mask(key in last for key in zip(*rows.columns("topic", "incarnation"), strict=True))


def old_starts(
    state: State, cutoff: int, spared: Collection[Incarnation] = (), holds: Sequence[Hold] = ()
) -> dict[IncarnationPartition, int]:
    """Return new log starts that expire records from before `cutoff` (ms since the epoch), by whole segments from the
    start of each partition. Segments of pinned restore points, of `holds` and of incarnations `spared` stay."""
    last, pinned = state.last_points(), sorted(state.pins)
    lives = state.lives
    names = ["topic", "incarnation", "partition", "first", "last", "max_timestamp", "point"]
    table = state.segments.read(names).sort_by([(name, "ascending") for name in names[:4]])
    starts: dict[IncarnationPartition, int] = {}
    stopped: set[IncarnationPartition] = set()
    for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
        topic, incarnation, partition, _, end, newest, point = row
        incarnation_key, key = (topic, incarnation), (topic, incarnation, partition)
        if key in stopped or incarnation_key in spared:
            continue
        first = lives[incarnation_key].first or 0
        held = any(max(point, first) <= pin <= last[incarnation_key] for pin in pinned) or any(
            hold.holds(topic, incarnation, partition, end, point) for hold in holds
        )
        if newest is None or newest >= cutoff or held:
            stopped.add(key)
            continue
        starts[key] = end + 1
    return starts


def expire_records(state: State, starts: Mapping[IncarnationPartition, int]) -> State:
    """Raise log starts: segments that end below them go. A segment that a pinned restore point has must not."""
    names = ["topic", "incarnation", "partition", "last", "count", "bytes", "point"]
    sums: dict[IncarnationPartition, list[int]] = defaultdict(lambda: [0, 0])
    keep: list[bool] = []
    last, pinned = state.last_points(), sorted(state.pins)
    for topic, incarnation, partition, end, count, size, point in zip(*state.segments.columns(*names), strict=True):
        key = (topic, incarnation, partition)
        goes = end < starts.get(key, 0)
        keep.append(not goes)
        if goes:
            if any(point <= pin <= last[topic, incarnation] for pin in pinned):
                raise RefusedError(
                    f"{topic}-{partition}: a pinned restore point has records below offset {starts[key]}",
                    "release the restore point first",
                )
            sums[key][0] += count
            sums[key][1] += size
    if not sums:
        return state
    rows = dict(state.starts)
    for key, (records, size) in sums.items():
        old = rows.get(key, LogStart(*key, 0, 0, 0))
        rows[key] = LogStart(*key, max(old.start, starts[key]), old.records + records, old.bytes + size)
    return replace(
        state,
        segments=state.segments.where(np.array(keep, np.bool_)),
        log_starts=state.log_starts.replace([row for _, row in sorted(rows.items())]),
    )


def records_by_point(state: State) -> dict[int, int]:
    """Return the number of records of each restore point."""
    numbers, last = state.numbers, state.last_points()
    topics, incarnations, points, counts = state.segments.columns("topic", "incarnation", "point", "count")
    ends = [last.get(key, 0) for key in zip(topics, incarnations, strict=True)]
    low = np.searchsorted(numbers, np.array(points, np.int64), "left")
    high = np.searchsorted(numbers, np.array(ends, np.int64), "right")
    sums = np.zeros(len(numbers) + 1, np.int64)
    had = low < high
    np.add.at(sums, low[had], np.array(counts, np.int64)[had])
    np.subtract.at(sums, high[had], np.array(counts, np.int64)[had])
    return dict(zip(numbers.tolist(), np.cumsum(sums)[:-1].tolist(), strict=True))


# Operations that follow from damage, or from objects that were found. Pure.


_DAMAGE = ("topic", "incarnation", "partition", "first", "last", "point")


def lose_segments(state: State, damaged: Mapping[str, str]) -> State:
    """Move segments that are missing or damaged to the losses. `damaged` maps keys of records objects to reasons."""
    losses = [
        LostRange(
            *(point, topic, incarnation, partition, "damaged", first, last + 1),
            message=f"offsets {first} to {last} of {topic}-{partition}: {damaged[key]}",
        )
        for key, topic, incarnation, partition, first, last, point in zip(
            *state.segments.columns("key", *_DAMAGE), strict=True
        )
        if key in damaged
    ]
    if not losses:
        return state
    return replace(state, segments=state.segments.without("key", damaged), losses=state.losses.append(losses))


def lose_points(state: State, numbers: Collection[int]) -> State:
    """Let restore points go whose manifest is lost. The numbers stay given."""
    listed = any(point.number in numbers for point in state.restore_points)
    return drop_points(state, numbers) if listed else state


def rebuild(
    state: State,
    points: Sequence[Point],
    lives: Sequence[Life],
    segments: pa.Table,
    losses: Sequence[dict[str, Any]] = (),
) -> State:
    """Return `state` with the restore points, incarnations and segments that it lacks; `segments` has the schema
    `tables.SEGMENTS`."""
    known = {point.number for point in state.restore_points}
    fresh = Rows(SEGMENTS).append(segments).without("key", set(state.segments.columns("key")[0]))
    new = [point for point in points if point.number not in known]
    numbers = {point.number for point in new}
    merged = _merged(state, lives, max(numbers, default=0))
    return replace(
        state,
        reinstated=state.number + 1,
        next_point=max([state.next_point, *(number + 1 for number in numbers)]),
        points=state.points.append(new),
        past=state.past.without("number", numbers),
        incarnations=state.incarnations.replace([life for _, life in sorted(merged.items())]),
        segments=state.segments.append(fresh.read()),
        losses=state.losses.append(list(losses)),
    )


def _later(last: int | None, other: int | None) -> int | None:
    return None if last is None else max(last, other or last)


def _merged(state: State, lives: Sequence[Life], upto: int) -> dict[Incarnation, Life]:
    """Return the incarnations of `state` and of restore points up to `upto` that come back to it, which
    have `lives`."""
    newest = state.newest.number if state.newest is not None else 0
    merged = dict(state.lives)
    for life in lives:
        key = (life.topic, life.incarnation)
        known = state.lives.get(key)
        if known is None or known.first is None or known.retired:
            ended = upto if life.last is None and upto < newest else life.last
            merged[key] = life._replace(last=ended)
        elif life.first is not None:
            last = life.last if upto > newest else _later(known.last, life.last)
            merged[key] = known._replace(first=min(known.first, life.first), last=last)
    return merged


# Operations that take an expiration back, and that mark what can't be taken back. Pure.


def undo_expiration(state: State, before: State, after: State) -> State:
    """Take back what the newest expiration, from `before` to `after`, let go.

    What was done since stands: restore points that were added, damage that was found.

    `RefusedError` if a sweep may have deleted it, and where restore points or records went since: they may share
    segments with what that expiration let go.
    """
    if state.origin is not None:
        raise RefusedError("this archive is a copy", "undo the expiration at the source, then copy to an empty address")
    if state.swept >= before.number:
        raise RefusedError("objects of that expiration may be deleted already", "run --undo within the grace time")
    listed = {p.number for p in state.restore_points}
    numbers = {p.number for p in before.restore_points} - {p.number for p in after.restore_points}
    if numbers <= listed and state.starts == before.starts:
        return state  # another undo was faster
    if numbers & listed or state.starts != after.starts or any(p.number not in listed for p in after.restore_points):
        raise RefusedError("restore points or records went since that expiration", "see 'kbackup log', then run again")
    last = after.last_points()
    lives = {**state.lives, **{key: life for key, life in before.lives.items() if key not in last}}
    lives |= {key: life for key, life in state.lives.items() if not life.retired}
    known = {key for rows in (after.segments, state.segments) for key in rows.columns("key")[0]}
    losses = {tuple(row.values()) for row in after.losses.dicts()}
    labels = {name: number for name, number in before.labels.items() if number in numbers}
    return replace(
        state,
        reinstated=state.number + 1,
        labels={**labels, **state.labels},
        points=state.points.append([p for p in before.restore_points if p.number in numbers]),
        past=state.past.without("number", numbers),
        segments=state.segments.append(before.segments.without("key", known).read()),
        losses=state.losses.append([row for row in before.losses.dicts() if tuple(row.values()) not in losses]),
        incarnations=state.incarnations.replace(drop_superseded(lives.values())),
        log_starts=before.log_starts,
    )


def mark_swept(state: State, number: int) -> State:
    """Mark catalogs up to `number` as swept: objects that only they refer to may be deleted, and no undo reaches
    them."""
    return replace(state, swept=max(state.swept, number))
