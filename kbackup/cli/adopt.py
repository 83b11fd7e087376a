"""`kbackup adopt`: make an archive of a folder of the Java tool."""

from __future__ import annotations

import click

from kbackup.cli.common.frame import Frame, pass_frame
from kbackup.cli.common.options import archive_argument, archive_option, common_options, s3_options, spark_options
from kbackup.cli.common.output import ShownProgress
from kbackup.cli.common.session import archive_store, spark_session
from kbackup.cli.repair import show
from kbackup.errors import EXIT_LOSS, EXIT_OK
from kbackup.jobs.adopt import adopt


@click.command("adopt")
@archive_argument
@common_options
@archive_option
@click.option("--confirm", is_flag=True, help="Change the archive. Without it, the command only shows the plan.")
@s3_options
@spark_options
@pass_frame
def command(frame: Frame, confirm: bool) -> int:
    """Make an archive of a folder that the Java tool kafka-backup wrote, at the same address.

    Stop the Java tool first. The command copies every segment and commits a restore point. It leaves the folder as it
    is: until you delete it, the data takes twice the space.

    Leaves out damaged segments, names them and ends with exit code 3. The folder holds no topic ids: give the first
    backup --adopt-topics.
    """
    store = archive_store(frame)
    with spark_session(frame.config, reporter=frame.reporter) as session, ShownProgress(frame.reporter) as shown:
        report = adopt(store, confirm, frame.config.backup.lease_seconds, session, shown)
    show(report, frame.reporter)
    return EXIT_LOSS if report.is_loss else EXIT_OK
