"""archive.json and lock.json, made anew where they are lost or damaged."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Sequence

import msgspec

from kbackup.archive import layout
from kbackup.archive.catalog.documents import Catalog, Derived, Latest
from kbackup.archive.encryption import check_encryption
from kbackup.archive.java.content import is_java_archive
from kbackup.archive.lease.hold import read_lease
from kbackup.archive.models import ArchiveInfo, Lease, Manifest, NewerError, dump
from kbackup.archive.repair.base import Documents, load_whole
from kbackup.errors import CorruptError, NoArchiveError, NotFoundError, PreconditionError
from kbackup.jobs.repair.report import Mended, RepairJob
from kbackup.store.base import Store, encryption_of
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.raw import stored
from kbackup.util.times import now


def check_archive_there(store: Store, keys: Sequence[str]) -> None:
    folders = (layout.CATALOG, layout.POINTS, layout.TOPICS)
    if any(key == layout.ARCHIVE or key.startswith(folders) for key in keys):
        return
    hint = (
        "it is a folder of the Java tool: run 'kbackup adopt'"
        if is_java_archive(store)
        else "check the address"
    )
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
    """The archive's id by its catalogs, the newest first, by what names a catalog, and by manifests."""
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
