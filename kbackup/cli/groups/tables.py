"""What `kbackup groups` shows to people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kbackup.cli.common.human import plural
from kbackup.cli.common.output import Cell, Reporter
from kbackup.errors import UsageError, suggest_name

if TYPE_CHECKING:
    from kbackup.archive.query.group_overview import GroupOverview, GroupsOverview
    from kbackup.jobs.groups.apply import GroupResult
    from kbackup.jobs.groups.job import GroupsPlanReport, GroupsReport
    from kbackup.jobs.groups.undo import UndoReport


def one(found: GroupsOverview, name: str) -> GroupOverview:
    for group in found.groups:
        if group.group == name:
            return group
    if name in found.not_carried:
        raise UsageError(f"group {name} is not carried: {found.not_carried[name]}", "")
    hint = suggest_name(name, [g.group for g in found.groups], "'kbackup groups show' lists them")
    raise UsageError(f"there is no group {name} in {_where(found)}", hint)


def _where(found: GroupsOverview) -> str:
    return f"restore point {found.restore_point}" if found.restore_point else found.archive


def _head(found: GroupsOverview) -> list[tuple[str, Cell]]:
    captured: list[tuple[str, Cell]] = [("captured at", found.captured_at)] if found.captured_at else []
    return [("archive", found.archive), ("restore point", found.restore_point or "none"), *captured]


def show_groups(found: GroupsOverview, reporter: Reporter) -> None:
    reporter.fields(_head(found))
    reporter.line()
    reporter.table(
        ("group", "type", "state", "partitions", "lag"),
        [(g.group, g.type or None, g.state or None, g.partitions, g.lag) for g in found.groups],
    )
    for group, why in found.not_carried.items():
        reporter.warning(f"group {group} is not carried: {why}")


def show_group(group: GroupOverview, found: GroupsOverview, reporter: Reporter) -> None:
    reporter.fields(
        [
            *_head(found),
            ("group", group.group),
            ("type", group.type or None),
            ("state", group.state or None),
            ("lag", group.lag),
        ]
    )
    reporter.line()
    reporter.table(
        ("topic", "partition", "offset", "lag", "leader epoch", "metadata"),
        [(o.topic, o.partition, o.offset, o.lag, o.leader_epoch, o.metadata) for o in group.offsets],
    )


def show_plan(report: GroupsPlanReport, reporter: Reporter) -> None:
    reporter.table(
        ("group", "becomes", "topic", "partition", "now", "source offset", "target offset", "how"),
        [
            (g.source, g.group, o.topic, o.partition, o.now, o.source, o.target, o.how)
            for g in report.groups
            for o in g.offsets
        ],
    )
    for missing in report.missing:
        reporter.warning(missing)
    reporter.line(f"nothing was written; {plural(len(report.groups), 'group')}, {_as_of(report)}")


def _as_of(report: GroupsPlanReport | GroupsReport) -> str:
    at = f" (captured at {report.captured_at})" if report.captured_at else ""
    return (
        f"as of restore point {report.restore_point}{at}"
        if report.restore_point
        else "of the Java tool's folder"
    )


def show_results(groups: Iterable[GroupResult], reporter: Reporter) -> None:
    """Where each group was set, or was to be."""
    reporter.table(
        ("group", "topic", "partition", "source offset", "target offset", "how", "status"),
        [
            (g.group, o.topic, o.partition, o.source, o.target, o.how, g.status)
            for g in groups
            for o in g.offsets
        ],
    )


def show_applied(report: GroupsReport, reporter: Reporter) -> None:
    show_results(report.groups, reporter)
    for missing in report.missing:
        reporter.warning(missing)
    applied = sum(g.status == "applied" for g in report.groups)
    reporter.line(f"{plural(applied, 'group')} set, {_as_of(report)}")
    if report.capture:
        reporter.note(f"to undo it: kbackup groups undo --restore-id {report.restore_id} {report.capture}")


def show_undone(report: UndoReport, reporter: Reporter) -> None:
    reporter.table(
        ("group", "status", "set back", "removed", "as it was"),
        [(g.group, g.status, g.set_back, g.removed, g.kept) for g in report.groups],
    )
    for missing in report.missing:
        reporter.warning(missing)
    put_back = len(report.groups) - len(report.missing)
    reporter.line(
        f"{put_back} of {plural(len(report.groups), 'group')} put back to {report.captured_at}, "
        f"before '{report.by}' (capture {report.undone})"
    )
