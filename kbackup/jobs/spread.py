"""Spread work over the segments of an archive: over threads of this process, or over Spark tasks if there is much."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import Protocol, TypeVar

from kbackup.metrics.registry import ProgressListener
from kbackup.spark.tasks import Spark, run_counted

T = TypeVar("T", contravariant=True)
R = TypeVar("R", covariant=True)
Task = TypeVar("Task")
Result = TypeVar("Result")

_SPARK_FROM = 4 << 30
"""Bytes of records from which on Spark is asked for: it takes ten seconds to start, in which threads look through one
or two GiB."""


class TaskProgress(Protocol):
    """Takes what a task has done since it was called last: records, and their bytes. Threads may call it."""

    def add(self, records: int, size: int, /) -> None: ...


class Work(Protocol[T, R]):
    """Yields the results of a task. Both are pickled where Spark runs them."""

    def __call__(self, task: T, progress: TaskProgress, /) -> Iterator[R]: ...


@dataclass
class WorkDone:
    """Tells how many of the `expected` records were looked at. Many threads count."""

    listener: ProgressListener
    expected: int
    records: int = 0
    bytes: int = 0
    lock: Lock = field(default_factory=Lock)

    def add(self, records: int, size: int, /) -> None:
        with self.lock:
            self.records += records
            self.bytes += size
            self.listener.progress(self.records, self.bytes, self.expected)


@dataclass(frozen=True)
class Workers:
    """Where work is done: in `threads` of this process, and by the session that `spark` gives for work on many bytes.
    Without `spark`, all is done here."""

    listener: ProgressListener
    spark: Spark | None = None
    threads: int = 4

    def run(
        self, work: Work[Task, Result], tasks: Sequence[Task], size: int, expected: int, threads: int | None = None
    ) -> list[Result]:
        """Return all that `work` yields over the tasks, in their order. They are about `size` bytes of records, and
        `expected` records in all."""
        if self.spark is not None and size >= _SPARK_FROM:
            return run_counted(self.spark, tasks, work, self.listener, expected)
        counted = WorkDone(self.listener, expected)

        def run_one(task: Task) -> list[Result]:
            return list(work(task, counted))

        results: list[Result] = []
        with ThreadPoolExecutor(threads or self.threads, "spread") as pool:
            for of_task in pool.map(run_one, tasks):
                results += of_task
        return results
