"""ACLs that a target lacks, under the names of the target."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.jobs.settings.plan import Names, SkippedSetting, Target, map_acls, plan_settings
from kbackup.metadata.entities import (
    Acl,
)
from tests.support.settings_plans import EMPTY, RENAMED, SAME, acl, archived

ACLS = st.builds(
    acl,
    st.sampled_from(["topic", "group", "cluster", "transactional_id"]),
    st.sampled_from(["orders", "clicks", "swap", "other", "billing", "future", "*", "ord"]),
    st.sampled_from(["literal", "prefixed"]),
    permission=st.sampled_from(["allow", "deny"]),
)


@given(st.sets(ACLS), st.sets(ACLS))
def test_missing_acls_are_planned(acls: set[Acl], there: set[Acl]) -> None:
    before = archived(acls=tuple(acls))
    planned = plan_settings(["acls"], before, RENAMED, Target("h:1", [1], acls=there))
    mapped, skipped = map_acls(acls, RENAMED)
    assert {*planned.acls} == mapped - there
    assert len({*planned.acls}) == len(planned.acls)
    again = plan_settings(["acls"], before, RENAMED, Target("h:1", [1], acls=there | {*planned.acls}))
    assert again.acls == ()
    permissions = [a.permission for a in planned.acls]
    assert permissions == sorted(permissions, reverse=True)  # a denial never comes after what it denies
    assert len(skipped) == sum(
        a.name == "clicks" and (a.resource, a.pattern) == ("topic", "literal") for a in acls
    )


@given(st.sets(ACLS))
def test_without_new_names_acls_stay_as_they_are(acls: set[Acl]) -> None:
    assert map_acls(acls, Names({"orders": "orders"}, frozenset(), {})) == (acls, [])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (acl("topic", "orders"), acl("topic", "restored.orders")),
        (acl("topic", "swap"), acl("topic", "other")),
        (acl("topic", "future"), acl("topic", "future")),
        (acl("topic", "orders", "prefixed"), acl("topic", "orders", "prefixed")),
        (acl("topic", "*"), acl("topic", "*")),
        (acl("group", "billing"), acl("group", "drill")),
        (acl("group", "orders"), acl("group", "orders")),
        (acl("transactional_id", "orders"), acl("transactional_id", "orders")),
        (acl("cluster", "kafka-cluster"), acl("cluster", "kafka-cluster")),
    ],
)
def test_names_of_acls(before: Acl, after: Acl) -> None:
    assert map_acls([before], RENAMED) == ({after}, [])


def test_an_acl_of_a_topic_that_is_not_restored_is_left_out_by_name() -> None:
    planned = plan_settings(["acls"], archived(acls=(acl("topic", "clicks"),)), RENAMED, EMPTY)
    what = "ACL: allow read for User:a from * on topic clicks (literal)"
    assert planned.not_carried == (SkippedSetting(what=what, why="the topic is not restored"),)
    assert planned.acls == ()


def test_patterns_are_pointed_out_where_names_change() -> None:
    patterns = archived(acls=(acl("topic", "ord", "prefixed"), acl("group", "*"), acl("topic", "orders")))
    said = " ".join(plan_settings(["acls"], patterns, RENAMED, EMPTY).warnings)
    assert "topic ord (prefixed)" in said
    assert "group * (any)" in said
    assert plan_settings(["acls"], patterns, SAME, EMPTY).warnings == ()
