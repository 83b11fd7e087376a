"""Selections of topics and groups, and what is said of one that matches nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbackup.archive.models import Group, Groups
from kbackup.archive.query.selection import Selection, check_selection
from kbackup.errors import UsageError
from kbackup.jobs import capture
from kbackup.kafka.control.cluster import Cluster
from tests.support.archives import group_at

TOPICS = ["orders", "payments", "__consumer_offsets"]


def refusal(include: list[str], exclude: list[str] | None = None, **more: Any) -> UsageError:
    with pytest.raises(UsageError) as refused:
        check_selection(Selection.of(include, exclude or []), "topic", TOPICS, "in A", "see ls", **more)
    return refused.value


@pytest.mark.parametrize(
    ("include", "exclude"),
    [
        ([], []),
        ([], ["/.*/"]),
        (["orders"], ["/nothing.*/", "nobody"]),
        (["/ord.*/", "/nothing-yet.*/"], []),
        (["__consumer_offsets"], []),
    ],
    ids=["all", "all-excluded", "useless-exclude", "one-of-two-patterns", "internal-by-name"],
)
def test_selections_without_an_error(include: list[str], exclude: list[str]) -> None:
    check_selection(Selection.of(include, exclude), "topic", TOPICS, "in A", "see ls")


@pytest.mark.parametrize(
    ("include", "message", "hint"),
    [
        (["odrers"], "there is no topic odrers in A", "did you mean orders?"),
        (["orders", "odrers"], "there is no topic odrers in A", "did you mean orders?"),
        (["/ord.*/", "xyz"], "there is no topic xyz in A", "see ls"),
        (["/odrers.*/"], "no topic in A matches /odrers.*/", "did you mean orders?"),
        (["/x/", "/y/"], "no topic in A matches /x/, /y/", "see ls; a regular expression must match the whole"),
        (["/__.*/"], "no topic in A matches /__.*/", "internal topics, which begin with __, take their exact"),
    ],
)
def test_filters_without_a_match_are_usage_errors(include: list[str], message: str, hint: str) -> None:
    refused = refusal(include)
    assert refused.message == message
    assert hint in refused.hint


def test_a_reason_that_is_known_is_the_hint() -> None:
    assert refusal(["odrers"], reasons={"odrers": "it was denied"}).hint == "it was denied"


def test_excluding_all_that_is_asked_for() -> None:
    assert "leave out every topic in A that orders selects" in refusal(["orders"], ["/o.*/"]).message


def test_where_regular_expressions_select_internal_topics() -> None:
    selection = Selection.of(["/__.*/"], [])
    check_selection(selection, "topic", TOPICS, "in A", "see ls", internal=True)
    check_selection(selection, "group", TOPICS, "in A", "see ls")


class FakeSource:
    """A cluster with topics and groups `there`."""

    def __init__(self, *there: str) -> None:
        self._names = there

    @property
    def cluster(self) -> Cluster:
        return cast(Cluster, self)

    @property
    def groups(self) -> FakeSource:
        return self

    def topic_names(self) -> list[str]:
        return list(self._names)

    def topics(self, names: list[str]) -> dict[str, str]:
        return {name: name for name in names}

    def listed(self) -> tuple[list[Any], dict[str, str]]:
        return [SimpleNamespace(group=g, type="consumer", state="empty") for g in self._names], {}

    def committed(self, groups: list[str], share: set[str]) -> tuple[dict[str, Any], dict[str, str]]:
        return {}, {}


def groups_of(
    *include: str, there: tuple[str, ...] = ("shipping",), before: Groups | None = None, later: bool = False
) -> dict[str, str]:
    selection = Selection.of(include, ())
    return capture.groups(FakeSource(*there).cluster, selection, set(), before, later).not_carried


def test_a_backup_of_groups_that_are_not_there() -> None:
    with pytest.raises(UsageError, match="there is no group shiping in the source cluster; did you mean shipping"):
        groups_of("shiping")
    with pytest.raises(UsageError, match=r"no group in the source cluster matches /x.*/"):
        groups_of("/x.*/")
    assert groups_of("/ship.*/") == {}


def test_groups_that_went_away_stop_no_later_backup() -> None:
    gone: tuple[Group, ...] = (group_at("billing", ("orders", 0, 1)), group_at("b2", ("orders", 0, 1)))
    before = Groups(captured_at="", groups=gone)
    why = "the source cluster has no such group"
    assert groups_of("billing", "shipping", before=before) == {"billing": why}
    assert groups_of("/b.*/", before=before) == {"/b.*/": why}
    for entry in ("billing", "/b.*/"):
        since = Groups(captured_at="", groups=(), not_carried={entry: why})
        assert groups_of(entry, before=since) == {entry: why}, "nor the one after it"
    with pytest.raises(UsageError, match="no group shiping"):
        groups_of("billing", "shiping", before=before)


def test_a_follower_waits_for_groups_and_for_topics_that_a_pattern_selects() -> None:
    assert list(groups_of("shiping", later=True)) == ["shiping"]
    source = FakeSource("orders").cluster
    assert capture.discover(source, Selection.of(["/later.*/"], []), None, later=True) == ({}, ["orders"])
    for later in (True, False):
        with pytest.raises(UsageError, match="no topic odrers in the source cluster; did you mean orders"):
            capture.discover(source, Selection.of(["odrers"], []), None, later)
    with pytest.raises(UsageError, match="no topic in the source cluster matches"):
        capture.discover(source, Selection.of(["/later.*/"], []), None)
