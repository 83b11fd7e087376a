"""The lease: one polite writer at a time, and what becomes of one that lost it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from kbackup.archive import layout
from kbackup.archive.lease import (
    COMMAND,
    HeldLease,
    LeaseRanOutError,
    SeenLease,
    break_lease,
    holder,
    inspect_lease,
    read_lease,
)
from kbackup.archive.models import Lease, dump
from kbackup.archive.run import open_or_create
from kbackup.errors import (
    CorruptError,
    KbackupError,
    LeaseLostError,
    LockedError,
    NoArchiveError,
    OutcomeUnknownError,
    RefusedError,
    UnreachableError,
)
from kbackup.store.base import Store
from kbackup.store.file import FileStore
from kbackup.util.times import rfc3339
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


def taken_over(held: HeldLease) -> bool:
    try:
        held.check()
    except LeaseLostError as error:
        return not isinstance(error, LeaseRanOutError)
    return False


def lease_of(store: Store) -> Lease:
    lease, _ = read_lease(store)
    return lease


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


def test_lease_names_its_holder_and_is_released(store: FaultyStore) -> None:
    with HeldLease(store, "kbackup backup", LONG) as held:
        lease, _ = read_lease(store)
        assert (lease.owner, lease.pid, lease.host) == (held.owner, os.getpid(), socket.gethostname())
        assert not lease.released
        held.check()
        before = store.get(layout.LOCK)
        who = rf"is locked by kbackup backup on {socket.gethostname()} \(pid {os.getpid()}, since 2.*, lease until 2"
        with pytest.raises(LockedError, match=who), HeldLease(store, "kbackup prune", LONG):
            pytest.fail("both hold it")
        assert store.get(layout.LOCK) == before, "the second is refused at once"
    assert lease_of(store).released


def test_one_that_was_given_back_or_ran_out_is_taken(store: FaultyStore) -> None:
    another(store, FUTURE, released=True)
    with HeldLease(store, "a", LONG):
        pass
    another(store, PAST)
    with HeldLease(store, "b", LONG) as held:
        assert lease_of(store).owner == held.owner


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


# A lease is renewed in time, or its holder learns that it is lost.


def test_a_lease_is_renewed_while_it_is_held(store: FaultyStore) -> None:
    with HeldLease(store, "short", QUICK):
        first = lease_of(store).expires_at
        eventually(lambda: lease_of(store).expires_at > first)


def test_a_holder_learns_that_it_was_taken_over(store: FaultyStore) -> None:
    with HeldLease(store, "slow", QUICK) as held:
        theirs = another(store, FUTURE)
        eventually(lambda: raises(held.check))
        assert raises(held.check), "it stays lost"
    assert msgspec.structs.replace(lease_of(store), checksum="") == theirs, "theirs is not given back"


@pytest.mark.exhaustive
def test_a_holder_that_the_store_leaves_alone_gives_up_in_time(store: FaultyStore) -> None:
    with HeldLease(store, "cut off", QUICK) as held:
        store.faults.append(down("replace", layout.LOCK))
        eventually(lambda: raises(held.check))
        with pytest.raises(LeaseRanOutError, match="ran out before it could be renewed"):
            held.check()
        store.faults.clear()
        eventually(lambda: not raises(held.check))
        assert lease_of(store).owner == held.owner, "it is held again, nobody took it"
    assert lease_of(store).released


@pytest.mark.parametrize("taken", [False, True])
def test_one_that_ran_out_is_renewed_when_it_is_needed_unless_somebody_took_it(store: FaultyStore, taken: bool) -> None:
    """As after a minute without a network, and before the thread has noticed."""
    with HeldLease(store, "cut off", LONG) as held:
        if taken:
            another(store, FUTURE)
        held._until_monotonic = 0.0
        assert taken_over(held) is taken
        assert (lease_of(store).owner == held.owner) is not taken


@pytest.mark.exhaustive
def test_one_that_ran_out_is_lost_once_somebody_took_it(store: FaultyStore) -> None:
    with HeldLease(store, "cut off", QUICK) as lease:
        store.faults.append(down("replace", layout.LOCK))
        eventually(lambda: raises(lease.check))
        another(store, FUTURE, released=True)
        store.faults.clear()
        eventually(lambda: taken_over(lease))
    assert lease_of(store).owner == "somebody"


@pytest.mark.exhaustive
def test_a_clock_that_is_set_back_does_not_make_it_longer(store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    class Behind(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Behind:
            return cls.fromisoformat((datetime.now(tz) - timedelta(hours=3)).isoformat())

    with HeldLease(store, "cut off", QUICK) as held:
        store.faults.append(down("replace", layout.LOCK))
        monkeypatch.setattr("kbackup.archive.lease.datetime", Behind)
        eventually(lambda: raises(held.check))


# Failures of the store while a lease is taken, renewed and released.


def renew(held: HeldLease) -> None:
    """As the renewing thread does, now."""
    with suppress(KbackupError):
        held._renew()


def test_a_short_failure_of_the_store_does_no_harm(store: FaultyStore) -> None:
    fault = down("replace", layout.LOCK)
    fault.times = 1
    store.faults.append(fault)
    with HeldLease(store, "patient", LONG) as lease:
        first = lease_of(store).expires_at
        renew(lease)
        assert fault.times == 0
        lease.check()
        time.sleep(0.002)  # it is told in milliseconds
        renew(lease)
        assert lease_of(store).expires_at > first
        lease.check()
    assert lease_of(store).released


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
    assert lease_of(store).released


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
    assert lease_of(store).released


def test_an_error_of_any_kind_in_renewing_it_is_told(store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_failed_release_does_not_undo_the_work(store: FaultyStore, caplog: pytest.LogCaptureFixture) -> None:
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
    assert lease_of(store).owner == "somebody"
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
    assert lease_of(store).released


# The lease of a dead process is free at once where that is certain, and waited for where it is asked.


_HOLD = """
import sys
from kbackup.archive.lease import HeldLease
from kbackup.store.base import Store
from kbackup.store.file import FileStore
with HeldLease(FileStore(sys.argv[1]), "kbackup backup", 600):
    print("held", flush=True)
    sys.stdin.read()
"""
UNSHARE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


@contextmanager
def held_elsewhere(folder: Path, *launcher: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process that holds the lease of a folder's archive."""
    command = [*launcher, sys.executable, "-c", _HOLD, str(folder)]
    with subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def is_free(store: Store) -> bool:
    try:
        with HeldLease(store, "kbackup backup", LONG):
            return True
    except LockedError:
        return False


@pytest.mark.parametrize("reaped", [True, False], ids=["", "zombie"])
def test_the_lease_of_a_killed_process_is_taken_over_at_once(reaped: bool, tmp_path: Path) -> None:
    store = FileStore(str(tmp_path))
    with held_elsewhere(tmp_path) as process:
        assert not is_free(store), "it is alive"
        process.send_signal(signal.SIGKILL)
        if reaped:
            process.wait()
        else:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert holder(store) is None
        assert is_free(store)


def test_unlock_needs_no_force_for_the_lease_of_a_killed_process(tmp_path: Path) -> None:
    store = FileStore(str(tmp_path))
    open_or_create(store)
    with held_elsewhere(tmp_path) as process:
        process.kill()
        process.wait()
        seen = inspected(store)
        assert seen.state == "dead"
        assert break_lease(store, seen, force=False, seconds=LONG).released


def test_a_later_process_with_the_same_id_is_not_the_holder(tmp_path: Path) -> None:
    store = FileStore(str(tmp_path))
    with held_elsewhere(tmp_path):
        lease, etag = read_lease(store)
        store.replace(layout.LOCK, dump(replace(lease, owner=f"{lease.owner}0")), etag)
        assert is_free(store), "the process began at another time"


@pytest.mark.parametrize("other", ["boot", "namespace", "host", "unknown"])
def test_of_another_machine_or_container_nothing_is_certain(other: str, tmp_path: Path) -> None:
    """Its process 4194303 is not here, and may be alive there."""
    store = FileStore(str(tmp_path))
    with held_elsewhere(tmp_path):
        lease, etag = read_lease(store)
        word, _, mark = lease.owner.partition("@")
        boot, namespace, started = mark.split("/")
        marks = {
            "boot": f"0{boot[1:]}x/{namespace}/{started}",
            "namespace": f"{boot}/pid:[7]/{started}",
            "host": mark,
            "unknown": "",
        }
        host = "elsewhere" if other == "host" else lease.host
        changed = replace(lease, pid=4194303, owner=f"{word}@{marks[other]}", host=host)
        store.replace(layout.LOCK, dump(changed), etag)
        assert not is_free(store)
        now, etag = read_lease(store)
        store.replace(layout.LOCK, dump(replace(now, owner=lease.owner, host=lease.host)), etag)
        assert is_free(store), "the same process here is certainly dead"


def test_a_dead_process_of_another_container_keeps_its_lease(tmp_path: Path) -> None:
    """The container has the same host name, and its process 1 is another one than here."""
    if os.geteuid() != 0 or subprocess.run([*UNSHARE, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no right to begin a namespace of process ids")
    store = FileStore(str(tmp_path))
    with held_elsewhere(tmp_path, *UNSHARE) as process:
        assert lease_of(store).pid == 1
        assert not is_free(store)
        process.kill()
        process.wait()
        assert not is_free(store), "from here nobody can tell"


@pytest.mark.exhaustive
def test_a_waiting_writer_gets_the_lease_when_its_holder_ends(tmp_path: Path) -> None:
    store = FileStore(str(tmp_path))
    with held_elsewhere(tmp_path) as process:
        ending = threading.Timer(0.5, process.communicate)
        ending.start()
        with HeldLease(store, "kbackup backup", LONG, time.sleep) as held:
            assert lease_of(store).owner == held.owner
        ending.join()
        assert process.returncode == 0


@pytest.mark.exhaustive
def test_a_writer_waits_no_longer_than_the_lease_it_met(tmp_path: Path) -> None:
    """Its holder renews it. A writer that is asked to stop does not wait on."""
    store = FileStore(str(tmp_path))
    with HeldLease(store, "kbackup copy", 2):
        began = time.monotonic()
        with pytest.raises(LockedError, match="kbackup copy"), HeldLease(store, "b", LONG, time.sleep):
            pytest.fail("both hold it")
        assert 1 < time.monotonic() - began < 30
        with pytest.raises(LockedError), HeldLease(store, "c", LONG, lambda _: True):
            pytest.fail("both hold it")


def test_a_standby_waits_as_long_as_another_lives_and_other_leases_are_not_its_concern(store: FaultyStore) -> None:
    looks = iter([False, False, True])
    with HeldLease(store, "kbackup copy", LONG), HeldLease(store, "another", LONG, key="mirrors/A/B/lock.json"):
        with pytest.raises(LockedError), HeldLease(store, "b", 0, lambda _: next(looks), standby=True):
            pytest.fail("both hold it")
        assert next(looks, "asked to wait no longer") == "asked to wait no longer"


# Breaking a lease, and what becomes of the one that held it.


@pytest.fixture(autouse=True)
def _archive(store: FaultyStore) -> None:
    open_or_create(store)


def inspected(store: Store) -> SeenLease:
    seen = inspect_lease(store)
    assert seen is not None
    return seen


def leased(store: FaultyStore, seconds: float, owner: str = "somebody", released: bool = False) -> SeenLease:
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
    return inspected(store)


def seconds_left(lease: Lease) -> float:
    return (datetime.fromisoformat(lease.expires_at) - datetime.now(UTC)).total_seconds()


def test_inspect_lease_reports_the_state(store: FaultyStore) -> None:
    assert inspect_lease(store) is None
    assert leased(store, -1).state == "dead"
    assert leased(store, 60).state == "alive"
    assert leased(store, 60, released=True).state == "released"
    store.delete([layout.ARCHIVE])
    with pytest.raises(NoArchiveError):
        inspect_lease(store)


def test_a_dead_one_is_free_at_once(store: FaultyStore) -> None:
    broken = break_lease(store, leased(store, -1), force=False, seconds=LONG)
    assert broken.released
    assert (broken.command, lease_of(store).owner) == (COMMAND, broken.owner)
    assert is_free(store)


def test_one_that_is_alive_or_given_back_is_left_alone(store: FaultyStore) -> None:
    seen = leased(store, 60)
    with pytest.raises(LockedError, match=r"locked by kbackup backup on elsewhere .*; wait: .*--force"):
        break_lease(store, seen, force=False, seconds=LONG)
    assert read_lease(store) == (seen.lease, seen.etag)
    with pytest.raises(RefusedError, match="nobody holds"):
        break_lease(store, leased(store, 60, released=True), force=True, seconds=LONG)


@pytest.mark.parametrize(("remaining", "held"), [(20.0, 20.0), (1e9, LONG)], ids=["its time", "a wrong clock"])
def test_by_force_it_is_free_when_its_holder_must_have_noticed(
    store: FaultyStore, remaining: float, held: float
) -> None:
    broken = break_lease(store, leased(store, remaining), force=True, seconds=LONG)
    assert not broken.released
    assert held - 10 < seconds_left(broken) <= held
    assert not is_free(store)
    held_by = holder(store)
    assert held_by is not None
    assert held_by.owner == broken.owner


def test_the_run_that_held_it_stops(store: FaultyStore) -> None:
    broken: list[Lease] = []

    def run() -> None:
        with HeldLease(store, "alive", 0.9) as lease:
            broken.append(break_lease(store, inspected(store), force=True, seconds=0.9))
            while seconds_left(broken[0]) > -30:
                lease.check()
                time.sleep(0.02)

    with pytest.raises(LeaseLostError, match="taken over"):
        run()
    assert lease_of(store).owner == broken[0].owner, "it is not given back in another's name"


def test_a_slow_run_that_is_taken_for_dead_stops(store: FaultyStore) -> None:
    with HeldLease(store, "slow", LONG) as lease:
        ran_out = msgspec.structs.replace(lease_of(store), expires_at="2020-01-01T00:00:00.000Z")
        store.put(layout.LOCK, dump(ran_out))
        break_lease(store, inspected(store), force=False, seconds=LONG)
        renew(lease)
        assert raises(lease.check)
        assert is_free(store)


def test_one_that_was_renewed_after_the_question_is_alive(store: FaultyStore) -> None:
    seen = leased(store, -1)
    renewed = leased(store, 60)
    with pytest.raises(LockedError, match="locked by kbackup backup on elsewhere"):
        break_lease(store, seen, force=False, seconds=LONG)
    assert lease_of(store) == renewed.lease
    assert break_lease(store, seen, force=True, seconds=LONG).command == COMMAND


def test_another_ones_is_not_broken_in_its_stead(store: FaultyStore) -> None:
    seen = leased(store, -1)
    theirs = leased(store, -1, owner="another")
    for force in (False, True):
        with pytest.raises(LockedError, match="just taken by another writer"):
            break_lease(store, seen, force=force, seconds=LONG)
    assert lease_of(store) == theirs.lease
    store.delete([layout.LOCK])
    with pytest.raises(LockedError, match="taken by another"):
        break_lease(store, seen, force=True, seconds=LONG)


def test_of_writers_and_breakers_of_a_dead_one_each_has_it_alone(store: FaultyStore) -> None:
    """A dead lease may be broken, but never one that a writer took since."""
    for _ in range(10):
        seen = leased(store, -1)
        together, over = threading.Barrier(8), threading.Barrier(8)
        writers: list[str] = []

        def write(together: threading.Barrier, over: threading.Barrier, writers: list[str]) -> None:
            together.wait()
            try:
                with HeldLease(store, "race", LONG) as held:
                    writers.append(held.owner)
                    over.wait()
                    assert lease_of(store).owner == held.owner
            except LockedError:
                over.wait()

        def break_it(together: threading.Barrier, over: threading.Barrier, seen: SeenLease) -> None:
            together.wait()
            try:
                break_lease(store, seen, force=False, seconds=LONG)
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
        assert lease_of(store).released


def test_a_lost_answer_is_looked_up(store: FaultyStore) -> None:
    seen = leased(store, -1)
    store.faults.append(lost_answer("replace", layout.LOCK))
    assert break_lease(store, seen, force=False, seconds=LONG).owner == lease_of(store).owner
    seen = leased(store, -1)
    fault = lost_answer("replace", layout.LOCK)
    fault.after = False
    store.faults.append(fault)
    with pytest.raises(OutcomeUnknownError):
        break_lease(store, seen, force=False, seconds=LONG)
    store.faults.append(down("replace"))
    with pytest.raises(UnreachableError):
        break_lease(store, seen, force=False, seconds=LONG)
    assert lease_of(store) == seen.lease
