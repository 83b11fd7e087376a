"""The status of an apply half while its rounds run and fail. The rounds themselves are scripted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from types import SimpleNamespace

import pytest

from kbackup.archive.models import Manifest
from kbackup.archive.reader import Archive
from kbackup.errors import CorruptError, KbackupError, StoreError, UnreachableError
from kbackup.jobs.common import Stop
from kbackup.jobs.mirror.apply.pending import Recreated
from kbackup.jobs.mirror.flow import Clock, FlowStatus, read_flow_status, write_status
from kbackup.jobs.mirror.halves import apply
from kbackup.jobs.mirror.halves.apply import RoundReport
from kbackup.jobs.mirror.status import flow_holds, flows_of
from kbackup.jobs.mirror.topics import MirrorTopicPlan
from kbackup.metrics.registry import counted
from kbackup.store.base import Store
from tests.support.apply_halves import LOST, Script, gauge, half_of
from tests.support.archives import make_archive
from tests.support.histories import History
from tests.support.memory_store import MemoryStore


@pytest.fixture
def stop() -> Iterator[Stop]:
    with closing(Stop()) as made:
        yield made


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (CorruptError("file x is damaged", "repair it"), "file x is damaged; repair it"),
        (RuntimeError("password"), "internal error: RuntimeError"),
    ],
)
def test_status_names_what_ended_the_process(
    error: Exception, message: str, stop: Stop, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    make_archive(store)
    with pytest.raises(type(error)):
        half_of(Script(stop, [(), error]), store, monkeypatch).run()
    status = read_flow_status(store, "A", "B")
    assert status is not None
    assert (status.error, status.rounds) == (message, 1)


def test_status_names_why_the_target_is_not_reached(stop: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no round has begun yet. What is behind is counted."""
    store = MemoryStore()
    make_archive(store)

    def connect() -> None:
        stop.ask()
        raise UnreachableError("target is away", "")

    half = half_of(Script(stop, []), store, monkeypatch)
    monkeypatch.setattr(apply, "Cluster", lambda *_: SimpleNamespace(connect=connect))
    half.run()
    status = read_flow_status(store, "A", "B")
    assert status is not None
    assert status.error == "target is away"
    assert gauge("seconds_behind")
    assert gauge("records_behind") is None, "the topics are not known yet"


def test_first_round_has_its_topics_in_the_status(stop: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it runs: their records are behind, and `expire` keeps them."""
    store = MemoryStore()
    archive = make_archive(store)
    script = Script(stop, [()])
    half = half_of(script, store, monkeypatch)
    run = script.run

    def looked_at(archive: Archive, point: Manifest, plan: MirrorTopicPlan) -> RoundReport:
        (flow,) = flows_of(archive, store)
        assert [(t.remote, t.incarnation, t.records_behind) for t in flow.topics] == [("A.orders", -1, 46)]
        (hold,) = flow_holds(store, archive.info.id, timedelta(days=1))
        assert hold.holds("orders", 1, 0, 0, 1)
        return run(archive, point, plan)

    monkeypatch.setattr(script, "run", looked_at)
    assert half.run().rounds == 1
    assert flows_of(archive, store)[0].topics[0].incarnation == 1


def test_topic_that_is_held_back_is_told_once(stop: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by the next process. The topic stays held back, and the exit code stays 3."""
    store = MemoryStore()
    make_archive(store)
    recreated = Recreated("orders", "A.orders", 2, held_back=True)
    totals: list[float] = []
    for _ in range(2):
        with closing(Stop()) as own:
            script = Script(own, [(), ()], held_back=(recreated,))
            report = half_of(script, store, monkeypatch).run()
        assert report.is_loss
        assert gauge("held_back_topics") == 1
        key = "kbackup_mirror_incidents_total", ("A", "B", "recreated")
        totals.append(counted.snapshot().values[key])
    assert totals == [1, 0]
    status = read_flow_status(store, "A", "B")
    assert status is not None
    assert [incident.message for incident in status.incidents] == [recreated.message]
    assert [topic.held_back for topic in status.topics] == [recreated.message]


@pytest.mark.parametrize("error", [None, StoreError, CorruptError])
def test_a_long_round_gives_signs_of_life(
    error: type[KbackupError] | None, stop: Stop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`expire` sees them in the middle of the round; a store that takes none is told of."""
    refused = error is not None
    store, beaten = MemoryStore(), threading.Event()
    make_archive(store)
    script = Script(stop, [(LOST,)])
    half = half_of(script, store, monkeypatch)
    monkeypatch.setattr(apply, "ALIVE", Clock(True, 0.001))
    write, run, begun = write_status, script.run, list[str]()

    def beat(state: Store, status: FlowStatus) -> None:
        if threading.current_thread() is not threading.main_thread():
            beaten.set()
            if error is not None:
                raise error("no room", "make some")
        else:
            begun.append(status.written_at)
        write(state, status)

    def long_round(archive: Archive, point: Manifest, plan: MirrorTopicPlan) -> RoundReport:
        assert beaten.wait(30)
        beaten.clear()
        assert beaten.wait(30)  # the one before is written
        now = read_flow_status(store, "A", "B")
        assert now is not None
        assert (now.written_at > begun[-1]) is not refused
        return run(archive, point, plan)

    monkeypatch.setattr(apply, "write_status", beat)
    monkeypatch.setattr(script, "run", long_round)
    assert half.run().rounds == 1
    status = read_flow_status(store, "A", "B")
    assert status is not None
    assert [incident.message for incident in status.incidents] == [LOST.message]
    assert [text for text in script.events if "no room" in text] == [
        "flow A->B: the status was not written: no room; make some"
    ][:refused]
    assert not [thread for thread in threading.enumerate() if "sign-of-life" in thread.name]


def test_points_that_a_round_lets_wait_are_behind(stop: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The restore point that comes while a round runs is behind at its end."""
    history = History(MemoryStore())
    history.run(1, {"orders": 1})
    script = Script(stop, [()])
    half = half_of(script, history.store, monkeypatch)
    run = script.run

    def long_round(archive: Archive, point: Manifest, plan: MirrorTopicPlan) -> RoundReport:
        history.run(2, {"orders": 1})
        return run(archive, point, plan)

    monkeypatch.setattr(script, "run", long_round)
    assert half.run().restore_point == 1
    behind = gauge("seconds_behind")
    assert behind is not None
    assert behind > 900, "KbackupMirrorBehind fires"


def test_a_round_that_fails_is_behind(stop: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    history = History(MemoryStore())
    history.run(1, {"orders": 1})
    script = Script(stop, [UnreachableError("target is away", "")])
    half = half_of(script, history.store, monkeypatch)
    half.run()
    behind = gauge("seconds_behind")
    assert behind is not None
    assert behind > 900
    assert gauge("last_round_timestamp_seconds") is None
    assert gauge("follow_start_timestamp_seconds"), "KbackupMirrorStale counts from here"
