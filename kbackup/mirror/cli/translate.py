"""`kbackup mirror translate`: show a group's position in the target of each flow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kbackup.cli.common.command_context import CommandContext, pass_command_context
from kbackup.cli.common.help import SectionedCommand
from kbackup.cli.common.options import bucket_options, key_option
from kbackup.cli.common.output import Reporter
from kbackup.cli.common.session import cached_archive_store, state_store
from kbackup.cli.common.tables import Column
from kbackup.errors import KbackupError, NoArchiveError, UnreachableError, UsageError

if TYPE_CHECKING:
    from kbackup.mirror.flow import Flow
    from kbackup.mirror.positions import Translated, Translation


@click.command("translate", cls=SectionedCommand, epilog="Example: kbackup mirror translate mm2.properties billing")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("group")
@click.option("--flow", "names", multiple=True, metavar="A->B", help="Use only this flow. [repeatable]")
@key_option("restore.state", "--state")
@bucket_options
@pass_command_context
def command(context: CommandContext, file: Path, group: str, names: tuple[str, ...]) -> None:
    """Show the position of a source's GROUP in the target of each flow of a properties FILE that knows the group.

    'exact' is the position by the offset map, 'checkpoint' the answer of RemoteClusterUtils.translateOffsets.
    """
    from kbackup.mirror.positions import UnknownGroupError
    from kbackup.mirror.properties.flows import load_flows

    flows = load_flows(file, context.config.archive).selected(names)
    shown: list[Translation] = []
    elsewhere: list[KbackupError] = []
    for flow in flows:
        try:
            translation = _translate(context, flow, group)
        except (UnknownGroupError, NoArchiveError, UnreachableError) as error:
            # Without --flow the group may be of any flow, and this one may not have begun, or not be reached from here.
            if len(flows) == 1 or names:
                raise
            elsewhere.append(error)
            continue
        show(translation, context.reporter)
        for tp, why in translation.forgotten.items():
            context.reporter.warning(
                f"flow {flow.name}: no exact position for {tp}: the target has no applied position, "
                f"and {why}; run 'kbackup mirror', then this command again"
            )
        shown.append(translation)
    # Whoever has found the group needs no list of the flows that don't know it, but must hear of those that were not
    # asked: one of them may know the group as well.
    unasked = [error for error in elsewhere if not isinstance(error, UnknownGroupError)]
    context.reporter.warning(*(str(error) for error in unasked))
    if not shown:
        if unasked:
            raise unasked[0]
        asked = ", ".join(flow.name for flow in flows)
        raise UsageError(f"no flow knows a position of group {group}; asked: {asked}", elsewhere[0].hint)
    context.reporter.document({"group": group, "flows": shown})


def _translate(context: CommandContext, flow: Flow, group: str) -> Translation:
    """Return the group's positions in the target of one flow."""
    from kbackup.archive.reader import open_archive
    from kbackup.kafka.control.cluster import Cluster
    from kbackup.mirror.positions import translate_group

    store = cached_archive_store(context, flow.archive_address())
    context.reporter.doing(f"connecting to {flow.target}")
    cluster = Cluster(flow.client("target"), "target")
    return translate_group(flow, group, open_archive(store), state_store(context, store), cluster)


_OFFSETS: Sequence[Column[Translated]] = (
    Column("topic", "topic"),
    Column("partition", "partition"),
    Column("committed in source", "committed", importance=3),
    Column("checkpoint", "checkpoint", importance=4),
    Column("exact", "exact"),
)


def show(translation: Translation, reporter: Reporter) -> None:
    reporter.fields(
        [
            ("flow", translation.flow),
            ("group", translation.group),
            ("restore point", translation.restore_point),
            ("captured at", translation.captured_at),
        ]
    )
    reporter.line()
    reporter.table(_OFFSETS, translation.offsets)
