"""Reports about consumer groups: the outcome of setting them, and the plan of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from kbackup.archive.models import Member
from kbackup.jobs.groups.plan import GroupOffsetResult, OffsetPlan
from kbackup.util.text import join_names, kbackup_command

GroupStatus = Literal["applied", "applied in part", "left alone", "refused"]

FIRST_STEP = {"left alone": "stop it", "refused": "mend the cause", "applied in part": "mend the cause"}
"""By the status of a group that was not set, what must be done before it can be set."""


class GroupResult(Member, frozen=True, kw_only=True):
    """The outcome of a group. `why` is the reason if it was not set, or not in all its partitions, which `not_set`
    names then. `left_out` names offsets that it can't get, each with the reason."""

    source: str
    group: str
    status: GroupStatus
    why: str = ""
    offsets: tuple[GroupOffsetResult, ...]
    not_set: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def not_applied(results: Sequence[GroupResult], *options: str) -> list[str]:
    """Return in words the groups that were not set, each with the command that sets it, and the offsets that groups
    lack. `options` are the options of `groups apply`."""
    messages: list[str] = []
    for result in results:
        if result.status != "applied":
            messages.append(_failure(result, options))
    for result in results:
        messages += [f"group {result.group} lacks an offset: {why}" for why in result.left_out]
    return messages


def _failure(result: GroupResult, options: Sequence[str]) -> str:
    name = f"group {result.group}"
    if result.not_set:
        text = f"{name} was not set in {join_names(result.not_set, 5)}: {result.why}"
    else:
        text = f"{name} was not set: {result.why}"
    if not result.offsets:  # there is nothing to set
        return text
    words = ["groups", "apply", *options, "--group", result.source]
    if result.group != result.source:
        words += ["--map-group", f"{result.source}={result.group}"]
    return f"{text}; {FIRST_STEP[result.status]}, then: {kbackup_command(*words)}"


class PlannedOffset(OffsetPlan, frozen=True, kw_only=True):
    """A planned offset, with the offset that the group has `now` (null: none)."""

    now: int | None


class PlannedGroupReport(Member, frozen=True, kw_only=True):
    """`hindered` is the reason why the group would not be set."""

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
        """Return in words the groups that can't be set, and the offsets that groups would lack."""
        messages: list[str] = []
        for group in self.groups:
            if group.hindered:
                reason = f"group {group.group} can't be set: {group.hindered}"
                messages.append(f"{reason}; mend that before 'kbackup groups apply'")
        for group in self.groups:
            messages += [f"group {group.group} would lack an offset: {why}" for why in group.left_out]
        return messages


class GroupsReport(Member, frozen=True, kw_only=True):
    """`capture` is the number of the capture of the offsets that the groups had before; 0: nothing was written.
    `same_offsets`: the target is the cluster that was archived."""

    restore_id: str
    restore_point: int
    captured_at: str | None
    target_cluster_id: str
    capture: int
    same_offsets: bool
    groups: tuple[GroupResult, ...]

    @property
    def missing(self) -> list[str]:
        """Return in words the groups that were not set, and the offsets that groups lack."""
        if self.same_offsets:
            # With the id, the undo that was announced for it undoes the repeated command as well.
            point = str(self.restore_point)
            options = ["--same-offsets", "--restore-point", point, "--restore-id", self.restore_id]
        else:
            options = ["--restore-id", self.restore_id]
        return not_applied(self.groups, *options)
