"""`kbackup export`: write an archive's records into Delta tables or Parquet files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kbackup.cli.common.frame import Frame
from kbackup.cli.common.options import archive_command, key_options, name_options
from kbackup.cli.common.output import Reporter, ShownProgress
from kbackup.cli.common.session import archive_store, delta_config, spark_session
from kbackup.errors import EXIT_LOSS, EXIT_OK, UsageError
from kbackup.util.text import human_duration, plural

if TYPE_CHECKING:
    from kbackup.jobs.export.job import ExportReport


@archive_command(
    "export",
    key_options("export.delta", "export.parquet", "export.one_table"),
    name_options("export.topics"),
    spark=True,
)
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
    done: list[ExportReport] = []
    with (
        spark_session(delta_config(config, export.delta), reporter=reporter) as session,
        ShownProgress(reporter) as shown,
    ):
        from kbackup.jobs.export.job import ExportJob, export_delta, export_parquet

        for url, write in ((export.delta, export_delta), (export.parquet, export_parquet)):
            if url:
                done.append(
                    write(ExportJob(export, url, store, config.s3, session, shown, config.backup.lease_seconds))
                )
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
