"""Progress on stderr: a bar on a terminal, elsewhere a plain line every ten seconds."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from kbackup.cli.common.human import human_count, human_duration, human_size, printable

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

PLAIN_INTERVAL = 10.0
_BAR = 20  # columns


class Progress:
    """Counts records and bytes; thread-safe. The share that is done goes by bytes where their total is
    known."""

    def __init__(
        self,
        what: str,
        records: int | None,
        nbytes: int | None,
        *,
        shown: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.what = printable(what)
        self.total_records, self.total_bytes = records, nbytes
        self.records = self.nbytes = 0
        self._shown, self._clock = shown, clock
        self._started = self._said = clock()
        self._lock = threading.Lock()
        self._bar: RichProgress | None = None

    def __enter__(self) -> Self:
        self._started = self._said = self._clock()
        if self._shown and sys.stderr.isatty():
            self._bar = _rich_bar(self.what)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._show()
            self._bar.stop()

    @contextmanager
    def aside(self, *, again: bool = True) -> Iterator[None]:
        """For as long as something is printed to stdout: the bar goes where both are one terminal. (Rich would print it
        above the bar, with line feeds of its own.) `again`: then it comes back, on a line that must be empty."""
        bar = self._bar if sys.stdout.isatty() else None
        if bar is not None:
            bar.stop()
        try:
            yield
        finally:
            if bar is not None and again:
                bar.start()

    def advance(self, records: int = 0, nbytes: int = 0) -> None:
        """Adds what is newly done."""
        with self._lock:
            self._reach(self.records + records, self.nbytes + nbytes)

    def reach(self, records: int, nbytes: int, expected: int) -> None:
        """Sets what is done in all, and how many records are expected."""
        with self._lock:
            self.total_records = expected
            self._reach(records, nbytes)

    def _reach(self, records: int, nbytes: int) -> None:
        self.records, self.nbytes = records, nbytes
        if self._bar is not None:
            self._show()
        elif self._shown and self._clock() - self._said >= PLAIN_INTERVAL:
            self._said = self._clock()
            print(f"{self.what}: {self.status()}", file=sys.stderr, flush=True)

    def status(self, room: int | None = None) -> str:
        """Records, bytes, rates and time left in one line of `room` columns. Where that is too little, what says least
        is left out, the time left never."""
        seconds = max(self._clock() - self._started, 1e-3)
        records = f"{_of(self.records, self.total_records, human_count)} records"
        size = _of(self.nbytes, self.total_bytes, human_size)
        record_rate = f"{human_count(self.records / seconds)} records/s"
        rate = f"{human_size(self.nbytes / seconds)}/s"
        parts = [records, size, record_rate, rate]
        share = self._share()
        if share:
            parts.append(f"{human_duration(seconds / share - seconds)} left")
        for least in (record_rate, size, rate, records):
            if room is None or len(", ".join(parts)) <= room:
                break
            parts.remove(least)
        return ", ".join(parts)

    def _share(self) -> float | None:
        """From 0 to 1; None where no total is known."""
        done, total = (
            (self.nbytes, self.total_bytes) if self.total_bytes else (self.records, self.total_records)
        )
        return min(done / total, 1.0) if total else None

    def _show(self) -> None:
        if self._bar is None:
            return
        share = self._share()
        total = None if share is None else 1.0
        room = self._bar.console.width - len(self.what) - _BAR - 2  # a space beside the bar on each side
        self._bar.update(
            self._bar.task_ids[0], total=total, completed=share or 0.0, status=self.status(max(room, 0))
        )


def _of(done: int, total: int | None, text: Callable[[float], str]) -> str:
    return f"{text(done)} of {text(total)}" if total else text(done)


def _rich_bar(what: str) -> RichProgress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=_BAR),
        TextColumn("{task.fields[status]}", markup=False),
    )
    # rich would show on stderr what goes to a file or a pipe
    aside = sys.stdout.isatty()
    bar = Progress(*columns, console=Console(file=sys.stderr), transient=True, redirect_stdout=aside)
    bar.add_task(what, total=None, status="")
    return bar
