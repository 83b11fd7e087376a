"""Read CPU time and memory of processes and their trees from /proc.

`python -m scripts.bench.processes OUTPUT COMMAND...` runs one command, and prints what its process tree used as a line
of JSON. It is a process of its own, so that it can adopt the command's orphaned descendants (Linux's child subreaper).
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

_TICKS = os.sysconf("SC_CLK_TCK")
_EVERY = 0.1  # s between samples; what a process uses after its last one is not counted
_MEMORY_EVERY = 5  # samples of CPU for one of the tree's memory, which takes the kernel longer
_PR_SET_CHILD_SUBREAPER = 36


class _Stat(NamedTuple):
    """CPU in seconds: of the process alone, and with its children that ended and were waited for."""

    name: str
    own_cpu: float
    cpu: float


def cpu_of(pid: int) -> float:
    """Return the CPU seconds of the process and its ended children; 0 if it is gone."""
    stat = _stat(pid)
    return stat.cpu if stat else 0.0


def peak_of(pid: int | None = None) -> int:
    """Return the most bytes of memory that a process (by default this one) has held (VmHWM); 0 if it is gone."""
    return _kibibytes(str(pid or "self"), "status", "VmHWM:")


def resident_of(pid: int) -> int:
    """Return the bytes of memory that a process holds now (VmRSS); 0 if it is gone."""
    return _kibibytes(str(pid), "status", "VmRSS:")


def reset_peak() -> None:
    """Forget what this process has held at most."""
    Path("/proc/self/clear_refs").write_text("5")


class Tree:
    """A thread that samples a process and its descendants until the context ends.

    Roles: 'driver' is the root, 'jvm' its Java process, 'worker' what that one started. `peaks` is the largest process
    by role, `peak` the largest sum of memory (PSS) below the root, in bytes. `cpu_by_process` has the seconds
    of each process alone: Spark's Python daemon ignores the end of its workers, so no process can wait for them.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self.peaks: dict[str, int] = defaultdict(int)
        self.peak = 0
        self.cpu_by_process: dict[int, float] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="bench-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join()

    def cpu(self) -> dict[str, float]:
        """Return the seconds so far by role."""
        used: dict[str, float] = defaultdict(float)
        for _, role, stat in self._members():
            used[role] += stat.cpu
        return dict(used)

    def _watch(self) -> None:
        samples = 0
        while not self._stopped.is_set():
            members = list(self._members())
            for pid, role, stat in members:
                self.cpu_by_process[pid] = max(stat.own_cpu, self.cpu_by_process.get(pid, 0.0))
                self.peaks[role] = max(self.peaks[role], peak_of(pid))
            if samples % _MEMORY_EVERY == 0:
                pids = [str(pid) for pid, _, _ in members if pid != self._root]
                self.peak = max(self.peak, sum(_kibibytes(pid, "smaps_rollup", "Pss:") for pid in pids))
            samples += 1
            self._stopped.wait(_EVERY)

    def _members(self) -> Iterator[tuple[int, str, _Stat]]:
        waiting = [(self._root, "driver")]
        while waiting:
            pid, role = waiting.pop()
            if (stat := _stat(pid)) is None:
                continue
            if role == "jvm" and stat.name != "java":
                role = "worker"
            elif role == "driver" and stat.name == "java":
                role = "jvm"
            yield pid, role, stat
            with suppress(OSError):
                for children in Path(f"/proc/{pid}/task").glob("*/children"):
                    waiting += [(int(child), role) for child in children.read_text().split()]


def run(command: list[str], output: Path) -> dict[str, float]:
    """Return wall and CPU seconds, the peak of the tree's memory in bytes, and the exit code.

    Standard output goes to the file `output`. The wall time ends with the command, CPU counts its whole tree.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with Tree(os.getpid()) as tree:
        began = time.monotonic()
        with output.open("wb") as file:
            process = subprocess.Popen(command, stdout=file)
        _, status = os.waitpid(process.pid, 0)
        wall = time.monotonic() - began
        with suppress(ChildProcessError):
            while True:
                os.wait()  # adopted descendants
    cpu = sum(seconds for pid, seconds in tree.cpu_by_process.items() if pid != os.getpid())
    return {"wall": wall, "cpu": cpu, "peak": tree.peak, "code": os.waitstatus_to_exitcode(status)}


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    ticks = [int(each) for each in rest.split()[11:15]]
    return _Stat(name, sum(ticks[:2]) / _TICKS, sum(ticks) / _TICKS)


def _kibibytes(pid: str, file: str, label: str) -> int:
    """Return a size of a process in bytes; 0 if it is gone."""
    try:
        lines = Path("/proc", pid, file).read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(label)), 0)


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[2:], Path(sys.argv[1]))))
