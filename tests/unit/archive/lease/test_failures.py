"""Failures of the store while a lease is taken, renewed and released."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

from kbackup.archive import layout
from kbackup.archive.lease import HeldLease, read_lease
from kbackup.errors import CorruptError, KbackupError, LeaseLostError, LockedError, OutcomeUnknownError
from tests.support.faulty_store import FaultyStore, down, lost_answer
from tests.support.leases import FUTURE, LONG, QUICK, another, eventually, raises


def renew(held: HeldLease) -> None:
    """As the renewing thread does, now."""
    with suppress(KbackupError):
        held._renew()


def test_a_short_failure_of_the_store_does_no_harm(store: FaultyStore) -> None:
    fault = down("replace", layout.LOCK)
    fault.times = 1
    store.faults.append(fault)
    with HeldLease(store, "patient", LONG) as lease:
        first = read_lease(store)[0].expires_at
        renew(lease)
        assert fault.times == 0
        lease.check()
        time.sleep(0.002)  # it is told in milliseconds
        renew(lease)
        assert read_lease(store)[0].expires_at > first
        lease.check()
    assert read_lease(store)[0].released


def test_a_renewal_whose_answer_is_lost_counts(store: FaultyStore) -> None:
    fault = lost_answer("replace", layout.LOCK, times=1)
    store.faults.append(fault)
    with HeldLease(store, "deaf", LONG) as lease:
        renew(lease)
        assert fault.times == 0
        known = lease._etag
        renew(lease)
        assert lease._etag != known
        lease.check()
    assert read_lease(store)[0].released


def test_a_read_that_fails_says_nothing_of_who_holds_it(store: FaultyStore) -> None:
    """A renewal's answer is lost, the next one meets another version, and whose that is can't be read once."""
    lost, unread = lost_answer("replace", layout.LOCK, times=1), down("get", layout.LOCK)
    unread.times = 1
    store.faults += [lost, unread]
    with HeldLease(store, "deaf and blind", LONG) as lease:
        renew(lease)
        renew(lease)
        assert unread.times == 0
        known = lease._etag
        renew(lease)
        assert lease._etag != known
        lease.check()
    assert read_lease(store)[0].released


def test_an_error_of_any_kind_in_renewing_it_is_told(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> str:
        raise ZeroDivisionError("a bug")

    with HeldLease(store, "buggy", QUICK) as held:
        monkeypatch.setattr(store, "replace", broken)
        eventually(lambda: raises(held.check))
        with pytest.raises(LeaseLostError, match="can't be renewed: ZeroDivisionError: a bug") as told:
            held.check()
    assert isinstance(told.value.__cause__, ZeroDivisionError)


def test_an_unknown_outcome_of_taking_it_is_no_lease(store: FaultyStore) -> None:
    store.faults.append(lost_answer("put_new", layout.LOCK))
    with pytest.raises(OutcomeUnknownError), HeldLease(store, "unsure", LONG):
        pytest.fail("nobody knows whether it is held")
    with pytest.raises(LockedError), HeldLease(store, "next", LONG):
        pytest.fail("it took effect")


def test_a_failed_release_does_not_undo_the_work(
    store: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    with HeldLease(store, "done", LONG):
        store.faults.append(down("replace", layout.LOCK))
    assert "the lease could not be released: the store is down" in caplog.text


def test_errors_after_a_takeover_are_raised_as_a_lost_lease(store: FaultyStore) -> None:
    def taken_over(error: BaseException) -> None:
        with HeldLease(store, "late", LONG):
            another(store, FUTURE)
            raise error

    with pytest.raises(LeaseLostError, match="was taken over") as raised:
        taken_over(CorruptError("what another wrote", ""))
    assert isinstance(raised.value.__cause__, CorruptError)
    assert read_lease(store)[0].owner == "somebody"
    store.delete([layout.LOCK])
    with pytest.raises(KeyboardInterrupt):
        taken_over(KeyboardInterrupt())
    store.delete([layout.LOCK])
    with pytest.raises(CorruptError), HeldLease(store, "in time", LONG):
        raise CorruptError("our own trouble", "")


def test_lease_is_released_after_a_renewal_without_an_answer(store: FaultyStore) -> None:
    with HeldLease(store, "deaf", LONG) as held:
        store.faults.append(lost_answer("replace", layout.LOCK))
        with pytest.raises(OutcomeUnknownError):
            held._write(held._next())  # as the renewing thread does
    assert read_lease(store)[0].released
