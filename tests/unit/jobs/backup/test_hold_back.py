"""Which partitions wait, and what a restore point says of them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.archive.models import Group, GroupOffset, Groups, PartitionState
from kbackup.jobs.backup.plan import (
    NO_PATIENCE,
    TYPICAL_RECORD,
    Patience,
    Plan,
    clamp,
    held_back,
    hold_back,
    new_bytes,
    next_states,
    says_more,
    waiting,
)
from kbackup.jobs.capture import Live, LiveTopic
from kbackup.types import IncarnationPartition
from tests.unit.jobs.backup.test_plan import archived, live, make_plan, topic

NOW = 10_000.0


def planned(*partitions: Live, ends: tuple[int, ...] = ()) -> Plan:
    return make_plan(archived(*ends) if ends else None, [topic(*partitions)], ["orders"])


def waiting_since(*ages: float) -> dict[IncarnationPartition, float]:
    return {("orders", 1, n): NOW - age for n, age in enumerate(ages)}


@st.composite
def situations(draw: st.DrawFn) -> tuple[Plan, Patience, dict[IncarnationPartition, float]]:
    """Partitions known and new, with and without losses and open transactions, waiting for all kinds of times."""
    partitions: dict[int, Live] = {}
    ends: list[int] = []
    for n in range(draw(st.integers(1, 12))):
        end = draw(st.integers(0, 50))
        start = draw(st.integers(0, 70))
        high = draw(st.integers(max(start, end), 120))
        partitions[n] = Live(start, draw(st.integers(start, high)), high)
        ends.append(end)
    known = draw(st.integers(0, len(ends)))
    head = archived(*ends[:known]) if known else None
    plan = make_plan(head, [LiveTopic("orders", "A", partitions)], ["orders"])
    patience = Patience(
        *(draw(st.integers(0, 200)), draw(st.floats(0, 100)), draw(st.integers(0, 5))),
        draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])),
    )
    ages = draw(st.dictionaries(st.integers(0, 11), st.floats(0, 200)))
    return plan, patience, {("orders", 1, n): NOW - age for n, age in ages.items()}


@given(situations())
def test_hold_back_respects_the_maximal_age_and_claims_no_unarchived_records(
    situation: tuple[Plan, Patience, dict[IncarnationPartition, float]],
) -> None:
    plan, patience, since = situation
    chosen = hold_back(plan, patience, since, NOW)
    waits = held_back(chosen)
    before = {(t.name, t.incarnation, p.partition): p for t in plan.topics for p in t.partitions}
    after = {(t.name, t.incarnation, p.partition): p for t in chosen.topics for p in t.partitions}
    assert after.keys() == before.keys()
    assert (chosen.losses, chosen.warnings, chosen.carried) == (plan.losses, plan.warnings, plan.carried)
    for key, p in after.items():
        if key in waits:
            assert NOW - since.get(key, NOW) < patience.max_age
            assert new_bytes(p.live.end - p.start, p.before) < patience.small_bytes
            assert p.end == p.start < p.live.end
            assert p.before is None or p.end >= p.before.end, "it never goes back"
        else:
            assert p == before[key]
    small = [key for key, p in waiting(plan).items() if new_bytes(p.end - p.start, p.before) < patience.small_bytes]
    of_age = [key for key in small if NOW - since.get(key, NOW) >= patience.max_age]
    go = max(patience.small_segments, int(patience.share * len(small)), len(of_age))
    assert len(waits) == max(0, len(small) - go)
    taken = [since.get(key, NOW) for key in small if key not in waits]
    assert max(taken, default=0) <= min((since.get(key, NOW) for key in waits), default=NOW)


@given(situations())
def test_without_patience_nobody_waits(situation: tuple[Plan, Patience, dict[IncarnationPartition, float]]) -> None:
    plan, _, since = situation
    assert hold_back(plan, NO_PATIENCE, since, NOW) == plan


def test_a_partition_with_enough_does_not_wait() -> None:
    """The fixture's records are one byte each."""
    plan = planned(live(0, 50), live(0, 30), ends=(10, 10))
    chosen = hold_back(plan, Patience(40, 600, 0), {}, NOW)
    assert [(r.start, r.end) for r in chosen.ranges] == [(10, 50), (10, 10)]
    assert held_back(chosen) == {("orders", 1, 1): 10}


def test_the_longest_waiting_go_first() -> None:
    plan = planned(live(0, 11), live(0, 11), live(0, 11), ends=(10, 10, 10))
    chosen = hold_back(plan, Patience(1000, 600, 1), waiting_since(5, 50, 20), NOW)
    assert held_back(chosen) == {("orders", 1, 0): 10, ("orders", 1, 2): 10}


@pytest.mark.exhaustive
def test_many_quiet_partitions_never_come_of_age_together() -> None:
    """2,000 of them with a record a minute each, all since the same moment: no minute has more than its share."""
    count, minutes = 2_000, 35
    patience = Patience(1 << 20, 600.0, 50, 0.1)
    head = archived(*[100] * count)
    since: dict[IncarnationPartition, float] = {}
    written: list[int] = []
    waited: dict[int, float] = {}
    for minute in range(1, minutes + 1):
        now = 60.0 * minute
        plan = make_plan(head, [topic(*[live(0, 100 + minute)] * count)], ["orders"])
        since = {key: since.get(key, now) for key in waiting(plan)}
        chosen = hold_back(plan, patience, since, now)
        waits = held_back(chosen)
        for key, begun in since.items():
            if key not in waits:
                waited[key[2]] = max(waited.get(key[2], 0), now - begun)
        written.append(sum(r.end > r.start for r in chosen.ranges))
        since = {key: since[key] for key in waits}
        head = msgspec.structs.replace(head, topics=next_states(minute, chosen, ()))
    assert written == [count // 10] * minutes
    assert len(waited) == count
    assert max(waited.values()) <= patience.max_age


def test_a_loss_is_told_once_although_what_comes_after_it_waits() -> None:
    first = hold_back(planned(live(14, 20), ends=(10,)), Patience(1000, 600, 0), {}, NOW)
    assert [(loss.start, loss.end) for loss in first.losses] == [(10, 14)]
    (state,) = next_states(2, first, ())
    assert (state.partitions[0].end, state.partitions[0].log_end) == (14, 20)
    again = make_plan(archived(14), [topic(live(14, 20))], ["orders"])
    assert again.losses == ()


def test_records_deleted_by_retention_while_held_back_are_a_loss() -> None:
    (state,) = next_states(2, hold_back(planned(live(0, 5)), Patience(10**9, 600, 0), {}, NOW), ())
    assert (state.partitions[0].start, state.partitions[0].end) == (0, 0)
    (loss,) = make_plan(archived(0), [topic(live(3, 5))], ["orders"]).losses
    assert (loss.kind, loss.start, loss.end) == ("retention", 0, 3)


def test_bytes_are_guessed_by_what_is_archived() -> None:
    state = PartitionState(partition=0, start=0, end=4, log_start=0, log_end=4, records=4, bytes=1000)
    assert new_bytes(10, state) == 2500
    assert new_bytes(10, None) == 10 * TYPICAL_RECORD


def test_group_offsets_stop_where_the_archive_does() -> None:
    plan = hold_back(planned(live(0, 50), live(0, 30), ends=(10, 10)), Patience(40, 600, 0), {}, NOW)
    offsets = tuple(
        GroupOffset(topic=name, partition=p, offset=o, leader_epoch=3, metadata="m")
        for name, p, o in (("orders", 0, 45), ("orders", 1, 29), ("orders", 2, 7), ("else", 1, 99))
    )
    groups = Groups(
        captured_at="", groups=(Group(group="g", type="", state="", offsets=offsets),), not_carried={"x": "y"}
    )
    clamped = clamp(groups, plan)
    assert [(o.topic, o.partition, o.offset, o.metadata) for o in clamped.groups[0].offsets] == [
        ("orders", 0, 45, "m"),
        ("orders", 1, 10, "m"),
        ("orders", 2, 7, "m"),
        ("else", 1, 99, "m"),
    ]
    assert clamped.not_carried == {"x": "y"}


def test_a_plan_that_holds_all_back_says_nothing_new() -> None:
    patient = Patience(10**9, 600, 0)
    for partitions, more in (
        ((live(0, 12),), False),
        ((live(5, 12),), False),
        ((live(0, 12), live(0, 0)), True),
        ((live(11, 12),), True),
    ):
        plan = hold_back(planned(*partitions, ends=(10,)), patient, {}, NOW)
        assert says_more(plan, archived(10)) is more, partitions
    assert says_more(planned(live(0, 12), ends=(10,)), archived(10))
    assert says_more(planned(live(0, 0)), None)
    assert says_more(make_plan(archived(10), [], []), archived(10)), "the topic is gone"
    assert says_more(make_plan(archived(10), [topic(live(0, 3), id="B")], ["orders"]), archived(10))
