"""The repair job: make an archive that has lost files as whole as the remaining files allow.

The newest whole catalog is the base. Restore points that it lacks are listed again if their documents are whole,
damaged segments become losses, and derived files are written anew. Nothing that is whole is deleted.
"""

from __future__ import annotations

import socket
import uuid
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Committed
from kbackup.archive.catalog.documents import Catalog, Derived, Latest, OpenRun
from kbackup.archive.catalog.points import manifest_key, point_row
from kbackup.archive.catalog.retention import drop_unreferenced, lose_segments
from kbackup.archive.catalog.state import ExpiredPoint, PointRow, State
from kbackup.archive.derived import derived_files, put_files
from kbackup.archive.identity import check_encryption
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import ArchiveInfo, Lease, Manifest, dump, load
from kbackup.archive.query.java import is_java_archive
from kbackup.archive.reader import Archive
from kbackup.archive.repair import points
from kbackup.archive.repair.base import Documents, RepairBase, find_base, load_whole, read_documents, unless_damaged
from kbackup.archive.repair.manifests import ManifestRebuilder
from kbackup.archive.repair.segments import (
    Damaged,
    ToScan,
    Whole,
    attribute,
    by_rank,
    missing_segments,
    named_starts,
    scan,
    to_scan,
    unreached,
)
from kbackup.archive.run import WritingRun, put_manifest
from kbackup.archive.segments.table import Segment, Segments, expected_in_order, ordered, sum_of, unpaired
from kbackup.archive.verify.catalog import check_derived, check_present
from kbackup.archive.verify.findings import Findings
from kbackup.errors import NoArchiveError, NotFoundError, PreconditionError, RefusedError
from kbackup.jobs.common import sizes_outside_topics
from kbackup.metrics.registry import Phases, ProgressListener
from kbackup.spark.tasks import ProgressSender, run_tasks
from kbackup.store.base import ObjectInfo, Store, encryption_of
from kbackup.store.crypt import CryptStore, stored
from kbackup.store.wrappers import DryStore, GuardedStore
from kbackup.types import IncarnationPartition
from kbackup.util.system import cut, in_threads
from kbackup.util.times import now

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE_BYTES = 64 << 20
"""Up to this many bytes are read without Spark, which takes longer to start."""
_TASK_BYTES = 64 << 20
_TASK_OBJECTS = 256
_THREADS = 4
T = TypeVar("T")
_SET_AGAIN = "set pins by 'kbackup keep', labels by 'kbackup label'"


@dataclass(frozen=True, slots=True, order=True)
class Mended:
    """A file that was written again, and how."""

    file: str
    what: str


@dataclass(frozen=True)
class RepairReport:
    """The changes of a repair; if it was not `confirmed`, the changes that it would make.

    With `read_data`, every segment was read and its checksum compared, otherwise only its size. `restored` are restore
    points that are listed again, `lost` are restore points that are no longer listed. The whole segments of lost
    restore points get new ones, of which `new_point` is the newest. `losses` says in words which segments and documents
    are lost. `catalog` is the base, None if there was none. An adoption counts the `segments` and `records` of its
    restore point.
    """

    archive: str
    archive_id: str
    confirmed: bool
    read_data: bool
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


@dataclass
class RepairJob:
    """One repair. `store` checks the lease before each write, or keeps writes in memory (a dry run)."""

    plain: Store
    store: Store
    confirm: bool
    read_data: bool
    spark: Callable[[], SparkSession]
    listener: ProgressListener
    sizes: dict[str, int] = field(default_factory=dict)
    modified: Mapping[str, float] = field(default_factory=dict)
    unlisted: dict[str, Segment | None] = field(default_factory=dict)
    """Records objects that no catalog lists, as they were read back; None for a damaged one."""
    without_index: set[str] = field(default_factory=set)
    """Keys of `unlisted` whose index is missing or damaged."""
    mended: list[Mended] = field(default_factory=list)
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
    listener: ProgressListener,
) -> RepairReport:
    """Repair an archive. Without `confirm` nothing is written.

    With `read_data` every segment is read back and compared with its checksum, otherwise only its size is compared.
    Raises `NoArchiveError` if no file of an archive is there.
    """
    if not confirm:
        dry = DryStore(store)
        lease = HeldLease(dry, "kbackup repair", lease_seconds)  # never taken: nothing is written
        job = RepairJob(store, dry, confirm, read_data, spark, listener)
        return _repair(job, lease)
    _check_archive_there(store)
    mended = _replace_corrupt_lease(store)
    with HeldLease(store, "kbackup repair", lease_seconds) as lease:
        guarded = GuardedStore(store, lease.check)
        job = RepairJob(store, guarded, confirm, read_data, spark, listener, mended=mended)
        return _repair(job, lease)


def _repair(job: RepairJob, lease: HeldLease) -> RepairReport:
    """Do the phases of a repair; in a dry run, all writes stay in memory."""
    phases = Phases(job.listener)
    with phases.step("list objects"):
        _check_archive_there(job.store)
        job.sizes = sizes_outside_topics(job.store)
    with phases.step("restore points"):
        if not job.confirm:
            job.mended += _replace_corrupt_lease(job.store)
        documents = read_documents(job.store, job.sizes)
        info = _archive_info(job, documents)
        base = find_base(job.store, job.sizes, info.id)
        job.mended += _mended_catalogs(base)
    archive = Archive(job.store, info, base.committed)
    writing = WritingRun(archive, job.plain, lease, "repair")
    with phases.step("read segments"):
        damaged = _damaged_segments(job, base, documents)
        state, manifests = _rebuild_state(job, base, documents, damaged)
        after = lose_segments(state, damaged)
        known = set(base.state.lost)
        job.losses += [row.loss.message for row in after.damage if row not in known]
    with phases.step("commit"):
        rebuilder = ManifestRebuilder(writing, documents, manifests)
        after = rebuilder.mend(after)
        after = _add_new_points(job, writing, base, after, rebuilder.manifests, documents)
        job.losses += rebuilder.losses
        job.mended += [Mended(key, "made anew") for key in rebuilder.made]
        _commit(job, writing, base, after)
        if job.without_index:
            # The commit has listed these segments, so their indexes are written now.
            listed = ordered([after.segments.read()]).segments
            is_without_index = [key in job.without_index for (key,) in listed.rows("key")]
            _scan_segments(job, listed.where(np.array(is_without_index)))
        _refresh_derived_files(job, writing.archive)
    return _report(job, info, base, after, phases)


def _mended_catalogs(base: RepairBase) -> list[Mended]:
    mended = [Mended(key, "replaced: its rows come from elsewhere") for key in base.files]
    if base.committed.catalog is not None:
        for number in base.lost:
            mended.append(Mended(layout.catalog_key(number), "left behind: a new catalog follows"))
    for key in base.past:
        mended.append(Mended(key, "left out: nothing needs it any more"))
    return mended


def _report(job: RepairJob, info: ArchiveInfo, base: RepairBase, after: State, phases: Phases) -> RepairReport:
    catalog = base.committed.catalog
    new_totals = [manifest.totals for manifest in job.new_points.values()]
    new_segments = sum(totals.segments for totals in new_totals)
    new_records = sum(totals.records for totals in new_totals)
    restored = sorted(job.restored)
    lost = sorted(job.lost)
    mended = sorted(set(job.mended))
    return RepairReport(
        archive=job.store.url,
        archive_id=info.id,
        confirmed=job.confirm,
        read_data=job.read_data,
        catalog=catalog.number if catalog is not None else None,
        restored=tuple(restored),
        lost=tuple(lost),
        new_point=max(job.new_points, default=None),
        losses=tuple(job.losses),
        warnings=(*_warnings(base, after), *_erasure_warnings(job, base, after)),
        mended=tuple(mended),
        segments=new_segments,
        records=new_records,
        seconds=phases.seconds,
    )


def _warnings(base: RepairBase, after: State) -> tuple[str, ...]:
    """Return a warning if catalogs are lost, and with them what no other file has."""
    catalog = base.committed.catalog
    if catalog is not None and base.lost:
        return (
            f"lost or damaged catalogs after catalog {catalog.number}: {len(base.lost)}; pins and labels are as of "
            f"catalog {catalog.number}; {_SET_AGAIN}",
        )
    if catalog is None and (after.restore_points or base.lost):
        return (f"no catalog is left: pins, labels, log starts and the history are lost; {_SET_AGAIN}",)
    return ()


def _erasure_warnings(job: RepairJob, base: RepairBase, after: State) -> tuple[str, ...]:
    """Return a warning if records that were erased may be back: what says so is lost, and a segment is there that was
    written without them."""
    if base.is_whole:
        return ()
    (listed,) = after.segments.columns("key")
    unlisted = job.sizes.keys() - set(listed)
    rewritten = any(key.startswith(layout.TOPICS) and layout.rewrite_of(key) for key in unlisted)
    if not rewritten and "erased" not in base.stale:
        return ()
    return (
        "records that were erased since may be in the archive again: the catalog or table that left them out is lost; "
        "see 'kbackup log' and erase them again",
    )


# archive.json and lock.json, where they are missing or damaged.


def _check_archive_there(store: Store) -> None:
    for folder in (layout.ARCHIVE, layout.CATALOG, layout.POINTS, layout.TOPICS):
        for _ in store.list(folder):
            return
    hint = "it is a folder of the Java tool: run 'kbackup adopt'" if is_java_archive(store) else "check the address"
    raise NoArchiveError(f"there is no archive at {store.url}", hint)


def _replace_corrupt_lease(store: Store) -> list[Mended]:
    """Replace a damaged lease, which nobody could take or give back, by a released one. `NewerError` for a lease that
    a newer version wrote: it may be held."""
    try:
        data, etag = store.get_with_etag(layout.LOCK)
    except NotFoundError:
        return []
    if unless_damaged(lambda: load(Lease, data, layout.LOCK)) is not None:
        return []
    free = Lease(
        owner=uuid.uuid4().hex,
        host="",
        pid=0,
        command="kbackup repair",
        acquired_at=now(),
        expires_at=now(),
        released=True,
    )
    # Somebody else replaced or deleted the lease meanwhile. If it is held now, taking it tells so.
    with suppress(PreconditionError, NotFoundError):
        store.replace(layout.LOCK, dump(free), etag)
    return [Mended(layout.LOCK, "replaced by a lease that nobody holds")]


def _archive_info(job: RepairJob, documents: Documents) -> ArchiveInfo:
    """Return archive.json. If it is missing, damaged or of another archive, it is written anew with the id that the
    other files have."""
    info = load_whole(job.store, ArchiveInfo, layout.ARCHIVE)
    ids = _ids_of_archive(job, documents)
    if info is None:
        # Files of data keys tell that the archive is encrypted: opened without a key, it must not get plain files.
        first_key_file = next(stored(job.plain).list(layout.KEYS), None)
        encryption = CryptStore.encryption if first_key_file is not None else None
        check_encryption(job.store, ArchiveInfo(id="", created_at="", encryption=encryption))
        archive_id = next(ids, uuid.uuid4().hex)
        info = ArchiveInfo(id=archive_id, created_at=now(), encryption=encryption_of(job.store))
    else:
        check_encryption(job.store, info)
        newest = next(ids, info.id)
        # One other file with its id confirms archive.json, though the newest file may be of another archive.
        if newest == info.id or info.id in ids:
            return info
        info = msgspec.structs.replace(info, id=newest)
    job.mended.append(Mended(layout.ARCHIVE, "written anew"))
    job.store.put(layout.ARCHIVE, dump(info))
    return info


def _ids_of_archive(job: RepairJob, documents: Documents) -> Iterator[str]:
    """Yield the archive's id by its catalogs, the newest first, by what names a catalog, and by manifests."""
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
    for document, _ in documents.values():
        if isinstance(document, Manifest):
            yield document.archive_id


# Reading segments back: in this process where they are few, else on Spark.


def _scan_each(
    store: Store, mend: bool, task: Sequence[ToScan | Segment], progress: ProgressSender
) -> Iterator[Whole | Damaged]:
    """Do a task: read some records objects, each as a whole. With `mend`, a damaged index is written anew. The results
    leave out listed segments that are whole and have a whole index."""
    for each in task:
        item = to_scan(each.key, each.stored, each) if isinstance(each, Segment) else each
        if item is None:
            continue
        found = scan(store, item, mend)
        if isinstance(found, Whole):
            progress.add(found.segment.count, found.segment.bytes)
        if item.row is None or isinstance(found, Damaged) or found.index != "whole":
            yield found


def read_back(
    items: Sequence[T],
    sizes: Sequence[int],
    work: Callable[[Sequence[T], ProgressSender], Iterator[Whole | Damaged]],
    spark: Callable[[], SparkSession],
    listener: ProgressListener,
    expected: int = 0,
) -> list[Whole | Damaged]:
    """Return the results of `work` for all items. Small items are read in this process, others on Spark. `expected` is
    the number of their records, as far as it is known."""
    if sum(sizes) <= HERE_BYTES:

        def work_here(item: T) -> list[Whole | Damaged]:
            return list(work([item], ProgressSender(None, 0)))

        results = in_threads(work_here, items, _THREADS)
        return list(chain.from_iterable(results))
    parts = list(cut(sizes, _TASK_BYTES, _TASK_OBJECTS))
    parts.sort(key=lambda part: sum(sizes[part]), reverse=True)
    tasks = [items[part] for part in parts]

    def report(records: int, size: int) -> None:
        listener.progress(records, size, expected)

    return run_tasks(spark(), tasks, work, report)


def _scan_segments(job: RepairJob, items: Segments | list[ToScan]) -> list[Whole | Damaged]:
    """Read unlisted records objects, or listed segments."""
    if isinstance(items, Segments):
        stored_sizes = items.integers("stored")
        sizes = array("q", stored_sizes.tobytes())
        expected = sum_of(items, "count")
    else:
        sizes = array("q", (item.size for item in items))
        expected = 0
    work = partial(_scan_each, job.plain, job.confirm)
    scanned = read_back(items, sizes, work, job.spark, job.listener, expected)
    for result in scanned:
        if isinstance(result, Whole) and result.index != "whole" and result.vouched:
            index_key = layout.index_key_of(result.segment.key)
            job.mended.append(Mended(index_key, "rebuilt"))
    return scanned


def _damaged_segments(job: RepairJob, base: RepairBase, documents: Documents) -> dict[str, str]:
    """Return the keys of records objects of the catalog that are missing or damaged, each with the reason. Indexes are
    mended. `job.sizes` gets objects under topics/: all of them if segments have to be listed anew, otherwise only the
    objects that are no whole ones of listed segments."""
    added = ordered([base.state.segments.read()], checked=True)
    findings = Findings()
    entries: Iterable[ObjectInfo] = job.store.list(layout.TOPICS)
    if not base.is_whole or points.unlisted_points(base, documents):
        entries = list(entries)
        job.sizes |= {entry.key: entry.size for entry in entries}
        job.modified = {entry.key: entry.modified for entry in entries}
    others, lacking = unpaired(entries, expected_in_order(added.parts))
    job.sizes |= others
    present = check_present(added.segments, lacking, job.sizes, findings)
    damaged: dict[str, str] = {}
    if findings.entries:
        wrong = {finding.file: finding.what for finding in findings.entries}
        for (key,) in added.segments.rows("key"):
            if key in wrong:
                damaged[key] = f"the segment {wrong[key]}"

    due: list[bool] = []
    for (key,) in present.rows("key"):
        # A segment is read if that is asked for, or to make its index anew.
        is_wanted = job.read_data or layout.index_key_of(key) in lacking
        due.append(is_wanted and key not in lacking)
    for found in _scan_segments(job, present.where(np.array(due, np.bool_))):
        if isinstance(found, Damaged):
            damaged[found.key] = found.why
    return damaged


def _unlisted_segments(job: RepairJob, state: State) -> list[Segment]:
    """Return the whole segments that `state` does not list. Each is read once, and once more to write its index."""
    (listed,) = state.segments.columns("key")
    known = set(listed)
    keys = [key for key in job.sizes if key.startswith(layout.TOPICS) and key not in known]
    items: list[ToScan] = []
    for key in keys:
        item = to_scan(key, job.sizes[key]) if key not in job.unlisted else None
        if item is not None:
            items.append(item)
    for result in _scan_segments(job, items):
        if isinstance(result, Whole):
            job.unlisted[result.segment.key] = result.segment
            if result.index != "whole":
                job.without_index.add(result.segment.key)
        else:
            job.unlisted[result.key] = None
    segments = [job.unlisted.get(key) for key in keys]
    return [segment for segment in segments if segment is not None]


# The state that a repair commits: of catalogs, and of restore points and segments that no catalog lists.


def _rebuild_state(
    job: RepairJob, base: RepairBase, documents: Documents, damaged: Mapping[str, str]
) -> tuple[State, dict[int, Manifest]]:
    """Return the state of the base, and the whole manifests by number. If catalogs or tables are lost, the state gets
    the restore points and segments that the base lacks. Behind a whole base only the restore point of the open run is
    listed, if its manifest is whole (`points.unlisted_points`)."""
    state = base.state
    manifests = points.listed_manifests(state, documents)
    unlisted = points.unlisted_points(base, documents)
    if base.is_whole and not unlisted:
        return state, manifests
    for number, (manifest, _) in unlisted.items():
        manifests[number] = manifest
    job.restored |= unlisted.keys()
    state = _with_numbers(job, base, [point for _, point in unlisted.values()])
    if not state.isolation_levels:
        state = replace(state, isolation_levels=frozenset(m.isolation_level for m in manifests.values()))
    manifests = {number: manifests[number] for number in state.numbers.tolist() if number in manifests}
    state = points.without_expired(state)
    segments = _unlisted_segments(job, state)
    rows = attribute(segments, state, manifests, job.modified)
    lives = points.lives_of(state, manifests, job.sizes)
    # losses of expired restore points concern later ones
    known: dict[int, Manifest] = {}
    for document, _ in documents.values():
        if isinstance(document, Manifest) and (document.number, document.checksum) in state.lineage:
            known[document.number] = document
    losses = points.losses_of(state, known | manifests)
    state = points.with_rows(state, lives, rows, losses)
    without = lose_segments(state, damaged)
    missing = missing_segments(without, manifests, named_starts(job.store, job.sizes))
    return replace(state, losses=state.losses_with(missing)), manifests


def _with_numbers(job: RepairJob, base: RepairBase, unlisted: Sequence[PointRow]) -> State:
    """Return the state of the base with the `unlisted` restore points. Numbers that files have, and no restore point,
    are of lost ones: no later restore point may get such a number."""
    given: set[int] = set()
    for key in job.sizes:
        parsed = layout.parse_point_key(key)
        if parsed is not None:
            given.add(parsed[0])
    state = points.with_points(base.state, unlisted, max(given, default=0) + 1)
    # Files under a lower number are left over from an expired restore point, unless the table of them is lost.
    least = 0 if "points" in base.stale else base.state.next_point
    accounted_for = {*state.numbers.tolist(), *state.past_manifests}
    job.lost |= {number for number in given if number >= least} - accounted_for
    lost = sorted(job.lost - state.past_manifests.keys())
    past = [ExpiredPoint(number, "") for number in lost]
    return replace(state, past=state.past.append(past))


def _add_new_points(
    job: RepairJob,
    writing: WritingRun,
    base: RepairBase,
    state: State,
    manifests: dict[int, Manifest],
    documents: Documents,
) -> State:
    """Return `state` with new restore points of whole segments whose own manifests are lost."""
    writing.archive.move(Committed(state, base.committed.catalog))
    has_manifests = manifests.keys() >= set(state.numbers.tolist())
    if base.is_whole or (base.lists_segments and has_manifests):
        # What else is there has expired, and waits for a sweep, or belongs to the next backup.
        return state
    # Before unreferenced segments are dropped: their first offsets were committed all the same.
    committed: dict[IncarnationPartition, set[int]] = defaultdict(set)
    for place, starts in writing.archive.starts().items():
        committed[place].update(starts.tolist())
    state = drop_unreferenced(state)
    unlisted = _unlisted_segments(job, state)
    if not manifests:
        # Nothing is left that says which segments were committed: then all count.
        for segment in unlisted:
            committed[segment.incarnation_partition].add(segment.first)
    named = named_starts(job.store, job.sizes)
    for place, firsts in committed.items():
        firsts.update(named.get(place, ()))
        named[place] = sorted(firsts)
    segments = unreached(unlisted, state, manifests, named)
    head = manifests.get(max(manifests, default=0))
    captured = points.captured_topics(documents)
    incarnations: dict[str, int] = {}
    if head is not None:
        incarnations = {topic.name: topic.incarnation for topic in head.topics}
    ranks = by_rank(segments, incarnations)
    for at, of_rank in enumerate(ranks):
        number = state.next_point
        is_last = at == len(ranks) - 1
        ids = {key: life.topic_id for key, life in state.lives.items()}
        behind = points.manifest_behind(writing, head, of_rank, ids, job.sizes, captured, number, last=is_last)
        manifest = put_manifest(writing, behind)
        job.new_points[number] = manifests[number] = manifest
        rows = attribute(of_rank, state, {number: manifest})
        row = point_row(manifest, manifest_key(manifest))
        state = points.with_points(state, [row], number + 1)
        lives = points.lives_of(replace(state, segments=state.segments.append(rows)), manifests, job.sizes)
        state = points.with_rows(state, lives, rows, ())
        missing = missing_segments(state, manifests, named)
        job.losses += [row.loss.message for row in missing]
        job.losses.append(f"restore points without a manifest: restore point {number} has their whole segments")
        state = replace(state, losses=state.losses_with(missing))
        writing.archive.move(Committed(state, base.committed.catalog))
    return state


def _commit(job: RepairJob, writing: WritingRun, base: RepairBase, after: State) -> None:
    """Commit the state and close every other run, in one catalog; nothing is undone to a catalog before it. A run that
    was open, or whose catalogs are lost, may have left segments: then the repair's own run stays open, and the next
    backup takes the segments over."""
    latest = load_whole(job.store, Latest, layout.LATEST)
    catalog = base.committed.catalog
    if catalog is None and not base.lost and not after.restore_points:
        return
    if catalog is not None and after is base.state and not base.lost and not base.past:
        # A commit would write latest.json; without one it is mended alone.
        if latest is None or latest.archive_id != after.archive_id:
            job.store.put(layout.LATEST, dump(Latest(archive_id=after.archive_id, number=after.number)))
            job.mended.append(Mended(layout.LATEST, "written anew"))
        return
    run = OpenRun(
        run=writing.run,
        command="repair",
        host=socket.gethostname(),
        started_at=now(),
        isolation_level="read_uncommitted" if after.isolation_levels == {"read_uncommitted"} else "read_committed",
    )
    may_have_orphans = base.state.open_run is not None or not base.is_whole

    def operation(state: State) -> State:
        if state.number != base.state.number:
            raise RefusedError("the archive was changed during the repair", "run 'kbackup repair' again")
        open_run = run if may_have_orphans else None
        return replace(after, number=state.number, swept=state.number, open_run=open_run)

    counts = {
        "losses": len(job.losses),
        "restore points listed again": len(job.restored),
        "new restore points": len(job.new_points),
    }
    summary = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    # New restore points moved the archive on in memory: the commit starts from what is in the store.
    writing.archive.move(base.committed)
    writing.commit(operation, "repair", summary or "the state of an earlier catalog")


def _refresh_derived_files(job: RepairJob, archive: Archive) -> None:
    """Write the derived files that are not what follows from the catalog."""
    if archive.state.newest is None:
        return
    files = derived_files(archive)
    findings = Findings()
    check_derived(job.store, files, job.sizes, True, findings)
    stale = sorted(finding.file for finding in findings.entries)
    put_files(job.store, [(key, files[key]) for key in stale])
    mark = load_whole(job.store, Derived, layout.DERIVED)
    if mark is None:
        stale.append(layout.DERIVED)
    job.mended += [Mended(key, "written anew") for key in stale]
    if mark is None or mark.catalog != archive.state.number:
        job.store.put(layout.DERIVED, dump(Derived(archive_id=archive.info.id, catalog=archive.state.number)))
