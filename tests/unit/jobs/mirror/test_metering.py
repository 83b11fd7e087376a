"""The counts of a flow, and that a record applied twice would be seen."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from kbackup.archive.restores.flow_map import MAP_SCHEMA
from kbackup.jobs.mirror import metering
from kbackup.jobs.mirror.apply.pending import Applied, DeletedRemote, Lost, PartitionApplied, Recreated
from kbackup.jobs.mirror.flow import AppliedPosition, RemoteTopic
from kbackup.jobs.mirror.status import FlowLag
from kbackup.metrics.registry import counted
from kbackup.types import TopicPartition
from tests.support.mirrors import flow_of

ORDERS = TopicPartition("A.orders", 3)
LAG = FlowLag(9, "2026-01-01T00:00:00.000Z", 12, 3.5, {"A.orders": 12})


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    counted.begin("mirror")
    yield
    counted.begin("")


def values(name: str) -> dict[tuple[str, ...], float]:
    return {labels: value for (n, labels), value in counted.snapshot().values.items() if n == f"kbackup_mirror_{name}"}


def runs(*rows: tuple[int, int, int]) -> pa.Table:
    """(incarnation, source, count) of runs in partition 3 of orders."""
    return pa.Table.from_pylist(
        [
            {"topic": "A.orders", "partition": 3, "incarnation": i, "source": s, "target": s, "count": n}
            for i, s, n in rows
        ],
        schema=MAP_SCHEMA,
    )


def test_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = flow_of()
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    metering.flow_begins(flow)
    assert values("incidents_total") == dict.fromkeys(
        (("A", "B", kind) for kind in ("lost", "recreated", "deleted")), 0
    )
    part = PartitionApplied(records=5, bytes=600, oldest=990_000, newest=999_000)
    lost = Lost("orders", 1, 3, "A.orders", 1, 2, "gone")
    applied = Applied(
        8,
        partitions={ORDERS: part},
        recreated=(Recreated("x", "A.x", 2, held_back=False),),
        too_late=(lost, lost),
        deleted=(DeletedRemote("y", "A.y"),),
        seconds=2,
    )
    for _ in range(2):
        metering.round_applied(flow, {}, applied, held_back=1)
    labels = ("A", "B", "A.orders", "3")
    assert values("record_count_total") == {labels: 10}
    assert values("byte_count_total") == {labels: 1200}
    assert values("replication_latency_seconds_max") == {labels: 10}
    assert values("replication_latency_seconds_min") == {labels: 1}
    assert values("record_age_seconds_max") == {labels: 8}
    assert values("record_age_seconds_min") == {labels: -1}
    assert values("incidents_total") == {("A", "B", "lost"): 4, ("A", "B", "recreated"): 2, ("A", "B", "deleted"): 2}
    assert values("restore_point") == {("A", "B"): 8}
    assert values("held_back_topics") == {("A", "B"): 1}
    monkeypatch.setattr(time, "time", lambda: 1001.5)
    metering.nothing_to_apply(flow)
    metering.round_failed(flow)
    assert values("rounds_total") == {("A", "B", "applied"): 2, ("A", "B", "unchanged"): 1, ("A", "B", "failed"): 1}
    assert values("last_round_timestamp_seconds") == {("A", "B"): 1001.5}
    metering.checkpoints_written(flow, ["billing"], captured_at=999.0)
    assert values("checkpoint_latency_seconds") == {("A", "B", "billing"): 2.5}


def test_topics_and_groups_that_vanished_have_no_series() -> None:
    flow, left = flow_of(), TopicPartition("A.gone", 0)
    part = PartitionApplied(records=1, bytes=1, oldest=1, newest=1)
    first = Applied(1, partitions={ORDERS: part, left: part})
    topics = [RemoteTopic("orders", "A.orders", 4)]
    metering.round_applied(flow, {}, first, 0, topics)
    assert set(values("record_count_total")) == {("A", "B", "A.orders", "3"), ("A", "B", "A.gone", "0")}
    metering.round_applied(flow, {}, Applied(2), 0, topics)
    for name in ("record_count_total", "byte_count_total", "replication_latency_seconds_max"):
        assert set(values(name)) == {("A", "B", "A.orders", "3")}
    metering.checkpoints_written(flow, ["billing", "gone"], 1.0)
    metering.checkpoints_written(flow, [], 2.0, ["billing"])
    assert set(values("checkpoint_latency_seconds")) == {("A", "B", "billing")}


def test_lag_is_counted_apart_from_rounds() -> None:
    metering.lag_now(flow_of(), LAG)
    assert values("records_behind") == {("A", "B"): 12}
    assert values("seconds_behind") == {("A", "B"): 3.5}
    assert values("last_round_timestamp_seconds") == {}
    metering.lag_now(flow_of(), replace(LAG, records=None, seconds=4.5))
    assert values("records_behind") == {("A", "B"): 12}
    assert values("seconds_behind") == {("A", "B"): 4.5}


def test_records_without_a_timestamp_have_no_age() -> None:
    part = PartitionApplied(records=5, bytes=600, oldest=None, newest=None)
    metering.round_applied(flow_of(), {}, Applied(8, partitions={ORDERS: part}), held_back=0)
    assert values("record_age_seconds_max") == {}


@pytest.mark.parametrize(
    ("rows", "twice"), [([(1, 10, 5)], 0), ([(1, 8, 5)], 2), ([(1, 0, 5), (1, 10, 1)], 5), ([(2, 0, 5)], 0)]
)
def test_duplicates(rows: list[tuple[int, int, int]], twice: int) -> None:
    before = {ORDERS: AppliedPosition(1, 10)}
    assert metering.duplicates(before, Applied(1, runs=runs(*rows))) == twice
    assert metering.duplicates({}, Applied(1, runs=runs(*rows))) == 0
