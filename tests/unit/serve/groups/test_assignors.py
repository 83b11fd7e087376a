"""Each partition of a subscribed topic has one owner, and uniform assignments are even and stay where they are."""

from __future__ import annotations

from collections.abc import Mapping

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kbackup.serve.groups.assignors import ASSIGNORS, AssignedPartition, Assignment, assign_ranges, assign_uniformly
from tests.unit.serve.groups.builders import partitions, topic_id

A, B, C = (topic_id(name).bytes for name in "abc")

COUNTS = st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 9))
SUBSCRIPTIONS = st.dictionaries(
    st.sampled_from(["m1", "m2", "m3", "m4", "m5"]), st.frozensets(st.sampled_from([A, B, C])), min_size=1
)
PRESENT = st.dictionaries(
    st.sampled_from(["m1", "m2", "m3", "gone"]),
    st.frozensets(st.builds(AssignedPartition, st.sampled_from([A, B, C]), st.integers(0, 12))),
)


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@given(subscriptions=SUBSCRIPTIONS, counts=COUNTS, present=PRESENT)
def test_each_partition_of_a_subscribed_topic_has_one_owner(
    name: str,
    subscriptions: dict[str, frozenset[bytes]],
    counts: dict[bytes, int],
    present: dict[str, frozenset[AssignedPartition]],
) -> None:
    assigned = ASSIGNORS[name](subscriptions, counts, present)
    assert assigned.keys() == subscriptions.keys()
    for member, own in assigned.items():
        assert {each.topic for each in own} <= subscriptions[member]
    given_out = sorted(each for own in assigned.values() for each in own)
    subscribed = frozenset[bytes]().union(*subscriptions.values())
    expected = [AssignedPartition(topic, number) for topic in subscribed for number in range(counts.get(topic, 0))]
    assert given_out == sorted(expected)


@given(subscriptions=SUBSCRIPTIONS, counts=COUNTS, present=PRESENT)
def test_no_partition_could_be_moved_to_a_member_that_has_much_less(
    subscriptions: dict[str, frozenset[bytes]],
    counts: dict[bytes, int],
    present: dict[str, frozenset[AssignedPartition]],
) -> None:
    assigned = assign_uniformly(subscriptions, counts, present)
    for giver, own in assigned.items():
        topics = {each.topic for each in own}
        for taker, topics_of_taker in subscriptions.items():
            if topics & topics_of_taker:
                assert len(own) - len(assigned[taker]) < 2, f"{giver} could give to {taker}"


@given(subscriptions=SUBSCRIPTIONS, counts=COUNTS)
def test_an_even_assignment_stays_as_it_is(
    subscriptions: dict[str, frozenset[bytes]], counts: dict[bytes, int]
) -> None:
    assigned = assign_uniformly(subscriptions, counts, {})
    assert assign_uniformly(subscriptions, counts, assigned) == assigned


def test_a_new_member_takes_no_more_than_its_share() -> None:
    both = {"m1": frozenset({A}), "m2": frozenset({A})}
    before = assign_uniformly(both, {A: 6}, {})
    after = assign_uniformly({**both, "m3": frozenset({A})}, {A: 6}, before)
    assert _sizes(after) == {"m1": 2, "m2": 2, "m3": 2}
    for member in both:
        assert after[member] < before[member], "who was there keeps what it has, less what the new one needs"


def test_ranges_of_topics_with_as_many_partitions_come_together() -> None:
    topics = frozenset({A, B})
    assigned = assign_ranges({"m1": topics, "m2": topics}, {A: 3, B: 3}, {})
    assert assigned == {
        "m1": partitions("a", 0, 1) | partitions("b", 0, 1),
        "m2": partitions("a", 2) | partitions("b", 2),
    }


def _sizes(assigned: Mapping[str, frozenset[AssignedPartition]] | Assignment) -> dict[str, int]:
    return {member: len(own) for member, own in assigned.items()}
