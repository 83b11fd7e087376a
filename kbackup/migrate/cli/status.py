"""`kbackup migrate status`: show the state of a migration and the next step, once or until stopped."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

import click

from kbackup.cli.common.command_context import CommandContext, pass_command_context
from kbackup.cli.common.help import SectionedCommand
from kbackup.cli.common.options import common_options, source_options
from kbackup.cli.common.output import Reporter
from kbackup.cli.common.session import stop_at_signals
from kbackup.cli.common.tables import Cell, cell_text
from kbackup.errors import EXIT_LOSS, EXIT_OK
from kbackup.jobs.common import Stop
from kbackup.migrate.cli import metrics_option
from kbackup.migrate.states import StateReport
from kbackup.util.text import join_names, json_line, plural, printable
from kbackup.util.times import now

if TYPE_CHECKING:
    from rich.table import Table

    from kbackup.migrate.states import Witnesses


_NAMED = 3


def state_document(report: StateReport) -> dict[str, object]:
    """Return the report for `--json`."""
    witnesses = []
    for claim in report.claims:
        witnesses.append({"witness": claim.witness, "says": claim.says, "allows": sorted(claim.states)})
    not_looked_at = [{"why": unread.why, "hint": unread.hint} for unread in report.not_looked_at]
    return {
        "state": report.state,
        "certain": report.is_certain,
        "possible": report.possible,
        "way_back": report.way_back,
        "zookeeper_brokers": report.zk_brokers,
        "records_behind": report.lag,
        "waits_for": report.waits_for,
        "witnesses": witnesses,
        "disagreements": report.disagreements,
        "not_looked_at": not_looked_at,
        "next_step": report.next_step,
    }


def state_words(report: StateReport) -> str:
    """Return the state as words: 'dual write', or 'unknown: dual write or brokers moved'."""
    if report.state != "unknown":
        return report.state if report.is_certain else f"{report.state}, not certain"
    if not report.possible:
        return "unknown"
    return f"unknown: {' or '.join(report.possible)}"


def _fields(report: StateReport) -> list[tuple[str, Cell]]:
    """Return the fields that `status` shows."""
    # "no" is for a state that certainly has none: whoever reads it gives up.
    way_back = "yes" if report.way_back else "no"
    if report.state == "unknown" and not report.way_back:
        way_back = "not certain"
    behind = "-" if report.lag is None else plural(report.lag, "record")
    fields: list[tuple[str, Cell]] = [
        ("state", state_words(report)),
        ("way back", way_back),
        ("brokers in ZooKeeper mode", report.zk_brokers),
        ("ZooKeeper is behind", behind),
    ]
    for text in report.waits_for:
        fields.append(("waits for", text))
    for claim in report.claims:
        fields.append((claim.witness, claim.says))
    for unread in report.not_looked_at:
        fields.append(("not looked at", f"{unread.why}; {unread.hint}"))
    for text in report.disagreements:
        fields.append(("disagreement", text))
    fields.append(("next step", report.next_step))
    return fields


# `kbackup migrate status --follow`: read the state repeatedly until stopped.


def _follow(read_state: Callable[[], StateReport], interval: float, reporter: Reporter) -> None:
    """Redraw on a terminal; else print a line, or a JSON document in a line, for each change.

    A change of ZooKeeper's lag alone prints nothing."""
    with closing(Stop()) as stop, stop_at_signals(stop):
        if sys.stdout.isatty() and not reporter.json:
            from rich.live import Live

            with Live(auto_refresh=False) as live:
                # The first look is shown at once, and a stop ends the wait, not a look.
                while True:
                    table = _table(read_state())
                    live.update(table, refresh=True)
                    if stop.wait(interval):
                        return
        shown = _print_change(read_state(), None, reporter)
        while not stop.wait(interval):
            shown = _print_change(read_state(), shown, reporter)


def _print_change(report: StateReport, shown: object, reporter: Reporter) -> object:
    """Print a report if it differs from the one that was `shown`; return what it shows."""
    state = report.state, report.possible, report.is_certain
    # Without the lag, which changes all the time.
    change = state, report.way_back, report.zk_brokers, report.waits_for
    if change == shown:
        return shown
    if reporter.json:
        print(json_line({"at": now(), **state_document(report)}), flush=True)
        return change
    parts = [state_words(report)]
    if report.zk_brokers is not None:
        parts.append(f"{plural(report.zk_brokers, 'broker')} in ZooKeeper mode")
    if report.lag is not None:
        parts.append(f"{plural(report.lag, 'record')} behind")
    if report.waits_for:
        parts.append(f"waits for {join_names(report.waits_for, _NAMED, '; ')}")
    if report.disagreements:
        parts.append(plural(len(report.disagreements), "disagreement"))
    reporter.line(f"{now()} {', '.join(parts)}")
    return change


def _table(report: StateReport) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in [*_fields(report), ("as of", now())]:
        text = printable(cell_text(value))
        table.add_row(Text(f"{name}:", style="bold"), Text(text))
    return table


# `kbackup migrate status`: show the state of a migration.


_PAUSE = 2.0  # s between two looks at a ZooKeeper that is behind


@click.command("status", cls=SectionedCommand, epilog="Example: kbackup migrate status --follow")
@source_options
@metrics_option
@click.option("--follow", is_flag=True, help="Show each change until SIGTERM or Ctrl-C.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="Seconds between looks of --follow.",
)
@common_options
@pass_command_context
def command(context: CommandContext, metrics_urls: tuple[str, ...], follow: bool, interval: float) -> int:
    """Show the state of a migration from ZooKeeper to KRaft, and the next step.

    Asks three witnesses: metrics of controllers (--metrics-url), znodes (zookeeper.connect in [source]) and a
    controller's metadata log (metadata.log.dir in [source]). Ends with exit code 3 when they disagree, or when the
    migration waits for something, such as a broker, which it names.

    --follow redraws a terminal; elsewhere it prints a line or a JSON document for each change.
    """
    from kbackup.migrate.exporters import shown_url
    from kbackup.migrate.readings import read_witnesses
    from kbackup.migrate.states import judge

    for url in metrics_urls:
        shown_url(url)  # refuses an invalid URL before the first read

    earlier: Witnesses | None = None

    def read_state() -> StateReport:
        nonlocal earlier
        witnesses, before = read_witnesses(context.config.sources, metrics_urls), earlier
        earlier = witnesses
        return judge(witnesses, before)

    if follow:
        _follow(read_state, interval, context.reporter)
        return EXIT_OK
    report = read_state()
    if report.lag:  # it may be catching up: a second look shows whether it does
        time.sleep(_PAUSE)
        report = read_state()
    context.reporter.fields(_fields(report))
    context.reporter.document(state_document(report))
    return EXIT_LOSS if report.disagreements or report.waits_for else EXIT_OK
