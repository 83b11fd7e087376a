"""The lease: one polite writer at a time, and what becomes of one that lost it."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from kbackup.archive import layout
from kbackup.archive.lease import HeldLease, read_lease
from kbackup.errors import LockedError
from tests.support.faulty_store import FaultyStore
from tests.support.leases import FUTURE, LONG, PAST, another


def test_lease_names_its_holder_and_is_released(store: FaultyStore) -> None:
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
