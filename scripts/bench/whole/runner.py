"""Run one command and print what its process tree used as a line of JSON.

A process of its own, so that it can adopt the command's orphaned descendants (Linux's child subreaper). CPU is sampled
from every process of the tree: Spark's Python daemon ignores the end of its workers, so no process can wait for them.
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
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_INTERVAL = 0.1  # s between samples of CPU; what a process uses after its last one is not counted
_MEMORY_EVERY = 5  # samples of CPU for one of memory, which takes the kernel longer
_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


class TreeSampler:
    """A thread that samples this process's descendants.

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
                self.cpu[pid] = max(_cpu(pid), self.cpu.get(pid, 0.0))
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
    return {
        "wall": wall,
        "cpu": sum(tree.cpu.values()),
        "peak": tree.peak,
        "code": os.waitstatus_to_exitcode(status),
    }


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


def _cpu(pid: int) -> float:
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
