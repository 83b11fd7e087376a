"""`kbackup migrate rollback`: roll a migration back to ZooKeeper."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kbackup.cli.common.command_context import CommandContext, pass_command_context
from kbackup.cli.common.help import SectionedCommand
from kbackup.cli.common.options import bucket_options, source_options
from kbackup.cli.common.session import archive_store, show_connecting
from kbackup.errors import MismatchError, UsageError
from kbackup.migrate.cli import controller_config_option, metrics_option
from kbackup.migrate.cli.status import state_document, state_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kbackup.migrate.znodes import ZnodeContent


@click.command(
    "rollback",
    cls=SectionedCommand,
    epilog="Example: kbackup migrate rollback --controller-config controller.properties",
)
@source_options
@metrics_option
@controller_config_option
@click.option(
    "--controller", "controllers", multiple=True, metavar="HOST:PORT", help="Address of a controller. [repeatable]"
)
@click.option(
    "--stopped",
    multiple=True,
    metavar="HOST:PORT",
    help="Address of a stopped controller whose machine gives no answer. [repeatable]",
)
@click.option(
    "--metadata-log",
    "metadata_logs",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder of another controller's metadata log, beside metadata.log.dir in [source]. [repeatable]",
)
@click.option("--confirm", is_flag=True, help="Delete /controller and /migration if every guard allows it.")
@bucket_options
@pass_command_context
def command(context: CommandContext, /, confirm: bool, **options: Any) -> None:
    """Show the steps back to ZooKeeper; with --confirm, delete the migration's znodes.

    --confirm deletes /controller and /migration alone. It refuses unless the migration is not finished, no KRaft
    controller is alive, no broker runs as a KRaft broker, and the newest restore point holds both znodes unchanged.
    ZooKeeper must have all that a majority of the controllers' metadata logs has. Ends with exit code 10 when refused,
    or without a way back.
    """
    from kbackup.migrate.rollback import RollbackOptions, delete_znodes, guards_of, read_situation, runbook
    from kbackup.migrate.zookeeper.session import open_session

    sources, reporter = context.config.sources, context.reporter
    if sources.zookeeper is None:
        raise UsageError("no ZooKeeper is named", "set zookeeper.connect in [source]")
    show_connecting(context, "source")
    store = partial(archive_store, context) if context.config.archive else None
    read = partial(read_situation, sources, options=RollbackOptions(**options), store=store)
    deleted: Sequence[ZnodeContent] = ()
    with open_session(sources.zookeeper) as zookeeper:
        situation = read(zookeeper)
        if confirm:
            deleted = delete_znodes(situation, zookeeper)
            # Shown before anything else can fail: whoever has to put a znode back needs its content.
            for znode in deleted:
                reporter.line(f"deleted {znode.path}: {znode.content}")
            situation = read(zookeeper)
    steps, guards = runbook(situation), guards_of(situation)
    reporter.line(f"state: {state_words(situation.report)}")
    if situation.report.way_back and not steps:
        reporter.line("nothing is left to roll back; delete the controllers' storage before a second migration")
    for number, step in enumerate(steps, start=1):
        mark = {True: "done", False: "to do", None: "-"}[step.done]
        reporter.line(f"{number}. {mark:<6} {step.text}")
        reporter.line(f"{'':<10} check: {step.check}")
    # Without a znode to delete there is nothing to guard.
    for guard in guards if situation.due else ():
        verdict = "holds" if guard.holds else "refuses"
        reporter.check("guard", guard.name, f"{verdict}: {guard.detail}", guard.hint)
    reporter.document(
        {
            "state": state_document(situation.report),
            "controllers": situation.signs,
            "deleted": deleted,
            "steps": steps,
            "guards": guards,
        }
    )
    if not situation.report.way_back:
        verb = "is" if situation.report.is_certain else "may be"
        raise MismatchError(f"there {verb} no way back: the state is {state_words(situation.report)}", guards[0].hint)
