"""What the commands that undo a restore share: their options, and what they print unless they were confirmed."""

from __future__ import annotations

from collections.abc import Sequence

import click

from kbackup.cli.common.command_context import CommandContext
from kbackup.cli.common.command_lines import own_command
from kbackup.cli.common.options import options
from kbackup.cli.common.output import Reporter
from kbackup.errors import UsageError
from kbackup.util.text import join_names

_NAMED = 5

undo_options = options(
    click.option("--confirm", is_flag=True, help="Undo. Without it, the command only shows the plan."),
    click.option(
        "--accept-unproven",
        is_flag=True,
        help="Trust files of the restore that another machine wrote, in an archive that is not encrypted.",
    ),
)


def named_restore(context: CommandContext) -> str:
    """Return the id that --restore-id gives. `UsageError` without one."""
    restore_id = context.config.restore.restore_id
    if restore_id is None:
        raise UsageError("no restore is named", "give --restore-id")
    return restore_id


def show_unconfirmed(unproven: Sequence[str], reporter: Reporter) -> None:
    """Say that nothing was changed, and which command does it. `unproven` are files that anybody may have written."""
    if not unproven:
        reporter.note(f"nothing was changed; to undo: {own_command('--confirm')}")
        return
    reporter.warning(
        f"nothing proves that {join_names(unproven, _NAMED)} are what the restore wrote: this machine keeps no record "
        "of having written them, and the archive is not encrypted; compare the plan with what the restore did"
    )
    reporter.note(f"nothing was changed; if that is the same, to undo: {own_command('--confirm', '--accept-unproven')}")
