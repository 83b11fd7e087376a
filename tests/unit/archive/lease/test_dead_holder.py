"""The lease of a dead process is free at once where that is certain, and waited for where it is asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from kbackup.archive import layout
from kbackup.archive.lease import HeldLease, break_lease, holder, inspect_lease, read_lease
from kbackup.archive.models import dump
from kbackup.archive.run import open_or_create
from kbackup.errors import LockedError
from kbackup.store.file import FileStore
from tests.support.leases import LONG

_HOLD = """
import sys
from kbackup.archive.lease import HeldLease
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


def is_free(store: FileStore) -> bool:
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
        seen = inspect_lease(store)
        assert seen is not None
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
        assert read_lease(store)[0].pid == 1
        assert not is_free(store)
        process.kill()
        process.wait()
        assert not is_free(store), "from here nobody can tell"


def test_a_waiting_writer_gets_the_lease_when_its_holder_ends(tmp_path: Path) -> None:
    store = FileStore(str(tmp_path))
    with held_elsewhere(tmp_path) as process:
        ending = threading.Timer(0.5, process.communicate)
        ending.start()
        with HeldLease(store, "kbackup backup", LONG, time.sleep) as held:
            assert read_lease(store)[0].owner == held.owner
        ending.join()
        assert process.returncode == 0


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
