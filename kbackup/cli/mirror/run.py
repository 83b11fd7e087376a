"""`kbackup mirror FILE`: both halves of a mirror, or one of them."""

from __future__ import annotations

from pathlib import Path

import click

from kbackup.cli.frame import Frame, pass_frame
from kbackup.cli.options import (
    archive_option,
    common_options,
    key_option,
    options,
    s3_options,
    spark_options,
)
from kbackup.errors import UsageError


@click.command("run")
@click.argument("file", type=click.Path(path_type=Path))
@options(
    click.option("--flow", "names", multiple=True, metavar="A->B", help="Only this flow. [repeatable]"),
    click.option("--take", "take", is_flag=True, help="Only the half that backs sources up."),
    click.option("--apply", "apply", is_flag=True, help="Only the half that writes to targets."),
    click.option("--once", is_flag=True, help="One restore point of each source, one round of each flow."),
    click.option("--dry-run", is_flag=True, help="Show what would be mirrored, and change nothing."),
)
@common_options
@archive_option
@key_option("follow.interval_seconds", "--interval")
@key_option("follow.max_age_seconds", "--max-age")
@key_option("follow.stale_after_seconds", "--stale-after")
@key_option("follow.listen", "--listen")
@key_option("restore.state", "--state", help="Where flows keep their state. Unset: in the archive.")
@s3_options
@spark_options
@pass_frame
def command(
    frame: Frame, file: Path, names: tuple[str, ...], take: bool, apply: bool, once: bool, dry_run: bool
) -> int:
    """Run the flows of a MirrorMaker 2 properties FILE until stopped.

    The take half backs a source up into its archive; the apply half writes what the archive holds to a target.
    """
    if take and apply:
        raise UsageError("--take and --apply exclude each other", "give neither to run both halves")
    raise NotImplementedError
