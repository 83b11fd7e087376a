"""The status of a flow, and how far it is behind its archive."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from kbackup.archive.reader import Archive
from kbackup.errors import CorruptError
from kbackup.jobs.mirror.apply.pending import Applied, Lost, Recreated
from kbackup.jobs.mirror.flow import (
    AppliedPosition,
    FlowStatus,
    RemoteTopic,
    read_flow_status,
    read_status,
    write_status,
)
from kbackup.jobs.mirror.status import (
    after_error,
    after_round,
    first_status,
    flow_lag,
    planned,
    round_lag,
    with_unreported,
)
from kbackup.types import TopicPartition
from tests.support.archives import make_archive
from tests.support.histories import History
from tests.support.memory_store import MemoryStore
from tests.support.mirrors import flow_of

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
    recreated = Recreated("clicks", "A.clicks", 2, held_back=True)
    round_ = applied(
        10,
        12,
        0,
        records=22,
        bytes=220,
        recreated=(recreated,),
        held_back=(recreated,),
        too_late=(lost,),
        seconds=1.23456,
    )
    first = first_status(flow_of(), archive.info.id, None)
    refused = {"topics": {"A.clicks": "no"}, "acls": ("no authorizer",)}
    status = after_round(first, archive.manifest(1), (CLICKS, ORDERS), round_, refused)
    write_status(store, status)

    (flow_status,) = read_status(store)
    assert flow_status == read_flow_status(store, "A", "B")
    assert (flow_status.name, flow_status.restore_point, flow_status.records, flow_status.round_seconds) == (
        "A->B",
        1,
        22,
        1.235,
    )
    clicks, orders = flow_status.topics
    assert (orders.incarnation, orders.applied, orders.held_back) == (1, (10, 12, 0), "")
    assert (clicks.incarnation, clicks.applied, clicks.held_back) == (-1, (0,), "no")
    assert [(r.subject, r.reason) for r in flow_status.refusals] == [("acls", "no authorizer")]
    assert [i.message for i in flow_status.incidents] == [recreated.message, lost.message]

    failed = after_error(flow_status, "B is away")
    assert (failed.error, failed.restore_point, failed.topics) == ("B is away", 1, flow_status.topics)
    again = first_status(flow_of(), archive.info.id, failed)
    assert (again.error, again.records, again.topics) == ("", 0, flow_status.topics)
    assert again.incidents == flow_status.incidents
    elsewhere = first_status(flow_of(), "another archive", failed)
    assert (elsewhere.restore_point, elsewhere.topics) == (0, ())


def test_only_flows_that_have_a_status_are_read() -> None:
    store = MemoryStore()
    store.put("mirrors/A/C/map-1.parquet", b"x")
    assert read_status(store) == []
    store.put("mirrors/A/C/status.json", b"{}")
    with pytest.raises(CorruptError, match=r"mirrors/A/C/status\.json"):
        read_status(store)
