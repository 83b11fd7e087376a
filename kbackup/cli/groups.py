"""`kbackup groups`: show, plan, set and undo offsets of consumer groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from kbackup.cli.common.command_context import CommandContext
from kbackup.cli.common.options import (
    archive_command,
    archived,
    common_options,
    key_option,
    key_options,
    name_options,
    options,
    point_option,
    target_options,
    to_time_option,
)
from kbackup.cli.common.output import Cell, Reporter, columns
from kbackup.cli.common.session import archive_store, state_store
from kbackup.cli.common.undo import named_restore, show_unconfirmed, undo_options
from kbackup.config.windows import TIMES, moment_of
from kbackup.errors import EXIT_LOSS, EXIT_OK, NoArchiveError, UsageError, suggest_name
from kbackup.util.text import plural

if TYPE_CHECKING:
    from kbackup.archive.query.groups import GroupOverview, GroupsOverview
    from kbackup.jobs.groups.job import GroupResult, GroupsPlanReport, GroupsReport, Prepared
    from kbackup.jobs.groups.plan import Moment
    from kbackup.jobs.groups.undo import GroupUndoReport
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

    store, moment = archive_store(context), chosen_moment(restore_point, to_time)
    try:
        archive = open_archive(store)
    except NoArchiveError:
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
    named = {"archive": overview.archive, "restore_point": overview.restore_point}
    context.reporter.document(named | {"captured_at": overview.captured_at, "group": shown})


def _find_group(overview: GroupsOverview, name: str) -> GroupOverview:
    for group in overview.groups:
        if group.group == name:
            return group
    if name in overview.not_carried:
        raise UsageError(
            f"group {name} was not captured: {overview.not_carried[name]}",
            "select another restore point with --restore-point",
        )
    where = f"restore point {overview.restore_point}" if overview.restore_point else overview.archive
    hint = suggest_name(name, [g.group for g in overview.groups], "run 'kbackup groups show' to list them")
    raise UsageError(f"there is no group {name} in {where}", hint)


def _head(overview: GroupsOverview) -> list[tuple[str, Cell]]:
    captured: list[tuple[str, Cell]] = [("captured at", overview.captured_at)] if overview.captured_at else []
    return [("archive", overview.archive), ("restore point", overview.restore_point or "none"), *captured]


def show_groups(overview: GroupsOverview, reporter: Reporter) -> None:
    reporter.fields(_head(overview))
    reporter.line()
    reporter.table(
        columns("group, type 1, state 3, partitions 2, lag"),
        [(g.group, g.type or None, g.state or None, g.partitions, g.lag) for g in overview.groups],
    )
    reporter.warning(*(f"group {group} was not captured: {why}" for group, why in overview.not_carried.items()))


def show_group(group: GroupOverview, overview: GroupsOverview, reporter: Reporter) -> None:
    details: list[tuple[str, Cell]] = [("group", group.group), ("type", group.type or None)]
    reporter.fields([*_head(overview), *details, ("state", group.state or None), ("lag", group.lag)])
    reporter.line()
    reporter.table(
        columns("topic, partition, offset, lag, leader epoch 1, metadata 2"),
        [(o.topic, o.partition, o.offset, o.lag, o.leader_epoch, o.metadata) for o in group.offsets],
    )


@archive_command("plan", _selection_options, group=command, example="kbackup groups plan --restore-id worst-day")
def plan(context: CommandContext, same_offsets: bool, restore_point: str | None, to_time: str | None) -> int:
    """Show which offsets each group would get on the target, and why; write nothing.

    Ends with exit code 3 when a group could not be set, or not in all its partitions.
    """
    from kbackup.jobs.groups.job import plan_report

    cluster, prepared = _prepare(context, same_offsets, chosen_moment(restore_point, to_time))
    report = plan_report(cluster, prepared, named=not same_offsets)
    show_plan(report, context.reporter)
    context.reporter.document(report)
    return EXIT_LOSS if report.missing else EXIT_OK


def show_plan(report: GroupsPlanReport, reporter: Reporter) -> None:
    reporter.table(
        columns("group, becomes 2, topic, partition, now 3, source offset 1, target offset, how 4"),
        [
            (g.source, g.group, o.topic, o.partition, o.now, o.source, o.target, o.how)
            for g in report.groups
            for o in g.offsets
        ],
    )
    reporter.warning(*report.missing)
    reporter.line(f"nothing was written; {plural(len(report.groups), 'group')}, {_as_of(report)}")


def _as_of(report: GroupsPlanReport | GroupsReport) -> str:
    at = f" (captured at {report.captured_at})" if report.captured_at else ""
    return f"as of restore point {report.restore_point}{at}" if report.restore_point else "of the Java tool's folder"


@archive_command("apply", _selection_options, group=command, example="kbackup groups apply --restore-id worst-day")
def apply(context: CommandContext, same_offsets: bool, restore_point: str | None, to_time: str | None) -> int:
    """Set groups on the target, by the offset map of an earlier restore.

    First stores the present offsets of the groups for 'kbackup groups undo'. Skips groups with live members. Ends with
    exit code 3 when a group could not be set, or not in all its partitions.
    """
    from kbackup.jobs.groups import job as groups_apply

    cluster, prepared = _prepare(context, same_offsets, chosen_moment(restore_point, to_time))
    report = groups_apply.apply(cluster, state_store(context), prepared)
    show_applied(report, context.reporter)
    context.reporter.document(report)
    return EXIT_LOSS if report.missing else EXIT_OK


def show_applied(report: GroupsReport, reporter: Reporter) -> None:
    show_results(report.groups, reporter)
    reporter.warning(*report.missing)
    applied = sum(g.status == "applied" for g in report.groups)
    reporter.line(f"{plural(applied, 'group')} set, {_as_of(report)}")
    if report.capture:
        reporter.note(f"to undo: kbackup groups undo --restore-id {report.restore_id} {report.capture}")


def show_results(groups: Iterable[GroupResult], reporter: Reporter) -> None:
    rows: list[tuple[Cell, ...]] = []
    for group in groups:
        for offset in group.offsets:
            status = group.status
            if status == "applied in part":
                status = "refused" if f"{offset.topic}-{offset.partition}" in group.not_set else "applied"
            rows.append((group.group, offset.topic, offset.partition, offset.source, offset.target, offset.how, status))
    reporter.table(columns("group, topic, partition, source offset 1, target offset 3, how 2, status"), rows)


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

    restore_id, restore = named_restore(context), context.config.restore
    cluster = _cluster(context)
    journal = RestoreJournal(state_store(context), restore_id)
    selection = Selection.of(restore.groups, restore.exclude_groups)
    steps = GroupsUndo(cluster, journal, number, selection)
    report = journal.undo(steps, confirm=confirm, accept_unproven=accept_unproven)
    show_undone(report, context.reporter)
    context.reporter.document(report)
    return EXIT_LOSS if report.missing else EXIT_OK


def show_undone(report: GroupUndoReport, reporter: Reporter) -> None:
    reporter.table(
        columns("group, status, set back 4, removed 3, as it was 2, changed since optional"),
        [(g.group, g.status, g.set_back, g.removed, g.kept, g.moved) for g in report.groups],
    )
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


def chosen_moment(restore_point: str | None, to_time: str | None) -> Moment:
    """Return what `--restore-point` or `--to-time` selects."""
    from kbackup.jobs.groups.plan import Moment

    if restore_point is not None and to_time is not None:
        raise UsageError("--restore-point and --to-time exclude each other", "give one of them")
    return Moment(restore_point, moment_of("--to-time", to_time))


def _prepare(context: CommandContext, same_offsets: bool, moment: Moment) -> tuple[Cluster, Prepared]:
    from kbackup.jobs.groups.job import prepare

    cluster, store = _cluster(context), archive_store(context)
    state = state_store(context, store)
    return cluster, prepare(cluster, store, state, context.config.restore, moment, same_offsets)
