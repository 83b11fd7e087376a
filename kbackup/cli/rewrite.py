"""`kbackup rewrite`: merge the small segments of an archive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from kbackup.cli.common.command_context import CommandContext
from kbackup.cli.common.command_lines import own_command
from kbackup.cli.common.interrupts import SameState, StateByPhase, when_interrupted
from kbackup.cli.common.options import archive_command, key_option
from kbackup.cli.common.output import Reporter, ShownProgress
from kbackup.cli.common.session import archive_store
from kbackup.cli.common.tables import Column, with_incarnation
from kbackup.config import Config
from kbackup.errors import UsageError
from kbackup.util.text import human_size, human_total, plural

if TYPE_CHECKING:
    from kbackup.archive.catalog.merging import MergeSizes
    from kbackup.jobs.rewrite import MergedTopic, RewriteReport


@archive_command(
    "rewrite",
    key_option("rewrite.merge_below"),
    click.option("--confirm", is_flag=True, help="Rewrite. Without it, the command only shows the plan."),
    argument=True,
    example="kbackup rewrite --merge-below 8MiB --confirm",
)
def command(context: CommandContext, confirm: bool) -> None:
    """Merge small adjacent segments of an archive. Without --confirm, only show which.

    Frequent restore points leave many small segments. Those become one, up to the size of new segments
    ([backup] segment_bytes), where no restore point ends between them: expire restore points first. As long as an
    expiration can be undone, its restore points count as well. No record changes, and each restore point keeps its
    own. The old objects stay for the grace time of 'kbackup expire', which then deletes them.

    A backup may run at the same time. Merges nothing in copies: 'kbackup copy' sends the merged segments.
    """
    from kbackup.jobs.retention import GRACE
    from kbackup.jobs.rewrite import rewrite

    sizes = merge_sizes(context.config)
    if sizes is None:
        raise UsageError(
            "no size is given below which segments are merged", "give --merge-below 8MiB, or [rewrite] merge_below"
        )
    again = own_command("--confirm")
    shown = ShownProgress(context.reporter)
    when_interrupted(_interruption(shown, confirm, own_command()))
    store = archive_store(context)
    with shown:
        report = rewrite(store, sizes, context.config.backup.lease_seconds, GRACE, shown, confirm=confirm)
    show_rewrite(report, context.reporter)
    if not confirm and report.merged:
        context.reporter.note(f"nothing was changed; to merge: {again}")
    context.reporter.document(report)


def merge_sizes(config: Config) -> MergeSizes | None:
    """Return which segments are merged by the configuration; None if none are."""
    from kbackup.archive.catalog.merging import MergeSizes

    if config.rewrite.merge_below is None:
        return None
    return MergeSizes(config.rewrite.merge_below, config.backup.segment_bytes)


def _interruption(shown: ShownProgress, confirm: bool, again: str) -> StateByPhase | SameState:
    """Describe an interrupted rewrite: what was committed is merged, and the archive is whole at each moment."""
    if not confirm:
        return SameState("nothing was changed", f"to begin anew: {again}")
    nothing = ("nothing was merged", f"to begin anew: {again}")
    some = ("some segments may be merged, and no record changed", f"to go on: {again}")
    return StateByPhase(shown, {"": nothing, "choose segments": nothing}, some)


def _name(topic: MergedTopic) -> str:
    return with_incarnation(topic.topic, topic.incarnation)


_TOPICS: Sequence[Column[MergedTopic]] = (
    Column("topic", _name),
    Column("segments", "segments"),
    Column("merged to", "merged"),
    Column("partitions", "partitions", importance=2),
    Column("records", "records", importance=1),
    Column("size", "bytes", human_size, importance=1),
)
"""The columns of what a rewrite merges."""


def show_rewrite(report: RewriteReport, reporter: Reporter) -> None:
    """Show what a rewrite merged, or would merge."""
    reporter.table(_TOPICS, report.topics)
    if report.merged:
        verb = "merged" if report.confirmed else "would be merged"
        reporter.line(
            f"{plural(report.segments, 'segment')} {verb} to {report.merged:,}: the archive has "
            f"{plural(report.segments_after, 'segment')} instead of {report.segments_before:,}; "
            f"{human_total(report.seconds)}"
        )
    else:
        reporter.line("no segments to merge")
    if report.deleted_from is not None:
        reporter.note(
            f"the replaced objects are deleted by the first 'kbackup expire --confirm' after {report.deleted_from}"
        )
    if report.waiting:
        reporter.note(
            f"note: {plural(report.waiting, 'segment')} more can go when the restore points that expired can no longer "
            "be brought back: after the next 'kbackup expire --confirm' behind their grace time"
        )
