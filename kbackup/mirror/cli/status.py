"""`kbackup mirror status`: show the progress of an archive's flows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from kbackup.archive import layout
from kbackup.archive.reader import open_archive
from kbackup.cli.common.command_context import CommandContext, pass_command_context
from kbackup.cli.common.help import SectionedCommand
from kbackup.cli.common.options import archive_argument, bucket_options, key_option
from kbackup.cli.common.output import Reporter
from kbackup.cli.common.session import archive_store
from kbackup.cli.common.tables import Column
from kbackup.errors import UsageError, suggest_name
from kbackup.store import open_store
from kbackup.util.text import human_duration, human_size, plural

if TYPE_CHECKING:
    from kbackup.mirror.status import FlowOverview, MirroredTopic

_INCIDENTS = 5  # number of the newest to show


@click.command("status", cls=SectionedCommand, epilog="Example: kbackup mirror status s3://my-backups/us-west")
@archive_argument
@click.option("--flow", "names", multiple=True, metavar="A->B", help="Use only this flow. [repeatable]")
@click.option("--partitions", is_flag=True, help="Show the applied position of each partition.")
@key_option("restore.state", "--state")
@bucket_options
@pass_command_context
def command(context: CommandContext, names: tuple[str, ...], partitions: bool) -> None:
    """Show each flow of an archive: applied restore point, records and seconds behind, topics held back.

    "-" is an unknown value. The command reads the archive alone.
    """
    from kbackup.mirror.status import flows_of

    config, reporter = context.config, context.reporter
    store = archive_store(context)
    address = config.restore.state
    state = (
        open_store(address, config.stores, config.encryption.key or "", key_class=layout.key_class)
        if address
        else store
    )
    flows = flows_of(open_archive(store), state)
    known = [flow.flow for flow in flows]
    for name in names:
        if name not in known:
            hint = f"use one of {', '.join(known)}" if known else "run 'kbackup mirror' first"
            raise UsageError(f"the archive has no status of flow {name}", suggest_name(name, known, hint))
    flows = [flow for flow in flows if not names or flow.flow in names]
    for at, flow in enumerate(flows):
        if at:
            reporter.line()
        show_flow(flow, reporter)
        if partitions:
            reporter.table(_POSITIONS, _positions(flow))
    if not flows:
        reporter.line("no flow of this archive has begun")
    reporter.document({"archive": store.url, "flows": flows})


class _PartitionPosition(NamedTuple):
    """The next source offset of a partition to apply; None before the first record."""

    topic: str
    partition: int
    position: int | None


_POSITIONS: Sequence[Column[_PartitionPosition]] = (
    Column("topic", "topic"),
    Column("partition", "partition"),
    Column("applied position", "position"),
)


def _positions(flow: FlowOverview) -> list[_PartitionPosition]:
    positions = []
    for topic in flow.topics:
        for partition, position in enumerate(topic.applied):
            known = position if topic.incarnation > 0 else None
            positions.append(_PartitionPosition(topic.topic, partition, known))
    return positions


def _held_back(topic: MirroredTopic) -> str | None:
    """Return why a topic is held back, and since when; None if it is not."""
    if not topic.held_back:
        return None
    return f"since {topic.held_since}: {topic.held_back}" if topic.held_since else topic.held_back


_TOPICS: Sequence[Column[MirroredTopic]] = (
    Column("topic", "topic"),
    Column("remote topic", "remote", importance=3),
    Column("partitions", "applied", len, importance=2),
    Column("records behind", "records_behind"),
    Column("held back", _held_back, importance=4, alarming=True, prose=True),
)
"""The columns of the topics of a flow."""


def show_flow(flow: FlowOverview, reporter: Reporter) -> None:
    records = "-" if flow.records_behind is None else plural(flow.records_behind, "record")
    rate = f"{plural(flow.round_records, 'record')} ({human_size(flow.round_bytes)})"
    last = f"{flow.round_at}: {rate} in {flow.round_seconds:.1f}s"
    reporter.fields(
        [
            ("flow", flow.flow),
            ("applied", f"restore point {flow.restore_point or '-'} of {flow.newest_restore_point or '-'}"),
            ("behind", f"{records}, {human_duration(flow.seconds_behind)}"),
            ("last round", last if flow.round_at else "-"),
            ("last sign", f"{flow.written_at}, {human_duration(flow.silent_seconds)} ago"),
        ]
    )
    reporter.table(_TOPICS, flow.topics)
    reporter.warning(*(f"{incident.at}: {incident.message}" for incident in flow.incidents[-_INCIDENTS:]))
    reporter.warning(*(f"{refusal.subject}: {refusal.reason}" for refusal in flow.refusals))
    reporter.warning(*(unmapped.words for unmapped in flow.unmapped))
    if flow.error:
        reporter.warning(f"the last round failed: {flow.error}")
