"""`kbackup expire`: expire restore points and old records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kbackup.cli.common.command_context import CommandContext
from kbackup.cli.common.command_lines import own_command
from kbackup.cli.common.interrupts import SameState, StateByPhase, when_interrupted
from kbackup.cli.common.options import Duration, archive_command
from kbackup.cli.common.output import Reporter, ShownProgress
from kbackup.cli.common.session import archive_store, spark_session
from kbackup.cli.common.tables import Column, human_age, in_commas
from kbackup.cli.rewrite import rewriting_of, show_rewrite
from kbackup.errors import StoreError
from kbackup.util.text import human_size, plural

if TYPE_CHECKING:
    from kbackup.jobs.retention import ExpireReport, PointFate

F = TypeVar("F", bound=Callable[..., Any])
_FAILED = 10
"""Number of objects to name that can't be deleted."""


_UNITS = {"daily": "days", "weekly": "weeks", "monthly": "months", "yearly": "years"}


def _count_option(name: str, help: str) -> Callable[[F], F]:
    return click.option(f"--keep-{name}", type=click.IntRange(min=1), metavar="N", help=help)


def _span_option(name: str, help: str, **attributes: Any) -> Callable[[F], F]:
    return click.option(name, type=Duration(), metavar="DURATION", help=help, **attributes)


@archive_command(
    "expire",
    _count_option("last", "Keep the last N restore points."),
    *(_count_option(name, f"Keep the newest of each of the last N {unit} with any.") for name, unit in _UNITS.items()),
    _span_option("--keep-within", "Keep all restore points up to this much older than the newest."),
    _span_option("--older-than", "Expire records this much older than the newest restore point, by whole segments."),
    _span_option(
        "--grace",
        "Delete objects this long after they expired; until then readers can finish.",
        default="1d",
        show_default=True,
    ),
    click.option("--ignore-mirrors", is_flag=True, help="Expire records even if a live mirror has not applied them."),
    click.option("--confirm", is_flag=True, help="Expire. Without it, the command only shows the plan."),
    click.option("--undo", is_flag=True, help="Undo the newest expiration, within its grace time."),
    argument=True,
    spark=True,
    example="kbackup expire --keep-daily 14 --keep-monthly 12",
)
def command(
    context: CommandContext,
    keep_within: timedelta | None,
    older_than: timedelta | None,
    grace: timedelta,
    ignore_mirrors: bool,
    confirm: bool,
    undo: bool,
    **keep: int | None,
) -> None:
    """Expire restore points by policy, and records by age. Without --confirm, only show the plan.

    A restore point stays if a --keep option keeps it (as in restic, times in UTC), if it is pinned, or if it is the
    newest; without --keep options all stay. --older-than expires records from the start of each partition, also of
    restore points that stay. It keeps records of pinned restore points and of compacted topics, and records that a live
    mirror (a sign of life within --grace) has not applied.

    Readers no longer see expired objects. The first run after --grace deletes them; until then, --undo brings them
    back. Each run also deletes orphans, and rewrites segments if [rewrite] says so. A backup may run at the same time.
    """
    from kbackup.jobs.retention import Expiry, Policy, expire
    from kbackup.jobs.retention import undo as undo_expire

    kept = {}
    for name in ("last", *_UNITS):
        kept[name] = keep[f"keep_{name}"] or 0
    policy = Policy(**kept, within=keep_within)
    store, lease = archive_store(context), context.config.backup.lease_seconds
    again = own_command()
    if undo:
        state = "whether the expiration is undone shows 'kbackup log'"
        when_interrupted(SameState(state, f"if it is not: {again}"))
        undone = undo_expire(store, lease)
        count = plural(len(undone.restore_points), "restore point")
        context.reporter.line(f"the newest expiration is undone: {count} and all its records are back")
        context.reporter.document(undone)
        return
    with spark_session(context.config, reporter=context.reporter) as session, ShownProgress(context.reporter) as shown:
        when_interrupted(_interruption(shown, confirm, again))
        rewriting = rewriting_of(context.config, session)
        expiry = Expiry(policy, older_than, grace, ignore_mirrors, rewriting)
        report = expire(store, expiry, lease, shown, confirm=confirm)
    show_expiry(report, context.reporter)
    context.reporter.document(report)
    # The report comes before the error: what was expired is expired all the same.
    if report.failed:
        raise StoreError(
            f"{plural(len(report.failed), 'object')} could not be deleted; the rest of the expiration is done",
            "check the bucket's object lock and this user's right to delete; then run 'kbackup expire --confirm' again",
        )


def _interruption(shown: ShownProgress, confirm: bool, again: str) -> StateByPhase:
    """Describe an interrupted expiration: it changes the archive by one commit, then deletes orphans."""
    nothing = ("nothing was changed", f"to begin anew: {again}")
    if not confirm:
        return StateByPhase(shown, {}, nothing)
    expired = (
        "what was to expire has expired, but not all orphans are deleted",
        f"the next expiration deletes them; to do it now: {again}",
    )
    unknown = ("whether anything has expired shows 'kbackup log'", f"if nothing has: {again}")
    return StateByPhase(shown, {"": nothing, "choose": nothing, "expire": unknown}, expired)


def _result(point: PointFate) -> str:
    return "stays" if point.stays else "expires"


_FATES: Sequence[Column[PointFate]] = (
    Column("number", "number"),
    Column("committed at", "committed_at", importance=4),
    Column("age", "committed_at", human_age),
    Column("result", _result),
    Column("why", "reasons", in_commas, importance=1, prose=True),
    Column("records kept", "records", importance=2),
    Column("records expired", "records_gone", importance=3),
)
"""The columns of the plan of an expiration. A restore point that expires has neither reasons nor records."""


def _result_line(report: ExpireReport) -> str:
    if report.expiration is None:
        verb = "was" if report.confirmed else "is"
        return f"nothing {verb} to expire"
    expiring = [point for point in report.restore_points if not point.stays]
    old = f" (before {report.before})" if report.before else ""
    what = "expired" if report.confirmed else "would expire"
    return (
        f"{what}: {plural(len(expiring), 'restore point')}, "
        f"{plural(report.records, 'record')} in {plural(report.segments, 'segment')}{old}; "
        f"{human_size(report.bytes)} can be deleted from {report.deleted_from} on"
    )


def show_expiry(report: ExpireReport, reporter: Reporter) -> None:
    reporter.table(_FATES, report.restore_points)
    for topic in report.spared:
        reporter.note(
            f"note: topic {topic} keeps all records: it is compacted, or its settings are not known; "
            "restore points expire by --keep-last, --keep-within and others"
        )
    for flow in report.mirrors:
        reporter.note(
            f"note: flow {flow} has not applied all records ('kbackup mirror status'); to expire them all the same: "
            f"{own_command('--ignore-mirrors')}"
        )
    reporter.line(_result_line(report))
    if report.deleted or report.failed:
        reporter.line(
            f"{plural(report.deleted, 'object')} without a reference deleted: {human_size(report.deleted_bytes)}"
        )
    if report.unreadable is not None:
        reporter.warning(
            f"catalog {report.unreadable} is damaged: no object is deleted before its grace time ends; "
            "'kbackup verify' names the damage, 'kbackup repair' mends it"
        )
    if report.rewrite is not None:
        show_rewrite(report.rewrite, reporter)
    if report.not_rewritten:
        reporter.warning(f"no segments were rewritten: {report.not_rewritten}")
    # A store that refuses deletions refuses thousands: the error that follows counts them all.
    first_failed = list(report.failed.items())[:_FAILED]
    for key, why in first_failed:
        reporter.warning(f"{key} can't be deleted: {why}")
    if not report.confirmed:
        reporter.note(f"nothing was changed; to expire, and to delete orphans: {own_command('--confirm')}")
