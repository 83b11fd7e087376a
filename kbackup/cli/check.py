"""`kbackup check`: check access and rights before a run, and leave nothing behind."""

from __future__ import annotations

import click

from kbackup.cli.common.command_context import CommandContext
from kbackup.cli.common.options import archive_command, client_file_option, name_options, source_options
from kbackup.cli.common.output import Reporter
from kbackup.cli.common.session import archive_store, spark_session
from kbackup.jobs.check import CheckStep, check
from kbackup.store import Store


def show_step(step: CheckStep, reporter: Reporter) -> None:
    word = step.status.upper() if step.status == "failed" else step.status
    reporter.check(word, step.name, step.detail, step.hint)


@archive_command(
    "check",
    source_options,
    client_file_option("target"),
    name_options("backup.topics", "backup.groups"),
    click.option("--target", is_flag=True, help="Also check access for a restore into [target]."),
    click.option("--spark", is_flag=True, help="Also start Spark and run a task."),
    spark=True,
    example="kbackup check --spark",
)
def command(context: CommandContext, target: bool, spark: bool) -> int:
    """Check access and rights before a run, and leave nothing behind.

    Source: connect, list topics, offsets, configs and groups, read a record. Archive: open, conditional writes, upload,
    read, list, delete, clock, lease. Schema registries: list subjects. Prints each step, with a hint if it failed. The
    exit code is that of the first failure.
    """
    reporter = context.reporter

    def open_store() -> Store:
        return archive_store(context)

    def show(step: CheckStep) -> None:
        show_step(step, reporter)

    with spark_session(context.config, reporter=reporter) as session:
        report = check(context.config, open_store, show, target, session if spark else None)
    reporter.document(report)
    return report.exit_code
