"""Operations that take an expiration back, and that mark what can't be taken back. Pure."""

from __future__ import annotations

from dataclasses import replace

from kbackup.archive.catalog.operations import drop_superseded
from kbackup.archive.catalog.state import State
from kbackup.errors import RefusedError


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
        losses=state.losses.append(
            [row for row in before.losses.dicts() if tuple(row.values()) not in losses]
        ),
        incarnations=state.incarnations.replace(drop_superseded(lives.values())),
        log_starts=before.log_starts,
    )


def mark_swept(state: State, number: int) -> State:
    """Mark catalogs up to `number` as swept: objects that only they refer to may be deleted, and no undo reaches
    them."""
    return replace(state, swept=max(state.swept, number))
