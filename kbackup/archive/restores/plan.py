"""The plan of a restore, restores/<id>/plan.json, and which restores are finished."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.models import Document, GroupOffset, Member, load
from kbackup.archive.query.java import JAVA, open_archive_or_folder
from kbackup.archive.restores.offset_map import decode
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.window import Choice, Window
from kbackup.errors import NotFoundError, RefusedError, UsageError
from kbackup.store.base import Store
from kbackup.types import TopicPartition


class PlannedTopic(Member, frozen=True, kw_only=True):
    """`source` of `incarnation`, as of restore point `as_of`, goes to `target`. `bytes` are those of the
    documented records files. Where a window was asked for, `records` is at most so many unless it is `exact`, and
    `bytes` are those of the segments to read unless the records were counted."""

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


class UnitRange(Member, frozen=True, kw_only=True):
    """One source partition and where its records go; `segments` are in order of offset. Only records in `window`
    are wanted; None: all of them. `kbackup.jobs.replay` reads them."""

    topic: str
    partition: int
    target: str
    segments: tuple[Segment, ...]
    window: Window | None = None

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.target, self.partition)

    @property
    def source(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class PlannedGroup(Member, frozen=True, kw_only=True):
    """`offsets` are the committed ones of the source, of partitions that are restored."""

    source: str
    target: str
    offsets: tuple[GroupOffset, ...]


class RestorePlan(Document, frozen=True, kw_only=True):
    """restores/<id>/plan.json. A unit is one task, one producer and one transactional id. `choice` is set if a window
    was requested. `not_carried` gives the reasons why the restore point lacks requested groups. `options` are the keys
    of `[restore]` that decide what is restored, as they were given; null if an older version wrote the plan.
    `progress_groups` counts the consumer groups that hold the progress; it is missing if there is one, so that versions
    that know one group alone read the plan."""

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


def check_same_archive(plan: RestorePlan, store: Store) -> None:
    """Raise `RefusedError` if a restore was begun from another archive."""
    archive = open_archive_or_folder(store)
    if plan.archive_id != (archive.info.id if archive is not None else JAVA):
        raise RefusedError(f"restore {plan.restore_id} was begun from another archive", "use another --restore-id")


def check_same_target(plan: RestorePlan, cluster_id: str) -> None:
    """Raise `RefusedError` if a restore was begun into another cluster."""
    if plan.target_cluster_id != cluster_id:
        raise RefusedError(
            f"restore {plan.restore_id} was begun into cluster {plan.target_cluster_id}, this is {cluster_id}",
            "use another --restore-id",
        )


def finished_restore(state: Store, restore_id: str) -> tuple[RestorePlan, pa.Table]:
    """Return a restore's plan and its whole offset map."""
    plan_key, map_key = (layout.restore_key(restore_id, name) for name in (layout.PLAN, layout.OFFSETS))
    try:
        plan = load(RestorePlan, state.get(plan_key), plan_key)
    except NotFoundError as error:
        raise UsageError(
            f"there is no restore {restore_id} at {state.url}", "check the id, and --state if the restore was given one"
        ) from error
    try:
        return plan, decode(state.get(map_key), map_key)
    except NotFoundError as error:
        raise RefusedError(
            f"restore {restore_id} is not finished: it has no offset map yet",
            f"resume it with kbackup restore --restore-id {restore_id}",
        ) from error
