"""Set consumer groups on the target to the same records as in the source, and undo it."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import msgspec
import numpy as np
from msgspec.structs import asdict

from kbackup.archive.models import SHARE, Manifest
from kbackup.archive.reader import open_archive
from kbackup.archive.restores.journal import RestoreJournal
from kbackup.archive.restores.offset_map import OffsetMap, Runs, SameLog, runs_by_partition
from kbackup.archive.restores.plan import PlannedGroup, RestorePlan, check_same_target
from kbackup.errors import RefusedError, UsageError
from kbackup.jobs.groups.documents import By, Captures, GroupBefore, as_stored, offsets_by_partition
from kbackup.jobs.groups.plan import (
    GroupOffsetResult,
    GroupPlan,
    GroupSelection,
    GroupsRequest,
    OffsetPlan,
    plan_groups,
    select_for_restore,
    select_same_cluster,
    wants_epoch,
    with_epochs,
)
from kbackup.jobs.groups.report import (
    GroupResult,
    GroupsPlanReport,
    GroupsReport,
    GroupStatus,
    PlannedGroupReport,
    PlannedOffset,
)
from kbackup.kafka.control.cluster import Cluster
from kbackup.store.base import Store
from kbackup.types import CommittedOffset, Int64Array, TopicPartition
from kbackup.util.times import now


def _resumed(fresh: Sequence[GroupBefore], earlier: Sequence[GroupBefore]) -> list[GroupBefore]:
    """Return the captures of a repeated write, so that an undo goes back to the offsets before the first write.

    The writes before it (`earlier`, in order) were interrupted or refused in part. Where one of them had set an offset
    that is still there, the offset before that write counts; elsewhere, the offset of `fresh`."""
    # A large group is written in portions, so that a write may have set some of its partitions only: each partition is
    # judged on its own.
    offsets_of = {group.group: offsets_by_partition(group.offsets) for group in fresh}
    for before in reversed(earlier):
        offsets = offsets_of.get(before.group)
        if not offsets:
            continue
        written = offsets_by_partition(before.writes)
        had = offsets_by_partition(before.offsets)
        for partition, offset in list(offsets.items()):
            if written.get(partition) != offset:
                continue
            del offsets[partition]
            if partition in had:
                offsets[partition] = had[partition]
    captures: list[GroupBefore] = []
    for group in fresh:
        offsets = offsets_of[group.group]
        in_order = [offsets[partition] for partition in sorted(offsets)]
        captures.append(msgspec.structs.replace(group, offsets=tuple(in_order)))
    return captures


# Set groups by the offset map of a restore.


def committed_offsets(plan: RestorePlan) -> dict[TopicPartition, Int64Array]:
    """Return the offsets of the plan's groups in the source, by target partition."""
    targets = plan.targets
    offsets = defaultdict[TopicPartition, set[int]](set)
    for group in plan.groups:
        for position in group.offsets:
            tp = TopicPartition(targets[position.topic], position.partition)
            offsets[tp].add(position.offset)
    by_partition: dict[TopicPartition, Int64Array] = {}
    for tp, of_partition in offsets.items():
        in_order = sorted(of_partition)
        by_partition[tp] = np.array(in_order, np.int64)
    return by_partition


def restore_groups(
    cluster: Cluster,
    journal: RestoreJournal,
    plan: RestorePlan,
    runs: Mapping[TopicPartition, Runs],
    failed: Container[str] = (),
) -> tuple[GroupResult, ...]:
    """Set the groups of a restore, by the runs of its offset map; their own offsets are captured before. In topics that
    `failed` (by their names on the target) no offset is set: nobody knows the place of the records that are to come."""
    # The other offsets of such a group are set: it goes on in the topics that are there.
    targets = plan.targets
    unusable: dict[TopicPartition, str] = {}
    for group in plan.groups:
        for offset in group.offsets:
            target = targets[offset.topic]
            if target in failed:
                unusable[TopicPartition(target, offset.partition)] = f"topic {offset.topic} is not restored"
    plans = _plan_by_map(cluster, plan, plan.groups, runs, unusable)
    captures = Captures(journal)
    results, _ = set_groups(cluster, captures, "restore", plan.target_cluster_id, plans)
    return results


def _plan_by_map(
    cluster: Cluster,
    plan: RestorePlan,
    groups: Sequence[PlannedGroup],
    runs: Mapping[TopicPartition, Runs],
    unusable: Mapping[TopicPartition, str],
) -> tuple[GroupPlan, ...]:
    """Plan the offsets of `groups` on the target of the restore `plan`, by the runs of its offset map."""
    targets = plan.targets
    partitions = _target_partitions(groups, targets)
    maps, unmapped = offset_maps(cluster, plan, partitions - unusable.keys(), runs)
    plans = plan_groups(groups, targets, maps, {**unmapped, **unusable})
    epochs = cluster.leader_epochs(wants_epoch(plans))
    return with_epochs(plans, epochs, same_log=False)


def _target_partitions(groups: Iterable[PlannedGroup], targets: Mapping[str, str]) -> set[TopicPartition]:
    partitions: set[TopicPartition] = set()
    for group in groups:
        for offset in group.offsets:
            target = targets[offset.topic]
            partitions.add(TopicPartition(target, offset.partition))
    return partitions


def offset_maps(
    cluster: Cluster, plan: RestorePlan, partitions: Iterable[TopicPartition], runs: Mapping[TopicPartition, Runs]
) -> tuple[dict[TopicPartition, OffsetMap | SameLog], dict[TopicPartition, str]]:
    """Return, by target partition, the offset maps as the logs are now, and the reasons for partitions without a
    map."""
    topics = cluster.topics({tp.topic for tp in partitions})
    unusable: dict[TopicPartition, str] = {}
    usable: list[TopicPartition] = []
    for tp in sorted(partitions):
        topic = topics.get(tp.topic)
        if topic is not None and tp.partition in topic.partitions:
            usable.append(tp)
        else:
            unusable[tp] = f"{tp} is not on the target"
    starts = cluster.log_starts(usable)
    ends = cluster.log_ends(usable, "read_uncommitted")
    # These ends may still be lower: a broker may not have written all markers of transactions yet.
    stable_ends = cluster.log_ends(usable, "read_committed")
    maps: dict[TopicPartition, OffsetMap | SameLog] = {}
    none = np.empty(0, np.int64)
    for tp in usable:
        source, target, count = runs.get(tp, (none, none, none))
        stable_end = stable_ends[tp]
        restored_to = int(target[-1] + count[-1]) if len(target) else 0
        if restored_to > ends[tp]:
            # Records that the map knows are not in the log. Another log would give groups other records.
            unusable[tp] = f"{tp} ends at {ends[tp]}, and was restored up to {restored_to}: it was created again since"
            continue
        if plan.keeps_offsets:
            maps[tp] = SameLog(starts[tp], ends[tp])
            continue
        if len(target):
            # A group that had read all restored records goes on here.
            following = restored_to
            if plan.transactions and stable_end == following + 1:
                # Only the marker of the restore's last transaction lies behind the last record. A group that stood
                # before that marker would show a lag of one for good.
                following = stable_end
        elif plan.into_existing:
            # Nothing was restored here: for all that is known, the records were there before, and groups skip them.
            following = stable_end
        else:
            # The topic was empty. Records that others have written since are new to the groups.
            following = starts[tp]
        maps[tp] = OffsetMap(source, target, count, following, starts[tp])
    return maps, unusable


def share_groups(groups: Iterable[GroupPlan | GroupBefore]) -> set[str]:
    return {group.group for group in groups if group.type == SHARE}


def groups_with_members(cluster: Cluster, groups: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return, by group, why it must be left alone ('' if it has no live members), and why nothing is known of it."""
    # Brokers refuse offsets from outside while a group has members, and the members would commit theirs over ours.
    members, unknown = cluster.groups.members(groups)
    alone: dict[str, str] = {}
    for group, live in members.items():
        alone[group] = f"it has {live}" if live else ""
    return alone, unknown


def refused_groups(answers: Mapping[str, str]) -> dict[str, str]:
    return {group: why for group, why in answers.items() if why}


def set_groups(
    cluster: Cluster, captures: Captures, by: By, cluster_id: str, plans: Sequence[GroupPlan]
) -> tuple[tuple[GroupResult, ...], int]:
    """Commit the planned offsets, after the groups' own are captured. Return the results and the capture's number, 0
    if nothing was written. A group with live members is left alone."""
    share = share_groups(plans)  # their offsets are read and set by requests of their own
    wanted = [plan.group for plan in plans if plan.offsets]
    alone, unknown = groups_with_members(cluster, wanted)
    free = [group for group, why in alone.items() if not why]
    current, unread = cluster.groups.committed(free, share)
    before: list[GroupBefore] = []
    commits: dict[str, list[CommittedOffset]] = {}
    for plan in plans:
        if plan.group not in current:
            continue
        commits[plan.group] = [offset.committed for offset in plan.offsets]
        offsets = as_stored(current[plan.group])
        writes = as_stored(commits[plan.group])
        before.append(GroupBefore(group=plan.group, type=plan.type, offsets=offsets, writes=writes))
    # A restore is repeated under its id until all is done. Each `groups apply` is a change of its own instead: its undo
    # goes back to the offsets right before it.
    if by == "restore":
        before = _resumed(before, _captured_by(captures, by))
    # Before the commits: if this process is killed among them, the capture still says what each group had.
    number = captures.write(by, cluster_id, groups=tuple(before)) if before else 0
    refusals = refused_groups(cluster.groups.commit_all(commits, share))
    refused_commits = {group: commits[group] for group in refusals}
    not_set = _not_set(cluster, refused_commits, share)
    refused = unknown | unread | refusals
    results: list[GroupResult] = []
    for plan in plans:
        group = plan.group
        result = _result(plan, refused.get(group, ""), alone.get(group, ""), not_set.get(group, []))
        results.append(result)
    return tuple(results), number


def _result(plan: GroupPlan, refused: str, alone: str, not_set: Sequence[str]) -> GroupResult:
    """Return the outcome of a group. `refused` and `alone` are reasons why it was not set, or only apart from the
    partitions `not_set`."""
    status, why = _outcome(plan, refused, alone, not_set)
    if status != "applied in part":
        not_set = []  # all partitions are set, or none
    offsets = [_as_result(offset) for offset in plan.offsets]
    return GroupResult(
        source=plan.source,
        group=plan.group,
        status=status,
        why=why,
        offsets=tuple(offsets),
        not_set=tuple(not_set),
        left_out=plan.skipped,
    )


def _captured_by(captures: Captures, by: By) -> list[GroupBefore]:
    """Return the groups of all captures before writes of one kind, in order."""
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
    """Return, by group, the partitions that do not have the offset of their commit. Groups that can't be read are left
    out."""
    # A broker refuses a commit partition by partition, and takes the others: only the offsets that it has now tell.
    current, _ = cluster.groups.committed(commits, share)
    not_set: dict[str, list[str]] = {}
    for group, offsets in current.items():
        positions = {committed.tp: committed.offset for committed in offsets}
        not_set[group] = []
        for commit in commits[group]:
            if positions.get(commit.tp) != commit.offset:
                not_set[group].append(str(commit.tp))
    return not_set


def _outcome(plan: GroupPlan, refused: str, alone: str, not_set: Sequence[str]) -> tuple[GroupStatus, str]:
    """Return the status of a group, and the reason why it was not set, or not in the partitions `not_set`."""
    if refused and 0 < len(not_set) < len(plan.offsets):
        return "applied in part", refused
    if refused:
        return "refused", refused
    if alone:
        return "left alone", alone
    if not plan.offsets:
        return "left alone", "it gets no offset"
    return "applied", ""


# Plan and set groups on their own: after a restore, however long ago, or on the source cluster itself.


@dataclass(frozen=True)
class Prepared:
    """Offsets to write, and the cluster to write to. The capture before the write goes into the folder of
    `restore_id`."""

    restore_id: str
    cluster_id: str
    selection: GroupSelection
    plans: tuple[GroupPlan, ...]
    same_offsets: bool


def prepare(cluster: Cluster, store: Store, state: Store, request: GroupsRequest) -> Prepared:
    """Plan the offsets to set, by the offset map of the restore that the request names; with `same_offsets` without any
    map, on the cluster that was archived."""
    cluster_id, _ = cluster.connect()
    if request.same_offsets:
        return _prepare_same(cluster, cluster_id, store, request)
    if request.restore_id is None:
        raise UsageError("no restore is named", "give --restore-id, or --same-offsets on the source cluster")
    plan, whole = RestoreJournal(state, request.restore_id).finished()
    check_same_target(plan, cluster_id)
    selection = select_for_restore(store, plan, request)
    runs = runs_by_partition(whole)
    plans = _plan_by_map(cluster, plan, selection.groups, runs, selection.unusable)
    return Prepared(plan.restore_id, cluster_id, selection, plans, same_offsets=False)


def _prepare_same(cluster: Cluster, cluster_id: str, store: Store, request: GroupsRequest) -> Prepared:
    selection, manifest = select_same_cluster(open_archive(store), request)
    if manifest.cluster_id != cluster_id:
        source = f"restore point {manifest.number} is of cluster {manifest.cluster_id}"
        raise RefusedError(
            f"{source}, this is {cluster_id}: offsets are not the same there",
            "name the source cluster as [target], or restore into this cluster and use --restore-id",
        )
    names = {topic.name: topic.name for topic in manifest.topics}
    partitions = _target_partitions(selection.groups, names)
    unusable = _changed(cluster, manifest, partitions)
    usable = partitions - unusable.keys()
    # The log's own bounds: records may have expired since, or the log may have been cut.
    starts = cluster.log_starts(usable)
    ends = cluster.log_ends(usable, "read_uncommitted")
    maps = {tp: SameLog(starts[tp], ends[tp]) for tp in usable}
    plans = plan_groups(selection.groups, names, maps, unusable)
    epochs = cluster.leader_epochs(wants_epoch(plans))
    plans = with_epochs(plans, epochs, same_log=True)
    # There is no restore, but the capture needs an id, by which it can be undone.
    restore_id = request.restore_id or f"groups-{now()[:10]}-{uuid.uuid4().hex[:8]}"
    return Prepared(restore_id, cluster_id, selection, plans, same_offsets=True)


def _changed(cluster: Cluster, manifest: Manifest, partitions: set[TopicPartition]) -> dict[TopicPartition, str]:
    """Return partitions that are not the archived ones any more, with the reasons."""
    archived_ids = {topic.name: topic.id for topic in manifest.topics}
    topics = cluster.topics({tp.topic for tp in partitions})
    # Equal names are not enough: in a topic that was created again, the archived offsets mean other records.
    changed: dict[TopicPartition, str] = {}
    for tp in partitions:
        topic = topics.get(tp.topic)
        if topic is None or tp.partition not in topic.partitions:
            changed[tp] = f"{tp} is not on the target"
        elif topic.id != archived_ids[tp.topic]:
            changed[tp] = f"{tp} is another log: the topic was created again since"
    return changed


def plan_report(cluster: Cluster, prepared: Prepared, named: bool) -> GroupsPlanReport:
    """Report the offsets that groups would get and the ones they have. `named`: a restore is named."""
    # The plan asks what `apply` asks before it writes, so that a group that would be left alone is seen here.
    group_names = [plan.group for plan in prepared.plans]
    alone, unknown = groups_with_members(cluster, group_names)
    committed, unread = cluster.groups.committed(group_names, share_groups(prepared.plans))
    hindered = alone | unknown | unread
    groups: list[PlannedGroupReport] = []
    for plan in prepared.plans:
        current = {offset.tp: offset.offset for offset in committed.get(plan.group, ())}
        reason = hindered.get(plan.group, "")
        if not reason and not plan.offsets:
            reason = "it gets no offset"
        offsets = [PlannedOffset(**asdict(offset), now=current.get(offset.tp)) for offset in plan.offsets]
        group = PlannedGroupReport(
            source=plan.source, group=plan.group, hindered=reason, offsets=tuple(offsets), left_out=plan.skipped
        )
        groups.append(group)
    return GroupsPlanReport(
        restore_id=prepared.restore_id if named else None,
        restore_point=prepared.selection.restore_point,
        captured_at=prepared.selection.captured_at,
        target_cluster_id=prepared.cluster_id,
        groups=tuple(groups),
    )


def apply(cluster: Cluster, state: Store, prepared: Prepared) -> GroupsReport:
    """Set the prepared offsets, after the groups' own are captured."""
    captures = Captures(RestoreJournal(state, prepared.restore_id))
    results, number = set_groups(cluster, captures, "apply", prepared.cluster_id, prepared.plans)
    in_order = sorted(results, key=attrgetter("group"))
    return GroupsReport(
        restore_id=prepared.restore_id,
        restore_point=prepared.selection.restore_point,
        captured_at=prepared.selection.captured_at,
        target_cluster_id=prepared.cluster_id,
        capture=number,
        same_offsets=prepared.same_offsets,
        groups=tuple(in_order),
    )
