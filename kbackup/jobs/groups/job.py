"""Set consumer groups on the target to the same records as in the source, and undo it."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np
from msgspec.structs import asdict

from kbackup.archive.models import SHARE, Document, GroupOffset, Manifest, Member
from kbackup.archive.reader import open_archive
from kbackup.archive.restores.journal import NumberedCaptures, RestoreJournal
from kbackup.archive.restores.offset_map import OffsetMap, Runs, SameLog, runs_by_partition
from kbackup.archive.restores.plan import PlannedGroup, RestorePlan, check_same_target
from kbackup.config.models import Restore
from kbackup.errors import RefusedError, UsageError
from kbackup.jobs.groups.plan import (
    GroupOffsetResult,
    GroupPlan,
    GroupSelection,
    Moment,
    OffsetPlan,
    plan_groups,
    select_for_restore,
    select_same_cluster,
    wants_epoch,
    with_epochs,
)
from kbackup.kafka.control.cluster import Cluster
from kbackup.store.base import Store
from kbackup.types import CommittedOffset, Int64Array, TopicPartition
from kbackup.util.text import join_names, kbackup_command
from kbackup.util.times import now

# The offsets of groups before they are changed: restores/<id>/groups-before-<n>.json.
#
# Captured and stored before each write, so that it can be undone; numbered from 1, created and never replaced.

By = Literal["restore", "apply", "undo"]

NONE = -1
"""The offset of a partition for which nothing is committed."""


class GroupBefore(Member, frozen=True, kw_only=True):
    """`offsets` is all that the group had committed; `writes` what was about to be set, where an offset of -1
    takes a commit away. What is in `offsets` and not in `writes` was not touched."""

    group: str
    type: str = ""
    offsets: tuple[GroupOffset, ...]
    writes: tuple[GroupOffset, ...]


class GroupsBefore(Document, frozen=True, kw_only=True):
    """restores/<id>/groups-before-<number>.json"""

    format: Literal["kbackup-groups-before"] = "kbackup-groups-before"
    restore_id: str
    number: int
    by: By
    captured_at: str
    target_cluster_id: str
    groups: tuple[GroupBefore, ...]


class Captures(NumberedCaptures[GroupsBefore]):
    kind, name = GroupsBefore, "groups-before"


def as_stored(offsets: Iterable[CommittedOffset]) -> tuple[GroupOffset, ...]:
    return tuple(
        GroupOffset(
            topic=c.tp.topic,
            partition=c.tp.partition,
            offset=c.offset,
            leader_epoch=c.leader_epoch,
            metadata=c.metadata,
        )
        for c in offsets
    )


def as_committed(offsets: Iterable[GroupOffset]) -> list[CommittedOffset]:
    return [
        CommittedOffset(TopicPartition(o.topic, o.partition), o.offset, o.leader_epoch, o.metadata) for o in offsets
    ]


def offsets_by_partition(offsets: Iterable[GroupOffset]) -> dict[TopicPartition, GroupOffset]:
    return {TopicPartition(o.topic, o.partition): o for o in offsets}


def _resumed(fresh: Sequence[GroupBefore], earlier: Sequence[GroupBefore]) -> list[GroupBefore]:
    """Return the captures of a repeated write. Writes before it (`earlier`, in order) were interrupted or refused in
    part. In partitions that one of them had already set, the offset before that write counts; in others, the one of
    `fresh`. A large group is written in portions, so that a write may have set some partitions only."""
    has_by_group = {group.group: offsets_by_partition(group.offsets) for group in fresh}
    for before in reversed(earlier):
        has = has_by_group.get(before.group)
        if not has:
            continue
        written, had = offsets_by_partition(before.writes), offsets_by_partition(before.offsets)
        for partition, offset in list(has.items()):
            if written.get(partition) != offset:
                continue
            del has[partition]
            if partition in had:
                has[partition] = had[partition]
    captures: list[GroupBefore] = []
    for group in fresh:
        has = has_by_group[group.group]
        offsets = [has[partition] for partition in sorted(has)]
        captures.append(msgspec.structs.replace(group, offsets=tuple(offsets)))
    return captures


# Set groups by the offset map of a restore.


GroupStatus = Literal["applied", "applied in part", "left alone", "refused"]


class GroupResult(Member, frozen=True, kw_only=True):
    """The outcome of a group; `why` is the reason where it was not set, or not in all its partitions, which `not_set`
    names then. `left_out` names offsets that it can't get, each with the reason."""

    source: str
    group: str
    status: GroupStatus
    why: str = ""
    offsets: tuple[GroupOffsetResult, ...]
    not_set: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def committed_offsets(plan: RestorePlan) -> dict[TopicPartition, Int64Array]:
    """Return the offsets of the plan's groups in the source, by target partition."""
    targets, offsets = {t.source: t.target for t in plan.topics}, defaultdict[TopicPartition, set[int]](set)
    for each in (o for group in plan.groups for o in group.offsets):
        offsets[TopicPartition(targets[each.topic], each.partition)].add(each.offset)
    return {tp: np.array(sorted(some), np.int64) for tp, some in offsets.items()}


def restore_groups(
    cluster: Cluster,
    journal: RestoreJournal,
    plan: RestorePlan,
    runs: Mapping[TopicPartition, Runs],
    failed: Container[str] = (),
) -> tuple[GroupResult, ...]:
    """Set the groups of a restore, by the runs of its offset map; captured before. In topics that `failed` (by their
    names on the target) no offset is set: nobody knows the place of the records that are to come."""
    targets = {topic.source: topic.target for topic in plan.topics}
    unusable: dict[TopicPartition, str] = {}
    for group in plan.groups:
        for offset in group.offsets:
            target = targets[offset.topic]
            if target in failed:
                unusable[TopicPartition(target, offset.partition)] = f"topic {offset.topic} is not restored"
    plans = _plan_by_map(cluster, plan, plan.groups, runs, unusable)
    captures = Captures(journal)
    return set_groups(cluster, captures, "restore", plan.target_cluster_id, plans)[0]


def _plan_by_map(
    cluster: Cluster,
    plan: RestorePlan,
    groups: Sequence[PlannedGroup],
    runs: Mapping[TopicPartition, Runs],
    unusable: Mapping[TopicPartition, str],
) -> tuple[GroupPlan, ...]:
    """Plan the offsets of `groups` on the target of the restore `plan`, by the runs of its offset map."""
    targets = {t.source: t.target for t in plan.topics}
    partitions = {TopicPartition(targets[o.topic], o.partition) for g in groups for o in g.offsets}
    maps, unmapped = offset_maps(cluster, plan, partitions - unusable.keys(), runs)
    plans = plan_groups(groups, targets, maps, {**unmapped, **unusable})
    return with_epochs(plans, cluster.leader_epochs(wants_epoch(plans)), same_log=False)


def offset_maps(
    cluster: Cluster, plan: RestorePlan, partitions: Iterable[TopicPartition], runs: Mapping[TopicPartition, Runs]
) -> tuple[dict[TopicPartition, OffsetMap], dict[TopicPartition, str]]:
    """Return, by target partition, the offset maps as the logs are now, and the reasons for those without one."""
    there = cluster.topics({tp.topic for tp in partitions})
    unusable: dict[TopicPartition, str] = {}
    usable: list[TopicPartition] = []
    for tp in sorted(partitions):
        if tp.topic in there and tp.partition in there[tp.topic].partitions:
            usable.append(tp)
        else:
            unusable[tp] = f"{tp} is not on the target"
    starts, ends = cluster.log_starts(usable), cluster.log_ends(usable, "read_uncommitted")
    stable_ends = cluster.log_ends(usable, "read_committed")  # a broker may not have written all markers yet
    maps: dict[TopicPartition, OffsetMap] = {}
    none = np.empty(0, np.int64)
    for tp in usable:
        source, target, count = runs.get(tp, (none, none, none))
        start, stable_end = starts[tp], stable_ends[tp]
        # records that others have written since are not skipped, unless they were there before
        following = stable_end if plan.into_existing else start
        if len(target):
            following = int(target[-1] + count[-1])
            if following > ends[tp]:
                unusable[tp] = f"{tp} ends at {ends[tp]}, and was restored up to {following}: it was made anew since"
                continue
            if plan.transactions and stable_end == following + 1:  # the marker behind the last record
                following = stable_end
        maps[tp] = OffsetMap(source, target, count, following, start)
    return maps, unusable


def share_groups(groups: Iterable[GroupPlan | GroupBefore]) -> set[str]:
    return {group.group for group in groups if group.type == SHARE}


def groups_with_members(cluster: Cluster, groups: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return, by group, why it must be left alone, '' without live members; and the reasons for the unknown ones."""
    members, unknown = cluster.groups.members(groups)
    return {group: f"it has {live}" if live else "" for group, live in members.items()}, unknown


def refused_groups(answers: Mapping[str, str]) -> dict[str, str]:
    return {group: why for group, why in answers.items() if why}


def set_groups(
    cluster: Cluster, captures: Captures, by: By, cluster_id: str, plans: Sequence[GroupPlan]
) -> tuple[tuple[GroupResult, ...], int]:
    """Commit the planned offsets, after the groups' own are captured. Return the results and the capture's number, 0
    where nothing was written. A group with live members is left alone."""
    share = share_groups(plans)
    alone, unknown = groups_with_members(cluster, [plan.group for plan in plans if plan.offsets])
    free = [group for group, why in alone.items() if not why]
    has, unread = cluster.groups.committed(free, share)
    before: list[GroupBefore] = []
    commits: dict[str, list[CommittedOffset]] = {}
    for plan in plans:
        if plan.group not in has:
            continue
        due = [offset.committed for offset in plan.offsets]
        commits[plan.group] = due
        offsets, writes = as_stored(has[plan.group]), as_stored(due)
        before.append(GroupBefore(group=plan.group, type=plan.type, offsets=offsets, writes=writes))
    if by == "restore":
        before = _resumed(before, _captured_by(captures, by))
    number = captures.write(by, cluster_id, groups=tuple(before)) if before else 0
    refusals = refused_groups(cluster.groups.commit_all(commits, share))
    not_set = _not_set(cluster, {group: commits[group] for group in refusals}, share)
    refused = unknown | unread | refusals
    results: list[GroupResult] = []
    for plan in plans:
        group = plan.group
        missing = not_set.get(group, [])
        status, why = _outcome(plan, refused.get(group, ""), alone.get(group, ""), missing)
        if status != "applied in part":
            missing = []  # all of it, or nothing, is set
        result = GroupResult(
            source=plan.source,
            group=group,
            status=status,
            why=why,
            offsets=tuple(_as_result(offset) for offset in plan.offsets),
            not_set=tuple(missing),
            left_out=plan.skipped,
        )
        results.append(result)
    return tuple(results), number


def _captured_by(captures: Captures, by: By) -> list[GroupBefore]:
    """Return the groups of the captures that were made by some kind of write, in order."""
    groups: list[GroupBefore] = []
    for capture in captures.every():
        if capture.by == by:
            groups += capture.groups
    return groups


def _as_result(planned: OffsetPlan) -> GroupOffsetResult:
    """Return a planned offset without what is committed beside it."""
    return GroupOffsetResult(
        topic=planned.topic, partition=planned.partition, source=planned.source, target=planned.target, how=planned.how
    )


def _not_set(cluster: Cluster, commits: Mapping[str, list[CommittedOffset]], share: set[str]) -> dict[str, list[str]]:
    """Return, by group, the partitions that do not have the offset of their commit. The broker is asked: it refuses a
    commit partition by partition, and takes the others. Groups that can't be read are left out."""
    has, _ = cluster.groups.committed(commits, share)
    not_set: dict[str, list[str]] = {}
    for group, offsets in has.items():
        positions = {each.tp: each.offset for each in offsets}
        not_set[group] = [str(each.tp) for each in commits[group] if positions.get(each.tp) != each.offset]
    return not_set


def _outcome(plan: GroupPlan, refused: str, alone: str, not_set: Sequence[str]) -> tuple[GroupStatus, str]:
    """Return the status of a group, and the reason why it was not set, or not in the partitions `not_set`."""
    if refused:
        is_partly_set = 0 < len(not_set) < len(plan.offsets)
        return ("applied in part" if is_partly_set else "refused"), refused
    if alone:
        return "left alone", alone
    if not plan.offsets:
        return "left alone", "it gets no offset"
    return "applied", ""


def not_applied(results: Sequence[GroupResult], *options: str) -> list[str]:
    """Return what was not set, each with the command that sets it. `options` are the options of `groups apply`."""

    def message(result: GroupResult) -> str:
        text = f"group {result.group} was not set: {result.why}"
        if result.not_set:
            text = f"group {result.group} was not set in {join_names(result.not_set, 5)}: {result.why}"
        if not result.offsets:
            return text
        renamed = () if result.group == result.source else ("--map-group", f"{result.source}={result.group}")
        command = kbackup_command("groups", "apply", *options, "--group", result.source, *renamed)
        return f"{text}; {FIRST_STEP[result.status]}, then: {command}"

    return [
        *(message(result) for result in results if result.status != "applied"),
        *(f"group {r.group} lacks an offset: {why}" for r in results for why in r.left_out),
    ]


FIRST_STEP = {"left alone": "stop it", "refused": "mend the cause", "applied in part": "mend the cause"}


# Planning and setting groups on their own: after a restore, however long ago, or on the source cluster itself.


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
    """`hindered` is the reason why it would not be set."""

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
        hindered = [g for g in self.groups if g.hindered]
        return [
            *(f"group {g.group} can't be set: {g.hindered}; mend that before 'kbackup groups apply'" for g in hindered),
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
    plan, whole = RestoreJournal(state, options.restore_id).finished()
    check_same_target(plan, cluster_id)
    selection = select_for_restore(store, plan, moment, options)
    plans = _plan_by_map(cluster, plan, selection.groups, runs_by_partition(whole), selection.unusable)
    return Prepared(plan.restore_id, cluster_id, selection, plans, same_offsets=False)


def _prepare_same(cluster: Cluster, cluster_id: str, store: Store, options: Restore, moment: Moment) -> Prepared:
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
    plans = plan_groups(selection.groups, {tp.topic: tp.topic for tp in partitions}, maps, unusable)
    plans = with_epochs(plans, cluster.leader_epochs(wants_epoch(plans)), same_log=True)
    restore_id = options.restore_id or f"groups-{now()[:10]}-{uuid.uuid4().hex[:8]}"
    return Prepared(restore_id, cluster_id, selection, plans, same_offsets=True)


def _changed(cluster: Cluster, manifest: Manifest, partitions: set[TopicPartition]) -> dict[TopicPartition, str]:
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
    share = share_groups(prepared.plans)
    alone, failed = groups_with_members(cluster, groups)
    committed, unread = cluster.groups.committed(groups, share)
    hindered = alone | failed | unread
    has = {(g, c.tp): c.offset for g, offsets in committed.items() for c in offsets}
    return GroupsPlanReport(
        restore_id=prepared.restore_id if named else None,
        restore_point=prepared.selection.restore_point,
        captured_at=prepared.selection.captured_at,
        target_cluster_id=prepared.cluster_id,
        groups=tuple(
            PlannedGroupReport(
                source=p.source,
                group=p.group,
                hindered=hindered.get(p.group) or ("" if p.offsets else "it gets no offset"),
                offsets=tuple(PlannedOffset(**asdict(o), now=has.get((p.group, o.tp))) for o in p.offsets),
                left_out=p.skipped,
            )
            for p in prepared.plans
        ),
    )


def apply(cluster: Cluster, state: Store, prepared: Prepared) -> GroupsReport:
    """Set the prepared offsets, after the groups' own are captured."""
    captures = Captures(RestoreJournal(state, prepared.restore_id))
    results, number = set_groups(cluster, captures, "apply", prepared.cluster_id, prepared.plans)
    return GroupsReport(
        restore_id=prepared.restore_id,
        restore_point=prepared.selection.restore_point,
        captured_at=prepared.selection.captured_at,
        target_cluster_id=prepared.cluster_id,
        capture=number,
        same_offsets=prepared.same_offsets,
        groups=tuple(sorted(results, key=lambda r: r.group)),
    )
