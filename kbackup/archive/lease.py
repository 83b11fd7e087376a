"""The lease of an archive: one writer holds it, renews it while it lives, and another may take over from a dead one.

lock.json is taken by put-if-absent, renewed and taken over by replace-if-match (`formats/archive.md` has the rules). A
lease only keeps polite writers apart. What keeps an archive right when a holder sleeps past its lease and wakes up is
that segments are write-once and that a later run closes every other (`catalog.operations.begin_run`).
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from msgspec.structs import replace

from kbackup.archive import layout
from kbackup.archive.models import ArchiveInfo, Lease, dump, load
from kbackup.errors import (
    AlreadyExistsError,
    KbackupError,
    LeaseLostError,
    LockedError,
    NoArchiveError,
    NotFoundError,
    OutcomeUnknownError,
    PreconditionError,
    RefusedError,
)
from kbackup.store.base import Store
from kbackup.util.times import now, rfc3339

log = logging.getLogger(__name__)

Pause = Callable[[float], bool | None]
State = Literal["released", "dead", "alive"]
COMMAND = "kbackup unlock"
_TRIES = 5
"""How often a lease is broken that its holder renews at the same moment."""
_POLL = 1.0
"""Seconds between looks at a lease that is waited for."""


def describe(lease: Lease) -> str:
    """Return in words which process holds a lease, and until when."""
    times = f"since {lease.acquired_at}, lease until {lease.expires_at}"
    return f"{lease.command} on {lease.host} (pid {lease.pid}, {times})"


def _process_mark(pid: int) -> str:
    """Return an id that no other process of any machine has or had: the start of the kernel, the namespace of process
    ids, and the start of the process. '' for a process that has ended. `OSError` if /proc can't be read."""
    own_pid = str(Path("/proc/self").readlink())
    if own_pid != str(os.getpid()):
        raise OSError("/proc is of another namespace of process ids")
    namespace = Path("/proc/self/ns/pid").readlink()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    # The name of the process, in brackets, may hold blanks and brackets: fields are counted behind it.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    state = fields[0]
    started = fields[19]
    # A zombie has ended, and only its parent has not asked for it yet.
    if state in "ZX":
        return ""
    return f"{boot}/{namespace}/{started}"


def own_mark() -> str:
    """Return the mark of this process; '' if it is unknown."""
    try:
        return _process_mark(os.getpid())
    except OSError:
        return ""


def is_dead(lease: Lease) -> bool:
    """Return whether the holder of a lease is certainly a process that ended. Nothing is certain of another machine or
    container: it has another start of the kernel or another namespace of process ids."""
    mark = lease.owner.partition("@")[2]
    own = own_mark()
    machine = mark.rpartition("/")[0]
    own_machine = own.rpartition("/")[0]
    if lease.host != socket.gethostname() or not own or machine != own_machine:
        return False
    try:
        # Suppressed: it is another user's process, and it is there.
        with suppress(PermissionError):
            os.kill(lease.pid, 0)
        # A process id is used again: the holder has ended if the process of its id began at another time.
        return _process_mark(lease.pid) != mark
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        # /proc may hide processes of other users, and a pid that somebody wrote may be no number of one.
        return False


class LeaseRanOutError(LeaseLostError):
    """The lease ran out, and no other writer is known to have taken it: a later renewal can succeed."""


class HeldLease:
    """A context manager: holds the lease of `store`, renews it every third of `seconds` in a thread, releases
    it at the end.

    `LockedError` if another writer holds the lease: at once, or with `pause` when that lease would have run out.
    `pause` waits a number of seconds, and returns whether to wait no longer. A `standby` waits as long as the other
    renews its lease. `key` is of another lease than the archive's. `check` raises `LeaseLostError` when the lease is no
    longer ours. So does leaving with another error if the lease was taken over.
    """

    def __init__(
        self,
        store: Store,
        command: str,
        seconds: float,
        pause: Pause | None = None,
        *,
        standby: bool = False,
        key: str = layout.LOCK,
    ) -> None:
        self._store = store
        self._key = key
        self._pause = pause
        self._standby = standby
        self._seconds = seconds
        self._stop = threading.Event()
        self._lost: LeaseLostError | None = None
        # The end by the clock that others read, and by one that nobody sets. The earlier one counts.
        self._until = datetime.now(UTC)
        self._until_monotonic = time.monotonic()
        mark = own_mark()
        word = uuid.uuid4().hex
        self._lease = Lease(
            owner=f"{word}@{mark}" if mark else word,
            host=socket.gethostname(),
            pid=os.getpid(),
            command=command,
            acquired_at=now(),
            expires_at="",
        )
        self._etag = ""
        self._thread = threading.Thread(target=self._renew_loop, name="kbackup-lease", daemon=True)

    def __enter__(self) -> Self:
        self._acquire()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self._lost is None:
            self._release()
        # The command failed on what another writer did since: the loss of the lease is the error to report.
        is_other_error = isinstance(error, KbackupError) and not isinstance(error, LeaseLostError)
        if self._lost is not None and is_other_error:
            raise self._lost from error

    @property
    def owner(self) -> str:
        return self._lease.owner

    @property
    def until(self) -> datetime:
        """The end of the lease, unless it is renewed."""
        seconds_left = self._until_monotonic - time.monotonic()
        return min(self._until, datetime.now(UTC) + timedelta(seconds=seconds_left))

    def check(self) -> None:
        """Raise `LeaseLostError` if the lease is not ours any more: nothing may be written then."""
        if self._lost is None and self._has_run_out():
            # After a network outage the first write may come before the thread that renews the lease. The outage must
            # not end a run that nobody has taken the lease from.
            with suppress(KbackupError):
                self._renew()
        if self._lost is not None:
            raise self._lost
        if self._has_run_out():
            raise LeaseRanOutError(
                "the lease of the archive ran out before it could be renewed",
                "run again, whole segments are reused: the store did not answer for too long",
            )

    def _has_run_out(self) -> bool:
        return datetime.now(UTC) > self._until or time.monotonic() > self._until_monotonic

    def _next(self, released: bool = False) -> Lease:
        expires = datetime.now(UTC) + timedelta(seconds=self._seconds)
        return replace(self._lease, expires_at=rfc3339(expires), released=released)

    def _release(self) -> None:
        lease = self._next(released=True)
        try:
            is_written = self._write_or_look(lease, time.monotonic())
            # A renewal whose answer was lost is there: now that its version is known, it is replaced.
            if not is_written and self._lost is None:
                self._write(lease)
        except KbackupError as failed:
            # What was committed stays committed, and the lease runs out by itself.
            log.warning("the lease could not be released: %s", failed.message)

    def _write(self, lease: Lease) -> None:
        """Replace our own version."""
        self._etag = self._store.replace(self._key, dump(lease), self._etag)

    def _write_or_look(self, lease: Lease, began: float) -> bool:
        """Replace our own version, and return whether that succeeded. If another version is there, it is ours because
        an answer was lost, or else the lease is lost. Raises the error of a store that does not answer."""
        with suppress(PreconditionError, NotFoundError):
            self._write(lease)
            return True
        with suppress(NotFoundError):
            current, etag = read_lease(self._store, self._key)
            if current.owner == lease.owner:
                self._etag = etag
                self._set_end(current, began)
                return False
        self._lost = LeaseLostError(
            "the lease of the archive was taken over by another writer", "see 'kbackup list' for what it committed"
        )
        return False

    def _acquire(self) -> None:
        end: float | None = None
        while True:
            try:
                return self._try_to_acquire()
            except LockedError as error:
                if self._pause is None:
                    raise
                if end is None:
                    end = time.monotonic() + self._seconds_of_holder() + _POLL
                    log.warning("%s; waiting for the end of that lease", error.message)
                left = end - time.monotonic()
                if left <= 0 and not self._standby:
                    raise
                seconds = min(max(left, 0.1), _POLL)
                if self._pause(seconds):
                    raise

    def _seconds_of_holder(self) -> float:
        """Return for how long the present lease is still held."""
        held = holder(self._store, self._key)
        if held is None:
            return 0.0
        left = datetime.fromisoformat(held.expires_at) - datetime.now(UTC)
        # The clock that wrote `expires_at` may be wrong: no lease is longer than this one would be.
        return min(left.total_seconds(), self._seconds)

    def _try_to_acquire(self) -> None:
        # Time is counted from before the request: the store may take long to answer.
        began = time.monotonic()
        lease = self._next()
        self._set_end(lease, began)
        with suppress(AlreadyExistsError):
            self._etag = self._store.put_new(self._key, dump(lease))
            return
        # Of two that take over an old lease at the same moment, one replaces the version that both have read.
        try:
            held, self._etag = read_lease(self._store, self._key)
            if is_held(held):
                raise LockedError(f"archive {self._store.url} is locked by {describe(held)}", "wait until it ends")
            self._write(lease)
        except (PreconditionError, NotFoundError) as error:
            raise LockedError(
                f"archive {self._store.url} was just locked by another writer", "wait until it ends"
            ) from error

    def _renew_loop(self) -> None:
        while self._lost is None and not self._stop.wait(self._seconds / 3):
            try:
                self._renew()
            except KbackupError:
                # The store may answer before the lease runs out: `check` decides by the deadline.
                continue
            except Exception as error:  # noqa: BLE001 (`check` reports it)
                # Nobody waits for this thread. Without this, a bug in it would look like a store that does not answer.
                self._lost = LeaseLostError(
                    f"the lease of the archive can't be renewed: {type(error).__name__}: {error}",
                    "run again, whole segments are kept",
                )
                self._lost.__cause__ = error

    def _renew(self) -> None:
        began = time.monotonic()
        lease = self._next()
        if self._write_or_look(lease, began):
            self._set_end(lease, began)

    def _set_end(self, lease: Lease, began: float) -> None:
        self._until = datetime.fromisoformat(lease.expires_at)
        self._until_monotonic = began + self._seconds


def read_lease(store: Store, key: str = layout.LOCK) -> tuple[Lease, str]:
    """Return a lease and its version. `NotFoundError` if no writer ever took it."""
    data, etag = store.get_with_etag(key)
    return load(Lease, data, key), etag


def is_held(lease: Lease) -> bool:
    """Return whether a lease was neither released nor ran out, and its holder is not known to be dead."""
    is_over = lease.released or datetime.fromisoformat(lease.expires_at) <= datetime.now(UTC)
    return not is_over and not is_dead(lease)


def holder(store: Store, key: str = layout.LOCK) -> Lease | None:
    """Return the lease of `store` if it is held at this moment, else None."""
    try:
        lease, _ = read_lease(store, key)
    except NotFoundError:
        return None
    return lease if is_held(lease) else None


@dataclass(frozen=True)
class SeenLease:
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


def inspect_lease(store: Store) -> SeenLease | None:
    """Return the lease at `store`, for which an encrypted archive needs no key; None if no writer ever took it.
    `NoArchiveError` if there is no archive."""
    try:
        load(ArchiveInfo, store.get(layout.ARCHIVE), layout.ARCHIVE)
    except NotFoundError as error:
        raise NoArchiveError(f"there is no archive at {store.url}", "check the address") from error
    try:
        return SeenLease(*read_lease(store))
    except NotFoundError:
        return None


def break_lease(store: Store, seen: SeenLease, *, force: bool, seconds: float) -> Lease:
    """Take the lease away from its holder, and return what stands in its place.

    A dead lease is free at once. One that is alive needs `force`, and is free when its holder must have noticed: the
    holder can't renew it any more, and stops at the latest when its lease, as it knows it, has run out. That is at the
    old `expires_at`, or `seconds` (how long writers' leases are) from now if that is earlier: the clock that wrote
    `expires_at` may be wrong.

    `LockedError` if another lease than the one that was seen is there, `RefusedError` if there is nothing to break.
    """
    owner = uuid.uuid4().hex
    for _ in range(_TRIES):
        if seen.state == "released":
            raise RefusedError(
                f"nobody holds the lease of archive {store.url}", "run the writer again; no lease has to be broken"
            )
        if seen.state == "alive" and not force:
            raise LockedError(
                f"archive {store.url} is locked by {describe(seen.lease)}",
                "wait: a lease that is not renewed runs out by itself; --force takes it from a run that goes on, which "
                "then stops with exit code 11 and without a restore point",
            )
        is_alive = seen.state == "alive"
        moment = datetime.now(UTC)
        until = moment
        if is_alive:
            until = min(datetime.fromisoformat(seen.lease.expires_at), moment + timedelta(seconds=seconds))
        # By the new owner the old holder notices that its lease is lost.
        lease = Lease(
            owner=owner,
            host=socket.gethostname(),
            pid=os.getpid(),
            command=COMMAND,
            acquired_at=rfc3339(moment),
            expires_at=rfc3339(until),
            released=not is_alive,
        )
        try:
            store.replace(layout.LOCK, dump(lease), seen.etag)
        except (PreconditionError, NotFoundError):
            seen = _reread(store, seen)
        except OutcomeUnknownError:
            current, _ = read_lease(store)
            if current.owner != owner:
                raise
            return lease
        else:
            return lease
    raise LockedError(f"archive {store.url} got another lease each time it was read", "run it again")


def _reread(store: Store, seen: SeenLease) -> SeenLease:
    """Read the same holder's lease again, which was renewed or released. `LockedError` if another holds it."""
    current: SeenLease | None = None
    with suppress(NotFoundError):
        current = SeenLease(*read_lease(store))
    if current is not None and current.lease.owner == seen.lease.owner:
        return current
    who = ""
    if current is not None and current.state == "alive":
        who = f": {describe(current.lease)}"
    raise LockedError(
        f"the lease of archive {store.url} was just taken by another writer{who}",
        "run 'kbackup unlock' again to see the new holder; no lease was broken",
    )
