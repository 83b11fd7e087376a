"""What commands share that work with archives and Spark: the store, and a session that is built when it is needed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Literal

import msgspec

from kbackup.archive.identity import check_archive_id
from kbackup.cli.common.frame import Frame
from kbackup.cli.common.local_cache import check_seen
from kbackup.cli.common.output import Reporter
from kbackup.config import Config
from kbackup.metrics.registry import counted
from kbackup.store import Store, open_store

if TYPE_CHECKING:
    from kbackup.spark.session import SparkSession, Starting


def archive_store(frame: Frame, *, lost: bool = False) -> Store:
    """The store of the archive that the command is about; `lost`: its archive.json may be. `MismatchError` where it is
    another one than `archive_id` says."""
    return archive_at(frame, frame.archive, lost=lost)


def archive_at(frame: Frame, address: str, *, lost: bool = False) -> Store:
    """The same for an archive at an address, of a command that is about several."""
    config = frame.config
    store = open_store(address, config.s3, config.encryption.key or "", archive_id=config.archive_id)
    counted.archive(store.url)
    check_archive_id(store, config.archive_id, lost=lost)
    check_seen(frame, store, commits=True)
    return store


def state_store(frame: Frame, store: Store) -> Store:
    """Where restores and flows keep their plans, offset maps and reports: in the archive of `store`, unless set."""
    config = frame.config
    if not config.restore.state:
        return store
    return open_store(config.restore.state, config.s3, config.encryption.key or "")


def say_connecting(frame: Frame, role: Literal["source", "target"]) -> None:
    """Names the cluster that is about to be asked: its answer, and the modules that ask, may take seconds."""
    properties = frame.config.source if role == "source" else frame.config.target
    if servers := properties.get("bootstrap.servers"):
        frame.reporter.doing(f"connecting to the {role} cluster at {servers}")


def delta_config(config: Config, *urls: str | None) -> Config:
    """The same with what Spark takes for Delta tables at `urls`; as it is where there are none."""
    wanted = tuple(filter(None, urls))
    if not wanted:
        return config
    from kbackup.spark.delta import session_conf

    spark = msgspec.structs.replace(config.spark, conf=session_conf(config.spark.conf, wanted))
    return msgspec.structs.replace(config, spark=spark)


@contextmanager
def spark_session(
    config: Config, *, at_once: bool = False, reporter: Reporter | None = None
) -> Iterator[Callable[[], SparkSession]]:
    """A function that gives the session, and waits for it; `reporter` says so. It is stopped at the end.

    It starts at the first call; with `at_once` now, beside what the command does before it needs it: for commands that
    surely will.
    """
    made: list[Starting] = []

    def start() -> Starting:
        if not made:
            from kbackup.spark.session import Starting

            made.append(Starting(config.spark.master, config.spark.conf, config.spark.task_attempts))
        return made[0]

    def session() -> SparkSession:
        starting = start()
        if reporter is not None and not starting.ready:
            reporter.doing("starting Spark")
        return starting()

    def cancel() -> None:
        # a job goes on, and whoever waits for it waits, until it is cancelled
        for starting in made:
            if starting.session is not None:
                with suppress(Exception):  # a JVM that has heard Ctrl-C as well may be gone
                    starting.session.sparkContext.cancelAllJobs()

    if at_once:
        start()
    try:
        with _on_interrupt(cancel):
            yield session
        for starting in made:
            starting.dump_classes()
    finally:
        for starting in made:
            starting.leave()


@contextmanager
def _on_interrupt(cancel: Callable[[], None]) -> Iterator[None]:
    """Calls `cancel` at Ctrl-C, before what is done then anyway. Only a main thread hears signals."""
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
