"""`kbackup groups`: show, plan, set and undo offsets of consumer groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from kbackup.cli.common.command_context import CommandContext
from kbackup.cli.common.command_lines import undo_command
from kbackup.cli.common.completion import archived
from kbackup.cli.common.options import (
    archive_command,
    common_options,
    key_option,
    key_options,
    name_options,
    options,
    point_option,
    target_options,
    to_time_option,
)
from kbackup.cli.common.output import Reporter
from kbackup.cli.common.session import archive_store, state_store
from kbackup.cli.common.tables import Cell, Column, or_none
from kbackup.cli.common.undo import named_restore, show_unconfirmed, undo_options
from kbackup.config.times import TIMES, moment_of, shown_time
from kbackup.errors import EXIT_LOSS, EXIT_OK, NoArchiveError, UsageError, suggest_name
from kbackup.util.text import plural

if TYPE_CHECKING:
    from kbackup.archive.query.groups import GroupOverview, GroupsOverview, Stand
    from kbackup.jobs.groups.job import Prepared
    from kbackup.jobs.groups.plan import GroupOffsetResult, Moment
    from kbackup.jobs.groups.report import (
        GroupResult,
        GroupsPlanReport,
        GroupsReport,
        PlannedGroupReport,
        PlannedOffset,
    )
    from kbackup.jobs.groups.undo import GroupUndoReport, UndoResult
    from kbackup.kafka.control.cluster import Cluster


class InOrder(click.Group):
    """Shows its commands in the order in which they were made."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group("groups", cls=InOrder, epilog="Example: kbackup groups show")
@common_options
def command() -> None:
    """Show, plan, set and undo offsets of consumer groups."""


_moment_options = options(
    point_option("Groups as of this restore point."), to_time_option(f"Groups as of this time: {TIMES}.")
)
_selection_options = options(
    target_options,
    key_option("restore.restore_id", help="Restore whose offset map to use."),
    click.option(
        "--same-offsets", is_flag=True, help="Set the archived offsets unchanged, on the source cluster itself."
    ),
    name_options("restore.groups"),
    key_option("restore.map_group"),
    _moment_options,
    key_option("restore.state"),
)


@archive_command(
    "show",
    click.argument("group", required=False, shell_complete=archived("groups")),
    _moment_options,
    group=command,
    example="kbackup groups show billing",
)
def show(context: CommandContext, group: str | None, restore_point: str | None, to_time: str | None) -> None:
    """Show the groups of an archive; with GROUP, its offsets, leader epochs and metadata.

    Lag counts the archived offsets after the group's offset.
    """
    from kbackup.archive.query.groups import groups_overview, java_groups_overview
    from kbackup.archive.query.java import is_java_archive
    from kbackup.archive.reader import open_archive

    store = archive_store(context)
    moment = chosen_moment(context.reporter, restore_point, to_time)
    try:
        archive = open_archive(store)
    except NoArchiveError:
        # A folder of the Java tool has no restore points to choose from.
        if moment or not is_java_archive(store):
            raise
        overview = java_groups_overview(store)
    else:
        overview = groups_overview(archive, moment.of(archive))
    if group is None:
        show_groups(overview, context.reporter)
        context.reporter.document(overview)
        return
    shown = _find_group(overview, group)
    show_group(shown, overview, context.reporter)
    context.reporter.document(
        {
            "archive": overview.archive,
            "restore_point": overview.restore_point,
            "captured_at": overview.captured_at,
            "group": shown,
        }
    )


def _find_group(overview: GroupsOverview, name: str) -> GroupOverview:
    for group in overview.groups:
        if group.group == name:
            return group
    if name in overview.not_carried:
        raise UsageError(
            f"group {name} was not captured: {overview.not_carried[name]}",
            "select another restore point with --restore-point",
        )
    names = [group.group for group in overview.groups]
    hint = suggest_name(name, names, "run 'kbackup groups show' to list them")
    where = f"restore point {overview.restore_point}" if overview.restore_point else overview.archive
    raise UsageError(f"there is no group {name} in {where}", hint)


def _head(overview: GroupsOverview) -> list[tuple[str, Cell]]:
    fields: list[tuple[str, Cell]] = [
        ("archive", overview.archive),
        ("restore point", overview.restore_point or "none"),
    ]
    if overview.captured_at:
        fields.append(("captured at", overview.captured_at))
    return fields


_GROUPS: Sequence[Column[GroupOverview]] = (
    Column("group", "group"),
    Column("type", "type", or_none, importance=1),
    Column("state", "state", or_none, importance=3),
    Column("partitions", "partitions", importance=2),
    Column("lag", "lag"),
)
_OFFSETS_OF_GROUP: Sequence[Column[Stand]] = (
    Column("topic", "topic"),
    Column("partition", "partition"),
    Column("offset", "offset"),
    Column("lag", "lag"),
    Column("leader epoch", "leader_epoch", importance=1),
    Column("metadata", "metadata", importance=2),
)


def show_groups(overview: GroupsOverview, reporter: Reporter) -> None:
    reporter.fields(_head(overview))
    reporter.line()
    reporter.table(_GROUPS, overview.groups)
    for group, why in overview.not_carried.items():
        reporter.warning(f"group {group} was not captured: {why}")


def show_group(group: GroupOverview, overview: GroupsOverview, reporter: Reporter) -> None:
    details: list[tuple[str, Cell]] = [
        ("group", group.group),
        ("type", group.type or None),
        ("state", group.state or None),
        ("lag", group.lag),
    ]
    reporter.fields(_head(overview) + details)
    reporter.line()
    reporter.table(_OFFSETS_OF_GROUP, group.offsets)


@archive_command("plan", _selection_options, group=command, example="kbackup groups plan --restore-id worst-day")
def plan(context: CommandContext, same_offsets: bool, restore_point: str | None, to_time: str | None) -> int:
    """Show which offsets each group would get on the target, and why; write nothing.

    Ends with exit code 3 when a group could not be set, or not in all its partitions.
    """
    from kbackup.jobs.groups.job import plan_report

    cluster, prepared = _prepare(context, same_offsets, chosen_moment(context.reporter, restore_point, to_time))
    report = plan_report(cluster, prepared, named=not same_offsets)
    show_plan(report, context.reporter)
    context.reporter.document(report)
    return EXIT_LOSS if report.missing else EXIT_OK


class _OffsetToSet(NamedTuple):
    """An offset that a group would get, with the group."""

    group: PlannedGroupReport
    offset: PlannedOffset


_PLAN: Sequence[Column[_OffsetToSet]] = (
    Column("group", "group.source"),
    Column("becomes", "group.group", importance=2),
    Column("topic", "offset.topic"),
    Column("partition", "offset.partition"),
    Column("now", "offset.now", importance=3),
    Column("source offset", "offset.source", importance=1),
    Column("target offset", "offset.target"),
    Column("how", "offset.how", importance=4),
)
"""The columns of `kbackup groups plan`."""


def show_plan(report: GroupsPlanReport, reporter: Reporter) -> None:
    rows = []
    for group in report.groups:
        for offset in group.offsets:
            rows.append(_OffsetToSet(group, offset))
    reporter.table(_PLAN, rows)
    reporter.warning(*report.missing)
    reporter.line(f"nothing was written; {plural(len(report.groups), 'group')}, {_as_of(report)}")


def _as_of(report: GroupsPlanReport | GroupsReport) -> str:
    if not report.restore_point:
        return "of the Java tool's folder"
    at = f" (captured at {report.captured_at})" if report.captured_at else ""
    return f"as of restore point {report.restore_point}{at}"


@archive_command("apply", _selection_options, group=command, example="kbackup groups apply --restore-id worst-day")
def apply(context: CommandContext, same_offsets: bool, restore_point: str | None, to_time: str | None) -> int:
    """Set groups on the target, by the offset map of an earlier restore.

    First stores the present offsets of the groups for 'kbackup groups undo'. Skips groups with live members. Ends with
    exit code 3 when a group could not be set, or not in all its partitions.
    """
    from kbackup.jobs.groups import job as groups_apply

    cluster, prepared = _prepare(context, same_offsets, chosen_moment(context.reporter, restore_point, to_time))
    report = groups_apply.apply(cluster, state_store(context), prepared)
    words = ("groups", "undo", "--restore-id", report.restore_id, str(report.capture))
    undo = undo_command(context.config, *words, clusters=("target",))
    show_applied(report, undo, context.reporter)
    context.reporter.document(report)
    return EXIT_LOSS if report.missing else EXIT_OK


def show_applied(report: GroupsReport, undo: str, reporter: Reporter) -> None:
    """Show which groups were set. `undo` is the command that puts them back."""
    show_results(report.groups, reporter)
    reporter.warning(*report.missing)
    applied = sum(group.status == "applied" for group in report.groups)
    reporter.line(f"{plural(applied, 'group')} set, {_as_of(report)}")
    if report.capture:
        reporter.note(f"to undo: {undo}")


class _SetOffset(NamedTuple):
    """An offset that a group got, or was to get, with the group."""

    group: GroupResult
    offset: GroupOffsetResult


def _status(row: _SetOffset) -> str:
    """Return what became of an offset, also if the group got some of its offsets alone."""
    group, offset = row
    if group.status != "applied in part":
        return group.status
    partition = f"{offset.topic}-{offset.partition}"
    return "refused" if partition in group.not_set else "applied"


_RESULTS: Sequence[Column[_SetOffset]] = (
    Column("group", "group.group"),
    Column("topic", "offset.topic"),
    Column("partition", "offset.partition"),
    Column("source offset", "offset.source", importance=1),
    Column("target offset", "offset.target", importance=3),
    Column("how", "offset.how", importance=2),
    Column("status", _status),
)
"""The columns of the groups that `kbackup groups apply` or a restore has set."""


def show_results(groups: Iterable[GroupResult], reporter: Reporter) -> None:
    rows = []
    for group in groups:
        for offset in group.offsets:
            rows.append(_SetOffset(group, offset))
    reporter.table(_RESULTS, rows)


@archive_command(
    "undo",
    click.argument("number", type=click.IntRange(min=1), required=False),
    target_options,
    key_option("restore.restore_id", help="Restore that set the groups, or the id that 'apply' printed."),
    name_options("restore.groups"),
    key_options("restore.state"),
    undo_options,
    group=command,
    example="kbackup groups undo --restore-id worst-day --confirm",
)
def undo(context: CommandContext, number: int | None, confirm: bool, accept_unproven: bool) -> int:
    """Put back the offsets that groups had before 'apply', and delete those they did not have.

    Without --confirm, only show the plan. NUMBER selects a capture; each write stores one before it begins. [default:
    the newest that was not undone] Skips groups with live members, and offsets that were moved since. Ends with exit
    code 3 when a group could not be put back.
    """
    from kbackup.archive.query.selection import Selection
    from kbackup.archive.restores.journal import RestoreJournal
    from kbackup.jobs.groups.undo import GroupsUndo

    restore_id = named_restore(context)
    restore = context.config.restore
    cluster = _cluster(context)
    journal = RestoreJournal(state_store(context), restore_id)
    selection = Selection.of(restore.groups, restore.exclude_groups)
    steps = GroupsUndo(cluster, journal, number, selection)
    report = journal.undo(steps, confirm=confirm, accept_unproven=accept_unproven)
    show_undone(report, context.reporter)
    context.reporter.document(report)
    return EXIT_LOSS if report.missing else EXIT_OK


_UNDONE: Sequence[Column[UndoResult]] = (
    Column("group", "group"),
    Column("status", "status"),
    Column("set back", "set_back", importance=4),
    Column("removed", "removed", importance=3),
    Column("as it was", "kept", importance=2),
    Column("changed since", "moved", optional=True),
)
"""The columns of `kbackup groups undo`."""


def show_undone(report: GroupUndoReport, reporter: Reporter) -> None:
    reporter.table(_UNDONE, report.groups)
    reporter.warning(*report.missing)
    groups = plural(len(report.groups), "group")
    before = f"before '{report.by}' (capture {report.undone})"
    if not report.confirmed:
        planned = sum(group.status == "planned" for group in report.groups)
        reporter.line(f"{planned} of {groups} would be put back to {report.captured_at}, {before}")
        show_unconfirmed(report.unproven, reporter)
        return
    put_back = len(report.groups) - len(report.missing)
    reporter.line(f"{put_back} of {groups} put back to {report.captured_at}, {before}")


def _cluster(context: CommandContext) -> Cluster:
    from kbackup.kafka.control.cluster import Cluster

    return Cluster(context.config.target, "target")


def chosen_moment(reporter: Reporter, restore_point: str | None, to_time: str | None) -> Moment:
    """Return what `--restore-point` or `--to-time` selects, and print a time as it was understood, with its zone."""
    from kbackup.jobs.groups.plan import Moment

    if restore_point is not None and to_time is not None:
        raise UsageError("--restore-point and --to-time exclude each other", "give one of them")
    at = moment_of("--to-time", to_time)
    if at is not None:
        reporter.note(f"as of {shown_time(at, reporter.time_zone)}")
    return Moment(restore_point, at)


def _prepare(context: CommandContext, same_offsets: bool, moment: Moment) -> tuple[Cluster, Prepared]:
    from kbackup.archive.query.selection import Selection
    from kbackup.jobs.groups.job import prepare
    from kbackup.jobs.groups.plan import GroupsRequest

    given = context.config.restore
    request = GroupsRequest(
        restore_id=given.restore_id,
        same_offsets=same_offsets,
        moment=moment,
        selection=Selection.of(given.groups, given.exclude_groups),
        new_names=given.map_group,
    )
    cluster = _cluster(context)
    store = archive_store(context)
    state = state_store(context, store)
    prepared = prepare(cluster, store, state, request)
    return cluster, prepared
