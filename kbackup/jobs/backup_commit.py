"""Committing a restore point, and what follows from it."""

from __future__ import annotations

from collections.abc import Sequence

from kbackup import __version__
from kbackup.archive import layout
from kbackup.archive.commit import publish, put_part, refresh_derived, totals
from kbackup.archive.derived import with_segments
from kbackup.archive.models import Manifest, dump, now
from kbackup.archive.segments import Segment, encode_segments
from kbackup.errors import KbackupError
from kbackup.jobs.backup_run import BackupReport, Captured, Read, Run
from kbackup.jobs.capture_settings import settings_warnings
from kbackup.jobs.hold_back import held_back
from kbackup.jobs.listen import Phases
from kbackup.jobs.plan import Plan, retention_loss
from kbackup.jobs.recover import Recovered
from kbackup.jobs.state import next_states


def commit(
    run: Run,
    captured: Captured,
    read: Read,
    recovered: Recovered,
) -> Manifest:
    """The commit; `run` stands at the new restore point then."""
    plan, groups, segments = captured.plan, captured.groups, read.segments
    losses = [*plan.losses, *(retention_loss(v.tp, v.start, v.end) for v in read.vanished)]
    not_carried = [f"group {group} is not carried: {why}" for group, why in groups.not_carried.items()]
    files = {
        layout.SEGMENTS: put_part(run.archive, run.seq, layout.SEGMENTS, encode_segments(segments)),
        layout.GROUPS: put_part(run.archive, run.seq, layout.GROUPS, dump(groups)),
        layout.METADATA: put_part(run.archive, run.seq, layout.METADATA, dump(captured.settings)),
    }
    manifest = Manifest(
        status="committed",
        archive_id=run.archive.info.id,
        seq=run.seq,
        parent=run.parent,
        run_id=run.run_id,
        tool=f"kbackup {__version__}",
        started_at=captured.started_at,
        committed_at=now(),
        cluster_id=run.cluster_id,
        isolation_level=run.options.isolation_level,
        topics=next_states(run.seq, plan, segments, read.lasts),
        losses=tuple(losses),
        warnings=(*plan.warnings, *recovered.warnings, *not_carried, *settings_warnings(captured.settings)),
        totals=totals(
            len(plan.topics), sum(len(t.partitions) for t in plan.topics), segments, len(groups.groups)
        ),
        files=files,
    )
    publish(run.archive, manifest, run.lease.check)
    run.refreshed, run.head, run.added = run.head, manifest, segments
    run.seq, run.groups, run.settings = manifest.seq + 1, captured.groups, captured.settings
    # as whoever begins anew would look for them: also what the newest restore point took over from
    run.unfinished = [intent for intent in run.unfinished if intent.seq > (manifest.parent or 0)]
    return manifest


def refresh(run: Run, phases: Phases) -> None:
    """Write what follows from the restore point just taken."""
    manifest = run.head
    assert manifest is not None  # noqa: S101 (it was just taken)
    try:
        with phases.step("refresh derived files"):
            touched = _touched(run.refreshed, manifest, run.added)
            if run.starts is None:
                run.starts = run.archive.starts(manifest)
            else:
                run.starts = with_segments(run.starts, run.added)
            refresh_derived(run.archive, manifest, touched, run.refreshed, run.lease.check, run.starts)
    except KbackupError as error:
        raise type(error)(
            f"restore point {manifest.seq} is committed, but not all derived files are refreshed: {error.message}",
            f"the next backup does that; {error.hint}",
        ) from error


def _touched(
    parent: Manifest | None, manifest: Manifest, segments: Sequence[Segment]
) -> set[tuple[str, int, int]]:
    """Partitions whose index changed: those with new segments, and those that are new to the archive."""
    before = {
        (t.name, t.incarnation, p.partition) for t in (parent.topics if parent else ()) for p in t.partitions
    }
    now_there = {(t.name, t.incarnation, p.partition) for t in manifest.topics for p in t.partitions}
    return {(s.topic, s.incarnation, s.partition) for s in segments} | (now_there - before)


def report(run: Run, manifest: Manifest, plan: Plan, phases: Phases) -> BackupReport:
    assert manifest.totals is not None  # noqa: S101 (a committed manifest has them)
    return BackupReport(
        restore_point=manifest.seq,
        parent=manifest.parent,
        committed_at=manifest.committed_at,
        archive=run.archive.store.url,
        totals=manifest.totals,
        topics=manifest.topics,
        losses=manifest.losses,
        warnings=manifest.warnings,
        held_back=len(held_back(plan)),
        seconds=phases.seconds,
    )
