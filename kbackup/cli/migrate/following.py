"""`kbackup migrate status --follow`: read the state repeatedly until stopped."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from kbackup.cli.common.human import printable
from kbackup.cli.common.output import Reporter, json_line
from kbackup.cli.common.stop_signals import stop_at_signals
from kbackup.cli.common.table import cell_text
from kbackup.cli.migrate.state_text import state_document, state_fields, state_line
from kbackup.jobs.common.stop import Stop
from kbackup.util.times import now

if TYPE_CHECKING:
    from rich.table import Table

    from kbackup.jobs.migrate.states.judge import StateReport

ReadState = Callable[[], "StateReport"]


def follow(read_state: ReadState, interval: float, reporter: Reporter) -> None:
    """Redraw on a terminal; else print a line, or a JSON document in a line, for each change.

    A change of ZooKeeper's lag alone prints nothing."""
    with closing(Stop()) as stop, stop_at_signals(stop):
        reports = _reports(read_state, interval, stop)
        if sys.stdout.isatty() and not reporter.json:
            _redraw(reports)
        else:
            _print_changes(reports, reporter)


def _reports(read_state: ReadState, interval: float, stop: Stop) -> Iterator[StateReport]:
    yield read_state()
    while not stop.wait(interval):
        yield read_state()


def _print_changes(reports: Iterator[StateReport], reporter: Reporter) -> None:
    shown: object = None
    for report in reports:
        change = (
            *(report.state, report.possible, report.is_certain, report.way_back),
            *(report.zk_brokers, report.waits_for),
        )
        if change == shown:
            continue
        shown = change
        if reporter.json:
            print(json_line({"at": now(), **state_document(report)}), flush=True)
        else:
            reporter.line(f"{now()} {state_line(report)}")


def _redraw(reports: Iterator[StateReport]) -> None:
    from rich.live import Live

    with Live(auto_refresh=False) as live:
        for report in reports:
            live.update(_table(report), refresh=True)


def _table(report: StateReport) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in (*state_fields(report), ("as of", now())):
        table.add_row(Text(f"{name}:", style="bold"), Text(printable(cell_text(value))))
    return table
