"""Operations that make a copy of an archive, bring it up to its source, and make it an archive of its own. Pure.

A copy never creates a key again that its sweep may delete. Therefore a copy takes nothing from its source that lies
below its own ends or log starts: restore points and records that expired in the copy don't come back.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kbackup.archive import layout
from kbackup.archive.catalog.documents import Link, Origin
from kbackup.archive.catalog.operations import check_open, drop_superseded
from kbackup.archive.catalog.retention import drop_unreferenced, log_start_rows, lose_points
from kbackup.archive.catalog.rewriting import segments_without_erased
from kbackup.archive.catalog.state import IncarnationRow, LogStart, LossRow, State, damage_row
from kbackup.archive.models import Loss, TopicState
from kbackup.archive.segments.table import not_in, rows_where
from kbackup.archive.segments.window import MOST
from kbackup.errors import RefusedError
from kbackup.types import Incarnation, IncarnationPartition

_PLACE = ("topic", "incarnation", "partition")

SegmentRow = dict[str, Any]
"""A row of the table of segments, by its columns."""


def check_lineage(copy: State, source: State, name: str = "the destination") -> None:
    """Raise `RefusedError` unless the source has or had every restore point and segment that `copy` has or had."""
    if copy.origin is None and copy.restore_points:
        raise RefusedError(f"{name} is an archive of its own, not a copy", "copy to an empty address")
    if copy.next_point > source.next_point:
        raise RefusedError(
            f"{name} has restore point {copy.next_point - 1}, the source ends at {source.next_point - 1}",
            "copy to an empty address, or promote the copy: the source was probably rolled back",
        )
    # A number has several manifests where a repair made its manifest anew: one that both have is enough.
    shared = {number for number, _ in copy.lineage & source.lineage}
    foreign = [number for number, _ in copy.lineage if number not in shared]
    diverged = min(foreign, default=None)
    if diverged is not None:
        raise RefusedError(
            f"{name} has diverged: its restore point {diverged} is not of the source's history",
            "copy to an empty address",
        )
    other = _first_other_segment(copy, source)
    if other is not None:
        raise RefusedError(f"{name} has diverged: the source has another segment {other}", "copy to an empty address")


def _first_other_segment(copy: State, source: State) -> str | None:
    """Return the key of a segment that has other bytes in `source` than in `copy`; None if no segment has."""
    ours = copy.segments.read(["key", "crc"])
    theirs = source.segments.read(["key", "crc"])
    if not len(ours):
        return None
    # The place of a segment that has expired at the source is null, and so is every value that is made of it: the
    # filter drops the segment.
    places = pc.index_in(ours["key"], value_set=theirs["key"])
    is_other = pc.not_equal(theirs["crc"].take(places), ours["crc"])
    keys: list[Any] = ours["key"].filter(is_other).to_pylist()
    return keys[0] if keys else None


def begin_copy(state: State, run: str, source: State, address: str) -> State:
    """Mark the destination as a copy before its first segment is sent: a backup into a copy that was interrupted is
    refused, and knows how its segments were read after a promotion."""
    check_open(state, run)
    check_lineage(state, source)
    levels = state.isolation_levels | source.isolation_levels
    # No catalog of the source has number 0: the copy has followed none yet.
    origin = state.origin or Origin(archive=address, catalog=Link(number=0, checksum=""))
    if levels == state.isolation_levels and origin == state.origin:
        return state
    return replace(state, isolation_levels=levels, origin=origin)


def follow_source(copy: State, source: State, run: str, origin: Origin, keep: bool = False) -> State:
    """Return the state of a copy that has caught up with `source`; `copy` itself if it already had. With `keep`, the
    copy retains restore points and records that have expired at the source."""
    check_open(copy, run)
    check_lineage(copy, source)
    # Nothing below the ends of a copy is sent again. So restore points below its next number that the copy lacks,
    # because they expired there or because it never had them, stay out.
    left_out: set[int] = set()
    for point in source.restore_points:
        if point.number < copy.next_point and copy.point(point.number) is None:
            left_out.add(point.number)
    source = lose_points(source, left_out)
    source = with_own_segments(source, copy, keep)
    source = without_holes(source, copy)
    source = with_whole_segments(source, copy)
    source = with_retained(source, copy) if keep else without_expired(source, copy)
    # Files of tables are the source's own. Rows that are put together anew have none, so the commit writes the copy's.
    tables: dict[str, Any] = {}
    for name, rows in source.tables().items():
        tables[name] = rows.replace(rows.read())
    # The log of operations is the copy's: it names the copy's own catalogs.
    tables["history"] = copy.history
    state = replace(
        source,
        number=copy.number,
        swept=copy.swept,
        reinstated=copy.reinstated,
        open_run=copy.open_run,
        origin=origin,
        isolation_levels=copy.isolation_levels | source.isolation_levels,
        **tables,
    )
    if _content(copy) == _content(state) and _has_same_segments(copy, state):
        return copy
    return state


def _content(state: State) -> dict[str, object]:
    """Return what a copy is compared with its source by, apart from the segments."""
    return {
        "origin": state.origin,
        "next_point": state.next_point,
        "pins": dict(state.pins),
        "labels": dict(state.labels),
        "points": state.restore_points,
        "incarnations": dict(state.lives),
        "log_starts": dict(state.starts),
        "losses": {row.identity for row in state.lost},
    }


def _has_same_segments(one: State, other: State) -> bool:
    """Return whether two states have the same segments, by columns: a value for each key would take too much memory."""
    keys = one.segments.read(["key"])["key"]
    other_keys = other.segments.read(["key"])["key"]
    return len(keys) == len(other_keys) and not not_in(other_keys, keys).any()


def with_own_segments(source: State, copy: State, keep: bool) -> State:
    """Return `source` with the copy's own segments in the place of merged ones that the copy can't take over: where a
    restore point that it retains ends inside, or its log start lies inside. `RefusedError` where it lacks some of
    them."""
    own: list[SegmentRow] = []
    left_out: set[str] = set()
    kept_offsets: defaultdict[IncarnationPartition, list[tuple[int, int]]] = defaultdict(list)
    losses: list[LossRow] = []
    known = {row.identity for row in source.lost}
    unknown = _unknown_rewritten(source, copy)
    rows = _rows_by_partition(copy, {merged["topic"] for merged in unknown})
    for merged in unknown:
        inside = _inside(rows.get(_place(merged), ()), merged["first"], merged["last"])
        if not inside or not _is_divided(source, copy, merged, inside, keep):
            continue
        _check_has_all(source, copy, merged, inside)
        own += inside
        left_out.add(merged["key"])
        kept_offsets[_place(merged)].append((merged["first"], merged["last"]))
        for row in _damage_inside(copy, _place(merged), merged["first"], merged["last"] + 1):
            if row.identity not in known:
                losses.append(row)
    if not left_out:
        return source
    for ranges in kept_offsets.values():
        ranges.sort()
    (own_rewritten,) = copy.rewritten.columns("key")
    followed = set(own_rewritten)

    def was_followed(topic: str, incarnation: int, partition: int, first: int, last: int, key: str) -> bool:
        # What the copy goes on with was not rewritten there, however often the source did so.
        if key in followed:
            return True
        kept = kept_offsets.get((topic, incarnation, partition), ())
        # The ranges rise and don't overlap: only the last one that begins at `first` or before can have both.
        at = bisect_right(kept, first, key=_low)
        return at == 0 or kept[at - 1][1] < last

    return replace(
        source,
        segments=source.segments.without("key", left_out).append(own),
        losses=source.losses_with(losses),
        rewritten=source.rewritten.where(was_followed, *_PLACE, "first", "last", "key"),
    )


def _low(offsets: tuple[int, int]) -> int:
    return offsets[0]


def _place(row: SegmentRow) -> IncarnationPartition:
    return row["topic"], row["incarnation"], row["partition"]


def _unknown_rewritten(source: State, copy: State) -> list[SegmentRow]:
    """Return the rows of rewritten segments of the source that the copy lacks."""
    if not len(source.rewritten):
        return []
    theirs = source.segments.read()
    lacking = rows_where(theirs, not_in(theirs["key"], copy.segments.read(["key"])["key"]))
    rows: list[SegmentRow] = lacking.to_pylist()
    return [row for row in rows if layout.rewrite_of(row["key"])]


def _rows_by_partition(state: State, topics: Collection[str]) -> dict[IncarnationPartition, list[SegmentRow]]:
    """Return the rows of the segments of some topics by partition, in order of their offsets."""
    rows: defaultdict[IncarnationPartition, list[SegmentRow]] = defaultdict(list)
    if not topics:
        return rows
    for row in state.segments.read(topics=topics).to_pylist():
        rows[_place(row)].append(row)
    for of_partition in rows.values():
        of_partition.sort(key=_first_offset)
    return rows


def _first_offset(row: SegmentRow) -> int:
    first: int = row["first"]
    return first


def _inside(rows: Sequence[SegmentRow], first: int, last: int) -> list[SegmentRow]:
    """Return the rows of a partition's segments that lie inside of some offsets, both inclusive, in order."""
    start = bisect_left(rows, first, key=_first_offset)
    stop = bisect_right(rows, last, key=_first_offset)
    return [row for row in rows[start:stop] if row["last"] <= last]


def _overlaps_any(rows: Sequence[SegmentRow], first: int, last: int) -> bool:
    """Return whether a partition's segments have offsets from `first` to `last`. They don't overlap one another."""
    before = bisect_right(rows, last, key=_first_offset)
    return before > 0 and rows[before - 1]["last"] >= first


def _is_divided(source: State, copy: State, merged: SegmentRow, inside: Sequence[SegmentRow], keep: bool) -> bool:
    """Return whether a restore point of the copy or its log start lies between the copy's segments inside of a merged
    one, or a restore point needs what a compacted one lacks."""
    start = copy.starts.get(_place(merged))
    if start is not None and merged["first"] < start.start <= merged["last"]:
        return True
    numbers = source.numbers
    if keep:
        numbers = np.union1d(numbers, copy.numbers)
    oldest = min(row["point"] for row in inside)
    # A compacted one lacks what restore points before that number need.
    newest = max(merged["point"], layout.compacted_of(merged["key"]))
    first, last = np.searchsorted(numbers, [oldest, newest])
    return bool(first < last)


def _check_has_all(source: State, copy: State, merged: SegmentRow, inside: Sequence[SegmentRow]) -> None:
    """Raise `RefusedError` unless the copy has all records of a merged segment, down to its own log start, and none
    that was erased."""
    place = _place(merged)
    end = merged["last"] + 1
    # A copy has all records up to its end, but for those that it lost by damage.
    known_ends = [row["last"] + 1 for row in inside]
    known_ends += [
        row.loss.end for row in _damage_inside(copy, place, merged["first"], end) if row.loss.end is not None
    ]
    has_erased = any(source.erased_in(place, row["first"], row["last"], row["key"]) is not None for row in inside)
    if max(known_ends) == end and not has_erased:
        return
    topic, _, partition = place
    raise RefusedError(
        f"the source has merged segments of {topic}-{partition} from offset {merged['first']} to {end - 1}, and the "
        "copy retains a part of these records for restore points or records that have expired at one side",
        "copy without --keep, or to an empty address",
    )


def _damage_inside(copy: State, place: IncarnationPartition, start: int, end: int) -> list[LossRow]:
    """Return the copy's losses by damage inside of some offsets of a partition."""
    rows: list[LossRow] = []
    for row in copy.damage:
        loss = row.loss
        if row.partition_key != place or loss.start is None or loss.end is None:
            continue
        if start <= loss.start and loss.end <= end:
            rows.append(row)
    return rows


def without_holes(source: State, copy: State) -> State:
    """Return `source` without the segments that the copy has lost by damage, and with the copy's losses of them. A
    segment that the source has merged since with others comes whole."""
    known = {row.identity for row in source.lost}
    new = [row for row in copy.damage if row.identity not in known]
    damaged = {row.segment_key: row.loss.end for row in new}
    # Only segments that the source still has would be sent again. Of the others there is nothing to leave out.
    present: set[tuple[object, ...]] = set()
    for *segment_key, last in source.segments.rows(*_PLACE, "first", "last"):
        key = tuple(segment_key)
        if key in damaged and damaged[key] in (None, last + 1):
            present.add(key)
    if not present:
        return source
    new_losses = [row for row in new if row.segment_key in present]

    def is_whole(*segment_key: object) -> bool:
        return segment_key not in present

    return replace(
        source, segments=source.segments.where(is_whole, *_PLACE, "first"), losses=source.losses_with(new_losses)
    )


def with_whole_segments(source: State, copy: State) -> State:
    """Return `source` with the segments that it has lost by damage and the copy still has. The source may have lost
    them as one, which it had merged: then the copy may have some of them."""
    if not source.damage:
        return source
    topics = {row.loss.topic for row in source.damage}
    ours = _rows_by_partition(copy, topics)
    theirs = _rows_by_partition(source, topics)
    healed: list[SegmentRow] = []
    remaining: list[LossRow] = []
    for row in source.lost:
        whole: list[SegmentRow] = []
        if row.loss.kind == "damaged" and row.loss.partition is not None:
            place = (row.loss.topic, row.incarnation, row.loss.partition)
            whole = _whole_inside(row.loss, ours.get(place, ()), theirs.get(place, ()))
        healed += whole
        remaining += _losses_beside(row, whole, copy) if whole else [row]
    if not healed:
        return source
    return replace(
        source,
        segments=source.segments.append(healed),
        losses=source.losses.replace([row.columns() for row in remaining]),
    )


def _whole_inside(loss: Loss, ours: Sequence[SegmentRow], theirs: Sequence[SegmentRow]) -> list[SegmentRow]:
    """Return the rows of the copy's segments of a partition that the source lost by a damage, in order; none where the
    source has a segment at their place again."""
    if loss.start is None:
        return []
    if loss.end is None:
        # How far the lost segment went is not known: the copy's own begins at the same offset.
        inside = [row for row in _inside(ours, loss.start, MOST) if row["first"] == loss.start]
    else:
        inside = _inside(ours, loss.start, loss.end - 1)
    return [row for row in inside if not _overlaps_any(theirs, row["first"], row["last"])]


def _losses_beside(row: LossRow, whole: Sequence[SegmentRow], copy: State) -> list[LossRow]:
    """Return what remains of a loss of which the copy has `whole` segments, in order."""
    loss = row.loss
    if loss.start is None or loss.end is None:
        return []
    place = (loss.topic, row.incarnation, loss.partition)
    remaining: list[LossRow] = []
    for start, end in ((loss.start, whole[0]["first"]), (whole[-1]["last"] + 1, loss.end)):
        if start < end:
            part = msgspec.structs.replace(loss, start=start, end=end)
            remaining.append(replace(row, loss=part))
    between = [each for each in copy.damage if each.partition_key == place and each.loss.start is not None]
    for each in between:
        assert each.loss.start is not None  # noqa: S101 (just looked)
        if whole[0]["first"] < each.loss.start < whole[-1]["last"]:
            remaining.append(each)
    return remaining


def without_expired(source: State, copy: State) -> State:
    """Return `source` without the records that expired in the copy and that the source still has: nothing below the
    log starts of a copy is sent again."""
    last = source.last_points()
    higher: dict[IncarnationPartition, LogStart] = {}
    for key, start in copy.starts.items():
        # Where nothing has expired, a log starts at 0.
        source_start = source.starts[key].start if key in source.starts else 0
        if key[:2] in last and start.start > source_start:
            higher[key] = start
    if not higher:
        return source

    def is_kept(topic: str, incarnation: int, partition: int, last_offset: int) -> bool:
        start = higher.get((topic, incarnation, partition))
        return start is None or last_offset >= start.start

    return replace(
        source,
        segments=source.segments.where(is_kept, *_PLACE, "last"),
        log_starts=log_start_rows(source, {**source.starts, **higher}),
    )


def with_retained(source: State, copy: State) -> State:
    """Return `source` with the restore points and the records that have expired there and that the copy has."""
    copied = without_expired(source, copy)
    points = [point for point in copy.restore_points if source.point(point.number) is None]
    numbers = {point.number for point in points}

    holes = _expired_unseen(source, copy)
    known = {row.identity for row in copied.lost}
    known.update(row.identity for row in holes)
    losses = [row for row in copy.lost if row.identity not in known]

    # What the source has erased or merged comes from there, written anew.
    remaining = segments_without_erased(copy, source)
    ours = remaining.without("key", source.replaced_objects).read()
    theirs = copied.segments.read()
    others = rows_where(theirs, not_in(theirs["key"], ours["key"]))
    segments = pa.concat_tables([others, ours])

    lives = _joined_lives(source, copy)
    log_starts = _retained_starts(copied, copy)
    # Where both name a restore point, the source decides: its names come last.
    pins = {number: at for number, at in copy.pins.items() if number in numbers}
    pins.update(source.pins)
    labels = {name: number for name, number in copy.labels.items() if number in numbers}
    labels.update(source.labels)
    state = replace(
        copied,
        points=copied.points.append(points),
        past=copied.past.without("number", numbers),
        segments=copied.segments.replace(segments),
        losses=copied.losses_with(holes + losses),
        incarnations=source.incarnations.replace(list(lives.values())),
        log_starts=log_start_rows(copied, log_starts),
        erased=copied.erased.with_rows_of(copy.erased),
        rewritten=copied.rewritten.with_rows_of(copy.rewritten),
        pins=pins,
        labels=labels,
    )

    # Only now is it known which incarnations have a restore point: the copy's points count as well as the source's.
    last = state.last_points()
    rows: list[IncarnationRow] = []
    for key, life in sorted(lives.items()):
        # One that no restore point ever had is reserved by a run, not retired.
        is_retired = life.first is not None and key not in last
        rows.append(life._replace(retired=is_retired))
    return replace(state, incarnations=state.incarnations.replace(drop_superseded(rows)))


def _retained_starts(copied: State, copy: State) -> dict[IncarnationPartition, LogStart]:
    """Return the log starts of a copy that retains what has expired at its source. Of an incarnation that a restore
    point of the copy has, they are the copy's own."""
    had = copy.last_points()
    starts: dict[IncarnationPartition, LogStart] = {}
    for place, start in copied.starts.items():
        if place in copy.starts or place[:2] not in had:
            starts[place] = start
    for place, start in copy.starts.items():
        if place[:2] in had:
            starts[place] = start
    return starts


def _joined_lives(source: State, copy: State) -> dict[Incarnation, IncarnationRow]:
    """Return the incarnations of both, each from the earliest restore point that one of them has."""
    lives = dict(source.lives)
    for key, ours in copy.lives.items():
        theirs = lives.get(key)
        if theirs is not None:
            firsts = [life.first for life in (ours, theirs) if life.first is not None]
            lives[key] = theirs._replace(first=min(firsts, default=None))
        elif ours.first is not None and ours.last is None:
            # The source dropped the incarnation, so it ended after the newest restore point of the copy.
            lives[key] = ours._replace(last=copy.next_point - 1)
        else:
            lives[key] = ours
    return lives


def _expired_unseen(source: State, copy: State) -> list[LossRow]:
    """Return losses for the records that expired at the source before they were copied, beyond records that the copy
    keeps."""
    # The next restore point that is copied is the first that shows such a hole.
    not_copied = [point.number for point in source.restore_points if point.number >= copy.next_point]
    if not not_copied:
        return []
    first_shown = min(not_copied)
    ends: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for topic, incarnation, partition, last in copy.segments.rows(*_PLACE, "last"):
        ends[topic, incarnation, partition].append(last + 1)
    # Damage is known already: what it covers is no hole.
    for row in copy.damage:
        if row.loss.end is not None:
            ends[row.partition_key].append(row.loss.end)
    holes: list[LossRow] = []
    for place, log_start in sorted(source.starts.items()):
        # A log start is the end of a segment. If the copy has that segment, or its loss, there is no hole. Nor is there
        # one if the copy has nothing below the log start: then its records begin there.
        ends_before = [end for end in ends[place] if end <= log_start.start]
        end = max(ends_before, default=log_start.start)
        if end != log_start.start:
            why = "they expired at the source before they were copied"
            holes.append(damage_row(first_shown, place, end, log_start.start, why))
    return holes


def only_point(source: State, number: int, topics: Iterable[TopicState] = ()) -> State:
    """Return `source` as of restore point `number`, which has `topics`, without all other restore points."""
    lives: list[IncarnationRow] = []
    for life in source.lives.values():
        if life.first is None or life.first <= number:
            # One that ended at this restore point or later is alive in it.
            is_alive = life.last is None or life.last >= number
            of_then = life._replace(last=None) if is_alive else life
            lives.append(of_then)

    starts = dict(source.starts)
    for topic in topics:
        for partition in topic.partitions:
            place = (topic.name, topic.incarnation, partition.partition)
            # Records beyond the restore point may have expired at the source. The next backup into the copy reads on
            # from the end of the partition, so its records begin there at the latest.
            if place in starts and starts[place].start > partition.end:
                starts[place] = LogStart(*place, partition.end, partition.records, partition.bytes)

    def is_of_that_time(point: int) -> bool:
        return point <= number

    def expired_before(point: int) -> bool:
        return point < number

    pins = {point: at for point, at in source.pins.items() if point == number}
    labels = {name: point for name, point in source.labels.items() if point == number}
    as_of_then = replace(
        source,
        next_point=number + 1,
        points=source.points.where(is_of_that_time, "number"),
        incarnations=source.incarnations.replace(lives),
        segments=source.segments.where(is_of_that_time, "point"),
        losses=source.losses.where(is_of_that_time, "point"),
        pins=pins,
        labels=labels,
        log_starts=log_start_rows(source, starts),
        past=source.past.where(expired_before, "number"),
    )
    earlier_points = {point.number for point in source.restore_points if point.number < number}
    return drop_unreferenced(lose_points(as_of_then, earlier_points))


def promote(state: State) -> State:
    """Make a copy an archive of its own: nothing is copied to it any more. What an interrupted copy has sent beyond the
    ends may be of another topic id than the next backup's, which therefore takes over nothing."""
    if state.origin is None:
        raise RefusedError("this archive is not a copy", "use it as it is: only a copy is promoted")
    rewrites_before = state.rewrites_before
    if len(state.erased) or len(state.rewritten):
        # The numbers of the source's rewrites are in the names of segments, and tell which lack what was erased. None
        # of them is greater than that of the catalog that was copied. The numbers of this archive have begun anew.
        rewrites_before += state.origin.catalog.number
    levels = state.isolation_levels
    if state.open_run is not None:
        # With both levels nothing is salvaged (`operations.may_salvage`).
        levels = frozenset(("read_committed", "read_uncommitted"))
    return replace(state, origin=None, isolation_levels=levels, rewrites_before=rewrites_before)
