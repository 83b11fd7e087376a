"""New incarnations are told once, also where a round that committed some of them failed before it told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kbackup.archive.reader import Archive
from kbackup.archive.restores.flow_map import FlowMapPartName
from kbackup.jobs.mirror import apply
from kbackup.jobs.mirror.apply import Applier
from kbackup.jobs.mirror.apply.pending import Applied, Noted, PositionNote, find_recreated, reported_positions
from kbackup.jobs.mirror.flow import AppliedPosition, FlowStatus, RemoteTopic, write_status
from kbackup.jobs.mirror.status import after_round, first_status
from kbackup.kafka.admin.cluster import Topic
from kbackup.metrics.registry import Silent
from kbackup.types import TopicPartition
from tests.support.made_segments import TOPIC, committed, state, target, write
from tests.support.memory_store import MemoryStore
from tests.support.mirrors import flow_of

ORDERS = RemoteTopic(TOPIC, f"A.{TOPIC}", 2)
ZERO, ONE, TWO = (TopicPartition(ORDERS.remote, number) for number in range(3))
OTHER = TopicPartition("A.other", 0)

Positions = dict[TopicPartition, AppliedPosition]


@pytest.fixture
def archive() -> Archive:
    """Records 0 to 9, then incarnation 2."""
    store = MemoryStore()
    committed(store, 1, None, write(store, target(), range(10)), [state((0, 0, 10), (1, 0, 0), number=1)])
    anew = write(store, target(incarnation=2), range(4))
    archive = committed(store, 2, 1, anew, [state((0, 0, 4), (1, 0, 0), number=2, incarnation=2)])[0]
    archive.reopen()
    return archive


def status_of(archive: Archive, positions: Positions) -> FlowStatus:
    first = first_status(flow_of(), archive.info.id, None)
    return after_round(first, archive.restore_point(1), [ORDERS], Applied(1, positions=positions), {})


def row(kind: str, incarnation: int, **more: object) -> dict[str, object]:
    loss = {"kind": kind, "topic": TOPIC, "incarnation": incarnation, "partition": 0, "point": 2}
    return {**loss, "start": 10, "end": 15, **more}


def with_losses(archive: Archive, *rows: dict[str, object]) -> Any:
    """The archive with these losses: nothing else is asked."""
    return SimpleNamespace(state=SimpleNamespace(starts={}, losses=SimpleNamespace(dicts=lambda: rows)))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "was deleted and created again"),
        ([row("recreated", 2), row("truncated", 1), row("truncated", 2, topic="x")], "was deleted and created"),
        ([row("truncated", 2, point=3)], "was deleted and created again"),
        ([row("truncated", 2)], f"a log of topic {TOPIC} was cut"),
    ],
)
def test_why_a_new_incarnation_began(archive: Archive, rows: list[dict[str, object]], words: str) -> None:
    point, cut = archive.restore_point(2), with_losses(archive, *rows)
    before, after = {ZERO: AppliedPosition(1, 10)}, {ZERO: AppliedPosition(2, 4)}
    (told,) = find_recreated(cut, point, [ORDERS], before, after)
    assert words in told.message
    assert told.message.endswith("is there twice") is ("was cut" in words)
    assert find_recreated(cut, point, [ORDERS], after, after) == ()
    assert find_recreated(cut, point, [ORDERS], {}, after) == (), "a topic that comes for the first time"


def test_reported_positions_precede_committed_ones(archive: Archive) -> None:
    told: Positions = {ZERO: AppliedPosition(1, 10), ONE: AppliedPosition(1, 7)}
    status = status_of(archive, told)
    now: Positions = {ZERO: AppliedPosition(2, 4), ONE: AppliedPosition(1, 5), OTHER: AppliedPosition(3, 3)}
    assert reported_positions(status, archive.info.id, now | {TWO: AppliedPosition(2, 1)}) == {
        ZERO: AppliedPosition(1, 10),
        ONE: AppliedPosition(1, 5),
        OTHER: AppliedPosition(3, 3),
    }
    assert reported_positions(status, "another archive", now) == now
    assert reported_positions(None, archive.info.id, now) == now
    assert reported_positions(status_of(archive, {}), archive.info.id, now) == now


def test_losses_of_a_failed_round_are_reported_by_the_next(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """The round committed everything, and was killed before the status was written."""
    status, flow = MemoryStore(), flow_of()
    note = PositionNote(2, FlowMapPartName(1, "a"), 2)
    topic = Topic(ORDERS.remote, "id", False, (0, 1), 1)
    cluster = SimpleNamespace(connect=lambda: ("id", None), topics=lambda _: {ORDERS.remote: topic})
    monkeypatch.setattr(apply, "Cluster", lambda *_: cluster)
    monkeypatch.setattr(apply, "read_positions", lambda *_: {ZERO: Noted(AppliedPosition(2, 4), note)})
    monkeypatch.setattr(apply, "heads_of", lambda *_: {})
    monkeypatch.setattr(apply, "Recovery", lambda *_: SimpleNamespace(positions=lambda *_: {}))
    monkeypatch.setattr(Applier, "_refresh", lambda *_: [])
    write_status(status, status_of(archive, {ZERO: AppliedPosition(1, 10)}))
    lost = row("retention", 1)
    monkeypatch.setattr(type(archive.state.losses), "dicts", lambda _: [lost])
    with Applier(flow, {}, status, lambda: pytest.fail("Spark"), Silent()) as own:
        first, second = (own.apply(archive, archive.restore_point(2), [ORDERS]) for _ in range(2))
    assert [(r.remote, r.incarnation) for r in first.recreated] == [(ORDERS.remote, 2)]
    assert [(each.incarnation, each.start, each.end) for each in first.too_late] == [(1, 10, 15)]
    assert not second.is_loss, "it was told once"
