"""The archive that repairs are tested with; tasks run in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import kbackup.jobs.repair.rebuild as repair_job
from kbackup.spark.tasks import ProgressSender
from tests.support.memory_store import MemoryStore
from tests.support.repairs import make


@pytest.fixture(autouse=True)
def _tasks_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_here(spark: None, tasks: Sequence[Any], work: Any, show: Any) -> list[Any]:
        return [result for task in tasks for result in work(task, ProgressSender(None, 0))]

    monkeypatch.setattr("kbackup.spark.tasks.run_tasks", run_here)
    monkeypatch.setattr(repair_job, "run_tasks", run_here)


@pytest.fixture(scope="module")
def made() -> MemoryStore:
    store = MemoryStore()
    make(store)
    return store


@pytest.fixture
def store(made: MemoryStore) -> MemoryStore:
    return made.copy()
