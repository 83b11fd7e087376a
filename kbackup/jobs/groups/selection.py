"""Select the groups, their time and the new names of their topics for `kbackup groups`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec

from kbackup.archive.java.content import is_java_archive
from kbackup.archive.models import Manifest
from kbackup.archive.query.content import Content
from kbackup.archive.query.group_overview import ArchivedGroups, groups_at, java_groups
from kbackup.archive.query.moment import captured_by
from kbackup.archive.query.selection import Selection, check_selection
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.restores.plan import PlannedGroup, RestorePlan
from kbackup.config import parse_range
from kbackup.config.jobs import Restore
from kbackup.errors import NoArchiveError, RefusedError, UsageError
from kbackup.jobs.groups.mapping import plan_groups
from kbackup.store.base import Store
from kbackup.types import TopicPartition


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
    """`groups` with their new names; `unusable` says why a target partition can't serve them."""

    restore_point: int
    captured_at: str | None
    groups: tuple[PlannedGroup, ...]
    unusable: Mapping[TopicPartition, str] = field(default_factory=dict)


def select_for_restore(store: Store, plan: RestorePlan, moment: Moment, options: Restore) -> GroupSelection:
    """Select the groups of the topics of `plan`: as of its own restore point, or of `moment`. Without a choice of
    groups those that the restore was about, or all where it left groups alone."""
    names = {t.source: t.target for t in plan.topics}
    unusable: dict[TopicPartition, str] = {}
    try:
        archive = open_archive(store)
    except NoArchiveError:
        if moment or not is_java_archive(store):
            raise
        _check_archive(plan, "java")
        archived = java_groups(store, list(names))
    else:
        _check_archive(plan, archive.info.id)
        manifest = moment.of(archive, _default_point(plan, moment))
        states = [t for t in manifest.topics if t.name in names]
        archived = _within(plan, groups_at(archive, manifest, states))
        restored = {t.source: t.incarnation for t in plan.topics}
        for state in states:
            if state.incarnation != restored[state.name]:
                why = f"it was made anew between restore points {plan.restore_point} and {manifest.number}"
                for p in state.partitions:
                    partition = TopicPartition(names[state.name], p.partition)
                    unusable[partition] = f"{state.name}-{p.partition} is another log: {why}"
    renamed = {g.source: g.target for g in plan.groups} | dict(options.map_group)
    known = tuple(g.source for g in plan.groups)
    return _selected(archived, names, options, known, renamed, unusable)


def _default_point(plan: RestorePlan, moment: Moment) -> int:
    """The restore point that the restore's own groups are of."""
    if plan.choice is None:
        return plan.restore_point
    if plan.choice.groups_as_of is None and not moment:
        raise UsageError(
            f"restore {plan.restore_id} is of a time at which no groups were captured",
            "select the time of the groups with --restore-point or --to-time",
        )
    return plan.choice.groups_as_of or plan.restore_point


def _within(plan: RestorePlan, archived: ArchivedGroups) -> ArchivedGroups:
    """Remove partitions outside the ranges of a restore: their offsets can't be translated."""
    ranges = plan.choice.ranges if plan.choice is not None else ()
    asked = {(r.topic, r.partition) for r in map(parse_range, ranges)}
    if not asked:
        return archived
    inside = [
        (group, tuple(o for o in group.offsets if (o.topic, o.partition) in asked))
        for group in archived.groups
    ]
    groups = (msgspec.structs.replace(group, offsets=offsets) for group, offsets in inside if offsets)
    return replace(archived, groups=tuple(groups))


def select_same_cluster(
    archive: Archive, moment: Moment, options: Restore
) -> tuple[GroupSelection, Manifest]:
    """Select the groups of a restore point for the cluster that it was taken of."""
    manifest = moment.of(archive)
    states = [t for t in manifest.topics if t.state != "deleted"]
    archived = groups_at(archive, manifest, states)
    names = {t.name: t.name for t in states}
    return _selected(archived, names, options, (), dict(options.map_group), {}), manifest


def _check_archive(plan: RestorePlan, archive_id: str) -> None:
    if plan.archive_id != archive_id:
        raise RefusedError(
            f"restore {plan.restore_id} is of another archive", "name the archive that it was restored from"
        )


def _selected(
    archived: ArchivedGroups,
    names: Mapping[str, str],
    options: Restore,
    default: tuple[str, ...],
    renamed: Mapping[str, str],
    unusable: Mapping[TopicPartition, str],
) -> GroupSelection:
    offsets_by_group = {g.group: g.offsets for g in archived.groups}
    selection = Selection.of(options.groups, options.exclude_groups)
    selected = {
        group: offsets
        for group, offsets in offsets_by_group.items()
        if selection.matches(group) and (options.groups or not default or group in default)
    }
    where, hint = "to be set, with offsets of the restored topics", "see 'kbackup groups show'"
    check_selection(selection, "group", offsets_by_group, where, hint, archived.not_carried)
    check_selection(Selection(tuple(options.map_group)), "group", selected, where, hint, archived.not_carried)
    content = Content("", archived.restore_point, (), selected)
    groups = plan_groups(content, names, Selection(), renamed)
    return GroupSelection(archived.restore_point, archived.captured_at, groups, unusable)
