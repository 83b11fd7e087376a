"""Operations that let restore points and records go, and that take them back. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from kbackup.archive.catalog.holds import Hold
from kbackup.archive.catalog.operations import check_listed, drop_superseded
from kbackup.archive.catalog.state import LogStart, PastPoint, State, mask
from kbackup.archive.catalog.tables import Rows
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
        life if life.first is None or key in last else life._replace(retired=True)
        for key, life in state.lives.items()
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
    later incarnation tells that the loss came before it."""
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
    for topic, incarnation, partition, end, count, size, point in zip(
        *state.segments.columns(*names), strict=True
    ):
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
