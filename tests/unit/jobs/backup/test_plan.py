"""Plan the ranges that a run reads, from the archive's state and the cluster's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.archive.models import Manifest, PartitionState, TopicState, Totals
from kbackup.jobs.backup.plan import Plan
from kbackup.jobs.backup.plan import make_plan as plan_of
from kbackup.jobs.backup.task import make_tasks, without
from kbackup.jobs.capture import Live, LiveTopic
from kbackup.types import OffsetRange, TopicPartition


def live(start: int, end: int, high: int | None = None) -> Live:
    return Live(start, end, end if high is None else high)


def topic(*partitions: Live, name: str = "orders", id: str = "A") -> LiveTopic:
    return LiveTopic(name, id, dict(enumerate(partitions)))


def archived(
    *ends: int,
    name: str = "orders",
    id: str = "A",
    state: str = "present",
    incarnation: int = 1,
    log_ends: Sequence[int] = (),
) -> Manifest:
    partitions = tuple(
        PartitionState(partition=n, start=0, end=end, log_start=0, log_end=high, records=end, bytes=end)
        for n, (end, high) in enumerate(zip(ends, log_ends or ends, strict=True))
    )
    known = TopicState(
        name=name,
        id=id,
        incarnation=incarnation,
        captured=1,
        state=state,  # type: ignore[arg-type]
        partitions=partitions,
    )
    return manifest_of(known)


def manifest_of(*topics: TopicState) -> Manifest:
    return Manifest(
        archive_id="x",
        number=1,
        run="r",
        previous=None,
        tool="t",
        started_at="",
        committed_at="",
        totals=Totals(topics=0, partitions=0, segments=0, records=0, bytes=0, stored_bytes=0, groups=0),
        captures=(),
        topics=topics,
    )


def make_plan(
    head: Manifest | None,
    selected: Sequence[LiveTopic],
    existing: Iterable[str],
    diverged: Mapping[TopicPartition, int] = MappingProxyType({}),
) -> Plan:
    """A plan where each new incarnation gets the next number of its topic."""
    known = {t.name: t.incarnation for t in head.topics} if head is not None else {}
    return plan_of(head, selected, existing, lambda name, _: known.get(name, 0) + 1, diverged)


def test_a_first_run_takes_all_there_is_and_calls_nothing_a_loss() -> None:
    plan = make_plan(None, [topic(live(0, 10), live(7, 9), live(4, 4))], ["orders"])
    assert plan.ranges == [
        OffsetRange("orders", 0, 0, 10),
        OffsetRange("orders", 1, 7, 9),
        OffsetRange("orders", 2, 4, 4),
    ]
    assert (plan.losses, plan.warnings, plan.carried) == ((), (), ())


def test_the_next_run_goes_on_where_the_last_one_ended_and_takes_new_partitions_whole() -> None:
    plan = make_plan(archived(10), [topic(live(2, 15), live(0, 3))], ["orders"])
    assert plan.ranges == [OffsetRange("orders", 0, 10, 15), OffsetRange("orders", 1, 0, 3)]
    assert plan.losses == ()
    assert plan.topics[0].partitions[0].before is not None
    assert plan.topics[0].partitions[1].before is None


def test_records_deleted_before_archiving_are_a_loss_with_an_exact_range() -> None:
    plan = make_plan(archived(10), [topic(live(14, 20))], ["orders"])
    (loss,) = plan.losses
    assert (loss.kind, loss.topic, loss.partition, loss.start, loss.end) == ("retention", "orders", 0, 10, 14)
    assert "offsets 10 to 13 of orders-0" in loss.message
    assert plan.ranges == [OffsetRange("orders", 0, 14, 20)]


def test_a_log_start_at_the_archived_end_is_no_loss() -> None:
    assert make_plan(archived(10), [topic(live(10, 20))], ["orders"]).losses == ()


def test_a_topic_made_anew_gets_an_incarnation_of_its_own_and_is_a_loss() -> None:
    plan = make_plan(archived(10), [topic(live(0, 3), id="B")], ["orders"])
    assert plan.topics[0].incarnation == 2
    assert plan.ranges == [OffsetRange("orders", 0, 0, 3)]
    assert [loss.kind for loss in plan.losses] == ["recreated"]


def test_a_topic_that_was_seen_deleted_before_it_came_back_is_a_warning_only() -> None:
    plan = make_plan(archived(10, state="deleted"), [topic(live(0, 3), id="B")], ["orders"])
    assert plan.topics[0].incarnation == 2
    assert plan.losses == ()
    assert "incarnation 2" in plan.warnings[0]


def test_a_log_cut_below_the_archived_end_starts_a_new_incarnation_and_is_a_loss() -> None:
    plan = make_plan(archived(10, 5), [topic(live(0, 8), live(0, 9))], ["orders"])
    (loss,) = plan.losses
    assert (loss.kind, loss.partition, loss.start, loss.end) == ("truncated", 0, 8, 10)
    assert plan.topics[0].incarnation == 2
    assert plan.ranges == [OffsetRange("orders", 0, 0, 8), OffsetRange("orders", 1, 0, 9)]


def test_a_last_stable_offset_behind_the_archived_end_is_no_truncation() -> None:
    """After a run under read_uncommitted, with a transaction still open."""
    plan = make_plan(archived(10), [topic(live(0, 8, high=12))], ["orders"])
    assert plan.losses == ()
    assert plan.ranges == [OffsetRange("orders", 0, 10, 10)]


def test_an_unselected_topic_is_carried_and_a_deleted_one_is_told_of_once() -> None:
    plan = make_plan(archived(10), [], ["orders"])
    assert [(t.name, t.state, t.captured) for t in plan.carried] == [("orders", "unselected", 1)]
    about = [w for w in plan.warnings if "orders" in w]
    assert not about, f"warnings about orders: {about}"
    gone = make_plan(archived(10), [], [])
    assert [(t.name, t.state) for t in gone.carried] == [("orders", "deleted")]
    assert [w for w in gone.warnings if "topic orders no longer exists" in w]
    again = [w for w in make_plan(archived(10, state="deleted"), [], []).warnings if "orders" in w]
    assert not again, f"warnings about orders after its deletion was told: {again}"


def test_held_back_records_of_a_deleted_topic_are_reported_once_as_a_loss() -> None:
    def head(state: str) -> Manifest:
        return archived(900, 7, log_ends=(1400, 7), state=state)

    (loss,) = make_plan(head("present"), [], []).losses
    assert (loss.topic, loss.partition, loss.start, loss.end) == ("orders", 0, 900, 1400)
    assert "offsets 900 to 1399 of orders-0" in loss.message
    assert make_plan(head("deleted"), [], []).losses == ()
    assert make_plan(head("present"), [], ["orders"]).losses == (), "it is there, only not selected"


def test_a_run_that_captures_no_topic_says_so() -> None:
    assert "no topic of the source is selected" in make_plan(None, [], ["orders"]).warnings[0]


def test_an_unknown_topic_id_is_not_taken_for_another_one() -> None:
    assert make_plan(archived(10, id=""), [topic(live(0, 12))], ["orders"]).topics[0].incarnation == 1


@pytest.mark.parametrize(
    ("taken", "remaining"),
    [
        ([], [(0, 100)]),
        ([(0, 100)], []),
        ([(0, 10), (50, 60)], [(10, 50), (60, 100)]),
        ([(10, 20), (20, 30)], [(0, 10), (30, 100)]),
        ([(90, 100)], [(0, 90)]),
    ],
)
def test_salvaged_ranges_are_not_read_again(taken: list[tuple[int, int]], remaining: list[tuple[int, int]]) -> None:
    whole = OffsetRange("t", 0, 0, 100)
    assert without([whole], [OffsetRange("t", 0, a, b) for a, b in taken]) == [
        OffsetRange("t", 0, a, b) for a, b in remaining
    ]


@given(sizes=st.lists(st.integers(0, 5_000), max_size=60), split=st.integers(1, 3_000), pack=st.integers(1, 2_000))
def test_tasks_cover_every_range_once_and_keep_their_bounds(sizes: list[int], split: int, pack: int) -> None:
    ranges = [OffsetRange("t", n, 5, 5 + size) for n, size in enumerate(sizes)]
    tasks = make_tasks(ranges, split, pack)
    covered = sorted((r.partition, o) for task in tasks for r in task for o in range(r.start, r.end))
    assert covered == [(n, 5 + o) for n, size in enumerate(sizes) for o in range(size)]
    for task in tasks:
        assert len({r.partition for r in task}) == len(task)
        if len(task) > 1:
            assert sum(r.end - r.start for r in task) <= pack
        elif task[0].end - task[0].start >= pack:
            assert task[0].end - task[0].start <= split
    sums = [sum(r.end - r.start for r in task) for task in tasks]
    assert sums == sorted(sums, reverse=True)


def test_no_task_has_two_ranges_of_a_partition() -> None:
    """The rest of a partition around salvaged segments may be several small ranges."""
    remaining = without([OffsetRange("t", 0, 0, 90), OffsetRange("t", 1, 0, 9)], [OffsetRange("t", 0, 10, 80)])
    assert make_tasks(remaining, 1000, 100) == [
        [OffsetRange("t", 0, 80, 90), OffsetRange("t", 1, 0, 9)],
        [OffsetRange("t", 0, 0, 10)],
    ]


def test_a_log_that_was_cut_and_has_grown_again_makes_a_new_incarnation() -> None:
    """Its end tells nothing; the loss begins nobody knows where."""
    logs = topic(live(0, 30), live(0, 9))
    plan = make_plan(archived(10, 5), [logs], ["orders"], {TopicPartition("orders", 0): 9})
    (loss,) = plan.losses
    assert (loss.kind, loss.partition, loss.start, loss.end) == ("truncated", 0, None, 10)
    assert "orders-0 was cut and has grown again: it differs from the archive at offset 9" in loss.message
    assert plan.topics[0].incarnation == 2
    assert plan.ranges == [OffsetRange("orders", 0, 0, 30), OffsetRange("orders", 1, 0, 9)]
