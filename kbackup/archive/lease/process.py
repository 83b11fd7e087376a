"""The process that holds a lease: in words, and whether it is dead."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

from kbackup.archive.models import Lease


def describe(lease: Lease) -> str:
    """Return in words which process holds a lease, and until when."""
    times = f"since {lease.acquired_at}, lease until {lease.expires_at}"
    return f"{lease.command} on {lease.host} (pid {lease.pid}, {times})"


def _process_mark(pid: int) -> str:
    """Return a word that no other process of any machine has or had: the start of the kernel, the namespace of process
    ids, and the start of the process. '' for a process that ended. `OSError` where it can't be told."""
    if str(Path("/proc/self").readlink()) != str(os.getpid()):
        raise OSError("/proc is of another namespace of process ids")
    namespace = Path("/proc/self/ns/pid").readlink()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # the name may hold blanks
    state, started = fields[0], fields[19]
    return "" if state in "ZX" else f"{boot}/{namespace}/{started}"


def own_mark() -> str:
    """Return the mark of this process; '' where it can't be told."""
    try:
        return _process_mark(os.getpid())
    except OSError:
        return ""


def is_dead(lease: Lease) -> bool:
    """Return whether the holder of a lease is certainly a process that ended. Nothing is certain of another machine or
    container: it has another start of the kernel or another namespace of process ids."""
    mark, own = lease.owner.partition("@")[2], own_mark()
    if lease.host != socket.gethostname() or not own or mark.rpartition("/")[0] != own.rpartition("/")[0]:
        return False
    try:
        with suppress(PermissionError):  # another user's process
            os.kill(lease.pid, 0)
        return _process_mark(lease.pid) != mark
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # /proc may hide processes of other users
        return False
