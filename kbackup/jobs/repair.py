"""The repair job: an archive that has lost files, as whole as it can be made from what is there.

The newest whole catalog is the base. Restore points that it lacks come back where their documents are whole, damaged
segments become losses, and what follows from the catalog is written anew. Nothing that is whole is deleted.
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Committed
from kbackup.archive.catalog.derived import derived_files
from kbackup.archive.catalog.documents import Catalog, Derived, Latest, OpenRun
from kbackup.archive.catalog.recovery import lose_segments
from kbackup.archive.catalog.retention import drop_unreferenced
from kbackup.archive.catalog.run import WritingRun
from kbackup.archive.catalog.state import IncarnationPartition, State
from kbackup.archive.encryption import check_encryption
from kbackup.archive.java import is_java_archive
from kbackup.archive.lease import HeldLease, read_lease
from kbackup.archive.models import ArchiveInfo, Lease, Manifest, NewerError, dump, now
from kbackup.archive.new_point import point_of, put_manifest
from kbackup.archive.reader import Archive
from kbackup.archive.repair.base import Base, Documents, find_base, load_whole, read_documents
from kbackup.archive.repair.found import (
    attribute,
    by_rank,
    listed_manifests,
    lives_of,
    losses_of,
    missing_segments,
    named_starts,
    numbers_given,
    unlisted_points,
    unreached,
    with_points,
    with_rows,
    without_let_go,
)
from kbackup.archive.repair.mend import Mender
from kbackup.archive.repair.point import draft_behind
from kbackup.archive.repair.scan import Damaged, ToScan, Whole, scan, to_scan
from kbackup.archive.segments import SCHEMA, Segment, from_batches
from kbackup.archive.verify.derived import check_derived
from kbackup.archive.verify.findings import Findings
from kbackup.archive.verify.objects import check_present
from kbackup.errors import CorruptError, NoArchiveError, NotFoundError, PreconditionError, RefusedError
from kbackup.jobs.listen import Listener, Phases
from kbackup.jobs.progress import ProgressSender
from kbackup.jobs.tasks import run_tasks
from kbackup.store.base import Store, encryption_of
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.raw import stored
from kbackup.store.dry import DryStore
from kbackup.store.guarded import GuardedStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE_BYTES = 64 << 20
"""So many bytes are read without Spark, which takes longer to start."""
_TASK_BYTES = 64 << 20
_TASK_OBJECTS = 256
_THREADS = 4


@dataclass(frozen=True, slots=True, order=True)
class Mended:
    """A file that was written anew, and how."""

    file: str
    what: str


@dataclass(frozen=True)
class RepairReport:
    """What was done, or (not `confirmed`) is to be done.

    `restored` restore points are listed again, `lost` ones no longer; `new_point` is the newest of new restore points,
    of the whole segments of lost ones. `losses` are segments and documents that are lost now, in words. `catalog` is
    the base, None where there was none. An adoption counts the `segments` and `records` of its restore point.
    """

    archive: str
    archive_id: str
    confirmed: bool
    catalog: int | None = None
    restored: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()
    mended: tuple[Mended, ...] = ()
    new_point: int | None = None
    losses: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    segments: int = 0
    records: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def is_loss(self) -> bool:
        return bool(self.lost or self.losses)

    @property
    def changes(self) -> bool:
        return bool(self.restored or self.lost or self.losses or self.mended or self.new_point)


@dataclass(frozen=True)
class ScanWork:
    """A task: some records objects, each read whole; with `mend` a damaged index is written anew."""

    store: Store
    mend: bool

    def __call__(self, task: Sequence[ToScan], progress: ProgressSender) -> Iterator[Whole | Damaged]:
        for item in task:
            found = scan(self.store, item, self.mend)
            if isinstance(found, Whole):
                progress.add(found.segment.count, found.segment.bytes)
            yield found


@dataclass
class _Repair:
    """One repair. `store` checks the lease before each write, or keeps writes in memory (a dry run)."""

    plain: Store
    store: Store
    confirm: bool
    read_data: bool
    spark: Callable[[], SparkSession]
    listener: Listener
    sizes: Mapping[str, int] = field(default_factory=dict)
    modified: Mapping[str, float] = field(default_factory=dict)
    mended: list[Mended] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    restored: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    losses: list[str] = field(default_factory=list)
    new_points: dict[int, Manifest] = field(default_factory=dict)


def repair(
    store: Store,
    confirm: bool,
    read_data: bool,
    lease_seconds: float,
    spark: Callable[[], SparkSession],
    listener: Listener,
) -> RepairReport:
    """Without `confirm` nothing is written. With `read_data` every segment is read back and held against its checksum;
    else against its size. `NoArchiveError` where there is nothing of an archive."""
    if not confirm:
        dry = DryStore(store)
        lease = HeldLease(dry, "kbackup repair", lease_seconds)  # not taken
        return _repair(_Repair(store, dry, confirm, read_data, spark, listener), lease)
    _check_archive(store, [entry.key for entry in store.list()])
    replace_corrupt_lease(store)
    with HeldLease(store, "kbackup repair", lease_seconds) as lease:
        guarded = GuardedStore(store, lease.check)
        return _repair(_Repair(store, guarded, confirm, read_data, spark, listener), lease)


def _check_archive(store: Store, keys: Sequence[str]) -> None:
    folders = (layout.CATALOG, layout.POINTS, layout.TOPICS)
    if any(key == layout.ARCHIVE or key.startswith(folders) for key in keys):
        return
    hint = (
        "it is a folder of the Java tool: run 'kbackup adopt'"
        if is_java_archive(store)
        else "check the address"
    )
    raise NoArchiveError(f"there is no archive at {store.url}", hint)


def _repair(job: _Repair, lease: HeldLease) -> RepairReport:
    phases = Phases(job.listener)
    with phases.step("list objects"):
        entries = list(job.store.list())
        job.sizes = {entry.key: entry.size for entry in entries}
        job.modified = {entry.key: entry.modified for entry in entries}
        _check_archive(job.store, list(job.sizes))
    with phases.step("restore points"):
        _check_lease(job)
        documents = read_documents(job.store, job.sizes)
        info = _info(job, documents)
        base = find_base(job.store, job.sizes, info.id)
        job.mended += [Mended(key, "replaced: its rows come from elsewhere") for key in base.files]
        job.mended += [Mended(key, "left out: nothing needs it any more") for key in base.past]
    archive = Archive(job.store, info, base.committed)
    writing = WritingRun(archive, job.plain, lease, "repair")
    with phases.step("read segments"):
        damaged = _damaged_segments(job, base.state)
        state, manifests = _rebuilt(job, base, documents, damaged)
        after = lose_segments(state, damaged)
        job.losses += [row["message"] for row in _new_losses(base.state, after)]
    with phases.step("commit"):
        mender = Mender(writing, documents, manifests)
        after = _behind(job, writing, base, mender.mend(after), mender.manifests)
        job.losses += mender.losses
        job.mended += [Mended(key, "made anew") for key in mender.made]
        _commit(job, writing, base, after)
        _refresh(job, writing.archive)
    return RepairReport(
        job.store.url,
        info.id,
        job.confirm,
        catalog=base.committed.catalog.number if base.committed.catalog is not None else None,
        restored=tuple(sorted(job.restored)),
        lost=tuple(sorted(job.lost)),
        new_point=max(job.new_points, default=None),
        losses=tuple(job.losses),
        warnings=(*_warnings(base, len(after.restore_points)), *job.warnings),
        mended=tuple(sorted(set(job.mended))),
        segments=sum(manifest.totals.segments for manifest in job.new_points.values()),
        records=sum(manifest.totals.records for manifest in job.new_points.values()),
        seconds=phases.seconds,
    )


def _check_lease(job: _Repair) -> None:
    if layout.LOCK in job.sizes and load_whole(job.store, Lease, layout.LOCK) is None:
        job.mended.append(Mended(layout.LOCK, "replaced by a lease that nobody holds"))


def _info(job: _Repair, documents: Documents) -> ArchiveInfo:
    """archive.json; where it is missing, damaged or another archive's it is written anew, under the id that everything
    else has."""
    info = load_whole(job.store, ArchiveInfo, layout.ARCHIVE)
    if info is not None:
        check_encryption(job.store, info)
        owners = _ids_of_catalogs(job)
        if (newest := next(owners, info.id)) == info.id or info.id in owners:
            return info
        info = msgspec.structs.replace(info, id=newest)
        job.mended.append(Mended(layout.ARCHIVE, "written anew"))
        job.store.put(layout.ARCHIVE, dump(info))
        return info
    sealed = next(stored(job.plain).list(layout.KEYS), None) is not None
    encryption = CryptStore.encryption if sealed else None
    check_encryption(job.store, ArchiveInfo(id="", created_at="", encryption=encryption))
    ids = [*_ids_of_catalogs(job), *(d.archive_id for d, _ in documents.values() if isinstance(d, Manifest))]
    archive_id = ids[0] if ids else uuid.uuid4().hex
    info = ArchiveInfo(id=archive_id, created_at=now(), encryption=encryption_of(job.store))
    job.mended.append(Mended(layout.ARCHIVE, "written anew"))
    job.store.put(layout.ARCHIVE, dump(info))
    return info


def _ids_of_catalogs(job: _Repair) -> Iterator[str]:
    """The archive's id by its catalogs, the newest first, and by what names a catalog."""
    for key in sorted(job.sizes, reverse=True):
        if layout.parse_catalog_key(key) is not None:
            catalog = load_whole(job.store, Catalog, key)
            if catalog is not None:
                yield catalog.archive_id
    latest = load_whole(job.store, Latest, layout.LATEST)
    if latest is not None:
        yield latest.archive_id
    derived = load_whole(job.store, Derived, layout.DERIVED)
    if derived is not None:
        yield derived.archive_id


def _damaged_segments(job: _Repair, state: State) -> dict[str, str]:
    """Keys of records objects of the catalog that are missing or damaged, with the reason; indexes are mended."""
    rows = {s.key: s for s in _segments(state)}
    findings = Findings()
    present = check_present(rows.values(), job.sizes, findings)
    wrong = {f.file: f.what for f in findings.found}
    damaged = {key: what for key, what in wrong.items() if key in rows}
    readable = {item.segment.key for item in present if item.records}
    broken = {key for key in readable if layout.index_key_of(key) in wrong}
    for found in _scan(job, to_scan(job.sizes, rows, sorted(readable if job.read_data else broken))):
        if isinstance(found, Damaged):
            damaged[found.key] = found.why
    return damaged


def _segments(state: State) -> list[Segment]:
    return from_batches(state.segments.read(SCHEMA.names).to_batches())


def _rebuilt(
    job: _Repair, base: Base, documents: Documents, damaged: Mapping[str, str]
) -> tuple[State, dict[int, Manifest]]:
    """The state of the base with restore points and segments that it lacks, where catalogs or tables are lost; and the
    whole manifests by number. What lies behind the newest catalog of a whole archive was never committed."""
    state = base.state
    manifests = listed_manifests(state, documents)
    found = unlisted_points(base, documents)
    if base.is_whole and not found:
        return state, manifests
    manifests |= {number: manifest for number, (manifest, _) in found.items()}
    given = numbers_given(job.sizes)
    job.restored |= found.keys()
    state = with_points(state, [point for _, point in found.values()], given + 1)
    least = 0 if "points" in base.stale else base.state.next_point
    listed = {*state.numbers.tolist(), *state.past_manifests}
    job.lost |= {
        number
        for key in job.sizes
        if (parsed := layout.parse_point_key(key)) is not None
        and least <= (number := parsed[0])
        and number not in listed
    }
    past = [{"number": number, "manifest": ""} for number in sorted(job.lost - state.past_manifests.keys())]
    state = replace(state, past=state.past.append(past))
    if not state.isolation_levels:
        state = replace(state, isolation_levels=frozenset(m.isolation_level for m in manifests.values()))
    manifests = {number: manifests[number] for number in state.numbers.tolist() if number in manifests}
    state = without_let_go(state)
    rows = attribute(_found_segments(job, state), state, manifests, job.modified)
    lives = lives_of(state, manifests, job.sizes)
    state = with_rows(state, lives, rows, losses_of(state, _known_manifests(state, documents) | manifests))
    without = lose_segments(state, damaged)
    missing = missing_segments(without, manifests, named_starts(job.store, job.sizes))
    return replace(state, losses=state.losses.append(missing)), manifests


def _known_manifests(state: State, documents: Documents) -> dict[int, Manifest]:
    """By number, the whole manifests of restore points that are or were: losses of those that were let go concern
    later ones."""
    found = [d for d, _ in documents.values() if isinstance(d, Manifest)]
    return {m.number: m for m in found if (m.number, m.checksum) in state.lineage}


def _found_segments(job: _Repair, state: State) -> list[Segment]:
    """Whole segments that `state` does not list."""
    known = set(state.segments.columns("key")[0])
    keys = [key for key in job.sizes if key.startswith(layout.TOPICS) and key not in known]
    return [each.segment for each in _scan(job, to_scan(job.sizes, {}, keys)) if isinstance(each, Whole)]


def _new_losses(before: State, after: State) -> list[dict[str, Any]]:
    known = {tuple(row.values()) for row in before.losses.dicts()}
    return [
        row for row in after.losses.dicts() if row["kind"] == "damaged" and tuple(row.values()) not in known
    ]


def _warnings(base: Base, restore_points: int) -> list[str]:
    if base.committed.catalog is None:
        if not restore_points and not base.lost:
            return []
        return ["no catalog is left: pins, labels, log starts and the history are lost"]
    if not base.lost:
        return []
    number = base.committed.catalog.number
    return [
        f"{len(base.lost)} catalogs after catalog {number} are lost or damaged: pins and labels are as of it"
    ]


def _behind(
    job: _Repair, writing: WritingRun, base: Base, state: State, manifests: dict[int, Manifest]
) -> State:
    """`state` with new restore points of whole segments whose own manifests are lost."""
    writing.archive.move(Committed(state, base.committed.catalog))
    if base.is_whole:
        return state
    listed, state = _segments(state), drop_unreferenced(state)
    found = _found_segments(job, state)
    named = named_starts(job.store, job.sizes)
    committed = _starts([*listed, *(() if manifests else found)])
    for place, firsts in committed.items():
        named[place] = sorted({*firsts, *named.get(place, ())})
    segments = unreached(found, state, manifests, named)
    head = manifests.get(max(manifests, default=0))
    ranks = by_rank(segments, {t.name: t.incarnation for t in (head.topics if head is not None else ())})
    for at, some in enumerate(ranks):
        number = state.next_point
        ids = {key: life.topic_id for key, life in state.lives.items()}
        is_last = at == len(ranks) - 1
        draft = draft_behind(writing, head, some, ids, job.sizes, number, last=is_last)
        manifest, ref = put_manifest(writing, draft)
        job.new_points[number] = manifests[number] = manifest
        rows = attribute(some, state, {number: manifest})
        state = with_points(state, [point_of(manifest, ref)], number + 1)
        state = with_rows(
            state,
            lives_of(replace(state, segments=state.segments.append(rows)), manifests, job.sizes),
            rows,
            (),
        )
        missing = missing_segments(state, manifests, named)
        job.losses += [row["message"] for row in missing]
        state = replace(state, losses=state.losses.append(missing))
        job.losses.append(
            f"restore points without a manifest: restore point {number} has their whole segments"
        )
        writing.archive.move(Committed(state, base.committed.catalog))
    return state


def _starts(segments: Sequence[Segment]) -> dict[IncarnationPartition, list[int]]:
    found: dict[IncarnationPartition, list[int]] = {}
    for s in segments:
        found.setdefault((s.topic, s.incarnation, s.partition), []).append(s.first)
    return found


def _commit(job: _Repair, writing: WritingRun, base: Base, after: State) -> None:
    """Commit the state and close every other run, in one catalog; nothing is undone to one before it. A run that was
    open, or whose catalogs are lost, may have left segments: the repair's own stays open, and the next backup takes
    them over."""
    latest = load_whole(job.store, Latest, layout.LATEST)
    if base.committed.catalog is None and not base.lost and not after.restore_points:
        return
    if after is base.state and not base.lost and not base.past and base.committed.catalog is not None:
        if latest is None or latest.archive_id != after.archive_id:
            job.store.put(layout.LATEST, dump(Latest(archive_id=after.archive_id, number=after.number)))
            job.mended.append(Mended(layout.LATEST, "written anew"))
        return
    levels = after.isolation_levels
    run = OpenRun(
        run=writing.run,
        command="repair",
        host=socket.gethostname(),
        started_at=now(),
        isolation_level="read_uncommitted" if levels == {"read_uncommitted"} else "read_committed",
    )
    may_have_left = base.state.open_run is not None or not base.is_whole

    def operation(state: State) -> State:
        if state.number != base.state.number:
            raise RefusedError("the archive was changed during the repair", "run 'kbackup repair' again")
        open_run = run if may_have_left else None
        return replace(after, number=state.number, swept=state.number, open_run=open_run)

    writing.archive.move(base.committed)
    writing.commit(operation, "repair", _summary(job))


def _summary(job: _Repair) -> str:
    parts = [
        f"{count} {what}"
        for count, what in (
            (len(job.losses), "losses"),
            (len(job.restored), "restore points listed again"),
            (len(job.new_points), "new restore points"),
        )
        if count
    ]
    return ", ".join(parts) or "the state of an earlier catalog"


def _refresh(job: _Repair, archive: Archive) -> None:
    """Write the derived files that are not what follows from the catalog."""
    if archive.state.newest is None:
        return
    files, findings = derived_files(archive), Findings()
    check_derived(job.store, files, job.sizes, True, findings)
    stale = sorted(f.file for f in findings.found)
    for key in stale:
        job.store.put(key, files[key])
    mark = load_whole(job.store, Derived, layout.DERIVED)
    if mark is None:
        stale.append(layout.DERIVED)
    job.mended += [Mended(key, "written anew") for key in stale]
    if mark is None or mark.catalog != archive.state.number:
        job.store.put(layout.DERIVED, dump(Derived(archive_id=archive.info.id, catalog=archive.state.number)))


def replace_corrupt_lease(store: Store) -> None:
    """Replace a damaged lease, which nobody could take or give back, by a released one. `NewerError` for a lease that
    a newer version wrote: it may be held."""
    try:
        read_lease(store)
    except NotFoundError:
        return
    except NewerError:
        raise
    except CorruptError:
        _, etag = store.get_with_etag(layout.LOCK)
        free = Lease(
            owner=uuid.uuid4().hex,
            host="",
            pid=0,
            command="kbackup repair",
            acquired_at=now(),
            expires_at=now(),
            released=True,
        )
        try:
            store.replace(layout.LOCK, dump(free), etag)
        except (PreconditionError, NotFoundError):
            return  # somebody else saw to it: who holds it now shows in taking it


def _scan(job: _Repair, items: Sequence[ToScan]) -> list[Whole | Damaged]:
    found = read_back(items, ScanWork(job.plain, job.confirm), job.spark, job.listener)
    job.mended += [
        Mended(layout.index_key_of(each.segment.key), "rebuilt")
        for each in found
        if isinstance(each, Whole) and each.index != "whole" and (each.vouched or each.end is None)
    ]
    return found


def read_back(
    items: Sequence[ToScan],
    work: Callable[[Sequence[ToScan], ProgressSender], Iterator[Whole | Damaged]],
    spark: Callable[[], SparkSession],
    listener: Listener,
) -> list[Whole | Damaged]:
    """What `work` finds of each of them: in this process where they are few, else on Spark."""
    if sum(item.size for item in items) <= HERE_BYTES:
        with ThreadPoolExecutor(_THREADS) as pool:
            some = pool.map(lambda item: list(work([item], ProgressSender(None, 0))), items)
            return [found for each in some for found in each]
    expected = sum(row.count for item in items for row in item.rows[:1])
    return run_tasks(
        spark(), _tasks(items), work, lambda records, size: listener.progress(records, size, expected)
    )


def _tasks(items: Sequence[ToScan]) -> list[tuple[ToScan, ...]]:
    tasks: list[list[ToScan]] = []
    room = 0
    for item in items:
        if not tasks or item.size > room or len(tasks[-1]) == _TASK_OBJECTS:
            tasks.append([])
            room = _TASK_BYTES
        tasks[-1].append(item)
        room -= item.size
    return sorted(map(tuple, tasks), key=lambda task: -sum(item.size for item in task))
