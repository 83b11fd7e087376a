"""The state of a copy's source without what does not come to the copy. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kbackup.archive.catalog.recovery import lose_points
from kbackup.archive.catalog.state import LogStart, State, mask
from kbackup.archive.catalog.tables import Rows
from kbackup.types import IncarnationPartition


def without_dropped(source: State, copy: State) -> State:
    """Return `source` without the restore points that the copy let go or never had, below its next number: nothing
    below the ends of a copy is sent again."""
    gone = {
        p.number for p in source.restore_points if p.number < copy.next_point and not copy.point(p.number)
    }
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
            mask(
                row["kind"] != "damaged" or lost_range(row)[:4] not in healed for row in source.losses.dicts()
            )
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
