"""Check the size of the state that a round sends to its tasks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kbackup.archive.catalog.state import State
from kbackup.jobs.backup import job as backup_round
from kbackup.jobs.backup.plan import make_plan
from kbackup.jobs.backup.task import BackupWork
from kbackup.jobs.capture import Live, LiveTopic


def test_tasks_are_told_of_the_topics_they_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100,000 topics a round may read three: each task gets all of this."""
    sent: list[BackupWork] = []

    def run_tasks(spark: object, tasks: object, work: BackupWork, show: object) -> list[Any]:
        sent.append(work)
        return []

    monkeypatch.setattr("kbackup.spark.tasks.run_tasks", run_tasks)
    options = SimpleNamespace(
        isolation_level="read_committed",
        segment_bytes=1,
        compression="none",
        poll_timeout_seconds=1.0,
        split_records=100,
        pack_records=10,
    )
    run: Any = SimpleNamespace(
        source={},
        options=options,
        writing=SimpleNamespace(plain=None, run="r", since=lambda: 0.0),
        archive=SimpleNamespace(state=State("id")),
    )
    topics = [LiveTopic(name, name, {0: Live(0, end, end)}) for name, end in (("busy", 50), ("idle", 0))]
    plan = make_plan(None, topics, ["busy", "idle"], lambda name, topic_id: 1)
    spark: Any = object
    listener: Any = None
    backup_round._read(run, plan, [], spark, listener)
    assert [work.incarnations for work in sent] == [{"busy": 1}]
