"""What `kbackup mirror --dry-run` shows of each flow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kbackup.cli.common.output import Reporter
from kbackup.cli.common.session import archive_store, state_store
from kbackup.cli.common.tables import Column, T
from kbackup.errors import EXIT_LOSS, EXIT_OK
from kbackup.kafka.control.cluster import Cluster
from kbackup.mirror.dry_run import DryRun, PlannedInternalTopic, dry_run, dry_run_of_take
from kbackup.util.text import plural

if TYPE_CHECKING:
    from kbackup.cli.common.command_context import CommandContext
    from kbackup.mirror.flow import Flow, RemoteTopic
    from kbackup.mirror.properties.flows import MirrorProperties
    from kbackup.mirror.topics import SkippedTopic
    from kbackup.spark.tasks import Spark


def show_dry_runs(
    context: CommandContext,
    properties: MirrorProperties,
    flows: Iterable[Flow],
    spark: Spark,
    *,
    take: bool,
    apply: bool,
) -> int:
    """Show what a round of each flow would do, in the halves that are selected: `take`, `apply` or both. Return the
    exit code."""
    runs: list[DryRun] = []
    for flow in flows:
        pairs = [pair for pair in properties.heartbeat_flows if take and pair.target == flow.source]
        if apply:
            run = dry_run_of_flow(context, flow, pairs, spark)
        else:
            run = dry_run_of_take(flow, archive_store(context, flow.archive_address()), pairs)
        runs.append(run)
        context.reporter.warning(*run.warnings)
        show_dry_run(run, context.reporter)
        for problem in run.problems:
            context.reporter.warning(f"flow {flow.name} would end: {problem}")
    context.reporter.document({"flows": runs})
    is_loss = any(run.held_back or run.problems for run in runs)
    return EXIT_LOSS if is_loss else EXIT_OK


def dry_run_of_flow(context: CommandContext, flow: Flow, pairs: list[Flow], spark: Spark) -> DryRun:
    """Plan both halves of a flow. `pairs` are those whose heartbeats the take half writes to the flow's source."""
    store = archive_store(context, flow.archive_address())
    target = Cluster(flow.client("target"), "target")
    target.connect()
    heartbeats = pairs if flow.source_properties is not None else ()
    return dry_run(flow, store, state_store(context, store), target, heartbeats, spark)


_STATES = {None: "not asked", True: "is there", False: "is created"}
"""What is known of a topic on a cluster, by whether it exists."""


class _HeldBack(NamedTuple):
    topic: str
    why: str


class _RemoteConfig(NamedTuple):
    topic: str
    name: str
    becomes: str


_INTERNAL_TOPICS: Sequence[Column[PlannedInternalTopic]] = (
    Column("internal topic", "topic"),
    Column("cluster", "cluster", importance=4),
    Column("half", "half", importance=3),
    Column("state", "exists", _STATES.get),
)
_HELD_BACK: Sequence[Column[_HeldBack]] = (
    Column("held back", "topic"),
    Column("why", "why", alarming=True, prose=True),
)
_SKIPPED: Sequence[Column[SkippedTopic]] = (Column("not mirrored", "topic"), Column("why", "reason", prose=True))
_CONFIGS: Sequence[Column[_RemoteConfig]] = (
    Column("remote topic", "topic"),
    Column("config", "name"),
    Column("becomes", "becomes"),
)


def show_dry_run(run: DryRun, reporter: Reporter) -> None:
    seen = f"restore point {run.restore_point}" if run.restore_point else "the source as it is now"
    reporter.line(f"flow {run.flow}, by {seen} ({run.archive}):")

    def change(topic: RemoteTopic) -> str:
        return _change(run, topic.remote)

    topic_columns: Sequence[Column[RemoteTopic]] = (
        Column("topic", "source"),
        Column("remote topic", "remote"),
        Column("partitions", "partitions", importance=4),
        Column("target", change),
    )
    reporter.table(topic_columns, run.topics)
    held_back = [_HeldBack(topic, why) for topic, why in run.held_back.items()]
    _show_rows(reporter, _INTERNAL_TOPICS, run.internal)
    _show_rows(reporter, _HELD_BACK, held_back)
    _show_rows(reporter, _SKIPPED, run.skipped)
    _show_rows(reporter, _CONFIGS, _config_changes(run))
    if run.acls:
        reporter.line(f"{plural(len(run.acls), 'ACL')} would be created:")
        for acl in run.acls:
            reporter.line(f"  {acl}")
    reporter.line()


def _show_rows(reporter: Reporter, columns: Sequence[Column[T]], rows: Sequence[T]) -> None:
    """Print a table, unless it has no rows."""
    if rows:
        reporter.line()
        reporter.table(columns, rows)


def _config_changes(run: DryRun) -> list[_RemoteConfig]:
    """Return each config that a remote topic would get, or lose."""
    found = []
    for topic, changes in (run.configs or {}).items():
        for name, value in changes.items():
            becomes = "the default" if value is None else value
            found.append(_RemoteConfig(topic, name, becomes))
    return found


def _change(run: DryRun, remote: str) -> str:
    """Return what would become of a remote topic."""
    if run.created is None or run.grown is None:
        return _STATES[None]
    if remote in run.held_back:
        return "is held back"
    if remote in run.created:
        return _STATES[False]
    return "gets partitions" if remote in run.grown else _STATES[True]
