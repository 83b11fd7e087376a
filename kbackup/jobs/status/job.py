"""Find the status of an archive: read its newest reports, its lease and its tables, and judge them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Literal

from kbackup.archive import layout
from kbackup.archive.catalog.points import damaged_segments
from kbackup.archive.catalog.state import PointRow, RewrittenRow, State
from kbackup.archive.catalog.tables import fetch
from kbackup.archive.lease import is_held, read_lease
from kbackup.archive.models import load
from kbackup.archive.reader import Archive
from kbackup.archive.verify.findings import Verification, VerificationFinding
from kbackup.config.models import Backup
from kbackup.errors import CorruptError, NotFoundError
from kbackup.jobs.drill.report import CONCLUSIVE, DrillReport, list_drills, read_report
from kbackup.jobs.remains import Remains, ask_remains
from kbackup.jobs.retention import GRACE
from kbackup.jobs.status.findings import (
    RECENT_DAYS,
    Commands,
    DrillHistory,
    age_findings,
    damage_findings,
    drill_findings,
    erasure_findings,
    lease_findings,
    loss_findings,
    point_findings,
)
from kbackup.jobs.status.report import (
    LEVELS,
    ArchiveStatus,
    Growth,
    LastDrill,
    LastVerification,
    LeaseStatus,
    Level,
    NewestPoint,
    StatusFinding,
)
from kbackup.store.base import Store
from kbackup.util.system import in_threads
from kbackup.util.times import rfc3339, time_text

_THREADS = 4
_DRILLS = 10
"""Reports of drills that are read at most, to find one that compared records."""
_ASKED = 100
"""Objects with erased records that the store is asked for at most, those of the newest erasures."""
_BY_SIZE = re.compile(r"is missing|has [0-9]+ bytes, not ")
"""The messages of findings that need no reading: a missing file, or a file of another size."""


def archive_status(
    archive: Archive,
    rules: Backup,
    *,
    reports: Store | None = None,
    moment: datetime | None = None,
    options: Sequence[str] = (),
    servers: str = "",
) -> ArchiveStatus:
    """Return the status of an archive at a moment, by default now: one level from the age of its newest restore point,
    losses, damage, drills and the lease.

    `rules` are max_age, max_drill_age and allow_loss: with it, losses and unseen deletions are no findings. `reports`
    holds the reports of drills; by default, the archive does. `options` are those by which the commands of findings
    find the store, `servers` the brokers of the source, for Kafka's own tools.

    Reads a few small objects of the archive, whatever its size: no segments, no manifests but the newest if that has
    warnings, no cluster.
    """
    at = datetime.now(UTC) if moment is None else moment
    since = rfc3339(at - timedelta(days=RECENT_DAYS))
    state = archive.state
    drill_store = archive.store if reports is None else reports
    # Requests to the store wait beside each other.
    with ThreadPoolExecutor() as pool:
        verifying = pool.submit(_newest_verifications, archive.store, at)
        drilling = pool.submit(_read_drills, drill_store, at)
        leasing = pool.submit(_lease_status, archive.store)
        fetch(state.points, state.incarnations, state.losses)
    last = state.newest
    newest = None if last is None else _newest_point(last, at)
    losses = _recent_losses(archive, since)
    damaged = sorted(damaged_segments(state))
    verifications, damaged_reports = verifying.result()
    drills = drilling.result()
    damaged_reports += drills.damaged
    lease = leasing.result()
    origin = "" if state.origin is None else state.origin.archive
    commands = Commands(archive.store.url, options, origin, servers or "HOST:PORT")
    # The sort at the end is stable: of one level, findings stay in this order.
    findings: list[StatusFinding] = []
    findings += age_findings(newest, rules.max_age, at, lease, commands)
    if not rules.allow_loss:
        findings += loss_findings(losses, commands)
    findings += damage_findings(verifications, damaged, damaged_reports, commands)
    findings += drill_findings(drills, rules.max_drill_age, commands)
    findings += lease_findings(lease, commands)
    remains: Remains | None = None
    replaced = _replaced(state) if len(state.erased) else []
    if replaced:
        remains = ask_remains(archive.store, [row.key for row in replaced])
        deleted_from = _deleted_from(archive.store, state, replaced)
        findings += erasure_findings(state.erased_records, remains, deleted_from, commands)
    if last is not None and last.warnings:
        # The manifest is read only if the restore point has warnings: they are what could be found in it.
        findings += point_findings(archive, last, rules.allow_loss, commands)
    findings.sort(key=_severity, reverse=True)
    level: Level = findings[0].level if findings else "ok"
    verified = verifications[0] if verifications else None
    full_verifications = [verification for verification in verifications if verification.scope == "full"]
    fully_verified = full_verifications[0] if full_verifications else None
    growth = _growth_since(archive, since)
    return ArchiveStatus(
        archive=archive.store.url,
        archive_id=archive.info.id,
        at=rfc3339(at),
        level=level,
        findings=tuple(findings),
        newest=newest,
        max_age_seconds=rules.max_age,
        restore_points=len(archive.restore_points),
        losses=len(losses),
        damaged_points=len(damaged),
        verified=verified,
        fully_verified=fully_verified,
        drilled=_last_drill(drills.newest, at),
        fully_drilled=_last_drill(drills.conclusive, at),
        lease=lease,
        growth=growth,
        erased=state.erased_records,
        remains=remains,
    )


def _replaced(state: State) -> list[RewrittenRow]:
    """Return the segments with erased records that the newest rewrites have replaced, and that nothing refers to."""
    listed = set(state.segments.columns("key")[0])
    # New rows come last.
    replaced = [row for row in state.rewrites if row.key not in listed and _has_erased(state, row)]
    return replaced[-_ASKED:]


def _deleted_from(store: Store, state: State, replaced: Sequence[RewrittenRow]) -> str:
    """Return from when on a sweep deletes all segments that were replaced: it goes by the time of their catalog."""
    newest = max(row.catalog for row in replaced)
    if state.origin is not None or state.rewrites_before:
        # The numbers may be those of the archive that this one is, or was, a copy of. It was not later than now.
        newest = state.number
    try:
        committed = store.stat(layout.catalog_key(newest)).modified
    except NotFoundError:
        # A sweep deletes old catalogs first: the grace time of this one is over.
        return "now"
    return time_text(round((committed + GRACE.total_seconds()) * 1000))


def _has_erased(state: State, row: RewrittenRow) -> bool:
    """Return whether a segment that was replaced has records that were erased, by then or later."""
    return state.erased_in(row.incarnation_partition, row.first, row.last, row.key) is not None


def _severity(finding: StatusFinding) -> int:
    return LEVELS.index(finding.level)


def _growth_since(archive: Archive, since: str) -> Growth:
    """Return what the restore points that were committed at `since` or later added."""
    count = records = size = stored_size = 0
    for point in archive.restore_points:
        # Times of one form, all in UTC, compare as texts.
        if point.committed_at >= since:
            count += 1
            records += point.records
            size += point.bytes
            stored_size += point.stored_bytes
    return Growth(days=RECENT_DAYS, restore_points=count, records=records, bytes=size, stored_bytes=stored_size)


def _newest_point(point: PointRow, at: datetime) -> NewestPoint:
    has_schemas = any(key.endswith(f"/{layout.SCHEMAS}") for key in point.documents)
    age = _age_at(at, point.committed_at)
    return NewestPoint(point.number, point.committed_at, age, has_schemas)


def _age_at(moment: datetime, time: str) -> float:
    """Return the seconds from `time` (RFC 3339) to `moment`; 0 for a later time."""
    return max(0.0, (moment - datetime.fromisoformat(time)).total_seconds())


def _recent_losses(archive: Archive, since: str) -> list[str]:
    """Return the kinds of the losses that runs have found since then, one for each loss. The losses of an expired
    restore point count as losses of the next one."""
    last_old = 0
    for point in archive.restore_points:
        if point.committed_at >= since:
            break
        last_old = point.number
    else:
        return []  # no run has committed since then
    # Damage is a finding of its own: no run lost these records, the store did.
    losses = []
    for row in archive.state.losses.dicts():
        if row["kind"] != "damaged" and row["point"] > last_old:
            losses.append(row["kind"])
    return losses


def _newest_verifications(store: Store, moment: datetime) -> tuple[list[LastVerification], list[CorruptError]]:
    """Return the newest verification of each scope, the newest first, and the errors of damaged records."""
    # An id begins with its time, and keys are listed in order: the last one of a scope is its newest.
    newest: dict[str, str] = {}
    for entry in store.list(layout.VERIFICATIONS):
        parsed = layout.parse_verification_key(entry.key)
        if parsed is not None:
            newest[parsed[1]] = entry.key

    def read(key: str) -> LastVerification | CorruptError:
        try:
            record = load(Verification, store.get(key), key)
        except CorruptError as error:
            return error
        # A record names some of its findings and counts all. Those without a name may need reading.
        unnamed = max(0, record.finding_count - len(record.findings))
        known_to_need_read = sum(_needs_read(finding) for finding in record.findings)
        unmendable = sum(finding.file.startswith(layout.BESIDE) for finding in record.findings)
        age = _age_at(moment, record.ended_at)
        return LastVerification(
            id=record.verification_id,
            scope=record.scope,
            ended_at=record.ended_at,
            age_seconds=age,
            findings=record.finding_count,
            need_read=known_to_need_read + unnamed,
            unmendable=unmendable,
        )

    newest_keys = sorted(newest.values(), reverse=True)
    whole: list[LastVerification] = []
    damaged: list[CorruptError] = []
    for result in in_threads(read, newest_keys, _THREADS):
        # A damaged record must not hide the others, and is named by a finding.
        if isinstance(result, CorruptError):
            damaged.append(result)
        else:
            whole.append(result)
    return whole, damaged


def _needs_read(finding: VerificationFinding) -> bool:
    """Return whether a finding is of a segment whose files exist and have the right sizes."""
    place = layout.parse_topic_key(finding.file)
    is_segment = place is not None and layout.parse_segment(place[1]) is not None
    return is_segment and not _BY_SIZE.match(finding.message)


def _read_drills(reports: Store, moment: datetime) -> DrillHistory:
    """Read the reports of drills, the newest first, until one that compared records.

    A drill that could not run, or that was interrupted, says nothing: what the one before it said still counts."""
    newest: DrillReport | None = None
    conclusive: DrillReport | None = None
    conclusive_age = 0.0
    damaged: list[CorruptError] = []
    oldest_age = 0.0
    read = 0
    url = f"{reports.url.rstrip('/')}/{layout.DRILLS.rstrip('/')}"
    for stored in list_drills(reports)[:_DRILLS]:
        try:
            report = read_report(reports, stored.drill_id)
        except CorruptError as error:
            damaged.append(error)
            continue
        read += 1
        oldest_age = _age_at(moment, report.ended_at)
        newest = newest or report  # the newest one that can be read, whatever it says
        if report.outcome in CONCLUSIVE:
            conclusive = report
            conclusive_age = oldest_age
            break
    return DrillHistory(
        url=url,
        newest=newest,
        conclusive=conclusive,
        conclusive_age=conclusive_age,
        read=read,
        oldest_age=oldest_age,
        damaged=tuple(damaged),
    )


def _last_drill(report: DrillReport | None, moment: datetime) -> LastDrill | None:
    if report is None:
        return None
    return LastDrill(
        id=report.drill_id,
        result=report.outcome,
        ended_at=report.ended_at,
        age_seconds=_age_at(moment, report.ended_at),
        restore_point=report.restore_point,
    )


def _lease_status(store: Store) -> LeaseStatus | None:
    """Return the lease of the writer that holds the archive, or that ended without a release; None without one."""
    try:
        lease, _ = read_lease(store)
    except NotFoundError:
        return None
    if lease.released:
        return None
    state: Literal["alive", "dead"] = "alive" if is_held(lease) else "dead"
    return LeaseStatus(
        state=state,
        command=lease.command,
        host=lease.host,
        pid=lease.pid,
        acquired_at=lease.acquired_at,
        expires_at=lease.expires_at,
    )
