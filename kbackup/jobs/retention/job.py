"""The expire job: restore points go by policy, records by age, and orphans are deleted after the grace time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, commit
from kbackup.archive.catalog.derived import refresh_under_lease
from kbackup.archive.catalog.orphans import Orphans, find_orphans
from kbackup.archive.catalog.retention import expire_points, expire_records
from kbackup.archive.catalog.state import State
from kbackup.archive.catalog.sweep import commit_sweep, commit_undo, delete_orphans, last_expiration
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.segments.table import integers
from kbackup.errors import RefusedError
from kbackup.formats.torn import ENTRY
from kbackup.jobs.mirror.status.holds import flow_holds
from kbackup.jobs.retention.plan import ExpirationPlan, plan_expiration
from kbackup.jobs.retention.policy import Policy
from kbackup.jobs.retention.report import ExpireReport, Expiry, PointFate, UndoReport
from kbackup.metrics.events import Listener, Phases
from kbackup.store.base import Store
from kbackup.store.probe import store_time
from kbackup.util.times import rfc3339, time_text

__all__ = ["ExpireReport", "Expiry", "PointFate", "Policy", "expire", "undo"]


def expire(
    store: Store, expiry: Expiry, lease_seconds: float, listener: Listener, *, confirm: bool
) -> ExpireReport:
    """Expire restore points and records; without `confirm`, report what would expire, by the catalog alone. No lease is
    taken for the commit: a backup may run beside it. The derived files follow at once where no writer holds the lease;
    else its holder writes them. `RefusedError` where the newest restore point would lose all its records."""
    phases = Phases(listener)
    archive = open_archive(store)
    with phases.step("choose"):
        live = [] if expiry.ignore_mirrors else flow_holds(store, archive.info.id, expiry.grace)
        plan = plan_expiration(archive, expiry, live)
    if not confirm:
        return _report(
            archive, expiry, plan, archive.state.number + 1 if plan.expires else None, None, phases
        )
    number = None
    if plan.expires:
        with phases.step("expire"):
            number = _commit(archive, plan)
    swept = _sweep(archive, expiry.grace, lease_seconds, phases)
    return _report(archive, expiry, plan, number, swept, phases)


@dataclass(frozen=True)
class _Swept:
    """The orphans that were to be deleted, and by key why one of them could not."""

    orphans: Orphans
    failed: dict[str, str]


def _sweep(archive: Archive, grace: timedelta, lease_seconds: float, phases: Phases) -> _Swept:
    store = archive.store
    with phases.step("find orphans"):
        cutoff = store_time(store, layout.SCRATCH.rstrip("/")) - grace.total_seconds()
        orphans = find_orphans(store, archive.committed, store.list(), cutoff)
    with phases.step("sweep"):
        author = Author("sweep", "", f"{len(orphans.objects)} orphans deleted")
        archive.move(commit_sweep(store, archive.committed, orphans, author))
    with phases.step("refresh derived files"):  # they name no segment that is deleted
        refresh_under_lease(archive, "kbackup expire", lease_seconds)
    with phases.step("delete orphans"):
        failed = {each.key: each.error.message for each in delete_orphans(store, orphans)}
    return _Swept(orphans, failed)


def _commit(archive: Archive, plan: ExpirationPlan) -> int:
    def operation(state: State) -> State:
        expired = {n for n in plan.expired_points if state.point(n) is not None and n not in state.pins}
        return expire_records(expire_points(state, expired), plan.starts)

    points = len(plan.expired_points)
    summary = f"{points} restore points and the records of {len(plan.starts)} partitions expired"
    archive.move(commit(archive.store, archive.committed, operation, Author("expire", "", summary)))
    return archive.state.number


def _report(
    archive: Archive,
    expiry: Expiry,
    plan: ExpirationPlan,
    number: int | None,
    swept: _Swept | None,
    phases: Phases,
) -> ExpireReport:
    """`number` is the catalog of the expiration, or would be; `swept` is None of a dry run."""
    before, after = (_sums(state) for state in (plan.before, plan.after))
    confirmed = swept is not None
    swept = swept or _Swept(Orphans(0, ()), {})
    deleted = [each for each in swept.orphans.objects if each.key not in swept.failed]
    return ExpireReport(
        archive=archive.store.url,
        confirmed=confirmed,
        expiration=number,
        restore_points=plan.fates,
        records=before.records - after.records,
        segments=before.segments - after.segments,
        bytes=before.bytes - after.bytes,
        before=time_text(plan.cutoff) if plan.cutoff is not None else None,
        spared=plan.spared,
        mirrors=plan.mirrors,
        deleted_from=rfc3339(datetime.now(UTC) + expiry.grace) if number is not None else None,
        deleted=len(deleted),
        deleted_bytes=sum(each.size for each in deleted),
        unreadable=swept.orphans.unreadable,
        failed=swept.failed,
        seconds=phases.seconds,
    )


class _Sums(NamedTuple):
    """Of all segments; `bytes` are of the records objects and the indexes."""

    segments: int
    records: int
    bytes: int


def _sums(state: State) -> _Sums:
    table = state.segments.read(["count", "stored"])
    counts, stored = integers(table, "count"), integers(table, "stored")
    return _Sums(len(counts), int(counts.sum()), int((stored + 1 + ENTRY * counts).sum()))


def undo(store: Store, lease_seconds: float) -> UndoReport:
    """Take back the newest expiration, within its grace time. `RefusedError` where there is none, or where its objects
    may be deleted already."""
    archive = open_archive(store)
    number = last_expiration(store, archive.committed)
    if number is None:
        raise RefusedError(
            f"archive {store.url} has no expiration that can be undone", "see 'kbackup log' for what was done"
        )
    known = {point.number for point in archive.restore_points}
    archive.move(commit_undo(store, archive.committed, number))
    refresh_under_lease(archive, "kbackup expire", lease_seconds)
    back = tuple(p.number for p in archive.restore_points if p.number not in known)
    return UndoReport(store.url, archive.state.number, back)
