"""The check job: walks the path that a backup takes, for real but with next to nothing, and says of each step
whether it works. It leaves nothing behind, in the archive or in the clusters."""

from __future__ import annotations

import platform
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kbackup import __version__
from kbackup.config.models import Config
from kbackup.jobs.check.archive import check_archive
from kbackup.jobs.check.clusters import check_beside, check_source, check_target
from kbackup.jobs.check.steps import Step, Steps
from kbackup.kafka.client.client import librdkafka_version
from kbackup.spark.progress import ProgressSender
from kbackup.spark.tasks import Spark, run_tasks
from kbackup.spark.workers import check_protection, is_local
from kbackup.store import Store, open_store
from kbackup.util.text import plural

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CheckReport", "Step", "check"]

_VISIT_SECONDS = 0.5


@dataclass(frozen=True)
class CheckReport:
    steps: tuple[Step, ...]
    exit_code: int


def check(
    config: Config,
    store: Callable[[], Store],
    show: Callable[[Step], None],
    target: bool = False,
    spark: Spark | None = None,
) -> CheckReport:
    """Try what a backup needs; with `target` also what a restore needs, with `spark` that a task runs. `store` returns
    the archive's store or raises the reason why it can't."""
    steps = Steps(show)
    with steps.trying("configuration") as step:
        step.detail = "loaded"
    archive = check_archive(steps, store)
    check_source(steps, config, archive)
    check_beside(steps, config.sources)
    if target:
        check_target(steps, config.target, config.restore.transactions)
    if spark is not None:
        _check_spark(steps, config, spark)
    return CheckReport(tuple(steps.done), steps.exit_code)


class Worker(NamedTuple):
    """An executor, by its host and its working directory, and what its tasks run with."""

    host: str
    folder: str
    python: str
    librdkafka: str


@dataclass(frozen=True)
class Visit:
    """A task that returns the worker that runs it, which must share the directories of `stores`."""

    stores: tuple[Store, ...]
    seconds: float

    def __call__(self, task: int, progress: ProgressSender) -> Iterator[Worker]:
        time.sleep(self.seconds)  # so that every worker gets a task
        yield _this_worker()


def _this_worker() -> Worker:
    return Worker(socket.gethostname(), str(Path.cwd()), platform.python_version(), librdkafka_version())


def _check_spark(steps: Steps, config: Config, spark: Spark) -> None:
    """Run tasks on every executor, with the stores of all jobs. `run_tasks` refuses a worker with another kbackup or
    with directories of its own."""
    with steps.trying("spark: run a task") as step:
        session = spark()
        addresses = (config.archive, config.restore.state, config.export.delta, config.export.parquet)
        stores = tuple(open_store(address, config.s3) for address in addresses if address)
        encrypted = open_store(config.archive or "", config.s3, config.encryption.key or "")
        check_protection(session, config.source, config.target, encrypted)
        workers = _visit_workers(session, stores)
        here = _this_worker()
        step.detail = (
            f"Spark {session.version} on {session.sparkContext.master}, tasks run in Python "
            + ", ".join(sorted({worker.python for worker in workers}))
        )
        if not is_local(session):
            step.detail += f", on {plural(len(workers), 'executor')} with kbackup {__version__}"
        others = [worker for worker in workers if (worker.python, worker.librdkafka) != here[2:]]
        if others:
            versions = "; ".join(
                f"worker {w.host} has Python {w.python}, librdkafka {w.librdkafka}"
                for w in sorted(set(others))
            )
            step.warn(
                f"{versions}; the driver has Python {here.python}, librdkafka {here.librdkafka}",
                "give workers the driver's environment: PYSPARK_PYTHON and spark.archives, see spark.md",
            )


def _visit_workers(session: SparkSession, stores: tuple[Store, ...]) -> list[Worker]:
    """Return one worker for each executor. Executors come one after the other: until a round finds no more."""
    if is_local(session):
        return run_tasks(session, [0], Visit(stores, 0.0))
    workers: set[Worker] = set()
    while True:
        slots = max(session.sparkContext.defaultParallelism, 2)
        seen = set(run_tasks(session, range(2 * slots), Visit(stores, _VISIT_SECONDS)))
        if seen <= workers:
            return sorted(workers)
        workers |= seen
