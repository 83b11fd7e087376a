"""`kbackup verify`: verify an archive's objects, or compare a cluster with an archive."""

from __future__ import annotations

import click
import msgspec

from kbackup.cli.common.compare import against_options, has_selection_options, show_comparison
from kbackup.cli.common.frame import Frame, pass_frame
from kbackup.cli.common.options import (
    archive_argument,
    archive_option,
    common_options,
    point_option,
    s3_options,
    spark_options,
)
from kbackup.cli.common.output import Reporter, ShownProgress
from kbackup.cli.common.session import archive_store, show_connecting, spark_session, state_store
from kbackup.errors import EXIT_LOSS, EXIT_OK, CorruptError, KbackupError, UsageError
from kbackup.jobs.compare.report import count_comparison
from kbackup.jobs.verify.job import count_verification, verify
from kbackup.jobs.verify.report import VerifyReport, record_verification
from kbackup.util.text import human_duration, human_size, plural
from kbackup.util.times import now


@click.command("verify")
@archive_argument
@common_options
@archive_option
@point_option(
    "Restore point to verify. [default all; with --against latest]",
    default="all",
    metavar="[N|LABEL|latest|all]",
    show_default=False,
)
@click.option("--quick", is_flag=True, help="Check sizes and stored checksums only; read no records.")
@against_options
@s3_options
@spark_options
@pass_frame
def command(
    frame: Frame, restore_point: str, quick: bool, against: str | None, groups: bool, exact: bool, show: int
) -> int:
    """Verify an archive, or a folder of the Java tool kafka-backup, and list all findings.

    Checks manifests, documents, checksums, records, indexes, tables and offsets. Ends with exit code 13 when there is
    any finding. Orphans, and torn files of a killed sink of the Java tool, are no findings. Records the result in the
    archive, where it may write.

    --against compares a cluster with the archive, record by record: the target by the offset map of --restore-id, or
    the topics that a restore with these options would write. Ends with exit code 3 when anything differs.
    """
    reporter = frame.reporter
    if against is not None:
        if quick:
            raise UsageError("--quick reads no records", "leave it out with --against")
        return _against(frame, restore_point, against, groups, exact, show)
    if groups or exact or has_selection_options():
        raise UsageError("options of a comparison need --against", "give --against target or source")
    store, started_at = archive_store(frame), now()
    with spark_session(frame.config, reporter=reporter) as session, ShownProgress(reporter) as shown:
        report = verify(store, restore_point, quick, session, shown)
    count_verification(report)
    try:
        record_verification(store, report, started_at, partial=restore_point != "all")
    except KbackupError as error:
        reporter.note(f"note: the result was not recorded in the archive: {error.message}")
    _show(report, reporter)
    return CorruptError.exit_code if report.findings else EXIT_OK


def _against(frame: Frame, restore_point: str, against: str, groups: bool, exact: bool, show: int) -> int:
    config, reporter = frame.config, frame.reporter
    options = config.restore
    if restore_point != "all":
        options = msgspec.structs.replace(
            options, restore_point=int(restore_point) if restore_point.isdecimal() else restore_point
        )
    store = archive_store(frame)
    show_connecting(frame, "source" if against == "source" else "target")
    with spark_session(config, at_once=True, reporter=reporter) as session, ShownProgress(reporter) as shown:
        from kbackup.jobs.compare.job import (
            CompareRequest,
            verify_against,  # while the JVM starts
        )

        request = CompareRequest("source" if against == "source" else "target", options, groups, exact, show)
        cluster = config.source if against == "source" else config.target
        report = verify_against(request, cluster, store, state_store(frame, store), session, shown)
    count_comparison(report)
    show_comparison(report, reporter)
    reporter.document(report)
    return EXIT_LOSS if report.findings else EXIT_OK


def _show(report: VerifyReport, reporter: Reporter) -> None:
    for finding in report.findings:
        reporter.line(f"{finding.file}: {finding.what}")
        reporter.line(f"  hint: {finding.hint}")
    for note in report.notes:
        size = f" ({human_size(note.bytes)})" if note.bytes else ""
        reporter.note(f"note: {note.file}: {note.what}{size}")
    if report.orphan_bytes:
        reporter.note(f"note: {human_size(report.orphan_bytes)} in all belong to no restore point")
    if report.findings and report.restore_points:
        reporter.note("take the objects from a copy; to see what can be mended without: kbackup repair")
    points = f"{plural(len(report.restore_points), 'restore point')}, " if report.restore_points else ""
    how = (
        f"{plural(report.read_records, 'record')} read back, {human_size(report.read_bytes)}"
        if report.deep
        else "records not read"
    )
    reporter.line(
        f"{report.archive}: {plural(len(report.findings), 'finding')}; {points}"
        f"{plural(report.segments, 'segment')}, {how}; "
        f"{human_duration(sum(report.seconds.values()))}"
    )
    reporter.document(report)
