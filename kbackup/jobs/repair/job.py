"""The repair job: find what is lost, make it anew from what is there, and commit."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from kbackup.archive import layout
from kbackup.archive.catalog.documents import Catalog, Derived, Latest, OpenRun
from kbackup.archive.catalog.retention import lose_segments
from kbackup.archive.catalog.state import State
from kbackup.archive.derived import derived_files
from kbackup.archive.identity import check_encryption
from kbackup.archive.lease import HeldLease, read_lease
from kbackup.archive.models import ArchiveInfo, Lease, Manifest, NewerError, dump
from kbackup.archive.query.java import is_java_archive
from kbackup.archive.reader import Archive
from kbackup.archive.repair.base import Documents, RepairBase, find_base, load_whole, read_documents
from kbackup.archive.repair.mend import Mender
from kbackup.archive.run import WritingRun
from kbackup.archive.verify.catalog import check_derived
from kbackup.archive.verify.findings import Findings
from kbackup.errors import CorruptError, NoArchiveError, NotFoundError, PreconditionError, RefusedError
from kbackup.jobs.repair.rebuild import (
    Mended,
    RepairJob,
    RepairReport,
    add_new_points,
    damaged_segments,
    mend_indexes,
    rebuild_state,
)
from kbackup.metrics.registry import Phases, ProgressListener
from kbackup.store.base import Store, encryption_of
from kbackup.store.crypt import CryptStore, stored
from kbackup.store.wrappers import DryStore, GuardedStore
from kbackup.util.times import now

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check_archive_there(store: Store, keys: Sequence[str]) -> None:
    folders = (layout.CATALOG, layout.POINTS, layout.TOPICS)
    if any(key == layout.ARCHIVE or key.startswith(folders) for key in keys):
        return
    hint = "it is a folder of the Java tool: run 'kbackup adopt'" if is_java_archive(store) else "check the address"
    raise NoArchiveError(f"there is no archive at {store.url}", hint)


def damaged_lease(store: Store, keys: Collection[str]) -> list[Mended]:
    """Return the repair of a damaged lease; empty for a whole one and for none."""
    if layout.LOCK in keys and load_whole(store, Lease, layout.LOCK) is None:
        return [Mended(layout.LOCK, "replaced by a lease that nobody holds")]
    return []


def archive_info(job: RepairJob, documents: Documents) -> ArchiveInfo:
    """archive.json; where it is missing, damaged or another archive's it is written anew, under the id that everything
    else has."""
    info = load_whole(job.store, ArchiveInfo, layout.ARCHIVE)
    ids = _ids_of_archive(job, documents)
    if info is None:
        sealed = next(stored(job.plain).list(layout.KEYS), None) is not None
        encryption = CryptStore.encryption if sealed else None
        check_encryption(job.store, ArchiveInfo(id="", created_at="", encryption=encryption))
        archive_id = next(ids, uuid.uuid4().hex)
        info = ArchiveInfo(id=archive_id, created_at=now(), encryption=encryption_of(job.store))
    else:
        check_encryption(job.store, info)
        newest = next(ids, info.id)
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
    derived = load_whole(job.store, Derived, layout.DERIVED)
    yield from (mark.archive_id for mark in (latest, derived) if mark is not None)
    yield from (document.archive_id for document, _ in documents.values() if isinstance(document, Manifest))


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


# The commit of a repair, and the derived files that follow from it.


def commit_repair(job: RepairJob, writing: WritingRun, base: RepairBase, after: State) -> None:
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
    may_have_orphans = base.state.open_run is not None or not base.is_whole

    def operation(state: State) -> State:
        if state.number != base.state.number:
            raise RefusedError("the archive was changed during the repair", "run 'kbackup repair' again")
        open_run = run if may_have_orphans else None
        return replace(after, number=state.number, swept=state.number, open_run=open_run)

    writing.archive.move(base.committed)
    writing.commit(operation, "repair", _summary(job))


def _summary(job: RepairJob) -> str:
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


def refresh_derived_files(job: RepairJob, archive: Archive) -> None:
    """Write the derived files that are not what follows from the catalog."""
    if archive.state.newest is None:
        return
    files, findings = derived_files(archive), Findings()
    check_derived(job.store, files, job.sizes, True, findings)
    stale = sorted(f.file for f in findings.entries)
    for key in stale:
        job.store.put(key, files[key])
    mark = load_whole(job.store, Derived, layout.DERIVED)
    if mark is None:
        stale.append(layout.DERIVED)
    job.mended += [Mended(key, "written anew") for key in stale]
    if mark is None or mark.catalog != archive.state.number:
        job.store.put(layout.DERIVED, dump(Derived(archive_id=archive.info.id, catalog=archive.state.number)))


def new_losses(before: State, after: State) -> list[dict[str, Any]]:
    known = {tuple(row.values()) for row in before.losses.dicts()}
    return [row for row in after.losses.dicts() if row["kind"] == "damaged" and tuple(row.values()) not in known]


_SET_AGAIN = "set pins by 'kbackup keep', labels by 'kbackup label'"


def warnings_of(base: RepairBase, restore_points: int) -> list[str]:
    if base.committed.catalog is None:
        if not restore_points and not base.lost:
            return []
        return [f"no catalog is left: pins, labels, log starts and the history are lost; {_SET_AGAIN}"]
    if not base.lost:
        return []
    number = base.committed.catalog.number
    return [
        f"lost or damaged catalogs after catalog {number}: {len(base.lost)}; pins and labels are as of catalog "
        f"{number}; {_SET_AGAIN}"
    ]


# The repair job: an archive that has lost files, as whole as it can be made from what is there.
#
# The newest whole catalog is the base. Restore points that it lacks come back where their documents are whole,
# damaged segments become losses, and what follows from the catalog is written anew. Nothing that is whole is deleted.


def repair(
    store: Store,
    confirm: bool,
    read_data: bool,
    lease_seconds: float,
    spark: Callable[[], SparkSession],
    listener: ProgressListener,
) -> RepairReport:
    """Repair an archive; without `confirm` nothing is written. With `read_data` every segment is read back and held
    against its checksum; else against its size. `NoArchiveError` if there is nothing of an archive."""
    if not confirm:
        dry = DryStore(store)
        lease = HeldLease(dry, "kbackup repair", lease_seconds)  # not taken
        return _repair(RepairJob(store, dry, confirm, read_data, spark, listener), lease)
    keys = [entry.key for entry in store.list()]
    check_archive_there(store, keys)
    mended = damaged_lease(store, keys)
    replace_corrupt_lease(store)
    with HeldLease(store, "kbackup repair", lease_seconds) as lease:
        guarded = GuardedStore(store, lease.check)
        job = RepairJob(store, guarded, confirm, read_data, spark, listener)
        job.mended += mended
        return _repair(job, lease)


def _repair(job: RepairJob, lease: HeldLease) -> RepairReport:
    phases = Phases(job.listener)
    with phases.step("list objects"):
        entries = list(job.store.list())
        job.sizes = {entry.key: entry.size for entry in entries}
        job.modified = {entry.key: entry.modified for entry in entries}
        check_archive_there(job.store, list(job.sizes))
    with phases.step("restore points"):
        job.mended += damaged_lease(job.store, job.sizes)
        documents = read_documents(job.store, job.sizes)
        info = archive_info(job, documents)
        base = find_base(job.store, job.sizes, info.id)
        job.mended += [Mended(key, "replaced: its rows come from elsewhere") for key in base.files]
        if base.committed.catalog is not None:
            job.mended += [
                Mended(layout.catalog_key(number), "left behind: a new catalog follows") for number in base.lost
            ]
        job.mended += [Mended(key, "left out: nothing needs it any more") for key in base.past]
    archive = Archive(job.store, info, base.committed)
    writing = WritingRun(archive, job.plain, lease, "repair")
    with phases.step("read segments"):
        damaged = damaged_segments(job, base.state)
        state, manifests = rebuild_state(job, base, documents, damaged)
        after = lose_segments(state, damaged)
        job.losses += [row["message"] for row in new_losses(base.state, after)]
    with phases.step("commit"):
        mender = Mender(writing, documents, manifests)
        after = add_new_points(job, writing, base, mender.mend(after), mender.manifests, documents)
        job.losses += mender.losses
        job.mended += [Mended(key, "made anew") for key in mender.made]
        commit_repair(job, writing, base, after)
        mend_indexes(job, after)
        refresh_derived_files(job, writing.archive)
    return RepairReport(
        job.store.url,
        info.id,
        job.confirm,
        job.read_data,
        catalog=base.committed.catalog.number if base.committed.catalog is not None else None,
        restored=tuple(sorted(job.restored)),
        lost=tuple(sorted(job.lost)),
        new_point=max(job.new_points, default=None),
        losses=tuple(job.losses),
        warnings=(*warnings_of(base, len(after.restore_points)), *job.warnings),
        mended=tuple(sorted(set(job.mended))),
        segments=sum(manifest.totals.segments for manifest in job.new_points.values()),
        records=sum(manifest.totals.records for manifest in job.new_points.values()),
        seconds=phases.seconds,
    )
