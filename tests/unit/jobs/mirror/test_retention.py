"""`expire` keeps what a flow that is alive has not applied yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from kbackup.jobs.mirror.flow import FlowStatus, TopicStatus, write_status
from kbackup.jobs.retention import ExpireReport, Expiry, Policy, expire
from kbackup.metrics.registry import Silent
from tests.support.histories import History
from tests.support.memory_store import MemoryStore

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
    written_at = (datetime.now(UTC) - age).isoformat()
    status = FlowStatus(
        source="A",
        target=target,
        archive_id=archive_id or history.archive.info.id,
        tool="test",
        started_at=written_at,
        written_at=written_at,
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


def test_records_that_are_not_applied_stay(history: History) -> None:
    flow(history, {"a": (1, (0, 3)), "b": (1, (9, 9))})
    report = expired(history)
    assert report.mirrors == ("A->B",)
    assert first_offsets(history, "a") == [0, 3]
    assert first_offsets(history, "b") == [6, 6]


def test_a_segment_that_is_applied_in_part_stays(history: History) -> None:
    flow(history, {"a": (1, (4, 1)), "b": (1, (9, 9))})
    expired(history)
    assert first_offsets(history, "a") == [3, 0]


def test_a_partition_that_the_flow_has_not_seen_stays(history: History) -> None:
    flow(history, {"a": (1, (9,)), "b": (1, (9, 9))})
    expired(history)
    assert first_offsets(history, "a") == [6, 0]


def test_the_slowest_flow_decides(history: History) -> None:
    flow(history, {"a": (1, (9, 9)), "b": (1, (9, 9))}, target="B")
    flow(history, {"a": (1, (3, 9)), "b": (1, (9, 9))}, target="C")
    assert expired(history).mirrors == ("A->C",)
    assert first_offsets(history, "a") == [3, 6]


def test_a_flow_that_begins_holds_everything(history: History) -> None:
    flow(history, {}, point=0)
    assert expired(history).records == 0
    assert first_offsets(history, "a") == [0, 0]


def test_topics_that_a_flow_does_not_select_are_held_until_its_next_round(history: History) -> None:
    flow(history, {"b": (1, (9, 9))}, point=1)
    expired(history)
    assert first_offsets(history, "a") == [3, 3]
    flow(history, {"b": (1, (9, 9))}, point=4)
    expired(history)
    assert first_offsets(history, "a") == [6, 6]


def test_topics_that_a_flow_has_not_begun_with_are_held(history: History) -> None:
    """A new topic waits until `refresh.topics` is due, while the applied restore point goes on."""
    flow(history, {"a": (-1, ()), "b": (1, (9, 9))}, point=4)
    expired(history)
    assert first_offsets(history, "a") == [0, 0]
    assert first_offsets(history, "b") == [6, 6]


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
