"""An apply half's knowledge between rounds: of its offset map, its slots and its producers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from kbackup.archive.restores.flow_map import (
    SLOTS,
    FlowMap,
    FlowMapPartName,
    FlowState,
    MappedPartition,
    folder,
    runs_table,
    slot_of,
    write_map_part,
)
from kbackup.archive.restores.plan import UnitRange
from kbackup.errors import ClusterError, FencedError, KbackupError
from kbackup.jobs.mirror import apply as applier_module
from kbackup.jobs.mirror.apply import Applier, ApplySession
from kbackup.jobs.mirror.apply.pending import Noted, Pending, PositionNote, Recovery
from kbackup.jobs.mirror.apply.slots import OpenSlot, SlotResult, SlotWork
from kbackup.jobs.mirror.flow import AppliedPosition, RemoteTopic
from kbackup.jobs.mirror.halves.take import MirrorSource
from kbackup.jobs.mirror.settings import TopicsReport
from kbackup.kafka.kernel import selected_kernel
from kbackup.metrics.registry import Silent
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from tests.support.memory_store import MemoryStore
from tests.support.mirrors import flow_of

REMOTE = TopicPartition("A.orders", 0)
SLOT = slot_of(REMOTE, SLOTS)


def no_spark() -> Any:
    raise AssertionError("a small round needs no Spark")


def make_applier(store: Store) -> Applier:
    return Applier(flow_of(), {"sasl.password": "hidden"}, store, no_spark, Silent())


def make_session(store: Store, heads: dict[int, FlowMapPartName] | None = None) -> ApplySession:
    state = FlowState(
        source="A", target="B", archive_id="a", target_cluster_id="c", slots=SLOTS, created_at="2026-01-01"
    )
    return ApplySession(cast(Any, None), state, {}, FlowMap(store, "A", "B", SLOTS, heads or {}))


def write(store: Store, number: int, previous: FlowMapPartName | None, *row: int) -> FlowMapPartName:
    name = FlowMapPartName(number, "aa")
    columns = cast(Any, tuple(np.array([value], np.int64) for value in row))
    write_map_part(store, folder("A", "B", SLOT), name, runs_table({MappedPartition(REMOTE, 1): columns}), previous)
    return name


def noted(following: int, part: FlowMapPartName) -> dict[TopicPartition, Noted]:
    return {REMOTE: Noted(AppliedPosition(1, following), PositionNote(1, part, 1))}


def sources(tables: list[pa.Table]) -> list[Any]:
    return [source for table in tables for source in table.column("source").to_pylist()]


def two_parts(store: Store) -> tuple[FlowMapPartName, FlowMapPartName]:
    one = write(store, 1, None, 0, 0, 10)
    return one, write(store, 2, one, 10, 11, 5)


def test_the_map_gets_what_an_attempt_before_has_committed() -> None:
    """The last attempt finds nothing left to do, and returns no part."""
    store = MemoryStore()
    one, two = two_parts(store)
    session = make_session(store, {SLOT: one})
    added = session.add(SlotResult(SLOT, [], noted(15, two), 0, selected_kernel()))
    assert sources(added) == [10]
    assert session.map.slot(SLOT).head == two
    assert session.noted == noted(15, two)


@pytest.mark.parametrize("known", [0, 1])
def test_the_map_gets_what_was_committed_before_the_others_were_fenced(
    known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    parts = two_parts(store)
    session = make_session(store, {SLOT: parts[0]} if known else {})
    applier = make_applier(store)
    monkeypatch.setattr(applier._slots, "refresh", lambda *_: noted(15, parts[1]))
    work = SlotWork({}, store, store, ("A", "B"), 1, 1)
    assert sources(applier._refresh(session, work, [])) == [0, 10][known:]
    assert session.map.slot(SLOT).head == parts[1]
    assert applier._refresh(session, work, []) == []


def unit(partition: int) -> UnitRange:
    return UnitRange(topic="orders", partition=partition, target="A.orders", segments=())


ONE_PARTITION = RemoteTopic("orders", "A.orders", 1)
"""Of the newest incarnation. An earlier one had three."""


@pytest.mark.parametrize("partition", [0, 2])
def test_a_partition_that_the_newest_incarnation_lacks_belongs_to_its_slot(partition: int) -> None:
    remote = TopicPartition("A.orders", partition)
    (task,) = make_session(MemoryStore()).tasks([ONE_PARTITION], ranges={remote: [unit(partition)]})
    assert task.slot == slot_of(remote, SLOTS)
    assert remote in task.partitions


def test_positions_that_were_read_back_are_not_expected_before_they_are_committed() -> None:
    """Else a topic that begins at its end would wait for ever in the slot of such a position."""
    session = make_session(MemoryStore())
    session.noted = session.uncommitted = noted(5, FlowMapPartName(1, "aa"))
    begins = {REMOTE._replace(topic="A.new"): AppliedPosition(1, 7)}
    tasks = [*session.tasks([ONE_PARTITION], begins=begins), *session.tasks([ONE_PARTITION])]
    assert [(each.expected, each.begins) for each in tasks] == [((), begins), ((), {})]
    session.uncommitted = {}
    assert session.tasks([ONE_PARTITION])[0].expected == (REMOTE,)


def test_remote_topics_have_room_for_every_incarnation_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, int]] = []

    def sync(_: object, topics: Sequence[RemoteTopic], __: object) -> TopicsReport:
        asked.append({topic.remote: topic.partitions for topic in topics})
        return TopicsReport((), {}, {"A.orders": "not authorized"})

    monkeypatch.setattr(applier_module, "sync_topics", sync)
    topics = [ONE_PARTITION, RemoteTopic("events", "A.events", 3)]
    parts = {TopicPartition("A.orders", 2): [unit(2)], TopicPartition("A.events", 2): [unit(2)]}
    refused = applier_module.make_room(flow_of(), cast(Any, None), topics, Pending(parts))
    assert asked == [{"A.orders": 3}]
    assert list(refused) == ["A.orders"]
    assert refused["A.orders"].endswith("not authorized")
    assert applier_module.make_room(flow_of(), cast(Any, None), topics, Pending()) == {}
    assert len(asked) == 1


@dataclass
class Closing:
    """A producer. `error` is what closing it raises."""

    error: KbackupError | None = None
    closed: int = 0

    def close(self) -> None:
        self.closed += 1
        if self.error:
            raise self.error


def open_slots(applier: Applier, producers: Sequence[Closing]) -> None:
    for number, producer in enumerate(producers):
        applier._slots._open[number] = OpenSlot(cast(Any, producer), cast(Any, None), 0, frozenset())


def test_why_a_round_ended_outlives_the_closing_of_its_producers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    applier = make_applier(store)
    producers = [Closing(ClusterError("no abort", "wait")), *(Closing() for _ in range(30))]
    open_slots(applier, producers)

    def fenced(*_: object) -> Any:
        raise FencedError("another process", "stop one")

    monkeypatch.setattr(applier_module, "open_session", fenced)
    with pytest.raises(FencedError):
        applier.apply(cast(Any, None), cast(Any, None), [])
    assert [producer.closed for producer in producers] == [1] * len(producers)
    assert applier._slots._open == {}
    assert "no abort" in caplog.text


def test_no_password_is_shown() -> None:
    secret = {"sasl.password": "hidden"}
    store = MemoryStore()
    shown = [
        make_applier(store),
        SlotWork(secret, store, store, ("A", "B"), 1, 1),
        Recovery(cast(Any, None), secret, ("A", "B"), []),
        MirrorSource("A", "s3://archive", secret, ()),
    ]
    assert not [each for each in shown if "hidden" in repr(each)]
