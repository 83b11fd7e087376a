"""`kbackup mirror FILE --dry-run`: show what a mirror would do."""

from __future__ import annotations

from collections.abc import Iterable

from kbackup.cli.common.frame import Frame
from kbackup.cli.common.human import plural
from kbackup.cli.common.output import Reporter
from kbackup.cli.common.session import archive_store_at
from kbackup.errors import EXIT_OK
from kbackup.jobs.mirror.dry_run import DryRun, dry_run, dry_run_of_take
from kbackup.jobs.mirror.flow import Flow
from kbackup.jobs.mirror.properties import MirrorProperties
from kbackup.kafka.admin.cluster import Cluster


def show_dry_runs(
    frame: Frame, properties: MirrorProperties, flows: Iterable[Flow], *, take: bool, apply: bool
) -> int:
    """Show what a round of each flow would do, in the halves that are selected: `take`, `apply` or both."""
    runs: list[DryRun] = []
    for flow in flows:
        store = archive_store_at(frame, flow.archive_address())
        pairs = [pair for pair in properties.heartbeat_flows if take and pair.target == flow.source]
        if apply:
            target = Cluster(flow.client("target"), "target")
            target.connect()
            runs.append(dry_run(flow, store, target, pairs if flow.source_properties is not None else ()))
        else:
            runs.append(dry_run_of_take(flow, store, pairs))
        for warning in runs[-1].warnings:
            frame.reporter.warning(warning)
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
    if run.internal:
        reporter.line()
        reporter.table(
            ("internal topic", "cluster", "half", "state"),
            [(t.topic, t.cluster, t.half, _STATES[t.exists]) for t in run.internal],
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


_STATES = {None: "not asked", True: "is there", False: "is created"}


def _change(run: DryRun, remote: str) -> str:
    if run.created is None or run.grown is None:
        return _STATES[None]
    if remote in run.created:
        return _STATES[False]
    return "gets partitions" if remote in run.grown else _STATES[True]
