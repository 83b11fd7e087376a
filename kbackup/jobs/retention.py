"""The expire job: restore points go by a policy with restic's rules, records by age, and orphans are deleted after the
grace time; and the job that takes an expiration back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, commit
from kbackup.archive.catalog.retention import expire_points, expire_records, old_starts, records_by_point
from kbackup.archive.catalog.state import RetentionHold, State, held_points
from kbackup.archive.catalog.sweep import (
    Orphans,
    commit_sweep,
    commit_undo,
    delete_orphans,
    find_orphans,
    last_expiration,
)
from kbackup.archive.derived import refresh_under_lease
from kbackup.archive.models import TopicState
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.segments.table import integers
from kbackup.errors import RefusedError
from kbackup.formats.index import ENTRY
from kbackup.jobs.mirror.status import flow_holds
from kbackup.metrics.registry import Phases, ProgressListener
from kbackup.store.base import Store, store_time
from kbackup.types import Incarnation, IncarnationPartition
from kbackup.util.times import rfc3339, time_text


@dataclass(frozen=True, slots=True)
class Policy:
    """Numbers of restore points to keep.

    `last` counts the newest ones; `daily` to `yearly` count the newest one of each day, week (ISO), month and year in
    UTC. `within` keeps all that are at most so much older than the newest; a time in the future counts as now. A
    policy without numbers keeps all.
    """

    last: int = 0
    daily: int = 0
    weekly: int = 0
    monthly: int = 0
    yearly: int = 0
    within: timedelta | None = None


class DatedPoint(NamedTuple):
    number: int
    at: datetime


_BUCKETS: dict[str, Callable[[DatedPoint], object]] = {
    "last": lambda m: m.number,
    "daily": lambda m: m.at.date(),
    "weekly": lambda m: m.at.isocalendar()[:2],
    "monthly": lambda m: (m.at.year, m.at.month),
    "yearly": lambda m: m.at.year,
}


def moment(number: int, committed_at: str) -> DatedPoint:
    return DatedPoint(number, datetime.fromisoformat(committed_at).astimezone(UTC))


def reasons(policy: Policy, moments: Sequence[DatedPoint], now: datetime) -> dict[int, list[str]]:
    """Return the reasons to keep each restore point, by number; the others expire. `moments` are sorted by number.

    The newest restore point is always kept. As with restic, the oldest is kept where a count is not used up, so that
    restore points reach back as far as possible.
    """
    kept: dict[int, list[str]] = {}
    if not moments:
        return kept
    if policy == Policy():
        return {m.number: ["no policy"] for m in moments}
    newest, oldest = moments[-1], moments[0]
    for m in reversed(moments):
        if policy.within is not None and m.at >= min(newest.at, now) - policy.within:
            kept.setdefault(m.number, []).append("within")
    for name, bucket_of in _BUCKETS.items():
        remaining: int = getattr(policy, name)
        before: object = None
        for m in reversed(moments):
            bucket = bucket_of(m)
            if remaining and (bucket != before or m == oldest):
                kept.setdefault(m.number, []).append(name if bucket != before else f"oldest {name}")
                before, remaining = bucket, remaining - 1
    kept.setdefault(newest.number, ["newest"])
    return kept


@dataclass(frozen=True)
class Expiry:
    """Options of an expiration.

    Expired are restore points that `policy` does not keep, and records older than `older_than`, counted back from the
    newest restore point. Orphans are deleted when `grace` is over. Records that a flow of a mirror has not applied
    are retained where the flow was active within `grace`, unless `ignore_mirrors`.
    """

    policy: Policy
    older_than: timedelta | None = None
    grace: timedelta = timedelta(days=1)
    ignore_mirrors: bool = False


@dataclass(frozen=True)
class PointFate:
    """Retained or expired restore point: `reasons` to retain it; none: it expires.

    `records` are retained, `records_gone` expire; None if the restore point itself expires.
    """

    number: int
    committed_at: str
    reasons: tuple[str, ...]
    records: int | None
    records_gone: int | None

    @property
    def stays(self) -> bool:
        return bool(self.reasons)


@dataclass(frozen=True)
class ExpireReport:
    """`confirmed`: it was done. `expiration` is the catalog that committed it, None if nothing expires.

    `records` and `segments` go, with `bytes` of objects that can be deleted from `deleted_from` on. `deleted` objects
    of `deleted_bytes` were deleted now; without `confirmed` nobody looked for orphans. `failed` maps the others to
    reasons. `unreadable` is a damaged catalog of the grace time: nothing is deleted before its time is over. `spared`
    topics keep all records: they are compacted, or their settings are not known. `mirrors` are the flows because of
    which records or restore points stay."""

    archive: str
    confirmed: bool
    expiration: int | None
    restore_points: tuple[PointFate, ...]
    records: int
    segments: int
    bytes: int
    before: str | None
    spared: tuple[str, ...]
    mirrors: tuple[str, ...]
    deleted_from: str | None
    deleted: int
    deleted_bytes: int
    unreadable: int | None
    failed: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ExpiryUndoReport:
    """`restore_points` are listed again; `catalog` committed it."""

    archive: str
    catalog: int
    restore_points: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class ExpirationPlan:
    """Planned expiration: expired restore points, new log starts, states before and after, and each point's fate."""

    expired_points: frozenset[int]
    starts: Mapping[IncarnationPartition, int]
    before: State
    after: State
    fates: tuple[PointFate, ...]
    cutoff: int | None
    spared: tuple[str, ...]
    mirrors: tuple[str, ...]


def plan_expiration(archive: Archive, expiry: Expiry, holds: Sequence[RetentionHold]) -> ExpirationPlan:
    newest = archive.restore_point("latest")
    state = archive.state
    points = archive.restore_points
    why = reasons(expiry.policy, [moment(p.number, p.committed_at) for p in points], datetime.now(UTC))
    for number in state.pins:
        why[number] = ["pinned", *why.get(number, [])]
    mirrors = set[str]()
    for number, names in held_points(state, holds).items():
        if number not in why:
            mirrors |= {*names}
            why[number] = [f"mirror {name}" for name in names]
    expired_points = frozenset(p.number for p in points if p.number not in why)
    after = expire_points(state, expired_points)
    cutoff, spared, starts = None, frozenset[Incarnation](), dict[IncarnationPartition, int]()
    if expiry.older_than is not None:
        # back from the newest capture of a topic: an archive whose backups have stopped keeps its records. A time in
        # the future counts as now
        captured = {topic.captured for topic in newest.topics}
        started = [c.started_at for c in newest.captures if c.number in captured]
        at = min(datetime.fromisoformat(max(started, default=newest.started_at)), datetime.now(UTC))
        cutoff = int((at - expiry.older_than).timestamp() * 1000)
        spared = frozenset(_spared(archive, after))
        starts = old_starts(after, cutoff, spared, holds)
        without = old_starts(after, cutoff, spared) if holds else {}
        mirrors |= {hold.name for hold in holds if old_starts(after, cutoff, spared, [hold]) != without}
        after = expire_records(after, starts)
    before_records, after_records = records_by_point(state), records_by_point(after)
    if before_records[newest.number] and not after_records[newest.number]:
        raise RefusedError(
            f"this would expire every record of the newest restore point, {newest.number}",
            "choose an older --older-than",
        )
    fates = tuple(
        PointFate(
            p.number,
            p.committed_at,
            tuple(why.get(p.number, ())),
            after_records.get(p.number),
            before_records[p.number] - after_records[p.number] if p.number in after_records else None,
        )
        for p in points
    )
    spared_names = tuple(
        name if after.highest[name] == number else f"{name} (incarnation {number})" for name, number in sorted(spared)
    )
    return ExpirationPlan(expired_points, starts, state, after, fates, cutoff, spared_names, tuple(sorted(mirrors)))


def _spared(archive: Archive, after: State) -> Iterator[Incarnation]:
    """Incarnations that keep old records: a compacted topic keeps the newest record of each key, however old. Each goes
    by its last settings; an incarnation whose settings are not known is spared."""
    states: dict[Incarnation, TopicState] = {}
    last = after.last_points()
    for number in sorted(set(last.values())):
        topics = archive.manifest(number).incarnations()
        states |= {key: topics[key] for key, end in last.items() if end == number}
    for number in {topic.captured for topic in states.values()}:
        metadata = archive.metadata(number)
        of_brokers = [c.value for c in metadata.broker_configs or () if c.name == "log.cleanup.policy" and c.value]
        default = next((value for value in of_brokers if "compact" in value), "delete")
        policies = {t.name: t.configs.get("cleanup.policy") or default for t in metadata.topics}
        for key, topic in states.items():
            policy = policies.get(topic.name, "compact")
            if topic.captured == number and "compact" in policy and "delete" not in policy:
                yield key


def expire(
    store: Store, expiry: Expiry, lease_seconds: float, listener: ProgressListener, *, confirm: bool
) -> ExpireReport:
    """Expire restore points and records; without `confirm`, report what would expire, by the catalog alone. No lease is
    taken for the commit: a backup may run beside it. The derived files follow at once where no writer holds the lease;
    else its holder writes them. `RefusedError` if the newest restore point would lose all its records."""
    phases = Phases(listener)
    archive = open_archive(store)
    with phases.step("choose"):
        live = [] if expiry.ignore_mirrors else flow_holds(store, archive.info.id, expiry.grace)
        plan = plan_expiration(archive, expiry, live)
    number = archive.state.number + 1 if plan.after is not plan.before else None
    orphans, failed = Orphans(0, ()), dict[str, str]()
    if confirm:
        if number is not None:
            with phases.step("expire"):
                number = _commit(archive, plan)
        orphans, failed = _sweep(archive, expiry.grace, lease_seconds, phases)
    before, after = (_sums(state) for state in (plan.before, plan.after))
    deleted = [each for each in orphans.objects if each.key not in failed]
    return ExpireReport(
        archive=archive.store.url,
        confirmed=confirm,
        expiration=number,
        restore_points=plan.fates,
        segments=before[0] - after[0],
        records=before[1] - after[1],
        bytes=before[2] - after[2],
        before=time_text(plan.cutoff) if plan.cutoff is not None else None,
        spared=plan.spared,
        mirrors=plan.mirrors,
        deleted_from=rfc3339(datetime.now(UTC) + expiry.grace) if number is not None else None,
        deleted=len(deleted),
        deleted_bytes=sum(each.size for each in deleted),
        unreadable=orphans.unreadable,
        failed=failed,
        seconds=phases.seconds,
    )


def _sweep(archive: Archive, grace: timedelta, lease_seconds: float, phases: Phases) -> tuple[Orphans, dict[str, str]]:
    """Delete orphans; return those that were to be deleted, and by key why one of them could not."""
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
    return orphans, failed


def _commit(archive: Archive, plan: ExpirationPlan) -> int:
    def operation(state: State) -> State:
        expired = {n for n in plan.expired_points if state.point(n) is not None and n not in state.pins}
        return expire_records(expire_points(state, expired), plan.starts)

    points = len(plan.expired_points)
    summary = f"{points} restore points and the records of {len(plan.starts)} partitions expired"
    archive.move(commit(archive.store, archive.committed, operation, Author("expire", "", summary)))
    return archive.state.number


def _sums(state: State) -> tuple[int, int, int]:
    """Return the number of all segments, of their records, and of the bytes of records objects and indexes."""
    table = state.segments.read(["count", "stored"])
    counts, stored = integers(table, "count"), integers(table, "stored")
    return len(counts), int(counts.sum()), int((stored + 1 + ENTRY * counts).sum())


def undo(store: Store, lease_seconds: float) -> ExpiryUndoReport:
    """Take back the newest expiration, within its grace time. `RefusedError` if there is none, or where its objects
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
    return ExpiryUndoReport(store.url, archive.state.number, back)
