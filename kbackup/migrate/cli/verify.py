"""`kbackup migrate verify`: compare ZooKeeper, KRaft and the archive."""

from __future__ import annotations

from datetime import timedelta

import click

from kbackup.cli.common.command_context import CommandContext, pass_command_context
from kbackup.cli.common.help import SectionedCommand
from kbackup.cli.common.options import Duration, bucket_options, point_option, source_options
from kbackup.cli.common.session import archive_store
from kbackup.cli.common.tables import Column
from kbackup.errors import EXIT_OK, CorruptError
from kbackup.util.text import plural


@click.command("verify", cls=SectionedCommand, epilog="Example: kbackup migrate verify")
@point_option(default="latest")
@click.option(
    "--lag",
    type=Duration(),
    default="10s",
    metavar="DURATION",
    help="Name differences between sources that last this long. [default 10s]",
)
@source_options
@bucket_options
@pass_command_context
def command(context: CommandContext, restore_point: str, lag: timedelta) -> int:
    """Compare ZooKeeper, KRaft and the archive, and name each difference.

    Compares what [source] names (brokers, ZooKeeper, a controller's metadata log), and a restore point if an archive is
    set. Ends with exit code 13 when there is any difference.
    """
    from kbackup.archive.reader import Archive, open_archive
    from kbackup.migrate.verify import verify_migration

    archive: Archive | None = None
    if context.config.archive:
        store = archive_store(context)
        archive = open_archive(store)
    report = verify_migration(context.config.sources, archive, restore_point, lag.total_seconds())
    reporter = context.reporter
    labels: set[str] = set()
    entity_columns: list[Column[str]] = [Column("entities", str)]
    for side in report.sides:
        labels |= side.entities.keys()
        entity_columns.append(Column(side.name, side.entities.get))
    reporter.table(entity_columns, sorted(labels))
    for side in report.sides:
        if side.outdated:
            reporter.note(f"{side.name} is not compared: {side.outdated}")
    for pair, parts in report.not_compared.items():
        reporter.note(f"not compared, {pair}: {', '.join(parts)}")
    for each in report.differences:
        reporter.line(each.text)
    if report.restore_point is None:
        reporter.note("no archive is named: the sources alone are compared")
    reporter.line(plural(len(report.differences), "difference"))
    reporter.document(report)
    return CorruptError.exit_code if report.differences else EXIT_OK
