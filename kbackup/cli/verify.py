"""`kbackup verify`: verify an archive's objects, or compare a cluster with an archive, as `kbackup drill` does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import click
import msgspec

from kbackup.archive.models import USE_NEWER
from kbackup.cli.common.command_context import CommandContext, FlagValues
from kbackup.cli.common.command_lines import own_command
from kbackup.cli.common.interrupts import SameState, when_interrupted
from kbackup.cli.common.options import (
    archive_command,
    compared_options,
    key_option,
    key_options,
    name_options,
    options,
    point_option,
    time_key_options,
)
from kbackup.cli.common.output import Reporter, ShownProgress
from kbackup.cli.common.session import archive_store, show_connecting, spark_session, state_store
from kbackup.cli.common.tables import Column
from kbackup.cli.common.window import show_bounds
from kbackup.config.models import Restore
from kbackup.errors import EXIT_LOSS, EXIT_OK, CorruptError, KbackupError, UsageError
from kbackup.jobs.verify import VerifyReport, count_verification
from kbackup.library import run_verify
from kbackup.util.text import human_size, human_total, plural
from kbackup.util.times import time_text

if TYPE_CHECKING:
    from kbackup.jobs.compare.report import AgainstReport, ComparedTopic, Difference

show_option = click.option(
    "--show",
    type=click.IntRange(0),
    default=20,
    metavar="N",
    help="Number of differences to name; all are counted. [default 20]",
)
selection_options = options(time_key_options, key_option("restore.range"), name_options("restore.topics"))


@archive_command(
    "verify",
    point_option(
        "Restore point to verify. [default all; with --against latest]",
        default="all",
        metavar="[N|LABEL|latest|all]",
        show_default=False,
    ),
    click.option("--quick", is_flag=True, help="Check sizes and stored checksums only; read no records."),
    compared_options,
    key_option("restore.restore_id", help="Compare the result of this restore."),
    selection_options,
    key_options("restore.map", "restore.map_regex", "restore.state"),
    key_option("restore.transform", help="Compare with what this function made of the records. See restore."),
    click.option("--groups", is_flag=True, help="Also compare consumer groups. Needs --restore-id."),
    click.option("--exact", is_flag=True, help="Count records after the archive's last one as a difference."),
    show_option,
    argument=True,
    spark=True,
    example="kbackup verify --quick",
)
def command(
    context: CommandContext,
    restore_point: str,
    quick: bool,
    against: Literal["target", "source"] | None,
    groups: bool,
    exact: bool,
    show: int,
) -> int:
    """Verify an archive, or a folder of the Java tool kafka-backup, and list all findings.

    Checks manifests, documents, checksums, records, indexes, tables and offsets. Ends with exit code 13 when there is
    any finding. Orphans, and torn files of a killed sink of the Java tool, are no findings. Records the result in the
    archive, where it may write.

    --against compares a cluster with the archive, record by record: the target by the offset map of --restore-id, or
    the topics that a restore with these options would write. Also looks whether the source's schema registry has what
    is archived, and the target's what the restore registered. Ends with exit code 3 when anything differs.
    """
    reporter = context.reporter
    if against is not None:
        if quick:
            raise UsageError("--quick reads no records", "leave it out with --against")
        return _against(context, restore_point, against, groups, exact, show)
    flags = click.get_current_context().ensure_object(FlagValues)
    if groups or exact or _has_options_of_comparison(flags):
        raise UsageError("options of a comparison need --against", "give --against target or source")

    def unrecorded(error: KbackupError) -> None:
        reporter.note(f"note: the result was not recorded in the archive: {error.message}")

    when_interrupted(SameState("nothing was changed, and no result is recorded", f"verify again: {own_command()}"))
    store = archive_store(context)
    with spark_session(context.config, reporter=reporter) as session, ShownProgress(reporter) as shown:
        report = run_verify(store, restore_point, quick, session, shown, unrecorded)
    count_verification(report)
    _show(report, reporter)
    return CorruptError.exit_code if report.findings else EXIT_OK


def _has_options_of_comparison(flags: FlagValues) -> bool:
    """Return whether the command line says what to compare, or how to reach the cluster."""
    if flags.target_file or flags.source_file:
        return True
    for setting in flags.settings:
        is_option = setting.origin.name != "--set"
        if is_option and setting.path.startswith(("restore.", "target.", "source.")):
            return True
    return False


def _show(report: VerifyReport, reporter: Reporter) -> None:
    for finding in report.findings:
        reporter.line(f"{finding.file}: {finding.what}")
        reporter.line(f"  hint: {finding.hint}")
    for note in report.notes:
        size = f" ({human_size(note.bytes)})" if note.bytes else ""
        reporter.note(f"note: {note.file}: {note.what}{size}")
    if report.orphan_bytes:
        reporter.note(f"note: {human_size(report.orphan_bytes)} in all belong to no restore point")
    is_damaged = any(finding.hint != USE_NEWER for finding in report.findings)
    if report.restore_points and is_damaged:
        reporter.note("take the objects from a copy; to see what can be mended without: kbackup repair")
    checked = []
    if report.restore_points:
        checked.append(plural(len(report.restore_points), "restore point"))
    checked.append(plural(report.segments, "segment"))
    if report.deep:
        checked.append(f"{plural(report.read_records, 'record')} read back, {human_size(report.read_bytes)}")
    else:
        checked.append("records not read")
    findings = plural(len(report.findings), "finding")
    reporter.line(f"{report.archive}: {findings}; {', '.join(checked)}; {human_total(report.seconds)}")
    reporter.document(report)


def _against(
    context: CommandContext,
    restore_point: str,
    against: Literal["target", "source"],
    groups: bool,
    exact: bool,
    show: int,
) -> int:
    config, reporter = context.config, context.reporter
    _check_client_file(against)
    when_interrupted(SameState("nothing was changed", f"to compare again: {own_command()}"))
    options = config.restore
    # "all" is the default of a verification: a comparison then takes the restore point of the configuration.
    if restore_point != "all":
        number_or_label = int(restore_point) if restore_point.isdecimal() else restore_point
        options = msgspec.structs.replace(options, restore_point=number_or_label)
    store = archive_store(context)
    show_connecting(context, against)
    if against == "target" and not options.restore_id:
        options = with_shown_times(options, reporter)
    with spark_session(config, at_once=True, reporter=reporter) as session, ShownProgress(reporter) as shown:
        # Imports take about as long as the JVM takes to start meanwhile.
        from kbackup.jobs.compare.job import CompareRequest, verify_against
        from kbackup.jobs.compare.report import count_comparison

        request = CompareRequest(against, options, groups, exact, show)
        if against == "source":
            cluster, registry = config.source, config.schema_registry
        else:
            cluster, registry = config.target, config.target_schema_registry
        report = verify_against(request, cluster, store, state_store(context, store), session, shown, registry)
    count_comparison(report)
    show_comparison(report, reporter)
    reporter.document(report)
    return EXIT_LOSS if report.findings else EXIT_OK


def with_shown_times(options: Restore, reporter: Reporter) -> Restore:
    """Print between which times records are compared, and return the options with these times: '2 hours ago' would be
    later once the cluster has answered."""
    from kbackup.jobs.restore.request import RestoreRequest

    window = RestoreRequest.of(options).window
    show_bounds(window, reporter)
    if window.from_time is not None:
        options = msgspec.structs.replace(options, from_time=time_text(window.from_time))
    if window.to_time is not None:
        options = msgspec.structs.replace(options, to_time=time_text(window.to_time))
    return options


def _check_client_file(against: Literal["target", "source"]) -> None:
    """Raise `UsageError` for client properties of the cluster that is not compared."""
    flags = click.get_current_context().ensure_object(FlagValues)
    other, file = ("source", flags.source_file) if against == "target" else ("target", flags.target_file)
    if file:
        raise UsageError(
            f"--{other}-config is for the {other} cluster, and --against names the {against}",
            f"give --{against}-config, or --against {other}",
        )


def _result(topic: ComparedTopic) -> str:
    return "as archived" if topic.ok else "DIFFERS"


_COMPARED: Sequence[Column[ComparedTopic]] = (
    Column("topic", "source"),
    Column("compared with", "target", importance=3),
    Column("partitions", "partitions", importance=1),
    Column("records", "records", importance=4),
    Column("same", "same", importance=2),
    Column("result", _result),
)
"""The columns of the topics of a comparison."""


def show_comparison(report: AgainstReport, reporter: Reporter) -> None:
    """Print the table of topics, the differences to name, and one line with the result."""
    reporter.table(_COMPARED, report.topics)
    if any(compared.differences for compared in report.partitions):
        reporter.line()
    for compared in report.partitions:
        for difference in compared.differences:
            reporter.line(f"{compared.target}-{compared.partition}: {difference_text(difference)}")
    for note in report.notes:
        reporter.note(f"note: {note}")
    reporter.warning(*report.findings)
    result = "no difference"
    if report.findings:
        result = plural(len(report.findings), "finding")
    compared_amounts = [plural(report.records, "record"), human_size(report.bytes)]
    if report.groups:
        compared_amounts.append(plural(len(report.groups), "group offset"))
    reporter.line(
        f"{report.archive} against the {report.against} cluster {report.cluster_id}: {result}; "
        f"{', '.join(compared_amounts)}; {human_total(report.seconds)}"
    )


def difference_text(each: Difference) -> str:
    """Return a difference as text: 'value differs: source offset 12, target offset 14'."""
    offsets = []
    if each.source is not None:
        offsets.append(f"source offset {each.source}")
    if each.target is not None:
        offsets.append(f"target offset {each.target}")
    places = ", ".join(offsets)
    if each.what == ("place",):
        if each.expected is None:
            return f"elsewhere: {places}, which the map doesn't have"
        return f"elsewhere: {places}, which should be {each.expected}"
    if each.what[0] in ("missing", "extra"):
        many = f"{each.count:,} records from " if each.count > 1 else ""
        return f"{each.what[0]}: {many}{offsets[0]}"
    if each.what == ("order",):
        return f"in another order: {places}"
    verb = "differs" if len(each.what) == 1 else "differ"
    return f"{' and '.join(each.what)} {verb}: {places}"
