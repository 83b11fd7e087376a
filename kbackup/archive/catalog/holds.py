"""Records and restore points that must stay because somebody still has to read them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kbackup.archive.catalog.state import State


@dataclass(frozen=True)
class Hold:
    """Records that somebody still has to read: `name` has read restore points up to `restore_point`.

    `positions` maps a topic to an incarnation and the next offsets to read of its partitions. Earlier incarnations are
    read, later ones are not. Topics that are not in it are not read at all, so that only restore points later than
    `restore_point` hold them."""

    name: str
    restore_point: int
    positions: Mapping[str, tuple[int, Sequence[int]]]

    def holds(self, topic: str, incarnation: int, partition: int, last: int, point: int) -> bool:
        """Return whether records up to offset `last` of a partition, which restore point `point` added, have to
        stay."""
        position = self.positions.get(topic)
        if point > self.restore_point:
            return True
        if position is None:
            return False
        reading, following = position
        if incarnation != reading:
            return incarnation > reading
        return last >= (following[partition] if partition < len(following) else 0)


def held_points(state: State, holds: Sequence[Hold]) -> dict[int, list[str]]:
    """Return the restore points that must stay, each with the names of its holds. A hold on an incarnation that has
    ended is on the last restore point that has it."""
    names = ("topic", "incarnation", "partition", "last", "point")
    last_points = state.last_points()
    names_by_point: dict[int, list[str]] = {}
    if not holds:
        return names_by_point
    for topic, incarnation, partition, last, point in zip(*state.segments.columns(*names), strict=True):
        number = last_points.get((topic, incarnation), 0)
        for hold in holds:
            if hold.name in names_by_point.get(number, ()):
                continue
            if hold.holds(topic, incarnation, partition, last, point):
                names_by_point.setdefault(number, []).append(hold.name)
    return names_by_point
