"""Looking at the lease of an archive and breaking it (`lease` holds one; `formats/archive.md` has the rules)."""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from kbackup.archive import layout
from kbackup.archive.lease.hold import is_held, read_lease
from kbackup.archive.lease.process import describe
from kbackup.archive.models import ArchiveInfo, Lease, dump, load
from kbackup.errors import (
    LockedError,
    NoArchiveError,
    NotFoundError,
    OutcomeUnknownError,
    PreconditionError,
    RefusedError,
)
from kbackup.store.base import Store
from kbackup.util.times import rfc3339

COMMAND = "kbackup unlock"
_TRIES = 5

State = Literal["released", "dead", "alive"]


@dataclass(frozen=True)
class Seen:
    """A lease and the version of lock.json that it was read from."""

    lease: Lease
    etag: str

    @property
    def state(self) -> State:
        """Return the state of the lease. `dead`: it ran out and was not given back, because its holder crashed,
        hangs or is cut off; or its holder is a dead process of this machine."""
        if self.lease.released:
            return "released"
        return "alive" if is_held(self.lease) else "dead"


def inspect_lease(store: Store) -> Seen | None:
    """Return the lease at `store`, for which an encrypted archive needs no key; None where no writer ever took it.
    `NoArchiveError` where there is no archive."""
    try:
        load(ArchiveInfo, store.get(layout.ARCHIVE), layout.ARCHIVE)
    except NotFoundError as error:
        raise NoArchiveError(f"there is no archive at {store.url}", "check the address") from error
    try:
        return Seen(*read_lease(store))
    except NotFoundError:
        return None


def break_lease(store: Store, seen: Seen, *, force: bool, seconds: float) -> Lease:
    """Take the lease away from its holder, and return what stands in its place.

    A dead one is free at once. One that is alive needs `force`, and is free when its holder must have noticed: it can't
    renew it any more, and stops, at the latest, when what it knows as its time has passed. That is at the old
    `expires_at`, or `seconds` (how long writers' leases are) from now where that is earlier: the clock that wrote
    `expires_at` may be wrong.

    `LockedError` where it is not the lease that was seen any more, `RefusedError` where there is nothing to break.
    """
    owner = uuid.uuid4().hex
    for _ in range(_TRIES):
        _check(store, seen, force)
        lease = _replacement(seen, owner, seconds)
        try:
            store.replace(layout.LOCK, dump(lease), seen.etag)
        except (PreconditionError, NotFoundError):
            seen = _reread(store, seen)
        except OutcomeUnknownError:
            if read_lease(store)[0].owner != owner:
                raise
            return lease
        else:
            return lease
    raise LockedError(f"archive {store.url} changes its lease at every look", "run it again")


def _check(store: Store, seen: Seen, force: bool) -> None:
    if seen.state == "released":
        raise RefusedError(
            f"nobody holds the lease of archive {store.url}",
            "run the writer again; no lease has to be broken",
        )
    if seen.state == "alive" and not force:
        raise LockedError(
            f"archive {store.url} is locked by {describe(seen.lease)}",
            "wait: a lease that is not renewed runs out by itself; --force takes it from a run that goes on, which "
            "then stops with exit code 11 and without a restore point",
        )


def _reread(store: Store, seen: Seen) -> Seen:
    """Read the same holder's lease again, which was renewed or released. `LockedError` where another holds it."""
    try:
        now: Seen | None = Seen(*read_lease(store))
    except NotFoundError:
        now = None
    if now is None or now.lease.owner != seen.lease.owner:
        who = f": {describe(now.lease)}" if now is not None and now.state == "alive" else ""
        raise LockedError(
            f"the lease of archive {store.url} was taken by another at this moment{who}",
            "run 'kbackup unlock' again to see the new holder; no lease was broken",
        )
    return now


def _replacement(seen: Seen, owner: str, seconds: float) -> Lease:
    """Return the lease of a new owner, by which the old holder notices that its lease is lost."""
    moment = datetime.now(UTC)
    alive = seen.state == "alive"
    until = min(datetime.fromisoformat(seen.lease.expires_at), moment + timedelta(seconds=seconds))
    return Lease(
        owner=owner,
        host=socket.gethostname(),
        pid=os.getpid(),
        command=COMMAND,
        acquired_at=rfc3339(moment),
        expires_at=rfc3339(until if alive else moment),
        released=not alive,
    )
