"""Fixtures of all unit tests: directories that need not outlive a power loss, addresses of stores in memory, and tasks
without Spark."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from kbackup.store import registry
from kbackup.store.base import StoreKind
from tests.support.memory_store import open_memory


@pytest.fixture(scope="module", autouse=True)
def _unsynced(request: pytest.FixtureRequest) -> Iterator[None]:
    """Archives of tests whose subject is no store are not synced to the disk, which takes most of their time."""
    with pytest.MonkeyPatch.context() as patch:
        if "unit/store" not in request.path.as_posix():
            patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture
def addressed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of this process open a `MemoryStore` by its address."""
    kind = StoreKind("memory", "memory://number", lambda url, options, key_class: open_memory(url))
    monkeypatch.setitem(registry.KINDS, "memory", kind)


@pytest.fixture
def tasks_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks run in this process, one after the other."""
    from kbackup.spark.tasks import ProgressSender

    def run(spark: object, tasks: Sequence[Any], work: Callable[..., Iterator[Any]], show: object = None) -> list[Any]:
        return [result for task in tasks for result in work(task, ProgressSender(None, 0))]

    for module in ("kbackup.spark.tasks", "kbackup.jobs.repair", "kbackup.jobs.backup.task"):
        monkeypatch.setattr(f"{module}.run_tasks", run)
