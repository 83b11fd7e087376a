"""Operations that follow from damage, or from objects that were found. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from kbackup.archive.catalog.retention import drop_unreferenced
from kbackup.archive.catalog.state import Incarnation, Life, Point, State, mask
from kbackup.archive.catalog.tables import INCARNATIONS, SEGMENTS, Rows

_DAMAGE = ("topic", "incarnation", "partition", "first", "last", "point")


def lose_segments(state: State, damaged: Mapping[str, str]) -> State:
    """Move segments that are missing or damaged to the losses. `damaged` maps keys of records objects to reasons."""
    (keys,) = state.segments.columns("key")
    lost = state.segments.keep(mask(key in damaged for key in keys)).read([*_DAMAGE, "key"])
    if not len(lost):
        return state
    return replace(
        state,
        segments=state.segments.keep(mask(key not in damaged for key in keys)),
        losses=state.losses.append([_damage(row, damaged[row["key"]]) for row in lost.to_pylist()]),
    )


def _damage(row: Mapping[str, Any], reason: str) -> dict[str, Any]:
    start, end = row["first"], row["last"] + 1
    return {
        "point": row["point"],
        "topic": row["topic"],
        "incarnation": row["incarnation"],
        "partition": row["partition"],
        "kind": "damaged",
        "start": start,
        "end": end,
        "message": f"offsets {start} to {end - 1} of {row['topic']}-{row['partition']}: {reason}",
    }


def lose_points(state: State, numbers: Collection[int]) -> State:
    """Let restore points go whose manifest is lost. The numbers stay given."""
    if not set(numbers) & {point.number for point in state.restore_points}:
        return state
    (column,) = state.points.columns("number")
    lost = [{"number": p.number, "manifest": p.manifest} for p in state.restore_points if p.number in numbers]
    return drop_unreferenced(
        replace(
            state,
            points=state.points.keep(mask(number not in numbers for number in column)),
            past=state.past.append(lost),
            pins={number: at for number, at in state.pins.items() if number not in numbers},
            labels={name: number for name, number in state.labels.items() if number not in numbers},
        )
    )


def rebuild(
    state: State,
    points: Sequence[Point],
    lives: Sequence[Life],
    segments: pa.Table,
    losses: Sequence[dict[str, Any]] = (),
) -> State:
    """`state` with restore points, incarnations and segments that were found beside it and that it lacks; `segments`
    has the schema `tables.SEGMENTS`."""
    known = {point.number for point in state.restore_points}
    keys = set(state.segments.columns("key")[0])
    new = [point for point in points if point.number not in known]
    numbers = {point.number for point in new}
    (past,) = state.past.columns("number")
    merged = _merged(state, lives, max(numbers, default=0))
    fresh = mask(key not in keys for key in segments.column("key").to_pylist())
    return replace(
        state,
        reinstated=state.number + 1,
        next_point=max([state.next_point, *(number + 1 for number in numbers)]),
        points=state.points.append([p._asdict() | {"documents": list(p.documents)} for p in new]),
        past=state.past.keep(mask(number not in numbers for number in past)),
        incarnations=Rows(INCARNATIONS).append([life._asdict() for _, life in sorted(merged.items())]),
        segments=state.segments.append(Rows(SEGMENTS).append(segments).keep(fresh).read()),
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
