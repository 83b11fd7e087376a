"""Undo what was written to groups: by a restore, by `groups apply`, or by another undo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from kbackup.archive.models import GroupOffset, Member
from kbackup.archive.query.selection import Selection, check_selection
from kbackup.archive.restores.journal import RestoreJournal
from kbackup.archive.restores.plan import RestorePlan
from kbackup.errors import NotFoundError, RefusedError, UsageError
from kbackup.jobs.groups.documents import (
    NONE,
    Captures,
    GroupBefore,
    GroupsBefore,
    as_committed,
    as_stored,
    offsets_by_partition,
)
from kbackup.jobs.groups.job import groups_with_members, refused_groups, share_groups
from kbackup.jobs.groups.report import FIRST_STEP
from kbackup.kafka.control.cluster import Cluster
from kbackup.types import CommittedOffset, TopicPartition
from kbackup.util.text import join_names, kbackup_command

UndoStatus = Literal[
    "planned", "put back", "put back in part", "deleted", "nothing to do", "changed since", "left alone", "refused"
]


@dataclass(frozen=True, slots=True)
class Undo:
    """`sets` are commits to make; `removes` are commits of partitions that had none before. `unchanged` are the offsets
    that stay: of other partitions, there already, or of a `moved` partition, whose offset is no longer the written one,
    because somebody has set or deleted it since."""

    group: str
    sets: tuple[GroupOffset, ...]
    removes: tuple[GroupOffset, ...]
    unchanged: tuple[GroupOffset, ...]
    moved: tuple[TopicPartition, ...] = ()

    @property
    def deletes(self) -> bool:
        """Return whether the undo deletes the whole group."""
        return bool(self.removes) and not self.sets and not self.unchanged

    @property
    def writes(self) -> tuple[GroupOffset, ...]:
        """Return the changed offsets as a capture stores them."""
        removed = [GroupOffset(topic=offset.topic, partition=offset.partition, offset=NONE) for offset in self.removes]
        return (*self.sets, *removed)


def undo_of(before: GroupBefore, now: Sequence[GroupOffset]) -> Undo:
    """Return the undo that turns `now` back into `before`, in the partitions that still have what was written. Pure."""
    had = offsets_by_partition(before.offsets)
    current = offsets_by_partition(now)
    written = offsets_by_partition(before.writes)
    sets: list[GroupOffset] = []
    removes: list[GroupOffset] = []
    moved: list[TopicPartition] = []
    for tp in sorted(written):
        former_offset = had.get(tp)
        current_offset = current.get(tp)
        if current_offset == former_offset:
            # The write was refused here, or was put back already.
            continue
        position = NONE if current_offset is None else current_offset.offset
        if position != written[tp].offset:
            # The group has read on since, or somebody else has set it: that must not be lost.
            moved.append(tp)
        elif former_offset is not None:
            sets.append(former_offset)
        elif current_offset is not None:
            removes.append(current_offset)
    changed = offsets_by_partition([*sets, *removes])
    unchanged = [offset for tp, offset in sorted(current.items()) if tp not in changed]
    return Undo(before.group, tuple(sets), tuple(removes), tuple(unchanged), tuple(moved))


class UndoResult(Member, frozen=True, kw_only=True):
    """Counts of partitions: `set_back` to the offset that they had, `removed` because they had none, and `kept` as they
    are, of which `moved` have changed since they were written."""

    group: str
    status: UndoStatus
    why: str = ""
    set_back: int
    removed: int
    kept: int
    moved: int = 0


class GroupUndoReport(Member, frozen=True, kw_only=True):
    """`undone` is the capture that was put back, `number` the capture that undoes this (0: nothing was written). Unless
    `confirmed`, it is a plan, and nothing was written. `unproven` are documents of which nothing proves that the
    restore wrote them."""

    restore_id: str
    undone: int
    by: str
    captured_at: str
    number: int
    groups: tuple[UndoResult, ...]
    confirmed: bool = True
    unproven: tuple[str, ...] = ()

    @property
    def missing(self) -> list[str]:
        """Return in words the groups that were not put back, each with the command that does it."""
        options = ("groups", "undo", "--confirm", "--restore-id", self.restore_id, str(self.undone), "--group")
        missing: list[str] = []
        for group in self.groups:
            if not group.why:
                continue
            text = f"group {group.group} was not put back: {group.why}"
            first_step = FIRST_STEP.get(group.status)
            if first_step is not None:
                text += f"; {first_step}, then: {kbackup_command(*options, group.group)}"
            missing.append(text)
        return missing


def _check_planned(plan: RestorePlan | None, before: GroupsBefore, where: str) -> None:
    """Raise `RefusedError` if a capture names a group or a partition that the plan of its restore does not: somebody
    else has written it. Offsets that were set without a restore (`groups apply --same-offsets`) have no plan."""
    if plan is None:
        return
    # Whoever may write to the bucket could name any group here, and the undo would delete it.
    partitions = {topic.target: topic.partitions for topic in plan.topics}
    groups = {group.target for group in plan.groups}
    hint = "find out who wrote it; the restore's plan is plan.json beside it"
    for group in before.groups:
        if before.by == "restore" and group.group not in groups:
            raise RefusedError(f"{where} names group {group.group}, which the restore's plan does not", hint)
        for offset in group.writes:
            if offset.partition >= partitions.get(offset.topic, 0):
                place = f"{offset.topic}-{offset.partition} of group {group.group}"
                raise RefusedError(f"{where} names {place}, which the restore's plan does not", hint)


def _put_back(cluster: Cluster, undos: Sequence[Undo], share: set[str]) -> dict[str, str]:
    """Put groups back; return, by group, why the broker refused. Commits are set before others are removed."""
    sets = {undo.group: as_committed(undo.sets) for undo in undos if undo.sets}
    refused = refused_groups(cluster.groups.commit_all(sets, share))
    # Where a broker refused the first step the second is left out, so that an undo in part still has offsets to go back
    # to.
    removes: dict[str, list[CommittedOffset]] = {}
    for undo in undos:
        if undo.removes and undo.group not in refused:
            removes[undo.group] = as_committed(undo.removes)
    refused |= refused_groups(cluster.groups.remove(removes, share))
    deletes = [undo.group for undo in undos if undo.deletes and undo.group not in refused]
    return refused | refused_groups(cluster.groups.delete_each(deletes))


def _chosen(captures: Captures, number: int | None) -> GroupsBefore:
    """Return capture `number`, or the newest one that was not made by an undo."""
    if number is not None:
        try:
            return captures.read(number)
        except NotFoundError as error:
            known = ", ".join(str(known_number) for known_number in captures.numbers())
            raise UsageError(
                f"restore {captures.restore_id} has no capture {number} of its groups",
                f"use one of its captures: {known or 'none'}",
            ) from error
    # An undo makes a capture as well. Without its number nobody means that one: a second undo would redo the first.
    for capture in reversed(captures.every()):
        if capture.by != "undo":
            return capture
    raise UsageError(
        f"nothing was written to groups by restore {captures.restore_id}",
        "check the restore id, and --state if its files are not in the archive",
    )


def _undo_result(
    group: str, undo: Undo | None, alone: str, refused: str, remaining: Undo | None, confirmed: bool
) -> UndoResult:
    """Return the outcome of a group. `undo` is None if nothing is known of the group. `remaining` is the undo that is
    left to do after a refusal, None if it is unknown: then nothing counts as put back."""
    if undo is None:
        undo = Undo(group, (), (), ())
    set_back = len(undo.sets)
    removed = len(undo.removes)
    if refused:
        not_done = undo if remaining is None else remaining
        set_back -= len(not_done.sets)
        removed -= len(not_done.removes)
    status: UndoStatus
    # The gravest first: why nothing was done comes before what was to be done.
    if refused:
        status = "put back in part" if set_back or removed else "refused"
    elif alone:
        status = "left alone"
    elif not undo.writes:
        status = "changed since" if undo.moved else "nothing to do"
    elif not confirmed:
        status = "planned"
    elif undo.moved:
        status = "put back in part"
    elif undo.deletes:
        status = "deleted"
    else:
        status = "put back"
    why = refused or alone
    if undo.moved and not why:
        places = join_names([str(tp) for tp in undo.moved], 5)
        why = f"its offsets in {places} were changed since, and stay"
    return UndoResult(
        group=group,
        status=status,
        why=why,
        set_back=set_back,
        removed=removed,
        kept=len(undo.unchanged),
        moved=len(undo.moved),
    )


@dataclass(frozen=True)
class PlannedGroupsUndo:
    """A capture to put back on the cluster that it was taken of.

    By group: `selected` are the captured offsets, `offsets_now` the offsets that the group has now, `undos` the changes
    from these to the captured ones, `alone` why a group with live members is left alone ('' for others), and `unknown`
    why nothing is known of the group.
    """

    cluster_id: str
    before: GroupsBefore
    selected: Mapping[str, GroupBefore]
    offsets_now: Mapping[str, tuple[GroupOffset, ...]]
    undos: Mapping[str, Undo]
    alone: Mapping[str, str]
    unknown: Mapping[str, str]


@dataclass(frozen=True)
class GroupsUndo:
    """Puts capture `number` of groups back (an `UndoSteps`); None is the newest capture that was not made by an undo.

    A group with live members is left alone, and so is an offset that was moved since. A group that had nothing is
    deleted.
    """

    cluster: Cluster
    journal: RestoreJournal
    number: int | None = None
    selection: Selection = Selection()  # noqa: RUF009 (immutable)

    def plan(self) -> PlannedGroupsUndo:
        """Plan the undo of each selected group. `RefusedError` for a capture of another cluster, and for a capture that
        the restore's own plan does not bear out."""
        cluster_id, _ = self.cluster.connect()
        before = _chosen(Captures(self.journal), self.number)
        where = f"capture {before.number} of restore {self.journal.restore_id}"
        if before.target_cluster_id != cluster_id:
            raise RefusedError(
                f"{where} is of cluster {before.target_cluster_id}, this is {cluster_id}",
                "name that cluster as the target",
            )
        _check_planned(self.journal.begun(), before, where)
        names = [group.group for group in before.groups]
        check_selection(self.selection, "group", names, f"in {where}", "leave --group out to put back all of them")
        selected = {group.group: group for group in before.groups if self.selection.matches(group.group)}
        current, unread = self.cluster.groups.committed(selected, share_groups(before.groups))
        offsets_now: dict[str, tuple[GroupOffset, ...]] = {}
        undos: dict[str, Undo] = {}
        for group, offsets in current.items():
            offsets_now[group] = as_stored(offsets)
            undos[group] = undo_of(selected[group], offsets_now[group])
        # A group without a change needs no look at its members: it may go on reading.
        changed = [group for group, undo in undos.items() if undo.writes]
        alone, unknown = groups_with_members(self.cluster, changed)
        return PlannedGroupsUndo(cluster_id, before, selected, offsets_now, undos, alone, unread | unknown)

    def planned_report(self, planned: PlannedGroupsUndo) -> GroupUndoReport:
        results: list[UndoResult] = []
        for group in planned.selected:
            undo = planned.undos.get(group)
            alone = planned.alone.get(group, "")
            refused = planned.unknown.get(group, "")
            results.append(_undo_result(group, undo, alone, refused, None, confirmed=False))
        return self._report(planned, 0, results, confirmed=False)

    def carry_out(self, planned: PlannedGroupsUndo) -> GroupUndoReport:
        """Put the groups back, after their offsets of now are captured."""
        share = share_groups(planned.before.groups)
        without_members = [planned.undos[group] for group, why in planned.alone.items() if not why]
        # Before the first change: an undo that is killed can be undone itself.
        number = self._capture(planned, without_members) if without_members else 0
        refused = _put_back(self.cluster, without_members, share)
        # Brokers refuse a commit partition by partition: only the offsets that such groups have now tell how much was
        # put back.
        current, _ = self.cluster.groups.committed(refused, share)
        remaining: dict[str, Undo] = {}
        for group, offsets in current.items():
            remaining[group] = undo_of(planned.selected[group], as_stored(offsets))
        refused |= planned.unknown
        results: list[UndoResult] = []
        for group in planned.selected:
            undo = planned.undos.get(group)
            alone = planned.alone.get(group, "")
            why = refused.get(group, "")
            results.append(_undo_result(group, undo, alone, why, remaining.get(group), confirmed=True))
        return self._report(planned, number, results, confirmed=True)

    def _capture(self, planned: PlannedGroupsUndo, undos: Sequence[Undo]) -> int:
        """Store the offsets that are about to be changed, so that the undo can be undone. Return the capture's
        number."""
        captured: list[GroupBefore] = []
        for undo in undos:
            selected = planned.selected[undo.group]
            offsets = planned.offsets_now[undo.group]
            captured.append(msgspec.structs.replace(selected, offsets=offsets, writes=undo.writes))
        return Captures(self.journal).write("undo", planned.cluster_id, groups=tuple(captured))

    def _report(
        self, planned: PlannedGroupsUndo, number: int, results: Sequence[UndoResult], *, confirmed: bool
    ) -> GroupUndoReport:
        return GroupUndoReport(
            restore_id=self.journal.restore_id,
            undone=planned.before.number,
            by=planned.before.by,
            captured_at=planned.before.captured_at,
            number=number,
            groups=tuple(results),
            confirmed=confirmed,
        )
