"""The report of a round of the apply half. The target is scripted."""

from __future__ import annotations

import time
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest

from kbackup.jobs.mirror.apply.pending import Applied
from kbackup.jobs.mirror.halves import apply as round_
from kbackup.jobs.mirror.halves.apply import Rounds, Timetable
from kbackup.jobs.mirror.internal import Emitted
from kbackup.jobs.mirror.settings import TopicsReport
from kbackup.kafka.mirror_records import Checkpoint
from kbackup.metrics.registry import counted
from kbackup.types import TopicPartition
from tests.support.archives import make_archive
from tests.support.memory_store import MemoryStore
from tests.support.mirrors import flow_of

ONLY_CHECKPOINTS = "".join(
    f"{key}.enabled = false\n" for key in ("sync.topic.configs", "sync.topic.acls", "emit.offset-syncs")
)


def test_checkpoint_latency_does_not_grow_while_nothing_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    archive = make_archive(MemoryStore())
    point = archive.restore_point("latest")
    checkpoint = Checkpoint("billing", TopicPartition("A.orders", 0), 1, 1, "")
    emitted = iter([Emitted([checkpoint], [checkpoint]), Emitted([checkpoint], [])])
    monkeypatch.setattr(round_, "emit_checkpoints", lambda *_: next(emitted))
    monkeypatch.setattr(round_, "sync_topics", lambda *_: TopicsReport((), {}, {}))
    cluster: Any = SimpleNamespace(topic_names=lambda: [])
    applier: Any = SimpleNamespace(apply=lambda *_: Applied(point.number), map=None)
    internal: Any = None
    flow = flow_of(ONLY_CHECKPOINTS + "emit.checkpoints.interval.seconds = 0\n")
    rounds = Rounds(flow, cluster, internal, applier, Timetable())
    captured_at = datetime.fromisoformat(archive.groups(point).captured_at).timestamp()
    counted.begin("mirror")
    written: list[int] = []
    for seconds in (7, 700):
        monkeypatch.setattr(time, "time", lambda seconds=seconds: captured_at + seconds)
        written.append(rounds.run(archive, point, rounds.plan(archive, point)).checkpoints)
        key = "kbackup_mirror_checkpoint_latency_seconds", ("A", "B", "billing")
        assert counted.snapshot().values[key] == 7
    assert written == [1, 0]
