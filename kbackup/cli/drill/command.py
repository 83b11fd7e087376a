"""`kbackup drill`: restore for practice, compare the result with the archive, and report."""

from __future__ import annotations

from pathlib import Path

import click

from kbackup.archive import layout
from kbackup.cli.common.compare import selection_options, show_comparison, show_option
from kbackup.cli.common.frame import Frame, pass_frame
from kbackup.cli.common.options import (
    archive_argument,
    archive_option,
    common_options,
    key_option,
    key_options,
    point_key_option,
    s3_options,
    spark_options,
    target_options,
)
from kbackup.cli.common.output import Reporter, ShownProgress
from kbackup.cli.common.session import archive_store, show_connecting, spark_session, state_store
from kbackup.errors import EXIT_LOSS, EXIT_OK, KbackupError, UsageError
from kbackup.jobs.drill.report import DrillReport, count_drill, store_report
from kbackup.store import Store
from kbackup.util.text import kafka_command


@click.command("drill")
@archive_argument
@common_options
@archive_option
@target_options
@point_key_option
@selection_options
@key_option("restore.topic_config", "--topic-config")
@key_option("restore.groups", "-g", "--group", "--groups")
@key_option("restore.exclude_groups", "--exclude-group", "--exclude-groups")
@key_options("restore.no_groups", "restore.replication_factor", "restore.transactions")
@key_option("restore.state", "--state")
@click.option(
    "--prefix",
    metavar="TEXT",
    help="Prefix of scratch topics and groups. No other topic or group may have it. [default drill-<date>-<random>.]",
)
@click.option(
    "--report",
    "folder",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Also write the report to this folder: <id>.json and <id>.html.",
)
@click.option("--keep", is_flag=True, help="Keep the scratch topics and groups on the target.")
@click.option("--on-source", is_flag=True, help="Allow the backed-up cluster as the target.")
@show_option
@s3_options
@spark_options
@pass_frame
def command(frame: Frame, prefix: str | None, folder: Path | None, keep: bool, on_source: bool, show: int) -> int:
    """Restore a restore point for practice, compare the result with the archive, and report.

    Records go to scratch topics, groups to scratch groups; both are deleted at the end, also after an error or Ctrl-C.
    The archive gets the report as drills/<id>/report.json and report.html. Ends with exit code 3 when anything differs
    or could not be deleted.
    """
    config, reporter = frame.config, frame.reporter
    store = archive_store(frame)
    state = state_store(frame, store)
    if folder is not None:
        _make_folder(folder)

    def publish(report: DrillReport) -> None:
        _publish(report, folder, state, reporter)

    show_connecting(frame, "target")
    with spark_session(config, at_once=True, reporter=reporter) as session, ShownProgress(reporter) as shown:
        from kbackup.jobs.drill.job import (
            Drill,  # while the JVM starts
            drill,  # while the JVM starts
        )

        options = Drill(config.restore, prefix, keep, on_source, show)
        report = drill(options, config.target, store, state, session, shown, publish)
    count_drill(report)
    _show(report, state, reporter)
    reporter.document(report)
    if report.error is not None:
        return report.error.exit_code
    return EXIT_LOSS if report.findings else EXIT_OK


def _make_folder(folder: Path) -> None:
    """Make the folder of the report before the drill: an error must not come after hours of work."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"folder {folder} can't be made: {error.strerror}", "give another --report") from error


def _publish(report: DrillReport, folder: Path | None, state: Store, reporter: Reporter) -> None:
    from kbackup.archive.models import dump
    from kbackup.cli.drill.page import drill_page

    page = drill_page(report)
    if folder is not None:
        (folder / f"{report.drill_id}.html").write_text(page, encoding="utf-8")
        (folder / f"{report.drill_id}.json").write_bytes(dump(report))
    try:
        store_report(state, report, page)
    except KbackupError as error:
        if report.error is None:
            raise
        # the error that ended the drill gives the exit code
        reporter.warning(f"the report could not be stored: {error}")


def _deletions(report: DrillReport) -> list[str]:
    """Return the commands that delete the topics and groups which are still on the target."""
    names = [*report.kept, *report.left]
    groups = [name.removeprefix("group ").partition(": ")[0] for name in names if name.startswith("group ")]
    commands = []
    if any(name.startswith("topic") for name in names):
        pattern = report.prefix.replace(".", r"\.") + ".*"
        commands.append(kafka_command("kafka-topics", report.target, "--delete", "--topic", pattern))
    if groups:
        options = [word for group in groups for word in ("--group", group)]
        commands.append(kafka_command("kafka-consumer-groups", report.target, "--delete", *options))
    return commands


def _show(report: DrillReport, state: Store, reporter: Reporter) -> None:
    if report.comparison is not None:
        show_comparison(report.comparison, reporter)
    shown = set(report.comparison.findings) if report.comparison is not None else set()
    for finding in report.findings:
        if finding not in shown:
            reporter.warning(finding)
    for name in report.kept:
        reporter.note(f"kept: {name}")
    for command in _deletions(report):
        reporter.note(f"to delete what the drill left: {command}")
    if report.error is not None:
        reporter.warning(f"the drill ended with an error: {report.error.message}")
        if report.error.hint:
            reporter.note(f"hint: {report.error.hint}")
    address = f"{state.url.rstrip('/')}/{layout.drill_key(report.drill_id, layout.PAGE)}"
    reporter.line(f"drill {report.drill_id} {report.result}; its report: {address}")
