"""`kbackup migrate archive`: write a restore point of metadata alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from kbackup.cli.common.command_context import CommandContext, pass_command_context
from kbackup.cli.common.help import SectionedCommand
from kbackup.cli.common.options import bucket_options, key_options, source_options
from kbackup.cli.common.output import ShownProgress
from kbackup.cli.common.session import archive_store, show_connecting
from kbackup.cli.common.tables import Column

if TYPE_CHECKING:
    from kbackup.migrate.archive import PartReport


_PARTS: Sequence[Column[PartReport]] = (
    Column("part", "part"),
    Column("entities", "entities"),
    Column("read from", "source"),
)


@click.command("archive", cls=SectionedCommand, epilog="Example: kbackup migrate archive --label before-dual-write")
@source_options
@key_options("backup.adopt_cluster")
@click.option("--label", metavar="NAME", help="Label of the new restore point.")
@bucket_options
@pass_command_context
def command(context: CommandContext, label: str | None) -> None:
    """Archive the whole metadata of a cluster in one new restore point, without records.

    Run it before each step of a migration. It reads the brokers, and what else [source] names: ZooKeeper, a
    controller's metadata log. Topics and groups stay as before. Secrets go into an encrypted archive only.
    """
    from kbackup.migrate.archive import archive_metadata

    store = archive_store(context)
    show_connecting(context, "source")
    with ShownProgress(context.reporter) as shown:
        report = archive_metadata(context.config.backup, context.config.sources, store, shown, label or "")
    reporter = context.reporter
    reporter.table(_PARTS, report.parts)
    reporter.note(*(f"not archived: {entry.what} ({entry.why})" for entry in report.not_carried))
    reporter.warning(*report.warnings)
    label = f", {report.label}" if report.label else ""
    reporter.line(f"restore point {report.restore_point}{label} of {report.archive}: metadata alone")
    reporter.document(report)
