"""`kbackup mirror FILE`: run the halves of a mirror, or show by --dry-run what they would do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import click

from kbackup.cli.backup import RoundReporter, check_stale_after
from kbackup.cli.common.command_context import CommandContext, pass_command_context
from kbackup.cli.common.options import bucket_options, key_option, options, rate_option, spark_options
from kbackup.cli.common.output import Reporter, columns
from kbackup.cli.common.session import archive_store, spark_session, state_store, stop_at_signals
from kbackup.errors import EXIT_LOSS, EXIT_OK, UsageError
from kbackup.jobs.backup.follow import Follower, FollowReport
from kbackup.jobs.backup.schemas import BackupSchemas
from kbackup.jobs.backup.transactions import are_in_part
from kbackup.jobs.common import Stop
from kbackup.jobs.mirror.dry_run import DryRun, dry_run, dry_run_of_take
from kbackup.jobs.mirror.flow import Flow
from kbackup.jobs.mirror.properties import MirrorProperties, load_flows
from kbackup.jobs.mirror.reader import (
    MirrorReader,
    MirrorSource,
    mirror_selections,
    rhythm_of,
    run_together,
    sources_of,
)
from kbackup.jobs.mirror.writer import ApplyReport, MirrorWriter, RoundReport
from kbackup.kafka.admin.cluster import Cluster
from kbackup.metrics.registry import Silent, counted
from kbackup.metrics.server import Health, JointHealth, Server
from kbackup.util.text import human_size, plural

if TYPE_CHECKING:
    from kbackup.config.models import Follow
    from kbackup.spark.session import SparkSession


def show_dry_runs(
    context: CommandContext,
    properties: MirrorProperties,
    flows: Iterable[Flow],
    spark: Callable[[], SparkSession],
    *,
    take: bool,
    apply: bool,
) -> int:
    """Show what a round of each flow would do, in the halves that are selected: `take`, `apply` or both."""
    runs: list[DryRun] = []
    for flow in flows:
        store = archive_store(context, flow.archive_address())
        pairs = [pair for pair in properties.heartbeat_flows if take and pair.target == flow.source]
        if apply:
            target = Cluster(flow.client("target"), "target")
            target.connect()
            heartbeats = pairs if flow.source_properties is not None else ()
            runs.append(dry_run(flow, store, state_store(context, store), target, heartbeats, spark))
        else:
            runs.append(dry_run_of_take(flow, store, pairs))
        context.reporter.warning(*runs[-1].warnings)
        _show(runs[-1], context.reporter)
        context.reporter.warning(*(f"flow {flow.name} would end: {problem}" for problem in runs[-1].problems))
    context.reporter.document({"flows": runs})
    return EXIT_LOSS if any(run.held_back or run.problems for run in runs) else EXIT_OK


def _show(run: DryRun, reporter: Reporter) -> None:
    seen = f"restore point {run.restore_point}" if run.restore_point else "the source as it is now"
    reporter.line(f"flow {run.flow}, by {seen} ({run.archive}):")
    reporter.table(
        columns("topic, remote topic, partitions 4, target"),
        [(t.source, t.remote, t.partitions, _change(run, t.remote)) for t in run.topics],
    )
    internal = [(t.topic, t.cluster, t.half, _STATES[t.exists]) for t in run.internal]
    configs = [
        (topic, name, "the default" if value is None else value)
        for topic, changes in (run.configs or {}).items()
        for name, value in changes.items()
    ]
    for head, rows in (
        (columns("internal topic, cluster 4, half 3, state"), internal),
        (columns("held back, why alarming prose"), list(run.held_back.items())),
        (columns("not mirrored, why prose"), [(s.topic, s.reason) for s in run.skipped]),
        (columns("remote topic, config, becomes"), configs),
    ):
        if rows:
            reporter.line()
            reporter.table(head, rows)
    if run.acls:
        reporter.line(f"{plural(len(run.acls), 'ACL')} would be created:")
        for acl in run.acls:
            reporter.line(f"  {acl}")
    reporter.line()


_STATES = {None: "not asked", True: "is there", False: "is created"}


def _change(run: DryRun, remote: str) -> str:
    if run.created is None or run.grown is None:
        return _STATES[None]
    if remote in run.held_back:
        return "is held back"
    if remote in run.created:
        return _STATES[False]
    return "gets partitions" if remote in run.grown else _STATES[True]


class ApplyRoundReporter(RoundReporter):
    """Prints the result of each round of an apply half, and updates health and metrics file."""

    def __init__(self, context: CommandContext, health: Health | None) -> None:
        super().__init__(context, health)
        self._refused: dict[str, frozenset[str]] = {}
        self._held_back: frozenset[str] = frozenset()

    def _count_success(self) -> None:
        """Do nothing: flows have the metric `kbackup_mirror_last_round_timestamp_seconds`."""

    def waiting(self, flow: Flow, why: str) -> None:
        self._reporter.note(f"flow {flow.name} waits: {why}")
        if self._health is not None:
            self._health.failed(why)
        self._write()

    def warned(self, text: str) -> None:
        self._reporter.warning(text)

    def applied(self, flow: Flow, report: RoundReport) -> None:
        applied, name = report.applied, f"flow {flow.name}"
        for topic in report.created:
            self._reporter.note(f"{name}: created topic {topic}")
        for topic, partitions in report.grown.items():
            self._reporter.note(f"{name}: topic {topic} has {plural(partitions, 'partition')} now")
        messages = [*(r.message for r in applied.recreated), *(r.message for r in applied.too_late)]
        incidents = tuple(f"{name}: {message}" for message in messages)
        self._reporter.warning(*incidents)
        if incidents:
            self._notify_loss(incidents, report)
        self._reporter.warning(*(f"{name}: {deleted.message}" for deleted in applied.deleted))
        self._reporter.warning(*(f"{name}: {unmapped.words}" for unmapped in applied.unmapped))
        # each refusal once, until it ends; a round reports only the subjects that it set
        for subject in report.refused:
            refused = frozenset(report.refusals(subject))
            for text in sorted(refused - self._refused.get(subject, frozenset())):
                self._reporter.warning(f"{name}: {text}")
            self._refused[subject] = refused
        if "topics" in report.refused:
            held_back = frozenset(report.refused["topics"])
            for topic in sorted(self._held_back - held_back):
                self._reporter.note(f"{name}: topic {topic} is no longer held back")
            self._held_back = held_back
        if applied.records:
            self._reporter.note(
                f"{name}: restore point {report.restore_point} applied, {plural(applied.records, 'record')}, "
                f"{human_size(applied.bytes)}"
            )


def show_reports(context: CommandContext, reports: Mapping[str, FollowReport | ApplyReport]) -> bool:
    """Print the totals of each half. Return whether anything was lost or refused, or whether the last restore point of
    a source may have transactions in part."""
    is_loss = False
    for name, report in reports.items():
        if isinstance(report, FollowReport):
            options = context.config.backup
            is_lost = bool(report.losses) and not options.allow_loss
            is_loss = is_loss or is_lost or are_in_part(report.transactions, options)
            summary = f"{plural(report.restore_points, 'restore point')}; newest {report.restore_point or 'none'}"
        else:
            is_loss = is_loss or report.is_loss
            summary = f"{plural(report.rounds, 'round')}; applied restore point {report.restore_point or 'none'}"
        context.reporter.line(f"{name}: {plural(report.records, 'record')}, {human_size(report.bytes)}, {summary}")
    context.reporter.document({"halves": reports})
    return is_loss


@dataclass
class Building:
    """Makes halves that share a Spark session and a server of health and metrics. `stack` closes the server.

    Take halves end at `stop`, apply halves at `last`. If both run, `last` comes later: the apply halves then apply the
    last restore points of the take halves."""

    context: CommandContext
    properties: MirrorProperties
    spark: Callable[[], SparkSession]
    stop: Stop
    last: Stop
    stack: ExitStack
    health: JointHealth | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        follow = self.rhythm
        if follow.listen:
            check_stale_after(follow)
            self.health = JointHealth(follow.stale_after_seconds)
            server = self.stack.enter_context(Server(follow.listen, self.health))
            self.context.reporter.note(f"metrics on port {server.port}")

    @property
    def rhythm(self) -> Follow:
        """The `[follow]` section with a mirror's own defaults."""
        unset = [path for path, origin in self.context.loaded.origins.items() if origin.kind == "default"]
        return rhythm_of(self.context.config.follow, unset)

    def halves(self, flows: Iterable[Flow], *, take: bool, apply: bool) -> dict[str, MirrorReader | MirrorWriter]:
        """Return the halves by name, in the order of `clusters`.

        A source's take half comes before the apply halves of its flows."""
        members = tuple(flows)
        sources = sources_of(members) if take else []
        halves: dict[str, MirrorReader | MirrorWriter] = {}
        for alias in self.properties.clusters:
            wakeups: list[Event] = []
            for source in (source for source in sources if source.alias == alias):
                name = f"take {alias} into {source.archive}"
                halves[name] = self._take(source, name, wakeups)
            for flow in (flow for flow in members if apply and flow.source == alias):
                name = f"apply {flow.name}"
                halves[name] = half = self._apply(flow, name)
                wakeups.append(half.wakeup)
        return halves

    def _health_of(self, half: str) -> Health | None:
        return self.health.add_component(half) if self.health is not None else None

    def _take(self, source: MirrorSource, name: str, wakeups: list[Event]) -> MirrorReader:
        config = self.context.config
        heartbeats = tuple(flow for flow in self.properties.heartbeat_flows if flow.target == source.alias)
        follower = Follower(
            config.backup,
            self.rhythm,
            source.properties,
            archive_store(self.context, source.archive),
            self.spark,
            Silent(),
            RoundReporter(self.context, self._health_of(name), f"take {source.alias}: "),
            self.stop,
            mirror_selections(config.backup, source.flows),
            BackupSchemas(source.flows[0].source_registry, config.backup.schemas),
        )
        return MirrorReader(source, heartbeats, follower, wakeups)

    def _apply(self, flow: Flow, name: str) -> MirrorWriter:
        flow.client("target")  # refuse now, not after the first restore point
        store = archive_store(self.context, flow.archive_address())
        state = state_store(self.context, store)
        watcher = ApplyRoundReporter(self.context, self._health_of(name))
        finish = self.last is not self.stop
        with counted.of_archive(store.url):
            return MirrorWriter(
                *(flow, store, state, self.spark, Silent(), watcher, self.last),
                finish=finish,
                look_seconds=self.rhythm.look_seconds,
                lease_seconds=self.rhythm.lease_seconds,
            )


@click.command("run", epilog="Example: kbackup mirror run mm2.properties --dry-run")
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
    an ACL, or if transactions may be in the last restore point of a source in part; with --dry-run, when a round
    would hold a topic back or end.
    """
    if take and apply:
        raise UsageError("--take and --apply exclude each other", "give neither to run both halves")
    properties = load_flows(file, archive=context.config.archive)
    flows = properties.selected(names)
    context.reporter.note(*properties.notes)
    context.reporter.warning(*properties.warnings)
    if dry_run:
        with spark_session(context.config, reporter=context.reporter) as spark:
            return show_dry_runs(context, properties, flows, spark, take=not apply, apply=not take)
    with ExitStack() as stack:
        stop = stack.enter_context(closing(Stop()))
        spark = stack.enter_context(spark_session(context.config, reporter=context.reporter))
        last = stack.enter_context(closing(Stop())) if not (take or apply) else stop
        halves = Building(context, properties, spark, stop, last, stack).halves(flows, take=not apply, apply=not take)
        runs: dict[str, Callable[[], FollowReport | ApplyReport]] = {
            name: counted.of_archive(half.archive)(half.run) for name, half in halves.items()
        }
        if once:
            stop.ask()
            last.ask()
            reports = {name: run() for name, run in runs.items()}
        else:
            stack.enter_context(stop_at_signals(stop))
            takes = {name: run for name, run in runs.items() if isinstance(halves[name], MirrorReader)}
            applies = {name: run for name, run in runs.items() if name not in takes}
            reports = run_together(takes, stop, applies, last)
    return EXIT_LOSS if show_reports(context, reports) else EXIT_OK
