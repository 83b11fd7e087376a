"""`kbackup migrate status`: show the state of a migration."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from kbackup.cli.common.frame import Frame, pass_frame
from kbackup.cli.common.options import common_options, source_options
from kbackup.cli.migrate.following import follow as follow_states
from kbackup.cli.migrate.options import metrics_option
from kbackup.cli.migrate.state_text import show_state, state_document
from kbackup.errors import EXIT_LOSS, EXIT_OK

if TYPE_CHECKING:
    from kbackup.jobs.migrate.states.judge import StateReport
    from kbackup.jobs.migrate.states.witnesses import Witnesses

_PAUSE = 2.0  # s between two looks at a ZooKeeper that is behind


@click.command("status")
@common_options
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
@pass_frame
def command(frame: Frame, metrics_urls: tuple[str, ...], follow: bool, interval: float) -> int:
    """Show the state of a migration from ZooKeeper to KRaft, and the next step.

    Asks three witnesses: metrics of controllers (--metrics-url), znodes (zookeeper.connect in [source]) and a
    controller's metadata log (metadata.log.dir in [source]). Ends with exit code 3 when they disagree, or when the
    migration waits for something, such as a broker, which it names.

    --follow redraws a terminal; elsewhere it prints a line or a JSON document for each change.
    """
    from kbackup.jobs.migrate.states.judge import judge
    from kbackup.jobs.migrate.states.metrics import shown_url
    from kbackup.jobs.migrate.states.read import read_witnesses

    for url in metrics_urls:
        shown_url(url)  # refuses an invalid URL before the first read

    earlier: Witnesses | None = None

    def read_state() -> StateReport:
        nonlocal earlier
        witnesses, before = read_witnesses(frame.config.sources, metrics_urls), earlier
        earlier = witnesses
        return judge(witnesses, before)

    if follow:
        follow_states(read_state, interval, frame.reporter)
        return EXIT_OK
    report = read_state()
    if report.lag:  # it may be catching up: a second look shows whether it does
        time.sleep(_PAUSE)
        report = read_state()
    show_state(report, frame.reporter)
    frame.reporter.document(state_document(report))
    return EXIT_LOSS if report.disagreements or report.waits_for else EXIT_OK
