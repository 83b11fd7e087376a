"""A drill deletes its own topics and groups alone: on a cluster in memory, with restores that are made up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest

from kbackup.archive.catalog.commit import Author, commit
from kbackup.archive.catalog.retention import lose_segments
from kbackup.archive.models import GroupOffset
from kbackup.archive.query.content import Content
from kbackup.archive.reader import open_archive
from kbackup.archive.run import open_or_create
from kbackup.archive.segments.writer import SegmentTarget
from kbackup.cli.drill import drill_page
from kbackup.config.models import Restore
from kbackup.errors import ClusterError
from kbackup.jobs.drill.job import DrillRequest, DrillTools, drill, scratch_options, with_fixed_choice
from kbackup.jobs.drill.report import DrillReport
from kbackup.jobs.restore.job import RestoreResources, RestoreScreen
from kbackup.jobs.restore.plan import plan_restore, select_content
from kbackup.jobs.restore.report import RestoreReport
from kbackup.jobs.restore.request import RestoreRequest
from kbackup.kafka.control.groups import GroupInfo
from kbackup.metrics.registry import Silent
from kbackup.store import Store
from tests.support.archives import commit_point, group_at, make_archive, topic_state, write
from tests.support.memory_store import MemoryStore

PREFIX = "drill-x."
OFFSET = GroupOffset(topic="orders", partition=0, offset=1, leader_epoch=None, metadata="")


@dataclass
class Cluster:
    """Topics and groups by name; `unheard` is why a broker does not list its groups."""

    topics: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    unheard: str = ""

    def connect(self) -> tuple[str, int]:
        return "target", 1

    def topic_names(self) -> list[str]:
        return sorted(self.topics)

    def delete_topics(self, names: Iterable[str]) -> dict[str, str]:
        self.topics -= set(names)
        return dict.fromkeys(names, "")

    @property
    def groups(self) -> Cluster:
        return self

    def listed(self) -> tuple[list[GroupInfo], dict[str, str]]:
        failed = {"(listing 1)": self.unheard} if self.unheard else {}
        return [GroupInfo(name, "classic", "empty") for name in sorted(self.names)], failed

    def delete_each(self, groups: Iterable[str]) -> dict[str, str]:
        self.names -= set(groups)
        return dict.fromkeys(groups, "")


class Restoring:
    """In the place of `restore`. Others make `early` topics before its plan is shown and `late` ones after it, when a
    broker may be `unheard`; then it ends with an error. `content` is what it restores, by default what was chosen."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.content: Content | None = None
        self.early: set[str] = set()
        self.late: set[str] = set()
        self.refused = False
        self.unheard = ""

    def __call__(
        self, request: RestoreRequest, resources: RestoreResources, screen: RestoreScreen | None = None
    ) -> RestoreReport:
        assert screen is not None
        plan = plan_restore(request, self.content or select_content(request, resources.store), "target")
        self.cluster.topics |= self.early
        if self.refused:
            raise ClusterError("the preflight said no")
        screen.show_plan(plan, [])
        self.cluster.unheard = self.unheard
        self.cluster.topics |= {t.target for t in plan.topics} | self.late
        self.cluster.names |= {*(g.target for g in plan.groups), *plan.progress_group_names}
        raise ClusterError("the target gave up")


@pytest.fixture
def cluster() -> Cluster:
    return Cluster({"orders"}, {"shipping"})


@pytest.fixture
def restoring(cluster: Cluster) -> Restoring:
    return Restoring(cluster)


@pytest.fixture
def archive() -> Store:
    """Two restore points of topic orders with group shipping."""
    store = MemoryStore()
    _commit(store, 1, range(10), "shipping")
    _commit(store, 2, range(10, 20), "shipping")
    return store


def _drill(store: Store, restoring: Restoring, options: Restore | None = None, **asked: Any) -> DrillReport:
    target: Any = restoring.cluster
    tools = DrillTools(lambda properties, role: target, restoring, quiet_seconds=0.02)
    wanted = DrillRequest(RestoreRequest.of(options or Restore()), PREFIX, **asked)
    return drill(wanted, {}, store, store, pytest.fail, Silent(), lambda report: None, tools)


def _error(report: DrillReport) -> str:
    return report.error.message if report.error is not None else ""


def test_drill_deletes_its_topics_and_names_others(cluster: Cluster, restoring: Restoring, archive: Store) -> None:
    restoring.late = {f"{PREFIX}application"}
    report = _drill(archive, restoring)
    assert _error(report) == "the target gave up"
    assert (cluster.topics, cluster.names) == ({"orders", f"{PREFIX}application"}, {"shipping"})
    assert report.left == ()
    assert report.warnings == (
        f"topic {PREFIX}application has the drill's prefix, but is not of the drill: it was left alone",
    )


@pytest.mark.parametrize("refused", [True, False])
def test_where_another_was_quicker_it_deletes_nothing(
    cluster: Cluster, restoring: Restoring, archive: Store, refused: bool
) -> None:
    restoring.early, restoring.refused = {f"{PREFIX}orders"}, refused
    report = _drill(archive, restoring)
    assert _error(report) == (
        "the preflight said no" if refused else f"prefix '{PREFIX}' is not free: topic {PREFIX}orders"
    )
    assert cluster.topics == {"orders", f"{PREFIX}orders"}


def test_drill_keeps_only_its_own_topics_and_groups(cluster: Cluster, restoring: Restoring, archive: Store) -> None:
    restoring.late = {f"{PREFIX}application"}
    assert _drill(archive, restoring, retain=True).kept == (f"topic {PREFIX}orders", f"group {PREFIX}shipping")


def test_groups_that_are_not_listed_are_not_taken_for_free_names(
    cluster: Cluster, restoring: Restoring, archive: Store
) -> None:
    cluster.unheard = "broker 2 is down"
    report = _drill(archive, restoring)
    assert _error(report) == "not every group of the target could be listed: broker 2 is down"
    assert cluster.topics == {"orders"}


def test_groups_are_deleted_also_where_they_can_not_be_listed_any_more(
    cluster: Cluster, restoring: Restoring, archive: Store
) -> None:
    restoring.unheard = "broker 2 is down"
    report = _drill(archive, restoring)
    assert (cluster.topics, cluster.names, report.left) == ({"orders"}, {"shipping"}, ())
    assert report.warnings == (
        f"whether others have names {PREFIX}* could not be seen: "
        "not every group of the target could be listed: broker 2 is down",
    )


def test_a_group_without_a_scratch_name_ends_it_before_anything_is_made(
    cluster: Cluster, restoring: Restoring, archive: Store
) -> None:
    chosen = select_content(RestoreRequest.of(Restore()), archive)
    late = group_at("late", ("orders", 0, 1))
    restoring.content = replace(chosen, groups={**chosen.groups, "late": late})
    report = _drill(archive, restoring)
    assert _error(report) == "late was added to the archive while the drill began: it has no scratch name"
    assert (cluster.topics, cluster.names) == ({"orders"}, {"shipping"})


def test_the_report_is_of_what_was_restored(restoring: Restoring, archive: Store) -> None:
    restoring.content = select_content(RestoreRequest.of(Restore(restore_point=2)), archive)
    assert _drill(archive, restoring, Restore(restore_point=1)).restore_point == 2


@pytest.mark.parametrize(("point", "others"), [("2", "1"), ("3", "1, 2")])
def test_drill_reports_losses_of_the_archive(restoring: Restoring, point: str, others: str) -> None:
    """Restore point 3 has another incarnation of the topic, and lacks nothing."""
    store = MemoryStore()
    make_archive(store)
    archive = open_archive(store)
    again = write(store, SegmentTarget("orders", 2, 0, 1000, "none"), range(4))
    state = topic_state("orders", [(0, 4, again)], captured=3)
    commit_point(archive, 3, topics=[msgspec.structs.replace(state, incarnation=2, id="another id")], segments=again)
    key = archive.added(0, 2)[-1].key
    author = Author("repair", "", "test")
    commit(store, archive.committed, lambda state: lose_segments(state, {key: "is missing"}), author)
    restoring.refused = True
    report = _drill(store, restoring, Restore(restore_point=point))
    assert report.damaged == (1, 2)
    assert ["is missing" in loss for loss in report.losses] == ([True] if point == "2" else [])
    assert any(f"restore points {others} lack records" in each for each in report.warnings)
    assert f"restore points {others} lack records" in drill_page(report)


# A drill restores its selection, also where the archive grows meanwhile.


def _commit(store: Store, seq: int, offsets: range, *groups: str) -> None:
    """A restore point with these offsets of topic orders, and groups at its end."""
    segments = write(store, SegmentTarget("orders", 1, 0, 1000, "none"), offsets)
    topic = topic_state("orders", [(0, offsets.stop, segments)], captured=seq)
    at_end = [group_at(group, ("orders", 0, offsets.stop)) for group in groups]
    commit_point(open_or_create(store), seq, topics=[topic], segments=segments, groups=at_end)


@pytest.mark.parametrize(
    "options",
    [
        Restore(),
        Restore(restore_point=1),
        Restore(range=("orders:0:3-7",)),
        Restore(from_time="1970-03-01T00:00:00Z"),
        Restore(from_time="1h ago"),
        Restore(from_time="1970-03-01T00:00:00Z", to_time="now", restore_point=1),
    ],
)
def test_pinned_options_select_the_same_content(options: Restore) -> None:
    store = MemoryStore()
    _commit(store, 1, range(10), "billing")
    content = select_content(RestoreRequest.of(options), store)
    _commit(store, 2, range(10, 20), "billing", "late")
    again = select_content(RestoreRequest.of(with_fixed_choice(options, content)), store)
    assert (again.restore_point, again.topics, again.groups) == (1, content.topics, content.groups)


def test_an_end_in_time_keeps_topics_and_groups_and_takes_late_records() -> None:
    store = MemoryStore()
    _commit(store, 1, range(10), "billing")
    options = Restore(to_time="2026-01-01T12:00:00Z")
    content = select_content(RestoreRequest.of(options), store)
    _commit(store, 2, range(10, 20), "billing", "late")
    again = select_content(RestoreRequest.of(with_fixed_choice(options, content)), store)
    assert (again.restore_point, again.groups) == (1, content.groups)
    assert [t.segments[-1].last for t in (*content.topics, *again.topics)] == [9, 19]


def test_every_name_is_under_the_prefix() -> None:
    store = MemoryStore()
    _commit(store, 1, range(10), "billing")
    asked = Restore(map={"orders": "orders"}, map_group={"billing": "billing"}, into_existing=True)
    options = scratch_options(asked, select_content(RestoreRequest.of(asked), store), "drill.", "an-id")
    assert (options.map, options.map_regex) == ({}, ("^=drill.",))
    assert options.map_group == {"billing": "drill.billing"}
    assert (options.into_existing, options.restore_id) == (False, "an-id")
