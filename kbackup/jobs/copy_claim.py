"""Whether a destination is one: nothing yet, or an older copy of the same archive."""

from __future__ import annotations

from collections.abc import Sequence

from kbackup.archive import layout
from kbackup.archive.expired import gone_with
from kbackup.archive.models import ArchiveInfo, Point, load
from kbackup.archive.reader import Archive
from kbackup.archive.transfer import DIVERGED
from kbackup.errors import AlreadyExistsError, NotFoundError, RefusedError
from kbackup.store.address import check_apart
from kbackup.store.base import Store
from kbackup.store.crypt.raw import stored
from kbackup.store.probe import check_conditional_writes


def claim(source: Store, info: ArchiveInfo, target: Store) -> None:
    """Make `target` an archive of the same id, if there is nothing. `UsageError` where it is not apart from `source`,
    `RefusedError` where there is anything else, `StoreError` for a store that can't keep an archive safe."""
    check_apart(target, source)
    if _is_ours(info, target):
        return
    for entry in stored(target).list():
        if not entry.key.startswith(layout.SCRATCH):
            raise RefusedError(
                f"{target.url} is not empty and no archive: there is {entry.key}", "name an empty place"
            )
    check_conditional_writes(target, layout.SCRATCH.rstrip("/"))
    try:
        target.put_new(layout.ARCHIVE, source.get(layout.ARCHIVE))
    except AlreadyExistsError:  # another copy made it just now, of this archive or another one
        _is_ours(info, target)


def _is_ours(info: ArchiveInfo, target: Store) -> bool:
    try:
        there = load(ArchiveInfo, target.get(layout.ARCHIVE), layout.ARCHIVE)
    except NotFoundError:
        return False
    if there.id != info.id:
        raise RefusedError(
            f"{target.url} is another archive ({there.id}, not {info.id})",
            "name an empty place, or its own copy",
        )
    return True


def to_copy(closed: Sequence[Point], source: Archive, target: Archive) -> list[Point]:
    """Those of the manifests `closed` that `target` lacks, in order. `RefusedError` where it has what the source has
    not, but for what went from the source: somebody made backups into it."""
    ours = {point.seq: point.checksum for point in closed}
    there = {point.seq: point.checksum for point in target.closed}
    for seq, checksum in there.items():
        if ours.get(seq) != checksum and gone_with(source.gone, seq) is None:
            raise _diverged(layout.backup_key(seq, layout.MANIFEST), source, target)
    for run in target.runs:
        gone = gone_with(source.gone, run.seq) is not None
        if run.seq not in there and layout.INTENT in run.files and not gone:
            key = layout.backup_key(run.seq, layout.INTENT)
            if run.seq not in ours or stored(source.store).get(key) != stored(target.store).get(key):
                raise _diverged(key, source, target)
    return [point for point in closed if point.seq not in there]


def _diverged(key: str, source: Archive, target: Archive) -> RefusedError:
    return RefusedError(
        f"{target.store.url} is no copy of {source.store.url} any more: it has {key} of its own", DIVERGED
    )
