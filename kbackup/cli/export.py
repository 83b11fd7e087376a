"""`kbackup export`: write an archive's records into Delta tables or Parquet files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from kbackup.cli.common.frame import Frame, pass_frame
from kbackup.cli.common.options import (
    archive_option,
    common_options,
    key_option,
    key_options,
    s3_options,
    spark_options,
)
from kbackup.cli.common.output import Reporter, ShownProgress
from kbackup.cli.common.session import archive_store, delta_config, spark_session
from kbackup.errors import EXIT_LOSS, EXIT_OK, UsageError
from kbackup.util.text import human_duration, plural

if TYPE_CHECKING:
    from kbackup.jobs.export.run import ExportReport


@click.command("export")
@common_options
@archive_option
@key_options("export.delta", "export.parquet", "export.one_table")
@key_option("export.topics", "-t", "--topic", "--topics")
@key_option("export.exclude_topics", "--exclude-topic", "--exclude-topics")
@s3_options
@spark_options
@pass_frame
def command(frame: Frame) -> int:
    """Export what is new in an archive to Delta tables or Parquet files.

    Writes each restore point once, as one commit of a table, also after a crash. Backups may run meanwhile. For Delta
    tables Spark fetches jars. Ends with exit code 3 when records may have expired before they were exported.
    """
    config, reporter = frame.config, frame.reporter
    export = config.export
    if not export.delta and not export.parquet:
        raise UsageError("no destination is named", "give --delta URL or --parquet URL")
    store = archive_store(frame)
    session_of = delta_config(config, export.delta)
    done: list[ExportReport] = []
    with spark_session(session_of, reporter=reporter) as session, ShownProgress(reporter) as shown:
        from kbackup.jobs.export.run import ExportJob
        from kbackup.jobs.export.tables import export_delta, export_parquet

        lease = config.backup.lease_seconds
        if export.delta:
            done.append(export_delta(ExportJob(export, export.delta, store, config.s3, session, shown, lease)))
        if export.parquet:
            done.append(export_parquet(ExportJob(export, export.parquet, store, config.s3, session, shown, lease)))
    for report in done:
        show_export(report, reporter)
    reporter.document({"exports": [msgspec.to_builtins(report) for report in done]})
    return EXIT_LOSS if any(report.losses for report in done) and not config.backup.allow_loss else EXIT_OK


def show_export(report: ExportReport, reporter: Reporter) -> None:
    if report.tables:
        reporter.table(
            ("table", "restore points", "new records"),
            [(t.url, _points(t.restore_points), t.records) for t in report.tables],
        )
    for loss in report.losses:
        reporter.warning(f"loss: {loss}")
    if report.losses:
        reporter.note("to export all records: run 'kbackup export' before each 'kbackup expire --older-than'")
    reporter.line(
        f"{report.url}: {plural(report.records, 'new record')}; at restore point {report.restore_point} of "
        f"{report.archive}; {human_duration(sum(report.seconds.values()))}"
    )


def _points(numbers: tuple[int, ...]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
