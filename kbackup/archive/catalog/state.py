"""The state of an archive as a value: restore points, segments, and the runs that hold them. Pure: no store, no clock.

Operations (`operations`, `retention`, `copies`) make one state from another; `commit` writes a state.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec.structs import asdict

from kbackup.archive.catalog.documents import IsolationLevel, OpenRun, Origin
from kbackup.archive.catalog.tables import SEGMENTS, Rows
from kbackup.archive.models import Loss, LossKind
from kbackup.archive.segments.table import integers, schema_of
from kbackup.types import Incarnation, IncarnationPartition, Int64Array


class PointRow(NamedTuple):
    """One row per restore point. `segments`, `records` and bytes count what it added; `losses` and `warnings` are
    counts. `manifest` is the checksum of its manifest; `documents` are the keys of the documents that it needs, that
    one first.
    """

    number: int
    run: str
    origin: str
    started_at: str
    committed_at: str
    cluster_id: str
    isolation_level: str
    topics: int
    partitions: int
    segments: int
    records: int
    bytes: int
    stored_bytes: int
    groups: int
    losses: int
    warnings: int
    manifest: str
    documents: tuple[str, ...]


class IncarnationRow(NamedTuple):
    """One row per incarnation. `first` and `last` are restore points that have it: `first` is null if a run reserved
    the number and no restore point has it yet, `last` is null while it lives. `retired`: no restore point is left, and
    the row keeps the number from being given again."""

    topic: str
    incarnation: int
    topic_id: str
    first: int | None
    last: int | None
    retired: bool


class LogStart(NamedTuple):
    """One row per partition whose oldest records expired: `records` of them, in `bytes` of plain records files."""

    topic: str
    incarnation: int
    partition: int
    start: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class LossRow:
    """One row per loss: what restore point `point` and all later restore points with the incarnation lack.

    A manifest names the topic of a loss alone. The row adds the incarnation: a topic that was made anew has lost
    nothing of what the former one lacks."""

    point: int
    incarnation: int
    loss: Loss

    @property
    def incarnation_key(self) -> Incarnation:
        return self.loss.topic, self.incarnation

    @property
    def partition_key(self) -> tuple[str, int, int | None]:
        """The partition that the records are missing in; none for the loss of a whole topic."""
        return self.loss.topic, self.incarnation, self.loss.partition

    @property
    def segment_key(self) -> tuple[str, int, int | None, int | None]:
        """The position of the segment that a loss by damage took: its partition and its first offset."""
        return *self.partition_key, self.loss.start

    @property
    def identity(self) -> tuple[object, ...]:
        """Partition, offsets and kind, to compare losses by: a copy finds the same damage at another restore point."""
        return *self.segment_key, self.loss.end, self.loss.kind

    @classmethod
    def of(
        cls,
        point: int,
        topic: str,
        incarnation: int,
        partition: int | None,
        kind: LossKind,
        start: int | None,
        end: int | None,
        message: str,
    ) -> LossRow:
        """Return the row that has these columns of `LOSSES`, in their order."""
        loss = Loss(kind=kind, topic=topic, partition=partition, start=start, end=end, message=message)
        return cls(point, incarnation, loss)

    def columns(self) -> dict[str, object]:
        """Return the row by the columns of `LOSSES`."""
        return {"point": self.point, "incarnation": self.incarnation, **asdict(self.loss)}


def damage_row(point: int, place: IncarnationPartition, start: int, end: int, why: str) -> LossRow:
    """Return the loss of offsets from `start` to `end` (exclusive) of a partition, which are missing or damaged."""
    topic, incarnation, partition = place
    message = f"offsets {start} to {end - 1} of {topic}-{partition}: {why}"
    loss = Loss(kind="damaged", topic=topic, partition=partition, start=start, end=end, message=message)
    return LossRow(point, incarnation, loss)


_LOSS_COLUMNS: list[pa.Field[Any]] = [
    pa.field("point", pa.int64(), nullable=False),
    pa.field("topic", pa.string(), nullable=False),
    pa.field("incarnation", pa.int32(), nullable=False),
    pa.field("partition", pa.int32()),
    pa.field("kind", pa.string(), nullable=False),
    pa.field("start", pa.int64()),
    pa.field("end", pa.int64()),
    pa.field("message", pa.string(), nullable=False),
]
LOSSES = pa.schema(_LOSS_COLUMNS)
"""The columns of the table of losses: a `LossRow`, with its loss spread over the columns."""


class ExpiredPoint(NamedTuple):
    """One row per expired restore point."""

    number: int
    manifest: str


class HistoryRow(NamedTuple):
    """One row per catalog: the kind of operation that made it, its run, host and process, time, and a sentence."""

    catalog: int
    kind: str
    run: str
    by: str
    at: str
    summary: str


SCHEMAS = {
    "points": schema_of(PointRow),
    "incarnations": schema_of(IncarnationRow),
    "segments": SEGMENTS,
    "losses": LOSSES,
    "past": schema_of(ExpiredPoint),
    "log_starts": schema_of(LogStart),
    "history": schema_of(HistoryRow),
}
"""The tables of a catalog. `history` is of catalogs that were swept."""


@dataclass(frozen=True, eq=False)
class State:
    """Catalog `number` of archive `archive_id`, as documented at `documents.Catalog`.

    `pins` maps a restore point to the time of its pin, `labels` a name to its restore point.
    """

    archive_id: str
    number: int = 0
    next_point: int = 1
    swept: int = 0
    reinstated: int = 0
    isolation_levels: frozenset[IsolationLevel] = frozenset()
    open_run: OpenRun | None = None
    origin: Origin | None = None
    pins: Mapping[int, str] = field(default_factory=dict)
    labels: Mapping[str, int] = field(default_factory=dict)
    points: Rows = field(default_factory=lambda: Rows(SCHEMAS["points"]))
    incarnations: Rows = field(default_factory=lambda: Rows(SCHEMAS["incarnations"]))
    segments: Rows = field(default_factory=lambda: Rows(SCHEMAS["segments"]))
    losses: Rows = field(default_factory=lambda: Rows(SCHEMAS["losses"]))
    past: Rows = field(default_factory=lambda: Rows(SCHEMAS["past"]))
    log_starts: Rows = field(default_factory=lambda: Rows(SCHEMAS["log_starts"]))
    history: Rows = field(default_factory=lambda: Rows(SCHEMAS["history"]))

    def tables(self) -> dict[str, Rows]:
        """Return the tables by name."""
        return {name: getattr(self, name) for name in SCHEMAS}

    @cached_property
    def restore_points(self) -> tuple[PointRow, ...]:
        """Every restore point, in order of its number."""
        return tuple(sorted(_points(self.points.read())))

    @cached_property
    def numbers(self) -> Int64Array:
        """int64[points]: the numbers of all restore points, rising."""
        return np.sort(integers(self.points.read(["number"]), "number"))

    @cached_property
    def lives(self) -> Mapping[Incarnation, IncarnationRow]:
        return {(row[0], row[1]): IncarnationRow(*row) for row in self.incarnations.rows(*IncarnationRow._fields)}

    @cached_property
    def highest(self) -> Mapping[str, int]:
        """Return, by topic, the highest incarnation number that was ever given."""
        return highest_incarnations(self.lives)

    @cached_property
    def starts(self) -> Mapping[IncarnationPartition, LogStart]:
        return {row[:3]: LogStart(*row) for row in self.log_starts.rows(*LogStart._fields)}

    @cached_property
    def lost(self) -> tuple[LossRow, ...]:
        """Every loss."""
        return tuple(LossRow.of(*columns) for columns in self.losses.rows(*LOSSES.names))

    @property
    def damage(self) -> list[LossRow]:
        """The losses by damage, which each have a partition."""
        return [row for row in self.lost if row.loss.kind == "damaged"]

    def losses_with(self, rows: Iterable[LossRow]) -> Rows:
        """Return the table of losses with more `rows`."""
        return self.losses.append([row.columns() for row in rows])

    @cached_property
    def past_manifests(self) -> Mapping[int, str]:
        """Return, by number, the manifest's checksum of every restore point that was let go."""
        return dict(self.past.rows("number", "manifest"))

    @cached_property
    def lineage(self) -> frozenset[tuple[int, str]]:
        """Number and checksum of every manifest that is or was of a restore point. A number has several where a repair
        made its manifest anew."""
        points = ((point.number, point.manifest) for point in self.restore_points)
        return frozenset([*self.past.rows("number", "manifest"), *points])

    @property
    def expired(self) -> int:
        """The number of restore points that were let go."""
        return len(self.past_manifests.keys() - set(self.numbers.tolist()))

    @cached_property
    def newest(self) -> PointRow | None:
        """The newest restore point. No other row becomes a Python value: a commit asks for it."""
        return self._numbered(int(self.numbers[-1])) if len(self.points) else None

    @property
    def oldest(self) -> PointRow | None:
        return self._numbered(int(self.numbers[0])) if len(self.points) else None

    def _numbered(self, number: int) -> PointRow:
        """One row, which exists."""
        table = self.points.read()
        at = np.flatnonzero(integers(table, "number") == number)
        return next(_points(table.slice(int(at[0]), 1)))

    def point(self, number: int) -> PointRow | None:
        at = bisect_left(self.restore_points, (number,))
        found = self.restore_points[at] if at < len(self.restore_points) else None
        return found if found is not None and found.number == number else None

    def last_points(self) -> dict[Incarnation, int]:
        """Return the last restore point of each incarnation that a restore point has."""
        numbers: list[int] = self.numbers.tolist()
        points: dict[Incarnation, int] = {}
        for key, life in self.lives.items():
            if life.first is None:
                continue
            at = len(numbers) if life.last is None else bisect_left(numbers, life.last + 1)
            if at and numbers[at - 1] >= life.first:
                points[key] = numbers[at - 1]
        return points


def _points(table: pa.Table) -> Iterator[PointRow]:
    columns: list[list[Any]] = [column.to_pylist() for column in table.select(PointRow._fields).columns]
    columns[-1] = [tuple(keys) for keys in columns[-1]]
    return map(PointRow._make, zip(*columns, strict=True))


def highest_incarnations(incarnations: Iterable[Incarnation]) -> dict[str, int]:
    """Return the highest incarnation of each topic."""
    return dict(sorted(incarnations))


# Records and restore points that must stay because somebody still has to read them. Pure.


@dataclass(frozen=True)
class RetentionHold:
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
        if point > self.restore_point:
            return True
        if topic not in self.positions:
            return False
        reading, following = self.positions[topic]
        if incarnation != reading:
            return incarnation > reading
        return last >= (following[partition] if partition < len(following) else 0)


def held_points(state: State, holds: Sequence[RetentionHold]) -> dict[int, list[str]]:
    """Return the restore points that must stay, each with the names of its holds. A hold on an incarnation that has
    ended is on the last restore point that has it."""
    last_points = state.last_points()
    names_by_point: dict[int, list[str]] = {}
    for row in state.segments.rows("topic", "incarnation", "partition", "last", "point") if holds else ():
        number = last_points.get((row[0], row[1]), 0)
        for hold in holds:
            if hold.name not in names_by_point.get(number, ()) and hold.holds(*row):
                names_by_point.setdefault(number, []).append(hold.name)
    return names_by_point
