"""`kbackup keep`: pin a restore point."""

from __future__ import annotations

import click

from kbackup.cli.common.frame import Frame, pass_frame
from kbackup.cli.common.options import archive_option, common_options, s3_options
from kbackup.cli.common.session import archive_store


@click.command("keep")
@click.argument("restore_point", metavar="N|LABEL|latest")
@common_options
@archive_option
@s3_options
@pass_frame
def command(frame: Frame, restore_point: str) -> None:
    """Pin a restore point, so that neither it nor its records expire.

    'kbackup list' shows pins, 'kbackup release' removes them. A backup may run at the same time.
    """
    from kbackup.jobs.points.job import pin

    report = pin(archive_store(frame), restore_point)
    state = "is pinned" if report.changed else "was pinned already"
    frame.reporter.line(f"restore point {report.restore_point} {state}")
    frame.reporter.document(report)
