"""`kbackup mirror FILE`: run both halves of a mirror, or one of them."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kbackup.cli.common.frame import Frame, pass_frame
from kbackup.cli.common.key_options import key_option, options
from kbackup.cli.common.options import archive_option, common_options, s3_options, spark_options
from kbackup.cli.common.session import spark_session
from kbackup.cli.common.stop_signals import stop_at_signals
from kbackup.errors import EXIT_LOSS, EXIT_OK, UsageError
from kbackup.jobs.common.stop import Stop
from kbackup.metrics.registry import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from kbackup.jobs.backup.follow import FollowReport
    from kbackup.jobs.mirror.flow import Flow
    from kbackup.jobs.mirror.halves.apply import ApplyHalf
    from kbackup.jobs.mirror.halves.reports import ApplyReport
    from kbackup.jobs.mirror.halves.take import TakeHalf
    from kbackup.jobs.mirror.properties import MirrorProperties


@click.command("run")
@click.argument("file", type=click.Path(path_type=Path))
@options(
    click.option("--flow", "names", multiple=True, metavar="A->B", help="Use only this flow. [repeatable]"),
    click.option("--take", "take", is_flag=True, help="Run only the half that backs up sources."),
    click.option("--apply", "apply", is_flag=True, help="Run only the half that writes to targets."),
    click.option("--once", is_flag=True, help="Take one restore point of each source, apply it and end."),
    click.option("--dry-run", is_flag=True, help="Show what would be mirrored; change nothing."),
)
@common_options
@archive_option
@key_option("follow.interval_seconds", "--interval", default="5s")
@key_option("follow.max_age_seconds", "--max-age", default="the interval")
@key_option("follow.stale_after_seconds", "--stale-after")
@key_option("follow.listen", "--listen")
@key_option("restore.state", "--state")
@s3_options
@spark_options
@pass_frame
def command(
    frame: Frame, file: Path, names: tuple[str, ...], take: bool, apply: bool, once: bool, dry_run: bool
) -> int:
    """Run the flows of a MirrorMaker 2 properties FILE until stopped.

    The take half backs a source up into its archive. The apply half writes to a target, exactly once. Without --take
    and --apply, both run. `kbackup.archive` in FILE, or --archive, names the archives: `s3://bucket/{source}`.

    Ends with exit code 3 when records were lost, a source topic was recreated, or the target refused a topic, a config
    or an ACL.
    """
    if take and apply:
        raise UsageError("--take and --apply exclude each other", "give neither to run both halves")
    from kbackup.jobs.mirror.properties import load_flows

    properties = load_flows(file, archive=frame.config.archive)
    flows = properties.selected(names)
    for note in properties.notes:
        frame.reporter.note(note)
    for warning in properties.warnings:
        frame.reporter.warning(warning)
    if dry_run:
        from kbackup.cli.mirror.dry_run import show_dry_runs

        return show_dry_runs(frame, properties, flows, take=not apply, apply=not take)
    return _run(frame, properties, flows, once=once, take=not apply, apply=not take)


def _run(
    frame: Frame,
    properties: MirrorProperties,
    flows: tuple[Flow, ...],
    *,
    once: bool,
    take: bool,
    apply: bool,
) -> int:
    from kbackup.cli.mirror.halves import Building
    from kbackup.cli.mirror.round_reporters import show_reports

    with ExitStack() as stack:
        stop = stack.enter_context(closing(Stop()))
        spark = stack.enter_context(spark_session(frame.config, reporter=frame.reporter))
        last = stack.enter_context(closing(Stop())) if take and apply else stop
        building = Building(frame, properties, spark, stop, last, stack)
        halves = building.halves(flows, take=take, apply=apply)
        if once:
            stop.ask()
            last.ask()
            reports = {name: _counted(half)() for name, half in halves.items()}
        else:
            from kbackup.jobs.mirror.halves.apply import ApplyHalf
            from kbackup.jobs.mirror.halves.take import TakeHalf
            from kbackup.jobs.mirror.halves.together import run_together

            stack.enter_context(stop_at_signals(stop))
            takes = {name: _counted(half) for name, half in halves.items() if isinstance(half, TakeHalf)}
            applies = {name: _counted(half) for name, half in halves.items() if isinstance(half, ApplyHalf)}
            reports = run_together(takes, stop, applies, last)
    return EXIT_LOSS if show_reports(frame, reports) else EXIT_OK


def _counted(half: TakeHalf | ApplyHalf) -> Callable[[], FollowReport | ApplyReport]:
    """Return how to run a half so that metrics count for its archive."""

    def run() -> FollowReport | ApplyReport:
        with counted.of_archive(half.archive):
            return half.run()

    return run
