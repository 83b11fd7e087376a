"""`kbackup migrate preflight`: check whether a cluster is ready for its migration."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from kbackup.cli.common.command_context import CommandContext, pass_command_context
from kbackup.cli.common.help import SectionedCommand
from kbackup.cli.common.options import bucket_options, source_options
from kbackup.cli.common.session import archive_store, show_connecting
from kbackup.migrate.cli import controller_config_option


@click.command(
    "preflight",
    cls=SectionedCommand,
    epilog="Example: kbackup migrate preflight --controller-config controller.properties",
)
@source_options
@controller_config_option
@bucket_options
@pass_command_context
def command(context: CommandContext, controller_files: tuple[Path, ...]) -> int:
    """Check whether a cluster is ready for its migration from ZooKeeper to KRaft.

    Reads the brokers, ZooKeeper (zookeeper.connect in [source]), --controller-config and the archive; changes nothing.
    Prints each check with a hint. Ends with exit code 0 when the cluster is ready, 3 with warnings, 10 when it is not
    ready.
    """
    from kbackup.migrate.preflight import judge
    from kbackup.migrate.readings import read_preflight

    reporter = context.reporter
    show_connecting(context, "source")
    store = partial(archive_store, context) if context.config.archive else None
    report = judge(read_preflight(context.config.sources, controller_files, store))
    for line in report.lines:
        word = {"failed": "FAILED", "ok": "ok"}.get(line.status, "warning")
        reporter.check(word, line.name, line.detail, line.hint)
    reporter.line(report.verdict)
    reporter.document(report)
    return report.exit_code
