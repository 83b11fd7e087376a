"""What a command opens and closes: stores, the Spark session, and handlers of signals."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Literal

import click

from kbackup.cli.common.command_context import CommandContext, interrupt_by, signal_handler
from kbackup.cli.common.output import Reporter
from kbackup.config import Config
from kbackup.errors import KbackupError
from kbackup.spark.session import Starting, start_spark
from kbackup.store import Store

if TYPE_CHECKING:
    from kbackup.jobs.common import Stop
    from kbackup.spark.session import SparkSession

# The library is imported where it is used. Its imports take a tenth of a second, and a command whose work is Spark's
# starts the JVM before them.

_MOST_ENDS = 3
"""A command that goes on gives up when Spark's JVM has ended so many times within an hour."""
_HOUR = 3600.0


def cached_archive_store(context: CommandContext, address: str | None = None) -> Store:
    """Open the store of the command's archive, or of the archive at `address`, with the cache of metadata."""
    from kbackup import library

    address = address or context.archive
    store, _ = library.archive_store(context.config, address, cached=True, accept_rollback=context.accept_rollback)
    return store


def archive_store(context: CommandContext, address: str | None = None, *, lost: bool = False) -> Store:
    """Open the store of the command's archive, or of the archive at `address`; the end of the command remembers its
    newest catalog. `lost` accepts an archive without its archive.json.

    Raises `MismatchError` if the archive has another id than `archive_id`."""
    from kbackup import library

    address = address or context.archive
    store, remember = library.archive_store(context.config, address, lost=lost, accept_rollback=context.accept_rollback)
    if context.config.metadata_cache:
        click.get_current_context().call_on_close(remember)
    return store


def state_store(context: CommandContext, store: Store | None = None) -> Store:
    """Open the store for plans, offset maps and reports of restores and flows: unless set, the archive's `store`."""
    from kbackup import library

    if not context.config.restore.state and store is None:
        store = archive_store(context)
    return library.state_store(context.config, store)


def show_connecting(context: CommandContext, role: Literal["source", "target"]) -> None:
    """Print the cluster to connect to. The imports and its answer may take seconds."""
    properties = context.config.source if role == "source" else context.config.target
    servers = properties.get("bootstrap.servers")
    if servers:
        context.reporter.doing(f"connecting to the {role} cluster at {servers}")


@contextmanager
def spark_session(config: Config, *, at_once: bool = False, reporter: Reporter) -> Iterator[Callable[[], SparkSession]]:
    """Provide a function that returns the Spark session, and stop the session at the end.

    The session starts at the first call, which waits and notes that on `reporter`. With `at_once` it starts now, while
    the command does other work. A call after the end of the session's JVM starts another one. Threads may call.
    """
    sessions = _Sessions(config, reporter)
    before = signal.getsignal(signal.SIGINT)

    def cancel(number: int, stack: FrameType | None) -> None:
        sessions.cancel_jobs()
        interrupt_by(before, stack)

    if at_once:
        sessions.start()
    try:
        with signal_handler(cancel, signal.SIGINT):
            yield sessions.current
    finally:
        sessions.leave()


class _Sessions:
    """The Spark sessions of a command, one after the other: another one starts after the end of the JVM."""

    def __init__(self, config: Config, reporter: Reporter) -> None:
        self._config = config
        self._reporter = reporter
        self._starting: Starting | None = None
        self._ends: list[float] = []
        # Two threads that ask at the same time get one session.
        self._lock = threading.Lock()

    def start(self) -> Starting:
        with self._lock:
            if self._starting is not None and self._starting.ended:
                self._starting.leave()
                self._starting = None
                self._note_end()
            if self._starting is None:
                self._starting = start_spark(self._config)
            return self._starting

    def _note_end(self) -> None:
        """Note that a JVM has ended. Raises `KbackupError` if that happens again and again."""
        self._ends.append(time.monotonic())
        last_ends = self._ends[-_MOST_ENDS:]
        if len(last_ends) == _MOST_ENDS and last_ends[-1] - last_ends[0] < _HOUR:
            raise KbackupError(
                f"Spark's JVM has ended {_MOST_ENDS} times within an hour",
                "find out why, for instance in the kernel's log of killed processes: it may lack memory",
            )
        self._reporter.warning("Spark's JVM has ended: another session starts")

    def current(self) -> SparkSession:
        starting = self.start()
        if not starting.ready:
            self._reporter.doing("starting Spark")
        return starting()

    def cancel_jobs(self) -> None:
        """Cancel the jobs of the session: else they go on, and their callers wait."""
        starting = self._starting
        if starting is not None and starting.session is not None:
            # Ctrl-C may have ended the JVM.
            with suppress(Exception):
                starting.session.sparkContext.cancelAllJobs()

    def leave(self) -> None:
        if self._starting is not None:
            self._starting.leave()


GRACE = 25.0
"""Seconds for the work after a stop. By default Kubernetes kills after 30 s and Docker after 10 s."""


@contextmanager
def stop_at_signals(stop: Stop, grace: float = GRACE, *, note: str = "") -> Iterator[None]:
    """Ask `stop` at SIGTERM and SIGINT, and print `note` on stderr. A second signal, or the end of `grace` seconds,
    interrupts the work."""
    before = signal.getsignal(signal.SIGINT)
    # A timer's thread can't interrupt the main thread but by a signal.
    grace_timer = threading.Timer(grace, os.kill, (os.getpid(), signal.SIGINT))
    grace_timer.daemon = True

    def on_signal(number: int, stack: FrameType | None) -> None:
        if stop.asked:
            interrupt_by(before, stack)  # raises: who asks twice does not want to wait for the last round
        stop.ask()
        grace_timer.start()
        if note:
            # Not by print: the signal may have come in the middle of one, which refuses another.
            os.write(2, f"{note}\n".encode())

    try:
        with signal_handler(on_signal, signal.SIGINT, signal.SIGTERM):
            yield
    finally:
        grace_timer.cancel()
