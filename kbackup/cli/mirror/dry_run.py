"""`kbackup mirror FILE --dry-run`."""

from __future__ import annotations

from collections.abc import Iterable

from kbackup.cli.frame import Frame
from kbackup.cli.human import plural
from kbackup.cli.output import Reporter
from kbackup.cli.session import archive_at
from kbackup.errors import EXIT_OK
from kbackup.jobs.mirror.dry_run import DryRun, dry_run
from kbackup.jobs.mirror.flow import Flow
from kbackup.kafka.admin import Cluster


def show_dry_runs(frame: Frame, flows: Iterable[Flow]) -> int:
    """Show what a round of each flow would do."""
    runs: list[DryRun] = []
    for flow in flows:
        target = Cluster(flow.client("target"), "target")
        target.connect()
        runs.append(dry_run(flow, archive_at(frame, flow.archive_address()), target))
        _show(runs[-1], frame.reporter)
    frame.reporter.document({"flows": runs})
    return EXIT_OK


def _show(run: DryRun, reporter: Reporter) -> None:
    seen = f"restore point {run.restore_point}" if run.restore_point else "the source as it is now"
    reporter.line(f"flow {run.flow}, by {seen} ({run.archive}):")
    reporter.table(
        ("topic", "remote topic", "partitions", "target"),
        [(t.source, t.remote, t.partitions, _change(run, t.remote)) for t in run.topics],
    )
    if run.skipped:
        reporter.line()
        reporter.table(("not mirrored", "why"), [(s.topic, s.reason) for s in run.skipped])
    if run.configs:
        reporter.line()
        reporter.table(
            ("remote topic", "config", "becomes"),
            [
                (topic, name, "the default" if value is None else value)
                for topic, changes in run.configs.items()
                for name, value in changes.items()
            ],
        )
    if run.acls:
        reporter.line(f"{plural(len(run.acls), 'ACL')} would be created:")
        for acl in run.acls:
            reporter.line(f"  {acl}")
    reporter.line()


def _change(run: DryRun, remote: str) -> str:
    if remote in run.created:
        return "is created"
    return "gets partitions" if remote in run.grown else "is there"
