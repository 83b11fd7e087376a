"""The apply half between its rounds: it waits, tries again, tells, and ends. The rounds themselves are scripted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from kbackup.archive.models import Manifest
from kbackup.archive.reader import Archive
from kbackup.archive.run import open_or_create
from kbackup.errors import FencedError, NoArchiveError, UnreachableError
from kbackup.jobs.common import Stop
from kbackup.jobs.mirror.apply.pending import Applied
from kbackup.jobs.mirror.flow import Flow, RemoteTopic, read_flow_status
from kbackup.jobs.mirror.halves import apply
from kbackup.jobs.mirror.halves import apply as connection
from kbackup.jobs.mirror.halves import apply as round_
from kbackup.jobs.mirror.halves.apply import ApplyHalf
from kbackup.jobs.mirror.internal import Emitted
from kbackup.jobs.mirror.settings import TopicsReport
from kbackup.metrics.registry import counted
from tests.support.apply_halves import LOST, Script, gauge, half_of
from tests.support.archives import make_archive
from tests.support.memory_store import MemoryStore
from tests.support.mirrors import flow_of


@pytest.fixture
def stop() -> Iterator[Stop]:
    with closing(Stop()) as made:
        yield made


def test_rounds_are_tried_again_on_new_connections(stop: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    newest = make_archive(store).restore_point("latest").number
    script = Script(stop, [(), UnreachableError("target is away", ""), (LOST,), ()])
    report = half_of(script, store, monkeypatch).run()
    assert script.events == [
        *(f"applied {newest}", "well", "failed: target is away", f"applied {newest}", "well"),
        *(f"applied {newest}", "well"),
    ]
    assert script.opened == 2
    assert (report.rounds, report.retries, report.records, report.is_loss) == (3, 1, 6, True)
    status = read_flow_status(store, "A", "B")
    assert status is not None
    assert (status.restore_point, status.records, status.error) == (newest, 6, "")
    assert [incident.message for incident in status.incidents] == [LOST.message]
    assert counted.snapshot().values["kbackup_retries_total", ()] == 1
    assert counted.snapshot().values["kbackup_mirror_rounds_total", ("A", "B", "applied")] == 3


QUIET = "".join(
    f"{key}.enabled = false\n"
    for key in ("sync.topic.configs", "sync.topic.acls", "emit.offset-syncs", "refresh.topics", "refresh.groups")
)


def test_topics_and_groups_are_known_after_an_error(stop: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the real rounds: a new connection knows what the one before knew, though nothing is refreshed."""
    store = MemoryStore()
    make_archive(store)
    served: list[tuple[str, ...]] = []
    groups: list[bool] = []

    class Target:
        map = None

        def apply(self, archive: Archive, point: Manifest, topics: tuple[RemoteTopic, ...], made: object) -> Applied:
            served.append(tuple(topic.source for topic in topics))
            if len(served) == 1:
                raise UnreachableError("target is away", "")
            if len(served) == 4:
                stop.ask()
            return Applied(point.number)

    def checkpoints(flow: Flow, *_: Any) -> Emitted:
        groups.append(flow.groups("billing"))
        if len(groups) == 2:
            raise UnreachableError("target is away", "")
        return Emitted([], [])

    real = round_.Rounds
    half = half_of(Script(stop, []), store, monkeypatch)
    half.flow = flow_of(QUIET + "emit.checkpoints.interval.seconds = 0\n")
    cluster = SimpleNamespace(connect=lambda: None, topic_names=lambda: frozenset())
    monkeypatch.setattr(connection, "Cluster", lambda *_: cluster)
    monkeypatch.setattr(connection, "InternalTopics", lambda *_: nullcontext(SimpleNamespace(warnings=[])))
    monkeypatch.setattr(connection, "Applier", lambda *_: nullcontext(Target()))
    monkeypatch.setattr(apply, "HeartbeatClock", lambda *_: nullcontext(SimpleNamespace(check=lambda: None)))
    monkeypatch.setattr(connection, "Rounds", real)
    monkeypatch.setattr(round_, "sync_topics", lambda *_: TopicsReport((), {}, {}))
    monkeypatch.setattr(round_, "emit_checkpoints", checkpoints)
    assert half.run().retries == 2
    assert served == [("orders",)] * 4
    assert groups == [True] * 3


def test_rounds_go_on_without_heartbeats(stop: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each error is told once."""
    store = MemoryStore()
    newest = make_archive(store).restore_point("latest").number

    def check() -> None:
        raise UnreachableError("target denies writing", "allow it")

    script = Script(stop, [(), ()])
    half = half_of(script, store, monkeypatch)
    monkeypatch.setattr(apply, "HeartbeatClock", lambda *_: nullcontext(SimpleNamespace(check=check)))
    assert half.run().retries == 0
    warning = "heartbeats of A->B are not written: target denies writing; allow it"
    applied = f"applied {newest}"
    assert script.events == [applied, warning, "well", applied, "well"]


def test_another_apply_half_ends_this_one(stop: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    make_archive(store)
    script = Script(stop, [(), FencedError("another process applies this flow", ""), ()])
    with pytest.raises(FencedError):
        half_of(script, store, monkeypatch).run()
    status = read_flow_status(store, "A", "B")
    assert status is not None
    assert status.error == "", "the status is that of the other process"


def test_waits_for_its_archive(stop: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(stop, [()])
    report = half_of(script, MemoryStore(), monkeypatch).run()
    assert report.rounds == 0
    assert [text.partition(" at ")[0] for text in script.events] == ["waits: there is no archive"]


def test_the_target_stays_connected_until_the_first_restore_point(stop: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    open_or_create(store)
    script = Script(stop, [()])
    looks: list[str] = []

    def waiting(flow: Flow, why: str) -> None:
        looks.append(why.partition(" ")[0])

    def wait(seconds: float) -> bool:
        looks.append(f"{seconds} s")
        if len(looks) == 4:
            make_archive(store)
        return stop.asked

    monkeypatch.setattr(script, "waiting", waiting)
    monkeypatch.setattr(stop, "wait", wait)
    assert half_of(script, store, monkeypatch).run().rounds == 1
    assert looks == ["archive", *["0.001 s"] * 3]
    assert script.opened == 1


def test_once_is_one_round_of_an_archive_that_is_there(stop: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    script = Script(stop, [(), ()])
    script.stop.ask()
    with pytest.raises(NoArchiveError):
        half_of(script, store, monkeypatch).run()
    make_archive(store)
    assert half_of(script, store, monkeypatch).run().rounds == 1
    assert gauge("last_round_timestamp_seconds")
    assert gauge("follow_start_timestamp_seconds") is None, "no alert waits for the next round"


def test_finish_applies_the_last_restore_point(stop: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The take half of the same process committed one more restore point."""
    for finish, rounds in ((False, 1), (True, 2)):
        store = MemoryStore()
        archive = make_archive(store)
        points = iter([archive.restore_point(1), archive.restore_point("latest")])
        monkeypatch.setattr(Archive, "restore_point", lambda *_, points=points: next(points))
        script = Script(Stop(), [(), ()])
        half = half_of(script, store, monkeypatch)
        half.finish = finish
        monkeypatch.setattr(ApplyHalf, "_wait", lambda half, *_: half.stop.ask())
        with closing(script.stop):
            assert half.run().rounds == rounds
        monkeypatch.undo()
