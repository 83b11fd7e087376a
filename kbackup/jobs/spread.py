"""Spread work over the segments of an archive: over threads of this process, or over Spark tasks if there is much."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import Protocol, TypeVar

from kbackup.metrics.registry import ProgressListener
from kbackup.spark.tasks import Spark, run_counted

_SPARK_FROM = 4 << 30
"""Bytes of records from which on Spark is asked for: it takes ten seconds to start, in which threads look through one
or two GiB."""


class TaskProgress(Protocol):
    """Takes what a task has done since it was called last: records, and their bytes. Threads may call it."""

    def add(self, records: int, size: int, /) -> None: ...


Task = TypeVar("Task")
Result = TypeVar("Result")
Work = Callable[[Task, TaskProgress], Iterator[Result]]
"""Yields the results of a task. Both are pickled where Spark runs them."""


@dataclass
class WorkDone:
    """Tells how many of the `expected` records of a phase were looked at. Many threads count."""

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


class _RestOfPhase:
    """The listener of tasks that count from nothing: what the phase has done before them is added."""

    def __init__(self, done: WorkDone) -> None:
        self._done = done
        self._records = done.records
        self._bytes = done.bytes

    def phase(self, name: str) -> None:
        self._done.listener.phase(name)

    def progress(self, records: int, size: int, expected: int) -> None:
        added = self._records + records - self._done.records
        added_bytes = self._bytes + size - self._done.bytes
        self._done.add(added, added_bytes)


@dataclass(frozen=True)
class Workers:
    """Where work is done: in `threads` of this process, and by the session that `spark` gives for work on many bytes.
    Without `spark`, all is done here."""

    listener: ProgressListener
    spark: Spark | None = None
    threads: int = 4

    def use_spark(self, size: int) -> bool:
        """Return whether work on so many bytes is done by Spark."""
        return self.spark is not None and size >= _SPARK_FROM

    def phase(self, expected: int) -> WorkDone:
        """Return the count of a phase that begins, with its expected records."""
        return WorkDone(self.listener, expected)

    def run(
        self, work: Work[Task, Result], tasks: Sequence[Task], size: int, done: WorkDone, threads: int | None = None
    ) -> list[Result]:
        """Return all that `work` yields over the tasks, in their order. They are about `size` bytes of records. `done`
        counts what the phase has done, also in several calls."""
        if self.spark is not None and self.use_spark(size):
            return run_counted(self.spark, tasks, work, _RestOfPhase(done), done.expected)

        def run_one(task: Task) -> list[Result]:
            return list(work(task, done))

        results: list[Result] = []
        with ThreadPoolExecutor(threads or self.threads, "spread") as pool:
            for of_task in pool.map(run_one, tasks):
                results += of_task
        return results
