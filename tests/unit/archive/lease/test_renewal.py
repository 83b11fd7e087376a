"""A lease is renewed in time, or its holder learns that it is lost."""

from __future__ import annotations

from datetime import datetime, timedelta, tzinfo

import msgspec
import pytest

from kbackup.archive import layout
from kbackup.archive.lease import HeldLease, LeaseRanOutError, read_lease
from kbackup.errors import LeaseLostError
from tests.support.faulty_store import FaultyStore, down
from tests.support.leases import FUTURE, QUICK, another, eventually, raises, taken_over


def test_lease_is_renewed(store: FaultyStore) -> None:
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
    with HeldLease(store, "cut off", QUICK) as lease:
        store.faults.append(down("replace", layout.LOCK))
        eventually(lambda: raises(lease.check))
        with pytest.raises(LeaseRanOutError):
            lease.check()
        store.faults.clear()
        eventually(lambda: not raises(lease.check))
        assert read_lease(store)[0].owner == lease.owner
    assert read_lease(store)[0].released


def test_one_that_ran_out_is_lost_once_somebody_took_it(store: FaultyStore) -> None:
    with HeldLease(store, "cut off", QUICK) as lease:
        store.faults.append(down("replace", layout.LOCK))
        eventually(lambda: raises(lease.check))
        another(store, FUTURE, released=True)
        store.faults.clear()
        eventually(lambda: taken_over(lease))
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
        monkeypatch.setattr("kbackup.archive.lease.datetime", Behind)
        eventually(lambda: raises(held.check))
