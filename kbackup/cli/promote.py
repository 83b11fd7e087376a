"""`kbackup promote`: make a copy an independent archive."""

from __future__ import annotations

import click

from kbackup.cli.common.frame import Frame, pass_frame
from kbackup.cli.common.options import archive_argument, archive_option, common_options, s3_options
from kbackup.cli.common.session import archive_store


@click.command("promote")
@archive_argument
@common_options
@archive_option
@s3_options
@pass_frame
def command(frame: Frame) -> None:
    """Make a copy an independent archive, also when its origin is lost.

    Backups into it are then allowed, and 'kbackup copy' from the origin refused.
    """
    from kbackup.jobs.copy.job import promote

    report = promote(archive_store(frame))
    frame.reporter.line(f"{report.archive} is an independent archive; it was a copy of {report.origin}")
    frame.reporter.document(report)
