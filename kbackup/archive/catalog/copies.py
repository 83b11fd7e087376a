"""Operations that make a copy of an archive, bring it up to its source, and make it an archive of its own. Pure.

A copy never creates a key again that its sweep may delete. Therefore a copy takes nothing from its source that lies
below its own ends or log starts: restore points and records that a copy let go stay away.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kbackup.archive.catalog.documents import IsolationLevel, Link, Origin
from kbackup.archive.catalog.operations import check_open, drop_superseded
from kbackup.archive.catalog.retention import drop_unreferenced, lose_points
from kbackup.archive.catalog.state import IncarnationRow, LogStart, LossRow, State, damage_row
from kbackup.archive.catalog.tables import Rows
from kbackup.archive.models import TopicState
from kbackup.archive.segments.table import not_in, rows_where
from kbackup.errors import RefusedError
from kbackup.types import Incarnation, IncarnationPartition

_PLACE = ("topic", "incarnation", "partition")


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
    diverged = min({number for number, _ in copy.lineage} - shared, default=None)
    if diverged is not None:
        raise RefusedError(
            f"{label} has diverged: its restore point {diverged} is not of the source's history",
            "copy to an empty address",
        )
    ours, theirs = (state.segments.read(["key", "crc"]) for state in (copy, source))
    if len(ours):
        known = pc.index_in(ours["key"], value_set=theirs["key"])
        for key in ours["key"].filter(pc.not_equal(theirs["crc"].take(known), ours["crc"])).to_pylist():
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
    """Return the state of a copy that has caught up with `source`; `copy` itself if it already had. With `keep`, the
    copy retains restore points and records that the source let go."""
    check_open(copy, run)
    check_lineage(copy, source)
    # nothing below the ends of a copy is sent again: what it let go, or never had, below its next number stays away
    gone = {p.number for p in source.restore_points if p.number < copy.next_point and not copy.point(p.number)}
    source = lose_points(source, gone)
    source = without_holes(source, copy)
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
    keys, ours = (each.segments.read(["key"])["key"] for each in (state, copy))
    same = _content(copy) == _content(state) and len(keys) == len(ours) and not not_in(keys, ours).any()
    return copy if same else state


def _content(state: State) -> tuple[object, ...]:
    return (
        *(state.origin, state.next_point, dict(state.pins), dict(state.labels), state.restore_points),
        *(dict(state.lives), dict(state.starts)),
        {row.identity for row in state.lost},
    )


def without_holes(source: State, copy: State) -> State:
    """Return `source` without the segments that the copy has lost by damage, and with the copy's losses of them."""
    known = {row.identity for row in source.lost}
    new = [row for row in copy.damage if row.identity not in known]
    present = {row.segment_key for row in new}.intersection(source.segments.rows(*_PLACE, "first"))
    if not present:
        return source
    return replace(
        source,
        segments=source.segments.where(lambda *start: start not in present, *_PLACE, "first"),
        losses=source.losses_with(row for row in new if row.segment_key in present),
    )


def with_whole_segments(source: State, copy: State) -> State:
    """Return `source` with the segments that it has lost by damage and the copy still has."""
    lost = {row.segment_key for row in source.damage}
    if not lost:
        return source
    known = {row[4] for row in source.segments.rows(*_PLACE, "first", "key") if row[:4] in lost}
    whole = copy.segments.where(lambda *row: row[:4] in lost and row[4] not in known, *_PLACE, "first", "key")
    healed = set(whole.rows(*_PLACE, "first"))
    return replace(
        source,
        segments=source.segments.append(whole.read()),
        losses=source.losses.where(lambda *row: row[4] != "damaged" or row[:4] not in healed, *_PLACE, "start", "kind"),
    )


def without_expired(source: State, copy: State) -> State:
    """Return `source` without the records that the copy let go and the source still has: nothing below the log starts
    of a copy is sent again."""
    last = source.last_points()
    higher = {
        key: start
        for key, start in copy.starts.items()
        if key[:2] in last and start.start > (source.starts[key].start if key in source.starts else 0)
    }
    if not higher:
        return source
    return replace(
        source,
        segments=source.segments.where(
            lambda *row: row[:3] not in higher or row[3] >= higher[row[:3]].start, *_PLACE, "last"
        ),
        log_starts=_log_start_rows(source, {**source.starts, **higher}),
    )


def _log_start_rows(state: State, starts: Mapping[IncarnationPartition, LogStart]) -> Rows:
    return state.log_starts.replace([start for _, start in sorted(starts.items())])


def with_retained(source: State, copy: State) -> State:
    """Return `source` with the restore points and the records that it let go and the copy has."""
    copied = without_expired(source, copy)
    kept = [point for point in copy.restore_points if source.point(point.number) is None]
    numbers = {point.number for point in kept}
    holes = _expired_unseen(source, copy)
    known = {row.identity for row in [*copied.lost, *holes]}
    new_losses = [row for row in copy.lost if row.identity not in known]
    ours, theirs = copy.segments.read(), copied.segments.read()
    others = rows_where(theirs, not_in(theirs["key"], ours["key"]))
    lives = _joined_lives(source, copy)
    pins = {number: at for number, at in copy.pins.items() if number in numbers}
    labels = {name: number for name, number in copy.labels.items() if number in numbers}
    state = replace(
        copied,
        points=copied.points.append(kept),
        past=copied.past.without("number", numbers),
        segments=copied.segments.replace(pa.concat_tables([others, ours])),
        losses=copied.losses_with([*holes, *new_losses]),
        incarnations=source.incarnations.replace(list(lives.values())),
        log_starts=_log_start_rows(copied, _retained_starts(copied, copy)),
        # the source decides where both name a restore point
        pins=pins | dict(source.pins),
        labels=labels | dict(source.labels),
    )
    last = state.last_points()
    retired = [life._replace(retired=life.first is not None and key not in last) for key, life in sorted(lives.items())]
    return replace(state, incarnations=state.incarnations.replace(drop_superseded(retired)))


def _retained_starts(copied: State, copy: State) -> dict[IncarnationPartition, LogStart]:
    """Return the log starts of a copy that retains what its source let go: of what it had, its own."""
    had = copy.last_points()
    starts = {place: start for place, start in copied.starts.items() if place in copy.starts or place[:2] not in had}
    return starts | {place: start for place, start in copy.starts.items() if place[:2] in had}


def _joined_lives(source: State, copy: State) -> dict[Incarnation, IncarnationRow]:
    """Return the incarnations of both, each from the earliest restore point that one of them has."""
    lives = dict(source.lives)
    for key, life in copy.lives.items():
        if key in lives:
            firsts = [each.first for each in (life, lives[key]) if each.first is not None]
            lives[key] = lives[key]._replace(first=min(firsts, default=None))
        else:  # what only the copy has ended after its newest restore point
            goes_on = life.first is not None and life.last is None
            lives[key] = life._replace(last=copy.next_point - 1) if goes_on else life
    return lives


def _expired_unseen(source: State, copy: State) -> list[LossRow]:
    """Return losses for the records that expired at the source before they were copied, beyond records that the copy
    keeps. A log start is the last offset of a segment plus 1."""
    ends: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for *place, last in copy.segments.rows(*_PLACE, "last"):
        ends[tuple(place)].append(last + 1)
    for row in copy.damage:
        if row.loss.end is not None:
            ends[row.partition_key].append(row.loss.end)
    point = min((p.number for p in source.restore_points if p.number >= copy.next_point), default=None)
    holes: list[LossRow] = []
    for key, start in sorted(source.starts.items()):
        end = max((end for end in ends[key] if end <= start.start), default=None)
        if point is not None and end is not None and end != start.start:
            why = "they expired at the source before they were copied"
            holes.append(damage_row(point, key, end, start.start, why))
    return holes


def only_point(source: State, number: int, topics: Iterable[TopicState] = ()) -> State:
    """Return `source` as of restore point `number`, which has `topics`, without all other restore points."""
    before = {p.number for p in source.restore_points if p.number < number}
    lives = [
        life._replace(last=None if life.last is None or life.last >= number else life.last)
        for life in source.lives.values()
        if life.first is None or life.first <= number
    ]
    starts = dict(source.starts)
    for topic in topics:
        for p in topic.partitions:
            place = (topic.name, topic.incarnation, p.partition)
            if place in starts and starts[place].start > p.end:  # the next backup reads on from the end
                starts[place] = LogStart(*place, p.end, p.records, p.bytes)
    earlier = replace(
        source,
        next_point=number + 1,
        points=source.points.where(lambda each: each <= number, "number"),
        incarnations=source.incarnations.replace(lives),
        segments=source.segments.where(lambda point: point <= number, "point"),
        losses=source.losses.where(lambda point: point <= number, "point"),
        pins={point: at for point, at in source.pins.items() if point == number},
        labels={name: point for name, point in source.labels.items() if point == number},
        log_starts=_log_start_rows(source, starts),
        past=source.past.where(lambda point: point < number, "number"),
    )
    return drop_unreferenced(lose_points(earlier, before))


def promote(state: State) -> State:
    """Make a copy an archive of its own: nothing is copied to it any more. What an interrupted copy has sent beyond the
    ends may be of another topic id than the next backup's, which therefore takes over nothing."""
    if state.origin is None:
        raise RefusedError("this archive is not a copy", "use it as it is: only a copy is promoted")
    levels: frozenset[IsolationLevel] = frozenset(("read_committed", "read_uncommitted"))
    return replace(state, origin=None, isolation_levels=state.isolation_levels if state.open_run is None else levels)
