"""The check job: walks the path that a backup takes, for real but with next to nothing, and says of each step
whether it works. It leaves nothing behind, in the archive or in the clusters."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kbackup.config.models import Config
from kbackup.jobs.check.archive import check_archive
from kbackup.jobs.check.clusters import check_beside, check_source, check_target
from kbackup.jobs.check.steps import Step, Steps
from kbackup.spark.progress import ProgressSender
from kbackup.spark.tasks import Spark, run_tasks
from kbackup.store.base import Store

__all__ = ["CheckReport", "Step", "check"]


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
        with steps.trying("spark: run a task") as step:
            step.detail = _run_a_task(spark)
    return CheckReport(tuple(steps.done), steps.exit_code)


def _run_a_task(spark: Spark) -> str:
    session = spark()
    (python,) = run_tasks(session, [0], _python_version)
    return f"Spark {session.version} on {session.sparkContext.master}, tasks run in Python {python}"


def _python_version(task: int, progress: ProgressSender) -> Iterator[str]:
    yield platform.python_version()
