"""Read CPU time and peak memory of a tree of processes from /proc, by kinds of processes."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
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
