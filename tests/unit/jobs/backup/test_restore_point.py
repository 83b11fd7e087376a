"""Check the size of the state that a round sends to its tasks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kbackup.archive.catalog.state import State
from kbackup.jobs.backup.job import archive_records
from kbackup.jobs.backup.plan import make_plan
from kbackup.jobs.backup.task import BackupWork
from kbackup.jobs.capture import Base, Live, LiveTopic
from kbackup.metrics.registry import Phases, Silent
from tests.support.memory_store import MemoryStore


def test_tasks_are_told_of_the_topics_they_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100,000 topics a round may read three: each task gets all of this."""
    sent: list[BackupWork] = []

    def run_tasks(spark: object, tasks: object, work: BackupWork, show: object) -> list[Any]:
        sent.append(work)
        return []

    monkeypatch.setattr("kbackup.spark.tasks.run_tasks", run_tasks)
    options: Any = SimpleNamespace(segment_bytes=1, compression="none", split_records=100, pack_records=10)
    run: Any = SimpleNamespace(
        plain=None,
        store=MemoryStore(),
        run="r",
        since=lambda: 0.0,
        interrupted=False,
        archive=SimpleNamespace(state=State("id")),
        commit=lambda *_: None,
    )
    source: Any = SimpleNamespace(properties={}, isolation_level="read_committed", poll_timeout=1.0)
    topics = [LiveTopic(name, name, {0: Live(0, end, end)}) for name, end in (("busy", 50), ("idle", 0))]
    plan = make_plan(None, topics, ["busy", "idle"], lambda name, topic_id: 1)
    spark: Any = object
    archive_records(source, Base(run), plan, options, spark, Phases(Silent()))
    assert [work.incarnations for work in sent] == [{"busy": 1}]
