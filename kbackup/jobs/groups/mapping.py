"""Map groups of an archive to groups of a target. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from kbackup.archive.models import GroupOffset
from kbackup.archive.query.content import Content
from kbackup.archive.query.selection import Selection, check_selection, exact_entry
from kbackup.archive.restores.plan import PlannedGroup
from kbackup.errors import RefusedError


def plan_groups(
    content: Content, names: Mapping[str, str], selection: Selection | None, renamed: Mapping[str, str]
) -> tuple[PlannedGroup, ...]:
    """`selection` None: no groups. `RefusedError` where two would become one."""
    if selection is None:
        return ()
    planned: dict[str, PlannedGroup] = {}
    for group, ours in _asked_offsets(content, names).items():
        target = renamed.get(group, group)
        if not selection.matches(group):
            continue
        if target in planned:
            raise RefusedError(
                f"groups {planned[target].source} and {group} would both become {target}",
                "map one of them elsewhere",
            )
        planned[target] = PlannedGroup(source=group, target=target, offsets=ours)
    return tuple(planned.values())


def check_groups(
    content: Content, names: Container[str], selection: Selection | None, renamed: Iterable[str]
) -> None:
    """Raise `UsageError` for a group that is asked for or renamed by its name and has no offsets: its records would
    come back without it, or it would be set under its old name. Not where a window ends before all captures: its notes
    say that no group comes back."""
    if selection is None or (content.choice is not None and content.choice.groups_as_of is None):
        return
    where = "with offsets of what is restored"
    hint = "see 'kbackup groups show', or leave groups alone with --no-groups"
    asked, why = _asked_offsets(content, names), content.not_carried
    check_selection(selection, "group", {*asked, *_uncaptured(selection, why)}, where, hint, why)
    check_selection(Selection(tuple(map(exact_entry, renamed))), "group", content.groups, where, hint, why)


def _uncaptured(selection: Selection, not_carried: Iterable[str]) -> set[str]:
    """The groups that a regular expression selects and no capture carries: a warning names them."""
    return {group for group in not_carried if group not in selection.names and selection.matches(group)}


def _asked_offsets(content: Content, names: Container[str]) -> dict[str, tuple[GroupOffset, ...]]:
    """Return the offsets of each group that has offsets of restored partitions."""
    unasked = {
        (t.name, p.partition) for t in content.topics for p in t.partitions if p.window and p.window.nothing
    }
    asked = {
        group: tuple(o for o in offsets if o.topic in names and (o.topic, o.partition) not in unasked)
        for group, offsets in content.groups.items()
    }
    return {group: offsets for group, offsets in asked.items() if offsets}
