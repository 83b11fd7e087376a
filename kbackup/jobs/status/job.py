"""The status of an archive: one level from the age of its newest restore point, losses, damage, drills and the lease.

Reads a few small objects of the archive, whatever its size: no segments, no manifests, no cluster.
"""

from __future__ import annotations

from bisect import bisect_left
from datetime import UTC, datetime, timedelta

from kbackup.archive.lease.hold import is_held, read_lease
from kbackup.archive.query.points import damaged_segments
from kbackup.archive.reader import Archive
from kbackup.errors import CorruptError, NotFoundError
from kbackup.jobs.status.findings import (
    age_findings,
    damage_findings,
    drill_findings,
    lease_findings,
    loss_findings,
)
from kbackup.jobs.status.report import (
    LEVELS,
    ArchiveStatus,
    Growth,
    LeaseStatus,
    NewestPoint,
)
from kbackup.jobs.status.reports import age_at, newest_drill, newest_verifications
from kbackup.metrics.registry import counted
from kbackup.store.base import Store
from kbackup.util.times import ms_of, rfc3339

RECENT_DAYS = 7
"""Losses found and growth are those of the last seven days."""


def archive_status(
    archive: Archive,
    max_age_seconds: float,
    *,
    reports: Store | None = None,
    allow_loss: bool = False,
    moment: datetime | None = None,
) -> ArchiveStatus:
    """Return the status of an archive at a moment, by default now.

    `reports` holds the reports of drills; by default, the archive does. With `allow_loss`, losses are counted and are
    no findings.
    """
    at = moment if moment is not None else datetime.now(UTC)
    newest = _newest_point(archive, at)
    losses = _recent_losses(archive, at)
    damaged = sorted(damaged_segments(archive.state))
    verifications, damaged_reports = newest_verifications(archive.store, at)
    drilled = None
    try:
        drilled = newest_drill(reports if reports is not None else archive.store, at)
    except CorruptError as error:
        damaged_reports.append(error)
    lease = _lease_status(archive.store)
    findings = (
        *age_findings(newest, max_age_seconds, at, lease),
        *([] if allow_loss else loss_findings(losses, RECENT_DAYS)),
        *damage_findings(verifications, damaged, [error.message for error in damaged_reports]),
        *drill_findings(drilled),
        *lease_findings(lease),
    )
    return ArchiveStatus(
        archive=archive.store.url,
        archive_id=archive.info.id,
        at=rfc3339(at),
        level=max((f.level for f in findings), key=LEVELS.index, default="ok"),
        findings=tuple(sorted(findings, key=lambda f: -LEVELS.index(f.level))),
        newest=newest,
        max_age_seconds=max_age_seconds,
        restore_points=len(archive.restore_points),
        losses=losses,
        damaged_points=len(damaged),
        verified=verifications[0] if verifications else None,
        fully_verified=next((v for v in verifications if v.scope == "full"), None),
        drilled=drilled,
        lease=lease,
        growth=_growth(archive, at),
    )


def count_status(status: ArchiveStatus) -> None:
    """Count a status, for Prometheus."""
    counted.put("kbackup_status_level", LEVELS.index(status.level))
    if status.newest is not None:
        counted.put("kbackup_restore_point", status.newest.number)
        counted.put("kbackup_restore_point_timestamp_seconds", ms_of(status.newest.committed_at) / 1000)


def _newest_point(archive: Archive, at: datetime) -> NewestPoint | None:
    newest = archive.state.newest
    if newest is None:
        return None
    return NewestPoint(newest.number, newest.committed_at, age_at(at, newest.committed_at))


def _recent_losses(archive: Archive, at: datetime) -> int:
    """Count the losses that runs of the last days found. An expired restore point's losses count as the next one's."""
    points = archive.restore_points
    numbers = [point.number for point in points]
    since = rfc3339(at - timedelta(days=RECENT_DAYS))
    first_recent = next((p.number for p in points if p.committed_at >= since), None)
    if first_recent is None:
        return 0
    before = bisect_left(numbers, first_recent)
    last_old = numbers[before - 1] if before else 0
    return sum(row["kind"] != "damaged" and row["point"] > last_old for row in archive.state.losses.dicts())


def _lease_status(store: Store) -> LeaseStatus | None:
    try:
        lease, _ = read_lease(store)
    except NotFoundError:
        return None
    if lease.released:
        return None
    return LeaseStatus(
        state="alive" if is_held(lease) else "dead",
        command=lease.command,
        host=lease.host,
        pid=lease.pid,
        acquired_at=lease.acquired_at,
        expires_at=lease.expires_at,
    )


def _growth(archive: Archive, at: datetime) -> Growth:
    since = rfc3339(at - timedelta(days=RECENT_DAYS))
    points = [p for p in archive.restore_points if p.number > 1 and p.committed_at >= since]
    return Growth(
        days=RECENT_DAYS,
        restore_points=len(points),
        records=sum(p.records for p in points),
        bytes=sum(p.bytes for p in points),
        stored_bytes=sum(p.stored_bytes for p in points),
    )
