"""`kbackup drill`: restore for practice, compare the result with the archive, and report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kbackup.archive import layout
from kbackup.cli.common.command_context import CommandContext
from kbackup.cli.common.command_lines import own_command
from kbackup.cli.common.interrupts import interrupted, when_interrupted
from kbackup.cli.common.options import archive_command, key_options, name_options, point_key_option, target_options
from kbackup.cli.common.output import Reporter, ShownProgress
from kbackup.cli.common.session import archive_store, show_connecting, spark_session, state_store
from kbackup.cli.common.window import show_bounds
from kbackup.cli.verify import difference_text, selection_options, show_comparison, show_option
from kbackup.errors import EXIT_LOSS, EXIT_OK, InterruptedByUserError, KbackupError, UsageError
from kbackup.jobs.drill.report import DrillReport, count_drill, deletion_commands, store_report
from kbackup.store import Store
from kbackup.util.text import human_count, human_duration, human_size, plural
from kbackup.util.times import human_time

if TYPE_CHECKING:
    from kbackup.jobs.compare.report import AgainstReport, ComparedTopic


@archive_command(
    "drill",
    target_options,
    point_key_option,
    selection_options,
    key_options("restore.topic_config"),
    name_options("restore.groups"),
    key_options("restore.no_groups", "restore.replication_factor", "restore.transactions"),
    key_options("restore.same_offsets", "restore.fill", "restore.state"),
    click.option(
        "--prefix",
        metavar="TEXT",
        help="Prefix of scratch topics and groups. No other topic or group may have it. "
        "[default drill-<date>-<random>.]",
    ),
    click.option(
        "--report",
        "folder",
        metavar="DIR",
        type=click.Path(file_okay=False, path_type=Path),
        help="Also write the report to this folder: <id>.json and <id>.html.",
    ),
    click.option("--keep", is_flag=True, help="Keep the scratch topics and groups on the target."),
    click.option("--on-source", is_flag=True, help="Allow the backed-up cluster as the target."),
    show_option,
    argument=True,
    spark=True,
    example="kbackup drill --topic orders --report /var/www/drills",
)
def command(
    context: CommandContext, prefix: str | None, folder: Path | None, keep: bool, on_source: bool, show: int
) -> int:
    """Restore a restore point for practice, compare the result with the archive, and report.

    Records go to scratch topics, groups to scratch groups; both are deleted at the end, also after an error or Ctrl-C.
    The archive gets the report as drills/<id>/report.json and report.html. Ends with exit code 3 when anything differs
    or could not be deleted.
    """
    config, reporter = context.config, context.reporter
    store = archive_store(context)
    state = state_store(context, store)
    if folder is not None:
        # The folder is made before the drill: an error must not come after hours of work.
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"folder {folder} can't be made: {error.strerror}", "give another --report") from error

    interruption = DrillInterruption(own_command())
    when_interrupted(interruption)

    def publish(report: DrillReport) -> None:
        interruption.report = report
        _publish(report, folder, state, reporter)

    show_connecting(context, "target")
    with spark_session(config, at_once=True, reporter=reporter) as session, ShownProgress(reporter) as shown:
        # Imports take about as long as the JVM takes to start meanwhile.
        from kbackup.jobs.drill.job import DrillRequest, drill
        from kbackup.jobs.restore.request import RestoreRequest

        selected = RestoreRequest.of(config.restore)
        show_bounds(selected.window, reporter)
        request = DrillRequest(selected, prefix, keep, on_source, show)
        report = drill(request, config.target, store, state, session, shown, publish)
    count_drill(report)
    _show(report, state, reporter)
    reporter.document(report)
    if report.error is not None:
        return report.error.exit_code
    return EXIT_LOSS if report.findings else EXIT_OK


@dataclass
class DrillInterruption:
    """Describes an interrupted drill. `report` is set once the drill has cleaned up; without it nothing was created, or
    the clean-up itself was interrupted before it began."""

    again: str
    report: DrillReport | None = None

    def __call__(self) -> InterruptedByUserError:
        hint = f"to drill again: {self.again}"
        if self.report is None:
            return interrupted("the drill created nothing on the target", hint)
        commands = deletion_commands(self.report)
        if commands:
            kept = "as asked, the scratch topics and groups are left on the target"
            left = "scratch topics or groups are left on the target"
            return interrupted(left if self.report.left else kept, f"to delete them: {'; '.join(commands)}")
        if self.report.outcome == "interrupted":
            state = "the drill says nothing about the archive; nothing of it is left on the target"
            return interrupted(state, hint)
        return interrupted(f"drill {self.report.drill_id} {self.report.outcome} before", "nothing is left to do")


def _publish(report: DrillReport, folder: Path | None, state: Store, reporter: Reporter) -> None:
    from kbackup.archive.models import dump

    page = drill_page(report)
    # The folder comes first: it has the report also if the store refuses it.
    if folder is not None:
        (folder / f"{report.drill_id}.html").write_text(page, encoding="utf-8")
        (folder / f"{report.drill_id}.json").write_bytes(dump(report))
    try:
        store_report(state, report, page)
    except KbackupError as error:
        if report.error is None:
            raise
        # The error that ended the drill gives the exit code.
        reporter.warning(f"the report could not be stored: {error}")


def _show(report: DrillReport, state: Store, reporter: Reporter) -> None:
    shown = frozenset[str]()
    if report.comparison is not None:
        show_comparison(report.comparison, reporter)
        shown = frozenset(report.comparison.findings)
    for finding in report.findings:
        if finding not in shown:
            reporter.findings([finding])
    for name in report.kept:
        reporter.note(f"kept: {name}")
    for command in deletion_commands(report):
        reporter.note(f"to delete what the drill left: {command}")
    if report.error is not None:
        reporter.warning(f"the drill ended with an error: {report.error.message}")
        if report.error.hint:
            reporter.note(f"hint: {report.error.hint}")
    address = f"{state.url.rstrip('/')}/{layout.drill_key(report.drill_id, layout.PAGE)}"
    reporter.line(f"drill {report.drill_id} {_result(report)}; its report: {address}")


def _result(report: DrillReport) -> str:
    """Return how a drill ended. The line is also the summary of a notification: it says what that means."""
    outcome: str = report.outcome
    if outcome == "could not run":
        return f"could not run, so it says nothing about the archive: {report.obstacle}"
    if report.is_damage:
        return f"failed: the archive is damaged: {report.obstacle}"
    if outcome == "failed" and report.differences:
        return f"failed: restore point {report.restore_point} did not come back as it is in the archive"
    if outcome == "failed":
        return f"failed: restore point {report.restore_point} lacks records that were found damaged"
    return outcome


# The page of a report.


_MOST = 200  # rows of a table
_FOOTNOTE = (
    "Every record that was restored was read back and compared with the archive: how many there are, their order, "
    "and of each one key, value, headers and timestamp; then the offsets of the consumer groups. The topics were "
    "restored under names of their own, with settings under which nothing expires or changes; no other topic and "
    "no real group was touched."
)


def drill_page(report: DrillReport) -> str:
    """Return the report as one HTML page without scripts and without other files, for screen and paper.

    Names of the report can't become markup."""
    from kbackup.util.html import templates

    environment = templates("kbackup.cli")
    environment.filters |= {"size": human_size, "count": human_count, "duration": human_duration, "moment": _moment}
    compared = report.comparison
    topics: list[ComparedTopic] = []
    groups: list[dict[str, object]] = []
    groups_note = "the drill ended before"
    if compared is not None:
        topics = sorted(compared.topics, key=_differing_first)
        groups = _groups(compared)
        groups_note = _offsets(compared)
    template = environment.get_template("drill.html.j2")
    return template.render(
        report=report,
        compared=compared,
        sentence=_sentence(report),
        data_as_of=_moment(report.restore_point_at) if report.restore_point_at else "-",
        data_note=_data_note(report),
        restore_seconds=_restore_seconds(report),
        topics=topics,
        groups=groups,
        groups_note=groups_note,
        differences=_differences(compared),
        details=_details(report),
        footnote=_FOOTNOTE,
        most=_MOST,
    )


def _differing_first(topic: ComparedTopic) -> tuple[bool, str]:
    return topic.ok, topic.source


def _offsets(compared: AgainstReport) -> str:
    """Return how many offsets of groups were compared, and how many of them are where they belong."""
    wrong = [check for check in compared.groups if not check.ok]
    how_many = f"{len(wrong):,} not" if wrong else "all"
    return f"{plural(len(compared.groups), 'offset')}, {how_many} where they belong"


def _restore_seconds(report: DrillReport) -> float | None:
    """Return how long the restore took; None if the drill ended before the restore wrote anything."""
    seconds = [seconds for name, seconds in report.seconds.items() if name.startswith("restore: ")]
    if not seconds and not report.restored_records:
        return None
    return sum(seconds)


def _differences(compared: AgainstReport | None) -> list[tuple[str, str]]:
    """Return each difference with the partition that has it."""
    found = []
    if compared is None:
        return []
    for partition in compared.partitions:
        for difference in partition.differences:
            text = difference_text(difference)
            found.append((f"{partition.topic}-{partition.partition}", text))
    return found


def _moment(rfc3339: str) -> str:
    """Return '2026-01-31 01:02 UTC' for '2026-01-31T01:02:03.456Z'; other text is returned unchanged."""
    try:
        return datetime.fromisoformat(rfc3339).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    except ValueError:
        return rfc3339


def _sentence(report: DrillReport) -> str:
    if report.is_damage and report.error is not None:
        return f"The archive is damaged: {report.error.message}."
    if report.outcome == "interrupted":
        return "The drill was interrupted before it came to its end. It says nothing about the archive."
    if report.outcome == "could not run":
        return f"The drill could not run, so it says nothing about the archive: {report.obstacle}."
    compared = report.comparison
    if report.outcome == "passed" and compared is not None:
        return (
            f"The backup was restored and is what the archive holds: {plural(compared.records, 'record')} in "
            f"{plural(len(compared.topics), 'topic')}, compared one by one."
        )
    if report.losses:
        places = plural(len(report.losses), "place")
        return f"The archive has lost records of what was restored, in {places}: see below."
    if report.outcome == "passed in part":
        return "All that was compared is as in the archive, but the drill left something out or behind: see below."
    return "Not everything came back as it is in the archive: see below."


def _data_note(report: DrillReport) -> str:
    parts = []
    if report.restore_point:
        parts.append(f"restore point {report.restore_point}")
    if report.data_age is not None:
        parts.append(f"{human_duration(report.data_age)} old when the drill began")
    if report.choice is not None and report.choice.to_time is not None:
        parts.append(f"records up to {human_time(report.choice.to_time)}")
    return ", ".join(parts)


def _groups(compared: AgainstReport) -> list[dict[str, object]]:
    """Return each group with the number of its offsets, and whether all are where they belong, for the page."""
    results: defaultdict[str, list[bool]] = defaultdict(list)
    for check in compared.groups:
        results[check.source_group].append(check.ok)
    groups: list[dict[str, object]] = []
    for name, oks in sorted(results.items()):
        groups.append({"name": name, "offsets": len(oks), "ok": all(oks)})
    # Groups with a wrong offset come first; sorting keeps the order of the names among the others.
    return sorted(groups, key=_is_ok)


def _is_ok(group: dict[str, object]) -> bool:
    return bool(group["ok"])


def _details(report: DrillReport) -> Iterable[tuple[str, str]]:
    yield "drill", report.drill_id
    yield "began", report.started_at
    yield "ended", report.ended_at
    if "verify" in report.seconds:
        yield "comparing took", human_duration(report.seconds["verify"])
    if "clean up" in report.seconds:
        yield "deleting took", human_duration(report.seconds["clean up"])
    yield "archive", report.archive
    yield "archive id", report.archive_id
    yield "damaged restore points", ", ".join(str(number) for number in report.damaged) or "none"
    yield "restored into", f"cluster {report.target_cluster_id} at {report.target}"
    yield "as topics and groups", f"{report.prefix}*"
    yield "versions", ", ".join(f"{name} {version}" for name, version in report.versions.items())
