"""Breaking a lease, and what becomes of the one that held it."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from kbackup.archive import layout
from kbackup.archive.lease import COMMAND, HeldLease, Seen, break_lease, holder, inspect_lease, read_lease
from kbackup.archive.models import Lease, dump
from kbackup.archive.run import open_or_create
from kbackup.errors import (
    LeaseLostError,
    LockedError,
    NoArchiveError,
    OutcomeUnknownError,
    RefusedError,
    UnreachableError,
)
from kbackup.util.times import rfc3339
from tests.support.faulty_store import FaultyStore, down, lost_answer

SECONDS = 60.0


@pytest.fixture(autouse=True)
def _archive(store: FaultyStore) -> None:
    open_or_create(store)


def leased(store: FaultyStore, seconds: float, owner: str = "somebody", released: bool = False) -> Seen:
    """A lease that runs out in `seconds`, put there whatever was."""
    lease = Lease(
        owner=owner,
        host="elsewhere",
        pid=7,
        command="kbackup backup",
        acquired_at="2020-01-01T00:00:00.000Z",
        expires_at=rfc3339(datetime.now(UTC) + timedelta(seconds=seconds)),
        released=released,
    )
    store.put(layout.LOCK, dump(lease))
    seen = inspect_lease(store)
    assert seen is not None
    return seen


def seconds_left(lease: Lease) -> float:
    return (datetime.fromisoformat(lease.expires_at) - datetime.now(UTC)).total_seconds()


def free(store: FaultyStore) -> bool:
    try:
        with HeldLease(store, "next", SECONDS):
            return True
    except LockedError:
        return False


def test_inspect_lease_reports_the_state(store: FaultyStore) -> None:
    assert inspect_lease(store) is None
    assert leased(store, -1).state == "dead"
    assert leased(store, 60).state == "alive"
    assert leased(store, 60, released=True).state == "released"
    store.delete([layout.ARCHIVE])
    with pytest.raises(NoArchiveError):
        inspect_lease(store)


def test_a_dead_one_is_free_at_once(store: FaultyStore) -> None:
    broken = break_lease(store, leased(store, -1), force=False, seconds=SECONDS)
    assert broken.released
    assert (broken.command, read_lease(store)[0].owner) == (COMMAND, broken.owner)
    assert free(store)


def test_one_that_is_alive_or_given_back_is_left_alone(store: FaultyStore) -> None:
    seen = leased(store, 60)
    with pytest.raises(LockedError, match=r"locked by kbackup backup on elsewhere .*; wait: .*--force"):
        break_lease(store, seen, force=False, seconds=SECONDS)
    assert read_lease(store) == (seen.lease, seen.etag)
    with pytest.raises(RefusedError, match="nobody holds"):
        break_lease(store, leased(store, 60, released=True), force=True, seconds=SECONDS)


@pytest.mark.parametrize(
    ("remaining", "held"), [(20.0, 20.0), (1e9, SECONDS)], ids=["its time", "a wrong clock"]
)
def test_by_force_it_is_free_when_its_holder_must_have_noticed(
    store: FaultyStore, remaining: float, held: float
) -> None:
    broken = break_lease(store, leased(store, remaining), force=True, seconds=SECONDS)
    assert not broken.released
    assert held - 10 < seconds_left(broken) <= held
    assert not free(store)
    held_by = holder(store)
    assert held_by is not None
    assert held_by.owner == broken.owner


def test_the_run_that_held_it_stops(store: FaultyStore) -> None:
    broken: list[Lease] = []

    def run() -> None:
        with HeldLease(store, "alive", 0.9) as lease:
            seen = inspect_lease(store)
            assert seen is not None
            broken.append(break_lease(store, seen, force=True, seconds=0.9))
            while seconds_left(broken[0]) > -30:
                lease.check()
                time.sleep(0.02)

    with pytest.raises(LeaseLostError, match="taken over"):
        run()
    assert read_lease(store)[0].owner == broken[0].owner, "it is not given back in another's name"


def test_a_slow_run_that_is_taken_for_dead_stops(store: FaultyStore) -> None:
    with HeldLease(store, "slow", SECONDS) as lease:
        ran_out = msgspec.structs.replace(read_lease(store)[0], expires_at="2020-01-01T00:00:00.000Z")
        store.put(layout.LOCK, dump(ran_out))
        seen = inspect_lease(store)
        assert seen is not None
        break_lease(store, seen, force=False, seconds=SECONDS)
        assert not lease._is_ours(ran_out, time.monotonic())
        assert free(store)


def test_one_that_was_renewed_after_the_question_is_alive(store: FaultyStore) -> None:
    seen = leased(store, -1)
    renewed = leased(store, 60)
    with pytest.raises(LockedError, match="locked by kbackup backup on elsewhere"):
        break_lease(store, seen, force=False, seconds=SECONDS)
    assert read_lease(store)[0] == renewed.lease
    assert break_lease(store, seen, force=True, seconds=SECONDS).command == COMMAND


def test_another_ones_is_not_broken_in_its_stead(store: FaultyStore) -> None:
    seen = leased(store, -1)
    theirs = leased(store, -1, owner="another")
    for force in (False, True):
        with pytest.raises(LockedError, match="taken by another at this moment"):
            break_lease(store, seen, force=force, seconds=SECONDS)
    assert read_lease(store)[0] == theirs.lease
    store.delete([layout.LOCK])
    with pytest.raises(LockedError, match="taken by another"):
        break_lease(store, seen, force=True, seconds=SECONDS)


def test_of_writers_and_breakers_of_a_dead_one_each_has_it_alone(store: FaultyStore) -> None:
    """A dead lease may be broken, but never one that a writer took since."""
    for _ in range(10):
        seen = leased(store, -1)
        together, over = threading.Barrier(8), threading.Barrier(8)
        writers: list[str] = []

        def write(together: threading.Barrier, over: threading.Barrier, writers: list[str]) -> None:
            together.wait()
            try:
                with HeldLease(store, "race", SECONDS) as held:
                    writers.append(held.owner)
                    over.wait()
                    assert read_lease(store)[0].owner == held.owner
            except LockedError:
                over.wait()

        def break_it(together: threading.Barrier, over: threading.Barrier, seen: Seen) -> None:
            together.wait()
            try:
                break_lease(store, seen, force=False, seconds=SECONDS)
            except (LockedError, RefusedError):
                pass
            finally:
                over.wait()

        threads = [threading.Thread(target=write, args=(together, over, writers)) for _ in range(4)]
        threads += [threading.Thread(target=break_it, args=(together, over, seen)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(writers) <= 1
        assert read_lease(store)[0].released


def test_a_lost_answer_is_looked_up(store: FaultyStore) -> None:
    seen = leased(store, -1)
    store.faults.append(lost_answer("replace", layout.LOCK))
    assert break_lease(store, seen, force=False, seconds=SECONDS).owner == read_lease(store)[0].owner
    seen = leased(store, -1)
    fault = lost_answer("replace", layout.LOCK)
    fault.after = False
    store.faults.append(fault)
    with pytest.raises(OutcomeUnknownError):
        break_lease(store, seen, force=False, seconds=SECONDS)
    store.faults.append(down("replace"))
    with pytest.raises(UnreachableError):
        break_lease(store, seen, force=False, seconds=SECONDS)
    assert read_lease(store)[0] == seen.lease
