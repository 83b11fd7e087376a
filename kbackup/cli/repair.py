"""`kbackup repair`: repair an archive that has lost files; `kbackup adopt`: make an archive of a Java tool's folder."""

from __future__ import annotations

from collections.abc import Iterable

import click

from kbackup.cli.common.command_context import CommandContext
from kbackup.cli.common.command_lines import own_command
from kbackup.cli.common.interrupts import SameState, StateByPhase, when_interrupted
from kbackup.cli.common.options import archive_command, confirm_option
from kbackup.cli.common.output import Reporter, ShownProgress
from kbackup.cli.common.session import archive_store, spark_session
from kbackup.errors import EXIT_LOSS, EXIT_OK
from kbackup.jobs.adopt import adopt
from kbackup.jobs.repair import RepairReport, repair
from kbackup.util.text import human_total, plural

_MENDED = 20  # files that are named


@archive_command(
    "repair",
    confirm_option,
    click.option("--read-data", is_flag=True, help="Read every segment and check its checksum."),
    argument=True,
    spark=True,
    example="kbackup repair --read-data",
)
def command(context: CommandContext, confirm: bool, read_data: bool) -> int:
    """Show what can be repaired in an archive that has lost files; with --confirm, repair it.

    First look for an undamaged copy: object versions of the bucket, or a destination of 'kbackup copy'.

    Starts from the newest undamaged catalog and restores restore points from their manifests. Damaged and missing
    segments become losses. Other lost documents, indexes and group files are made anew. No undamaged object is deleted.
    Compares segments by size, with --read-data by checksum. Ends with exit code 3 when restore points, records or
    documents of restore points are lost.
    """
    shown = ShownProgress(context.reporter)
    again = own_command()
    if confirm:
        when_interrupted(interrupted_repair(shown, again))
    else:
        when_interrupted(SameState("nothing was written", f"to look again: {again}"))
    store = archive_store(context, lost=True)
    with spark_session(context.config, reporter=context.reporter) as session, shown:
        report = repair(store, confirm, read_data, context.config.backup.lease_seconds, session, shown)
    return _show(report, context.reporter)


@archive_command("adopt", confirm_option, argument=True, spark=True, example="kbackup adopt s3://my-backups/java")
def adopt_command(context: CommandContext, confirm: bool) -> int:
    """Make an archive of a folder that the Java tool kafka-backup wrote, at the same address.

    Stop the Java tool first. The command copies every segment and commits a restore point. It leaves the folder as it
    is: until you delete it, the data takes twice the space.

    Leaves out damaged segments, names them and ends with exit code 3. The folder holds no topic ids: give the first
    backup --adopt-topics.
    """
    shown = ShownProgress(context.reporter)
    again = own_command()
    if confirm:
        when_interrupted(interrupted_adoption(shown, again))
    else:
        when_interrupted(SameState("nothing was written", f"to look again: {again}"))
    store = archive_store(context)
    with spark_session(context.config, reporter=context.reporter) as session, shown:
        report = adopt(store, confirm, context.config.backup.lease_seconds, session, shown)
    return _show(report, context.reporter)


def interrupted_repair(shown: ShownProgress, again: str) -> StateByPhase:
    """Describe an interrupted repair that writes, by its phases. `again` is its own command."""
    before = ("the archive lists the same restore points as before; files that were mended stay", f"to go on: {again}")
    committing = (
        "the repair may be committed in part: what was written stays, and no undamaged object was deleted",
        f"to do the rest: {again}",
    )
    return StateByPhase(shown, {"commit": committing}, before)


def interrupted_adoption(shown: ShownProgress, again: str) -> StateByPhase:
    """Describe an interrupted adoption that writes, by its phases. `again` is its own command."""
    before = (
        "the folder is as it was, and there is no restore point yet; segments that were copied stay",
        f"to go on, without copying them again: {again}",
    )
    committing = ("whether the restore point is committed shows 'kbackup list'", f"if it is not: {again}")
    return StateByPhase(shown, {"commit": committing}, before)


def _show(report: RepairReport, reporter: Reporter) -> int:
    """Print a report, and return the exit code."""
    done = report.confirmed
    for each in report.mended[:_MENDED]:
        what = each.what if done else f"is to be {each.what}"
        reporter.line(f"{each.file}: {what}")
    if len(report.mended) > _MENDED:
        reporter.line(f"and {plural(len(report.mended) - _MENDED, 'more file')}")
    reporter.losses(report.losses)
    reporter.warning(*report.warnings)
    reporter.line(f"{report.archive}: {_summary(report)}; {human_total(report.seconds)}")
    if not report.read_data:
        reporter.note(
            f"segments were compared by size; to read each one and compare checksums: {own_command('--read-data')}"
        )
    if not done and report.changes:
        reporter.note(f"nothing was written; to do so: {own_command('--confirm')}")
    elif report.losses:
        reporter.note("to see what each restore point lacks: kbackup list; to read the archive back: kbackup verify")
    reporter.document(report)
    return EXIT_LOSS if report.is_loss else EXIT_OK


def _summary(report: RepairReport) -> str:
    parts = []
    if report.restored:
        parts.append(f"{plural(len(report.restored), 'restore point')} listed again: {_numbers(report.restored)}")
    if report.lost:
        parts.append(f"{plural(len(report.lost), 'restore point')} lost: {_numbers(report.lost)}")
    if report.new_point is not None:
        result = "made" if report.confirmed else "to be made"
        new = f"restore point {report.new_point} {result}"
        if report.segments:
            new += f" of {report.records:,} records in {plural(report.segments, 'whole segment')}"
        parts.append(new)
    if len(report.losses) == 1:
        parts.append("1 loss")
    elif report.losses:
        parts.append(f"{len(report.losses):,} losses")
    if report.mended:
        result = "mended" if report.confirmed else "to be mended"
        parts.append(f"{plural(len(report.mended), 'file')} {result}")
    return "; ".join(parts) or "nothing to repair"


def _numbers(numbers: Iterable[int]) -> str:
    return ", ".join(str(number) for number in numbers)
