"""Check that the archive can be read and written as a backup does."""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Callable

from kbackup.archive import layout
from kbackup.archive.lease.hold import holder
from kbackup.archive.lease.process import describe
from kbackup.archive.reader import Archive, open_archive
from kbackup.errors import LockedError, NoArchiveError, StoreError
from kbackup.jobs.check.steps import Steps
from kbackup.store.base import Store, encryption_of
from kbackup.store.probe import check_conditional_writes

_SKEW = 60.0  # s between two clocks; leases live about as long
_SCRATCH_BYTES = 256 << 10


WRITES = (
    "archive: conditional writes",
    "archive: upload, read, list",
    "archive: clock",
    "archive: delete",
    "archive: lease",
)


def check_archive(steps: Steps, named: Callable[[], Store]) -> Archive | None:
    """Returns the archive where there is one."""
    archive: Archive | None = None
    reached = False
    with steps.trying("archive: open") as step:
        store = named()
        try:
            opened = open_archive(store)
            reached = True
            head = opened.head
            newest = f"restore point {head.number} of {head.committed_at}" if head else "no restore point yet"
            step.detail = f"{store.url}: {newest}"
            archive = opened
        except NoArchiveError:
            reached = True
            step.detail = f"{store.url}: none there, the first backup makes it"
    if not reached:
        steps.skip(WRITES, "the archive was not reached")
        return None
    if encryption_of(store) is not None:
        with steps.trying("archive: key") as step:
            from kbackup.jobs.keys.job import try_key

            step.detail = f"{try_key(store)} wraps and unwraps"
    scratch = f"{layout.SCRATCH}{uuid.uuid4().hex}"
    with steps.trying(WRITES[0]) as step:
        check_conditional_writes(store, scratch)
        step.detail = "two writers can't overwrite each other"
    try:
        _check_writes(steps, store, f"{scratch}/object")
    except BaseException:  # an interrupt between upload and delete
        store.delete([f"{scratch}/object"])
        raise
    with steps.trying(WRITES[4]) as step:
        lease = holder(store)
        if lease is not None:
            raise LockedError(
                f"archive {store.url} is locked by {describe(lease)}",
                "wait until it ends: then a backup can begin",
            )
        step.detail = "free"
    return archive


def _check_writes(steps: Steps, store: Store, key: str) -> None:
    """Upload, read, list and delete an object, and read the store's clock; delete it even where a step failed."""
    data = secrets.token_bytes(_SCRATCH_BYTES)
    began = time.time()
    with steps.trying(WRITES[1]) as step:
        with store.upload(key) as upload:
            upload.write(data)
            upload.commit()
        half = len(data) // 2
        if store.get_range(key, half, 100) != data[half : half + 100]:
            raise StoreError(
                f"{store.url} gave other bytes than were written",
                "remove the cache between kbackup and the store",
            )
        if key not in {entry.key for entry in store.list(key)}:
            raise StoreError(
                f"{store.url} does not list what was written",
                "remove the cache between kbackup and the store",
            )
        step.detail = f"{len(data) >> 10} KiB"
    with steps.trying(WRITES[2]) as step:
        step.detail = "agrees with this machine's"
        skew = store.stat(key).modified - (began + time.time()) / 2
        if abs(skew) > _SKEW:
            ahead = "ahead of" if skew > 0 else "behind"
            step.warn(
                f"the store's is {abs(skew):.0f} s {ahead} this machine's",
                "set both by NTP: leases go by the clocks of the machines that take them",
            )
    with steps.trying(WRITES[3]) as step:
        for failed in store.delete([key]):
            raise failed.error
        if any(True for _ in store.list(key)):
            raise StoreError(
                f"{store.url} lists an object that was deleted",
                "remove the cache between kbackup and the store",
            )
        step.detail = "nothing is left"
