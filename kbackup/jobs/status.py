"""The status of an archive as a value: level, findings, and the figures behind them. Times are RFC 3339 in UTC."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from kbackup.archive import layout
from kbackup.archive.catalog.points import damaged_segments
from kbackup.archive.catalog.state import PointRow
from kbackup.archive.catalog.tables import fetch
from kbackup.archive.deletions import unseen_warnings
from kbackup.archive.lease import is_held, read_lease
from kbackup.archive.models import HangingTransaction, Manifest, Schemas, abort_command, load
from kbackup.archive.reader import Archive
from kbackup.archive.schemas import NOT_READ, SchemaIndex, unknown_ids
from kbackup.archive.uncovered_schemas import uncovered
from kbackup.archive.verify.findings import Scope, Verification, VerificationFinding
from kbackup.config.models import Backup
from kbackup.errors import CorruptError, NotFoundError
from kbackup.jobs.drill.report import Result, list_drills, read_report
from kbackup.metrics.registry import counted
from kbackup.store.base import Store
from kbackup.util.system import in_threads
from kbackup.util.text import human_size, join_names, plural
from kbackup.util.times import duration_text, ms_of, rfc3339

Level = Literal["ok", "warning", "critical"]
Subject = Literal["age", "losses", "damage", "drill", "lease", "schemas", "deletions", "transactions"]
"""What a finding is about. Monitors match these words in --json."""
LEVELS: tuple[Level, ...] = ("ok", "warning", "critical")
"""From the best to the worst."""


@dataclass(frozen=True, slots=True)
class StatusFinding:
    """A reason why an archive needs attention. `command` shows the cause or removes it."""

    level: Literal["warning", "critical"]
    subject: Subject
    message: str
    command: str


@dataclass(frozen=True, slots=True)
class NewestPoint:
    """The newest restore point. `age_seconds` counts from its commit."""

    number: int
    committed_at: str
    age_seconds: float
    schemas: bool = False
    """Whether it has schemas of a registry."""


@dataclass(frozen=True, slots=True)
class LastVerification:
    """A recorded verification, with the number of its `findings`. `need_read` of them are of segments whose damage only
    reading shows; `unmendable` of them are of files that a repair can't write anew."""

    id: str
    scope: Scope
    ended_at: str
    age_seconds: float
    findings: int
    need_read: int = 0
    unmendable: int = 0


@dataclass(frozen=True, slots=True)
class LastDrill:
    """The newest drill. `restore_point` is what it restored; 0 if the drill ended before that was known."""

    id: str
    result: Result
    ended_at: str
    age_seconds: float
    restore_point: int


@dataclass(frozen=True, slots=True)
class LeaseStatus:
    """The lease of a writer: `alive` while a writer renews it, `dead` where the writer ended without a release."""

    state: Literal["alive", "dead"]
    command: str
    host: str
    pid: int
    acquired_at: str
    expires_at: str


@dataclass(frozen=True, slots=True)
class Growth:
    """What the restore points of the last `days` added together. Restore point 1 added the whole cluster."""

    days: int
    restore_points: int
    records: int
    bytes: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class ArchiveStatus:
    """The status of an archive at the time `at`.

    `newest` is null without restore points. `losses` counts losses that runs of the last seven days found.
    `damaged_points` counts restore points that lack damaged segments. `verified` is the newest recorded verification,
    `fully_verified` the newest that read every record. `lease` is null if no writer holds or left one.
    """

    archive: str
    archive_id: str
    at: str
    level: Level
    findings: tuple[StatusFinding, ...]
    newest: NewestPoint | None
    max_age_seconds: float
    restore_points: int
    losses: int
    damaged_points: int
    verified: LastVerification | None
    fully_verified: LastVerification | None
    drilled: LastDrill | None
    lease: LeaseStatus | None
    growth: Growth


RECENT_DAYS = 7
"""Losses and growth count the last seven days."""
_THREADS = 4
_BY_SIZE = re.compile(r"is missing|has [0-9]+ bytes, not ")
"""The messages of findings that need no reading: a missing file, or a file of another size."""
_FOLLOWERS = ("kbackup backup --follow", "kbackup mirror")
_SKEW = timedelta(minutes=5)
"""Clocks may differ by this much before a restore point counts as one of the future."""
_NAMED = 5
"""Things that a message names at most."""
_LONG = 3600.0
"""Seconds after which an open transaction is a finding."""


def archive_status(
    archive: Archive, rules: Backup, *, reports: Store | None = None, moment: datetime | None = None
) -> ArchiveStatus:
    """Return the status of an archive at a moment, by default now: one level from the age of its newest restore point,
    losses, damage, drills and the lease.

    `rules` are max_age, max_drill_age and allow_loss: with it, losses and unseen deletions are no findings. `reports`
    holds the reports of drills; by default, the archive does. Reads a few small objects of the archive, whatever its
    size: no segments, no manifests but the newest if that has warnings, no cluster.
    """
    at = moment if moment is not None else datetime.now(UTC)
    since = rfc3339(at - timedelta(days=RECENT_DAYS))
    state = archive.state
    drill_store = reports if reports is not None else archive.store
    # Requests to the store wait beside each other.
    with ThreadPoolExecutor() as pool:
        verifying = pool.submit(_newest_verifications, archive.store, at)
        drilling = pool.submit(_newest_drill, drill_store, at)
        leasing = pool.submit(_lease_status, archive.store)
        fetch(state.points, state.incarnations, state.losses)
    last = state.newest
    newest = _newest_point(last, at) if last is not None else None
    losses = _recent_losses(archive, since)
    damaged = sorted(damaged_segments(state))
    verifications, damaged_reports = verifying.result()
    drilled = drilling.result()
    lease = leasing.result()
    if isinstance(drilled, CorruptError):
        damaged_reports.append(drilled)
        drilled = None
    # The sort at the end is stable: of one level, findings stay in this order.
    findings: list[StatusFinding] = []
    findings += _age_findings(newest, rules.max_age, at, lease)
    if not rules.allow_loss:
        findings += _loss_findings(losses)
    findings += _damage_findings(verifications, damaged, damaged_reports)
    findings += _drill_findings(drilled, rules.max_drill_age)
    findings += _lease_findings(lease)
    if last is not None and last.warnings:
        # The manifest is read only if the restore point has warnings: they are what could be found in it.
        findings += _point_findings(archive, last, rules.allow_loss)
    findings.sort(key=_severity, reverse=True)
    level: Level = findings[0].level if findings else "ok"
    full_verifications = [verification for verification in verifications if verification.scope == "full"]
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
        losses=losses,
        damaged_points=len(damaged),
        verified=verifications[0] if verifications else None,
        fully_verified=full_verifications[0] if full_verifications else None,
        drilled=drilled,
        lease=lease,
        growth=growth,
    )


def _severity(finding: StatusFinding) -> int:
    return LEVELS.index(finding.level)


def _growth_since(archive: Archive, since: str) -> Growth:
    """Return what the restore points that were committed at `since` or later added."""
    added = [point for point in archive.restore_points if point.committed_at >= since]
    records = sum(point.records for point in added)
    size = sum(point.bytes for point in added)
    stored_size = sum(point.stored_bytes for point in added)
    return Growth(RECENT_DAYS, len(added), records, size, stored_size)


def _newest_point(point: PointRow, at: datetime) -> NewestPoint:
    has_schemas = any(key.endswith(f"/{layout.SCHEMAS}") for key in point.documents)
    return NewestPoint(point.number, point.committed_at, _age_at(at, point.committed_at), has_schemas)


def _age_at(moment: datetime, time: str) -> float:
    """Return the seconds from `time` (RFC 3339) to `moment`; 0 for a later time."""
    return max(0.0, (moment - datetime.fromisoformat(time)).total_seconds())


def _recent_losses(archive: Archive, since: str) -> int:
    """Count the losses that runs have found since then. The losses of an expired restore point count as losses of the
    next one."""
    last_old = 0
    for point in archive.restore_points:
        if point.committed_at >= since:
            break
        last_old = point.number
    else:
        return 0  # no run has committed since then
    losses = 0
    for row in archive.state.losses.dicts():
        if row["kind"] != "damaged" and row["point"] > last_old:
            losses += 1
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
    results = in_threads(read, newest_keys, _THREADS)
    whole = [result for result in results if isinstance(result, LastVerification)]
    damaged = [result for result in results if isinstance(result, CorruptError)]
    return whole, damaged


def _needs_read(finding: VerificationFinding) -> bool:
    """Return whether a finding is of a segment whose files exist and have the right sizes."""
    place = layout.parse_topic_key(finding.file)
    is_segment = place is not None and layout.parse_segment(place[1]) is not None
    return is_segment and not _BY_SIZE.match(finding.message)


def _newest_drill(state: Store, moment: datetime) -> LastDrill | CorruptError | None:
    """Return the drill whose report was stored last, or the error of a damaged report."""
    drills = list_drills(state)
    if not drills:
        return None
    try:
        report = read_report(state, drills[0].drill_id)
    except CorruptError as error:
        return error
    age = _age_at(moment, report.ended_at)
    return LastDrill(report.drill_id, report.result, report.ended_at, age, report.restore_point)


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


# The findings of a status: each names what is wrong, and the command that shows or mends it. Only `_point_findings`
# reads the archive.


def _age_findings(
    newest: NewestPoint | None, max_age: float, at: datetime, lease: LeaseStatus | None
) -> Iterator[StatusFinding]:
    """Yield findings if the newest restore point is too old, of the future, or missing. While a follower holds the
    lease, the age is a warning: it makes no restore point as long as nothing is new."""
    if newest is None:
        yield StatusFinding("critical", "age", "the archive has no restore point", "kbackup backup")
        return
    point = f"the newest restore point, {newest.number}"
    if newest.committed_at > rfc3339(at + _SKEW):
        message = f"{point}, is of {newest.committed_at}, later than this machine's clock"
        yield StatusFinding("warning", "age", message, "kbackup list")
    if newest.age_seconds <= max_age:
        return
    message = f"{point}, is {duration_text(newest.age_seconds)} old; backup.max_age is {duration_text(max_age)}"
    if lease is not None and lease.state == "alive" and lease.command.startswith(_FOLLOWERS):
        message += f"; {lease.command} on {lease.host} runs and found nothing new, or its rounds fail: see its log"
        yield StatusFinding("warning", "age", message, "kbackup check")
    else:
        yield StatusFinding("critical", "age", message, "kbackup backup")


def _loss_findings(losses: int) -> Iterator[StatusFinding]:
    if losses:
        message = f"backups of the last {RECENT_DAYS} days found {_losses(losses)} of records"
        yield StatusFinding("warning", "losses", message, "kbackup info")


def _losses(count: int) -> str:
    return "1 loss" if count == 1 else f"{count:,} losses"


def _damage_findings(
    verifications: Sequence[LastVerification], damaged: Sequence[int], reports: Sequence[CorruptError]
) -> Iterator[StatusFinding]:
    """Yield findings of damage that verifications found or that restore points list as `damaged`.

    `verifications` has the newest verification of each scope, the newest first. A full verification makes all earlier
    ones obsolete. `reports` are the errors of damaged reports of verifications and drills.
    """
    for error in reports:
        yield StatusFinding("critical", "damage", error.message, "kbackup verify")
    for verification in verifications:
        mendable = verification.findings - verification.unmendable
        of = f"the {verification.scope} verification of {verification.ended_at} has"
        if mendable:
            message = f"{of} {plural(mendable, 'finding')}; repair the archive, then verify it again"
            command = "kbackup repair --read-data" if verification.need_read else "kbackup repair"
            yield StatusFinding("critical", "damage", message, command)
        if verification.unmendable:
            count = plural(verification.unmendable, "finding")
            message = (
                f"{of} {count} that no repair can mend, of restores, drills, "
                "verifications or mirrors; verify names the files: take each from another copy or delete it"
            )
            yield StatusFinding("critical", "damage", message, "kbackup verify")
        if verification.scope == "full":
            break
    if damaged:
        noun = "restore point lacks" if len(damaged) == 1 else "restore points lack"
        numbers = [str(number) for number in damaged]
        named = join_names(numbers, _NAMED)
        message = f"{len(damaged):,} {noun} damaged segments: {named}"
        yield StatusFinding("warning", "damage", message, "kbackup list")


def _drill_findings(drilled: LastDrill | None, max_drill_age: float) -> Iterator[StatusFinding]:
    """Yield a finding if the newest drill failed or is old. An archive that never had a drill is no finding."""
    if drilled is not None and drilled.result == "failed":
        message = f"drill {drilled.id} failed: restore point {drilled.restore_point} may not be restorable"
        yield StatusFinding("critical", "drill", message, "kbackup drill")
    elif drilled is not None and drilled.age_seconds > max_drill_age:
        age = duration_text(drilled.age_seconds)
        limit = duration_text(max_drill_age)
        message = f"the newest drill, {drilled.id}, is {age} old; backup.max_drill_age is {limit}"
        yield StatusFinding("warning", "drill", message, "kbackup drill")


def _lease_findings(lease: LeaseStatus | None) -> Iterator[StatusFinding]:
    """Yield a finding of a writer that ended without releasing its lease."""
    if lease is not None and lease.state == "dead":
        message = (
            f"{lease.command} on {lease.host} (pid {lease.pid}) began at {lease.acquired_at} and ended without "
            "releasing its lease; the next writer takes it over"
        )
        yield StatusFinding("warning", "lease", message, "kbackup unlock")


def _point_findings(archive: Archive, last: PointRow, allow_loss: bool) -> Iterator[StatusFinding]:
    """Yield findings of the newest restore point: schemas that it could not get, records whose schema nobody has,
    deletions that compaction may have removed unseen, transactions that are open for long, and damaged documents."""
    try:
        newest = archive.manifest(last)
        schemas = archive.schemas(newest)
    except CorruptError as error:
        yield StatusFinding("critical", "damage", error.message, "kbackup verify")
        return
    for warning in newest.warnings:
        if warning.startswith(NOT_READ):
            yield StatusFinding("warning", "schemas", warning, "kbackup check")
    if schemas is not None:  # without a registry in the configuration nobody asked for schemas
        yield from _schema_findings(newest, schemas)
    if not allow_loss:
        for warning in unseen_warnings(newest.topics):
            yield StatusFinding("warning", "deletions", warning, "kbackup backup --recheck-compacted")
    if newest.transactions is not None:
        yield from _transaction_findings(newest.committed_at, newest.transactions.open)


def _schema_findings(newest: Manifest, schemas: Schemas) -> Iterator[StatusFinding]:
    """Yield findings of records whose schemas the registry does not have, or does not cover."""
    unknown = unknown_ids(newest.topics, SchemaIndex(schemas))
    if unknown:
        names = [f"{each.id} in {each.part}s of {each.topic}" for each in unknown]
        message = f"records carry schemas that the registry does not have: {join_names(names, _NAMED)}"
        yield StatusFinding("warning", "schemas", message, "kbackup schemas show")
    for message in uncovered(newest.topics, schemas):
        yield StatusFinding("warning", "schemas", message, "kbackup schemas show")


def _transaction_findings(committed_at: str, transactions: Iterable[HangingTransaction]) -> Iterator[StatusFinding]:
    """Yield a finding for each transaction that was open for long when the restore point was committed."""
    for transaction in transactions:
        seconds = (ms_of(committed_at) - transaction.timestamp) / 1000
        if seconds < _LONG or transaction.producer_id < 0:
            continue
        where = f"{transaction.topic}-{transaction.partition}"
        message = (
            f"producer {transaction.producer_id} had a transaction open in {where} for {duration_text(seconds)} when "
            "the newest restore point was taken; if its application is gone, abort it"
        )
        yield StatusFinding("warning", "transactions", message, abort_command(transaction))


# The figures of a status, in one line and as metrics.


def summary(status: ArchiveStatus) -> str:
    """Return the figures in one line, whether or not they are findings."""
    point = "no restore point"
    newest = status.newest
    if newest is not None:
        with_schemas = " with schemas" if newest.schemas else ""
        point = f"restore point {newest.number}{with_schemas} is {duration_text(newest.age_seconds)} old"
    verification = "never verified"
    verified = status.verified
    if verified is not None:
        found = plural(verified.findings, "finding") if verified.findings else "no findings"
        verification = f"verified ({verified.scope}) {duration_text(verified.age_seconds)} ago, {found}"
    drill = "no drill"
    drilled = status.drilled
    if drilled is not None:
        drill = f"drill {drilled.result} {duration_text(drilled.age_seconds)} ago"
    growth = f"{human_size(status.growth.stored_bytes)} added in {status.growth.days} days"
    parts = [point, _losses(status.losses), verification, drill, growth]
    if status.lease is not None and status.lease.state == "alive":
        parts.append(f"{status.lease.command} runs on {status.lease.host}")
    return "; ".join(parts)


def count_status(status: ArchiveStatus) -> None:
    """Count a status, for Prometheus."""
    counted.put("kbackup_status_level", LEVELS.index(status.level))
    if status.newest is not None:
        counted.put("kbackup_restore_point", status.newest.number)
        counted.put("kbackup_restore_point_timestamp_seconds", ms_of(status.newest.committed_at) / 1000)
