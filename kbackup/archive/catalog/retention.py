"""Operations that let restore points and records go, and that take them back. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kbackup.archive.catalog.operations import check_listed, drop_superseded
from kbackup.archive.catalog.state import (
    Incarnation,
    IncarnationPartition,
    LogStart,
    PastPoint,
    State,
    mask,
)
from kbackup.archive.catalog.tables import Rows
from kbackup.errors import RefusedError


@dataclass(frozen=True)
class Hold:
    """Records that somebody still has to read: `name` has read restore points up to `restore_point`.

    `positions` maps a topic to an incarnation and the next offsets to read of its partitions. Earlier incarnations are
    read, later ones are not. Topics that are not in it are not read at all, so that only restore points later than
    `restore_point` hold them."""

    name: str
    restore_point: int
    positions: Mapping[str, tuple[int, Sequence[int]]]

    def holds(self, topic: str, incarnation: int, partition: int, last: int, point: int) -> bool:
        """Whether records up to offset `last` of a partition, which restore point `point` added, have to stay."""
        position = self.positions.get(topic)
        if point > self.restore_point:
            return True
        if position is None:
            return False
        reading, following = position
        if incarnation != reading:
            return incarnation > reading
        return last >= (following[partition] if partition < len(following) else 0)


def held_points(state: State, holds: Sequence[Hold]) -> dict[int, list[str]]:
    """The restore points that must stay, each with the names of its holds: an incarnation that is over goes with the
    last restore point that has it."""
    names = ("topic", "incarnation", "partition", "last", "point")
    last_points = state.last_points()
    held: dict[int, list[str]] = {}
    if not holds:
        return held
    for topic, incarnation, partition, last, point in zip(*state.segments.columns(*names), strict=True):
        number = last_points.get((topic, incarnation), 0)
        for hold in holds:
            if hold.name in held.get(number, ()):
                continue
            if hold.holds(topic, incarnation, partition, last, point):
                held.setdefault(number, []).append(hold.name)
    return held


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
    """Without restore points, their pins and labels, and what no other restore point has. The numbers stay given."""
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
    """Without the rows that concern no restore point: segments, losses and log starts of incarnations that are over."""
    last = state.last_points()
    lives = [
        life if life.first is None or key in last else life._replace(retired=True)
        for key, life in state.lives.items()
    ]
    kept = drop_superseded(lives)
    if kept != list(state.lives.values()):
        state = replace(state, incarnations=state.incarnations.replace(kept))
    return replace(
        state,
        segments=state.segments.keep(_had(state, last)),
        losses=state.losses.keep(_concern(state.losses, last)),
        log_starts=state.log_starts.keep(_of(state.log_starts, last)),
    )


def _had(state: State, last: Mapping[Incarnation, int]) -> npt.NDArray[np.bool_]:
    """bool[segments]: whether any restore point has the segment: it was added up to the last one of its incarnation."""
    topics, incarnations, points = state.segments.columns("topic", "incarnation", "point")
    keys = zip(topics, incarnations, strict=True)
    return mask(point <= last.get(key, 0) for key, point in zip(keys, points, strict=True))


def _concern(losses: Rows, last: Mapping[Incarnation, int]) -> npt.NDArray[np.bool_]:
    """bool[losses]: whether a restore point has the incarnation of the loss, or a later one of the topic: it says that
    the loss came before."""
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
    """New log starts that let go of records from before `cutoff` (ms since the epoch), by whole segments from the start
    of each partition. Segments that a pinned restore point has stay, those of `holds`, and incarnations `spared`."""
    last, pinned = state.last_points(), sorted(state.pins)
    lives = state.lives
    names = ["topic", "incarnation", "partition", "first", "last", "max_timestamp", "point"]
    table = state.segments.read(names).sort_by([(name, "ascending") for name in names[:4]])
    starts: dict[IncarnationPartition, int] = {}
    stopped: set[IncarnationPartition] = set()
    for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
        topic, incarnation, partition, _, end, newest, point = row
        key, place = (topic, incarnation), (topic, incarnation, partition)
        if place in stopped or key in spared:
            continue
        first = lives[key].first or 0
        held = any(max(point, first) <= pin <= last[key] for pin in pinned) or any(
            hold.holds(topic, incarnation, partition, end, point) for hold in holds
        )
        if newest is None or newest >= cutoff or held:
            stopped.add(place)
            continue
        starts[place] = end + 1
    return starts


def expire_records(state: State, starts: Mapping[IncarnationPartition, int]) -> State:
    """Raise log starts: segments that end below them go. A segment that a pinned restore point has must not."""
    names = ["topic", "incarnation", "partition", "last", "count", "bytes", "point"]
    sums: dict[IncarnationPartition, list[int]] = defaultdict(lambda: [0, 0])
    keep: list[bool] = []
    last, pinned = state.last_points(), sorted(state.pins)
    for topic, incarnation, partition, end, count, size, point in zip(
        *state.segments.columns(*names), strict=True
    ):
        place = (topic, incarnation, partition)
        goes = end < starts.get(place, 0)
        keep.append(not goes)
        if goes:
            if any(point <= pin <= last[topic, incarnation] for pin in pinned):
                raise RefusedError(
                    f"{topic}-{partition}: a pinned restore point has records below offset {starts[place]}",
                    "release the restore point first",
                )
            sums[place][0] += count
            sums[place][1] += size
    if not sums:
        return state
    rows = dict(state.starts)
    for place, (records, size) in sums.items():
        old = rows.get(place, LogStart(*place, 0, 0, 0))
        rows[place] = LogStart(*place, max(old.start, starts[place]), old.records + records, old.bytes + size)
    return replace(
        state,
        segments=state.segments.keep(np.array(keep, np.bool_)),
        log_starts=state.log_starts.replace([row for _, row in sorted(rows.items())]),
    )


def records_by_point(state: State) -> dict[int, int]:
    """How many records each restore point has."""
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


def undo_expiration(state: State, before: State, after: State) -> State:
    """Take back what the newest expiration, from `before` to `after`, let go.

    What was done since stands: restore points that were added, damage that was found.

    `RefusedError` where a sweep may have deleted it, and where restore points or records went since: they may share
    segments with what that expiration let go.
    """
    if state.origin is not None:
        raise RefusedError(
            "this archive is a copy", "undo the expiration at the source, then copy to an empty address"
        )
    if state.swept >= before.number:
        raise RefusedError(
            "objects of that expiration may be deleted already", "run --undo within the grace time"
        )
    listed = {p.number for p in state.restore_points}
    numbers = {p.number for p in before.restore_points} - {p.number for p in after.restore_points}
    if numbers <= listed and state.starts == before.starts:
        return state  # another undo was faster
    if (
        numbers & listed
        or state.starts != after.starts
        or any(p.number not in listed for p in after.restore_points)
    ):
        raise RefusedError(
            "restore points or records went since that expiration", "see 'kbackup log', then run again"
        )
    lives = {
        **state.lives,
        **{key: life for key, life in before.lives.items() if key not in after.last_points()},
    }
    lives |= {key: life for key, life in state.lives.items() if not life.retired}
    known = {key for rows in (after.segments, state.segments) for key in rows.columns("key")[0]}
    losses = after.losses.dicts()
    labels = {name: number for name, number in before.labels.items() if number in numbers}
    return replace(
        state,
        reinstated=state.number + 1,
        labels={**labels, **state.labels},
        points=state.points.append([p for p in before.restore_points if p.number in numbers]),
        past=state.past.without("number", numbers),
        segments=state.segments.append(before.segments.without("key", known).read()),
        losses=state.losses.append([row for row in before.losses.dicts() if row not in losses]),
        incarnations=state.incarnations.replace(drop_superseded(lives.values())),
        log_starts=before.log_starts,
    )


def mark_swept(state: State, number: int) -> State:
    """From now on objects that only catalogs up to `number` refer to may be deleted: no undo reaches back there."""
    return replace(state, swept=max(state.swept, number))
