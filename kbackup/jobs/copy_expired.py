"""What the source does not have any more goes from the copy's view as well, before newer restore points come: they name
what is gone. Nothing is deleted from the copy: that is for 'kbackup expire' there."""

from __future__ import annotations

from collections.abc import Callable

from kbackup.archive import layout
from kbackup.archive.expired import segments_key, segments_left
from kbackup.archive.reader import Archive
from kbackup.archive.settle import is_settled, settle
from kbackup.archive.transfer import DIVERGED, put_same
from kbackup.errors import RefusedError
from kbackup.store.crypt.raw import stored


def copy_expired(source: Archive, target: Archive, check: Callable[[], None]) -> None:
    """Bring the newest expiration along, with its table and the groups and metadata that kept restore points name of
    gone ones. `RefusedError` where the copy has one of its own."""
    ours, theirs = source.expired, target.expired
    if theirs is not None and (
        ours is None
        or theirs.number > ours.number
        or (theirs.number == ours.number and theirs.checksum != ours.checksum)
    ):
        key = layout.expiration_key(theirs.number, layout.EXPIRED)
        raise RefusedError(
            f"{target.store.url} is no copy of {source.store.url} any more: it has {key} of its own",
            DIVERGED,
        )
    if ours is not None and (theirs is None or theirs.number < ours.number):
        segments_left(source.store, ours, ["seq"])  # it is whole
        keys = [segments_key(ours.number, ours.segments), layout.expiration_key(ours.number, layout.EXPIRED)]
        for point in ours.carried:
            for name in (layout.GROUPS, layout.METADATA):
                source.read_part(point, name)
                keys.insert(0, layout.backup_key(point.seq, name))
        for key in keys:
            check()
            put_same(target.store, key, stored(source.store).get(key))
        target.reopen()
    if not is_settled(target):
        settle(target, check)
