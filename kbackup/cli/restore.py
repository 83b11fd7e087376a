"""`kbackup restore`: restore records, group offsets and settings, or undo the settings of a restore."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO

import click
import msgspec

from kbackup.cli.common.command_context import CommandContext
from kbackup.cli.common.command_lines import own_command, undo_command
from kbackup.cli.common.interrupts import interrupted, when_interrupted
from kbackup.cli.common.options import (
    archive_command,
    count_option,
    key_option,
    key_options,
    name_options,
    point_key_option,
    rate_option,
    removed_option,
    target_options,
    time_key_options,
)
from kbackup.cli.common.output import Reporter, ShownProgress
from kbackup.cli.common.session import archive_store, show_connecting, spark_session, state_store
from kbackup.cli.common.tables import Column, or_none
from kbackup.cli.common.undo import named_restore, show_unconfirmed, undo_options
from kbackup.cli.common.window import show_window
from kbackup.cli.groups import show_results
from kbackup.config import Config
from kbackup.errors import EXIT_LOSS, EXIT_OK, InterruptedByUserError, UsageError
from kbackup.util.text import human_duration, human_size, human_total, plural

if TYPE_CHECKING:
    from kbackup.archive.restores.plan import PlannedGroup, PlannedTopic, RestorePlan
    from kbackup.jobs.restore.report import RestoredTopic, RestoreReport, TopicFill
    from kbackup.jobs.schemas.judgement import JudgedPart
    from kbackup.jobs.schemas.plan import PlannedSchema, SchemaPlan
    from kbackup.jobs.settings.plan import Changes, ConfigChange, QuotaChange, SettingsReport
    from kbackup.metadata.entities import Acl


@archive_command(
    "restore",
    target_options,
    point_key_option,
    time_key_options,
    key_options("restore.range", "restore.skip", "restore.where", "restore.transform"),
    name_options("restore.topics"),
    key_options("restore.map", "restore.map_regex", "restore.into_existing", "restore.strict"),
    key_options("restore.replication_factor", "restore.topic_config"),
    name_options("restore.groups"),
    key_options("restore.no_groups", "restore.map_group", "restore.transactions", "restore.restore_id"),
    key_options("restore.same_offsets", "restore.fill"),
    key_option("restore.settings", "--with"),
    key_options("restore.schemas", "restore.subject_prefix"),
    key_option("restore.schemas_topics", "--schemas-topic", "--schemas-topics"),
    key_option("restore.no_schemas_topics", "--no-schemas-topic", "--no-schemas-topics"),
    key_option("restore.unmapped"),
    key_option("target_schema_registry.url", "--target-schema-registry"),
    key_option("restore.state"),
    rate_option,
    removed_option("restore.from_delta", "--from-delta"),
    click.option("--dry-run", is_flag=True, help="Check everything and show the plan; write nothing to the target."),
    count_option,
    click.option(
        "--guide", is_flag=True, help="Ask what happened, print the commands that mend it, and run the dry run."
    ),
    click.option(
        "--answers",
        type=click.File("rb"),
        metavar="FILE",
        help="TOML file with the answers to the questions of --guide, to test a runbook without a terminal.",
    ),
    click.option(
        "--undo",
        is_flag=True,
        help="Put back the target's ACLs, configs and quotas from before --restore-id; restore nothing.",
    ),
    undo_options,
    argument=True,
    spark=True,
    example="kbackup restore --restore-point 41 --topic orders --dry-run",
)
def command(
    context: CommandContext,
    dry_run: bool,
    count: bool,
    guide: bool,
    answers: BinaryIO | None,
    undo: bool,
    confirm: bool,
    accept_unproven: bool,
) -> int:
    """Restore topics, records and group offsets exactly once, from a restore point or a time.

    --dry-run shows the plan and writes nothing; --guide asks what happened and prints the commands.

    A time is 14:05 (of today), 'yesterday 14:05', '2 hours ago', '2026-01-31 14:05' or RFC 3339. Without a zone it is
    by this machine's clock, or in --tz. Both bounds are included.

    ARCHIVE may be a folder of the Java tool kafka-backup. To resume an interrupted restore, repeat its --restore-id.

    Ends with exit code 3 when the target refuses a topic (the others are restored), when a group or a setting could
    not be set, when records could not get the ids of the target's schema registry, or when records of the restore point
    are lost. A dry run ends with the same code.
    """
    if guide:
        from kbackup.cli.guide import run_guide

        return run_guide(context, answers)
    if answers is not None:
        raise UsageError("--answers are for --guide alone", "add --guide, or leave it out")
    if undo:
        return _undo_settings(context, confirm and not dry_run, accept_unproven)
    if confirm or accept_unproven:
        option = "--confirm" if confirm else "--accept-unproven"
        # Without this, somebody who believes that nothing happens without --confirm would restore by mistake.
        raise UsageError(f"{option} is for --undo alone", "leave it out: a restore without --dry-run writes at once")
    config, reporter = context.config, context.reporter
    # Spark takes seconds to start: an error of the command line comes first.
    address = context.archive
    # An expression can only be judged record by record: what it selects is counted in any case.
    counted = count or bool(config.restore.where)
    shown = ShownProgress(reporter)
    interruption = RestoreInterruption(shown, own_command())
    when_interrupted(interruption)
    names_restore = config.restore.restore_id is not None
    screen = ReporterScreen(reporter, dry_run, counted, names_restore, interruption)
    with spark_session(config, at_once=not dry_run, reporter=reporter) as session, shown:
        store = archive_store(context, address)
        show_connecting(context, "target")
        # Imports take about as long as the JVM takes to start meanwhile.
        from kbackup.jobs.restore.report import count_restore
        from kbackup.library import run_restore

        report = run_restore(config, store, session, shown, screen, dry_run=dry_run, count=count)
        interruption.is_done = True
    if not dry_run:
        count_restore(report)
        new = [warning for warning in report.warnings if warning not in screen.warnings]
        _show_report(report, config, new, reporter)
    reporter.document(report)
    return EXIT_LOSS if report.missing else EXIT_OK


_WRITES_NOTHING = ("", "connect", "plan", "preflight")
"""The phases of a restore that write nothing to the target."""


@dataclass
class RestoreInterruption:
    """Describes an interrupted restore. `again` is its own command; once the plan is known, `plan` is set, and `resume`
    is the command that goes on with it."""

    shown: ShownProgress
    again: str
    plan: RestorePlan | None = None
    resume: str = ""
    is_done: bool = False

    def __call__(self) -> InterruptedByUserError:
        phase = self.shown.phase_name
        if self.is_done:
            return interrupted("everything was done before", "nothing is left to do")
        if self.plan is None or phase in _WRITES_NOTHING:
            return interrupted("nothing was written to the target", f"to begin anew: {self.again}")
        name = f"restore {self.plan.restore_id}"
        hint = f"to go on where it stopped, each record once: {self.resume}"
        if not self.plan.transactions and not self.plan.keeps_offsets:
            state = f"{name} is not finished, and without transactions nobody knows how far it came"
            return interrupted(state, f"delete its target topics, then begin anew: {self.again}")
        if phase in ("offset map", "groups", "report"):
            return interrupted(f"{name} has written all records, but not set all groups", hint)
        done = ""
        if phase == "run" and self.shown.expected:
            bound = "" if self.plan.exact else "up to "
            done = f": about {self.shown.records:,} of {bound}{self.shown.expected:,} records are written"
        return interrupted(f"{name} is not finished{done}", hint)


@dataclass
class ReporterScreen:
    """Shows a restore on the terminal before it writes anything (a `RestoreScreen`).

    `counted` is True if the records of windows were counted, `names_restore` if the user gave the restore's id; the
    plan goes to `interruption` as well. `warnings` are the warnings that were shown, because the
    report of the restore has them again.
    """

    reporter: Reporter
    dry_run: bool
    counted: bool
    names_restore: bool
    interruption: RestoreInterruption
    warnings: set[str] = field(default_factory=set)

    def show_plan(self, plan: RestorePlan, warnings: list[str]) -> None:
        self.interruption.plan = plan
        # The id has no blank: it is one word with its option.
        add = [] if self.names_restore else [f"--restore-id={plan.restore_id}"]
        self.interruption.resume = own_command(*add, times=_times_of(plan))
        self.warnings.update(_show_plan(plan, warnings, self.dry_run, self.reporter, self.counted))

    def show_fills(self, fills: Sequence[TopicFill]) -> None:
        _show_fills(fills, self.dry_run, self.reporter)

    def show_settings(self, settings: SettingsReport) -> None:
        _show_settings(settings, self.reporter)

    def show_schemas(self, schemas: SchemaPlan) -> None:
        _show_schemas(schemas, self.reporter)


def _show_plan(
    plan: RestorePlan, warnings: list[str], dry_run: bool, reporter: Reporter, counted: bool = False
) -> list[str]:
    """Show a plan and its warnings, and return these."""
    origin = f"restore point {plan.restore_point}" if plan.restore_point else "a folder of the Java tool"
    reporter.note(f"restore {plan.restore_id}: {origin} into cluster {plan.target_cluster_id}")
    if dry_run:
        _show_dry_run(plan, reporter, counted or plan.choice is None)
    else:
        partitions = sum(topic.partitions for topic in plan.topics)
        at_most = "" if plan.exact else "at most "
        reporter.doing(
            f"  {plural(len(plan.topics), 'topic')}, {plural(partitions, 'partition')}, "
            f"{at_most}{plural(plan.records, 'record')}"
        )
    if (plan.transactions or plan.keeps_offsets) and not dry_run:
        reporter.note(f"  to resume after an interruption: --restore-id {plan.restore_id}")
    if plan.choice is not None:
        show_window(plan.choice, reporter)
    if plan.transform is not msgspec.UNSET:
        reporter.note(f"  all records go through {plan.transform}, which may leave some out")
    shown = [*plan.group_warnings, *warnings]
    if dry_run:
        # A restore names the losses in its report, as what is missing.
        shown = [*plan.damaged, *shown]
    reporter.findings(shown)
    if plan.choice is not None:
        shown += plan.choice.left_out
    if dry_run and shown:
        reporter.note(
            "warnings don't stop the restore, except of topics that they name as refused; errors do (exit code 1 or 2)"
        )
    return shown


_PLANNED_GROUPS: Sequence[Column[PlannedGroup]] = (
    Column("group", "source"),
    Column("becomes", "target"),
    Column("partitions", "offsets", len, importance=1),
)


def _head(fill: TopicFill) -> str | None:
    return f"{fill.head:,} ({human_size(fill.head_bytes)})" if fill.head else None


_FILLS: Sequence[Column[TopicFill]] = (
    Column("same offsets", "source"),
    Column("filled by", "way"),
    Column("before the first record", _head, importance=1),
    Column("gaps", "gaps", or_none, importance=2),
    Column("markers", "markers", or_none),
    Column("fillers", "fillers", or_none),
    Column("takes about", "seconds", human_duration),
)


def _show_fills(fills: Sequence[TopicFill], dry_run: bool, reporter: Reporter) -> None:
    """Show how logs get the offsets of the source."""
    if not fills:
        return
    if dry_run:
        reporter.line()
        reporter.table(_FILLS, fills)
        _note_fillers(fills, reporter)
        return
    offsets = sum(fill.head + fill.fillers for fill in fills)
    markers = sum(fill.markers for fill in fills)
    seconds = sum(fill.seconds for fill in fills)
    reporter.doing(
        f"  same offsets: {plural(offsets, 'offset')} to fill and {plural(markers, 'marker')}, about "
        f"{human_duration(seconds)}"
    )


def _note_fillers(fills: Sequence[TopicFill], reporter: Reporter) -> None:
    """Note what fillers before the first records ask of the brokers, unless it is next to nothing."""
    seconds = sum(fill.broker_seconds for fill in fills)
    if seconds < 1:
        return
    reporter.note(
        f"brokers look at every filler: the leaders of these logs need about {human_duration(seconds)} of one core"
    )
    size = sum(fill.head_bytes for fill in fills)
    if size:
        reporter.note(
            f"what fills logs before their first records takes up to {human_size(size)} of disk for each replica; "
            "brokers delete it on the way, every log.retention.check.interval.ms"
        )


def _show_dry_run(plan: RestorePlan, reporter: Reporter, counted: bool) -> None:
    records = "records" if plan.exact else "records, at most"
    size = "bytes" if counted else "bytes, at most"
    topic_columns: Sequence[Column[PlannedTopic]] = (
        Column("topic", "source"),
        Column("becomes", "target"),
        Column("as of", "as_of", or_none, importance=1),
        Column("partitions", "partitions", importance=2),
        Column(records, "records"),
        Column(size, "bytes", human_size, importance=3),
    )
    reporter.table(topic_columns, plan.topics)
    if plan.groups:
        reporter.line()
        reporter.table(_PLANNED_GROUPS, plan.groups)
    at_most = "" if plan.exact else "at most "
    written = f"{at_most}{plural(plan.records, 'record')}"
    reporter.line(f"nothing was written to the target; the restore would write {written}")
    command_without = own_command(drop=("--dry-run", "--count"), times=_times_of(plan))
    reporter.note(f"to restore: {command_without}")


def _times_of(plan: RestorePlan) -> dict[str, int | None]:
    """Return the times of a plan by their options: what was given may be "2h ago", which is another time later."""
    if plan.choice is None:
        return {}
    return {"--from-time": plan.choice.from_time, "--to-time": plan.choice.to_time}


_RESTORED_TOPICS: Sequence[Column[RestoredTopic]] = (
    Column("topic", "source"),
    Column("restored as", "target"),
    Column("partitions", "partitions", importance=2),
    Column("records", "records"),
)


def _show_report(report: RestoreReport, config: Config, warnings: list[str], reporter: Reporter) -> None:
    reporter.table(_RESTORED_TOPICS, report.topics)
    if report.groups:
        reporter.line()
        show_results(report.groups, reporter)
    if report.transform is not msgspec.UNSET:
        reporter.note(report.transform.sentence)
    reporter.warning(*warnings)
    reporter.findings(report.missing)
    if report.losses:
        reporter.note("the archive lacks these records; to see in which restore points: kbackup list")
    applied = sum(group.status == "applied" for group in report.groups)
    failed = {topic.source for topic in report.failed}
    restored = len(report.topics) - len(failed)
    state = "is done"
    if failed:
        state = f"is not done, {plural(len(failed), 'topic')} failed"
    reporter.line(
        f"restore {report.restore_id} {state}: {plural(report.records, 'record')}, {human_size(report.bytes)}, "
        f"{plural(restored, 'topic')}, {plural(applied, 'group')}; {human_total(report.seconds)}"
    )
    if failed:
        exclude = " ".join(f"--exclude-topic {name}" for name in sorted(failed))
        reporter.note(
            f"to go on: mend what is named above and run the same line again with --restore-id {report.restore_id}; or "
            f"leave topics out: {exclude}"
        )
    id_ = ("--restore-id", report.restore_id)
    if applied:
        undo = undo_command(config, "groups", "undo", *id_, clusters=("target",))
        reporter.note(f"to undo the groups: {undo}")
    if report.settings is not None and report.settings.changes:
        undo = undo_command(config, "restore", "--undo", *id_, clusters=("target",))
        reporter.note(f"to undo the settings: {undo}")
    if report.schemas is not None:
        undo = undo_command(config, "schemas", "undo", *id_, clusters=("target_schema_registry",))
        reporter.note(f"to undo the schemas: {undo}")


def _show_settings(planned: SettingsReport, reporter: Reporter) -> None:
    show_changes(planned.changes, reporter)
    for entry in planned.not_carried:
        reporter.note(f"not restored: {entry.what} ({entry.why})")
    reporter.warning(*planned.warnings, *planned.missing)


_NEW_SCHEMAS: Sequence[Column[PlannedSchema]] = (
    Column("subject", "schema.subject"),
    Column("version", "schema.version", importance=2),
    Column("id", "schema.id", importance=1),
    Column("type", "schema.type", importance=3),
    Column("action", "action"),
)


def _show_schemas(plan: SchemaPlan, reporter: Reporter) -> None:
    """Show what is new in the target's registry."""
    created = list(plan.created)
    if created:
        reporter.table(_NEW_SCHEMAS, created)
        reporter.line()
    number_there = len(plan.steps) - len(created)
    ids = "the same ids" if plan.mode == "same" else "ids of its own, which the records get"
    reporter.note(
        f"schemas: {plural(len(plan.steps), 'version')} in {plan.registry} with {ids}, "
        f"{number_there:,} of them there already"
    )
    show_judged(plan.judged, reporter)


_JUDGED: Sequence[Column[JudgedPart]] = (
    Column("topic", "topic"),
    Column("part", "part", importance=1),
    Column("of its subjects", "by_subject", importance=2),
    Column("of other subjects", "others", importance=2),
    Column("unknown", "unknown", importance=2),
    Column("mapped", "words"),
)


def show_judged(judged: Sequence[JudgedPart], reporter: Reporter) -> None:
    """Show how many keys and values come from a serializer, and how many only look like it, for each topic."""
    if judged:
        reporter.table(_JUDGED, judged)
        reporter.line()


def _owner(change: ConfigChange) -> str:
    return "all brokers" if change.of_all else f"{change.kind} {change.owner}"


_CONFIGS: Sequence[Column[ConfigChange]] = (
    Column("config", "name"),
    Column("of", _owner),
    Column("now", "before"),
    Column("becomes", "after"),
)


def show_changes(changes: Changes, reporter: Reporter) -> None:
    from kbackup.jobs.settings.plan import entity_words

    quota_columns: Sequence[Column[QuotaChange]] = (
        Column("quota", "name"),
        Column("of", "entity", entity_words),
        Column("now", "before"),
        Column("becomes", "after"),
    )
    _show_acls("new acl for", changes.acls, reporter)
    _show_acls("deleted acl for", changes.deleted_acls, reporter)
    if changes.configs:
        reporter.table(_CONFIGS, changes.configs)
        reporter.line()
    if changes.quotas:
        reporter.table(quota_columns, changes.quotas)
        reporter.line()


def _show_acls(title: str, acls: Sequence[Acl], reporter: Reporter) -> None:
    if not acls:
        return
    acl_columns: Sequence[Column[Acl]] = (
        Column(title, "principal"),
        Column("host", "host", importance=1),
        Column("permission", "permission", importance=3),
        Column("operation", "operation"),
        Column("resource", "resource", importance=4),
        Column("name", "name"),
        Column("pattern", "pattern", importance=2),
    )
    reporter.table(acl_columns, acls)
    reporter.line()


def _undo_settings(context: CommandContext, confirm: bool, accept_unproven: bool) -> int:
    """Show how to put back the ACLs, configs and quotas that the target had before a restore; with `confirm`, do it."""
    from kbackup.archive.restores.journal import RestoreJournal
    from kbackup.jobs.settings.undo import SettingsUndo
    from kbackup.kafka.control.cluster import Cluster

    reporter = context.reporter
    restore_id = named_restore(context)
    cluster = Cluster(context.config.target, "target")
    journal = RestoreJournal(state_store(context), restore_id)
    undone = journal.undo(SettingsUndo(cluster, journal), confirm=confirm, accept_unproven=accept_unproven)
    show_changes(undone.changes, reporter)
    reporter.warning(*undone.missing)
    if not undone.changes:
        reporter.line("nothing is left to undo")
    elif not confirm:
        show_unconfirmed(undone.unproven, reporter)
    reporter.document(undone)
    return EXIT_LOSS if undone.missing else EXIT_OK
