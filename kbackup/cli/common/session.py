"""Open the stores and the Spark session of a command."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Literal

import msgspec

from kbackup.archive import layout
from kbackup.archive.identity import check_archive_id
from kbackup.cli.common.frame import Frame
from kbackup.cli.common.local_cache import check_seen
from kbackup.cli.common.output import Reporter
from kbackup.config import Config
from kbackup.errors import KbackupError
from kbackup.metrics.registry import counted
from kbackup.store import Store, open_store

if TYPE_CHECKING:
    from kbackup.spark.session import SparkSession, Starting

_MOST_ENDS = 3
"""So many ends of Spark's JVM within an hour end a command that goes on."""
_HOUR = 3600.0


def archive_store(frame: Frame, *, lost: bool = False) -> Store:
    """Open the store of the command's archive; `lost` accepts an archive without its archive.json.

    Raises `MismatchError` if the archive has another id than `archive_id`."""
    return archive_store_at(frame, frame.archive, lost=lost)


def archive_store_at(frame: Frame, address: str, *, lost: bool = False) -> Store:
    """Open the store of the archive at an address, as `archive_store` does."""
    config = frame.config
    store = open_store(
        address,
        config.s3,
        config.encryption.key or "",
        archive_id=config.archive_id,
        key_class=layout.key_class,
    )
    counted.archive(store.url)
    check_archive_id(store, config.archive_id, lost=lost)
    check_seen(frame, store, commits=True)
    return store


def state_store(frame: Frame, store: Store) -> Store:
    """Open the store for plans, offset maps and reports of restores and flows: that of the archive, unless set."""
    config = frame.config
    if not config.restore.state:
        return store
    return open_store(
        config.restore.state, config.s3, config.encryption.key or "", key_class=layout.key_class
    )


def show_connecting(frame: Frame, role: Literal["source", "target"]) -> None:
    """Print the cluster to connect to. The imports and its answer may take seconds."""
    properties = frame.config.source if role == "source" else frame.config.target
    if servers := properties.get("bootstrap.servers"):
        frame.reporter.doing(f"connecting to the {role} cluster at {servers}")


def delta_config(config: Config, *urls: str | None) -> Config:
    """Return the configuration with Spark's settings for Delta tables at `urls`; unchanged without tables."""
    tables = tuple(filter(None, urls))
    if not tables:
        return config
    from kbackup.spark.delta import session_conf

    spark = msgspec.structs.replace(config.spark, conf=session_conf(config.spark.conf, tables))
    return msgspec.structs.replace(config, spark=spark)


@contextmanager
def spark_session(
    config: Config, *, at_once: bool = False, reporter: Reporter | None = None
) -> Iterator[Callable[[], SparkSession]]:
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
                if reporter is not None:
                    reporter.warning("Spark's JVM has ended: another session starts")
            if not started:
                from kbackup.spark.session import Starting
                from kbackup.spark.settings import ALLOW_PLAIN_SECRETS

                conf = config.spark.conf
                if config.spark.allow_plain_secrets:
                    conf = {**conf, ALLOW_PLAIN_SECRETS: "true"}
                started.append(Starting(config.spark.master, conf, config.spark.task_attempts))
            return started[0]

    def session() -> SparkSession:
        starting = start()
        if reporter is not None and not starting.ready:
            reporter.doing("starting Spark")
        return starting()

    def cancel() -> None:
        # a job runs on, and its callers wait, until it is cancelled
        for starting in started:
            if starting.session is not None:
                with suppress(Exception):  # Ctrl-C may have ended the JVM
                    starting.session.sparkContext.cancelAllJobs()

    if at_once:
        start()
    try:
        with _on_interrupt(cancel):
            yield session
        with suppress(KeyboardInterrupt):  # an interrupt ends this alone: the command's work is done
            for starting in started:
                if starting.classes_due and reporter is not None:
                    reporter.doing("preparing faster starts of Spark, once on this machine")
                starting.dump_classes()
    finally:
        for starting in started:
            starting.leave()


@contextmanager
def _on_interrupt(cancel: Callable[[], None]) -> Iterator[None]:
    """Call `cancel` at Ctrl-C, before the previous handler. Only a main thread receives signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def interrupt(number: int, frame: FrameType | None) -> None:
        cancel()
        if callable(before):
            before(number, frame)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
