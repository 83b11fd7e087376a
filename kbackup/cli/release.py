"""`kbackup release`: remove the pin of a restore point."""

from __future__ import annotations

import click

from kbackup.cli.common.frame import Frame, pass_frame
from kbackup.cli.common.options import archive_option, common_options, s3_options
from kbackup.cli.common.session import archive_store


@click.command("release")
@click.argument("restore_point", metavar="N|LABEL|latest")
@common_options
@archive_option
@s3_options
@pass_frame
def command(frame: Frame, restore_point: str) -> None:
    """Remove the pin of a restore point. The next 'kbackup expire' may expire it."""
    from kbackup.jobs.points.job import release

    report = release(archive_store(frame), restore_point)
    frame.reporter.line(f"restore point {report.restore_point} is no longer pinned")
    frame.reporter.document(report)
