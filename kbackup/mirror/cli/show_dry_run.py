"""What `kbackup mirror --dry-run` shows of each flow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kbackup.cli.common.output import Reporter, columns
from kbackup.cli.common.session import archive_store, state_store
from kbackup.errors import EXIT_LOSS, EXIT_OK
from kbackup.kafka.control.cluster import Cluster
from kbackup.mirror.dry_run import DryRun, dry_run, dry_run_of_take
from kbackup.util.text import plural

if TYPE_CHECKING:
    from kbackup.cli.common.command_context import CommandContext
    from kbackup.mirror.flow import Flow
    from kbackup.mirror.properties.flows import MirrorProperties
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


def show_dry_run(run: DryRun, reporter: Reporter) -> None:
    seen = f"restore point {run.restore_point}" if run.restore_point else "the source as it is now"
    reporter.line(f"flow {run.flow}, by {seen} ({run.archive}):")
    topics = [(topic.source, topic.remote, topic.partitions, _change(run, topic.remote)) for topic in run.topics]
    reporter.table(columns("topic, remote topic, partitions 4, target"), topics)
    internal = [(topic.topic, topic.cluster, topic.half, _STATES[topic.exists]) for topic in run.internal]
    _show_rows(reporter, "internal topic, cluster 4, half 3, state", internal)
    _show_rows(reporter, "held back, why alarming prose", [*run.held_back.items()])
    skipped = [(topic.topic, topic.reason) for topic in run.skipped]
    _show_rows(reporter, "not mirrored, why prose", skipped)
    _show_rows(reporter, "remote topic, config, becomes", _config_rows(run))
    if run.acls:
        reporter.line(f"{plural(len(run.acls), 'ACL')} would be created:")
        for acl in run.acls:
            reporter.line(f"  {acl}")
    reporter.line()


def _show_rows(reporter: Reporter, head: str, rows: Sequence[tuple[str, ...]]) -> None:
    """Print a table, unless it has no rows."""
    if rows:
        reporter.line()
        reporter.table(columns(head), rows)


def _config_rows(run: DryRun) -> list[tuple[str, ...]]:
    """Return a row for each config that a remote topic would get, or lose."""
    rows: list[tuple[str, ...]] = []
    for topic, changes in (run.configs or {}).items():
        for name, value in changes.items():
            becomes = "the default" if value is None else value
            rows.append((topic, name, becomes))
    return rows


_STATES = {None: "not asked", True: "is there", False: "is created"}


def _change(run: DryRun, remote: str) -> str:
    """Return what would become of a remote topic."""
    if run.created is None or run.grown is None:
        return _STATES[None]
    if remote in run.held_back:
        return "is held back"
    if remote in run.created:
        return _STATES[False]
    return "gets partitions" if remote in run.grown else _STATES[True]
