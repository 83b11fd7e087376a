"""Committing a restore point, and what follows from it."""

from __future__ import annotations

from kbackup.archive import layout
from kbackup.archive.catalog.operations import add_point, end_run, label_point
from kbackup.archive.catalog.state import State
from kbackup.archive.models import Capture, Loss, Manifest
from kbackup.archive.new_point import Draft, check_written, new_point, put_manifest
from kbackup.errors import KbackupError
from kbackup.jobs.backup.hold_back import held_back
from kbackup.jobs.backup.missing_records import is_compacted
from kbackup.jobs.backup.next_state import next_states, same_groups, same_settings
from kbackup.jobs.backup.plan import retention_loss
from kbackup.jobs.backup.run import BackupReport, Captured, Read, Run
from kbackup.jobs.capture.settings import settings_warnings
from kbackup.metrics.events import Phases
from kbackup.util.times import now


def commit(
    run: Run,
    captured: Captured,
    read: Read,
    last: bool,
) -> Manifest:
    """Commit the restore point of a capture. Afterwards `run` continues from it, and has ended if this is the `last`
    restore point."""
    plan, groups, segments = captured.plan, captured.groups, read.segments
    writing, number = run.writing, run.writing.next_point
    check_written(writing.store, segments)
    losses: list[Loss] = [*plan.losses, *(retention_loss(v.tp, v.start, v.end) for v in read.vanished)]
    not_carried = [
        f"group {group} is not in this restore point: {why}" for group, why in groups.not_carried.items()
    ]
    compacted = {t.name for t in captured.settings.topics if is_compacted(t.configs.get("cleanup.policy"))}
    topics = next_states(number, plan, segments, read.lasts, compacted)
    older = {t.captured for t in topics} - {number}
    draft = Draft(
        number=number,
        started_at=captured.started_at,
        committed_at=now(),
        cluster_id=run.cluster_id,
        isolation_level=run.options.isolation_level,
        topics=topics,
        segments=segments,
        losses=losses,
        warnings=(*plan.warnings, *not_carried, *settings_warnings(captured.settings)),
        captures=(
            *(c for c in (run.head.captures if run.head is not None else ()) if c.number in older),
            _capture(run, captured, number),
        ),
        groups=len(groups.groups),
        captured_topics=len(plan.topics),
        captured_partitions=sum(len(t.partitions) for t in plan.topics),
    )
    manifest, ref = put_manifest(writing, draft)
    new = new_point(manifest, ref, segments)

    def operation(state: State) -> State:
        added = add_point(state, writing.run, new)
        added = label_point(added, run.label, number) if run.label else added
        return end_run(added, writing.run) if last else added

    records = manifest.totals.records
    writing.commit(operation, "backup", f"restore point {number}: {records} records added")
    run.head, run.groups, run.settings = manifest, captured.groups, captured.settings
    run.interrupted = False
    return manifest


def _capture(run: Run, captured: Captured, number: int) -> Capture:
    """Write the documents of the capture. A document that equals the newest restore point's is not written again."""
    old = (
        next((c for c in run.head.captures if c.number == run.head.number), None)
        if run.head is not None
        else None
    )
    writing = run.writing
    if old is not None and run.groups is not None and same_groups(run.groups, captured.groups):
        groups = old.groups
    else:
        groups = writing.put_document(number, layout.GROUPS, captured.groups)
    if old is not None and run.settings is not None and same_settings(run.settings, captured.settings):
        metadata = old.metadata
    else:
        metadata = writing.put_document(number, layout.METADATA, captured.settings)
    return Capture(number=number, started_at=captured.started_at, groups=groups, metadata=metadata)


def refresh(run: Run, phases: Phases) -> None:
    """Write what follows from the restore point just taken."""
    try:
        with phases.step("refresh derived files"):
            run.writing.refresh_derived()
    except KbackupError as error:
        raise type(error)(
            f"restore point {run.parent} is committed, but not all derived files are written: {error.message}",
            f"the next backup writes them; {error.hint}",
        ) from error


def report(run: Run, manifest: Manifest, captured: Captured, phases: Phases) -> BackupReport:
    return BackupReport(
        restore_point=manifest.number,
        parent=manifest.previous,
        committed_at=manifest.committed_at,
        archive=run.archive.store.url,
        totals=manifest.totals,
        topics=manifest.topics,
        losses=manifest.losses,
        warnings=manifest.warnings,
        held_back=len(held_back(captured.plan)),
        damage=captured.damage,
        seconds=phases.seconds,
    )
