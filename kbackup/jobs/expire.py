"""The expire job: restore points go by policy, records by age, and what nobody needs any more is deleted."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import attrgetter

from kbackup.archive import layout
from kbackup.archive.expire import Expiration, Incarnation, is_cut_off, prepare, publish, what_stays
from kbackup.archive.expired import Place, gone_with, read_pins
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import Expired, Manifest, Metadata, TopicState
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.settle import is_settled, settle
from kbackup.archive.sweep import Waste, sweep, waste
from kbackup.archive.verify.objects import index_size
from kbackup.jobs.expire_policy import Policy, moment, reasons
from kbackup.jobs.listen import Listener, Phases
from kbackup.store.base import Store


@dataclass(frozen=True)
class Expiry:
    """What is to go: restore points that `policy` does not keep, records older than `older_than` counted back from the
    newest restore point. What goes is deleted when `grace` is over."""

    policy: Policy
    older_than: timedelta | None = None
    grace: timedelta = timedelta(days=1)


@dataclass(frozen=True)
class PointFate:
    """`reasons` why a restore point stays; none: it goes. `records` are left in it, `records_gone` go of it; None where
    it goes itself."""

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
    """`confirmed`: it was done. `expiration` is its number, None where nothing was to expire. `records`, `bytes` are
    those of segments that go (as they are stored) with all files that go by this expiration, to be deleted from
    `deleted_from` on; `deleted` objects of `deleted_bytes` were (or would be) deleted now, of which `failed` (key: why)
    could not be. `spared` topics keep all records: they are compacted, or it is not known; those that were made anew
    since say which incarnation they are."""

    archive: str
    confirmed: bool
    expiration: int | None
    restore_points: tuple[PointFate, ...]
    records: int
    segments: int
    bytes: int
    before: str | None
    spared: tuple[str, ...]
    deleted_from: str | None
    deleted: int
    deleted_bytes: int
    failed: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def expire(
    store: Store, expiry: Expiry, lease_seconds: float, listener: Listener, *, confirm: bool
) -> ExpireReport:
    """Without `confirm` it only says what it would do, and takes no lease. `LockedError` where another holds it,
    `RefusedError` where no record would be left."""
    phases = Phases(listener)
    archive = open_archive(store)  # before a lease is made where there is none
    if not confirm:
        with phases.step("choose"):
            chosen = _choose(archive, expiry)
        with phases.step("look for what nobody needs"):
            sizes = {entry.key: entry.size for entry in store.list()}
            found = waste(archive, sizes, expiry.grace)
        return _report(archive, expiry, chosen, sizes, found, {}, phases, confirmed=False)
    with HeldLease(store, "kbackup expire", lease_seconds) as lease:
        archive = open_archive(store)
        with phases.step("choose"):
            chosen = _choose(archive, expiry)
        with phases.step("refresh derived files"):
            if not is_settled(archive):  # of one that was cut off
                settle(archive, lease.check)
        with phases.step("expire"):
            if chosen.expiration.document is not None:
                publish(archive, chosen.expiration, lease.check)
        with phases.step("refresh derived files"):
            if chosen.expiration.document is not None:
                settle(archive, lease.check, _touched(chosen.expiration))
        with phases.step("delete what nobody needs"):
            sizes = {entry.key: entry.size for entry in store.list()}
            found = waste(archive, sizes, expiry.grace)
            failed = {f.key: f.error.message for f in sweep(archive, found, lease.check)}
        return _report(archive, expiry, chosen, sizes, found, failed, phases, confirmed=True)


@dataclass(frozen=True)
class _Chosen:
    """`gone` are the restore points that go, `fates` says of all why."""

    expiration: Expiration
    fates: tuple[PointFate, ...]
    gone: frozenset[int]
    cutoff: int | None
    spared: tuple[str, ...]
    before: Expired | None


def _choose(archive: Archive, expiry: Expiry) -> _Chosen:
    newest = archive.restore_point("latest")
    pins = read_pins(archive.store, archive.info.id)
    points = archive.restore_points
    why = reasons(expiry.policy, [moment(p.seq, p.committed_at) for p in points], datetime.now(UTC))
    for seq in pins.keys() & {p.seq for p in points}:
        why[seq] = ["pinned", *why.get(seq, [])]
    gone = frozenset(p.seq for p in points if p.seq not in why)
    kept = what_stays(archive, gone, pins.keys())
    cutoff, spared = None, frozenset[Incarnation]()
    if expiry.older_than is not None:
        cutoff = _cutoff(newest, expiry.older_than)
        spared = frozenset(_spared(archive, (state for _, state in kept.last.values())))
    # asked for nothing, it only deletes: a copy that was cut off can be gone on with then
    cut = is_cut_off(archive) and not (expiry.policy.keeps_all and expiry.older_than is None)
    expiration = prepare(archive, gone, kept, cutoff, spared, cut)
    fates = tuple(
        PointFate(
            p.seq,
            p.committed_at,
            tuple(why.get(p.seq, ())),
            *(expiration.records[p.seq] if p.seq in why else (None, None)),
        )
        for p in points
    )
    return _Chosen(expiration, fates, gone, cutoff, _named(spared, kept.last), archive.expired)


def _cutoff(newest: Manifest, older_than: timedelta) -> int:
    """ms since the epoch. Counted back from the newest restore point, so that an archive whose backups have stopped
    does not melt away; a clock that was ahead then counts as this one."""
    at = min(datetime.fromisoformat(newest.committed_at), datetime.now(UTC))
    return int((at - older_than).timestamp() * 1000)


def _spared(archive: Archive, states: Iterable[TopicState]) -> Iterator[Incarnation]:
    """Topics of which old records are not old news: compacted ones keep the newest record of each key, however old it
    is, and the source's is never read again. Each incarnation goes by what it had last; those whose settings are not
    known are taken for such."""
    captures = archive.captures
    for seq, some in groupby(sorted(states, key=attrgetter("captured")), attrgetter("captured")):
        metadata = archive.metadata(captures[seq]) if seq in captures else None
        configs = {t.name: t.configs for t in metadata.topics} if metadata is not None else {}
        for topic in some:
            if metadata is None or topic.name not in configs:
                yield topic.name, topic.incarnation
                continue
            policy = configs[topic.name].get("cleanup.policy") or _default_policy(metadata)
            if "compact" in policy and "delete" not in policy:
                yield topic.name, topic.incarnation


def _named(spared: Iterable[Incarnation], known: Iterable[Incarnation]) -> tuple[str, ...]:
    newest = dict(sorted(known))
    return tuple(name if newest[name] == n else f"{name} (incarnation {n})" for name, n in sorted(spared))


def _default_policy(metadata: Metadata) -> str:
    found = [c.value for c in metadata.broker_configs or () if c.name == "log.cleanup.policy" and c.value]
    return next((value for value in found if "compact" in value), "delete")


def _touched(expiration: Expiration) -> set[Place]:
    return {(s.topic, s.incarnation, s.partition) for s in expiration.removed}


def _report(
    archive: Archive,
    expiry: Expiry,
    chosen: _Chosen,
    sizes: Mapping[str, int],
    found: Waste,
    failed: dict[str, str],
    phases: Phases,
    *,
    confirmed: bool,
) -> ExpireReport:
    document, removed = chosen.expiration.document, chosen.expiration.removed
    going = sum(s.stored + index_size(s) for s in removed)
    going += sum(_sizes_of(sizes, chosen, document)) if document is not None else 0
    after = datetime.now(UTC) + expiry.grace if document is not None else None
    return ExpireReport(
        archive=archive.store.url,
        confirmed=confirmed,
        expiration=document.number if document is not None else None,
        restore_points=chosen.fates,
        records=sum(s.count for s in removed),
        segments=len(removed),
        bytes=going,
        before=_text(datetime.fromtimestamp(chosen.cutoff / 1000, UTC))
        if chosen.cutoff is not None
        else None,
        spared=chosen.spared,
        deleted_from=_text(after) if after is not None else None,
        deleted=len(found.keys) - len(failed),
        deleted_bytes=sum(sizes[key] for key in found.keys if key not in failed),
        failed=failed,
        seconds=phases.seconds,
    )


def _sizes_of(sizes: Mapping[str, int], chosen: _Chosen, document: Expired) -> Iterator[int]:
    """Of the files of restore points that go now."""
    carried = {point.seq for point in document.carried}
    before: Collection[int] = {link.last for link in chosen.before.gone} if chosen.before is not None else ()
    links = [link for link in document.gone if link.last not in before]
    for key, size in sizes.items():
        parsed = layout.parse_backup_key(key)
        if parsed is not None and gone_with(links, parsed[0]) is not None:
            kept = parsed[0] in carried and parsed[1] in (layout.GROUPS, layout.METADATA)
            yield 0 if kept else size


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
