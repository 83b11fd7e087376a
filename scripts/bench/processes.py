"""Read CPU time and memory of processes and their trees from /proc.

`python -m scripts.bench.processes OUTPUT COMMAND...` runs one command, and prints what its process tree used as a line
of JSON. It is a process of its own, so that it can adopt the command's orphaned descendants (Linux's child subreaper).
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

_TICKS = os.sysconf("SC_CLK_TCK")
_EVERY = 0.1  # s; the kernel keeps the high-water marks, a look before a process ends is enough
_PROC = Path("/proc")


class _Stat(NamedTuple):
    """`cpu` in seconds, with that of children that ended and were waited for."""

    name: str
    parent: int
    cpu: float


def cpu_of(pid: int) -> float:
    """Seconds of CPU that the process and its ended children have used; 0 where it is gone."""
    found = _stat(pid)
    return found.cpu if found else 0.0


def reset_peak() -> None:
    """Forget what this process has held at most."""
    (_PROC / "self" / "clear_refs").write_text("5")


def peak_of(pid: int | None = None) -> int:
    """Bytes of memory that the process (by default this one) has held at most (VmHWM); 0 where it is gone."""
    try:
        text = (_PROC / str(pid or "self") / "status").read_text()
    except OSError:
        return 0
    marks = (line.split()[1] for line in text.splitlines() if line.startswith("VmHWM:"))
    return int(next(marks, "0")) << 10


class Tree:
    """A context manager that watches a process and its descendants.

    Roles: 'driver' is the root, 'jvm' its Java process, 'worker' what that one started.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._peaks: dict[str, int] = defaultdict(int)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="bench-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def cpu(self) -> dict[str, float]:
        """Seconds so far by role."""
        used: dict[str, float] = defaultdict(float)
        for role, _, stat in self._members():
            used[role] += stat.cpu
        return dict(used)

    def peaks(self) -> dict[str, int]:
        """Bytes by role: of its largest process."""
        return dict(self._peaks)

    def _watch(self) -> None:
        while not self._stopped.wait(_EVERY):
            for role, pid, _ in self._members():
                self._peaks[role] = max(self._peaks[role], peak_of(pid))

    def _members(self) -> Iterator[tuple[str, int, _Stat]]:
        found = {int(entry.name): _stat(int(entry.name)) for entry in _PROC.iterdir() if entry.name.isdigit()}
        there = {pid: stat for pid, stat in found.items() if stat is not None}
        for pid, stat in there.items():
            line = list(_line(pid, there))
            if self._root in line:
                yield _role([there[p].name for p in line[: line.index(self._root)]]), pid, stat


def _line(pid: int, there: Mapping[int, _Stat]) -> Iterator[int]:
    """A process and its ancestors."""
    while pid in there:
        yield pid
        pid = there[pid].parent


def _role(line: list[str]) -> str:
    """`line` are the names of a process and its ancestors below the root."""
    if "java" not in line:
        return "driver"
    return "jvm" if line[0] == "java" else "worker"


def _stat(pid: int) -> _Stat | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    return _Stat(name, int(fields[1]), sum(map(int, fields[11:15])) / _TICKS)


_PR_SET_CHILD_SUBREAPER = 36
_INTERVAL = 0.1  # s between samples of CPU; what a process uses after its last one is not counted
_MEMORY_EVERY = 5  # samples of CPU for one of memory, which takes the kernel longer


class TreeSampler:
    """A thread that samples this process's descendants. CPU is sampled from every process of the tree: Spark's Python
    daemon ignores the end of its workers, so no process can wait for them.

    `cpu` has seconds by process, without those of its children; `peak` is the largest sum of memory (PSS, bytes)."""

    def __init__(self) -> None:
        self.cpu: dict[int, float] = {}
        self.peak = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._thread.join()

    def _sample(self) -> None:
        for number in itertools.count():
            pids = list(_descendants(os.getpid()))
            for pid in pids:
                self.cpu[pid] = max(_own_cpu(pid), self.cpu.get(pid, 0.0))
            if number % _MEMORY_EVERY == 0:
                self.peak = max(self.peak, sum(map(_pss, pids)))
            if self._stopped.wait(_INTERVAL):
                return


def run(command: list[str], output: Path) -> dict[str, float]:
    """Return wall and CPU seconds, the peak of the tree's memory in bytes, and the exit code.

    Standard output goes to the file `output`. The wall time ends with the command, CPU counts its whole tree.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    tree = TreeSampler()
    began = time.monotonic()
    with output.open("wb") as file:
        process = subprocess.Popen(command, stdout=file)
    _, status = os.waitpid(process.pid, 0)
    wall = time.monotonic() - began
    _wait_for_orphans()
    tree.stop()
    return {"wall": wall, "cpu": sum(tree.cpu.values()), "peak": tree.peak, "code": os.waitstatus_to_exitcode(status)}


def _wait_for_orphans() -> None:
    """Wait until the adopted descendants have ended."""
    with suppress(ChildProcessError):
        while True:
            os.wait()


def _descendants(root: int) -> Iterator[int]:
    for children in _PROC.glob(f"{root}/task/*/children"):
        try:
            pids = [int(pid) for pid in children.read_text().split()]
        except OSError:
            continue
        for pid in pids:
            yield pid
            yield from _descendants(pid)


def _own_cpu(pid: int) -> float:
    """Return the CPU seconds of a process; 0 for a process that has ended."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return 0.0
    return sum(map(int, text.rpartition(")")[2].split()[11:13])) / _TICKS


def _pss(pid: int) -> int:
    """Return a process's share of its memory in bytes; 0 for a process that has ended."""
    try:
        text = (_PROC / str(pid) / "smaps_rollup").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Pss:")), 0)


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[2:], Path(sys.argv[1]))))
