"""An apply half whose rounds are scripted."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from kbackup.archive.models import Manifest
from kbackup.archive.reader import Archive
from kbackup.errors import KbackupError
from kbackup.jobs import common as pauses
from kbackup.jobs.common import Stop
from kbackup.jobs.mirror.apply.pending import Applied, Lost, Recreated
from kbackup.jobs.mirror.flow import AppliedPosition, Flow, RemoteTopic
from kbackup.jobs.mirror.halves import apply
from kbackup.jobs.mirror.halves.apply import ApplyHalf, RoundReport
from kbackup.jobs.mirror.topics import MirrorTopicPlan
from kbackup.metrics.registry import Silent, counted
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from tests.support.mirrors import flow_of

ORDERS = RemoteTopic("orders", "A.orders", 3)
LOST = Lost("orders", 1, 0, "A.orders", 0, 5, "5 records came too late")


@dataclass
class Script:
    """Outcomes of rounds, one after the other; the last one asks to stop. The script is the watcher, too."""

    stop: Stop
    outcomes: list[Exception | tuple[Lost, ...]]
    events: list[str] = field(default_factory=list)
    opened: int = 0
    held_back: tuple[Recreated, ...] = ()

    def run(self, archive: Archive, point: Manifest, plan: MirrorTopicPlan) -> RoundReport:
        outcome = self.outcomes.pop(0)
        if not self.outcomes:
            self.stop.ask()
        if isinstance(outcome, Exception):
            raise outcome
        positions = {TopicPartition("A.orders", 0): AppliedPosition(1, 7)}
        applied = Applied(
            point=point.number, records=2, bytes=20, positions=positions, too_late=outcome, held_back=self.held_back
        )
        return RoundReport("A->B", point.number, (ORDERS,), (), applied)

    def waiting(self, flow: Flow, why: str) -> None:
        self.events.append(f"waits: {why}")
        self.stop.ask()

    def warned(self, text: str) -> None:
        self.events.append(text)

    def applied(self, flow: Flow, report: RoundReport) -> None:
        self.events.append(f"applied {report.restore_point}")

    def well(self) -> None:
        self.events.append("well")

    def failed(self, error: KbackupError, pause: float) -> None:
        self.events.append(f"failed: {error.message}")


def half_of(script: Script, store: Store, monkeypatch: pytest.MonkeyPatch) -> ApplyHalf:
    def rounds(*_: Any) -> Any:
        script.opened += 1
        plan = MirrorTopicPlan((ORDERS,), ())
        return SimpleNamespace(plan=lambda *_: plan, run=script.run, clocks={}, internal=SimpleNamespace(warnings=[]))

    monkeypatch.setattr(pauses, "_FIRST_PAUSE", 0.001)
    monkeypatch.setattr(apply, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(apply, "Cluster", lambda *_: SimpleNamespace(connect=lambda: None))
    for module in (apply, apply):
        monkeypatch.setattr(module, "InternalTopics", lambda *_: nullcontext())
    monkeypatch.setattr(apply, "Applier", lambda *_: nullcontext())
    monkeypatch.setattr(apply, "HeartbeatClock", lambda *_: nullcontext())
    monkeypatch.setattr(apply, "Rounds", rounds)
    monkeypatch.setattr(ApplyHalf, "_wait", lambda *_: None)
    counted.begin("mirror")
    return ApplyHalf(flow_of(), store, store, lambda: pytest.fail("Spark"), Silent(), script, script.stop)


def gauge(name: str) -> float | None:
    return counted.snapshot().values.get((f"kbackup_mirror_{name}", ("A", "B")))
