"""The state of an archive as a value: restore points, segments, and the runs that hold them. Pure: no store, no clock.

Operations (`operations`, `retention`, `copies`) make one state from another; `commit` writes a state.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec.structs import asdict

from kbackup.archive import layout
from kbackup.archive.catalog.documents import IsolationLevel, OpenRun, Origin
from kbackup.archive.catalog.tables import SEGMENTS, Rows
from kbackup.archive.models import Loss, LossKind
from kbackup.archive.segments.table import integers, schema_of
from kbackup.types import Incarnation, IncarnationPartition, Int64Array


class PointRow(NamedTuple):
    """One row per restore point. Its times are those of its manifest. `segments`, `records` and bytes count what it
    added; `losses` and `warnings` are counts. `manifest` is the checksum of its manifest; `documents` are the keys of
    the documents that it needs, the manifest's first.
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

    @property
    def key(self) -> Incarnation:
        return self.topic, self.incarnation

    @property
    def is_reserved(self) -> bool:
        """Whether a run reserved the number and no restore point has had it yet."""
        return self.first is None and not self.retired

    @property
    def is_alive(self) -> bool:
        """Whether the newest restore point has the incarnation."""
        return self.first is not None and self.last is None and not self.retired


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
        """Partition, offsets and kind, to compare losses by.

        The restore point is left out: a copy may find the same damage at another one. So is the message."""
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


class ErasedRange(NamedTuple):
    """One row per run of erased records: one at each offset from `start` to `end` (exclusive). Catalog `catalog` erased
    them, by the rewrite of that number. Who they were about stands nowhere."""

    topic: str
    incarnation: int
    partition: int
    start: int
    end: int
    catalog: int
    rewrite: int

    @property
    def incarnation_partition(self) -> IncarnationPartition:
        return self.topic, self.incarnation, self.partition


class RewrittenRow(NamedTuple):
    """One row per segment that was rewritten: `records` and `bytes` (of plain records files) that manifests go on
    counting and that no segment has any more, as they were erased or superseded. `point` is the restore point that
    added the segment, `first` and `last` are its offsets, `key` is the records object that has all of it until a sweep
    deletes it. Of segments that were merged, the last one has `records` and `bytes` of them all."""

    topic: str
    incarnation: int
    partition: int
    point: int
    first: int
    last: int
    records: int
    bytes: int
    catalog: int
    key: str

    @property
    def incarnation_partition(self) -> IncarnationPartition:
        return self.topic, self.incarnation, self.partition


class CompactedRow(NamedTuple):
    """One row per partition in which a compaction looked for superseded records: those of restore point `point`, the
    oldest one that was kept by then. Catalog `catalog` noted it."""

    topic: str
    incarnation: int
    partition: int
    point: int
    catalog: int

    @property
    def incarnation_partition(self) -> IncarnationPartition:
        return self.topic, self.incarnation, self.partition


SCHEMAS = {
    "points": schema_of(PointRow),
    "incarnations": schema_of(IncarnationRow),
    "segments": SEGMENTS,
    "losses": LOSSES,
    "past": schema_of(ExpiredPoint),
    "log_starts": schema_of(LogStart),
    "history": schema_of(HistoryRow),
    "erased": schema_of(ErasedRange),
    "rewritten": schema_of(RewrittenRow),
    "compacted": schema_of(CompactedRow),
}
"""The tables of a catalog. `history` is of catalogs that were swept."""
_NO_ROWS = {name: Rows(schema) for name, schema in SCHEMAS.items()}


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
    rewrites_before: int = 0
    points: Rows = _NO_ROWS["points"]
    incarnations: Rows = _NO_ROWS["incarnations"]
    segments: Rows = _NO_ROWS["segments"]
    losses: Rows = _NO_ROWS["losses"]
    past: Rows = _NO_ROWS["past"]
    log_starts: Rows = _NO_ROWS["log_starts"]
    history: Rows = _NO_ROWS["history"]
    erased: Rows = _NO_ROWS["erased"]
    rewritten: Rows = _NO_ROWS["rewritten"]
    compacted: Rows = _NO_ROWS["compacted"]

    def tables(self) -> dict[str, Rows]:
        """Return the tables by name."""
        return {name: getattr(self, name) for name in SCHEMAS}

    @property
    def rewrite_number(self) -> int:
        """The number of a rewrite that begins with this catalog. It is greater than that of each earlier rewrite, also
        of one in the archive that this one was a copy of."""
        return self.rewrites_before + self.number

    @cached_property
    def restore_points(self) -> tuple[PointRow, ...]:
        """Every restore point, in order of its number."""
        points = _points(self.points.read())
        return tuple(sorted(points))

    @cached_property
    def numbers(self) -> Int64Array:
        """int64[points]: the numbers of all restore points, rising."""
        table = self.points.read(["number"])
        # Sorted: an undo, and a copy that retains, append older restore points behind newer ones.
        return np.sort(integers(table, "number"))

    @cached_property
    def lives(self) -> Mapping[Incarnation, IncarnationRow]:
        """Every incarnation, reserved and retired ones included."""
        lives: dict[Incarnation, IncarnationRow] = {}
        for row in self.incarnations.rows(*IncarnationRow._fields):
            life = IncarnationRow(*row)
            lives[life.topic, life.incarnation] = life
        return lives

    @cached_property
    def highest(self) -> Mapping[str, int]:
        """The highest incarnation number that was ever given, by topic."""
        return highest_incarnations(self.lives)

    @cached_property
    def starts(self) -> Mapping[IncarnationPartition, LogStart]:
        """The log start of each partition whose oldest records expired."""
        starts: dict[IncarnationPartition, LogStart] = {}
        for row in self.log_starts.rows(*LogStart._fields):
            start = LogStart(*row)
            starts[start.topic, start.incarnation, start.partition] = start
        return starts

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
    def erasures(self) -> Mapping[IncarnationPartition, tuple[ErasedRange, ...]]:
        """The erased records of each partition that has any, in order of their offsets."""
        by_partition: dict[IncarnationPartition, list[ErasedRange]] = defaultdict(list)
        for row in sorted(self.erased.rows(*ErasedRange._fields)):
            erased = ErasedRange(*row)
            by_partition[erased.incarnation_partition].append(erased)
        return {place: tuple(ranges) for place, ranges in by_partition.items()}

    def erased_in(self, place: IncarnationPartition, first: int, last: int, key: str) -> ErasedRange | None:
        """Return the first records that were erased from a segment, by a later rewrite than the one that wrote it; None
        if none were. `first` and `last` are its offsets, `key` is its records object."""
        ranges = self.erasures.get(place, ())
        if not ranges:
            return None
        rewrite = layout.rewrite_of(key)
        for erased in ranges:
            is_inside = erased.start <= last and first < erased.end
            if is_inside and erased.rewrite > rewrite:
                return erased
        return None

    def erased_offsets(self, place: IncarnationPartition) -> list[tuple[int, int]]:
        """Return the erased offsets of a partition as ranges, each with an exclusive end."""
        return [(erased.start, erased.end) for erased in self.erasures.get(place, ())]

    @property
    def erased_records(self) -> int:
        count = 0
        for start, end in self.erased.rows("start", "end"):
            count += end - start
        return count

    @property
    def superseded_records(self) -> int:
        """How many records compactions have taken out, which manifests go on counting."""
        gone = sum(row.records for row in self.rewrites)
        # A repair may know of erased records alone.
        return max(0, gone - self.erased_records)

    @cached_property
    def compactions(self) -> Mapping[IncarnationPartition, CompactedRow]:
        """What the newest compaction of each partition has looked at."""
        rows: dict[IncarnationPartition, CompactedRow] = {}
        for values in self.compacted.rows(*CompactedRow._fields):
            row = CompactedRow(*values)
            rows[row.incarnation_partition] = row
        return rows

    @cached_property
    def rewrites(self) -> tuple[RewrittenRow, ...]:
        """What manifests count and segments have no more, since these were rewritten."""
        return tuple(RewrittenRow(*row) for row in self.rewritten.rows(*RewrittenRow._fields))

    @cached_property
    def replaced_objects(self) -> frozenset[str]:
        """The keys of the records objects and indexes that rewrites have replaced."""
        keys: set[str] = set()
        for (key,) in self.rewritten.rows("key"):
            keys.update((key, layout.index_key_of(key)))
        return frozenset(keys)

    @cached_property
    def past_manifests(self) -> Mapping[int, str]:
        """The manifest's checksum of every restore point that expired, by number."""
        return dict(self.past.rows("number", "manifest"))

    @cached_property
    def lineage(self) -> frozenset[tuple[int, str]]:
        """Number and checksum of every manifest that is or was of a restore point. A number has several where a repair
        made its manifest anew."""
        manifests = set(self.past.rows("number", "manifest"))
        manifests.update((point.number, point.manifest) for point in self.restore_points)
        return frozenset(manifests)

    @property
    def expired(self) -> int:
        """How many restore points expired."""
        listed = set(self.numbers.tolist())
        # A repair that makes a manifest anew notes the former manifest in `past`, while the restore point stays.
        return len(self.past_manifests.keys() - listed)

    @cached_property
    def newest(self) -> PointRow | None:
        """The newest restore point.

        Each commit asks for it. No other row becomes a Python value, of which an archive may have ten thousand.
        """
        if not len(self.points):
            return None
        return self._point_at(self.numbers[-1])

    @property
    def oldest(self) -> PointRow | None:
        """The oldest restore point."""
        if not len(self.points):
            return None
        return self._point_at(self.numbers[0])

    def _point_at(self, number: np.int64) -> PointRow:
        """Return the row of restore point `number`, which exists."""
        table = self.points.read()
        (places,) = np.nonzero(integers(table, "number") == number)
        row = table.slice(int(places[0]), 1)
        return next(_points(row))

    def point(self, number: int) -> PointRow | None:
        """Return the row of restore point `number`; None if the archive doesn't have it."""
        points = self.restore_points
        # A row is a tuple that begins with its number, so it sorts just behind the number alone.
        place = bisect_left(points, (number,))
        if place == len(points) or points[place].number != number:
            return None
        return points[place]

    def last_points(self) -> dict[Incarnation, int]:
        """Return the last restore point of each incarnation that a restore point has."""
        numbers: list[int] = self.numbers.tolist()
        points: dict[Incarnation, int] = {}
        for key, life in self.lives.items():
            if life.first is None:
                continue
            # `life.last` may have expired: then an earlier restore point is the last one, or none is.
            end = len(numbers) if life.last is None else bisect_left(numbers, life.last + 1)
            if end > 0 and numbers[end - 1] >= life.first:
                points[key] = numbers[end - 1]
        return points


def _points(table: pa.Table) -> Iterator[PointRow]:
    """Yield the rows of a table of restore points."""
    columns: list[list[Any]] = [column.to_pylist() for column in table.select(PointRow._fields).columns]
    # Lists of keys become tuples: a row is compared, and hashed, as a value.
    columns[-1] = [tuple(keys) for keys in columns[-1]]
    rows = zip(*columns, strict=True)
    return map(PointRow._make, rows)


def highest_incarnations(incarnations: Iterable[Incarnation]) -> dict[str, int]:
    """Return the highest incarnation of each topic."""
    # In rising order, so that a topic's highest number is the last that the dictionary takes.
    return dict(sorted(incarnations))


# Records and restore points that must stay because somebody still has to read them. Pure.


@dataclass(frozen=True)
class RetentionHold:
    """Records that somebody still has to read: `name` has read restore points up to `restore_point`.

    `positions` maps a topic to an incarnation and the next offsets to read of its partitions. All records of earlier
    incarnations have been read, none of later ones. Topics that `positions` lacks are not read at all: of those, only
    records stay that restore points later than `restore_point` added."""

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
        current, positions = self.positions[topic]
        if incarnation != current:
            return incarnation > current
        # The topic may have got partitions since: of those nothing has been read.
        position = positions[partition] if partition < len(positions) else 0
        return last >= position


def held_points(state: State, holds: Sequence[RetentionHold]) -> dict[int, list[str]]:
    """Return the restore points that must stay, each with the names of its holds. A hold on an incarnation that has
    ended is on the last restore point that has it."""
    if not holds:
        return {}
    last_points = state.last_points()
    names_by_point: dict[int, list[str]] = {}
    columns = state.segments.rows("topic", "incarnation", "partition", "last", "point")
    for topic, incarnation, partition, last, point in columns:
        number = last_points.get((topic, incarnation), 0)
        for hold in holds:
            # Most segments are of a restore point whose holds are known: that look-up is the cheaper one.
            is_known = hold.name in names_by_point.get(number, ())
            if not is_known and hold.holds(topic, incarnation, partition, last, point):
                names_by_point.setdefault(number, []).append(hold.name)
    return names_by_point
