"""Plan offsets of groups on a target: which groups, by which mapping, at which records. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from kbackup.archive.models import Group, Manifest, Member
from kbackup.archive.query.content import Content, captured_by, with_offsets
from kbackup.archive.query.groups import ArchivedGroups, groups_at, java_groups
from kbackup.archive.query.java import JAVA, open_archive_or_folder
from kbackup.archive.query.selection import Selection, check_selection, exact_entry
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.restores.offset_map import How, OffsetMap, SameLog
from kbackup.archive.restores.plan import PlannedGroup, RestorePlan
from kbackup.config.models import Restore
from kbackup.config.windows import parse_range
from kbackup.errors import RefusedError, UsageError
from kbackup.store.base import Store
from kbackup.types import CommittedOffset, TopicPartition
from kbackup.util.times import time_text


def map_groups(
    content: Content, names: Mapping[str, str], selection: Selection | None, renamed: Mapping[str, str]
) -> tuple[PlannedGroup, ...]:
    """`selection` None: no groups. `RefusedError` if two would become one."""
    planned: dict[str, PlannedGroup] = {}
    for group, ours in _asked_offsets(content, names).items():
        target = renamed.get(group, group)
        if selection is None or not selection.matches(group):
            continue
        if target in planned:
            raise RefusedError(
                f"groups {planned[target].source} and {group} would both become {target}", "map one of them elsewhere"
            )
        planned[target] = PlannedGroup(source=group, target=target, type=ours.type, offsets=ours.offsets)
    return tuple(planned.values())


def check_groups(content: Content, names: Container[str], selection: Selection | None, renamed: Iterable[str]) -> None:
    """Raise `UsageError` for a group that is selected or renamed by name and has no offsets: its records would come
    back without it, or it would be set under its old name. If a window ends before all captures, there are no groups to
    restore: notes explain that, unless one is named."""
    if selection is None:
        return
    if content.restore_point and content.choice is not None and content.choice.groups_as_of is None:
        named = [*selection.names, *renamed]
        if not named:
            return
        why_not = f"group {named[0]} can't be restored: no restore point was captured"
        if content.choice.to_time is not None:
            why_not += f" at or before {time_text(content.choice.to_time)}"
        hint = "leave groups alone with --no-groups; 'kbackup groups apply --restore-point N' sets them later"
        raise UsageError(why_not, hint)
    where = "with offsets of what is restored"
    hint = "see 'kbackup groups show', or leave groups alone with --no-groups"
    why = content.not_carried
    # a warning names the groups that a regular expression selects and no capture carries
    uncaptured = {group for group in why if group not in selection.names and selection.matches(group)}
    known = uncaptured | _asked_offsets(content, names).keys()
    check_selection(selection, "group", known, where, hint, why)
    renamed_groups = Selection(tuple(exact_entry(group) for group in renamed))
    check_selection(renamed_groups, "group", content.groups, where, hint, why)


def _asked_offsets(content: Content, names: Container[str]) -> dict[str, Group]:
    """Return the groups that have offsets of restored partitions, with these."""
    unasked = {(t.name, p.partition) for t in content.topics for p in t.partitions if p.window and p.window.nothing}
    asked = [
        with_offsets(g, (o for o in g.offsets if o.topic in names and (o.topic, o.partition) not in unasked))
        for g in content.groups.values()
    ]
    return {group.group: group for group in asked if group.offsets}


# Plan the offsets that each consumer group gets on a target.


class GroupOffsetResult(Member, frozen=True, kw_only=True):
    """`source` was committed for the archived partition, `target` is where that record is in `topic`, which is the
    target's."""

    topic: str
    partition: int
    source: int
    target: int
    how: How


class OffsetPlan(GroupOffsetResult, frozen=True, kw_only=True):
    """`leader_epoch` and `metadata` go with the offset."""

    leader_epoch: int | None = None
    metadata: str = ""

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def committed(self) -> CommittedOffset:
        return CommittedOffset(self.tp, self.target, self.leader_epoch, self.metadata)


class GroupPlan(Member, frozen=True, kw_only=True):
    """`skipped` names the offsets that the group can't get, each with the reason."""

    source: str
    group: str
    type: str = ""
    offsets: tuple[OffsetPlan, ...]
    skipped: tuple[str, ...] = ()


def plan_groups(
    groups: Iterable[PlannedGroup],
    targets: Mapping[str, str],
    maps: Mapping[TopicPartition, OffsetMap | SameLog],
    unusable: Mapping[TopicPartition, str],
) -> tuple[GroupPlan, ...]:
    """Plan the offsets of each group on the target. `targets` are the topics' new names, `maps` and `unusable` (with
    the reason) are by target partition."""

    def planned(group: PlannedGroup) -> GroupPlan:
        offsets: list[OffsetPlan] = []
        skipped: list[str] = []
        for o in group.offsets:
            tp = TopicPartition(targets[o.topic], o.partition)
            if tp in unusable:
                skipped.append(unusable[tp])
                continue
            target, how = maps[tp].map(o.offset)
            offsets.append(
                OffsetPlan(
                    topic=tp.topic,
                    partition=tp.partition,
                    source=o.offset,
                    target=target,
                    how=how,
                    leader_epoch=o.leader_epoch,
                    metadata=o.metadata,
                )
            )
        reasons = tuple(dict.fromkeys(skipped))  # one reason may hold for each partition of a topic
        return GroupPlan(
            source=group.source, group=group.target, type=group.type, offsets=tuple(offsets), skipped=reasons
        )

    return tuple(map(planned, groups))


def wants_epoch(plans: Sequence[GroupPlan]) -> set[TopicPartition]:
    """Return the partitions whose current leader epoch `with_epochs` may need."""
    return {o.tp for plan in plans for o in plan.offsets if o.leader_epoch is not None}


def with_epochs(
    plans: Sequence[GroupPlan], epochs: Mapping[TopicPartition, int | None], same_log: bool
) -> tuple[GroupPlan, ...]:
    """Set the leader epochs of the target's log: its current one where the group had committed one.

    A source's epoch is of another log: a consumer that checks it against the target's log finds an end of that epoch
    before its offset, takes that for a truncation, and resets. In the `same_log` an unchanged offset keeps its epoch.
    """

    def offset(planned: OffsetPlan) -> OffsetPlan:
        if planned.leader_epoch is None or (same_log and planned.how == "exact"):
            return planned
        return msgspec.structs.replace(planned, leader_epoch=epochs[planned.tp])

    return tuple(msgspec.structs.replace(plan, offsets=tuple(map(offset, plan.offsets))) for plan in plans)


# Select the groups, their time and the new names of their topics for `kbackup groups`.


@dataclass(frozen=True)
class Moment:
    """The time of the groups: a restore point's number, or a time in ms since the epoch; or neither."""

    backup: str | None = None
    at: int | None = None

    def __bool__(self) -> bool:
        return self.backup is not None or self.at is not None

    def of(self, archive: Archive, default: int | str = "latest") -> Manifest:
        """Return the restore point; by time, the newest restore point whose groups were captured by then. `UsageError`
        where there is none."""
        if self.at is None:
            return archive.restore_point(self.backup or default)
        point, _, why = captured_by(archive, archive.restore_points, self.at)
        if point is None:
            raise UsageError(why, "see 'kbackup list'")
        return point


@dataclass(frozen=True)
class GroupSelection:
    """`groups` with their new names; `unusable` maps target partitions to the reason why they can't be used."""

    restore_point: int
    captured_at: str | None
    groups: tuple[PlannedGroup, ...]
    unusable: Mapping[TopicPartition, str] = field(default_factory=dict)


def select_for_restore(store: Store, plan: RestorePlan, moment: Moment, options: Restore) -> GroupSelection:
    """Select the groups of the topics of `plan`: as of its own restore point, or of `moment`. Without a choice of
    groups those that the restore was about, or all where it left groups alone."""
    names = {t.source: t.target for t in plan.topics}
    unusable: dict[TopicPartition, str] = {}
    archive = open_archive(store) if moment else open_archive_or_folder(store)
    if plan.archive_id != (archive.info.id if archive is not None else JAVA):
        raise RefusedError(
            f"restore {plan.restore_id} is of another archive", "name the archive that it was restored from"
        )
    if archive is None:
        archived = java_groups(store, list(names))
    else:
        as_of = plan.restore_point if plan.choice is None else plan.choice.groups_as_of
        if as_of is None and not moment:
            raise UsageError(
                f"restore {plan.restore_id} is of a time at which no groups were captured",
                "select the time of the groups with --restore-point or --to-time",
            )
        manifest = moment.of(archive, as_of or plan.restore_point)
        states = [t for t in manifest.topics if t.name in names]
        archived = groups_at(archive, manifest, states)
        if plan.choice is not None and plan.choice.ranges:  # other partitions' offsets can't be translated
            asked = {(r.topic, r.partition) for r in map(parse_range, plan.choice.ranges)}
            inside = (
                with_offsets(g, [o for o in g.offsets if (o.topic, o.partition) in asked]) for g in archived.groups
            )
            archived = replace(archived, groups=tuple(g for g in inside if g.offsets))
        restored = {t.source: t.incarnation for t in plan.topics}
        why = f"it was made anew between restore points {plan.restore_point} and {manifest.number}"
        unusable = {
            TopicPartition(names[state.name], p.partition): f"{state.name}-{p.partition} is another log: {why}"
            for state in states
            if state.incarnation != restored[state.name]
            for p in state.partitions
        }
    renamed = {g.source: g.target for g in plan.groups} | dict(options.map_group)
    known = tuple(g.source for g in plan.groups)
    return _selected(archived, names, options, known, renamed, unusable)


def select_same_cluster(archive: Archive, moment: Moment, options: Restore) -> tuple[GroupSelection, Manifest]:
    """Select the groups of a restore point for the cluster that it was taken of."""
    manifest = moment.of(archive)
    states = [t for t in manifest.topics if t.state != "deleted"]
    names = {t.name: t.name for t in states}
    archived = groups_at(archive, manifest, states)
    return _selected(archived, names, options, (), dict(options.map_group), {}), manifest


def _selected(
    archived: ArchivedGroups,
    names: Mapping[str, str],
    options: Restore,
    default: tuple[str, ...],
    renamed: Mapping[str, str],
    unusable: Mapping[TopicPartition, str],
) -> GroupSelection:
    by_name = {g.group: g for g in archived.groups}
    selection = Selection.of(options.groups, options.exclude_groups)
    selected = {
        group: each
        for group, each in by_name.items()
        if selection.matches(group) and (options.groups or not default or group in default)
    }
    where, hint = "to be set, with offsets of the restored topics", "see 'kbackup groups show'"
    check_selection(selection, "group", by_name, where, hint, archived.not_carried)
    check_selection(Selection(tuple(options.map_group)), "group", selected, where, hint, archived.not_carried)
    content = Content("", archived.restore_point, (), selected)
    groups = map_groups(content, names, Selection(), renamed)
    return GroupSelection(archived.restore_point, archived.captured_at, groups, unusable)
