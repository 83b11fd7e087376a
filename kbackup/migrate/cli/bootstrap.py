"""`kbackup migrate bootstrap`: write users and quotas for a new KRaft cluster."""

from __future__ import annotations

from pathlib import Path

import click

from kbackup.cli.common.command_context import CommandContext, pass_command_context
from kbackup.cli.common.help import SectionedCommand
from kbackup.cli.common.options import bucket_options, point_option
from kbackup.cli.common.session import archive_store
from kbackup.util.text import plural


@click.command(
    "bootstrap", cls=SectionedCommand, epilog="Example: kbackup migrate bootstrap --base new.checkpoint --out /root/new"
)
@point_option(default="latest")
@click.option(
    "--base",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="The file that 'kafka-storage format' wrote for the new cluster: bootstrap.checkpoint, or since Kafka 4.4 "
    "__cluster_metadata-0/00000000000000000000-0000000000.checkpoint.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR",
    help="Folder for the new file, which only you can read and which has the same name.",
)
@bucket_options
@pass_command_context
def command(context: CommandContext, restore_point: str, base: Path, out: Path) -> None:
    """Write the file that a new KRaft cluster starts from, in which users keep their passwords.

    Adds SCRAM credentials, client quotas, valid delegation tokens and the next producer id to the file that
    'kafka-storage format' wrote. Put the result in its place before the controller's first start. Needs an encrypted
    archive with the secrets.
    """
    from kbackup.archive.reader import open_archive
    from kbackup.migrate.bootstrap import make_bootstrap

    reporter = context.reporter
    report = make_bootstrap(open_archive(archive_store(context)), restore_point, base, out)
    reporter.note(*(f"delegation token {token} has expired and is left out" for token in report.expired))
    counts = [
        plural(report.scram_users, "SCRAM user"),
        plural(report.client_quotas, "client quota"),
        plural(report.delegation_tokens, "delegation token"),
    ]
    if report.next_producer_id is not None:
        counts.append(f"producer ids from {report.next_producer_id} on")
    reporter.line(f"{report.file}: restore point {report.restore_point}, {', '.join(counts)}")
    if report.live:
        words = ",".join(report.live)
        reporter.line(f"after the first start: kbackup restore --with {words}, which also makes the topics")
    reporter.document(report)
