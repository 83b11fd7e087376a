"""Merge the state of a copy's source with what the copy keeps and the source let go. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from kbackup.archive.catalog.copied_state import log_start_rows, lost_range, without_expired
from kbackup.archive.catalog.operations import drop_superseded
from kbackup.archive.catalog.recovery import rebuild
from kbackup.archive.catalog.state import Life, LostRange, State
from kbackup.types import IncarnationPartition


def with_retained(source: State, copy: State) -> State:
    """Return `source` with the restore points and the records that it let go and the copy has."""
    copied = without_expired(source, copy)
    kept = [point for point in copy.restore_points if source.point(point.number) is None]
    numbers = {point.number for point in kept}
    had = copy.last_points()
    starts = {
        place: start for place, start in copied.starts.items() if place in copy.starts or place[:2] not in had
    }
    starts |= {place: start for place, start in copy.starts.items() if place[:2] in had}
    holes = _expired_unseen(source, copy)
    known = {lost_range(row) for row in [*copied.losses.dicts(), *holes]}
    ours = set(copy.segments.columns("key")[0])
    state = rebuild(
        replace(
            copied,
            log_starts=log_start_rows(copied, starts),
            segments=copied.segments.without("key", ours),
        ),
        kept,
        (),
        copy.segments.read(),
        [*holes, *(row for row in copy.losses.dicts() if lost_range(row) not in known)],
    )
    keys = sorted({*copy.lives, *source.lives})
    lives = [_merged(copy.lives.get(key), source.lives.get(key), copy) for key in keys]
    last = _with_lives(state, lives).last_points()
    retired = [
        life._replace(retired=life.first is not None and key not in last)
        for key, life in zip(keys, lives, strict=True)
    ]
    return replace(
        _with_lives(state, drop_superseded(retired)),
        pins={**{n: at for n, at in copy.pins.items() if n in numbers}, **source.pins},
        labels={**{name: n for name, n in copy.labels.items() if n in numbers}, **source.labels},
    )


def _with_lives(state: State, lives: Iterable[Life]) -> State:
    return replace(state, incarnations=state.incarnations.replace(list(lives)))


def _merged(ours: Life | None, source_life: Life | None, copy: State) -> Life:
    """Merge an incarnation of the copy and of its source. One that only the copy has ended after the copy's newest
    restore point."""
    if ours is None or source_life is None:
        life = ours or source_life
        assert life is not None  # noqa: S101 (one of them has it)
        if source_life is None and life.first is not None and life.last is None:
            return life._replace(last=copy.next_point - 1)
        return life
    firsts = [life.first for life in (ours, source_life) if life.first is not None]
    return source_life._replace(first=min(firsts, default=None))


def _expired_unseen(source: State, copy: State) -> list[dict[str, Any]]:
    """Return losses for the records that expired at the source before they were copied, beyond records that the copy
    keeps. A log start is the last offset of a segment plus 1."""
    ends: dict[IncarnationPartition, list[int]] = {}
    for topic, incarnation, partition, last in zip(
        *copy.segments.columns("topic", "incarnation", "partition", "last"), strict=True
    ):
        ends.setdefault((topic, incarnation, partition), []).append(last + 1)
    for row in copy.losses.dicts():
        if row["kind"] == "damaged":
            ends.setdefault((row["topic"], row["incarnation"], row["partition"]), []).append(row["end"])
    point = min((p.number for p in source.restore_points if p.number >= copy.next_point), default=None)
    holes: list[dict[str, Any]] = []
    for key, start in sorted(source.starts.items()):
        below = [end for end in ends.get(key, ()) if end <= start.start]
        if point is None or not below or max(below) == start.start:
            continue
        message = (
            f"offsets {max(below)} to {start.start - 1} of {key[0]}-{key[2]}: "
            "they expired at the source before they were copied"
        )
        hole = LostRange(point, *key, "damaged", max(below), start.start, message)
        holes.append(hole._asdict())
    return holes
