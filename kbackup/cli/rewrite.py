"""`kbackup rewrite`: merge the small segments of an archive, and leave superseded records of compacted topics out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from kbackup.cli.common.command_context import CommandContext
from kbackup.cli.common.command_lines import own_command
from kbackup.cli.common.interrupts import SameState, StateByPhase, when_interrupted
from kbackup.cli.common.options import archive_command, key_option
from kbackup.cli.common.output import Reporter, ShownProgress
from kbackup.cli.common.session import archive_store, spark_session
from kbackup.cli.common.tables import Column, with_incarnation
from kbackup.config import Config
from kbackup.errors import UsageError
from kbackup.util.text import human_size, human_total, plural

if TYPE_CHECKING:
    from kbackup.jobs.rewrite import RewriteReport, Rewriting, RewrittenTopic
    from kbackup.spark.tasks import Spark


@archive_command(
    "rewrite",
    key_option("rewrite.merge_below"),
    key_option("rewrite.compact"),
    click.option("--confirm", is_flag=True, help="Rewrite. Without it, the command only shows the plan."),
    argument=True,
    spark=True,
    example="kbackup rewrite --merge-below 8MiB --confirm",
)
def command(context: CommandContext, confirm: bool) -> None:
    """Merge small adjacent segments of an archive, compact topics in it. Without --confirm, only show the plan.

    --merge-below: frequent restore points leave many small segments. Those become one, up to the size of new segments
    ([backup] segment_bytes), where no restore point ends between them: expire restore points first. No record changes,
    and each restore point keeps its own.

    --compact: of topics with cleanup.policy=compact, records go that the oldest restore point has a later one of the
    same key for. Each restore point restores the same latest record of each key; its history, and restores to a time
    before the oldest restore point, lack the others. Without --confirm, too, it reads the keys of these topics.

    As long as an expiration can be undone, its restore points count as well. The old objects stay for the grace time of
    'kbackup expire', which then deletes them. A backup may run at the same time. Rewrites nothing in copies: 'kbackup
    copy' sends the new segments.
    """
    from kbackup.jobs.retention import GRACE
    from kbackup.jobs.rewrite import rewrite

    again = own_command("--confirm")
    shown = ShownProgress(context.reporter)
    with spark_session(context.config, reporter=context.reporter) as session:
        rewriting = rewriting_of(context.config, session)
        if rewriting is None:
            raise UsageError(
                "nothing is given to do",
                "give --merge-below 8MiB, --compact or both, or set merge_below or compact in [rewrite]",
            )
        when_interrupted(_interruption(shown, confirm, own_command()))
        store = archive_store(context)
        with shown:
            report = rewrite(store, rewriting, context.config.backup.lease_seconds, GRACE, shown, confirm=confirm)
    show_rewrite(report, context.reporter)
    if not confirm and report.merged:
        context.reporter.note(f"nothing was changed; to rewrite: {again}")
    context.reporter.document(report)


def rewriting_of(config: Config, spark: Spark) -> Rewriting | None:
    """Return what is rewritten by the configuration, None if nothing is. `spark` gives a session for much work."""
    from kbackup.archive.catalog.merging import MergeSizes
    from kbackup.jobs.rewrite import Rewriting

    options = config.rewrite
    if options.merge_below is None and not options.compact:
        return None
    sizes = MergeSizes(options.merge_below or 0, config.backup.segment_bytes)
    return Rewriting(sizes, options.compact, spark)


def _interruption(shown: ShownProgress, confirm: bool, again: str) -> StateByPhase | SameState:
    """Describe an interrupted rewrite: what was committed is rewritten, and the archive is whole at each moment."""
    if not confirm:
        return SameState("nothing was changed", f"to begin anew: {again}")
    nothing = ("nothing was rewritten", f"to begin anew: {again}")
    some = ("some segments may be rewritten, and the archive is whole", f"to go on: {again}")
    before = {"": nothing, "choose topics": nothing}
    return StateByPhase(shown, before, some)


def _name(topic: RewrittenTopic) -> str:
    return with_incarnation(topic.topic, topic.incarnation)


_MERGED: Sequence[Column[RewrittenTopic]] = (
    Column("topic", _name),
    Column("segments", "segments"),
    Column("merged to", "merged"),
    Column("partitions", "partitions", importance=2),
    Column("records", "records", importance=1),
    Column("size", "bytes", human_size, importance=1),
)
"""The columns of what a rewrite merges."""


_COMPACTED: Sequence[Column[RewrittenTopic]] = (
    Column("topic", _name),
    Column("segments", "segments"),
    Column("compacted to", "merged"),
    Column("partitions", "partitions", importance=2),
    Column("records", "records", importance=1),
    Column("superseded", "superseded"),
    Column("size", "bytes", human_size, importance=1),
)
"""The columns of what a rewrite compacts: segments, records and size are those before."""


def show_rewrite(report: RewriteReport, reporter: Reporter) -> None:
    """Show what was rewritten, or would be."""
    would_be = "" if report.confirmed else "would be "
    if report.compacted:
        reporter.table(_COMPACTED, report.compacted)
        segments, into = _segments(report.compacted)
        reporter.line(
            f"{segments} {would_be}compacted to {into:,}: of {plural(report.searched, 'record')} that were looked at, "
            f"{report.superseded:,} are superseded"
        )
    elif report.searched:
        reporter.line(f"of {plural(report.searched, 'record')} in compacted topics, too few are superseded")
    if report.topics:
        reporter.table(_MERGED, report.topics)
        segments, into = _segments(report.topics)
        reporter.line(f"{segments} {would_be}merged to {into:,}")
    if report.merged:
        reporter.line(
            f"the archive has {plural(report.segments_after, 'segment')} instead of {report.segments_before:,}; "
            f"{human_total(report.seconds)}"
        )
    else:
        reporter.line("no segments to rewrite")
    if report.deleted_from is not None:
        reporter.note(
            f"the replaced objects are deleted by the first 'kbackup expire --confirm' after {report.deleted_from}"
        )
    if report.waiting:
        reporter.note(
            f"note: {plural(report.waiting, 'segment')} more can go when the restore points that expired can no longer "
            "be brought back: after the next 'kbackup expire --confirm' behind their grace time"
        )


def _segments(topics: Sequence[RewrittenTopic]) -> tuple[str, int]:
    """Return how many segments become how many."""
    count = sum(topic.segments for topic in topics)
    return plural(count, "segment"), sum(topic.merged for topic in topics)
