"""`kbackup backup`: write one restore point, or with --follow one after the other until stopped; `kbackup export`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import click
import msgspec

from kbackup.cli.common import session
from kbackup.cli.common.command_context import CommandContext
from kbackup.cli.common.command_lines import own_command, store_options
from kbackup.cli.common.interrupts import SameState, interrupted, when_interrupted
from kbackup.cli.common.options import (
    archive_command,
    key_option,
    key_options,
    name_options,
    rate_option,
    source_options,
)
from kbackup.cli.common.output import Reporter, ShownProgress
from kbackup.cli.common.session import spark_session
from kbackup.cli.common.tables import Column, topic_name
from kbackup.errors import EXIT_LOSS, EXIT_OK, InterruptedByUserError, KbackupError, UsageError
from kbackup.jobs.finding_kinds import loss_finding
from kbackup.metrics import registry as metrics
from kbackup.metrics.registry import counted
from kbackup.spark.delta import delta_config
from kbackup.util.text import human_count, human_duration, human_size, human_total, join_names, kbackup_command, plural

if TYPE_CHECKING:
    from kbackup.archive.models import TopicState
    from kbackup.config import SettingOrigin
    from kbackup.config.models import Follow
    from kbackup.jobs.backup.job import BackupReport
    from kbackup.jobs.backup.plan import Plan
    from kbackup.jobs.export.job import ExportReport, TableReport
    from kbackup.metrics.server import Health


class RoundReporter:
    """Prints the result of each round on stderr, and updates health and metrics file.

    `label` begins each line, if a process follows several clusters."""

    def __init__(self, context: CommandContext, health: Health | None, label: str = "") -> None:
        self._reporter = context.reporter
        self._metrics = context.metrics
        self._health = health
        self._notifier = context.notifier
        self._label = label
        self._is_failing = False
        self._allow_loss = context.config.backup.allow_loss
        self._warnings: tuple[str, ...] = ()
        self._offline: tuple[str, ...] = ()

    def committed(self, report: BackupReport) -> None:
        losses = [loss.message for loss in report.losses]
        # A warning that stays true would fill the log of a process that backs up every minute: it is printed once. A
        # loss happens once.
        new_warnings = [text for text in report.warnings if text not in self._warnings]
        for text in new_warnings:
            self._reporter.warning(f"{self._label}{text}")
        self._reporter.losses(losses, self._label)
        back = [name for name in self._offline if name not in report.offline]
        if back:
            self._reporter.note(f"{self._label}partitions that have a leader again: {join_names(back, 5)}")
        if report.deleted_records:
            self._reporter.note(f"{self._label}{report.note}")
        self._warnings, self._offline = report.warnings, report.offline
        if losses and not self._allow_loss:
            self._notify_loss(losses, report)
        self._show_restore_point(report)

    def _show_restore_point(self, report: BackupReport) -> None:
        totals = report.totals
        waiting = f", {plural(report.held_back, 'partition')} held back" if report.held_back else ""
        self._reporter.note(
            f"{self._label}restore point {report.restore_point}: {plural(totals.records, 'new record')}, "
            f"{human_size(totals.bytes)} in {plural(totals.segments, 'segment')}{waiting}"
        )

    def _notify_loss(self, losses: Sequence[str], report: object) -> None:
        if self._notifier is not None:
            labelled = tuple(f"{self._label}{loss_finding(message)}" for message in losses)
            self._notifier.records_lost(labelled, report)

    def record_success(self) -> None:
        self._count_success()
        if self._is_failing and self._notifier is not None:
            self._notifier.rounds_recovered()
        self._is_failing = False
        if self._health is not None:
            self._health.record_success()
        self._write()

    def _count_success(self) -> None:
        metrics.record_success()

    def failed(self, error: KbackupError, pause: float) -> None:
        self._reporter.warning(f"{self._label}{error}; retrying in {human_duration(pause)}")
        if not self._is_failing and self._notifier is not None:
            self._notifier.round_failed(error)
        self._is_failing = True
        if self._health is not None:
            self._health.failed(error.message)
        self._write()

    def _write(self) -> None:
        if self._metrics is None:
            return
        try:
            self._metrics.write(counted.snapshot())
        except OSError as error:
            self._reporter.warning(f"the metrics were not written: {error}")


def check_stale_after(follow: Follow) -> None:
    """Raise `UsageError` for a limit under which a healthy process counts as stale."""
    if follow.stale_after_seconds <= follow.interval_seconds:
        raise UsageError(
            f"follow.stale_after_seconds is {human_duration(follow.stale_after_seconds)}, no longer than the interval",
            "give --stale-after more than --interval: else /healthz answers 503 between rounds",
        )


def _serve_health(follow: Follow, stack: ExitStack, reporter: Reporter) -> Health | None:
    """Serve metrics and health until the end of `stack`; return the health, None without an address to listen on."""
    if not follow.listen:
        return None
    check_stale_after(follow)
    from kbackup.metrics.server import Health, Server

    health = Health(follow.stale_after_seconds)
    server = stack.enter_context(Server(follow.listen, health))
    reporter.note(f"metrics on port {server.port}")
    return health


def stopping_note(reporter: Reporter, verb: str) -> str:
    """Return what a process that runs until stopped says at Ctrl-C, '' with --quiet. `verb` is what its last round
    does."""
    if reporter.quiet:
        return ""
    return f"stopping: a last round {verb} what is new; Ctrl-C again stops at once"


def _follow_until_stopped(context: CommandContext) -> int:
    config, reporter = context.config, context.reporter
    store = session.archive_store(context)
    with ExitStack() as stack:
        health = _serve_health(config.follow, stack, reporter)
        session.show_connecting(context, "source")
        spark = stack.enter_context(spark_session(config, at_once=True, reporter=reporter))
        shown = stack.enter_context(ShownProgress(reporter, in_rounds=True))
        # Imports take about as long as the JVM takes to start meanwhile.
        from kbackup.jobs.common import Stop

        stop = Stop()
        stack.enter_context(closing(stop))
        stack.enter_context(session.stop_at_signals(stop, note=stopping_note(reporter, "archives")))
        from kbackup.jobs.backup.follow import Follower
        from kbackup.jobs.backup.schemas import BackupSchemas
        from kbackup.jobs.backup.transactions import are_in_part

        rounds = RoundReporter(context, health)
        schemas = BackupSchemas(config.schema_registry, config.backup.schemas)
        follower = Follower(config.backup, config.follow, config.source, store, spark, shown, stop, schemas=schemas)
        again = own_command()

        def describe() -> InterruptedByUserError:
            newest = follower.report.restore_point
            state = f"the newest restore point is {newest}" if newest else "no restore point was made"
            return interrupted(f"{state}; later records are not archived", f"to go on with them: {again}")

        when_interrupted(describe)
        report = follower.follow_until_stopped(rounds)
    reporter.line(
        f"stopped after {human_duration(report.seconds)}: "
        f"{plural(report.restore_points, 'restore point')} of {report.archive}, "
        f"{plural(report.records, 'new record')}, {human_size(report.bytes)} "
        f"({human_size(report.stored_bytes)} stored); newest {report.restore_point or 'none'}"
    )
    reporter.document(report)
    has_loss = bool(report.losses) and not config.backup.allow_loss
    if has_loss or are_in_part(report.transactions, config.backup):
        return EXIT_LOSS
    return EXIT_OK


@archive_command(
    "backup",
    source_options,
    name_options("backup.topics", "backup.groups"),
    key_options("backup.segment_bytes", "backup.compression", "backup.isolation_level", "backup.allow_loss"),
    key_options("backup.transactions", "backup.transaction_wait_seconds"),
    key_options("backup.recheck_compacted", "backup.recheck_bytes"),
    key_options("backup.adopt_topics", "backup.adopt_cluster", "backup.wait", "backup.schemas"),
    key_option("backup.small_without_spark"),
    key_option("schema_registry.url", "--schema-registry", help="URL of the source's schema registry."),
    key_options("export.delta", "export.one_table", "export.decode"),
    click.option("--follow", is_flag=True, help="Commit restore points until SIGTERM or Ctrl-C."),
    click.option("--label", metavar="NAME", help="Label of the new restore point."),
    key_option("follow.interval_seconds", "--interval"),
    key_option("follow.max_age_seconds", "--max-age"),
    key_options("follow.small_bytes", "follow.small_segments"),
    key_option("follow.listen", "--listen"),
    key_option("follow.stale_after_seconds", "--stale-after"),
    rate_option,
    spark=True,
    example="kbackup backup --label before-migration",
)
def command(context: CommandContext, follow: bool, label: str | None) -> int:
    """Back up topics, group offsets and settings into one new restore point.

    Later backups take the new records. Ends with exit code 3 when records were lost before they could be archived, when
    a partition has no leader, when transactions may be incomplete though --transactions is whole, when the schema
    registry can't be read, when records carry more schema ids than are listed, when the metadata log of [source] is
    damaged, or when deletions of compacted topics may have been missed.

    --delta then writes Delta tables. If that fails, the restore point stays, and the exit code is that of the error.

    --follow commits a restore point every --interval, or when a partition has --segment-bytes of new records. It waits
    while the cluster or the store is down. SIGTERM or Ctrl-C: a last restore point, and exit code 0; 3 if records were
    lost or if transactions may be incomplete in the last restore point.
    """
    if follow:
        if label:
            raise UsageError("--label excludes --follow", "run 'kbackup label latest NAME' after a restore point")
        _check_no_tables(context)
        return _follow_until_stopped(context)
    for path, origin in context.loaded.origins.items():
        if path.startswith("follow.") and _is_own_flag(origin):
            raise UsageError(f"{origin.name} needs --follow", "add --follow, or leave it out")
    return _back_up_once(context, label or "")


def _is_own_flag(origin: SettingOrigin) -> bool:
    """Return whether a value was given by an option of its own. A file, or --set, may serve several commands."""
    return origin.kind == "flag" and origin.name != "--set"


def _check_no_tables(context: CommandContext) -> None:
    """Refuse --delta with --follow. If the configuration names the tables, only note that they are not written."""
    if not context.config.export.delta:
        return
    if _is_own_flag(context.loaded.origins["export.delta"]):
        raise UsageError("--delta excludes --follow", "run 'kbackup export --delta URL' at the same time")
    context.reporter.note("--follow writes no Delta tables: run 'kbackup export' at the same time")


def _back_up_once(context: CommandContext, label: str) -> int:
    config, reporter = context.config, context.reporter
    # Spark takes seconds to start: an error of the command line comes first.
    address = context.archive
    exported: list[ExportReport] = []

    def show_export(report: ExportReport) -> None:
        exported.append(report)
        show_exported(report, reporter)

    shown = ShownProgress(reporter)
    interruption = BackupInterruption(shown, own_command(), _export_command(context, address))
    when_interrupted(interruption)

    def show_report(report: BackupReport) -> None:
        interruption.restore_point = report.restore_point
        show_backup(report, reporter)

    # As a rule one of the two sessions starts: with the jars of Delta tables, or without, if they can't be fetched.
    tables = delta_config(config, config.export.delta)
    # Whether a backup is small is known only once the logs' ends are.
    needs_spark = not config.backup.small_without_spark or bool(config.export.delta)
    with (
        spark_session(tables, at_once=needs_spark, reporter=reporter) as for_tables,
        spark_session(config, reporter=reporter) as without_tables,
        shown,
    ):
        store = session.archive_store(context, address)
        session.show_connecting(context, "source")
        # Imports take about as long as the JVM takes to start meanwhile.
        from kbackup import library

        report = library.run_backup(
            config,
            store,
            for_tables,
            without_tables,
            shown,
            label,
            show_plan=partial(_show_plan, reporter=reporter),
            show_report=show_report,
            show_export=show_export,
        )
    from kbackup.jobs.backup.transactions import are_in_part

    is_incomplete = report.damage or report.offline or are_in_part(report.transactions, config.backup)
    has_loss = report.losses or report.unseen_deletions or any(each.losses for each in exported)
    if is_incomplete or (has_loss and not config.backup.allow_loss):
        return EXIT_LOSS
    return EXIT_OK


def _export_command(context: CommandContext, address: str) -> str:
    """Return the command that writes the tables of a backup; '' if it writes none."""
    url = context.config.export.delta
    if not url:
        return ""
    return kbackup_command("export", "--delta", url, "--archive", address, *store_options())


_BEFORE_RECORDS = (
    "",
    "connect",
    "discover",
    "capture groups",
    "resolve ranges",
    "end transactions",
    "compare logs",
    "plan",
)
"""The phases of a backup that write no segment."""


@dataclass
class BackupInterruption:
    """Describes an interrupted backup. `again` is its own command, `export` the one that writes its tables.

    `restore_point` is set once the restore point is committed and all its files are written."""

    shown: ShownProgress
    again: str
    export: str
    restore_point: int | None = None

    def __call__(self) -> InterruptedByUserError:
        phase = self.shown.phase_name
        if self.restore_point is not None and self.export:
            state = f"restore point {self.restore_point} is committed, but its tables may not all be written"
            return interrupted(state, f"to write them: {self.export}")
        if self.restore_point is not None:
            return interrupted(f"restore point {self.restore_point} is committed", "nothing is left to do")
        if phase == "refresh derived files":
            state = "the restore point is committed, but not all derived files are written"
            return interrupted(state, "nothing is left to do: the next backup writes them")
        if phase == "commit":
            state = "whether the restore point is committed shows 'kbackup list'"
            return interrupted(state, f"if it is not: {self.again}")
        if phase in _BEFORE_RECORDS:
            return interrupted("no restore point was made, and no record was read", f"to begin anew: {self.again}")
        read = f"{self.shown.records:,} of up to {self.shown.expected:,} records were read"
        if phase != "run":
            read = "all records were read"
        state = f"no restore point was made; {read}, and whole segments of them stay in the archive"
        return interrupted(state, f"to go on, without reading these again: {self.again}")


def _show_plan(plan: Plan, reporter: Reporter) -> None:
    """Print the size of the backup. Offsets may be missing, so the number of records is an upper bound."""
    records = sum(planned.end - planned.start for planned in plan.ranges)
    partitions = sum(len(topic.partitions) for topic in plan.topics)
    reporter.doing(
        f"{plural(len(plan.topics), 'topic')}, {plural(partitions, 'partition')}, "
        f"up to {human_count(records)} new records"
    )


def _topic_records(topic: TopicState) -> int:
    return sum(partition.records for partition in topic.partitions)


def _topic_bytes(topic: TopicState) -> str:
    nbytes = sum(partition.bytes for partition in topic.partitions)
    return human_size(nbytes)


def show_backup(report: BackupReport, reporter: Reporter) -> None:
    def new_records(topic: TopicState) -> int:
        return report.new_records.get(topic.name, 0)

    topic_columns: Sequence[Column[TopicState]] = (
        Column("topic", topic_name),
        Column("state", "state", importance=2),
        Column("partitions", "partitions", len, importance=1),
        Column("new records", new_records),
        Column("records", _topic_records, importance=4),
        Column("bytes", _topic_bytes, importance=3),
    )
    reporter.table(topic_columns, report.topics)
    reporter.warning(*report.warnings)
    reporter.losses(loss.message for loss in report.losses)
    if report.note:
        reporter.note(report.note)
    if report.losses:
        reporter.note(
            "earlier restore points keep what they have of these topics; to see all losses: kbackup info; to lose "
            "less: back up more often, or kbackup backup --follow"
        )
    totals = report.totals
    added = f"{plural(totals.records, 'new record')}, {human_size(totals.bytes)}"
    stored = f"({human_size(totals.stored_bytes)} stored) in {plural(totals.segments, 'segment')}"
    topics, partitions = plural(totals.topics, "topic"), plural(totals.partitions, "partition")
    groups = plural(totals.groups, "group")
    reporter.line(
        f"restore point {report.restore_point} of {report.archive}: {added} {stored}; "
        f"{topics}, {partitions}, {groups}; {human_total(report.seconds)}"
    )
    reporter.document(report)


@archive_command(
    "export",
    key_options("export.delta", "export.parquet", "export.one_table", "export.decode", "export.transform"),
    name_options("export.topics"),
    spark=True,
    example="kbackup export --delta s3://lake/kafka --topic orders",
)
def export_command(context: CommandContext) -> int:
    """Export what is new in an archive to Delta tables or Parquet files.

    Writes each restore point once, as one commit of a table, also after a crash. Backups may run meanwhile. For Delta
    tables Spark fetches jars. Ends with exit code 3 when records may have expired before they were exported.
    """
    config, reporter = context.config, context.reporter
    export = config.export
    if not export.delta and not export.parquet:
        raise UsageError("no destination is named", "give --delta URL or --parquet URL")
    store = session.archive_store(context)
    state = "each table, or folder of files, has whole restore points: what was written stays"
    when_interrupted(SameState(state, f"to write what is left: {own_command()}"))
    done: list[ExportReport] = []
    with (
        spark_session(delta_config(config, export.delta), reporter=reporter) as spark,
        ShownProgress(reporter) as shown,
    ):
        from kbackup.jobs.export.job import ExportJob, export_delta, export_parquet

        def job_of(url: str) -> ExportJob:
            lease, registry = config.backup.lease_seconds, config.schema_registry
            return ExportJob(
                options=export,
                url=url,
                store=store,
                stores=config.stores,
                spark=spark,
                listener=shown,
                lease_seconds=lease,
                registry=registry,
            )

        if export.delta:
            report = export_delta(job_of(export.delta))
            done.append(report)
        if export.parquet:
            report = export_parquet(job_of(export.parquet))
            done.append(report)
    for report in done:
        show_exported(report, reporter)
    reporter.document({"exports": [msgspec.to_builtins(report) for report in done]})
    has_loss = any(report.losses for report in done)
    return EXIT_LOSS if has_loss and not config.backup.allow_loss else EXIT_OK


def _first_to_last(numbers: tuple[int, ...]) -> str:
    first, last = numbers[0], numbers[-1]
    return f"{first} to {last}" if len(numbers) > 1 else str(first)


_EXPORTED: Sequence[Column[TableReport]] = (
    Column("table", "url"),
    Column("restore points", "restore_points", _first_to_last),
    Column("new records", "records"),
)
"""The columns of the tables that an export has written to."""


def show_exported(report: ExportReport, reporter: Reporter) -> None:
    if report.tables:
        reporter.table(_EXPORTED, report.tables)
    reporter.losses(report.losses)
    if report.losses:
        reporter.note("to export all records: run 'kbackup export' before each 'kbackup expire --older-than'")
    if report.left_out:
        reporter.note(f"left out by the transform: {plural(report.left_out, 'record')}")
    reporter.line(
        f"{report.url}: {plural(report.records, 'new record')}; at restore point {report.restore_point} of "
        f"{report.archive}; {human_total(report.seconds)}"
    )
