"""The state that a copy gets of its source, and the merge of what an independent copy added since. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from kbackup.archive.catalog.documents import IsolationLevel, Link, Origin
from kbackup.archive.catalog.operations import check_open, drop_superseded
from kbackup.archive.catalog.retention import drop_unreferenced, lose_points, rebuild
from kbackup.archive.catalog.state import Life, LogStart, LostRange, State, mask
from kbackup.archive.catalog.tables import Rows
from kbackup.archive.models import TopicState
from kbackup.errors import RefusedError
from kbackup.types import IncarnationPartition


def without_dropped(source: State, copy: State) -> State:
    """Return `source` without the restore points that the copy let go or never had, below its next number: nothing
    below the ends of a copy is sent again."""
    gone = {p.number for p in source.restore_points if p.number < copy.next_point and not copy.point(p.number)}
    return lose_points(source, gone)


def without_holes(source: State, copy: State) -> State:
    """Return `source` without the segments that the copy has lost by damage, and with the copy's losses of them."""
    known = {lost_range(row) for row in source.losses.dicts()}
    new = [row for row in copy.losses.dicts() if row["kind"] == "damaged" and lost_range(row) not in known]
    holes = {lost_range(row)[:4] for row in new}
    starts = list(zip(*source.segments.columns("topic", "incarnation", "partition", "first"), strict=True))
    present = holes & set(starts)
    if not present:
        return source
    return replace(
        source,
        segments=source.segments.where(mask(start not in present for start in starts)),
        losses=source.losses.append([row for row in new if lost_range(row)[:4] in present]),
    )


def lost_range(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the partition, offsets and kind of a loss, to compare losses by."""
    return row["topic"], row["incarnation"], row["partition"], row["start"], row["end"], row["kind"]


def with_whole_segments(source: State, copy: State) -> State:
    """Return `source` with the segments that it has lost by damage and the copy still has."""
    lost = {lost_range(row)[:4] for row in source.losses.dicts() if row["kind"] == "damaged"}
    if not lost:
        return source
    known = set(source.segments.columns("key")[0])
    names = ("topic", "incarnation", "partition", "first")
    rows = [r for r in copy.segments.dicts() if tuple(r[n] for n in names) in lost and r["key"] not in known]
    healed = {tuple(row[name] for name in names) for row in rows}
    return replace(
        source,
        segments=source.segments.append(rows),
        losses=source.losses.where(
            mask(row["kind"] != "damaged" or lost_range(row)[:4] not in healed for row in source.losses.dicts())
        ),
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
    columns = source.segments.columns("topic", "incarnation", "partition", "last")
    return replace(
        source,
        segments=source.segments.where(
            mask(
                key not in higher or end >= higher[key].start
                for *ids, end in zip(*columns, strict=True)
                for key in [(ids[0], ids[1], ids[2])]
            )
        ),
        log_starts=log_start_rows(source, {**source.starts, **higher}),
    )


def log_start_rows(state: State, starts: Mapping[IncarnationPartition, LogStart]) -> Rows:
    return state.log_starts.replace([start for _, start in sorted(starts.items())])


# Merge the state of a copy's source with what the copy keeps and the source let go. Pure.


def with_retained(source: State, copy: State) -> State:
    """Return `source` with the restore points and the records that it let go and the copy has."""
    copied = without_expired(source, copy)
    kept = [point for point in copy.restore_points if source.point(point.number) is None]
    numbers = {point.number for point in kept}
    had = copy.last_points()
    starts = {place: start for place, start in copied.starts.items() if place in copy.starts or place[:2] not in had}
    starts |= {place: start for place, start in copy.starts.items() if place[:2] in had}
    holes = _expired_unseen(source, copy)
    known = {lost_range(row) for row in [*copied.losses.dicts(), *holes]}
    ours = set(copy.segments.columns("key")[0])
    state = rebuild(
        replace(copied, log_starts=log_start_rows(copied, starts), segments=copied.segments.without("key", ours)),
        kept,
        (),
        copy.segments.read(),
        [*holes, *(row for row in copy.losses.dicts() if lost_range(row) not in known)],
    )
    keys = sorted({*copy.lives, *source.lives})
    lives = [_merged(copy.lives.get(key), source.lives.get(key), copy) for key in keys]
    last = _with_lives(state, lives).last_points()
    retired = [
        life._replace(retired=life.first is not None and key not in last) for key, life in zip(keys, lives, strict=True)
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


# Operations that make a copy of an archive, bring it up to its source, and make it an archive of its own. Pure.
#
# A copy never creates a key again that its sweep may delete. Therefore a copy takes nothing from its source that lies
# below its own ends or log starts: restore points and records that a copy let go stay away.


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
    """Return the state of a copy that has caught up with `source`; `copy` itself if it already had. With `keep`, the
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
        segments=source.segments.where(mask(point <= number for point in source.segments.columns("point")[0])),
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
    return replace(state, origin=None, isolation_levels=state.isolation_levels if state.open_run is None else levels)
