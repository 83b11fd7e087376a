"""Leases that are renewed, taken over, and written by another holder."""

from __future__ import annotations

import time
from collections.abc import Callable

from kbackup.archive import layout
from kbackup.archive.lease import HeldLease, LeaseRanOutError
from kbackup.archive.models import Lease, dump
from kbackup.errors import LeaseLostError
from tests.support.faulty_store import FaultyStore

LONG = 600.0
QUICK = 0.9  # s; renewed three times as often


def eventually(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def raises(call: Callable[[], None]) -> bool:
    try:
        call()
    except LeaseLostError:
        return True
    return False


def taken_over(held: HeldLease) -> bool:
    try:
        held.check()
    except LeaseLostError as error:
        return not isinstance(error, LeaseRanOutError)
    return False


def another(store: FaultyStore, expires_at: str, released: bool = False) -> Lease:
    """Somebody else's lease, written over whatever is there."""
    lease = Lease(
        owner="somebody",
        host="elsewhere",
        pid=7,
        command="kbackup backup",
        acquired_at="2020-01-01T00:00:00.000Z",
        expires_at=expires_at,
        released=released,
    )
    store.put(layout.LOCK, dump(lease))
    return lease


PAST, FUTURE = "2020-01-01T00:01:00.000Z", "2999-01-01T00:00:00.000Z"
