"""`kbackup repair`: an archive that has lost files, as whole as it can be made from what is left."""

from __future__ import annotations

import click

from kbackup.archive.repaired import are_lost
from kbackup.cli.frame import Frame, pass_frame
from kbackup.cli.human import human_duration, plural
from kbackup.cli.listener import ShownProgress
from kbackup.cli.options import archive_argument, archive_option, common_options, s3_options, spark_options
from kbackup.cli.output import Reporter
from kbackup.cli.session import archive_store, spark_session
from kbackup.errors import EXIT_LOSS, EXIT_OK, CorruptError
from kbackup.jobs.repair import RepairReport, repair

_MENDED = 20


@click.command("repair")
@archive_argument
@common_options
@archive_option
@click.option("--confirm", is_flag=True, help="Do it. Without this it is only shown.")
@click.option(
    "--rebuild",
    is_flag=True,
    help="Take a new restore point of all that is whole even where none is lost: without damaged segments.",
)
@s3_options
@spark_options
@pass_frame
def command(frame: Frame, confirm: bool, rebuild: bool) -> int:
    """Show what can be made good of an archive that has lost files; with --confirm, do it.

    Segment indexes, partition indexes, group files, intents and checkpoints that are missing or damaged are made anew:
    they follow from what is there. Where restore points are lost, because of their manifests or what stands beside
    them, every segment is read back, and a new restore point is taken of all that is whole. It stands behind the last
    one that needs nothing of what is lost; those between are gone, as 'info' and 'list --all' say from then on.

    First look for a whole copy: a bucket's versions, a place that 'kbackup copy' writes to. Nothing that is whole is
    deleted or overwritten; what is damaged is set aside under damaged/. Where no restore point is lost, records are
    held against their size alone, unless --rebuild reads them: 'kbackup verify' reads them, too. Ends with exit code 3
    when restore points or records are lost, and 13 when something can't be made good without --rebuild or another copy.
    """
    store = archive_store(frame, lost=True)
    with (
        spark_session(frame.config, reporter=frame.reporter) as session,
        ShownProgress(frame.reporter) as shown,
    ):
        report = repair(store, confirm, rebuild, frame.config.backup.lease_seconds, session, shown)
    show(report, frame.reporter)
    if report.left:
        return CorruptError.exit_code
    return EXIT_LOSS if report.is_loss else EXIT_OK


def show(report: RepairReport, reporter: Reporter, aside: bool = True) -> None:
    """`aside`: what was left out goes elsewhere; else it stays."""
    done = report.confirmed
    for each in report.mended[:_MENDED]:
        reporter.line(f"{each.file}: {each.what if done else 'is to be ' + each.what}")
    if len(report.mended) > _MENDED:
        reporter.line(f"and {plural(len(report.mended) - _MENDED, 'more file')}")
    for out in report.left_out:
        what = f"{'it was' if done else 'to be'} set aside" if aside else "left out"
        reporter.warning(f"{out.key}: {out.why}; {what}")
    for loss in report.losses:
        reporter.warning(f"loss: {loss}")
    for warning in report.warnings:
        reporter.warning(warning)
    for what in report.not_known:
        reporter.warning(f"not known: {what}")
    for finding in report.left:
        reporter.line(f"{finding.file}: {finding.what}")
        reporter.line(f"  hint: {finding.hint}")
    reporter.line(f"{report.archive}: {_sum(report)}; {human_duration(sum(report.seconds.values()))}")
    if not done and (report.mended or report.restore_point is not None):
        reporter.note("nothing was written: give --confirm to do it")
    reporter.document(report)


def _sum(report: RepairReport) -> str:
    if report.restore_point is None:
        if not report.mended and not report.left:
            return "nothing to repair; records were not read: 'kbackup verify' does"
        said = f"{plural(len(report.mended), 'file')} {'' if report.confirmed else 'to be '}made good"
        return said + (f", {plural(len(report.left), 'finding')} left" if report.left else "")
    lost = f"; {are_lost(report.lost)}" if report.lost else ""
    behind = f" behind {report.kept}" if report.kept is not None else ""
    what = "was taken" if report.confirmed else "would be taken"
    return (
        f"restore point {report.restore_point}{behind} {what} of {report.records:,} records in "
        f"{plural(report.segments, 'whole segment')}{lost}"
    )
