"""Operations of writers on the state: begin and end a run, add a restore point, pin, label. Pure.

Each returns the next state, or the same object if nothing changes: then nothing is committed. `LeaseLostError` means
that a later run closed this one, `RefusedError` and `UsageError` that the state does not permit the operation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.catalog.documents import OpenRun
from kbackup.archive.catalog.labels import check_label
from kbackup.archive.catalog.points import loss_rows, manifest_key, point_row
from kbackup.archive.catalog.state import IncarnationRow, State, highest_incarnations
from kbackup.archive.catalog.tables import Rows
from kbackup.archive.models import Manifest
from kbackup.errors import LeaseLostError, RefusedError, UsageError
from kbackup.types import Incarnation


def begin_run(state: State, run: OpenRun) -> State:
    """Open `run` and close every other: the fence."""
    # The level is noted before the first segment is written: an interrupted run leaves segments, too.
    levels = state.isolation_levels | {run.isolation_level}
    return replace(state, open_run=run, isolation_levels=levels)


def end_run(state: State, run: str) -> State:
    """Close `run`, which must be the open one."""
    check_open(state, run)
    return replace(state, open_run=None)


def check_open(state: State, run: str) -> None:
    """Raise `LeaseLostError` if a later run closed `run`."""
    if state.open_run is None or state.open_run.run != run:
        raise LeaseLostError(
            "another writer has ended this run; nothing more of it is committed",
            "see 'kbackup log' for the other writer, then run again",
        )


def next_incarnation(state: State, topic: str, topic_id: str) -> int:
    """Return the number of a new incarnation of `topic`: the number that an interrupted run reserved for the same topic
    id, or a new one."""
    highest = state.highest.get(topic, 0)
    life = state.lives.get((topic, highest))
    if life is None or not life.is_reserved:
        return highest + 1
    # An empty id is unknown: it may be of a topic that was created again since.
    is_same_topic = topic_id != "" and life.topic_id == topic_id
    return highest if is_same_topic else highest + 1


def reserve_incarnations(state: State, run: str, incarnations: Mapping[Incarnation, str]) -> State:
    """Reserve the numbers of new incarnations before the first segment is written: orphan segments in their folders
    are of these topic ids then."""
    check_open(state, run)
    # Another attempt of the run may have reserved some of them.
    new = {key: topic_id for key, topic_id in incarnations.items() if key not in state.lives}
    for topic, incarnation in new:
        highest = state.highest.get(topic, 0)
        # A run that planned on an older state would write into the folder of another incarnation.
        if incarnation != highest + 1:
            raise RefusedError(
                f"topic {topic}: incarnation {incarnation} can't follow {highest}", "run the command again"
            )
    rows = [_incarnation_row(key, new[key], first=None) for key in sorted(new)]
    return replace(state, incarnations=state.incarnations.append(rows))


def _incarnation_row(key: Incarnation, topic_id: str, first: int | None) -> IncarnationRow:
    """Return the row of a living incarnation."""
    topic, incarnation = key
    return IncarnationRow(topic, incarnation, topic_id, first, last=None, retired=False)


def add_point(state: State, manifest: Manifest, segments: pa.Table) -> State:
    """Add the next restore point of a run, with its losses, its incarnations and the segments that it adds.

    `segments` has the schema of `segments.table.SCHEMA`, which is the catalog's without the number of the restore
    point.
    """
    check_open(state, manifest.run)
    number = manifest.number
    if number != state.next_point:
        raise RefusedError(f"restore point {number} is not the next one, {state.next_point}", "run again")
    row = point_row(manifest, manifest_key(manifest))
    # The documents of an older restore point may have been swept while the run went on, after the point expired. The
    # newest one does not expire, so its documents are there for certain.
    known: tuple[str, ...] = ()
    if state.newest is not None:
        known = state.newest.documents
    prefix = layout.point_prefix(number)
    for key in row.documents:
        if key not in known and not key.startswith(prefix):
            raise RefusedError(f"restore point {number} refers to {key}, which the newest one does not", "run again")
    present = {key: topic.id for key, topic in manifest.incarnations().items()}
    point_field = state.segments.schema.field("point")
    point_column = pa.array([number] * len(segments), pa.int64())
    added = segments.append_column(point_field, point_column)
    return replace(
        state,
        next_point=number + 1,
        points=state.points.append([row]),
        segments=state.segments.append(added),
        losses=state.losses_with(loss_rows(manifest)),
        incarnations=_advance(state, number, present),
    )


def _advance(state: State, number: int, present: Mapping[Incarnation, str]) -> Rows:
    """Return the incarnations after restore point `number`. `present` are those that the restore point has, with their
    topic ids; other living incarnations ended before it."""
    lives = state.lives
    before = state.newest.number if state.newest is not None else number - 1
    rows = dict(lives)
    for key, life in lives.items():
        if life.is_alive and key not in present:
            rows[key] = life._replace(last=before)
        elif key in present and (life.first is None or life.retired):
            # A run reserved the number, or its restore points have all expired: it begins with this restore point.
            rows[key] = _incarnation_row(key, present[key], first=number)
        elif life.is_alive and life.topic_id and life.topic_id != present[key]:
            # The topic goes on in another cluster, which gave it another id.
            rows[key] = life._replace(topic_id=present[key])
    new: list[IncarnationRow] = []
    for key in sorted(present.keys() - lives.keys()):
        new.append(_incarnation_row(key, present[key], first=number))
    if rows == lives:
        # No row changed, so the files that are there go on being used: most commits make no incarnation.
        return state.incarnations.append(new)
    remaining = drop_superseded([*rows.values(), *new])
    return state.incarnations.replace(remaining)


def drop_superseded(lives: Iterable[IncarnationRow]) -> list[IncarnationRow]:
    """Drop rows that nothing needs: reserved or retired numbers below the highest of their topic.

    The highest number of a topic stays whatever became of it, so that it is not given again.
    """
    rows = list(lives)
    highest = highest_incarnations(life.key for life in rows)
    kept: list[IncarnationRow] = []
    for life in rows:
        has_points = life.first is not None and not life.retired
        if has_points or life.incarnation == highest[life.topic]:
            kept.append(life)
    return kept


def pin_points(state: State, numbers: Collection[int], at: str) -> State:
    """Pin restore points. A restore point that is pinned already keeps its time."""
    check_listed(state, numbers)
    new = {number: at for number in numbers if number not in state.pins}
    if not new:
        return state
    return replace(state, pins={**state.pins, **new})


def release_points(state: State, numbers: Collection[int]) -> State:
    """Take the pins of restore points away."""
    check_listed(state, numbers)
    pins = {number: at for number, at in state.pins.items() if number not in numbers}
    if len(pins) == len(state.pins):
        return state
    return replace(state, pins=pins)


def label_point(state: State, name: str, number: int | None) -> State:
    """Give restore point `number` the label `name`, or with None take the label away. `UsageError` for a name that
    can't be a label; an older version may have written one, so it can be taken away."""
    if number is None and name not in state.labels:
        raise UsageError(f"no restore point has label {name!r}", "see 'kbackup list'")
    labels = {other: point for other, point in state.labels.items() if other != name}
    if number is not None:
        check_label(name)
        check_listed(state, [number])
        labels[name] = number
    if labels == state.labels:
        return state
    return replace(state, labels=labels)


def check_listed(state: State, numbers: Iterable[int]) -> None:
    """Raise `UsageError` for the first of `numbers` that is no restore point."""
    for number in sorted(set(numbers)):
        if state.point(number) is None:
            why = "expired or was lost" if number in state.past_manifests else "does not exist"
            raise UsageError(f"restore point {number} {why}", "see 'kbackup list'")


def may_salvage(state: State) -> bool:
    """Return whether segments of interrupted runs can be salvaged: all runs read with one isolation level.

    A segment does not say how it was read, so with two levels nobody can tell whether it lacks aborted records."""
    return len(state.isolation_levels) <= 1
