"""The phases and progress that a job reports while it works; the command line shows them, tests count them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from kbackup.metrics.registry import counted


class Listener(Protocol):
    def phase(self, name: str) -> None: ...

    def progress(self, records: int, size: int, expected: int) -> None:
        """Records and bytes so far in this phase; `expected` is an upper bound of records."""
        ...


class Silent:
    def phase(self, name: str) -> None: ...

    def progress(self, records: int, size: int, expected: int) -> None: ...


class Phases:
    """Announces each named step to the listener and keeps how long it took, in seconds."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        self._listener.phase(name)
        began = time.monotonic()
        try:
            yield
        finally:
            took = time.monotonic() - began
            self.seconds[name] = round(self.seconds.get(name, 0.0) + took, 3)
            counted.add("kbackup_phase_seconds_total", took, name)
