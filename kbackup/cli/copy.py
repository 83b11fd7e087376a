"""`kbackup copy`: copy an archive to another store."""

from __future__ import annotations

import dataclasses

import click

from kbackup.archive import layout
from kbackup.cli.common.frame import Frame
from kbackup.cli.common.options import archive_command, point_option
from kbackup.cli.common.output import ShownProgress
from kbackup.cli.common.session import archive_store
from kbackup.store import S3Options, Store, open_store
from kbackup.util.text import human_duration, human_size, plural

_TO_S3 = "to_s3_"


@archive_command(
    "copy",
    click.argument("destination", metavar="DEST"),
    point_option("Copy this restore point alone, with all that it needs. [default all]"),
    click.option("--keep", is_flag=True, help="Keep restore points and records that expired in the source."),
    click.option("--to-s3-endpoint-url", metavar="URL", help="DEST's S3 endpoint, if it differs."),
    click.option("--to-s3-region", metavar="REGION", help="DEST's region."),
    click.option("--to-s3-profile", metavar="NAME", help="DEST's profile of the AWS configuration files."),
    click.option(
        "--to-s3-path-style/--no-to-s3-path-style", default=None, help="Put DEST's bucket in the path of the URL."
    ),
    example="kbackup copy s3://other-region/kafka",
)
def command(frame: Frame, destination: str, restore_point: str | None, keep: bool, **to_s3: str | bool | None) -> None:
    """Copy an archive, or what is new in it, to DEST.

    DEST must be empty or a copy of the same archive; it is a whole archive at each moment. The command checks every
    segment, and backups may run meanwhile. After a crash, run it again.

    A copy takes over pins and labels, and drops what expired in its source, without --keep. What expired in the copy
    alone stays expired. With --restore-point, an empty DEST gets that one alone; a later copy adds newer ones.

    Backups into a copy are refused, until 'kbackup promote'. A copy of an encrypted archive opens with the same key.
    """
    from kbackup.jobs.copy import copy_archive

    source = archive_store(frame)
    given: dict[str, object] = {name.removeprefix(_TO_S3): value for name, value in to_s3.items() if value is not None}
    target = _target(frame, destination, given)
    lease = frame.config.backup.lease_seconds
    with ShownProgress(frame.reporter) as shown:
        report = copy_archive(source, target, lease, shown, point=restore_point, keep=keep)
    points = report.restore_points
    summary = f"{plural(len(points), 'restore point')} copied" if points else "nothing new"
    dropped = plural(len(report.dropped), "restore point")
    summary += f", {dropped} dropped" if report.dropped else ""
    frame.reporter.line(
        f"{report.destination}: {summary}, {plural(report.objects, 'object')} with {human_size(report.bytes)}; "
        f"the newest restore point is {report.newest or '-'}; {human_duration(sum(report.seconds.values()))}"
    )
    if report.dropped:
        frame.reporter.note(f"{dropped} expired in the source; a copy with --keep keeps them")
    frame.reporter.document(report)


def _target(frame: Frame, url: str, given: dict[str, object]) -> Store:
    """Open the destination. A profile of its own replaces the credentials of the source."""
    if "profile" in given:
        given |= {"access_key_id": "", "secret_access_key": "", "session_token": ""}
    s3: S3Options = dataclasses.replace(frame.config.s3, **given)  # type: ignore[arg-type]
    return open_store(
        url, s3, frame.config.encryption.key or "", archive_id=frame.config.archive_id, key_class=layout.key_class
    )
