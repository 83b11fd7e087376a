"""The expire job, and the job that undoes an expiration.

Restore points expire by a policy with restic's rules, records by their age. Orphans are deleted after the grace time.
What an expiration does to the catalog is in `archive.catalog.retention`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from kbackup import systems
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
from kbackup.archive.models import Manifest, TopicState
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.segments.table import integers
from kbackup.errors import LockedError, RefusedError
from kbackup.formats.index import ENTRY
from kbackup.jobs.compact import cleanup_policies
from kbackup.jobs.rewrite import RewriteReport, Rewriting, rewrite
from kbackup.metrics.registry import Phases, ProgressListener
from kbackup.store.base import Store, store_time
from kbackup.types import Incarnation, IncarnationPartition
from kbackup.util.text import plural
from kbackup.util.times import rfc3339, time_text


@dataclass(frozen=True, slots=True)
class Policy:
    """How many restore points to keep.

    `last` counts the newest ones; `daily` to `yearly` count the newest one of each day, week (ISO), month and year in
    UTC. `within` keeps all restore points that are older than the newest by this much at most; a newest time in the
    future counts as now. A policy without numbers keeps all restore points.
    """

    last: int = 0
    daily: int = 0
    weekly: int = 0
    monthly: int = 0
    yearly: int = 0
    within: timedelta | None = None


class DatedPoint(NamedTuple):
    """A restore point and the time of its commit in UTC."""

    number: int
    at: datetime


def _number(point: DatedPoint) -> object:
    return point.number


def _day(point: DatedPoint) -> object:
    return point.at.date()


def _week(point: DatedPoint) -> object:
    # The ISO year comes with the week: it differs from the year around New Year.
    return point.at.isocalendar()[:2]


def _month(point: DatedPoint) -> object:
    return point.at.year, point.at.month


def _year(point: DatedPoint) -> object:
    return point.at.year


_BUCKETS: dict[str, Callable[[DatedPoint], object]] = {
    "last": _number,
    "daily": _day,
    "weekly": _week,
    "monthly": _month,
    "yearly": _year,
}
"""For each number of a policy, what restore points of one bucket have in common. One point of each bucket is kept."""


def moment(number: int, committed_at: str) -> DatedPoint:
    """Return a restore point with the time at which it was committed."""
    at = datetime.fromisoformat(committed_at)
    return DatedPoint(number, at.astimezone(UTC))


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
    oldest, newest = moments[0], moments[-1]
    if policy.within is not None:
        since = min(newest.at, now) - policy.within
        for point in reversed(moments):
            if point.at >= since:
                kept.setdefault(point.number, []).append("within")
    for name, bucket_of in _BUCKETS.items():
        remaining: int = getattr(policy, name)
        last_bucket: object = None
        for point in reversed(moments):
            if remaining == 0:
                break
            bucket = bucket_of(point)
            if bucket != last_bucket:
                reason = name
            elif point == oldest:
                reason = f"oldest {name}"
            else:
                continue
            kept.setdefault(point.number, []).append(reason)
            last_bucket = bucket
            remaining -= 1
    kept.setdefault(newest.number, ["newest"])
    return kept


GRACE = timedelta(days=1)
"""How long objects stay that nobody refers to any more, unless an expiration is told otherwise."""


@dataclass(frozen=True)
class Expiry:
    """Options of an expiration.

    Expired are restore points that `policy` does not keep, and records older than `older_than`, counted back from the
    newest restore point. Orphans are deleted when `grace` is over. Records that a flow of a mirror has not applied
    are retained where the flow was active within `grace`, unless `ignore_mirrors`. With `rewriting`, small segments are
    merged and superseded records left out at the end.
    """

    policy: Policy
    older_than: timedelta | None = None
    grace: timedelta = GRACE
    ignore_mirrors: bool = False
    rewriting: Rewriting | None = None


@dataclass(frozen=True)
class PointFate:
    """What an expiration does with a restore point. Without `reasons` to retain it, it expires.

    Of its records, `records` are retained and `records_gone` expire. Both are None if the restore point itself expires.
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
    """What an expiration did, or would do if it is not `confirmed`. `expiration` is the catalog that committed it, None
    if nothing expires.

    `records` and `segments` expire, with `bytes` of objects that can be deleted from `deleted_from` on. `deleted`
    objects of `deleted_bytes` were deleted now; without `confirmed` nobody looked for orphans. `failed` has the reason
    for each orphan that could not be deleted. `unreadable` is a damaged catalog of the grace time: nothing is deleted
    before its time is over. `spared` topics keep all records: they are compacted, or their settings are not known.
    `mirrors` are the flows because of which records or restore points stay. `rewrite` is what was rewritten at the end,
    None without `confirmed` and if that is not configured; `not_rewritten` says why it was not possible.
    """

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
    rewrite: RewriteReport | None = None
    not_rewritten: str = ""
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ExpiryUndoReport:
    """The undo of an expiration: `restore_points` are listed again, by the commit of `catalog`."""

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
    """Plan which restore points and records expire. `holds` are what the flows of mirrors have not applied yet. Raises
    `RefusedError` if the newest restore point would lose all its records."""
    newest = archive.restore_point("latest")
    state = archive.state
    points = archive.restore_points
    moments = [moment(point.number, point.committed_at) for point in points]
    reasons_to_keep = reasons(expiry.policy, moments, datetime.now(UTC))
    for number in state.pins:
        reasons_to_keep[number] = ["pinned", *reasons_to_keep.get(number, [])]
    # Mirrors come last: a restore point that stays anyway is not reported as held by a mirror.
    mirrors = _keep_for_mirrors(reasons_to_keep, state, holds)
    expired_points = frozenset(point.number for point in points if point.number not in reasons_to_keep)
    after = expire_points(state, expired_points)
    cutoff: int | None = None
    spared = frozenset[Incarnation]()
    starts: dict[IncarnationPartition, int] = {}
    if expiry.older_than is not None:
        cutoff = _cutoff(newest, expiry.older_than)
        spared = frozenset(_spared(archive, after))
        starts = old_starts(after, cutoff, spared, holds)
        mirrors |= _holding_mirrors(after, cutoff, spared, holds)
        after = expire_records(after, starts)
    before_records = records_by_point(state)
    after_records = records_by_point(after)
    if before_records[newest.number] and not after_records[newest.number]:
        raise RefusedError(
            f"this would expire every record of the newest restore point, {newest.number}",
            "choose an older --older-than",
        )
    fates: list[PointFate] = []
    for point in points:
        why = tuple(reasons_to_keep.get(point.number, ()))
        retained = after_records.get(point.number)
        gone = before_records[point.number] - retained if retained is not None else None
        fates.append(PointFate(point.number, point.committed_at, why, retained, gone))
    return ExpirationPlan(
        expired_points=expired_points,
        starts=starts,
        before=state,
        after=after,
        fates=tuple(fates),
        cutoff=cutoff,
        spared=_names_of(spared, after),
        mirrors=tuple(sorted(mirrors)),
    )


def _keep_for_mirrors(reasons_to_keep: dict[int, list[str]], state: State, holds: Sequence[RetentionHold]) -> set[str]:
    """Add the restore points that mirrors alone hold. Return the names of these mirrors."""
    mirrors: set[str] = set()
    for number, names in held_points(state, holds).items():
        if number not in reasons_to_keep:
            mirrors.update(names)
            reasons_to_keep[number] = [f"mirror {name}" for name in names]
    return mirrors


def _names_of(incarnations: Collection[Incarnation], state: State) -> tuple[str, ...]:
    """Return the names of topics; an incarnation before the newest one is named by its number as well."""
    names: list[str] = []
    for topic, number in sorted(incarnations):
        is_newest = state.highest[topic] == number
        names.append(topic if is_newest else f"{topic} (incarnation {number})")
    return tuple(names)


def _cutoff(newest: Manifest, older_than: timedelta) -> int:
    """Return the time, in ms since the epoch, before which records expire."""
    # Counted back from the newest capture of a topic: an archive whose backups have stopped keeps its records.
    captured = {topic.captured for topic in newest.topics}
    started = [capture.started_at for capture in newest.captures if capture.number in captured]
    last_start = datetime.fromisoformat(max(started, default=newest.started_at))
    at = min(last_start, datetime.now(UTC))  # a time in the future counts as now
    return int((at - older_than).timestamp() * 1000)


def _holding_mirrors(
    state: State, cutoff: int, spared: Collection[Incarnation], holds: Sequence[RetentionHold]
) -> set[str]:
    """Return the names of the holds that change, each by itself, which records expire."""
    if not holds:
        return set()
    without_holds = old_starts(state, cutoff, spared)
    names: set[str] = set()
    for hold in holds:
        # By itself: where two mirrors hold the same records, both are named.
        if old_starts(state, cutoff, spared, [hold]) != without_holds:
            names.add(hold.name)
    return names


def _spared(archive: Archive, after: State) -> Iterator[Incarnation]:
    """Yield the incarnations that keep old records.

    A compacted topic keeps the newest record of each key, however old. The last settings of an incarnation decide
    whether it is compacted; an incarnation whose settings are not known is spared.
    """
    states: dict[Incarnation, TopicState] = {}
    last_points = after.last_points()
    numbers = sorted(set(last_points.values()))
    for number in numbers:
        # One manifest at a time: an archive of many topics has large ones.
        topics = archive.manifest(number).incarnations()
        for incarnation, last in last_points.items():
            if last == number:
                states[incarnation] = topics[incarnation]
    for number in {topic.captured for topic in states.values()}:
        policies = cleanup_policies(archive.metadata(number))
        for incarnation, topic in states.items():
            policy = policies.get(topic.name, "compact")
            if topic.captured == number and "compact" in policy and "delete" not in policy:
                yield incarnation


def expire(
    store: Store, expiry: Expiry, lease_seconds: float, listener: ProgressListener, *, confirm: bool
) -> ExpireReport:
    """Expire restore points and records. Without `confirm`, report what would expire, by the catalog alone.

    The commit takes no lease: a backup may run beside it. The derived files are written at once if no writer holds the
    lease; otherwise its holder writes them. Raises `RefusedError` if the newest restore point would lose all its
    records.
    """
    phases = Phases(listener)
    archive = open_archive(store)
    with phases.step("choose"):
        holds = [] if expiry.ignore_mirrors else systems.retention_holds(store, archive.info.id, expiry.grace)
        plan = plan_expiration(archive, expiry, holds)
    number = archive.state.number + 1 if plan.after is not plan.before else None
    orphans = Orphans(0, ())
    failed: dict[str, str] = {}
    if confirm:
        if number is not None:
            with phases.step("expire"):
                number = _commit(archive, plan)
        orphans, failed = _sweep(archive, expiry.grace, lease_seconds, phases)
    rewritten: RewriteReport | None = None
    not_rewritten = ""
    # A copy gets what its source has rewritten.
    if confirm and expiry.rewriting is not None and archive.state.origin is None:
        try:
            rewritten = rewrite(store, expiry.rewriting, lease_seconds, expiry.grace, listener, confirm=True)
        except (LockedError, RefusedError) as error:
            # Another run is in the way: the next expiration does it.
            not_rewritten = error.message
    segments_before, records_before, bytes_before = _sums(plan.before)
    segments_after, records_after, bytes_after = _sums(plan.after)
    cutoff = time_text(plan.cutoff) if plan.cutoff is not None else None
    deleted_from = rfc3339(datetime.now(UTC) + expiry.grace) if number is not None else None
    deleted = [orphan for orphan in orphans.objects if orphan.key not in failed]
    deleted_bytes = sum(orphan.size for orphan in deleted)
    return ExpireReport(
        archive=archive.store.url,
        confirmed=confirm,
        expiration=number,
        restore_points=plan.fates,
        segments=segments_before - segments_after,
        records=records_before - records_after,
        bytes=bytes_before - bytes_after,
        before=cutoff,
        spared=plan.spared,
        mirrors=plan.mirrors,
        deleted_from=deleted_from,
        deleted=len(deleted),
        deleted_bytes=deleted_bytes,
        unreadable=orphans.unreadable,
        failed=failed,
        rewrite=rewritten,
        not_rewritten=not_rewritten,
        seconds=phases.seconds,
    )


def _sweep(archive: Archive, grace: timedelta, lease_seconds: float, phases: Phases) -> tuple[Orphans, dict[str, str]]:
    """Delete orphans. Return all orphans that were to be deleted, and by key why an orphan could not be deleted."""
    store = archive.store
    with phases.step("find orphans"):
        cutoff = store_time(store, layout.SCRATCH.rstrip("/")) - grace.total_seconds()
        orphans = find_orphans(store, archive.committed, store.list(), cutoff)
    with phases.step("sweep"):
        author = Author("sweep", "", f"{plural(len(orphans.objects), 'orphan')} deleted")
        archive.move(commit_sweep(store, archive.committed, orphans, author))
    # Before anything is deleted: derived files must not name segments that are gone.
    with phases.step("refresh derived files"):
        refresh_under_lease(archive, "kbackup expire", lease_seconds)
    with phases.step("delete orphans"):
        failed = {each.key: each.error.message for each in delete_orphans(store, orphans)}
    return orphans, failed


def _commit(archive: Archive, plan: ExpirationPlan) -> int:
    """Commit an expiration; return the number of the catalog version."""

    def operation(state: State) -> State:
        # Without a lease, others may have committed since the plan: a restore point may be gone, or pinned by now.
        expired = {n for n in plan.expired_points if state.point(n) is not None and n not in state.pins}
        without_points = expire_points(state, expired)
        return expire_records(without_points, plan.starts)

    points = len(plan.expired_points)
    summary = f"{points} restore points and the records of {len(plan.starts)} partitions expired"
    author = Author("expire", "", summary)
    archive.move(commit(archive.store, archive.committed, operation, author))
    return archive.state.number


def _sums(state: State) -> tuple[int, int, int]:
    """Return the number of all segments, of their records, and of the bytes of records objects and indexes."""
    table = state.segments.read(["count", "stored"])
    counts = integers(table, "count")
    stored = integers(table, "stored")
    sizes = stored + 1 + ENTRY * counts
    return len(counts), int(counts.sum()), int(sizes.sum())


def undo(store: Store, lease_seconds: float) -> ExpiryUndoReport:
    """Undo the newest expiration within its grace time. Raises `RefusedError` if there is none, or if its objects may
    be deleted already."""
    archive = open_archive(store)
    number = last_expiration(store, archive.committed)
    if number is None:
        raise RefusedError(
            f"archive {store.url} has no expiration that can be undone", "see 'kbackup log' for what was done"
        )
    known = {point.number for point in archive.restore_points}
    archive.move(commit_undo(store, archive.committed, number))
    refresh_under_lease(archive, "kbackup expire", lease_seconds)
    listed_again = tuple(point.number for point in archive.restore_points if point.number not in known)
    return ExpiryUndoReport(store.url, archive.state.number, listed_again)
