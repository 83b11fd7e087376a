"""Planning and setting groups on their own: after a restore, however long ago, or on the source cluster itself."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import asdict

from kbackup.archive.models import Manifest, Member
from kbackup.archive.reader import open_archive
from kbackup.archive.restores.finished import finished_restore
from kbackup.archive.restores.plan import check_same_target
from kbackup.archive.restores.remap import SameLog
from kbackup.config.jobs import Restore
from kbackup.errors import RefusedError, UsageError
from kbackup.jobs.groups.apply import GroupResult, not_applied, plan_by_map, set_groups
from kbackup.jobs.groups.before import Captures
from kbackup.jobs.groups.plan import GroupPlan, OffsetPlan, plan_groups, wants_epoch, with_epochs
from kbackup.jobs.groups.selection import GroupSelection, Moment, select_for_restore, select_same_cluster
from kbackup.jobs.groups.undo import UndoReport, undo
from kbackup.kafka.admin.cluster import Cluster
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from kbackup.util.text import plural
from kbackup.util.times import now

__all__ = [
    "GroupResult",
    "GroupsPlanReport",
    "GroupsReport",
    "Moment",
    "PlannedGroupReport",
    "PlannedOffset",
    "Prepared",
    "UndoReport",
    "apply",
    "plan_report",
    "prepare",
    "undo",
]


@dataclass(frozen=True)
class Prepared:
    """Offsets to write, and the cluster to write to. `restore_id` names the folder of the capture before."""

    restore_id: str
    cluster_id: str
    selection: GroupSelection
    plans: tuple[GroupPlan, ...]
    same_offsets: bool


class PlannedOffset(OffsetPlan, frozen=True, kw_only=True):
    """A planned offset, with the offset that the group has `now` (null: none)."""

    now: int | None


class PlannedGroupReport(Member, frozen=True, kw_only=True):
    """`hindered` says why it would not be set."""

    source: str
    group: str
    hindered: str
    offsets: tuple[PlannedOffset, ...]
    left_out: tuple[str, ...]


class GroupsPlanReport(Member, frozen=True, kw_only=True):
    restore_id: str | None
    restore_point: int
    captured_at: str | None
    target_cluster_id: str
    groups: tuple[PlannedGroupReport, ...]

    @property
    def missing(self) -> list[str]:
        return [
            *(
                f"group {g.group} can't be set: {g.hindered}; mend that before 'kbackup groups apply'"
                for g in self.groups
                if g.hindered
            ),
            *(f"group {g.group} would lack an offset: {why}" for g in self.groups for why in g.left_out),
        ]


class GroupsReport(Member, frozen=True, kw_only=True):
    """`capture` numbers what the groups had before; 0: nothing was written. `same_offsets`: the target is the cluster
    that was archived."""

    restore_id: str
    restore_point: int
    captured_at: str | None
    target_cluster_id: str
    capture: int
    same_offsets: bool
    groups: tuple[GroupResult, ...]

    @property
    def missing(self) -> list[str]:
        same = ("--same-offsets", "--backup", str(self.restore_point))
        return not_applied(self.groups, *(same if self.same_offsets else ("--restore-id", self.restore_id)))


def prepare(
    cluster: Cluster, store: Store, state: Store, options: Restore, moment: Moment, same_offsets: bool
) -> Prepared:
    """Plan the offsets to set, by the offset map of restore `options.restore_id`; with `same_offsets` without any map,
    on the cluster that was archived."""
    cluster_id, _ = cluster.connect()
    if same_offsets:
        return _prepare_same(cluster, cluster_id, store, options, moment)
    if options.restore_id is None:
        raise UsageError("no restore is named", "give --restore-id, or --same-offsets on the source cluster")
    plan, whole = finished_restore(state, options.restore_id)
    check_same_target(plan, cluster_id)
    selection = select_for_restore(store, plan, moment, options)
    plans = plan_by_map(cluster, plan, selection.groups, whole, selection.unusable)
    return Prepared(plan.restore_id, cluster_id, selection, plans, same_offsets=False)


def _prepare_same(
    cluster: Cluster, cluster_id: str, store: Store, options: Restore, moment: Moment
) -> Prepared:
    selection, manifest = select_same_cluster(open_archive(store), moment, options)
    if manifest.cluster_id != cluster_id:
        raise RefusedError(
            f"restore point {manifest.number} is of cluster {manifest.cluster_id}, this is {cluster_id}: "
            "offsets are not the same there",
            "name the source cluster as [target], or restore into this cluster and use --restore-id",
        )
    partitions = {TopicPartition(o.topic, o.partition) for g in selection.groups for o in g.offsets}
    unusable = _changed(cluster, manifest, partitions)
    usable = partitions - unusable.keys()
    starts, ends = cluster.log_starts(usable), cluster.log_ends(usable, "read_uncommitted")
    maps = {tp: SameLog(starts[tp], ends[tp]) for tp in usable}
    names = {tp.topic: tp.topic for tp in partitions}
    plans = plan_groups(selection.groups, names, maps, unusable)
    plans = with_epochs(plans, cluster.leader_epochs(wants_epoch(plans)), same_log=True)
    restore_id = options.restore_id or f"groups-{now()[:10]}-{uuid.uuid4().hex[:8]}"
    return Prepared(restore_id, cluster_id, selection, plans, same_offsets=True)


def _changed(
    cluster: Cluster, manifest: Manifest, partitions: set[TopicPartition]
) -> dict[TopicPartition, str]:
    """Return partitions that are not the archived ones any more, with the reasons."""
    archived = {t.name: t.id for t in manifest.topics}
    there = cluster.topics({tp.topic for tp in partitions})
    changed: dict[TopicPartition, str] = {}
    for tp in partitions:
        topic = there.get(tp.topic)
        if topic is None or tp.partition not in topic.partitions:
            changed[tp] = f"{tp} is not on the target"
        elif topic.id != archived[tp.topic]:
            changed[tp] = f"{tp} is another log: the topic was made anew since"
    return changed


def plan_report(cluster: Cluster, prepared: Prepared, named: bool) -> GroupsPlanReport:
    """Report the offsets that groups would get and the ones they have. `named`: a restore is named."""
    groups = [p.group for p in prepared.plans]
    members, failed = cluster.groups.members(groups)
    committed, unread = cluster.groups.committed(groups)
    hindered = {g: f"it has {plural(n, 'live member')}" for g, n in members.items() if n} | failed | unread
    has = {g: {c.tp: c.offset for c in offsets} for g, offsets in committed.items()}
    return GroupsPlanReport(
        restore_id=prepared.restore_id if named else None,
        restore_point=prepared.selection.restore_point,
        captured_at=prepared.selection.captured_at,
        target_cluster_id=prepared.cluster_id,
        groups=tuple(_planned(p, hindered.get(p.group, ""), has.get(p.group, {})) for p in prepared.plans),
    )


def _planned(plan: GroupPlan, hindered: str, has: dict[TopicPartition, int]) -> PlannedGroupReport:
    return PlannedGroupReport(
        source=plan.source,
        group=plan.group,
        hindered=hindered or ("" if plan.offsets else "it gets no offset"),
        offsets=tuple(PlannedOffset(**asdict(o), now=has.get(o.tp)) for o in plan.offsets),
        left_out=plan.skipped,
    )


def apply(cluster: Cluster, state: Store, prepared: Prepared) -> GroupsReport:
    """Set the prepared offsets, after the groups' own are captured."""
    captures = Captures(state, prepared.restore_id)
    results, number = set_groups(cluster, captures, "apply", prepared.cluster_id, prepared.plans)
    return GroupsReport(
        restore_id=prepared.restore_id,
        restore_point=prepared.selection.restore_point,
        captured_at=prepared.selection.captured_at,
        target_cluster_id=prepared.cluster_id,
        capture=number,
        same_offsets=prepared.same_offsets,
        groups=_in_order(results),
    )


def _in_order(results: Sequence[GroupResult]) -> tuple[GroupResult, ...]:
    return tuple(sorted(results, key=lambda r: r.group))
