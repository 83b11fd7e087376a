"""Reading segments back: in this process where they are few, else on Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kbackup.archive import layout
from kbackup.archive.repair.scan import Damaged, ToScan, Whole, scan
from kbackup.jobs.repair.report import Mended, RepairJob
from kbackup.metrics.events import Listener
from kbackup.spark.progress import ProgressSender
from kbackup.spark.tasks import run_tasks
from kbackup.store.base import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


HERE_BYTES = 64 << 20
"""So many bytes are read without Spark, which takes longer to start."""
_TASK_BYTES = 64 << 20
_TASK_OBJECTS = 256
_THREADS = 4


@dataclass(frozen=True)
class ScanWork:
    """A task: some records objects, each read whole; with `mend` a damaged index is written anew."""

    store: Store
    mend: bool

    def __call__(self, task: Sequence[ToScan], progress: ProgressSender) -> Iterator[Whole | Damaged]:
        for item in task:
            found = scan(self.store, item, self.mend)
            if isinstance(found, Whole):
                progress.add(found.segment.count, found.segment.bytes)
            yield found


def scan_segments(job: RepairJob, items: Sequence[ToScan]) -> list[Whole | Damaged]:
    scanned = read_back(items, ScanWork(job.plain, job.confirm), job.spark, job.listener)
    job.mended += [
        Mended(layout.index_key_of(each.segment.key), "rebuilt")
        for each in scanned
        if isinstance(each, Whole) and each.index != "whole" and each.vouched
    ]
    return scanned


def read_back(
    items: Sequence[ToScan],
    work: Callable[[Sequence[ToScan], ProgressSender], Iterator[Whole | Damaged]],
    spark: Callable[[], SparkSession],
    listener: Listener,
) -> list[Whole | Damaged]:
    """Return the results of `work` for all items: in this process where they are small, else on Spark."""
    if sum(item.size for item in items) <= HERE_BYTES:
        with ThreadPoolExecutor(_THREADS) as pool:
            results = pool.map(lambda item: list(work([item], ProgressSender(None, 0))), items)
            return [result for of_item in results for result in of_item]
    expected = sum(item.row.count for item in items if item.row is not None)
    return run_tasks(
        spark(), _tasks(items), work, lambda records, size: listener.progress(records, size, expected)
    )


def _tasks(items: Sequence[ToScan]) -> list[tuple[ToScan, ...]]:
    tasks: list[list[ToScan]] = []
    room = 0
    for item in items:
        if not tasks or item.size > room or len(tasks[-1]) == _TASK_OBJECTS:
            tasks.append([])
            room = _TASK_BYTES
        tasks[-1].append(item)
        room -= item.size
    return sorted(map(tuple, tasks), key=lambda task: -sum(item.size for item in task))
