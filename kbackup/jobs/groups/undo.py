"""Undo what was written to groups. The first half is pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kbackup.archive.models import GroupOffset, Member
from kbackup.archive.query.selection import Selection, check_selection
from kbackup.errors import NotFoundError, RefusedError, UsageError
from kbackup.jobs.groups.before import (
    NONE,
    Captures,
    GroupBefore,
    GroupsBefore,
    as_committed,
    as_stored,
    by_topic_partition,
)
from kbackup.kafka.admin.cluster import Cluster
from kbackup.store.base import Store
from kbackup.util.commands import kbackup_command
from kbackup.util.text import plural

UndoStatus = Literal["put back", "deleted", "nothing to do", "left alone", "refused"]


@dataclass(frozen=True, slots=True)
class Undo:
    """`sets` are commits to make; `removes` are partitions without a commit before, which have one now. `unchanged` are
    the offsets that the group has elsewhere, or has there already."""

    group: str
    sets: tuple[GroupOffset, ...]
    removes: tuple[GroupOffset, ...]
    unchanged: tuple[GroupOffset, ...]

    @property
    def deletes(self) -> bool:
        """Return whether the undo deletes the whole group."""
        return bool(self.removes) and not self.sets and not self.unchanged

    @property
    def writes(self) -> tuple[GroupOffset, ...]:
        """Return the changed offsets as a capture stores them."""
        removed = (GroupOffset(topic=o.topic, partition=o.partition, offset=NONE) for o in self.removes)
        return (*self.sets, *removed)


def undo_of(before: GroupBefore, now: Sequence[GroupOffset]) -> Undo:
    """Return the undo that turns `now` back into `before`, in the partitions that were written to."""
    had, has = by_topic_partition(before.offsets), by_topic_partition(now)
    touched = set(by_topic_partition(before.writes))
    sets = [
        had[partition] for partition in sorted(touched & had.keys()) if has.get(partition) != had[partition]
    ]
    removes = [has[partition] for partition in sorted((touched & has.keys()) - had.keys())]
    written = set(by_topic_partition(sets)) | set(by_topic_partition(removes))
    unchanged = [o for partition, o in sorted(has.items()) if partition not in written]
    return Undo(before.group, tuple(sets), tuple(removes), tuple(unchanged))


class UndoResult(Member, frozen=True, kw_only=True):
    """Partitions: `set_back` to what they had, `removed` for having had nothing, `kept` as they are."""

    group: str
    status: UndoStatus
    why: str = ""
    set_back: int
    removed: int
    kept: int


class UndoReport(Member, frozen=True, kw_only=True):
    """`undone` is the capture that was put back, `number` the one that undoes this (0: nothing was written)."""

    restore_id: str
    undone: int
    by: str
    captured_at: str
    number: int
    groups: tuple[UndoResult, ...]

    @property
    def missing(self) -> list[str]:
        return [self._not_put_back(g) for g in self.groups if g.why]

    def _not_put_back(self, result: UndoResult) -> str:
        first = "stop it" if result.status == "left alone" else "mend the cause"
        options = "--restore-id", self.restore_id, str(self.undone), "--group", result.group
        command = kbackup_command("groups", "undo", *options)
        return f"group {result.group} was not put back: {result.why}; {first}, then: {command}"


def undo(
    cluster: Cluster, state: Store, restore_id: str, number: int | None, selection: Selection
) -> UndoReport:
    """Put capture `number` back (default: the newest that was not made by an undo). A group with live members is
    left alone. A group that had nothing is deleted."""
    cluster_id, _ = cluster.connect()
    captures = Captures(state, restore_id)
    before = _chosen(captures, number)
    if before.target_cluster_id != cluster_id:
        raise RefusedError(
            f"capture {before.number} of restore {restore_id} is of cluster {before.target_cluster_id}, "
            f"this is {cluster_id}",
            "name that cluster as the target",
        )
    check_selection(
        selection,
        "group",
        [g.group for g in before.groups],
        f"in capture {before.number} of restore {restore_id}",
        "leave --group out to put back all of them",
    )
    selected = {g.group: g for g in before.groups if selection.matches(g.group)}
    has, unread = cluster.groups.committed(selected)
    now_there = {group: as_stored(offsets) for group, offsets in has.items()}
    undos = {group: undo_of(selected[group], offsets) for group, offsets in now_there.items()}
    members, unknown = cluster.groups.members(g for g, u in undos.items() if u.writes)
    alone = {group: f"it has {plural(n, 'live member')}" for group, n in members.items() if n}
    going = [undos[group] for group, n in members.items() if not n]
    written = (
        captures.write(
            "undo",
            cluster_id,
            [GroupBefore(group=u.group, offsets=now_there[u.group], writes=u.writes) for u in going],
        )
        if going
        else 0
    )
    refused = unread | unknown | _write(cluster, going)
    return UndoReport(
        restore_id=restore_id,
        undone=before.number,
        by=before.by,
        captured_at=before.captured_at,
        number=written,
        groups=tuple(
            _result(group, undos.get(group), alone.get(group, ""), refused.get(group, ""))
            for group in selected
        ),
    )


def _chosen(captures: Captures, number: int | None) -> GroupsBefore:
    if number is not None:
        try:
            return captures.read(number)
        except NotFoundError as error:
            known = ", ".join(map(str, captures.numbers())) or "none"
            raise UsageError(
                f"restore {captures.restore_id} has no capture {number} of its groups",
                f"use one of its captures: {known}",
            ) from error
    for capture in reversed(captures.every()):
        if capture.by != "undo":
            return capture
    raise UsageError(
        f"nothing was written to groups by restore {captures.restore_id}",
        "check the restore id, and --state if its files are not in the archive",
    )


def _write(cluster: Cluster, going: Sequence[Undo]) -> dict[str, str]:
    """Write the undos; return why groups were refused. Commits are set before others are removed."""
    refused = _refused(cluster.groups.commit_all({u.group: as_committed(u.sets) for u in going if u.sets}))
    removes = {u.group: as_committed(u.removes) for u in going if u.removes and u.group not in refused}
    refused |= _refused(cluster.groups.remove(removes))
    return refused | _refused(
        cluster.groups.delete_each(u.group for u in going if u.deletes and u.group not in refused)
    )


def _refused(answers: Mapping[str, str]) -> dict[str, str]:
    return {group: why for group, why in answers.items() if why}


def _result(group: str, undo: Undo | None, alone: str, refused: str) -> UndoResult:
    status: UndoStatus = "put back"
    if refused:
        status = "refused"
    elif alone:
        status = "left alone"
    elif undo is None or not undo.writes:
        status = "nothing to do"
    elif undo.deletes:
        status = "deleted"
    counts = (len(undo.sets), len(undo.removes), len(undo.unchanged)) if undo is not None else (0, 0, 0)
    return UndoResult(
        group=group,
        status=status,
        why=refused or alone,
        set_back=counts[0],
        removed=counts[1],
        kept=counts[2],
    )
