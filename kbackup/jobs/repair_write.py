"""The writes of a repair, each in an order that leaves an archive no worse where it is cut off: data keys and records
are never written, manifests are created, what is derived is replaced."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kbackup.archive import layout
from kbackup.archive.fold import fold
from kbackup.archive.lease import read_lease
from kbackup.archive.models import (
    ArchiveInfo,
    Lease,
    NewerError,
    dump,
    now,
)
from kbackup.archive.reader import open_archive
from kbackup.archive.repair import derived
from kbackup.archive.repair.choose import LeftOut
from kbackup.archive.repair.left import Left
from kbackup.errors import AlreadyExistsError, CorruptError, NotFoundError, PreconditionError
from kbackup.store.base import Store, encryption_of
from kbackup.store.crypt.raw import stored


@dataclass(frozen=True, slots=True, order=True)
class Mended:
    """A file that was made anew, and how."""

    file: str
    what: str


def free_the_lease(store: Store) -> None:
    """Replace a damaged lease, which nobody could take or give back, by one that was given back. `NewerError` for one
    that a newer version wrote: it may be held."""
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


def put_info(store: Store, left: Left, confirm: bool) -> list[Mended]:
    """archive.json, where it is missing or damaged: under the id that everything else has, or a new one."""
    if left.has_info:
        return []
    what = "written anew" if left.archive_id else "written anew, with a new id: nothing tells the old one"
    if confirm:
        left.archive_id = left.archive_id or uuid.uuid4().hex
        began = min((m.started_at for m in left.manifests), default=now())
        data = dump(ArchiveInfo(id=left.archive_id, created_at=began, encryption=encryption_of(store)))
        if layout.ARCHIVE in left.sizes:
            store.put(layout.ARCHIVE, data)  # it can't be read: nobody relies on it
        else:
            store.put_new(layout.ARCHIVE, data)
        left.has_info = True
    return [Mended(layout.ARCHIVE, what)]


def write_derived(
    store: Store, files: Mapping[str, bytes], confirm: bool, check: Callable[[], None]
) -> list[Mended]:
    for key, data in files.items():
        if confirm:
            check()
            store.put(key, data)
    return [Mended(key, "written anew") for key in files]


def rebuild_checkpoints(store: Store, left: Left, confirm: bool, check: Callable[[], None]) -> list[Mended]:
    """Damaged ones go, all of them: the newest first, so that none is left that names a part that is gone."""
    keys = derived.damaged_checkpoints(store, left)
    if keys and confirm:
        check()
        delete(store, sorted(keys, reverse=True))
        archive = open_archive(store)
        if archive.head is not None:
            fold(archive, archive.head, check)
    return [Mended(key, "removed: checkpoints are made anew") for key in keys]


def set_aside(
    store: Store,
    seq: int,
    left_out: Sequence[LeftOut],
    sizes: Mapping[str, int],
    check: Callable[[], None],
) -> None:
    """What was left out goes from topics/ to damaged/<seq>/, as it is stored, with its index: a later backup may
    need the names. It is deleted where it was when it is there."""
    raw = stored(store)
    for each in left_out:
        for key in (each.key, layout.index_key_of(each.key)):
            if key not in sizes:
                continue
            check()
            try:
                with raw.upload(layout.damaged_key(seq, key)) as upload:
                    for chunk in raw.open_range(key, 0, raw.stat(key).size):
                        upload.write(chunk)
                    upload.commit()
            except AlreadyExistsError:
                pass  # a repair that was cut off had come so far
            delete(store, [key])


def delete(store: Store, keys: Sequence[str]) -> None:
    for failed in store.delete(keys):
        raise failed.error
