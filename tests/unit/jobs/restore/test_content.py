"""Groups that are asked for, renamed, or not to be had."""

from __future__ import annotations

import pytest

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, commit
from kbackup.archive.catalog.retention import lose_segments
from kbackup.archive.reader import open_archive
from kbackup.archive.restores.plan import RestorePlan
from kbackup.archive.run import open_or_create
from kbackup.archive.segments.writer import SegmentTarget
from kbackup.config.models import Restore
from kbackup.errors import RefusedError, UsageError
from kbackup.jobs.restore.plan import plan_restore, select_content
from kbackup.jobs.restore.report import make_report, planned
from kbackup.store.base import Store
from tests.support.archives import commit_point, group_at, make_archive, topic_state, write
from tests.support.memory_store import MemoryStore

WHY = "restore point 1 does not carry it: its coordinator did not answer"


@pytest.fixture
def store() -> Store:
    """Group shipping stands in orders-1, billing in clicks-0; two more could not be captured."""
    store = MemoryStore()
    archive = open_or_create(store)
    orders = [write(store, SegmentTarget("orders", 1, p, 1000, "none"), range(5)) for p in range(2)]
    clicks = write(store, SegmentTarget("clicks", 1, 0, 1000, "none"), range(5))
    states = [
        topic_state("clicks", 1, "present", [(0, 5, clicks)]),
        topic_state("orders", 1, "present", [(0, 5, held) for held in orders]),
    ]
    groups = [group_at("billing", ("clicks", 0, 5)), group_at("shipping", ("orders", 1, 4))]
    silent = dict.fromkeys(("returns", "test-1"), "its coordinator did not answer")
    commit_point(archive, 1, states, [*clicks, *orders[0], *orders[1]], groups, not_carried=silent)
    return store


def plan_of(store: Store, options: Restore) -> RestorePlan:
    return plan_restore(options, select_content(options, store), "target")


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


@pytest.mark.parametrize(
    ("options", "name", "why"),
    [
        (Restore(groups=("shiping",)), "shiping", "did you mean shipping?"),
        (Restore(groups=("/ship.*/", "shiping")), "shiping", "did you mean shipping?"),
        (Restore(map_group={"shiping": "shipping-test"}), "shiping", "did you mean shipping?"),
        (Restore(topics=("orders",), groups=("billing",)), "billing", "see 'kbackup groups show'"),
        (Restore(range=("orders:0:-",), groups=("shipping",)), "shipping", "see 'kbackup groups show'"),
        (Restore(groups=("returns",)), "returns", WHY),
        (Restore(map_group={"returns": "r"}), "returns", WHY),
    ],
)
def test_a_group_without_offsets_is_refused_by_name(store: Store, options: Restore, name: str, why: str) -> None:
    with pytest.raises(UsageError) as refused:
        plan_of(store, options)
    assert refused.value.message == f"there is no group {name} with offsets of what is restored"
    assert refused.value.hint.startswith(why)


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        (Restore(topics=("odrers",)), "there is no topic odrers in restore point 1", "did you mean orders?"),
        (Restore(range=("odrers:0:-",)), "there is no topic odrers in restore point 1", "did you mean orders?"),
        (Restore(topics=("/x.*/",)), "no topic in restore point 1 matches /x.*/", "see 'kbackup info'"),
        (Restore(groups=("/x.*/",)), "no group with offsets of what is restored matches /x.*/", "--no-groups"),
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
    ],
)
def test_filters_without_a_match_are_refused(store: Store, options: Restore, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        plan_of(store, options)
    assert refused.value.message == message
    assert hint in refused.value.hint


def test_a_rule_that_an_earlier_one_or_a_name_takes_precedence_over_matches_all_the_same(store: Store) -> None:
    plan = plan_of(store, Restore(map={"orders": "o"}, map_regex=("^c=d", "^clicks$=never", "^orders$=never")))
    assert {t.source: t.target for t in plan.topics} == {"orders": "o", "clicks": "dlicks"}


def test_without_groups_their_names_are_nothing_to_check(store: Store) -> None:
    plan = plan_of(store, Restore(no_groups=True, groups=("shiping",), map_group={"x": "y"}))
    assert (plan.groups, plan.group_warnings) == ((), [])


def test_groups_that_could_not_be_captured_are_warned_of_where_they_are_selected(store: Store) -> None:
    plan = plan_of(store, Restore(exclude_groups=("/test-.*/",)))
    assert targets(plan) == {"billing": "billing", "shipping": "shipping"}
    report = make_report(plan, "", planned(plan), (), ["and more"], {}, "planned")
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
    report = make_report(plan, "", planned(plan), (), [], {}, "restored")
    assert said in report.missing
    with pytest.raises(RefusedError, match=r"offsets 15 to .* of orders-0: is missing"):
        plan_of(store, Restore(strict=True))
    for options in (
        Restore(strict=True, topics=("clicks",)),
        Restore(strict=True, range=("orders:0:0-9",)),
        Restore(strict=True, restore_point=1),
    ):
        assert plan_of(store, options).damaged == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Restore(to_time="1999-01-01T00:00:00Z"), "records with --to-time 1999-01-01T00:00:00Z"),
        (
            Restore(from_time="1998-01-01T00:00:00Z", to_time="1999-01-01T00:00:00Z"),
            "records with --from-time 1998-01-01T00:00:00Z and --to-time 1999-01-01T00:00:00Z",
        ),
        (Restore(exclude_topics=("/.*/",)), "no topic of the archive matches"),
    ],
)
def test_no_topics_are_refused_with_the_bounds_in_time(store: Store, options: Restore, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        plan_of(store, options)
    assert refused.value.message.endswith(message)
