"""Let restore points and records go, take them back within the grace period, and note damage. Pure."""

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
    RetentionHold,
    State,
    damage_row,
    highest_incarnations,
)
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
    return lose_points(state, going)


def lose_points(state: State, numbers: Collection[int]) -> State:
    """Return `state` without restore points, their pins and labels, and what no other restore point has. The numbers
    are not given again."""
    gone = [ExpiredPoint(p.number, p.manifest) for p in state.restore_points if p.number in numbers]
    if not gone:
        return state
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
    that have ended.

    A segment is in all restore points from the one that added it to the last one of its incarnation. A loss concerns
    restore points with its incarnation, or with a later one of the topic, which shows that the loss is older.
    """
    last = state.last_points()
    highest = highest_incarnations(last)
    kept = drop_superseded(
        life if life.first is None or key in last else life._replace(retired=True) for key, life in state.lives.items()
    )
    if kept != list(state.lives.values()):
        state = replace(state, incarnations=state.incarnations.replace(kept))
    key = ("topic", "incarnation")
    return replace(
        state,
        segments=state.segments.where(lambda *row: row[2] <= last.get(row[:2], 0), *key, "point"),
        losses=state.losses.where(lambda topic, incarnation: incarnation <= highest.get(topic, 0), *key),
        log_starts=state.log_starts.where(lambda *incarnation: incarnation in last, *key),
    )


def old_starts(
    state: State, cutoff: int, spared: Collection[Incarnation] = (), holds: Sequence[RetentionHold] = ()
) -> dict[IncarnationPartition, int]:
    """Return new log starts that expire records from before `cutoff` (ms since the epoch), by whole segments from the
    start of each partition. Segments of pinned restore points, of `holds` and of incarnations `spared` stay."""
    last, lives, pinned = state.last_points(), state.lives, sorted(state.pins)
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
        else:
            starts[key] = end + 1
    return starts


def expire_records(state: State, starts: Mapping[IncarnationPartition, int]) -> State:
    """Raise log starts: segments that end below them go. A segment that a pinned restore point has must not."""
    place = ("topic", "incarnation", "partition")
    sums: dict[IncarnationPartition, list[int]] = defaultdict(lambda: [0, 0])
    last, pinned = state.last_points(), sorted(state.pins)
    for *_key, end, count, size, point in state.segments.rows(*place, "last", "count", "bytes", "point"):
        key = (_key[0], _key[1], _key[2])
        if end >= starts.get(key, 0):
            continue
        if any(point <= pin <= last[key[:2]] for pin in pinned):
            raise RefusedError(
                f"{key[0]}-{key[2]}: a pinned restore point has records below offset {starts[key]}",
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
        segments=state.segments.where(lambda *row: row[3] >= starts.get(row[:3], 0), *place, "last"),
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


def lose_segments(state: State, damaged: Mapping[str, str]) -> State:
    """Move segments that are missing or damaged to the losses. `damaged` maps keys of records objects to reasons."""
    names = ("key", "topic", "incarnation", "partition", "first", "last", "point")
    losses = [
        damage_row(point, (topic, incarnation, partition), first, last + 1, damaged[key])
        for key, topic, incarnation, partition, first, last, point in state.segments.rows(*names)
        if key in damaged
    ]
    if not losses:
        return state
    return replace(state, segments=state.segments.without("key", damaged), losses=state.losses_with(losses))


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
    labels = {name: number for name, number in before.labels.items() if number in numbers}
    known_losses = set(after.lost)
    known_keys = {key for rows in (after.segments, state.segments) for key in rows.columns("key")[0]}
    return replace(
        state,
        reinstated=state.number + 1,
        labels={**labels, **state.labels},
        points=state.points.append([p for p in before.restore_points if p.number in numbers]),
        past=state.past.without("number", numbers),
        segments=state.segments.append(before.segments.without("key", known_keys).read()),
        losses=state.losses_with(row for row in before.lost if row not in known_losses),
        incarnations=state.incarnations.replace(_lives_before(state, before, after)),
        log_starts=before.log_starts,
    )


def _lives_before(state: State, before: State, after: State) -> list[IncarnationRow]:
    """Return the incarnations of `state`, with those that lost their last restore point from `before` to `after` as
    they were. An incarnation that has restore points now is as it is now."""
    last = after.last_points()
    lives = dict(state.lives)
    lives |= {key: life for key, life in before.lives.items() if key not in last}
    lives |= {key: life for key, life in state.lives.items() if not life.retired}
    return drop_superseded(lives.values())


def mark_swept(state: State, number: int) -> State:
    """Mark catalogs up to `number` as swept: objects that only they refer to may be deleted, and no undo reaches
    them."""
    return replace(state, swept=max(state.swept, number))
