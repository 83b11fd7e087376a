"""`kbackup adopt`: a folder of the Java tool becomes an archive."""

from __future__ import annotations

import click

from kbackup.cli.common.frame import Frame, pass_frame
from kbackup.cli.common.listener import ShownProgress
from kbackup.cli.common.options import (
    archive_argument,
    archive_option,
    common_options,
    s3_options,
    spark_options,
)
from kbackup.cli.common.session import archive_store, spark_session
from kbackup.cli.repair import show
from kbackup.errors import EXIT_LOSS, EXIT_OK
from kbackup.jobs.adopt.job import adopt


@click.command("adopt")
@archive_argument
@common_options
@archive_option
@click.option("--confirm", is_flag=True, help="Do it. Without this it is only shown.")
@s3_options
@spark_options
@pass_frame
def command(frame: Frame, confirm: bool) -> int:
    """Make an archive of a folder that the Java tool kafka-backup wrote, in its place.

    Every segment is read back and copied to where an archive has it; the last step is a restore point of them, which
    later backups go on after. The folder is left as it is, and not needed any more: until you delete it, it takes the
    room twice. Stop the Java tool first.

    Damaged segments are left out and named; there is exit code 3 then. Kafka's ids of the topics are not in the folder:
    the first backup has to be told that the source's topics are the same ones (kbackup backup --adopt-topics).
    """
    store = archive_store(frame)
    with (
        spark_session(frame.config, reporter=frame.reporter) as session,
        ShownProgress(frame.reporter) as shown,
    ):
        report = adopt(store, confirm, frame.config.backup.lease_seconds, session, shown)
    show(report, frame.reporter)
    return EXIT_LOSS if report.is_loss else EXIT_OK
