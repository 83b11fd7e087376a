"""A follower counts its rounds. The cluster and the rounds are scripted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from kbackup.config.models import Backup, Follow
from kbackup.errors import KbackupError, UnreachableError
from kbackup.jobs.backup import follow
from kbackup.jobs.backup.follow import Follower
from kbackup.jobs.backup.job import BackupReport
from kbackup.jobs.backup.plan import Plan
from kbackup.jobs.common import Stop
from kbackup.metrics.registry import ROUNDS, Silent, counted
from tests.support.memory_store import MemoryStore


class Watcher:
    def __init__(self, stop: Stop) -> None:
        self.stop = stop

    def committed(self, report: BackupReport) -> None:
        pytest.fail("nothing is new")

    def well(self) -> None:
        self.stop.ask()

    def failed(self, error: KbackupError, pause: float) -> None:
        pytest.fail(str(error))


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stop]:
    """Of rounds that find nothing new."""
    lease = SimpleNamespace(check=lambda: None)
    base = SimpleNamespace(run=SimpleNamespace(end=lambda: None), head=SimpleNamespace(number=41))
    monkeypatch.setattr(follow, "connect", lambda *_: SimpleNamespace(id="c"))
    monkeypatch.setattr(follow, "open_or_create", lambda *_: None)
    monkeypatch.setattr(follow, "HeldLease", lambda *_: nullcontext(lease))
    monkeypatch.setattr(follow, "begin", lambda *_: base)
    monkeypatch.setattr(follow, "capture_cluster", lambda *_, **__: None)
    monkeypatch.setattr(follow, "plan_records", lambda *_: Plan((), (), (), ()))
    monkeypatch.setattr(follow, "has_news", lambda *_: False)
    counted.begin("mirror")
    with closing(Stop()) as made:
        yield made
    counted.begin("")


def follower(stop: Stop) -> Follower:
    more: Any = {"source": {}, "spark": lambda: pytest.fail("Spark"), "listener": Silent()}
    return Follower(Backup(), Follow(), store=MemoryStore(), watcher=Watcher(stop), stop=stop, **more)


def rounds(stop: Stop) -> float | None:
    follower(stop).follow()
    return counted.snapshot().values.get(("kbackup_rounds_total", ("unchanged",)))


def test_rounds_of_a_follower_are_counted(stop: Stop) -> None:
    assert rounds(stop) == 2, "one, and the last one"


def test_the_report_names_the_newest_restore_point_without_a_new_one(stop: Stop) -> None:
    report = follower(stop).follow()
    assert (report.restore_point, report.restore_points) == (41, 0)


def test_a_follower_is_counted_before_its_first_round(stop: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The alert on silence sees a follower whose cluster is absent at the start."""

    def connect(*_: Any) -> None:
        raise UnreachableError("source is away", "")

    monkeypatch.setattr(follow, "connect", connect)
    with pytest.raises(UnreachableError):
        rounds(stop)
    values = counted.snapshot().values
    assert [values["kbackup_rounds_total", (result,)] for result in ROUNDS] == [0, 0, 0]
    assert ("kbackup_last_success_timestamp_seconds", ()) not in values


def test_one_restore_point_is_no_following(stop: Stop) -> None:
    """`kbackup mirror --once` by night: no alert must wait for its next round."""
    stop.ask()
    assert rounds(stop) is None
