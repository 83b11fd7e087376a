"""Select and plan what comes back: names, units, groups, timestamps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, commit
from kbackup.archive.catalog.retention import lose_segments
from kbackup.archive.models import Group, GroupOffset, dump, load
from kbackup.archive.query.content import ArchivedPartition, ArchivedTopic, Content
from kbackup.archive.query.java import java_content
from kbackup.archive.query.selection import Selection
from kbackup.archive.reader import open_archive
from kbackup.archive.restores.plan import LogBounds, RestorePlan
from kbackup.archive.run import open_or_create
from kbackup.archive.segments.table import Segment, bounds
from kbackup.archive.segments.writer import SegmentTarget
from kbackup.config.models import Restore
from kbackup.errors import MismatchError, RefusedError, UsageError
from kbackup.jobs.groups.plan import map_groups
from kbackup.jobs.restore.plan import (
    UNIT_BYTES,
    UNIT_PARTITIONS,
    check_names,
    count_range,
    make_units,
    plan_restore,
    plan_topic,
    progress_groups,
    select_content,
    timed_ranges,
    with_counts,
)
from kbackup.jobs.restore.request import RestoreRequest, TopicNames
from kbackup.jobs.restore.resume import check_same_options, excluded_targets, resumed_plan
from kbackup.metrics.registry import Silent
from kbackup.spark.tasks import ProgressSender
from kbackup.store.base import Store
from kbackup.store.file import FileStore
from tests.golden.java_archive import PARTITIONS, ROOT
from tests.support.archives import (
    an_archived_topic,
    commit_point,
    group_at,
    make_archive,
    restore_plan,
    topic_state,
    write,
)
from tests.support.made_segments import a_segment
from tests.support.memory_store import MemoryStore
from tests.support.restores import a_report, make_plan


def segment(topic: str, partition: int, size: int) -> Segment:
    return a_segment(topic, partition=partition, bytes=size, stored=size)


def content(sizes: dict[str, list[int]], groups: dict[str, tuple[GroupOffset, ...]] | None = None) -> Content:
    topics: list[ArchivedTopic] = []
    for name, each in sizes.items():
        partitions = [
            ArchivedPartition(n, 0, 10, (segment(name, n, size),) if size else ()) for n, size in enumerate(each)
        ]
        topics.append(an_archived_topic(name, partitions, {"retention.ms": "5"}, replication_factor=3))
    return Content(
        "x", 1, tuple(topics), {g: Group(group=g, type="", state="", offsets=o) for g, o in (groups or {}).items()}
    )


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
    assert TopicNames.of(exact, patterns).target_of("orders") == name


def test_names_that_collide_or_are_illegal_are_refused_by_name() -> None:
    with pytest.raises(RefusedError, match="topics a and b would both become c"):
        check_names({"a": "c", "b": "c"})
    for bad in ("", "..", "a b", "x" * 250, "ü"):
        with pytest.raises(UsageError, match="topic a can't be restored as"):
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


def test_with_the_same_offsets_a_log_without_records_is_filled_if_it_does_not_begin_at_0() -> None:
    never_filled = ArchivedPartition(0, 0, 0, ())
    expired = ArchivedPartition(1, 7, 7, ())
    made = replace(content({}), topics=(an_archived_topic("orders", [never_filled, expired]),))
    assert make_units(made, {"orders": "copy"}) == ()
    ((unit,),) = make_units(made, {"orders": "copy"}, same_offsets=True)
    assert (unit.partition, unit.log) == (1, LogBounds(start=7, end=7))


def test_small_partitions_between_big_ones_share_a_unit() -> None:
    made = content({"mixed": [10, UNIT_BYTES, 10, UNIT_BYTES + 1, 10]})
    units = make_units(made, {"mixed": "copy"})
    assert [[p.partition for p in unit] for unit in units] == [[3], [1], [0, 2, 4]]


@pytest.mark.parametrize(
    ("units", "groups"), [(0, 1), (1, 1), (64, 1), (65, 2), (128, 2), (129, 3), (3200, 50), (40_000, 50)]
)
def test_progress_is_in_a_group_for_every_64_units(units: int, groups: int) -> None:
    names = restore_plan(progress_groups=progress_groups(units)).progress_group_names
    assert names == ("kbackup-restore-r", *(f"kbackup-restore-r@{n}" for n in range(1, groups)))


def test_the_plan_keeps_how_many_groups_have_the_progress() -> None:
    for transactions, units, groups in ((True, 129, 3), (True, 64, UNSET), (False, 129, UNSET)):
        made = content({"big": [UNIT_BYTES] * units})
        plan = plan_restore(RestoreRequest.of(Restore(transactions=transactions)), made, "c")
        assert plan.progress_groups == groups
        data = dump(plan)
        assert (b"progress_groups" in data) == (groups is not UNSET), "of one group: as versions up to 0.2 wrote it"
        assert load(RestorePlan, data, "plan.json").progress_group_names == plan.progress_group_names


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


def test_selection_by_name_regex_and_exclusion_internal_ones_only_by_name() -> None:
    names = ["orders", "orders.v1", "pay", "__consumer_offsets", "_schemas"]
    assert Selection.of([], []).topics(names) == ["_schemas", "orders", "orders.v1", "pay"]
    assert Selection.of(["orders"], []).topics(names) == ["orders"]
    assert Selection.of(["/orders.*/", "pay"], ["orders.v1"]).topics(names) == ["orders", "pay"]
    assert Selection.of(["/.*/"], []).topics(names) == ["_schemas", "orders", "orders.v1", "pay"]
    assert Selection.of(["__consumer_offsets"], []).topics(names) == ["__consumer_offsets"]
    assert Selection.of(["ord.rs"], []).topics(["orders"]) == []


WHY = "restore point 1 does not have it: its coordinator did not answer"


@pytest.fixture
def store() -> Store:
    """Group shipping stands in orders-1, billing in clicks-0; two more could not be captured."""
    store = MemoryStore()
    archive = open_or_create(store)
    orders = [write(store, SegmentTarget("orders", 1, p, 1000, "none"), range(5)) for p in range(2)]
    clicks = write(store, SegmentTarget("clicks", 1, 0, 1000, "none"), range(5))
    states = [topic_state("clicks", [(0, 5, clicks)]), topic_state("orders", [(0, 5, held) for held in orders])]
    groups = [group_at("billing", ("clicks", 0, 5)), group_at("shipping", ("orders", 1, 4))]
    silent = dict.fromkeys(("returns", "test-1"), "its coordinator did not answer")
    commit_point(
        archive, 1, topics=states, segments=[*clicks, *orders[0], *orders[1]], groups=groups, not_carried=silent
    )
    return store


def plan_of(store: Store, options: Restore) -> RestorePlan:
    return make_plan(options, store, "target")


def targets(plan: RestorePlan) -> dict[str, str]:
    return {g.source: g.target for g in plan.groups}


def test_a_group_is_asked_for_and_renamed_by_its_name(store: Store) -> None:
    assert targets(plan_of(store, Restore(groups=("shipping",)))) == {"shipping": "shipping"}
    both = {"billing": "b", "shipping": "s"}
    assert targets(plan_of(store, Restore(map_group=both))) == both
    only = plan_of(store, Restore(groups=("shipping",), map_group=both))
    assert targets(only) == {"shipping": "s"}, "a new name for one that is not asked for does no harm"
    ranged = plan_of(store, Restore(range=("orders:1:-",), map_group={"shipping": "s"}))
    assert targets(ranged) == {"shipping": "s"}
    without = plan_of(store, Restore(no_groups=True, groups=("shiping",), map_group={"x": "y"}))
    assert (without.groups, without.group_warnings) == ((), []), "there is nothing to check then"


BEFORE_IT_BEGINS = (
    "1999-01-01T00:00:00.000Z is before the archive begins: its oldest restore point is of 2026-01-01T00:00:00.000Z, "
    "its earliest record of 2023-11-14T22:13:20.000Z"
)


def no_group(name: str) -> str:
    return f"there is no group {name} with offsets of what is restored"


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        (Restore(groups=("shiping",)), no_group("shiping"), "did you mean shipping?"),
        (Restore(groups=("/ship.*/", "shiping")), no_group("shiping"), "did you mean shipping?"),
        (Restore(map_group={"shiping": "shipping-test"}), no_group("shiping"), "did you mean shipping?"),
        (Restore(topics=("orders",), groups=("billing",)), no_group("billing"), "see 'kbackup groups show'"),
        (Restore(range=("orders:0:-",), groups=("shipping",)), no_group("shipping"), "see 'kbackup groups show'"),
        (Restore(groups=("returns",)), no_group("returns"), WHY),
        (Restore(map_group={"returns": "r"}), no_group("returns"), WHY),
        (Restore(topics=("odrers",)), "there is no topic odrers in restore point 1", "did you mean orders?"),
        (Restore(range=("odrers:0:-",)), "there is no topic odrers in restore point 1", "did you mean orders?"),
        (Restore(topics=("/x.*/",)), "no topic in restore point 1 matches /x.*/", "see 'kbackup info'"),
        (Restore(groups=("/x.*/",)), "no group with offsets of what is restored matches /x.*/", "see 'kbackup groups"),
        (Restore(map={"odrers": "x"}), "--map names topic odrers, which is not restored", "did you mean orders?"),
        (
            Restore(map_regex=("^=test.", "^odrers$=x")),
            "--map-regex '^odrers$=x' matches no topic that is restored",
            "did you mean orders?",
        ),
        (
            Restore(topics=("clicks",), map_regex=("^z=x",)),
            "--map-regex '^z=x' matches no topic that is restored",
            "see 'kbackup info'",
        ),
        (Restore(to_time="1999-01-01T00:00:00Z"), BEFORE_IT_BEGINS, "give a later time"),
        (
            Restore(from_time="1998-01-01T00:00:00Z", to_time="1999-01-01T00:00:00Z"),
            BEFORE_IT_BEGINS,
            "give a later time",
        ),
        (Restore(exclude_topics=("/.*/",)), "no topic of the archive matches", "run 'kbackup info'"),
    ],
)
def test_filters_without_a_match_are_refused(store: Store, options: Restore, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        plan_of(store, options)
    assert refused.value.message == message
    assert refused.value.hint.startswith(hint)


def test_a_rule_that_an_earlier_one_or_a_name_takes_precedence_over_matches_all_the_same(store: Store) -> None:
    plan = plan_of(store, Restore(map={"orders": "o"}, map_regex=("^c=d", "^clicks$=never", "^orders$=never")))
    assert {t.source: t.target for t in plan.topics} == {"orders": "o", "clicks": "dlicks"}


def test_groups_that_could_not_be_captured_are_warned_of_where_they_are_selected(store: Store) -> None:
    plan = plan_of(store, Restore(exclude_groups=("/test-.*/",)))
    assert targets(plan) == {"billing": "billing", "shipping": "shipping"}
    report = a_report(plan, warnings=["and more"], status="planned")
    assert report.warnings == (f"group returns: {WHY}", "and more")
    assert plan_of(store, Restore(groups=("/ship.*/",))).group_warnings == []


def test_lost_records_are_reported_missing_and_refused_when_strict() -> None:
    """A restore that does not ask for the lost offsets lacks nothing."""
    store = MemoryStore()
    make_archive(store)
    archive = open_archive(store)
    lost = f"{layout.topic_dir('orders')}{layout.segment_stem(0, 15)}_records"
    author = Author("repair", "", "test")
    commit(store, archive.committed, lambda state: lose_segments(state, {lost: "is missing"}), author)
    plan = plan_of(store, Restore())
    (said,) = plan.damaged
    assert "offsets 15 to" in said
    report = a_report(plan)
    assert said in report.missing
    with pytest.raises(RefusedError, match=r"offsets 15 to .* of orders-0: is missing"):
        plan_of(store, Restore(strict=True))
    for options in (
        Restore(strict=True, topics=("clicks",)),
        Restore(strict=True, range=("orders:0:0-9",)),
        Restore(strict=True, restore_point=1),
    ):
        assert plan_of(store, options).damaged == ()


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The tasks that were run, here and not by Spark."""
    ran: list[Any] = []

    def run_here(spark: Any, tasks: Sequence[Any], work: Any, show: Any) -> list[Any]:
        ran.extend(tasks)
        return [result for task in tasks for result in work(task, ProgressSender(None, 0))]

    monkeypatch.setattr("kbackup.spark.tasks.run_tasks", run_here)
    return ran


def test_unknown_timestamps_are_read_once(tasks: list[Any]) -> None:
    store = FileStore(ROOT / "archive")
    content = java_content(store, sorted({p.topic for p in PARTITIONS}))
    ranges = [part for unit in make_units(content, {t.name: t.name for t in content.topics}) for part in unit]
    timed = timed_ranges(ranges, store, lambda: None, Silent())  # type: ignore[arg-type, return-value] # unused
    found = {(part.topic, part.partition): bounds(part.segments, "min_timestamp", "max_timestamp") for part in timed}
    truth = {(p.topic, p.number): [r.timestamp for r in p.truth() if r.timestamp is not None] for p in PARTITIONS}
    known = {place: (min(stamps, default=None), max(stamps, default=None)) for place, stamps in truth.items()}
    assert found == {place: known[place] for place in found}
    assert any(low is not None for low, _ in found.values())
    assert len(tasks) == 1, "small segments share a task"
    again = timed_ranges(timed, store, lambda: None, Silent())  # type: ignore[arg-type, return-value] # unused
    assert (again, len(tasks)) == (timed, 1)


@pytest.fixture
def two_points() -> Store:
    store = MemoryStore()
    make_archive(store)
    return store


def test_skipped_records_are_left_out_and_counted(two_points: Store) -> None:
    """Only the second segment of partition 0 has gaps, and it is read whole."""
    options = Restore(skip=("orders:0:3", "orders:1:5-8"))
    plan = make_plan(options, two_points, "c")
    windows = {part.partition: part.window for unit in plan.units for part in unit}
    assert windows[0] is not None
    assert windows[0].ranges == ((0, 3), (4, 2**63 - 1))
    (topic,) = plan.topics
    assert (topic.records, topic.exact) == (34 - 1 + 12 - 3, True)
    assert {g.source for g in plan.groups} == {"billing", "late"}
    assert plan.choice is not None
    assert plan.choice.skipped == ("orders:0:3", "orders:1:5-8")


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        (Restore(skip=("ordesr:0:3",)), "--skip ordesr:0:3: topic ordesr is not restored", "orders"),
        (Restore(skip=("orders:7:3",)), "--skip orders:7:3: topic orders has no partition 7", "3 archived"),
        (Restore(skip=("orders:1:12",)), "--skip orders:1:12: orders-1 is archived from 0 to 12", "keep to that"),
        (Restore(skip=("orders:1:12-",)), "--skip orders:1:12-: orders-1 is archived from 0 to 12", "keep to that"),
        (Restore(range=("orders:1:12-",)), "--range orders:1:12-: orders-1 is archived from 0 to 12", "keep to that"),
        (Restore(map={"orders": ""}), "topic orders can't be restored as ''", "1 to 249 letters"),
        (Restore(map_group={"billing": ""}), "group billing can't get an empty name", "--map-group"),
        (Restore(where=".value > now"), "--where .value > now can't be used: now is not the same", "fields"),
        (Restore(where=".value ="), "--where .value = can't be used", "expression"),
        (
            Restore(to_time="2024-01-01T00:00:00Z", groups=("billing",), topics=("orders",)),
            "group billing can't be restored: no restore point was captured",
            "--no-groups",
        ),
    ],
)
def test_windows_that_can_not_be_meant(two_points: Store, options: Restore, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        make_plan(options, two_points, "c")
    assert message in raised.value.message
    assert hint in raised.value.hint


def test_a_range_of_an_empty_partition_has_no_records_and_is_no_mistake(two_points: Store) -> None:
    plan = make_plan(Restore(range=("orders:1:3-5", "orders:2:0-")), two_points, "c")
    (topic,) = plan.topics
    assert topic.records == 2


def test_an_expression_selects_and_is_counted(two_points: Store) -> None:
    options = Restore(where=".offset % 2 == 0", topics=("orders",))
    content = with_counts(
        select_content(RestoreRequest.of(options), two_points),
        lambda ranges: [count_range(two_points, r) for r in ranges],
    )
    plan = plan_restore(RestoreRequest.of(options), content, "c")
    assert plan.exact
    assert plan.records == len([n for n in (*range(10), 15, *range(17, 40), *range(12)) if n % 2 == 0])
    bad = Restore(where=".offset | error", topics=("orders",))
    with pytest.raises(UsageError, match=r"--where \.offset \| error fails for record orders:0:0"):
        with_counts(
            select_content(RestoreRequest.of(bad), two_points),
            lambda ranges: [count_range(two_points, r) for r in ranges],
        )


def test_a_restore_of_before_has_the_same_options_as_now() -> None:
    """Its plan lacks the keys that came since."""
    plan = plan_restore(RestoreRequest.of(Restore(topics=("a",))), content({"a": [1]}), "c")
    assert plan.options is not None
    old = {name: value for name, value in plan.options.items() if name not in ("skip", "where")}
    before = msgspec.structs.replace(plan, options=old)
    check_same_options(before, RestoreRequest.of(Restore(topics=("a",))))
    with pytest.raises(MismatchError, match="skip was unset, now"):
        check_same_options(before, RestoreRequest.of(Restore(topics=("a",), skip=("a:0:1",))))


def test_a_config_that_is_given_as_empty_is_taken_away() -> None:
    archived = an_archived_topic("a", configs={"retention.ms": "5", "segment.bytes": "1"})
    planned = plan_topic(archived, "a", {"segment.bytes": "", "cleanup.policy": "compact"}, None)
    assert planned.configs == {"retention.ms": "5", "cleanup.policy": "compact"}


def test_without_transactions_a_unit_has_one_topic_alone() -> None:
    """Where a topic fails, nobody would know how far the others of its unit came."""
    small = content({"a": [1, 1], "b": [1, 1]})
    names = {"a": "a", "b": "b"}
    assert [{part.topic for part in unit} for unit in make_units(small, names)] == [{"a", "b"}]
    alone = [{part.topic for part in unit} for unit in make_units(small, names, transactions=False)]
    assert alone == [{"a"}, {"b"}]


def test_a_resumed_plan_has_the_configs_that_are_given_now() -> None:
    plan = plan_restore(RestoreRequest.of(Restore(topic_config={"retention.ms": "5"})), content({"a": [1]}), "c")
    options = Restore(topic_config={"retention.ms": "", "cleanup.policy": "delete"}, replication_factor=2)
    (topic,) = resumed_plan(plan, RestoreRequest.of(options)).topics
    assert (topic.configs, topic.replication_factor) == ({"cleanup.policy": "delete"}, 2)
    assert excluded_targets(plan, RestoreRequest.of(Restore(exclude_topics=("/a+/",)))) == {"a": "a"}
    assert excluded_targets(plan, RestoreRequest.of(Restore(exclude_topics=("b",)))) == {}
