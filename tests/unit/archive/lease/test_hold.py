"""The lease: one polite writer at a time, and what becomes of one that lost it."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta, tzinfo

import msgspec
import pytest

from kbackup.archive import layout
from kbackup.archive.lease.hold import HeldLease, LeaseRanOutError, read_lease
from kbackup.archive.models import Lease, dump
from kbackup.errors import CorruptError, KbackupError, LeaseLostError, LockedError, OutcomeUnknownError
from tests.support.faulty_store import FaultyStore, down, lost_answer

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


def renew(held: HeldLease) -> None:
    """As the renewing thread does, now."""
    with suppress(KbackupError):
        held._renew()


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


def test_it_says_who_holds_it_and_is_given_back(store: FaultyStore) -> None:
    with HeldLease(store, "kbackup backup", LONG) as held:
        lease, _ = read_lease(store)
        assert (lease.owner, lease.pid, lease.host) == (held.owner, os.getpid(), socket.gethostname())
        assert not lease.released
        held.check()
    assert read_lease(store)[0].released


def test_the_second_is_refused_at_once(store: FaultyStore) -> None:
    with HeldLease(store, "kbackup backup", LONG):
        before = store.get(layout.LOCK)
        who = rf"is locked by kbackup backup on {socket.gethostname()} \(pid {os.getpid()}, since 2.*, lease until 2"
        with pytest.raises(LockedError, match=who), HeldLease(store, "kbackup prune", LONG):
            pytest.fail("both hold it")
        assert store.get(layout.LOCK) == before


def test_one_that_was_given_back_or_ran_out_is_taken(store: FaultyStore) -> None:
    another(store, FUTURE, released=True)
    with HeldLease(store, "a", LONG):
        pass
    another(store, PAST)
    with HeldLease(store, "b", LONG) as held:
        assert read_lease(store)[0].owner == held.owner


def test_of_many_that_take_it_over_one_gets_it(store: FaultyStore) -> None:
    another(store, PAST)
    together, over = threading.Barrier(8), threading.Barrier(8)
    won: list[str] = []
    refused: list[LockedError] = []

    def race() -> None:
        together.wait()
        try:
            with HeldLease(store, "race", LONG) as held:
                won.append(held.owner)
                over.wait()
        except LockedError as error:
            refused.append(error)
            over.wait()

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(refused)) == (1, 7)


def test_it_is_renewed(store: FaultyStore) -> None:
    with HeldLease(store, "short", QUICK):
        first = read_lease(store)[0].expires_at
        eventually(lambda: read_lease(store)[0].expires_at > first)


def test_a_holder_learns_that_it_was_taken_over(store: FaultyStore) -> None:
    with HeldLease(store, "slow", QUICK) as held:
        theirs = another(store, FUTURE)
        eventually(lambda: raises(held.check))
        assert raises(held.check), "it stays lost"
    assert msgspec.structs.replace(read_lease(store)[0], checksum="") == theirs, "theirs is not given back"


def test_a_holder_that_the_store_leaves_alone_gives_up_in_time(store: FaultyStore) -> None:
    with HeldLease(store, "cut off", QUICK) as held:
        store.faults.append(down("replace", layout.LOCK))
        eventually(lambda: raises(held.check))
        with pytest.raises(LeaseLostError, match="ran out before it could be renewed"):
            held.check()


def test_one_that_ran_out_is_held_again_if_nobody_took_it(store: FaultyStore) -> None:
    with HeldLease(store, "cut off", QUICK) as held:
        store.faults.append(down("replace", layout.LOCK))
        eventually(lambda: raises(held.check))
        with pytest.raises(LeaseRanOutError):
            held.check()
        store.faults.clear()
        eventually(lambda: not raises(held.check))
        assert read_lease(store)[0].owner == held.owner
    assert read_lease(store)[0].released


def test_one_that_ran_out_is_lost_once_somebody_took_it(store: FaultyStore) -> None:
    with HeldLease(store, "cut off", QUICK) as held:
        store.faults.append(down("replace", layout.LOCK))
        eventually(lambda: raises(held.check))
        another(store, FUTURE, released=True)
        store.faults.clear()
        eventually(lambda: taken_over(held))
    assert read_lease(store)[0].owner == "somebody"


def test_a_clock_that_is_set_back_does_not_make_it_longer(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Behind(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Behind:
            return cls.fromisoformat((datetime.now(tz) - timedelta(hours=3)).isoformat())

    with HeldLease(store, "cut off", QUICK) as held:
        store.faults.append(down("replace", layout.LOCK))
        monkeypatch.setattr("kbackup.archive.lease.hold.datetime", Behind)
        eventually(lambda: raises(held.check))


def test_a_short_failure_of_the_store_does_no_harm(store: FaultyStore) -> None:
    fault = down("replace", layout.LOCK)
    fault.times = 1
    store.faults.append(fault)
    with HeldLease(store, "patient", LONG) as held:
        first = read_lease(store)[0].expires_at
        renew(held)
        assert fault.times == 0
        held.check()
        time.sleep(0.002)  # it is told in milliseconds
        renew(held)
        assert read_lease(store)[0].expires_at > first
        held.check()
    assert read_lease(store)[0].released


def test_a_renewal_whose_answer_is_lost_counts(store: FaultyStore) -> None:
    fault = lost_answer("replace", layout.LOCK, times=1)
    store.faults.append(fault)
    with HeldLease(store, "deaf", LONG) as held:
        renew(held)
        assert fault.times == 0
        known = held._etag
        renew(held)
        assert held._etag != known
        held.check()
    assert read_lease(store)[0].released


def test_a_read_that_fails_says_nothing_of_who_holds_it(store: FaultyStore) -> None:
    """A renewal's answer is lost, the next one meets another version, and whose that is can't be read once."""
    lost, unread = lost_answer("replace", layout.LOCK, times=1), down("get", layout.LOCK)
    unread.times = 1
    store.faults += [lost, unread]
    with HeldLease(store, "deaf and blind", LONG) as held:
        renew(held)
        renew(held)
        assert unread.times == 0
        known = held._etag
        renew(held)
        assert held._etag != known
        held.check()
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


def test_that_it_cannot_be_given_back_does_not_undo_the_work(
    store: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    with HeldLease(store, "done", LONG):
        store.faults.append(down("replace", layout.LOCK))
    assert "the lease could not be released: the store is down" in caplog.text


def test_what_fails_after_it_was_taken_over_failed_for_that(store: FaultyStore) -> None:
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


def test_it_is_given_back_also_where_a_renewal_got_no_answer(store: FaultyStore) -> None:
    with HeldLease(store, "deaf", LONG) as held:
        store.faults.append(lost_answer("replace", layout.LOCK))
        with pytest.raises(OutcomeUnknownError):
            held._write(held._next())  # as the renewing thread does
    assert read_lease(store)[0].released
