"""`kbackup keep`: pins a restore point."""

from __future__ import annotations

import click

from kbackup.cli.frame import Frame, pass_frame
from kbackup.cli.options import archive_option, common_options, s3_options
from kbackup.cli.session import archive_store


@click.command("keep")
@click.argument("restore_point", metavar="N|latest")
@common_options
@archive_option
@click.option("--undo", is_flag=True, help="Take it back.")
@s3_options
@pass_frame
def command(frame: Frame, restore_point: str, undo: bool) -> None:
    """Pin restore point N: 'kbackup expire' never takes it away, nor any record that it stands on.

    'kbackup list' shows which are pinned. It takes the lease for a moment, and is refused (exit code 11) while a run
    holds it.
    """
    from kbackup.jobs.keep import keep

    seconds = frame.config.backup.lease_seconds
    report = keep(archive_store(frame), restore_point, seconds, undo=undo)
    is_so = "is not pinned any more" if undo else "is pinned" if report.changed else "was pinned already"
    frame.reporter.line(f"restore point {report.restore_point} {is_so}")
    frame.reporter.document(report)
