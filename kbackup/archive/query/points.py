"""The restore points of an archive, summed up from the catalog."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from kbackup.archive.catalog.state import Point, State
from kbackup.archive.reader import Archive


@dataclass(frozen=True, slots=True)
class PointOverview:
    """A restore point. Counts and sizes are what it added, `losses` and `warnings` are counts; `damaged` counts the
    segments that it has lost since. `origin` is what it was made from."""

    number: int
    origin: str
    started_at: str
    committed_at: str
    topics: int
    partitions: int
    segments: int
    records: int
    bytes: int
    stored_bytes: int
    groups: int
    losses: int
    warnings: int
    damaged: int = 0
    pinned: bool = False
    labels: tuple[str, ...] = ()


def list_points(archive: Archive) -> list[PointOverview]:
    """Every restore point, oldest first."""
    damage = damaged_segments(archive.state)
    return [
        point_overview(point, archive.state, damage.get(point.number, 0)) for point in archive.restore_points
    ]


def damaged_segments(state: State) -> dict[int, int]:
    """Count, by restore point, its segments that were found lost or damaged; restore points without any are left
    out."""
    numbers: list[int] = state.numbers.tolist()
    last = state.last_points()
    counts: dict[int, int] = {}
    for row in state.losses.dicts():
        if row["kind"] == "damaged":
            end = last.get((row["topic"], row["incarnation"]), 0)
            for number in numbers[bisect_left(numbers, row["point"]) : bisect_left(numbers, end + 1)]:
                counts[number] = counts.get(number, 0) + 1
    return counts


def point_overview(point: Point, state: State, damaged: int = 0) -> PointOverview:
    columns = {name: value for name, value in point._asdict().items() if name in PointOverview.__slots__}
    return PointOverview(
        **columns,
        damaged=damaged,
        pinned=point.number in state.pins,
        labels=tuple(sorted(name for name, number in state.labels.items() if number == point.number)),
    )
