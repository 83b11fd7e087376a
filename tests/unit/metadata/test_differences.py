"""The comparison of two sides' values, which diffs, plans of settings and verifications of a migration share."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kbackup.metadata.differences import (
    ValueChange,
    broker_config_values,
    changed_values,
    client_metrics_values,
    group_config_values,
    pairs,
    quota_values,
)
from kbackup.metadata.entities import BrokerConfig, ClientMetrics, ClientQuota, GroupConfig

SIDES = st.dictionaries(st.sampled_from("abcd"), st.none() | st.integers(0, 2))


@given(SIDES, SIDES)
def test_changes_lead_from_one_side_to_the_other(before: dict[str, int | None], after: dict[str, int | None]) -> None:
    reached = dict(before)
    for change in changed_values(before, after):
        if change.kind == "gone":
            del reached[change.key]
        else:
            reached[change.key] = change.after
    assert reached == after


@given(SIDES)
def test_a_side_does_not_differ_from_itself(side: dict[str, int | None]) -> None:
    assert list(changed_values(side, side)) == []


def test_a_value_of_none_is_another_than_no_value() -> None:
    appeared: ValueChange[str, None] = ValueChange("ssl.key.password", "appeared", None, None)
    gone: ValueChange[str, None] = ValueChange("ssl.key.password", "gone", None, None)
    assert list(changed_values({}, {"ssl.key.password": None})) == [appeared]
    assert list(changed_values({"ssl.key.password": None}, {})) == [gone]


def test_changes_come_in_order_of_their_keys_or_in_the_order_asked_for() -> None:
    def backwards(key: int) -> int:
        return -key

    before, after = {1: "a", 2: "b"}, {1: "c", 3: "d"}
    assert [change.key for change in changed_values(before, after)] == [1, 2, 3]
    assert [change.key for change in changed_values(before, after, backwards)] == [3, 2, 1]


def test_pairs_have_the_keys_of_both_sides_in_order() -> None:
    assert list(pairs({"b": 1, "a": 2}, {"c": 3, "a": 2})) == [("a", 2, 2), ("b", 1, None), ("c", None, 3)]


def test_settings_become_values_by_what_they_are_set_on_and_their_name() -> None:
    quota = ClientQuota(entity={"user": None, "client-id": "c"}, quotas={"producer_byte_rate": 1.0})
    default = BrokerConfig(broker=None, name="num.io.threads", value="4")
    secret = BrokerConfig(broker=1, name="ssl.key.password", value=None)
    of_group = GroupConfig(group="billing", name="consumer.session.timeout.ms", value="45000")
    metrics = ClientMetrics(name="all", configs={"interval.ms": "1000", "metrics": ""})
    assert quota_values([quota]) == {((("client-id", "c"), ("user", None)), "producer_byte_rate"): 1.0}
    assert broker_config_values([default, secret]) == {(None, "num.io.threads"): "4", (1, "ssl.key.password"): None}
    assert group_config_values([of_group]) == {("billing", "consumer.session.timeout.ms"): "45000"}
    assert client_metrics_values([metrics]) == {("all", "interval.ms"): "1000", ("all", "metrics"): ""}
