"""Print the groups of `kbackup groups` as tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kbackup.cli.common.human import plural
from kbackup.cli.common.output import Reporter
from kbackup.cli.common.table import Cell
from kbackup.errors import UsageError, suggest_name

if TYPE_CHECKING:
    from kbackup.archive.query.group_overview import GroupOverview, GroupsOverview
    from kbackup.jobs.groups.job import GroupResult, GroupsPlanReport, GroupsReport, UndoReport


def find_group(overview: GroupsOverview, name: str) -> GroupOverview:
    """Return a captured group by name. Raises `UsageError` if it was not captured."""
    for group in overview.groups:
        if group.group == name:
            return group
    if name in overview.not_carried:
        raise UsageError(
            f"group {name} was not captured: {overview.not_carried[name]}",
            "select another restore point with --restore-point",
        )
    hint = suggest_name(name, [g.group for g in overview.groups], "run 'kbackup groups show' to list them")
    raise UsageError(f"there is no group {name} in {_origin(overview)}", hint)


def _origin(overview: GroupsOverview) -> str:
    return f"restore point {overview.restore_point}" if overview.restore_point else overview.archive


def _head(overview: GroupsOverview) -> list[tuple[str, Cell]]:
    captured: list[tuple[str, Cell]] = [("captured at", overview.captured_at)] if overview.captured_at else []
    return [("archive", overview.archive), ("restore point", overview.restore_point or "none"), *captured]


def show_groups(overview: GroupsOverview, reporter: Reporter) -> None:
    reporter.fields(_head(overview))
    reporter.line()
    reporter.table(
        ("group", "type", "state", "partitions", "lag"),
        [(g.group, g.type or None, g.state or None, g.partitions, g.lag) for g in overview.groups],
    )
    for group, why in overview.not_carried.items():
        reporter.warning(f"group {group} was not captured: {why}")


def show_group(group: GroupOverview, overview: GroupsOverview, reporter: Reporter) -> None:
    reporter.fields(
        [
            *_head(overview),
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
    """Print the offsets of each group, and whether they were set."""
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
        reporter.note(f"to undo: kbackup groups undo --restore-id {report.restore_id} {report.capture}")


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
