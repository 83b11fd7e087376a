"""`kbackup groups`: show, plan, set and undo offsets of consumer groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kbackup.archive import layout
from kbackup.cli.common.arguments import moment_of
from kbackup.cli.common.frame import Frame, pass_frame
from kbackup.cli.common.key_options import key_option, options
from kbackup.cli.common.options import archive_option, common_options, s3_options, target_options
from kbackup.cli.common.point_options import point_option, to_time_option
from kbackup.cli.common.session import archive_store
from kbackup.cli.groups import tables as tables
from kbackup.config.windows import TIMES
from kbackup.errors import EXIT_LOSS, EXIT_OK, NoArchiveError, UsageError
from kbackup.store import Store, open_store

if TYPE_CHECKING:
    from kbackup.jobs.groups.job import Moment, Prepared
    from kbackup.kafka.admin.cluster import Cluster

F = TypeVar("F", bound=Callable[..., Any])


class _InOrder(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group("groups", cls=_InOrder)
@common_options
def command() -> None:
    """Show, plan, set and undo offsets of consumer groups."""


_moment_options = options(
    point_option("Groups as of this restore point."),
    to_time_option(f"Groups as of this time: {TIMES}."),
)
_selection_options = options(
    key_option("restore.restore_id", help="Restore whose offset map to use."),
    click.option(
        "--same-offsets",
        is_flag=True,
        help="Set the archived offsets unchanged, on the source cluster itself.",
    ),
    key_option("restore.groups", "-g", "--group", "--groups"),
    key_option("restore.exclude_groups", "--exclude-group", "--exclude-groups"),
    key_option("restore.map_group"),
    _moment_options,
    key_option("restore.state", "--state"),
)


@command.command("show")
@click.argument("group", required=False)
@common_options
@archive_option
@_moment_options
@s3_options
@pass_frame
def show(frame: Frame, group: str | None, restore_point: str | None, to_time: str | None) -> None:
    """Show the groups of an archive; with GROUP, its offsets, leader epochs and metadata.

    Lag counts the archived offsets after the group's offset.
    """
    from kbackup.archive.java.content import is_java_archive
    from kbackup.archive.query.group_overview import groups_overview, java_groups_overview
    from kbackup.archive.reader import open_archive

    store, moment = archive_store(frame), _moment(restore_point, to_time)
    try:
        archive = open_archive(store)
    except NoArchiveError:
        if moment or not is_java_archive(store):
            raise
        overview = java_groups_overview(store)
    else:
        overview = groups_overview(archive, moment.of(archive))
    if group is None:
        tables.show_groups(overview, frame.reporter)
        frame.reporter.document(overview)
        return
    shown = tables.find_group(overview, group)
    tables.show_group(shown, overview, frame.reporter)
    frame.reporter.document(
        {
            "archive": overview.archive,
            "restore_point": overview.restore_point,
            "captured_at": overview.captured_at,
            "group": shown,
        }
    )


@command.command("plan")
@common_options
@archive_option
@target_options
@_selection_options
@s3_options
@pass_frame
def plan(frame: Frame, same_offsets: bool, restore_point: str | None, to_time: str | None) -> int:
    """Show which offsets each group would get on the target, and why; write nothing.

    Ends with exit code 3 when a group could not be set, or not in all its partitions.
    """
    from kbackup.jobs.groups.job import plan_report

    cluster, prepared = _prepare(frame, same_offsets, _moment(restore_point, to_time))
    report = plan_report(cluster, prepared, named=not same_offsets)
    tables.show_plan(report, frame.reporter)
    frame.reporter.document(report)
    return EXIT_LOSS if report.missing else EXIT_OK


@command.command("apply")
@common_options
@archive_option
@target_options
@_selection_options
@s3_options
@pass_frame
def apply(frame: Frame, same_offsets: bool, restore_point: str | None, to_time: str | None) -> int:
    """Set groups on the target, by the offset map of an earlier restore.

    First stores the present offsets of the groups for 'kbackup groups undo'. Skips groups with live members. Ends with
    exit code 3 when a group could not be set, or not in all its partitions.
    """
    from kbackup.jobs.groups import job as groups_apply

    cluster, prepared = _prepare(frame, same_offsets, _moment(restore_point, to_time))
    report = groups_apply.apply(cluster, _state(frame), prepared)
    tables.show_applied(report, frame.reporter)
    frame.reporter.document(report)
    return EXIT_LOSS if report.missing else EXIT_OK


@command.command("undo")
@click.argument("number", type=click.IntRange(min=1), required=False)
@common_options
@archive_option
@target_options
@key_option("restore.restore_id", help="Restore that set the groups, or the id that 'apply' printed.")
@key_option("restore.groups", "-g", "--group", "--groups")
@key_option("restore.exclude_groups", "--exclude-group", "--exclude-groups")
@key_option("restore.state", "--state")
@s3_options
@pass_frame
def undo(frame: Frame, number: int | None) -> int:
    """Put back the offsets that groups had before 'apply', and delete those they did not have.

    NUMBER selects a capture; each write stores one before it begins. [default: the newest that was not undone] Skips
    groups with live members. Ends with exit code 3 when a group could not be put back.
    """
    from kbackup.archive.query.selection import Selection
    from kbackup.jobs.groups.job import undo as undo_groups

    restore = frame.config.restore
    if restore.restore_id is None:
        raise UsageError("no restore is named", "give --restore-id")
    selection = Selection.of(restore.groups, restore.exclude_groups)
    cluster = _cluster(frame)
    report = undo_groups(cluster, _state(frame), restore.restore_id, number, selection)
    tables.show_undone(report, frame.reporter)
    frame.reporter.document(report)
    return EXIT_LOSS if report.missing else EXIT_OK


def _cluster(frame: Frame) -> Cluster:
    from kbackup.kafka.admin.cluster import Cluster

    return Cluster(frame.config.target, "target")


def _state(frame: Frame) -> Store:
    config = frame.config
    if not config.restore.state:
        return archive_store(frame)
    return open_store(
        config.restore.state, config.s3, config.encryption.key or "", key_class=layout.key_class
    )


def _moment(restore_point: str | None, to_time: str | None) -> Moment:
    from kbackup.jobs.groups.job import Moment

    if restore_point is not None and to_time is not None:
        raise UsageError("--restore-point and --to-time exclude each other", "give one of them")
    return Moment(restore_point, moment_of("--to-time", to_time))


def _prepare(frame: Frame, same_offsets: bool, moment: Moment) -> tuple[Cluster, Prepared]:
    from kbackup.jobs.groups.job import prepare

    cluster = _cluster(frame)
    store, state = archive_store(frame), _state(frame)
    return cluster, prepare(cluster, store, state, frame.config.restore, moment, same_offsets)
