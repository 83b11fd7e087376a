"""`kbackup mirror FILE`: run the halves of a mirror, or show by --dry-run what they would do."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import click

from kbackup.cli.backup import RoundReporter, check_stale_after, stopping_note
from kbackup.cli.common.command_context import CommandContext, pass_command_context
from kbackup.cli.common.command_lines import own_command
from kbackup.cli.common.help import SectionedCommand
from kbackup.cli.common.interrupts import SameState, when_interrupted
from kbackup.cli.common.options import bucket_options, key_option, options, rate_option, spark_options
from kbackup.cli.common.session import archive_store, spark_session, state_store, stop_at_signals
from kbackup.errors import EXIT_LOSS, EXIT_OK, UsageError
from kbackup.jobs.backup.follow import Follower, FollowReport
from kbackup.jobs.backup.schemas import BackupSchemas
from kbackup.jobs.backup.transactions import are_in_part
from kbackup.jobs.common import Stop
from kbackup.metrics.registry import Silent, counted
from kbackup.metrics.server import Health, JointHealth, Server
from kbackup.mirror.cli.reporter import ApplyRoundReporter
from kbackup.mirror.cli.show_dry_run import show_dry_runs
from kbackup.mirror.flow import Flow
from kbackup.mirror.job import HalfReport, MirrorHalf, run_once, run_until_stopped
from kbackup.mirror.properties.flows import MirrorProperties, load_flows
from kbackup.mirror.reader import MirrorReader, MirrorSource, mirror_selections, rhythm_of, sources_of
from kbackup.mirror.writer import MirrorWriter
from kbackup.util.text import human_size, plural

if TYPE_CHECKING:
    from kbackup.config.models import Follow
    from kbackup.spark.tasks import Spark


@dataclass(frozen=True)
class MirrorProcess:
    """What the halves in this process share. Readers end at `stop`, writers at `writers_stop`: the same, or a later
    one. `health` is None if nobody asks for it."""

    spark: Spark
    stop: Stop
    writers_stop: Stop
    health: JointHealth | None = None

    def health_of(self, half: str) -> Health | None:
        return self.health.add_component(half) if self.health is not None else None


def start_server(context: CommandContext, stack: ExitStack) -> JointHealth | None:
    """Serve health and metrics if --listen asks for it; `stack` ends that. Return the health to update."""
    follow = follow_settings(context)
    if not follow.listen:
        return None
    check_stale_after(follow)
    health = JointHealth(follow.stale_after_seconds)
    server = stack.enter_context(Server(follow.listen, health))
    context.reporter.note(f"metrics on port {server.port}")
    return health


def follow_settings(context: CommandContext) -> Follow:
    """Return the `[follow]` section with a mirror's own defaults."""
    unset = [path for path, origin in context.loaded.origins.items() if origin.kind == "default"]
    return rhythm_of(context.config.follow, unset)


def make_halves(
    context: CommandContext,
    properties: MirrorProperties,
    flows: Sequence[Flow],
    process: MirrorProcess,
    *,
    take: bool,
    apply: bool,
) -> dict[str, MirrorHalf]:
    """Return the halves by name, in the order of `clusters`.

    The reader of a source comes before the writers of its flows: what --once takes is applied by the same command."""
    sources = sources_of(flows) if take else []
    # Shared by a reader and the writers of its flows. A writer without a reader in this process looks by itself.
    wakeups = {flow.name: Event() for flow in flows}
    halves: dict[str, MirrorHalf] = {}
    for alias in properties.clusters:
        heartbeat_flows = [flow for flow in properties.heartbeat_flows if flow.target == alias]
        for source in sources:
            if source.alias == alias:
                name = f"take {alias} into {source.archive}"
                source_wakeups = [wakeups[flow.name] for flow in source.flows]
                halves[name] = make_reader(context, source, heartbeat_flows, source_wakeups, process, name)
        for flow in flows:
            if apply and flow.source == alias:
                name = f"apply {flow.name}"
                halves[name] = make_writer(context, flow, wakeups[flow.name], process, name)
    return halves


def make_reader(
    context: CommandContext,
    source: MirrorSource,
    heartbeat_flows: Sequence[Flow],
    wakeups: Collection[Event],
    process: MirrorProcess,
    name: str,
) -> MirrorReader:
    """Return the reader of a source. It sets `wakeups` at each restore point."""
    options = context.config.backup
    store = archive_store(context, source.archive)
    selections = mirror_selections(options, source.flows)
    # The flows of a source share its registry: the properties file names one for each cluster.
    schemas = BackupSchemas(source.flows[0].source_registry, options.schemas)
    follower = Follower(
        options=options,
        rhythm=follow_settings(context),
        source=source.properties,
        store=store,
        spark=process.spark,
        listener=Silent(),
        stop=process.stop,
        selections=selections,
        schemas=schemas,
    )
    reporter = RoundReporter(context, process.health_of(name), f"take {source.alias}: ")
    return MirrorReader(source, tuple(heartbeat_flows), follower, reporter, tuple(wakeups))


def make_writer(context: CommandContext, flow: Flow, wakeup: Event, process: MirrorProcess, name: str) -> MirrorWriter:
    """Return the writer of a flow. It looks for a restore point when `wakeup` is set, too."""
    flow.client("target")  # refuse now, not after the first restore point
    store = archive_store(context, flow.archive_address())
    state = state_store(context, store)
    reporter = ApplyRoundReporter(context, process.health_of(name))
    follow = follow_settings(context)
    with counted.of_archive(store.url):
        return MirrorWriter(
            flow=flow,
            store=store,
            state=state,
            spark=process.spark,
            listener=Silent(),
            reporter=reporter,
            stop=process.writers_stop,
            finish=process.writers_stop is not process.stop,
            look_seconds=follow.look_seconds,
            lease_seconds=follow.lease_seconds,
            wakeup=wakeup,
        )


def show_reports(context: CommandContext, reports: Mapping[str, HalfReport]) -> bool:
    """Print the totals of each half. Return whether anything was lost or refused, or whether the last restore point of
    a source may have transactions in part."""
    options = context.config.backup
    is_loss = False
    for name, report in reports.items():
        if isinstance(report, FollowReport):
            is_lost = bool(report.losses) and not options.allow_loss
            is_loss = is_loss or is_lost or are_in_part(report.transactions, options)
            summary = f"{plural(report.restore_points, 'restore point')}; newest {report.restore_point or 'none'}"
        else:
            is_loss = is_loss or report.is_loss
            summary = f"{plural(report.rounds, 'round')}; applied restore point {report.restore_point or 'none'}"
        context.reporter.line(f"{name}: {plural(report.records, 'record')}, {human_size(report.bytes)}, {summary}")
    context.reporter.document({"halves": reports})
    return is_loss


@click.command("run", cls=SectionedCommand, epilog="Example: kbackup mirror run mm2.properties --dry-run")
@click.argument("file", type=click.Path(path_type=Path))
@options(
    click.option("--flow", "names", multiple=True, metavar="A->B", help="Use only this flow. [repeatable]"),
    click.option("--take", "take", is_flag=True, help="Run only the half that backs up sources."),
    click.option("--apply", "apply", is_flag=True, help="Run only the half that writes to targets."),
    click.option("--once", is_flag=True, help="Take one restore point of each source, apply it and end."),
    click.option("--dry-run", is_flag=True, help="Show what would be mirrored; change nothing."),
)
@key_option("follow.interval_seconds", "--interval", default="5s")
@key_option("follow.max_age_seconds", "--max-age", default="the interval")
@key_option("follow.look_seconds", "--look")
@key_option("follow.stale_after_seconds", "--stale-after")
@key_option("follow.listen", "--listen")
@key_option("restore.state", "--state")
@rate_option
@spark_options
@bucket_options
@pass_command_context
def command(
    context: CommandContext, file: Path, names: tuple[str, ...], take: bool, apply: bool, once: bool, dry_run: bool
) -> int:
    """Run the flows of a MirrorMaker 2 properties FILE until stopped.

    The take half backs a source up into its archive. The apply half writes to a target, exactly once. Without --take
    and --apply, both run. `kbackup.archive` in FILE, or --archive, names the archives: `s3://bucket/{source}`.

    Ends with exit code 3 when records were lost, a source topic was recreated, the target refused a topic, a config or
    an ACL, or if transactions may be incomplete in the last restore point of a source; with --dry-run, when a round
    would hold a topic back or end.
    """
    if take and apply:
        raise UsageError("--take and --apply exclude each other", "give neither to run both halves")
    properties = load_flows(file, archive=context.config.archive)
    flows = properties.selected(names)
    context.reporter.note(*properties.notes)
    context.reporter.warning(*properties.warnings)
    again = own_command()
    if dry_run:
        when_interrupted(SameState("nothing was written", f"to begin anew: {again}"))
        with spark_session(context.config, reporter=context.reporter) as spark:
            return show_dry_runs(context, properties, flows, spark, take=not apply, apply=not take)
    state = "restore points that were made and records that were applied stay"
    when_interrupted(SameState(state, f"to go on exactly there, each record once: {again}"))
    with ExitStack() as stack:
        stop = stack.enter_context(closing(Stop()))
        spark = stack.enter_context(spark_session(context.config, reporter=context.reporter))
        has_both = not take and not apply
        writers_stop = stop
        if has_both:
            # The writers end last: they apply the last restore points of the readers.
            writers_stop = stack.enter_context(closing(Stop()))
        health = start_server(context, stack)
        process = MirrorProcess(spark, stop, writers_stop, health)
        halves = make_halves(context, properties, flows, process, take=not apply, apply=not take)
        if once:
            # A half that was stopped before it begins does exactly one round.
            stop.ask()
            writers_stop.ask()
            reports = run_once(halves)
        else:
            note = stopping_note(context.reporter, "archives and applies")
            stack.enter_context(stop_at_signals(stop, note=note))
            readers = {name: half for name, half in halves.items() if isinstance(half, MirrorReader)}
            writers = {name: half for name, half in halves.items() if isinstance(half, MirrorWriter)}
            reports = run_until_stopped(readers, stop, writers, writers_stop)
    return EXIT_LOSS if show_reports(context, reports) else EXIT_OK
