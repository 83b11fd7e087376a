"""Which topics a flow mirrors, under which names, and the cycles it refuses."""

from __future__ import annotations

import pytest

from kbackup.errors import UsageError
from kbackup.jobs.mirror.flow import RemoteTopic
from kbackup.jobs.mirror.properties import load_flows
from kbackup.jobs.mirror.topics import SkippedTopic, SourceTopic, plan_topics, reason_to_skip
from tests.support.mirrors import CLUSTERS, flow_of

IDENTITY = "replication.policy.class = IdentityReplicationPolicy\n"
BOTH_WAYS = CLUSTERS + "B->A.enabled = true\n"


def test_topics_take_the_alias_and_skipped_ones_a_reason() -> None:
    names = ("orders", "heartbeats", "C.heartbeats", "B.pay", "C.B.pay", "mm2-offset-syncs.B.internal", "__x")
    plan = plan_topics(flow_of("topics = orders, .*pay"), [SourceTopic(name, 3) for name in (*names, "other")])
    assert plan.topics == (
        RemoteTopic("C.heartbeats", "A.C.heartbeats", 3),
        RemoteTopic("heartbeats", "A.heartbeats", 3),
        RemoteTopic("orders", "A.orders", 3),
    )
    assert plan.skipped == (
        SkippedTopic("B.pay", "cycle"),
        SkippedTopic("C.B.pay", "cycle"),
        SkippedTopic("__x", "internal"),
        SkippedTopic("mm2-offset-syncs.B.internal", "internal"),
        SkippedTopic("other", "not selected"),
    )


def test_heartbeats_need_no_filter_unless_told_so() -> None:
    assert reason_to_skip(flow_of("topics = orders"), "heartbeats") is None
    flow = flow_of("topics = orders\nheartbeats.replication.enabled = false")
    assert reason_to_skip(flow, "heartbeats") == "not selected"


def test_deleted_topic_is_mirrored_to_its_end_and_not_made_anew() -> None:
    deleted = SourceTopic("orders", 2, deleted=True)
    assert plan_topics(flow_of(), [deleted], existing=("A.orders",)).topics[0].remote == "A.orders"
    assert plan_topics(flow_of(), [deleted]).skipped == (SkippedTopic("orders", "deleted"),)


@pytest.mark.parametrize(
    "text",
    [
        BOTH_WAYS + IDENTITY,
        BOTH_WAYS + IDENTITY + "A->B.topics = pay-1, only-a\nB->A.topics = only-b, pay-1",
        BOTH_WAYS + f"A->B.{IDENTITY}",  # B gives A `B.orders`, A gives it back, and so on without end
        "clusters = A, B, C\nA->B.enabled = true\nB->C.enabled = true\nC->A.enabled = true\n" + IDENTITY,
    ],
)
def test_loops_of_the_identity_policy_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="would go round"):
        load_flows(text)


def test_identity_both_ways_is_fine_for_topics_that_do_not_meet() -> None:
    text = BOTH_WAYS + IDENTITY + "A->B.topics = a-.*, shared\\.x\nB->A.topics = b-.*, shared\\..*\n"
    to_b, to_a = load_flows(text).flows
    assert reason_to_skip(to_b, "a-orders") is None
    assert reason_to_skip(to_a, "b-orders") is None
    assert reason_to_skip(to_b, "shared.x") == "cycle"  # met only now that there is such a topic
    assert reason_to_skip(to_a, "shared.x") == "cycle"
    assert reason_to_skip(to_a, "shared.y") is None


def test_identity_one_way_and_in_a_chain_is_no_loop() -> None:
    load_flows("clusters = A, B, C\nA->B.enabled = true\nB->C.enabled = true\n" + IDENTITY)


def test_default_policy_both_ways_is_no_loop() -> None:
    to_b, to_a = load_flows(BOTH_WAYS).flows
    assert reason_to_skip(to_b, "B.orders") == "cycle"
    assert reason_to_skip(to_a, "B.orders") is None
