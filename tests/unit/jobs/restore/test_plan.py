"""Names, units and groups of a restore."""

from __future__ import annotations

import pytest

from kbackup.archive.models import GroupOffset, dump, load
from kbackup.archive.query.content import ArchivedPartition, ArchivedTopic, Content
from kbackup.archive.query.selection import Selection
from kbackup.archive.restores.plan import RestorePlan
from kbackup.archive.segments.table import Segment
from kbackup.errors import RefusedError, UsageError
from kbackup.jobs.groups.plan import map_groups
from kbackup.jobs.restore.plan import UNIT_BYTES, UNIT_PARTITIONS, check_names, make_units, plan_topic, target_name


def segment(topic: str, partition: int, size: int) -> Segment:
    key = f"topics/{topic}/segment_partition_{partition:03d}_from_offset_0000000000_records"
    return Segment(topic, 1, partition, 0, 9, 10, size, size, 1, 2, 30, "0" * 16, "0" * 16, key)


def content(sizes: dict[str, list[int]], groups: dict[str, tuple[GroupOffset, ...]] | None = None) -> Content:
    topics = tuple(
        ArchivedTopic(
            name,
            1,
            1,
            "present",
            tuple(
                ArchivedPartition(n, 0, 10, (segment(name, n, size),) if size else ()) for n, size in enumerate(each)
            ),
            {"retention.ms": "5"},
            3,
        )
        for name, each in sizes.items()
    )
    return Content("x", 1, topics, groups or {})


@pytest.mark.parametrize(
    ("exact", "patterns", "name"),
    [
        ({}, (), "orders"),
        ({"orders": "o2"}, (r"^(.*)$=x.\1",), "o2"),
        ({}, (r"^(.*)$=restored.\1",), "restored.orders"),
        ({}, ("^pay=p", "ders$=der"), "order"),
    ],
)
def test_target_names(exact: dict[str, str], patterns: tuple[str, ...], name: str) -> None:
    assert target_name("orders", exact, patterns) == name


def test_names_that_collide_or_are_illegal_are_refused_by_name() -> None:
    with pytest.raises(RefusedError, match="topics a and b would both become c"):
        check_names({"a": "c", "b": "c"})
    for bad in ("", "..", "a b", "x" * 250, "ü"):
        with pytest.raises(RefusedError, match="topic a can't be restored as"):
            check_names({"a": bad})
    check_names({"a": "b", "b": "a"})


def test_units_hold_every_partition_with_records_once_big_ones_alone() -> None:
    made = content({"big": [UNIT_BYTES * 3, UNIT_BYTES + 1], "small": [10] * (UNIT_PARTITIONS + 5), "empty": [0, 0]})
    units = make_units(made, {t.name: t.name for t in made.topics})
    parts = [(p.topic, p.partition) for unit in units for p in unit]
    assert sorted(parts) == sorted([("big", 0), ("big", 1), *(("small", n) for n in range(UNIT_PARTITIONS + 5))])
    assert [len(unit) for unit in units[:2]] == [1, 1]
    assert max(len(unit) for unit in units) <= UNIT_PARTITIONS
    assert sum(s.bytes for p in units[0] for s in p.segments) == UNIT_BYTES * 3


def test_overrides_win_over_archived_configs_and_replication() -> None:
    (topic,) = content({"orders": [1]}).topics
    planned = plan_topic(topic, "o2", {"retention.ms": "-1", "x": "y"}, 1)
    assert (planned.configs, planned.replication_factor) == ({"retention.ms": "-1", "x": "y"}, 1)
    assert plan_topic(topic, "o2", {}, None).replication_factor == 3


def test_groups_are_selected_renamed_and_kept_to_restored_topics() -> None:
    offsets = (GroupOffset(topic="orders", partition=0, offset=4), GroupOffset(topic="other", partition=0, offset=4))
    made = content({"orders": [5]}, {"g": offsets, "h": offsets[1:], "test-1": offsets})
    planned = map_groups(made, {"orders": "orders"}, Selection.of([], ["/test-.*/"]), {"g": "g2"})
    assert [(g.source, g.target, len(g.offsets)) for g in planned] == [("g", "g2", 1)]
    assert map_groups(made, {"orders": "orders"}, None, {}) == ()
    with pytest.raises(RefusedError, match="groups g and test-1 would both become z"):
        map_groups(made, {"orders": "orders"}, Selection(), {"g": "z", "test-1": "z"})


def test_a_plan_survives_its_file() -> None:
    made = content({"orders": [5, 6]}, {"g": (GroupOffset(topic="orders", partition=0, offset=4),)})
    names = {"orders": "o"}
    plan = RestorePlan(
        restore_id="r",
        archive_id="x",
        restore_point=1,
        target_cluster_id="c",
        created_at="",
        transactions=True,
        transaction_bytes=1,
        into_existing=False,
        topics=tuple(plan_topic(t, names[t.name], {}, None) for t in made.topics),
        units=make_units(made, names),
        groups=map_groups(made, names, Selection(), {}),
    )
    again = load(RestorePlan, dump(plan), "plan.json")
    assert (again.units, again.groups, again.topics) == (plan.units, plan.groups, plan.topics)


@pytest.mark.parametrize("pattern", ["/(/", "/[/"])
def test_a_bad_expression_is_a_usage_error(pattern: str) -> None:
    with pytest.raises(UsageError, match="is not a regular expression"):
        Selection.of([pattern], [])


def test_selection_by_name_regex_and_exclusion_internal_ones_only_by_name() -> None:
    names = ["orders", "orders.v1", "pay", "__consumer_offsets", "_schemas"]
    assert Selection.of([], []).topics(names) == ["_schemas", "orders", "orders.v1", "pay"]
    assert Selection.of(["orders"], []).topics(names) == ["orders"]
    assert Selection.of(["/orders.*/", "pay"], ["orders.v1"]).topics(names) == ["orders", "pay"]
    assert Selection.of(["/.*/"], []).topics(names) == ["_schemas", "orders", "orders.v1", "pay"]
    assert Selection.of(["__consumer_offsets"], []).topics(names) == ["__consumer_offsets"]
    assert Selection.of(["ord.rs"], []).topics(["orders"]) == []
