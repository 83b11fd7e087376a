"""The status of a flow: how far it is behind, its counts, and what `expire` keeps for it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from kbackup.archive.reader import Archive
from kbackup.errors import CorruptError
from kbackup.jobs.retention import ExpireReport, Expiry, Policy, expire
from kbackup.metrics.registry import Silent, counted
from kbackup.mirror import metering
from kbackup.mirror.apply.pending import Applied, DeletedRemote, Lost, PartitionApplied, Recreated
from kbackup.mirror.flow import (
    AppliedPosition,
    FlowStatus,
    RemoteTopic,
    TopicStatus,
    read_flow_status,
    read_status,
    write_status,
)
from kbackup.mirror.flow_map import MAP_SCHEMA
from kbackup.mirror.status import (
    FlowLag,
    after_error,
    after_round,
    first_status,
    flow_lag,
    planned,
    round_lag,
    with_unreported,
)
from kbackup.types import TopicPartition
from tests.support.archives import History, make_archive
from tests.support.flow_maps import flow_of
from tests.support.memory_store import MemoryStore

ORDERS = RemoteTopic("orders", "A.orders", 3)
CLICKS = RemoteTopic("clicks", "A.clicks", 1)


def applied(*positions: int, point: int = 1, **more: object) -> Applied:
    """Positions of the partitions of orders."""
    told = {
        TopicPartition("A.orders", partition): AppliedPosition(1, position)
        for partition, position in enumerate(positions)
    }
    return Applied(point=point, positions=told, **more)  # type: ignore[arg-type]


def status_of(archive: Archive, round_: Applied, *topics: RemoteTopic) -> FlowStatus:
    first = first_status(flow_of(), archive.info.id, None)
    return after_round(first, archive.manifest(round_.point), topics or (ORDERS,), round_, {})


@pytest.fixture(scope="module")
def archive() -> Archive:
    return make_archive(MemoryStore())


@pytest.mark.parametrize(
    ("positions", "behind"),
    [
        ((), 46),  # 10 and 24 in partition 0 (of 0 to 9, 15, 17 to 39), 12 in partition 1, none in partition 2
        ((10, 12, 0), 24),
        ((41, 12, 0), 0),
        ((40, 11, 0), 1),
        ((5, 0, 0), 41),
        ((41,), 12),  # partitions that the flow has not seen yet
    ],
)
def test_records_behind(archive: Archive, positions: tuple[int, ...], behind: int) -> None:
    lag = flow_lag(archive.state, status_of(archive, applied(*positions)))
    assert (lag.records, lag.topics) == (behind, {"A.orders": behind})


def test_records_of_another_incarnation_are_behind(archive: Archive) -> None:
    positions = {TopicPartition("A.orders", p): AppliedPosition(0, 100) for p in range(3)}
    assert flow_lag(archive.state, status_of(archive, Applied(1, positions=positions))).records == 46
    later = {TopicPartition("A.orders", p): AppliedPosition(2, 0) for p in range(3)}
    assert flow_lag(archive.state, status_of(archive, Applied(1, positions=later))).records == 0


def test_an_archive_without_records_has_no_lag() -> None:
    from kbackup.archive.catalog.state import State

    first = first_status(flow_of(), "id", None)
    lag = flow_lag(State("id"), first)
    assert (lag.records, lag.seconds, lag.newest) == (None, 0.0, 0), "nobody knows the topics yet"
    assert flow_lag(State("id"), planned(first, [ORDERS])).records == 0


def test_records_of_topics_that_wait_are_behind(archive: Archive) -> None:
    """Topics that the flow selects and has not admitted yet."""
    first = planned(first_status(flow_of(), archive.info.id, None), [ORDERS])
    (orders,) = first.topics
    assert (orders.incarnation, orders.applied, orders.held_back) == (-1, (0, 0, 0), "")
    assert flow_lag(archive.state, first).topics == {"A.orders": 46}
    done = after_round(first, archive.manifest(2), (CLICKS, ORDERS), applied(point=2), {})
    lag = round_lag(archive.state, done)
    assert lag == flow_lag(archive.state, done)
    assert (lag.topics, lag.seconds) == ({"A.clicks": 20, "A.orders": 46}, 0.0)


def test_topic_that_waits_begins_with_its_newest_incarnation() -> None:
    history = History(MemoryStore())
    history.run(1, {"clicks": 5})
    history.run(2, {"clicks": "anew"})  # two records a partition
    state = history.archive.state
    first = planned(first_status(flow_of(), history.archive.info.id, None), [CLICKS])
    assert flow_lag(state, first).records == 4


def test_planned_topics_keep_what_is_known_of_them(archive: Archive) -> None:
    before = status_of(archive, applied(10, 12, 0))
    orders, clicks = planned(before, [ORDERS, CLICKS]).topics
    assert orders == before.topics[0]
    assert (clicks.incarnation, clicks.applied) == (-1, (0,))


def test_refusals_stay_until_the_flow_sets_the_subject_again(archive: Archive) -> None:
    def after(before: FlowStatus, refused: dict[str, tuple[str, ...]]) -> FlowStatus:
        return after_round(before, archive.manifest(1), (ORDERS,), applied(), refused)

    def reasons(status: FlowStatus) -> list[tuple[str, str]]:
        return [(refusal.subject, refusal.reason) for refusal in status.refusals]

    first = first_status(flow_of(), archive.info.id, None)
    both = after(first, {"acls": ("no authorizer",), "configs": ("no right",), "topics": ()})
    assert reasons(after(both, {"topics": ()})) == [("acls", "no authorizer"), ("configs", "no right")]
    assert reasons(after(both, {"acls": ()})) == [("configs", "no right")]
    assert reasons(after(both, {"acls": ("another",)})) == [("configs", "no right"), ("acls", "another")]


def test_duties_alone_are_no_round_with_records(archive: Archive) -> None:
    """A round that applies nothing new leaves the numbers of the last one that did."""
    did = status_of(archive, applied(10, 12, 0, records=22, bytes=220, seconds=1.5))
    idle = after_round(did, archive.manifest(1), (ORDERS,), applied(10, 12, 0, seconds=0.1), {})
    numbers = (did.round_at, 22, 220, 1.5)
    assert (idle.round_at, idle.round_records, idle.round_bytes, idle.round_seconds) == numbers
    assert idle.rounds == 2
    later = after_round(did, archive.manifest(2), (ORDERS,), applied(10, 12, 0, point=2), {})
    assert (later.round_records, later.round_seconds) == (0, 0.0)


def test_topics_held_back_are_told_once(archive: Archive) -> None:
    waiting = tuple(
        Recreated(name, f"A.{name}", incarnation, held_back=True)
        for name, incarnation in (("clicks", 2), ("orders", 3))
    )
    first = first_status(flow_of(), archive.info.id, None)
    told = with_unreported(first, applied(held_back=waiting[:1]))
    assert told.recreated == waiting[:1]
    status = after_round(first, archive.manifest(1), (CLICKS, ORDERS), told, {})
    assert with_unreported(status, applied(held_back=waiting)).recreated == waiting[1:]
    refused = after_round(status, archive.manifest(1), (), applied(), {})
    assert not refused.topics
    assert with_unreported(refused, applied(held_back=waiting)).recreated == waiting[1:]


def test_seconds_behind_count_from_the_first_point_that_is_not_applied(archive: Archive) -> None:
    at = datetime(2026, 1, 2, tzinfo=UTC) + timedelta(seconds=90)  # restore point 2 is of January 2nd
    assert flow_lag(archive.state, status_of(archive, applied(10, 12, 0)), at).seconds == 90
    assert flow_lag(archive.state, status_of(archive, applied(41, 12, 0, point=2)), at).seconds == 0
    first = first_status(flow_of(), archive.info.id, None)
    assert flow_lag(archive.state, first, at).seconds == 90 + 24 * 3600


@pytest.mark.parametrize("positions", [(41, 12, 0), (10, 12, 0)])
@pytest.mark.parametrize("point", [1, 2])
@pytest.mark.parametrize("held_back", [True, False])
def test_the_lag_after_a_round(archive: Archive, positions: tuple[int, ...], point: int, held_back: bool) -> None:
    """The short way gives the same answer wherever the flow has applied what it says."""
    first = first_status(flow_of(), archive.info.id, None)
    refused = {"topics": {"A.orders": "no"}} if held_back else {}
    status = after_round(first, archive.manifest(point), (ORDERS,), applied(*positions, point=point), refused)
    at = round_lag(archive.state, status)
    due = flow_lag(archive.state, status)
    if point == 2 and not held_back:
        assert (at.records, at.seconds) == (0, 0.0)
    else:
        assert (at.records, at.topics, at.newest) == (due.records, due.topics, due.newest)


def test_a_round_is_written_and_read(archive: Archive) -> None:
    store = MemoryStore()
    lost = Lost("orders", 1, 0, "A.orders", 10, 15, "5 records of orders-0 expired before the flow took them")
    recreated = (Recreated("clicks", "A.clicks", 2, held_back=True),)
    counts: dict[str, Any] = {"records": 22, "bytes": 220, "seconds": 1.23456}
    round_ = applied(10, 12, 0, recreated=recreated, held_back=recreated, too_late=(lost,), **counts)
    first = first_status(flow_of(), archive.info.id, None)
    refused = {"topics": {"A.clicks": "no"}, "acls": ("no authorizer",)}
    write_status(store, after_round(first, archive.manifest(1), (CLICKS, ORDERS), round_, refused))

    (status,) = read_status(store)
    assert status == read_flow_status(store, "A", "B")
    assert (status.name, status.restore_point, status.records, status.round_seconds) == ("A->B", 1, 22, 1.235)
    clicks, orders = status.topics
    assert (orders.incarnation, orders.applied, orders.held_back) == (1, (10, 12, 0), "")
    assert (clicks.incarnation, clicks.applied, clicks.held_back) == (-1, (0,), "no")
    assert [(r.subject, r.reason) for r in status.refusals] == [("acls", "no authorizer")]
    assert [i.message for i in status.incidents] == [recreated[0].message, lost.message]

    failed = after_error(status, "B is away")
    assert (failed.error, failed.restore_point, failed.topics) == ("B is away", 1, status.topics)
    again = first_status(flow_of(), archive.info.id, failed)
    assert (again.error, again.records, again.topics) == ("", 0, status.topics)
    assert again.incidents == status.incidents
    elsewhere = first_status(flow_of(), "another archive", failed)
    assert (elsewhere.restore_point, elsewhere.topics) == (0, ())


def test_only_flows_that_have_a_status_are_read() -> None:
    store = MemoryStore()
    store.put("mirrors/A/C/map-1.parquet", b"x")
    assert read_status(store) == []
    store.put("mirrors/A/C/status.json", b"{}")
    with pytest.raises(CorruptError, match=r"mirrors/A/C/status\.json"):
        read_status(store)


# The counts of a flow, and that a record applied twice would be seen.


ORDERS_3 = TopicPartition("A.orders", 3)
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


def test_a_round_of_a_flow_sets_its_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
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
        partitions={ORDERS_3: part},
        recreated=(Recreated("x", "A.x", 2, held_back=False),),
        too_late=(lost, lost),
        deleted=(DeletedRemote("y", "A.y"),),
        seconds=2,
    )
    for _ in range(2):
        metering.round_applied(flow, {}, applied, held_back=["A.orders"])
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
    assert values("topic_held_back") == {("A", "B", "A.orders"): 1}
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
    first = Applied(1, partitions={ORDERS_3: part, left: part})
    topics = [RemoteTopic("orders", "A.orders", 4)]
    metering.round_applied(flow, {}, first, ["A.orders"], topics)
    assert set(values("record_count_total")) == {("A", "B", "A.orders", "3"), ("A", "B", "A.gone", "0")}
    metering.round_applied(flow, {}, Applied(2), [], topics)
    for name in ("record_count_total", "byte_count_total", "replication_latency_seconds_max"):
        assert set(values(name)) == {("A", "B", "A.orders", "3")}
    assert values("topic_held_back") == {}
    metering.checkpoints_written(flow, ["billing", "gone"], 1.0)
    metering.checkpoints_written(flow, [], 2.0, ["billing"])
    assert set(values("checkpoint_latency_seconds")) == {("A", "B", "billing")}


def test_lag_is_counted_apart_from_rounds() -> None:
    for lag, seconds in ((LAG, 3.5), (replace(LAG, records=None, seconds=4.5), 4.5)):
        metering.lag_now(flow_of(), lag)
        assert values("records_behind") == {("A", "B"): 12}
        assert values("seconds_behind") == {("A", "B"): seconds}
    assert values("last_round_timestamp_seconds") == {}


def test_records_without_a_timestamp_have_no_age() -> None:
    part = PartitionApplied(records=5, bytes=600, oldest=None, newest=None)
    metering.round_applied(flow_of(), {}, Applied(8, partitions={ORDERS_3: part}), held_back=[])
    assert values("record_age_seconds_max") == {}


@pytest.mark.parametrize(
    ("rows", "twice"), [([(1, 10, 5)], 0), ([(1, 8, 5)], 2), ([(1, 0, 5), (1, 10, 1)], 5), ([(2, 0, 5)], 0)]
)
def test_records_that_were_applied_before_are_counted_as_duplicates(
    rows: list[tuple[int, int, int]], twice: int
) -> None:
    before = {ORDERS_3: AppliedPosition(1, 10)}
    assert metering.duplicates(before, Applied(1, runs=runs(*rows))) == twice
    assert metering.duplicates({}, Applied(1, runs=runs(*rows))) == 0


# `expire` keeps what a flow that is alive has not applied yet.


DAY = timedelta(days=1)
ALL = 99, 99


@pytest.fixture
def history() -> History:
    """Three days of topics a and b. Each partition has offsets 0 and 1 of day 1, 3 and 4 of day 2, 6 and 7 of day 4."""
    made = History(MemoryStore())
    for day in (1, 2, 4):
        made.run(day, {"a": 2, "b": 2})
    return made


def flow(
    history: History,
    positions: Mapping[str, tuple[int, Sequence[int]]],
    point: int = 4,
    age: timedelta = timedelta(0),
    target: str = "B",
    archive_id: str = "",
) -> None:
    """A flow that stands at `positions`: incarnation, and next offsets by partition."""
    at = (datetime.now(UTC) - age).isoformat()
    status = FlowStatus(
        source="A",
        target=target,
        archive_id=archive_id or history.archive.info.id,
        tool="test",
        started_at=at,
        written_at=at,
        restore_point=point,
        topics=tuple(
            TopicStatus(source=name, remote=f"A.{name}", incarnation=incarnation, applied=tuple(applied))
            for name, (incarnation, applied) in positions.items()
        ),
    )
    write_status(history.store, status)


def expired(history: History, *, days: int = 1, ignore_mirrors: bool = False) -> ExpireReport:
    expiry = Expiry(Policy(last=1), days * DAY, DAY, ignore_mirrors)
    return expire(history.store, expiry, 60, Silent(), confirm=True)


def first_offsets(history: History, topic: str, incarnation: int = 1) -> list[int | None]:
    """The first offset that is left of each partition."""
    archive = history.archive
    rows = archive.segments(archive.restore_point("latest"))
    return [
        min((s.first for s in rows if (s.topic, s.incarnation, s.partition) == (topic, incarnation, p)), default=None)
        for p in range(2)
    ]


def test_without_a_flow_old_records_go(history: History) -> None:
    assert expired(history).mirrors == ()
    assert first_offsets(history, "a") == [6, 6]


@pytest.mark.parametrize(
    ("positions", "point", "a", "b"),
    [
        ({"a": (1, (0, 3)), "b": (1, (9, 9))}, 4, [0, 3], [6, 6]),
        ({"a": (1, (4, 1)), "b": (1, (9, 9))}, 4, [3, 0], [6, 6]),  # a segment that is applied in part stays
        ({"a": (1, (9,)), "b": (1, (9, 9))}, 4, [6, 0], [6, 6]),  # a partition that the flow has not seen
        ({"a": (-1, ()), "b": (1, (9, 9))}, 4, [0, 0], [6, 6]),  # a new topic, until `refresh.topics` is due
        ({}, 0, [0, 0], [0, 0]),  # a flow that begins
        ({"b": (1, (9, 9))}, 1, [3, 3], [3, 3]),  # a topic that is not selected, until the flow's next round
        ({"b": (1, (9, 9))}, 4, [6, 6], [6, 6]),
    ],
)
def test_records_that_are_not_applied_stay(
    positions: dict[str, tuple[int, Sequence[int]]], point: int, a: list[int], b: list[int], history: History
) -> None:
    flow(history, positions, point)
    report = expired(history)
    assert report.mirrors == (("A->B",) if a != [6, 6] else ())
    assert (first_offsets(history, "a"), first_offsets(history, "b")) == (a, b)
    assert (report.records == 0) is (point == 0)


def test_the_slowest_flow_decides(history: History) -> None:
    flow(history, {"a": (1, (9, 9)), "b": (1, (9, 9))}, target="B")
    flow(history, {"a": (1, (3, 9)), "b": (1, (9, 9))}, target="C")
    assert expired(history).mirrors == ("A->C",)
    assert first_offsets(history, "a") == [3, 6]


@pytest.mark.parametrize("why", ["silent", "another archive", "ignored"])
def test_flows_that_hold_nothing(history: History, why: str) -> None:
    flow(
        history,
        {"a": (1, (0, 0))},
        age=2 * DAY if why == "silent" else timedelta(0),
        archive_id="another" if why == "another archive" else "",
    )
    assert expired(history, ignore_mirrors=why == "ignored").mirrors == ()
    assert first_offsets(history, "a") == [6, 6]


def test_an_incarnation_that_is_over_stays_until_it_is_applied(history: History) -> None:
    history.run(5, {"a": 2, "b": "anew"})
    history.run(6, {"a": 2, "b": 2})
    flow(history, {"a": (1, ALL), "b": (1, (9, 7))}, point=4)
    report = expired(history, days=100)
    fates = {fate.number: fate.reasons for fate in report.restore_points}
    assert fates == {1: (), 2: (), 4: ("mirror A->B",), 5: (), 6: ("last",)}
    assert report.mirrors == ("A->B",)
    assert history.archive.restore_point(4).topics

    flow(history, {"a": (1, ALL), "b": (2, ALL)}, point=6)
    report = expired(history, days=100)
    assert [fate.number for fate in report.restore_points if fate.stays] == [6]
