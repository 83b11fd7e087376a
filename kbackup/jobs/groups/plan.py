"""Plan offsets of groups on a target: which groups, by which mapping, at which records. Pure."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from kbackup.archive.models import Group, Manifest, Member, TopicState
from kbackup.archive.query.content import Content, captured_by, with_offsets
from kbackup.archive.query.groups import ArchivedGroups, groups_at, java_groups
from kbackup.archive.query.java import JAVA, open_archive_or_folder
from kbackup.archive.query.selection import Selection, check_selection, exact_entry
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.restores.offset_map import How, OffsetMap, SameLog
from kbackup.archive.restores.plan import PlannedGroup, RestorePlan
from kbackup.config.windows import parse_range
from kbackup.errors import RefusedError, UsageError
from kbackup.store.base import Store
from kbackup.types import CommittedOffset, TopicPartition
from kbackup.util.times import time_text


def map_groups(
    content: Content, names: Mapping[str, str], selection: Selection | None, renamed: Mapping[str, str]
) -> tuple[PlannedGroup, ...]:
    """Plan the selected groups under their new names; `selection` None: no groups. `UsageError` for an empty new
    name, and `RefusedError` if two would become one."""
    if selection is None:
        return ()
    planned: dict[str, PlannedGroup] = {}
    for name, group in _asked_offsets(content, names).items():
        if not selection.matches(name):
            continue
        target = renamed.get(name, name)
        # Old groups may have an empty name of their own, which brokers give to no new group.
        if name and not target:
            raise UsageError(f"group {name} can't get an empty name", "give --map-group a name after the '='")
        if target in planned:
            other = planned[target].source
            raise RefusedError(f"groups {other} and {name} would both become {target}", "map one of them elsewhere")
        planned[target] = PlannedGroup(source=name, target=target, type=group.type, offsets=group.offsets)
    return tuple(planned.values())


def check_groups(content: Content, names: Container[str], selection: Selection | None, renamed: Iterable[str]) -> None:
    """Raise `UsageError` for a group that is selected or renamed by name and has no offsets: its records would come
    back without it, or it would be set under its old name. If a window ends before all captures, there are no groups to
    restore: notes explain that, unless a group is named."""
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
    # A group that a regular expression selects and no capture has is no error: a warning names it.
    uncaptured = {group for group in why if group not in selection.names and selection.matches(group)}
    known = uncaptured | _asked_offsets(content, names).keys()
    check_selection(selection, "group", known, where, hint, why)
    renamed_groups = Selection(tuple(exact_entry(group) for group in renamed))
    check_selection(renamed_groups, "group", content.groups, where, hint, why)


def _asked_offsets(content: Content, names: Container[str]) -> dict[str, Group]:
    """Return the groups that have offsets of restored partitions, with these offsets."""
    # A partition of which a window selects nothing gets no records: an offset in it would mean none.
    left_out: set[tuple[str, int]] = set()
    for topic in content.topics:
        for partition in topic.partitions:
            if partition.window and partition.window.nothing:
                left_out.add((topic.name, partition.partition))
    asked: dict[str, Group] = {}
    for group in content.groups.values():
        offsets = [offset for offset in group.offsets if offset.topic in names]
        restored = [offset for offset in offsets if (offset.topic, offset.partition) not in left_out]
        if restored:
            asked[group.group] = with_offsets(group, restored)
    return asked


# Plan the offsets that each consumer group gets on a target.


class GroupOffsetResult(Member, frozen=True, kw_only=True):
    """Offset `source` was committed for the archived partition; its record has offset `target` in `topic`, which is
    the target's."""

    topic: str
    partition: int
    source: int
    target: int
    how: How


class OffsetPlan(GroupOffsetResult, frozen=True, kw_only=True):
    """`leader_epoch` and `metadata` are committed with the offset."""

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
    return tuple(_plan_group(group, targets, maps, unusable) for group in groups)


def _plan_group(
    group: PlannedGroup,
    targets: Mapping[str, str],
    maps: Mapping[TopicPartition, OffsetMap | SameLog],
    unusable: Mapping[TopicPartition, str],
) -> GroupPlan:
    offsets: list[OffsetPlan] = []
    skipped: dict[str, None] = {}  # a reason may hold for every partition of a topic, and is told once
    for archived in group.offsets:
        tp = TopicPartition(targets[archived.topic], archived.partition)
        if tp in unusable:
            skipped[unusable[tp]] = None
            continue
        target, how = maps[tp].map(archived.offset)
        planned = OffsetPlan(
            topic=tp.topic,
            partition=tp.partition,
            source=archived.offset,
            target=target,
            how=how,
            leader_epoch=archived.leader_epoch,
            metadata=archived.metadata,
        )
        offsets.append(planned)
    return GroupPlan(
        source=group.source, group=group.target, type=group.type, offsets=tuple(offsets), skipped=tuple(skipped)
    )


def wants_epoch(plans: Sequence[GroupPlan]) -> set[TopicPartition]:
    """Return the partitions whose current leader epoch `with_epochs` may need."""
    partitions: set[TopicPartition] = set()
    for plan in plans:
        partitions.update(offset.tp for offset in plan.offsets if offset.leader_epoch is not None)
    return partitions


def with_epochs(
    plans: Sequence[GroupPlan], epochs: Mapping[TopicPartition, int | None], same_log: bool
) -> tuple[GroupPlan, ...]:
    """Set the leader epochs of the target's log: its current one where the group had committed one.

    A source's epoch is of another log: a consumer that checks it against the target's log finds an end of that epoch
    before its offset, takes that for a truncation, and resets. In the `same_log` an unchanged offset keeps its epoch.
    """

    def with_epoch(planned: OffsetPlan) -> OffsetPlan:
        if planned.leader_epoch is None or (same_log and planned.how == "exact"):
            return planned
        return msgspec.structs.replace(planned, leader_epoch=epochs[planned.tp])

    changed: list[GroupPlan] = []
    for plan in plans:
        offsets = tuple(with_epoch(offset) for offset in plan.offsets)
        changed.append(msgspec.structs.replace(plan, offsets=offsets))
    return tuple(changed)


# Select the groups, their time and the new names of their topics for `kbackup groups`.


@dataclass(frozen=True)
class Moment:
    """The time of the groups: a restore point by its number or label, or a time in ms since the epoch; or neither."""

    restore_point: str | None = None
    at: int | None = None

    def __bool__(self) -> bool:
        return self.restore_point is not None or self.at is not None

    def of(self, archive: Archive, default: int | str = "latest") -> Manifest:
        """Return the restore point; by time, the newest restore point whose groups were captured by then. `UsageError`
        where there is none."""
        if self.at is None:
            return archive.restore_point(self.restore_point or default)
        point, _, why = captured_by(archive, archive.restore_points, self.at)
        if point is None:
            oldest = archive.restore_points[0]
            raise UsageError(
                f"{why}; the oldest, restore point {oldest.number}, was begun at {oldest.started_at}",
                "give a later time; 'kbackup list' shows the restore points",
            )
        return point


@dataclass(frozen=True, kw_only=True)
class GroupsRequest:
    """Groups to set apart from a restore: the groups of `selection` as of `moment`, renamed by `new_names`.

    Their offsets are translated by the offset map of the restore `restore_id`, or set unchanged with `same_offsets`."""

    restore_id: str | None = None
    same_offsets: bool = False
    moment: Moment = Moment()
    selection: Selection = Selection()  # noqa: RUF009 (immutable)
    new_names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class GroupSelection:
    """`groups` with their new names; `unusable` maps target partitions to the reason why they can't be used."""

    restore_point: int
    captured_at: str | None
    groups: tuple[PlannedGroup, ...]
    unusable: Mapping[TopicPartition, str] = field(default_factory=dict)


def select_for_restore(store: Store, plan: RestorePlan, request: GroupsRequest) -> GroupSelection:
    """Select the groups of the topics of `plan`: as of its own restore point, or as of the requested moment. If the
    request names no groups, they are the groups that the restore was about, or all if it left groups alone."""
    names = plan.targets
    unusable: dict[TopicPartition, str] = {}
    # A folder of the Java tool has no restore points, and so no other moment than its own.
    archive = open_archive(store) if request.moment else open_archive_or_folder(store)
    archive_id = JAVA if archive is None else archive.info.id
    if plan.archive_id != archive_id:
        raise RefusedError(
            f"restore {plan.restore_id} is of another archive", "name the archive that it was restored from"
        )
    if archive is None:
        archived = java_groups(store, list(names))
    else:
        manifest = _manifest_of_groups(archive, plan, request.moment)
        states = [topic for topic in manifest.topics if topic.name in names]
        archived = groups_at(archive, manifest, states)
        if plan.choice is not None and plan.choice.ranges:
            archived = _within_ranges(archived, plan.choice.ranges)
        unusable = _other_logs(plan, manifest, states, names)
    # The restore's own new names stay, unless the request gives others.
    new_names = {group.source: group.target for group in plan.groups}
    new_names.update(request.new_names)
    restored = [group.source for group in plan.groups]
    return _selected(archived, names, request, restored, new_names, unusable)


def _manifest_of_groups(archive: Archive, plan: RestorePlan, moment: Moment) -> Manifest:
    """Return the restore point whose groups are to be set."""
    as_of = plan.restore_point if plan.choice is None else plan.choice.groups_as_of
    if as_of is None and not moment:
        raise UsageError(
            f"restore {plan.restore_id} is of a time at which no groups were captured",
            "select the time of the groups with --restore-point or --to-time",
        )
    return moment.of(archive, as_of or plan.restore_point)


def _within_ranges(archived: ArchivedGroups, ranges: Iterable[str]) -> ArchivedGroups:
    """Return the groups with their offsets of the restored partitions: offsets of others can't be translated."""
    restored: set[tuple[str, int | None]] = set()
    for text in ranges:
        restored_range = parse_range(text)
        restored.add((restored_range.topic, restored_range.partition))
    groups: list[Group] = []
    for group in archived.groups:
        offsets = [offset for offset in group.offsets if (offset.topic, offset.partition) in restored]
        if offsets:
            groups.append(with_offsets(group, offsets))
    return replace(archived, groups=tuple(groups))


def _other_logs(
    plan: RestorePlan, manifest: Manifest, states: Iterable[TopicState], names: Mapping[str, str]
) -> dict[TopicPartition, str]:
    """Return, by target partition, why offsets of `manifest` can't be translated: they are of another incarnation of
    the topic than the restored one."""
    # The offset map is of the restored incarnation: in another one, the same offset is another record.
    restored = {topic.source: topic.incarnation for topic in plan.topics}
    why = f"it was created again between restore points {plan.restore_point} and {manifest.number}"
    unusable: dict[TopicPartition, str] = {}
    for state in states:
        if state.incarnation == restored[state.name]:
            continue
        for partition in state.partitions:
            tp = TopicPartition(names[state.name], partition.partition)
            unusable[tp] = f"{state.name}-{partition.partition} is another log: {why}"
    return unusable


def select_same_cluster(archive: Archive, request: GroupsRequest) -> tuple[GroupSelection, Manifest]:
    """Select the groups of a restore point for the cluster that the restore point was taken of."""
    manifest = request.moment.of(archive)
    states = [topic for topic in manifest.topics if topic.state != "deleted"]
    names = {topic.name: topic.name for topic in states}
    archived = groups_at(archive, manifest, states)
    return _selected(archived, names, request, (), request.new_names, {}), manifest


def _selected(
    archived: ArchivedGroups,
    names: Mapping[str, str],
    request: GroupsRequest,
    restored: Collection[str],
    new_names: Mapping[str, str],
    unusable: Mapping[TopicPartition, str],
) -> GroupSelection:
    """Return the requested groups; if the request names none, the groups that were `restored`, if there are any."""
    by_name = {group.group: group for group in archived.groups}
    selection = request.selection
    selected: dict[str, Group] = {}
    for name, group in by_name.items():
        is_named = bool(selection.include) or not restored or name in restored
        if is_named and selection.matches(name):
            selected[name] = group
    where = "to be set, with offsets of the restored topics"
    hint = "see 'kbackup groups show'"
    check_selection(selection, "group", by_name, where, hint, archived.not_carried)
    check_selection(Selection(tuple(request.new_names)), "group", selected, where, hint, archived.not_carried)
    # The same rules for names as in a restore, which has a content: this one has nothing but the groups.
    content = Content("", archived.restore_point, (), selected)
    groups = map_groups(content, names, Selection(), new_names)
    return GroupSelection(archived.restore_point, archived.captured_at, groups, unusable)
