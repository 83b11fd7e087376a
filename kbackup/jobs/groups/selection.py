"""Which groups, as of when, and where their topics went: what `kbackup groups` works on."""

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
    """As of when: a restore point's number, or a time in ms since the epoch; or neither."""

    backup: str | None = None
    at: int | None = None

    def __bool__(self) -> bool:
        return self.backup is not None or self.at is not None

    def of(self, archive: Archive, default: int | str = "latest") -> Manifest:
        """By time: the newest restore point whose groups were captured by then. `UsageError` where there is
        none."""
        if self.at is None:
            return archive.restore_point(self.backup or default)
        point, _, why = captured_by(archive, archive.restore_points, self.at)
        if point is None:
            raise UsageError(why, "see 'kbackup list'")
        return point


@dataclass(frozen=True)
class Chosen:
    """`groups` with their new names; `unusable` says why a target partition can't serve them."""

    restore_point: int
    captured_at: str | None
    groups: tuple[PlannedGroup, ...]
    unusable: Mapping[TopicPartition, str] = field(default_factory=dict)


def choose_for_restore(store: Store, plan: RestorePlan, moment: Moment, options: Restore) -> Chosen:
    """The groups of the topics of `plan`: as of its own restore point, or of `moment`. Without a choice of groups
    those that the restore was about, or all where it left groups alone."""
    names = {t.source: t.target for t in plan.topics}
    unusable: dict[TopicPartition, str] = {}
    try:
        archive = open_archive(store)
    except NoArchiveError:
        if moment or not is_java_archive(store):
            raise
        _check_archive(plan, "java")
        found = java_groups(store, list(names))
    else:
        _check_archive(plan, archive.info.id)
        manifest = moment.of(archive, _default_point(plan, moment))
        states = [t for t in manifest.topics if t.name in names]
        found = _within(plan, groups_at(archive, manifest, states))
        restored = {t.source: t.incarnation for t in plan.topics}
        for state in states:
            if state.incarnation != restored[state.name]:
                why = f"it was made anew between restore points {plan.restore_point} and {manifest.number}"
                for p in state.partitions:
                    place = TopicPartition(names[state.name], p.partition)
                    unusable[place] = f"{state.name}-{p.partition} is another log: {why}"
    renamed = {g.source: g.target for g in plan.groups} | dict(options.map_group)
    known = tuple(g.source for g in plan.groups)
    return _selected(found, names, options, known, renamed, unusable)


def _default_point(plan: RestorePlan, moment: Moment) -> int:
    """The restore point that the restore's own groups are of."""
    if plan.choice is None:
        return plan.restore_point
    if plan.choice.groups_as_of is None and not moment:
        raise UsageError(
            f"restore {plan.restore_id} is of a time at which no groups were captured",
            "say as of when they are to be set: --backup or --at",
        )
    return plan.choice.groups_as_of or plan.restore_point


def _within(plan: RestorePlan, found: ArchivedGroups) -> ArchivedGroups:
    """Without partitions that a restore of ranges was not about: nothing can be said of them."""
    ranges = plan.choice.ranges if plan.choice is not None else ()
    asked = {(r.topic, r.partition) for r in map(parse_range, ranges)}
    if not asked:
        return found
    kept = [
        (group, tuple(o for o in group.offsets if (o.topic, o.partition) in asked)) for group in found.groups
    ]
    groups = (msgspec.structs.replace(group, offsets=offsets) for group, offsets in kept if offsets)
    return replace(found, groups=tuple(groups))


def choose_same(archive: Archive, moment: Moment, options: Restore) -> tuple[Chosen, Manifest]:
    """The groups of a restore point for the cluster that it was taken of."""
    manifest = moment.of(archive)
    states = [t for t in manifest.topics if t.state != "deleted"]
    found = groups_at(archive, manifest, states)
    names = {t.name: t.name for t in states}
    return _selected(found, names, options, (), dict(options.map_group), {}), manifest


def _check_archive(plan: RestorePlan, archive_id: str) -> None:
    if plan.archive_id != archive_id:
        raise RefusedError(
            f"restore {plan.restore_id} is of another archive", "name the archive that it was restored from"
        )


def _selected(
    found: ArchivedGroups,
    names: Mapping[str, str],
    options: Restore,
    default: tuple[str, ...],
    renamed: Mapping[str, str],
    unusable: Mapping[TopicPartition, str],
) -> Chosen:
    there = {g.group: g.offsets for g in found.groups}
    selection = Selection.of(options.groups, options.exclude_groups)
    chosen = {
        group: offsets
        for group, offsets in there.items()
        if selection.matches(group) and (options.groups or not default or group in default)
    }
    where, hint = "to be set, with offsets of the restored topics", "see 'kbackup groups show'"
    check_selection(selection, "group", there, where, hint, found.not_carried)
    check_selection(Selection(tuple(options.map_group)), "group", chosen, where, hint, found.not_carried)
    content = Content("", found.restore_point, (), chosen)
    groups = plan_groups(content, names, Selection(), renamed)
    return Chosen(found.restore_point, found.captured_at, groups, unusable)
