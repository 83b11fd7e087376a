"""What a command opens and closes: stores, the Spark session, and handlers of signals."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Literal

import click
import msgspec

from kbackup.archive import layout
from kbackup.archive.catalog.seen import SeenCatalog
from kbackup.archive.identity import check_archive_id
from kbackup.cli.common.frame import Frame, interrupt_by, signal_handler
from kbackup.cli.common.output import Reporter
from kbackup.config import Config
from kbackup.errors import KbackupError
from kbackup.jobs.common import Stop
from kbackup.metrics.registry import counted
from kbackup.store import Store, open_store
from kbackup.util.system import cache_folder

if TYPE_CHECKING:
    from kbackup.spark.session import SparkSession, Starting

log = logging.getLogger(__name__)

_MOST_ENDS = 3
"""So many ends of Spark's JVM within an hour end a command that goes on."""
_HOUR = 3600.0


def cached_archive_store(frame: Frame, address: str | None = None) -> Store:
    """Open the store of the command's archive, or of the archive at `address`, with the cache of metadata."""
    folder = cache_folder() if frame.config.metadata_cache else None
    return _open_archive(frame, address or frame.archive, metadata=folder / "archives" if folder is not None else None)


def archive_store(frame: Frame, *, lost: bool = False) -> Store:
    """Open the store of the command's archive; `lost` accepts an archive without its archive.json.

    Raises `MismatchError` if the archive has another id than `archive_id`."""
    return archive_store_at(frame, frame.archive, lost=lost)


def archive_store_at(frame: Frame, address: str, *, lost: bool = False) -> Store:
    """Open the store of the archive at an address, as `archive_store` does."""
    return _open_archive(frame, address, lost=lost, commits=True)


def _open_archive(
    frame: Frame, address: str, *, metadata: Path | None = None, lost: bool = False, commits: bool = False
) -> Store:
    """Open an archive; compare its newest catalog with the newest that this machine has read.

    A command that `commits` stores the number of the newest catalog at its end."""
    config = frame.config
    key = config.encryption.key or ""
    store = open_store(address, config.s3, key, metadata, config.archive_id, key_class=layout.key_class)
    counted.archive(store.url)
    check_archive_id(store, config.archive_id, lost=lost)
    folder = cache_folder() if config.metadata_cache else None
    if folder is None:
        return store
    seen = SeenCatalog(store, folder / "seen")
    seen.check(frame.accept_rollback)

    def remember() -> None:
        try:
            seen.remember()
        except KbackupError as error:
            log.info("can't read the number of the newest catalog: %s", error)

    if commits:
        click.get_current_context().call_on_close(remember)
    return store


def state_store(frame: Frame, store: Store | None = None) -> Store:
    """Open the store for plans, offset maps and reports of restores and flows: unless set, the archive's `store`."""
    config = frame.config
    if config.restore.state:
        return open_store(config.restore.state, config.s3, config.encryption.key or "", key_class=layout.key_class)
    return store if store is not None else archive_store(frame)


def show_connecting(frame: Frame, role: Literal["source", "target"]) -> None:
    """Print the cluster to connect to. The imports and its answer may take seconds."""
    properties = frame.config.source if role == "source" else frame.config.target
    if servers := properties.get("bootstrap.servers"):
        frame.reporter.doing(f"connecting to the {role} cluster at {servers}")


def delta_config(config: Config, url: str | None) -> Config:
    """Return the configuration with Spark's settings for Delta tables at `url`; unchanged without tables."""
    if not url:
        return config
    from kbackup.spark.delta import session_conf

    spark = msgspec.structs.replace(config.spark, conf=session_conf(config.spark.conf, (url,)))
    return msgspec.structs.replace(config, spark=spark)


@contextmanager
def spark_session(config: Config, *, at_once: bool = False, reporter: Reporter) -> Iterator[Callable[[], SparkSession]]:
    """Provide a function that returns the Spark session, and stop the session at the end.

    The session starts at the first call, which waits and notes that on `reporter`. With `at_once` it starts now, while
    the command does other work. A call after the end of the session's JVM starts another one. Threads may call.
    """
    started: list[Starting] = []
    ends: list[float] = []
    alone = threading.Lock()

    def start() -> Starting:
        with alone:
            if started and started[0].ended:
                started.pop().leave()
                ends.append(time.monotonic())
                if len(ends) >= _MOST_ENDS and ends[-1] - ends[-_MOST_ENDS] < _HOUR:
                    raise KbackupError(
                        f"Spark's JVM has ended {_MOST_ENDS} times within an hour",
                        "find out why, for instance in the kernel's log of killed processes: it may lack memory",
                    )
                reporter.warning("Spark's JVM has ended: another session starts")
            if not started:
                from kbackup.spark.session import ALLOW_PLAIN_SECRETS, Starting

                conf = config.spark.conf
                if config.spark.allow_plain_secrets:
                    conf = {**conf, ALLOW_PLAIN_SECRETS: "true"}
                started.append(Starting(config.spark.master, conf, config.spark.task_attempts))
            return started[0]

    def session() -> SparkSession:
        starting = start()
        if not starting.ready:
            reporter.doing("starting Spark")
        return starting()

    before = signal.getsignal(signal.SIGINT)

    def cancel(number: int, stack: FrameType | None) -> None:
        # a job runs on, and its callers wait, until it is cancelled
        for starting in started:
            if starting.session is not None:
                with suppress(Exception):  # Ctrl-C may have ended the JVM
                    starting.session.sparkContext.cancelAllJobs()
        interrupt_by(before, stack)

    if at_once:
        start()
    try:
        with signal_handler(cancel, signal.SIGINT):
            yield session
    finally:
        for starting in started:
            starting.leave()


GRACE = 25.0
"""Seconds for the work after a stop. By default Kubernetes kills after 30 s and Docker after 10 s."""


@contextmanager
def stop_at_signals(stop: Stop, grace: float = GRACE) -> Iterator[None]:
    """Ask `stop` at SIGTERM and SIGINT. A second signal, or the end of `grace` seconds, interrupts the work."""
    before = signal.getsignal(signal.SIGINT)
    grace_timer = threading.Timer(grace, os.kill, (os.getpid(), signal.SIGINT))
    grace_timer.daemon = True

    def on_signal(number: int, stack: FrameType | None) -> None:
        if stop.asked:
            interrupt_by(before, stack)
        stop.ask()
        grace_timer.start()

    try:
        with signal_handler(on_signal, signal.SIGINT, signal.SIGTERM):
            yield
    finally:
        grace_timer.cancel()
