"""`kbackup copy`: copy an archive to another store."""

from __future__ import annotations

from collections.abc import Mapping

import click

from kbackup.archive import layout
from kbackup.cli.common.command_context import CommandContext
from kbackup.cli.common.command_lines import own_command
from kbackup.cli.common.interrupts import StateByPhase, when_interrupted
from kbackup.cli.common.options import archive_command, point_option, rate_option, second_store_options
from kbackup.cli.common.output import ShownProgress
from kbackup.cli.common.session import archive_store
from kbackup.store import Store, open_store
from kbackup.store.registry import kind_of, options_for
from kbackup.util.text import human_size, human_total, plural


@archive_command(
    "copy",
    click.argument("destination", metavar="DEST"),
    point_option("Copy this restore point alone, with all that it needs. [default all]"),
    click.option("--keep", is_flag=True, help="Keep restore points and records that expired in the source."),
    rate_option,
    second_store_options,
    example="kbackup copy s3://other-region/kafka",
)
def command(
    context: CommandContext, destination: str, restore_point: str | None, keep: bool, **to: str | bool | None
) -> None:
    """Copy an archive, or what is new in it, to DEST.

    DEST must be empty or a copy of the same archive; it is a whole archive at each moment. The command checks every
    segment, and backups may run meanwhile. After a crash, run it again.

    A copy takes over pins and labels, and drops what expired in its source, without --keep. What expired in the copy
    alone stays expired. With --restore-point, an empty DEST gets that one alone; a later copy adds newer ones.

    Backups into a copy are refused, until 'kbackup promote'. A copy of an encrypted archive opens with the same key.
    """
    from kbackup.jobs.copy import copy_archive

    source = archive_store(context)
    target = _target(context, destination, to)
    lease = context.config.backup.lease_seconds
    again = own_command()
    with ShownProgress(context.reporter) as shown:
        when_interrupted(
            StateByPhase(
                shown,
                {
                    "copy": (
                        f"{destination} is a whole archive as before; the objects that were sent stay there",
                        f"to go on, without sending them again: {again}",
                    ),
                    "restores and drills": (
                        f"all restore points are at {destination}, but not all files of restores and drills",
                        f"to copy the others: {again}",
                    ),
                },
                ("nothing was copied", f"to copy: {again}"),
            )
        )
        report = copy_archive(source, target, lease, shown, point=restore_point, keep=keep)
    points = report.restore_points
    summary = "nothing new"
    if points:
        summary = f"{plural(len(points), 'restore point')} copied"
    dropped = plural(len(report.dropped), "restore point")
    if report.dropped:
        summary += f", {dropped} dropped"
    context.reporter.line(
        f"{report.destination}: {summary}, {plural(report.objects, 'object')} with {human_size(report.bytes)}; "
        f"the newest restore point is {report.newest or '-'}; {human_total(report.seconds)}"
    )
    if report.dropped:
        context.reporter.note(f"{dropped} expired in the source; a copy with --keep keeps them")
    context.reporter.document(report)


def _target(context: CommandContext, url: str, to: Mapping[str, object]) -> Store:
    kind = kind_of(url)
    config = context.config
    stores = config.stores
    given = {}
    for name in kind.flags:
        value = to.get(f"to_{kind.section}_{name}")
        if value is not None:
            given[name] = value
    if given:
        # The copy may be in another account or region: other settings stay as the source has them.
        options = kind.elsewhere(options_for(kind, stores), **given)
        stores = {**stores, kind.section: options}
    key, rate = config.encryption.key or "", config.limit_rate
    return open_store(url, stores, key, archive_id=config.archive_id, key_class=layout.key_class, rate=rate)
