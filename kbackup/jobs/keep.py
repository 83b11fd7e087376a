"""Pinning restore points: what is pinned no policy takes away, nor the records that it stands on."""

from __future__ import annotations

from dataclasses import dataclass

from kbackup.archive import layout
from kbackup.archive.expired import read_pins
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import Pin, dump, now
from kbackup.archive.reader import open_archive
from kbackup.errors import UsageError
from kbackup.store.base import Store


@dataclass(frozen=True)
class KeepReport:
    """`changed`: it was not so before. `pinned` are all that are pinned now."""

    archive: str
    restore_point: int
    changed: bool
    pinned: tuple[int, ...]


def keep(store: Store, wanted: str, lease_seconds: float, *, undo: bool) -> KeepReport:
    """Pin a restore point (a number, or 'latest'), or take that back. Under the lease, so that nothing expires at this
    moment. `UsageError` where there is no such restore point, or no pin."""
    open_archive(store).restore_point("latest")  # whether there is one, before a lease is made there
    with HeldLease(store, "kbackup keep", lease_seconds) as lease:
        archive = open_archive(store)
        pins = read_pins(store, archive.info.id)
        # a pin of what is not there any more can be taken back
        lone = undo and wanted.isdecimal() and int(wanted) in pins
        seq = int(wanted) if lone else archive.restore_point(wanted).seq
        if undo and seq not in pins:
            raise UsageError(f"restore point {seq} is not pinned", "'kbackup list' shows which are")
        lease.check()
        if undo:
            for failed in store.delete([layout.pin_key(seq)]):
                raise failed.error
        elif seq not in pins:
            store.put_new(layout.pin_key(seq), dump(Pin(archive_id=archive.info.id, seq=seq, at=now())))
        left = pins.keys() - {seq} if undo else pins.keys() | {seq}
        return KeepReport(store.url, seq, left != pins.keys(), tuple(sorted(left)))
