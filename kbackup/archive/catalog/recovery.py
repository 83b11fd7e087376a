"""Operations that follow from damage, or from objects that were found. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from kbackup.archive.catalog.retention import drop_points
from kbackup.archive.catalog.state import Life, LostRange, Point, State
from kbackup.archive.catalog.tables import SEGMENTS, Rows
from kbackup.types import Incarnation

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
    """The incarnations of `state` and of restore points up to `upto` that come back to it, which have `lives`."""
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
