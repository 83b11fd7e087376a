"""Tasks that fail at first: Spark tries them again, and that is counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kbackup.errors import UnreachableError
from kbackup.metrics.registry import counted
from kbackup.spark.tasks import ProgressSender, run_tasks


@dataclass(frozen=True)
class Flaky:
    """A task yields its own number twice, after as many failures."""

    folder: Path

    def __call__(self, task: int, progress: ProgressSender) -> Iterator[int]:
        failures = len(list(self.folder.glob(f"{task}-*")))
        if failures < task:
            (self.folder / f"{task}-{failures}").touch()
            raise UnreachableError(f"task {task} fails")
        yield task
        yield task


def retries() -> float:
    return counted.snapshot().values.get(("kbackup_task_retries_total", ()), 0)


def test_a_task_that_fails_is_tried_again_and_counted(spark: SparkSession, tmp_path: Path) -> None:
    before = retries()
    assert sorted(run_tasks(spark, [0, 1, 2], Flaky(tmp_path))) == [0, 0, 1, 1, 2, 2]
    assert retries() - before == 3
    # one that goes on failing fails the job with its own error
    with pytest.raises(UnreachableError, match="task 9 fails"):
        run_tasks(spark, [9], Flaky(tmp_path))


@dataclass(frozen=True)
class Long:
    """A task yields how long it is; one of no length fails."""

    secret: str

    def __call__(self, task: str, progress: ProgressSender) -> Iterator[int]:
        if not task:
            raise UnreachableError("an empty task")
        yield len(task)


@pytest.mark.parametrize("length", [1000, 3_000_000])
def test_nothing_of_the_tasks_stays_in_the_session_s_folder(spark: SparkSession, length: int) -> None:
    """A follower's session has no end, and what is sent to tasks holds secrets."""
    folder = Path(spark.sparkContext._temp_dir)
    before = set(folder.rglob("*"))
    assert sorted(run_tasks(spark, ["a", "b" * length], Long("hidden"))) == [1, length]
    with pytest.raises(UnreachableError, match="an empty task"):
        run_tasks(spark, ["", "b" * length], Long("hidden"))
    assert set(folder.rglob("*")) == before
