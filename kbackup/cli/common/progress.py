"""Show the progress of a command on stderr."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from kbackup.util.text import human_count, human_duration, human_size, printable

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

PLAIN_INTERVAL = 10.0
_BAR = 20  # columns


class Progress:
    """Counts records and bytes, and shows them on stderr: a bar on a terminal, elsewhere a line every ten seconds.

    Both show the share of bytes if their total is known, else of records. `printed_at` is when the last line was
    printed, by `clock`, or when the progress began. Thread-safe."""

    def __init__(
        self,
        label: str,
        records: int | None,
        nbytes: int | None,
        *,
        shown: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.label = printable(label)
        self.total_records, self.total_bytes = records, nbytes
        self.records = self.nbytes = 0
        self._shown, self._clock = shown, clock
        self._started = self.printed_at = clock()
        self._lock = threading.Lock()
        self._bar: RichProgress | None = None

    def __enter__(self) -> Self:
        self._started = self.printed_at = self._clock()
        if self._shown and sys.stderr.isatty():
            self._bar = _rich_bar(self.label)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._show(self._bar)
            self._bar.stop()

    @contextmanager
    def hidden(self, *, restart: bool = True) -> Iterator[None]:
        """Hide the bar while the caller prints to stdout, if stdout is the same terminal.

        `restart` shows the bar afterwards, on a line that must be empty. (Rich would print the output above the
        bar, and add line feeds.)"""
        bar = self._bar if sys.stdout.isatty() else None
        if bar is not None:
            bar.stop()
        try:
            yield
        finally:
            if bar is not None and restart:
                bar.start()

    def advance(self, records: int = 0, nbytes: int = 0) -> None:
        with self._lock:
            self._reach(self.records + records, self.nbytes + nbytes)

    def reach(self, records: int, nbytes: int, expected: int) -> None:
        with self._lock:
            self.total_records = expected
            self._reach(records, nbytes)

    def _reach(self, records: int, nbytes: int) -> None:
        self.records, self.nbytes = records, nbytes
        if self._bar is not None:
            self._show(self._bar)
        elif self._shown and self._clock() - self.printed_at >= PLAIN_INTERVAL:
            self._print_line()

    def print_line(self) -> None:
        """Print how far the work is, in a line of its own."""
        with self._lock:
            self._print_line()

    def _print_line(self) -> None:
        self.printed_at = self._clock()
        share = self._share()
        percent = "" if share is None else f"{share:.0%}, "
        print(f"{self.label}: {percent}{self.status()}", file=sys.stderr, flush=True)

    def status(self, room: int | None = None) -> str:
        """Return records, bytes, rates and the remaining time, in at most `room` columns.

        Leaves out the least important parts if they don't fit, but never the remaining time."""
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
        """Return the share that is done, from 0 to 1; None without a total."""
        done, total = self.nbytes, self.total_bytes
        if not total:
            done, total = self.records, self.total_records
        if not total:
            return None
        # Totals are estimates: more may come than was expected.
        return min(done / total, 1.0)

    def _show(self, bar: RichProgress) -> None:
        share = self._share()
        total = None if share is None else 1.0
        # A space stands beside the bar on each side.
        room = bar.console.width - len(self.label) - _BAR - 2
        bar.update(bar.task_ids[0], total=total, completed=share or 0.0, status=self.status(max(room, 0)))


def _of(done: int, total: int | None, text: Callable[[float], str]) -> str:
    return f"{text(done)} of {text(total)}" if total else text(done)


def _rich_bar(label: str) -> RichProgress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=_BAR),
        TextColumn("{task.fields[status]}", markup=False),
    )
    # Rich would redirect to stderr what goes to a file or a pipe.
    bar = Progress(*columns, console=Console(file=sys.stderr), transient=True, redirect_stdout=sys.stdout.isatty())
    bar.add_task(label, total=None, status="")
    return bar
