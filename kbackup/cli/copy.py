"""`kbackup copy`: an archive in another store."""

from __future__ import annotations

import dataclasses

import click

from kbackup.cli.common.frame import Frame, pass_frame
from kbackup.cli.common.human import human_duration, human_size, plural
from kbackup.cli.common.listener import ShownProgress
from kbackup.cli.common.options import archive_option, common_options, options, s3_options
from kbackup.cli.common.session import archive_store
from kbackup.store import S3Options, Store, open_store

_place_options = options(
    click.option("--to-s3-endpoint-url", metavar="URL", help="Where DEST's S3 server is, if it is another."),
    click.option("--to-s3-region", metavar="REGION", help="Its region."),
    click.option(
        "--to-s3-profile", metavar="NAME", help="The profile of the AWS files that DEST is written with."
    ),
    click.option(
        "--to-s3-path-style/--no-to-s3-path-style",
        default=None,
        help="Whether its URLs have the bucket in the path.",
    ),
)


@click.command("copy")
@click.argument("destination", metavar="DEST")
@common_options
@archive_option
@click.option(
    "-b",
    "--backup",
    metavar="[N|LABEL|latest]",
    help="This restore point alone, with all that it stands on. [default all]",
)
@click.option("--keep", is_flag=True, help="Keep restore points and records that the source has let go.")
@_place_options
@s3_options
@pass_frame
def command(
    frame: Frame,
    destination: str,
    backup: str | None,
    keep: bool,
    to_s3_endpoint_url: str | None,
    to_s3_region: str | None,
    to_s3_profile: str | None,
    to_s3_path_style: bool | None,
) -> None:
    """Copy an archive to DEST, or what came to it since the last copy.

    DEST is empty or a copy of the same archive; anything else is refused. Every segment is checked on its way. DEST is
    a whole archive at each moment, and after a crash the same command goes on. Backups may run meanwhile.

    A copy follows its source: restore points and records that the source let go are dropped, unless --keep is given.
    Pins and labels come along. With --backup, an empty DEST gets that restore point alone; a later copy adds the newer
    ones. What a copy let go by itself stays away.

    No backup goes into a copy. 'kbackup promote' makes a copy an archive of its own.

    Encrypted archives are copied as they are stored, with their data keys: the key opens the copy as well.
    """
    from kbackup.jobs.copy.job import copy_archive

    source = archive_store(frame)
    given = {
        "endpoint_url": to_s3_endpoint_url,
        "region": to_s3_region,
        "profile": to_s3_profile,
        "path_style": to_s3_path_style,
    }
    target = _target(frame, destination, {name: value for name, value in given.items() if value is not None})
    lease = frame.config.backup.lease_seconds
    with ShownProgress(frame.reporter) as shown:
        report = copy_archive(source, target, lease, shown, point=backup, keep=keep)
    points = report.restore_points
    what = f"{plural(len(points), 'restore point')} copied" if points else "nothing new"
    what += f", {plural(len(report.dropped), 'restore point')} dropped" if report.dropped else ""
    frame.reporter.line(
        f"{report.destination}: {what}, {plural(report.objects, 'object')} with {human_size(report.bytes)}; "
        f"the newest restore point is {report.newest or '-'}; {human_duration(sum(report.seconds.values()))}"
    )
    frame.reporter.document(report)


def _target(frame: Frame, url: str, given: dict[str, object]) -> Store:
    """A profile brings credentials of its own."""
    if "profile" in given:
        given |= {"access_key_id": "", "secret_access_key": "", "session_token": ""}
    s3: S3Options = dataclasses.replace(frame.config.s3, **given)  # type: ignore[arg-type]
    return open_store(url, s3, frame.config.encryption.key or "", archive_id=frame.config.archive_id)
