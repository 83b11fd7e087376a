"""Operations that make a copy of an archive, bring it up to its source, and make it an archive of its own. Pure.

A copy never creates a key again that its sweep may delete. Therefore a copy takes nothing from its source that lies
below its own ends or log starts: restore points and records that a copy let go stay away.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from kbackup.archive.catalog.copied_state import (
    log_start_rows,
    lost_range,
    with_whole_segments,
    without_dropped,
    without_expired,
    without_holes,
)
from kbackup.archive.catalog.copy_merge import with_retained
from kbackup.archive.catalog.documents import IsolationLevel, Link, Origin
from kbackup.archive.catalog.operations import check_open
from kbackup.archive.catalog.recovery import lose_points
from kbackup.archive.catalog.retention import drop_unreferenced
from kbackup.archive.catalog.state import LogStart, State, mask
from kbackup.archive.models import TopicState
from kbackup.errors import RefusedError
from kbackup.types import IncarnationPartition


def check_lineage(copy: State, source: State, label: str = "the destination") -> None:
    """Raise `RefusedError` unless the source has or had every restore point and segment that `copy` has or had."""
    if copy.origin is None and copy.restore_points:
        raise RefusedError(f"{label} is an archive of its own, not a copy", "copy to an empty address")
    if copy.next_point > source.next_point:
        raise RefusedError(
            f"{label} has restore point {copy.next_point - 1}, the source ends at {source.next_point - 1}",
            "copy to an empty address, or promote the copy: the source was probably rolled back",
        )
    shared = {number for number, _ in copy.lineage & source.lineage}
    for number in sorted({number for number, _ in copy.lineage}):
        if number not in shared:
            raise RefusedError(
                f"{label} has diverged: its restore point {number} is not of the source's history",
                "copy to an empty address",
            )
    checksums = dict(zip(*source.segments.columns("key", "crc"), strict=True))
    for key, crc in zip(*copy.segments.columns("key", "crc"), strict=True):
        if checksums.get(key, crc) != crc:
            raise RefusedError(
                f"{label} has diverged: the source has another segment {key}", "copy to an empty address"
            )


def begin_copy(state: State, run: str, source: State, address: str) -> State:
    """Mark the destination as a copy before its first segment is sent: a backup into a copy that was interrupted is
    refused, and knows how its segments were read after a promotion."""
    check_open(state, run)
    check_lineage(state, source)
    levels = state.isolation_levels | source.isolation_levels
    origin = state.origin or Origin(archive=address, catalog=Link(number=0, checksum=""))
    if (levels, origin) == (state.isolation_levels, state.origin):
        return state
    return replace(state, isolation_levels=levels, origin=origin)


def follow_source(copy: State, source: State, run: str, origin: Origin, keep: bool = False) -> State:
    """Return the state of a copy that has caught up with `source`; `copy` itself where it already had. With `keep`, the
    copy retains restore points and records that the source let go."""
    check_open(copy, run)
    check_lineage(copy, source)
    source = without_holes(without_dropped(source, copy), copy)
    source = with_whole_segments(source, copy)
    source = with_retained(source, copy) if keep else without_expired(source, copy)
    tables: dict[str, Any] = {name: rows.replace(rows.read()) for name, rows in source.tables().items()}
    state = replace(
        source,
        number=copy.number,
        swept=copy.swept,
        reinstated=copy.reinstated,
        open_run=copy.open_run,
        origin=origin,
        isolation_levels=copy.isolation_levels | source.isolation_levels,
        **tables | {"history": copy.history},
    )
    return copy if _say_the_same(copy, state) else state


def _say_the_same(one: State, other: State) -> bool:
    return (
        (one.origin, one.next_point) == (other.origin, other.next_point)
        and (dict(one.pins), dict(one.labels)) == (dict(other.pins), dict(other.labels))
        and one.restore_points == other.restore_points
        and dict(one.lives) == dict(other.lives)
        and dict(one.starts) == dict(other.starts)
        and set(one.segments.columns("key")[0]) == set(other.segments.columns("key")[0])
        and {lost_range(r) for r in one.losses.dicts()} == {lost_range(r) for r in other.losses.dicts()}
    )


def only_point(source: State, number: int, topics: Iterable[TopicState] = ()) -> State:
    """Return `source` as of restore point `number`, which has `topics`, without all other restore points."""
    before = {p.number for p in source.restore_points if p.number < number}
    lives = [
        life._replace(last=None if life.last is None or life.last >= number else life.last)
        for life in source.lives.values()
        if life.first is None or life.first <= number
    ]
    earlier = replace(
        source,
        next_point=number + 1,
        points=source.points.where(mask(each <= number for each in source.points.columns("number")[0])),
        incarnations=source.incarnations.replace(lives),
        segments=source.segments.where(
            mask(point <= number for point in source.segments.columns("point")[0])
        ),
        losses=source.losses.where(mask(point <= number for point in source.losses.columns("point")[0])),
        pins={point: at for point, at in source.pins.items() if point == number},
        labels={name: point for name, point in source.labels.items() if point == number},
        log_starts=log_start_rows(source, _starts_at(source, topics)),
        past=source.past.where(mask(point < number for point in source.past.columns("number")[0])),
    )
    return drop_unreferenced(lose_points(earlier, before))


def _starts_at(source: State, topics: Iterable[TopicState]) -> dict[IncarnationPartition, LogStart]:
    """Return the log starts, none beyond the end of a partition of `topics`: the next backup reads on from there."""
    starts = dict(source.starts)
    for topic in topics:
        for p in topic.partitions:
            place = (topic.name, topic.incarnation, p.partition)
            if place in starts and starts[place].start > p.end:
                starts[place] = LogStart(*place, p.end, p.records, p.bytes)
    return starts


def promote(state: State) -> State:
    """Make a copy an archive of its own: nothing is copied to it any more. What an interrupted copy has sent beyond the
    ends may be of another topic id than the next backup's, which therefore takes over nothing."""
    if state.origin is None:
        raise RefusedError("this archive is not a copy", "use it as it is: only a copy is promoted")
    levels: frozenset[IsolationLevel] = frozenset(("read_committed", "read_uncommitted"))
    return replace(
        state, origin=None, isolation_levels=state.isolation_levels if state.open_run is None else levels
    )
