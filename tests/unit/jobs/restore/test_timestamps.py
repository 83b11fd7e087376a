"""The timestamps of a folder of the Java tool, whose indexes have none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kbackup.archive.query.java import java_content
from kbackup.jobs.restore.plan import with_timestamps
from kbackup.metrics.registry import Silent
from kbackup.spark.tasks import ProgressSender
from kbackup.store.file import FileStore
from tests.golden.java_archive import PARTITIONS, ROOT


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The tasks that were run, here and not by Spark."""
    ran: list[Any] = []

    def run_here(spark: Any, tasks: Sequence[Any], work: Any, show: Any) -> list[Any]:
        ran.extend(tasks)
        return [result for task in tasks for result in work(task, ProgressSender(None, 0))]

    monkeypatch.setattr("kbackup.spark.tasks.run_tasks", run_here)
    return ran


def test_unknown_timestamps_are_read_once(tasks: list[Any]) -> None:
    store = FileStore(ROOT / "archive")
    content = java_content(store, sorted({p.topic for p in PARTITIONS}))
    timed = with_timestamps(content, store, lambda: None, Silent())  # type: ignore[arg-type, return-value] # unused
    found = {(t.name, p.partition): p.timestamps for t in timed.topics for p in t.partitions}
    truth = {(p.topic, p.number): [r.timestamp for r in p.truth() if r.timestamp is not None] for p in PARTITIONS}
    assert found == {place: (min(stamps, default=None), max(stamps, default=None)) for place, stamps in truth.items()}
    assert len(tasks) == 1, "small segments share a task"
    again = with_timestamps(timed, store, lambda: None, Silent())  # type: ignore[arg-type, return-value] # unused
    assert (again, len(tasks)) == (timed, 1)
