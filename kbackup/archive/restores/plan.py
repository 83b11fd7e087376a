"""The plan of a restore, restores/<id>/plan.json."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Container, Sequence
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from kbackup.archive import layout
from kbackup.archive.catalog.documents import TableRef
from kbackup.archive.catalog.tables import Rows, read_ref, write_rows
from kbackup.archive.models import Document, GroupOffset, Member, dump
from kbackup.archive.query.java import JAVA
from kbackup.archive.reader import Archive
from kbackup.archive.segments.table import SCHEMA, Segment, Segments, column_of, decode_table, in_columns
from kbackup.archive.segments.window import Choice, Window
from kbackup.archive.transforms import TransformRef
from kbackup.errors import NotFoundError, RefusedError
from kbackup.store.base import Store
from kbackup.types import TopicPartition

BEGIN_ANOTHER = "begin another one into new topics, with another --restore-id"
"""The hint where the segments of a restore's plan can't be read any more."""


class PlannedTopic(Member, frozen=True, kw_only=True):
    """A topic that is restored: `source` of `incarnation`, as of restore point `as_of`, goes to `target`.

    `bytes` are the bytes of the records as documented, without compression. If a window was requested, `records` is an
    upper bound unless it is `exact`, and `bytes` are the bytes of the segments to read unless the records were counted.
    `created`: the topic was missing on the target when the restore began, so the restore makes it, and may change its
    configs.
    """

    source: str
    incarnation: int
    as_of: int
    target: str
    partitions: int
    records: int
    bytes: int
    configs: dict[str, str]
    replication_factor: int
    exact: bool = False
    created: bool = False


class LogBounds(Member, frozen=True, kw_only=True):
    """Where a log is to begin and to end (exclusive) on the target, in a restore with the same offsets."""

    start: int
    end: int


class SameOffsets(Member, frozen=True, kw_only=True):
    """How the logs of a restore with the same offsets are filled.

    `fill` says what stands in gaps: markers of transactions alone, records of aborted transactions, or tombstones.
    Records are appended by the producer of `producer_id` and `producer_epoch`, with sequences that follow from the
    plan: so every run of the restore sends the same batch for the same place.
    """

    fill: Literal["markers", "aborted", "tombstones"] = "markers"
    producer_id: int
    producer_epoch: int


class UnitRange(Member, frozen=True, kw_only=True):
    """One source partition and where its records go. `segments` are in order of offset. `window` selects records, None
    selects all of them. `kbackup.jobs.replay` reads them. With `rows`, which only plan.json has, `segments` are empty:
    they are the next `rows` rows of the plan's table of segments. `log` is there in a restore with the same offsets."""

    topic: str
    partition: int
    target: str
    segments: Sequence[Segment] = ()
    window: Window | None = None
    rows: int | msgspec.UnsetType = msgspec.UNSET
    log: LogBounds | msgspec.UnsetType = msgspec.UNSET

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.target, self.partition)

    @property
    def source(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class PlannedGroup(Member, frozen=True, kw_only=True):
    """A group that is set on the target. `offsets` are what it had committed at the source, for partitions that are
    restored. `type` is '' if it is unknown."""

    source: str
    target: str
    type: str = ""
    offsets: tuple[GroupOffset, ...]


class RestorePlan(Document, frozen=True, kw_only=True):
    """restores/<id>/plan.json: what a restore will do, and goes on with when it is resumed.

    A unit is one task, one producer and one transactional id. `choice` is set if a window was requested. `not_carried`
    gives the reasons why the restore point lacks requested groups. `options` are the keys of `[restore]` that decide
    what is restored, as they were given; null if an older version wrote the plan. `progress_groups` is the number of
    consumer groups that hold the progress, missing if it is 1. `segments` is the table of all units' segments, in their
    order, missing if the units have their segments themselves. `transform` is the function that records go through,
    missing without one. So earlier versions can read a plan that needs none of them, and refuse any other.
    """

    format: Literal["kbackup-restore-plan"] = "kbackup-restore-plan"
    restore_id: str
    archive_id: str
    restore_point: int
    target_cluster_id: str
    created_at: str
    transactions: bool
    transaction_bytes: int
    into_existing: bool
    topics: tuple[PlannedTopic, ...]
    units: tuple[tuple[UnitRange, ...], ...]
    groups: tuple[PlannedGroup, ...]
    settings: tuple[Literal["acls", "configs", "quotas", "users"], ...] = ()
    choice: Choice | None = None
    not_carried: dict[str, str] = msgspec.field(default_factory=dict)
    options: dict[str, Any] | None = None
    damaged: tuple[str, ...] = ()
    """Losses by damage of records that are asked for, one sentence each."""
    progress_groups: Annotated[int, msgspec.Meta(ge=2)] | msgspec.UnsetType = msgspec.UNSET
    segments: TableRef | msgspec.UnsetType = msgspec.UNSET
    same_offsets: SameOffsets | msgspec.UnsetType = msgspec.UNSET
    transform: TransformRef | msgspec.UnsetType = msgspec.UNSET

    @property
    def keeps_offsets(self) -> bool:
        """Return whether records keep the offsets that they had at the source."""
        return any(range_.log is not msgspec.UNSET for range_ in self.ranges)

    @property
    def exact(self) -> bool:
        """False if `records` is an upper bound."""
        if self.transform is not msgspec.UNSET:
            return False
        return self.choice is None or all(topic.exact for topic in self.topics)

    @property
    def records(self) -> int:
        return sum(topic.records for topic in self.topics)

    @property
    def bytes(self) -> int:
        return sum(topic.bytes for topic in self.topics)

    @property
    def targets(self) -> dict[str, str]:
        """Return the names of the topics on the target by their names in the source."""
        return {topic.source: topic.target for topic in self.topics}

    @property
    def ranges(self) -> list[UnitRange]:
        """Return the ranges of all units, in their order."""
        ranges: list[UnitRange] = []
        for unit in self.units:
            ranges += unit
        return ranges

    @property
    def progress_group_names(self) -> tuple[str, ...]:
        """Return the consumer groups on the target that hold the progress. Unit n uses the one at n modulo their
        number."""
        count = 1 if self.progress_groups is msgspec.UNSET else self.progress_groups
        return tuple(layout.progress_group(self.restore_id, number) for number in range(count))

    @property
    def group_warnings(self) -> list[str]:
        reasons = sorted(self.not_carried.items())
        return [f"group {group}: {why}" for group, why in reasons]


_INLINE = 10_000  # segments that a plan has in itself


def write_plan(state: Store, plan: RestorePlan, inline: int = _INLINE) -> None:
    """Create the plan: the restore has begun, under its id. If there are more segments than `inline`, they are written
    as a table before the plan. `AlreadyExistsError` if another run has begun the restore."""
    number_of_segments = sum(len(range_.segments) for range_ in plan.ranges)
    plan = _with_table(state, plan) if number_of_segments > inline else _with_values(plan)
    state.put_new(layout.restore_key(plan.restore_id, layout.PLAN), dump(plan))


def _with_values(plan: RestorePlan) -> RestorePlan:
    """Return the plan with its segments as values."""
    return _with_parts(plan, lambda part: replace(part, segments=tuple(part.segments)))


def _with_table(state: Store, plan: RestorePlan) -> RestorePlan:
    """Write the plan's segments as a table. Return the plan without them: each part says how many rows are its own."""
    tables: list[pa.Table] = []
    for range_ in plan.ranges:
        columns = [column_of(range_.segments, name) for name in SCHEMA.names]
        tables.append(pa.Table.from_arrays(columns, schema=SCHEMA))
    # Two runs may begin one restore at once. Only one of them creates the plan, and each plan names its own table.
    key = layout.restore_key(plan.restore_id, f"segments-{uuid.uuid4().hex[:8]}.parquet")
    rows = Rows(SCHEMA).append(pa.concat_tables(tables))
    _, (ref,) = write_rows(state, rows, iter([key]))
    return _with_parts(plan, lambda part: replace(part, segments=(), rows=len(part.segments)), ref)


def with_segments(state: Store, plan: RestorePlan) -> RestorePlan:
    """Return a stored plan with the segments of its units. `CorruptError` if their table is missing, or is not what the
    plan says."""
    ref = plan.segments
    if ref is msgspec.UNSET:
        return _with_values(plan)
    data = read_ref(state, ref, f"the plan of restore {plan.restore_id}", "begin another restore into new topics")
    table = decode_table(data, ref.key, rows=ref.rows)
    columns = in_columns(table, np.arange(ref.rows))
    start = 0

    # The parts are changed in the order in which their rows were written, so each takes the next ones.
    def filled(part: UnitRange) -> UnitRange:
        nonlocal start
        first = start
        start += part.rows or 0
        segments = Segments(columns, slice(first, start), checked=True)
        return replace(part, segments=segments, rows=msgspec.UNSET)

    return _with_parts(plan, filled)


def _with_parts(
    plan: RestorePlan, change: Callable[[UnitRange], UnitRange], table: TableRef | msgspec.UnsetType = msgspec.UNSET
) -> RestorePlan:
    """Return the plan with each part of its units changed, in order, and with a reference to their table."""
    units: list[tuple[UnitRange, ...]] = []
    for unit in plan.units:
        units.append(tuple(map(change, unit)))
    return replace(plan, units=tuple(units), segments=table)


def without_topics(plan: RestorePlan, sources: Container[str]) -> RestorePlan:
    """Return a plan without some topics, by their names in the source. Their records are left out, and the offsets that
    groups have in them."""
    topics = [topic for topic in plan.topics if topic.source not in sources]
    units: list[tuple[UnitRange, ...]] = []
    for unit in plan.units:
        parts = tuple(part for part in unit if part.topic not in sources)
        if parts:
            units.append(parts)
    groups: list[PlannedGroup] = []
    for group in plan.groups:
        offsets = tuple(offset for offset in group.offsets if offset.topic not in sources)
        if offsets:
            groups.append(replace(group, offsets=offsets))
    return replace(plan, topics=tuple(topics), units=tuple(units), groups=tuple(groups))


def check_same_archive(plan: RestorePlan, archive: Archive | None) -> None:
    """Raise `RefusedError` if a restore was begun from another archive. `archive` is None for a folder of the Java
    tool."""
    archive_id = archive.info.id if archive is not None else JAVA
    if plan.archive_id != archive_id:
        raise RefusedError(f"restore {plan.restore_id} was begun from another archive", "use another --restore-id")


def check_not_erased(plan: RestorePlan, archive: Archive | None) -> None:
    """Raise `RefusedError` if records of a plan's segments were erased since: the plan names the segments that still
    have them."""
    if archive is None or not len(archive.state.erased):
        return
    for range_ in plan.ranges:
        for segment in range_.segments:
            place = segment.incarnation_partition
            erased = archive.state.erased_in(place, segment.first, segment.last, segment.key)
            if erased is not None:
                raise RefusedError(
                    f"restore {plan.restore_id} was planned before records of {segment.topic}-{segment.partition} "
                    f"were erased, from offset {erased.start} on",
                    BEGIN_ANOTHER,
                )


def check_segments_there(plan: RestorePlan, archive: Archive | None) -> None:
    """Raise `RefusedError` if segments of a plan are not in the archive any more, and are deleted."""
    if archive is None:
        return
    listed = archive.keys()
    for range_ in plan.ranges:
        for segment in range_.segments:
            if segment.key in listed:
                continue
            try:
                archive.store.stat(segment.key)
            except NotFoundError:
                raise RefusedError(
                    f"restore {plan.restore_id} was planned with segments of {segment.topic}-{segment.partition} that "
                    "were lost, expired or were merged since, and that are deleted by now",
                    BEGIN_ANOTHER,
                ) from None


def check_same_target(plan: RestorePlan, cluster_id: str) -> None:
    """Raise `RefusedError` if a restore was begun into another cluster."""
    if plan.target_cluster_id != cluster_id:
        raise RefusedError(
            f"restore {plan.restore_id} was begun into cluster {plan.target_cluster_id}, this is {cluster_id}",
            "name that cluster with --bootstrap-server, --target-config or [target] of kbackup.toml; to restore into "
            "this one, give another --restore-id",
        )
