"""Options and output of comparisons, shared by `verify --against` and `drill`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kbackup.cli.common.frame import FlagValues
from kbackup.cli.common.options import key_option, key_options, options, time_key_options
from kbackup.cli.common.output import Reporter
from kbackup.util.text import human_duration, human_size, plural

if TYPE_CHECKING:
    from kbackup.jobs.compare.report import AgainstReport
    from kbackup.jobs.compare.side import Comparison, Difference

show_option = click.option(
    "--show",
    type=click.IntRange(0),
    default=20,
    metavar="N",
    help="Number of differences to name; all are counted. [default 20]",
)
selection_options = options(
    time_key_options,
    key_option("restore.range"),
    key_option("restore.topics", "-t", "--topic", "--topics"),
    key_option("restore.exclude_topics", "--exclude-topic", "--exclude-topics"),
)
against_options = options(
    click.option(
        "--against", type=click.Choice(["target", "source"]), help="Compare this cluster's records with the archive."
    ),
    key_option("restore.restore_id", "--restore-id", help="Compare the result of this restore."),
    selection_options,
    key_options("restore.map", "restore.map_regex"),
    key_option("restore.state", "--state"),
    click.option("--groups", is_flag=True, help="Also compare consumer groups. Needs --restore-id."),
    click.option("--exact", is_flag=True, help="Count records after the archive's last one as a difference."),
    show_option,
)


def has_selection_options() -> bool:
    """Return whether the command line selects topics, times or offsets of the archive."""
    settings = click.get_current_context().ensure_object(FlagValues).settings
    return any(s.path.startswith("restore.") and s.origin.name != "--set" for s in settings)


def show_comparison(report: AgainstReport, reporter: Reporter) -> None:
    """Print the table of topics, the differences to name, and one line with the result."""
    reporter.table(
        ("topic", "compared with", "partitions", "records", "same", "result"),
        [
            (t.source, t.target, t.partitions, t.records, t.same, "as archived" if t.ok else "DIFFERS")
            for t in report.topics
        ],
    )
    lines = [line for partition in report.partitions for line in _difference_lines(partition)]
    if lines:
        reporter.line()
    for line in lines:
        reporter.line(line)
    for note in report.notes:
        reporter.note(f"note: {note}")
    for finding in report.findings:
        reporter.warning(finding)
    groups = f", {plural(len(report.groups), 'group offset')}" if report.groups else ""
    result = plural(len(report.findings), "finding") if report.findings else "no difference"
    reporter.line(
        f"{report.archive} against the {report.against} cluster {report.cluster_id}: {result}; "
        f"{plural(report.records, 'record')}, {human_size(report.bytes)}{groups}; "
        f"{human_duration(sum(report.seconds.values()))}"
    )


def _difference_lines(compared: Comparison) -> list[str]:
    return [f"{compared.target}-{compared.partition}: {difference_text(each)}" for each in compared.differences]


def difference_text(each: Difference) -> str:
    """Return a difference as text: 'value differs: source offset 12, target offset 14'."""
    offsets = [f"source offset {each.source}"] if each.source is not None else []
    offsets += [f"target offset {each.target}"] if each.target is not None else []
    if each.what == ("place",):
        expected = f", which should be {each.expected}" if each.expected is not None else ", which the map doesn't have"
        return f"elsewhere: {', '.join(offsets)}{expected}"
    many = f"{each.count:,} records from " if each.count > 1 else ""
    if each.what[0] in ("missing", "extra"):
        return f"{each.what[0]}: {many}{offsets[0]}"
    if each.what == ("order",):
        return f"in another order: {', '.join(offsets)}"
    return f"{' and '.join(each.what)} differ{'s' if len(each.what) == 1 else ''}: {', '.join(offsets)}"
