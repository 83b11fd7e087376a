"""Operations of writers on the state: begin and end a run, add a restore point, pin, label. Pure.

Each returns the next state, the same one where nothing changes, or raises: `LeaseLostError` for a run that a later one
closed, `RefusedError` and `UsageError` for what the state does not permit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.catalog.documents import OpenRun
from kbackup.archive.catalog.labels import check_label
from kbackup.archive.catalog.points import loss_rows, manifest_key, point_row
from kbackup.archive.catalog.state import IncarnationRow, State, highest_incarnations
from kbackup.archive.models import Manifest
from kbackup.errors import LeaseLostError, RefusedError, UsageError
from kbackup.types import Incarnation


def begin_run(state: State, run: OpenRun) -> State:
    """Open `run` and close every other: the fence."""
    return replace(state, open_run=run, isolation_levels=state.isolation_levels | {run.isolation_level})


def end_run(state: State, run: str) -> State:
    check_open(state, run)
    return replace(state, open_run=None)


def check_open(state: State, run: str) -> None:
    """Raise `LeaseLostError` if a later run closed `run`."""
    if state.open_run is None or state.open_run.run != run:
        raise LeaseLostError(
            "this run was closed by another writer; nothing more of it is committed",
            "see 'kbackup log' for the other writer, then run again",
        )


def next_incarnation(state: State, topic: str, topic_id: str) -> int:
    """Return the number of a new incarnation of `topic`: the number that an interrupted run reserved for the same topic
    id, or a new one."""
    highest = state.highest.get(topic, 0)
    life = state.lives.get((topic, highest))
    if life is None or life.first is not None or life.retired or not topic_id or life.topic_id != topic_id:
        return highest + 1
    return highest


def reserve_incarnations(state: State, run: str, incarnations: Mapping[Incarnation, str]) -> State:
    """Reserve the numbers of new incarnations before the first segment is written: orphan segments in their folders
    are of these topic ids then."""
    check_open(state, run)
    new = {key: topic_id for key, topic_id in incarnations.items() if key not in state.lives}
    for topic, incarnation in new:
        if incarnation != state.highest.get(topic, 0) + 1:
            raise RefusedError(
                f"topic {topic}: incarnation {incarnation} can't follow {state.highest.get(topic, 0)}",
                "run the command again",
            )
    lives = [IncarnationRow(*key, new[key], None, None, False) for key in sorted(new)]
    return replace(state, incarnations=state.incarnations.append(lives))


def add_point(state: State, manifest: Manifest, segments: pa.Table) -> State:
    """Add the next restore point of a run, with its losses and its incarnations. `segments` are those that it adds, in
    the schema of `segments.table.SCHEMA`: the catalog's, but for the restore point."""
    check_open(state, manifest.run)
    number, row = manifest.number, point_row(manifest, manifest_key(manifest))
    if number != state.next_point:
        raise RefusedError(f"restore point {number} is not the next one, {state.next_point}", "run again")
    # a sweep may have deleted the documents of an older restore point: only the newest one's are there for certain
    known = state.newest.documents if state.newest is not None else ()
    prefix = layout.point_prefix(number)
    for key in row.documents:
        if key not in known and not key.startswith(prefix):
            raise RefusedError(f"restore point {number} refers to {key}, which the newest one does not", "run again")
    present = {key: topic.id for key, topic in manifest.incarnations().items()}
    numbers = pa.array([number] * len(segments), pa.int64())
    added = segments.append_column(state.segments.schema.field("point"), numbers)
    return replace(
        state,
        next_point=number + 1,
        points=state.points.append([row]),
        segments=state.segments.append(added),
        losses=state.losses_with(loss_rows(manifest)),
        incarnations=_advance(state, number, present),
    )


def _advance(state: State, number: int, present: Mapping[Incarnation, str]) -> Any:
    """Return the incarnations after restore point `number`, which has the `present` ones: other living incarnations
    ended before it."""
    lives = state.lives
    before = state.newest.number if state.newest is not None else number - 1
    rows = dict(lives)
    for key, life in lives.items():
        is_alive = life.first is not None and life.last is None and not life.retired
        if is_alive and key not in present:
            rows[key] = life._replace(last=before)
        elif key in present and (life.first is None or life.retired):
            # a run reserved the number, or its restore points have all expired: it begins with this restore point
            rows[key] = IncarnationRow(*key, present[key], number, None, False)
    new = [IncarnationRow(*key, present[key], number, None, False) for key in sorted(present) if key not in lives]
    if rows == lives:
        return state.incarnations.append(new)  # the chunks that are written stay as they are
    return state.incarnations.replace(drop_superseded([*rows.values(), *new]))


def drop_superseded(lives: Iterable[IncarnationRow]) -> list[IncarnationRow]:
    """Drop rows that nothing needs: reserved or retired numbers below the highest of their topic."""
    every = list(lives)
    highest = highest_incarnations(life[:2] for life in every)
    return [
        life
        for life in every
        if life.incarnation == highest[life.topic] or (life.first is not None and not life.retired)
    ]


def pin_points(state: State, numbers: Collection[int], at: str) -> State:
    """Pin restore points; those that are pinned keep their time."""
    check_listed(state, numbers)
    new = {number: at for number in numbers if number not in state.pins}
    return replace(state, pins={**state.pins, **new}) if new else state


def release_points(state: State, numbers: Collection[int]) -> State:
    check_listed(state, numbers)
    pins = {number: at for number, at in state.pins.items() if number not in numbers}
    return replace(state, pins=pins) if len(pins) < len(state.pins) else state


def label_point(state: State, name: str, number: int | None) -> State:
    """Give restore point `number` the label `name`, or with None take the label away. `UsageError` for a name that
    can't be a label; an older version may have written one, so it can be taken away."""
    labels = {other: point for other, point in state.labels.items() if other != name}
    if number is None and name not in state.labels:
        raise UsageError(f"no restore point has label {name!r}", "see 'kbackup list'")
    if number is not None:
        check_label(name)
        check_listed(state, [number])
        labels[name] = number
    return replace(state, labels=labels) if labels != state.labels else state


def check_listed(state: State, numbers: Iterable[int]) -> None:
    """Raise `UsageError` for the first of `numbers` that is no restore point."""
    for number in sorted(set(numbers)):
        if state.point(number) is None:
            why = "was let go" if number in state.past_manifests else "does not exist"
            raise UsageError(f"restore point {number} {why}", "see 'kbackup list'")


def may_salvage(state: State) -> bool:
    """Return whether segments of interrupted runs can be salvaged: all runs read with one isolation level."""
    return len(state.isolation_levels) <= 1
