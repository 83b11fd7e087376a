"""`kbackup label`: give restore points labels."""

from __future__ import annotations

import click

from kbackup.cli.common.frame import Frame, pass_frame
from kbackup.cli.common.options import archive_option, common_options, s3_options
from kbackup.cli.common.session import archive_store
from kbackup.errors import UsageError


@click.command("label")
@click.argument("restore_point", metavar="N|LABEL|latest", required=False)
@click.argument("label", metavar="NAME", required=False)
@common_options
@archive_option
@click.option("--remove", metavar="NAME", help="Remove this label.")
@s3_options
@pass_frame
def command(frame: Frame, restore_point: str | None, label: str | None, remove: str | None) -> None:
    """Give a restore point a label: 'kbackup label 41 before-migration'.

    Options that take a restore point's number also take its label. A label of another restore point moves. A backup may
    run at the same time.
    """
    from kbackup.jobs.points.job import label as give_label
    from kbackup.jobs.points.job import remove_label

    if remove is not None:
        if restore_point is not None:
            raise UsageError("--remove and a restore point exclude each other", "give --remove NAME alone")
        report = remove_label(archive_store(frame), remove)
        frame.reporter.line(f"label {remove} is removed")
    elif restore_point is None or label is None:
        raise UsageError(
            "a restore point or a label is missing", "give both, for instance: kbackup label 41 NAME"
        )
    else:
        report = give_label(archive_store(frame), restore_point, label)
        frame.reporter.line(f"restore point {report.restore_point} has label {label}")
    frame.reporter.document(report)
