"""Check that a destination can be a copy: it is empty, or a copy of the same archive."""

from __future__ import annotations

from kbackup.archive import layout
from kbackup.archive.models import ArchiveInfo, load
from kbackup.errors import AlreadyExistsError, NotFoundError, RefusedError
from kbackup.store.apart import check_apart
from kbackup.store.base import Store
from kbackup.store.crypt.raw import stored
from kbackup.store.probe import check_conditional_writes


def claim(source: Store, info: ArchiveInfo, target: Store) -> None:
    """Make `target` an archive of the same id, if there is nothing. `RefusedError` where there is anything else,
    `StoreError` for a store that can't keep an archive safe."""
    check_apart(target, source)
    if _is_ours(info, target):
        return
    for entry in stored(target).list():
        if not entry.key.startswith(layout.SCRATCH):
            raise RefusedError(
                f"{target.url} is not empty and no archive: there is {entry.key}", "copy to an empty address"
            )
    check_conditional_writes(target, layout.SCRATCH.rstrip("/"))
    try:
        target.put_new(layout.ARCHIVE, source.get(layout.ARCHIVE))
    except AlreadyExistsError:  # another copy made it just now, of this archive or another one
        _is_ours(info, target)


def _is_ours(info: ArchiveInfo, target: Store) -> bool:
    try:
        existing = load(ArchiveInfo, target.get(layout.ARCHIVE), layout.ARCHIVE)
    except NotFoundError:
        return False
    if existing.id != info.id:
        raise RefusedError(
            f"{target.url} is another archive ({existing.id}, not {info.id})",
            "copy to an empty address, or to this archive's own copy",
        )
    return True
