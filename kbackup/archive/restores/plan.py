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
from kbackup.errors import RefusedError
from kbackup.store.base import Store
from kbackup.types import TopicPartition


class PlannedTopic(Member, frozen=True, kw_only=True):
    """`source` of `incarnation`, as of restore point `as_of`, goes to `target`. `bytes` are those of the
    documented records files. Where a window was asked for, `records` is at most so many unless it is `exact`, and
    `bytes` are those of the segments to read unless the records were counted. `created`: the topic was missing on the
    target when the restore began, so that the restore makes it, and may change its configs."""

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


class UnitRange(Member, frozen=True, kw_only=True):
    """One source partition and where its records go; `segments` are in order of offset. Only records in `window`
    are wanted; None: all of them. `kbackup.jobs.replay` reads them. With `rows`, which only plan.json has, `segments`
    are empty: the next `rows` of the plan's table of segments are its own."""

    topic: str
    partition: int
    target: str
    segments: Sequence[Segment] = ()
    window: Window | None = None
    rows: int | msgspec.UnsetType = msgspec.UNSET

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.target, self.partition)

    @property
    def source(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class PlannedGroup(Member, frozen=True, kw_only=True):
    """`offsets` are the committed ones of the source, of partitions that are restored. `type` '': unknown."""

    source: str
    target: str
    type: str = ""
    offsets: tuple[GroupOffset, ...]


class RestorePlan(Document, frozen=True, kw_only=True):
    """restores/<id>/plan.json. A unit is one task, one producer and one transactional id. `choice` is set if a window
    was requested. `not_carried` gives the reasons why the restore point lacks requested groups. `options` are the keys
    of `[restore]` that decide what is restored, as they were given; null if an older version wrote the plan.
    `progress_groups` counts the consumer groups that hold the progress, and `segments` is the table of all units'
    segments, in their order. Both are missing where there is one group, and where the units have their segments: so
    earlier versions read the plan."""

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

    @property
    def exact(self) -> bool:
        """False if `records` is an upper bound."""
        return self.choice is None or all(t.exact for t in self.topics)

    @property
    def records(self) -> int:
        return sum(t.records for t in self.topics)

    @property
    def bytes(self) -> int:
        return sum(t.bytes for t in self.topics)

    @property
    def progress_group_names(self) -> tuple[str, ...]:
        """Return the consumer groups on the target that hold the progress. Unit n uses the one at n modulo their
        number."""
        count = 1 if self.progress_groups is msgspec.UNSET else self.progress_groups
        return tuple(layout.progress_group(self.restore_id, number) for number in range(count))

    @property
    def group_warnings(self) -> list[str]:
        return [f"group {group}: {why}" for group, why in sorted(self.not_carried.items())]


_INLINE = 10_000  # segments that a plan has in itself


def write_plan(state: Store, plan: RestorePlan, inline: int = _INLINE) -> None:
    """Create the plan: the restore has begun, under its id. More segments than `inline` are in a table that is created
    before. `AlreadyExistsError` if another run has begun it."""
    parts = [part.segments for unit in plan.units for part in unit]
    if sum(map(len, parts)) > inline:
        table = pa.concat_tables(
            pa.Table.from_arrays([column_of(segments, name) for name in SCHEMA.names], schema=SCHEMA)
            for segments in parts
        )
        key = layout.restore_key(plan.restore_id, f"segments-{uuid.uuid4().hex[:8]}.parquet")
        _, (ref,) = write_rows(state, Rows(SCHEMA).append(table), iter([key]))
        plan = _with_parts(plan, lambda part: replace(part, segments=(), rows=len(part.segments)), ref)
    else:
        plan = _with_parts(plan, lambda part: replace(part, segments=tuple(part.segments)))
    state.put_new(layout.restore_key(plan.restore_id, layout.PLAN), dump(plan))


def with_segments(state: Store, plan: RestorePlan) -> RestorePlan:
    """Return a stored plan with the segments of its units. `CorruptError` if their table is missing or another one."""
    ref = plan.segments
    if ref is msgspec.UNSET:
        return _with_parts(plan, lambda part: replace(part, segments=tuple(part.segments)))
    data = read_ref(state, ref, f"the plan of restore {plan.restore_id}", "begin another restore into topics made anew")
    columns, start = in_columns(decode_table(data, ref.key, rows=ref.rows), np.arange(ref.rows)), 0

    def filled(part: UnitRange) -> UnitRange:
        nonlocal start
        first, start = start, start + (part.rows or 0)
        return replace(part, segments=Segments(columns, slice(first, start), checked=True), rows=msgspec.UNSET)

    return _with_parts(plan, filled)


def _with_parts(
    plan: RestorePlan, change: Callable[[UnitRange], UnitRange], table: TableRef | msgspec.UnsetType = msgspec.UNSET
) -> RestorePlan:
    return replace(plan, units=tuple(tuple(map(change, unit)) for unit in plan.units), segments=table)


def without_topics(plan: RestorePlan, sources: Container[str]) -> RestorePlan:
    """Return a plan without some topics, by their names in the source: also without their records, and the offsets that
    groups have in them."""
    units = [tuple(part for part in unit if part.topic not in sources) for unit in plan.units]
    groups: list[PlannedGroup] = []
    for group in plan.groups:
        offsets = tuple(offset for offset in group.offsets if offset.topic not in sources)
        if offsets:
            groups.append(replace(group, offsets=offsets))
    return replace(
        plan,
        topics=tuple(topic for topic in plan.topics if topic.source not in sources),
        units=tuple(unit for unit in units if unit),
        groups=tuple(groups),
    )


def check_same_archive(plan: RestorePlan, archive: Archive | None) -> None:
    """Raise `RefusedError` if a restore was begun from another archive. `archive` is None for a folder of the Java
    tool."""
    if plan.archive_id != (archive.info.id if archive is not None else JAVA):
        raise RefusedError(f"restore {plan.restore_id} was begun from another archive", "use another --restore-id")


def check_same_target(plan: RestorePlan, cluster_id: str) -> None:
    """Raise `RefusedError` if a restore was begun into another cluster."""
    if plan.target_cluster_id != cluster_id:
        raise RefusedError(
            f"restore {plan.restore_id} was begun into cluster {plan.target_cluster_id}, this is {cluster_id}",
            "use another --restore-id",
        )
