"""`kbackup verify`: an archive against what its restore points promise."""

from __future__ import annotations

import click

from kbackup.cli.frame import Frame, pass_frame
from kbackup.cli.human import human_duration, human_size
from kbackup.cli.listener import ShownProgress
from kbackup.cli.options import archive_argument, archive_option, common_options, s3_options, spark_options
from kbackup.cli.output import Reporter
from kbackup.cli.session import archive_store, spark_session
from kbackup.errors import EXIT_OK, CorruptError
from kbackup.jobs.verify import VerifyReport, verify


def _restore_point(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if value in ("all", "latest") or (value.isascii() and value.isdigit()):
        return value
    raise click.BadParameter("it takes the number of a restore point, latest or all")


@click.command("verify")
@archive_argument
@common_options
@archive_option
@click.option(
    "-b",
    "--backup",
    default="all",
    metavar="[N|latest|all]",
    callback=_restore_point,
    help="The restore point whose segments are verified, with all it stands on. [default all]",
)
@click.option("--quick", is_flag=True, help="Look at sizes and kept checksums only; read no records back.")
@s3_options
@spark_options
@pass_frame
def command(frame: Frame, backup: str, quick: bool) -> int:
    """Verify an archive, or a folder of the Java tool kafka-backup, and list everything that is wrong.

    Reads every segment back, in parallel: checksums, records against indexes and tables, offsets against the
    restore points. Manifests and what stands beside them are verified in any case. Ends with exit code 13 when
    there is any finding; what no restore point needs is noted and is no finding.
    """
    reporter = frame.reporter
    store = archive_store(frame)
    with spark_session(frame.config) as session, ShownProgress(reporter) as shown:
        report = verify(store, backup, quick, session, shown)
    show(report, reporter)
    return CorruptError.exit_code if report.findings else EXIT_OK


def show(report: VerifyReport, reporter: Reporter) -> None:
    for finding in report.findings:
        reporter.line(f"{finding.file}: {finding.what}")
        reporter.line(f"  hint: {finding.hint}")
    for note in report.notes:
        size = f" ({human_size(note.bytes)})" if note.bytes else ""
        reporter.note(f"note: {note.file}: {note.what}{size}")
    if report.orphan_bytes:
        reporter.note(f"note: {human_size(report.orphan_bytes)} in all that nothing promises")
    points = f"{len(report.restore_points):,} restore points, " if report.restore_points else ""
    how = (
        f"{report.read_records:,} records read back, {human_size(report.read_bytes)}"
        if report.deep
        else "records not read"
    )
    reporter.line(
        f"{report.archive}: {len(report.findings):,} findings; {points}{report.segments:,} segments, {how}; "
        f"{human_duration(sum(report.seconds.values()))}"
    )
    reporter.document(report)
