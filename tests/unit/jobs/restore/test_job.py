"""The steps of a restore, the counts of a finished one, and the same restore run again."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from kbackup.archive import layout
from kbackup.archive.catalog.documents import TableRef
from kbackup.archive.models import GroupOffset, dump, load
from kbackup.archive.query.content import ArchivedPartition, ArchivedTopic, Content, narrowed
from kbackup.archive.query.selection import Selection
from kbackup.archive.restores.journal import RestoreJournal
from kbackup.archive.restores.map_parts import Cut, MapPart, WrittenMap
from kbackup.archive.restores.offset_map import runs_table
from kbackup.archive.restores.plan import PlannedGroup, RestorePlan, with_segments, write_plan
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.window import Choice, Window
from kbackup.archive.transforms import TransformRef
from kbackup.config.models import Restore
from kbackup.errors import (
    AlreadyExistsError,
    ClusterError,
    CorruptError,
    KbackupError,
    MismatchError,
    RefusedError,
    UnreachableError,
)
from kbackup.jobs.groups.job import offset_maps
from kbackup.jobs.groups.plan import map_groups
from kbackup.jobs.restore import job as restore_job
from kbackup.jobs.restore.job import (
    NoScreen,
    RestoreResources,
    check_any_restored,
    check_complete,
    create_topics,
    not_restored_topics,
    restore,
    wait_visible,
)
from kbackup.jobs.restore.plan import make_units, plan_topic
from kbackup.jobs.restore.preflight import (
    PreflightFindings,
    check_segments,
    check_still_there,
    effective_configs,
    time_limit,
)
from kbackup.jobs.restore.report import TransformReport, late_warnings, planned, restored
from kbackup.jobs.restore.request import RestoreRequest, given_options
from kbackup.jobs.restore.resume import check_same_options, check_same_transform
from kbackup.jobs.restore.task import FailedTopic
from kbackup.jobs.transform import Transform
from kbackup.kafka.control.cluster import Cluster
from kbackup.kafka.control.topics import Topic, TopicToCreate
from kbackup.metrics.registry import Silent
from kbackup.store.base import ObjectInfo, Store
from kbackup.store.file import FileStore
from kbackup.types import TopicPartition
from tests.support.archives import an_archived_topic, group_at, make_archive, planned_topic, restore_plan
from tests.support.made_segments import a_segment
from tests.support.map_parts import write_map
from tests.support.memory_store import MemoryStore
from tests.support.restores import a_report
from tests.support.transforms import a_transform


def test_each_step_is_announced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    begun = msgspec.structs.replace(plan(), archive_id=make_archive(store).info.id)
    store.put(layout.restore_key("r", layout.PLAN), dump(begun))
    events: list[str] = []

    class Recorder(Silent):
        def phase(self, name: str) -> None:
            events.append(name)

    cluster = SimpleNamespace(connect=lambda: ("c", 1))
    monkeypatch.setattr(restore_job, "check_target", lambda *_: PreflightFindings())
    monkeypatch.setattr(restore_job, "Cluster", lambda *_: cluster)
    monkeypatch.setattr(restore_job, "compare_settings", lambda *_: None)
    monkeypatch.setattr(restore_job, "warn_of_members", lambda *_: ["group g has members"])

    class Screen(NoScreen):
        def show_plan(self, plan: RestorePlan, warnings: list[str]) -> None:
            events.extend(warnings)

    request = RestoreRequest.of(msgspec.structs.replace(ASKED, restore_id="r"))
    resources = RestoreResources({}, store, store, lambda: pytest.fail("Spark"), Recorder())
    report = restore(request, resources, Screen(), dry_run=True)
    assert report.status == "planned"
    assert events == ["connect", "plan", "preflight", "group g has members"]


A, B = TopicPartition("t", 0), TopicPartition("t", 1)
RUNS = {
    A: (np.array([0, 7]), np.array([0, 5]), np.array([4, 6])),  # records 0 to 10 of the target
    B: (np.array([3]), np.array([20]), np.array([1])),
}


class Ends:
    """A cluster that answers with these stable ends, one after the other; the last ones stay. `logs` has the ends
    of its logs."""

    def __init__(self, *answers: dict[TopicPartition, int], logs: dict[TopicPartition, int] | None = None) -> None:
        self._answers, self._logs = list(answers), logs
        self.asked: list[set[TopicPartition]] = []

    def log_ends(self, partitions: Iterable[TopicPartition], isolation: str) -> dict[TopicPartition, int]:
        if isolation == "read_uncommitted":
            assert self._logs is not None
            return {tp: self._logs[tp] for tp in partitions}
        self.asked.append(set(partitions))
        ends = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return {tp: ends[tp] for tp in self.asked[-1]}

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        return {name: Topic(name, "", False, (0, 1), 1) for name in names}

    def log_starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)


def _cluster(ends: Ends) -> Cluster:
    return cast(Cluster, ends)


def test_waits_for_the_markers_of_each_partition() -> None:
    ends = Ends({A: 0, B: 22}, {A: 5, B: 22}, {A: 12, B: 22})
    assert wait_visible(_cluster(ends), RUNS) == []
    assert ends.asked == [{A, B}, {A}, {A}]


def test_says_what_stays_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore_job, "_MARKER_TIMEOUT", 0.0)
    assert wait_visible(_cluster(Ends({A: 12, B: 20})), RUNS) == [B]


@pytest.mark.parametrize(
    ("transactions", "stable", "end", "expected"),
    [
        (True, 12, 12, 12),  # behind the marker
        (True, 30, 30, 11),  # others have written since: their records are not skipped
        (False, 11, 11, 11),
        (False, 12, 12, 11),
        (True, 5, 11, 11),  # the marker is not written yet
        (True, 5, 12, 11),  # nor is another one before it
        (True, 11, 20, 11),  # another transaction is open
    ],
)
def test_past_the_end_is_after_the_restore(transactions: bool, stable: int, end: int, expected: int) -> None:
    group = PlannedGroup(source="g", target="g", offsets=(GroupOffset(topic="s", partition=0, offset=13),))
    plan = restore_plan(transactions=transactions, topics=(planned_topic("s", "t"),), groups=(group,))
    maps, unusable = offset_maps(_cluster(Ends({A: stable}, logs={A: end})), plan, [A], RUNS)
    assert unusable == {}
    assert maps[A].map(13).offset == expected


def test_a_log_that_ends_before_the_restored_records_was_made_anew() -> None:
    plan = restore_plan(topics=(planned_topic("s", "t"),))
    maps, unusable = offset_maps(_cluster(Ends({A: 10, B: 3}, logs={A: 10, B: 21})), plan, [A, B], RUNS)
    assert unusable == {A: "t-0 ends at 10, and was restored up to 11: it was created again since"}
    assert maps.keys() == {B}


NAMES = {"orders": "o", "pay": "p"}


def segment(topic: str, partition: int) -> Segment:
    return a_segment(topic, 0, 99, partition=partition, min_timestamp=5, max_timestamp=50)


def content() -> Content:
    topics: list[ArchivedTopic] = []
    for name in NAMES:
        partitions = [ArchivedPartition(n, 0, 100, (segment(name, n),)) for n in range(2)]
        topics.append(an_archived_topic(name, partitions))
    return Content("x", 1, tuple(topics), {"g": group_at("g", ("orders", 0, 4))})


def plan_of(made: Content) -> RestorePlan:
    return restore_plan(
        topics=tuple(plan_topic(t, NAMES[t.name], {}, None) for t in made.topics),
        units=make_units(made, NAMES),
        groups=map_groups(made, NAMES, Selection(), {}),
        choice=made.choice,
    )


def test_without_a_window_every_record_of_the_archive_must_be_in_the_map() -> None:
    plan = plan_of(content())
    done = restored(plan, WrittenMap({"o": 200, "p": 200}, Cut(), {}), [Cut(), Cut()])
    assert (dict(done.topics), done.bytes) == ({"o": 200, "p": 200}, 4000)
    check_complete(plan, done)
    short = restored(plan, WrittenMap({"o": 199, "p": 200}, Cut(), {}), [])
    with pytest.raises(KbackupError, match="r has 399 records in its offset map, 400 were to be restored"):
        check_complete(plan, short)


def test_records_that_a_transform_left_out_are_not_missed_and_are_reported() -> None:
    plan = msgspec.structs.replace(plan_of(content()), transform=MASK)
    assert not plan.exact
    written = WrittenMap({"o": 150, "p": 200}, Cut(left_out=(("o", 40),)), {})
    done = restored(plan, written, [Cut(left_out=(("o", 10),))])
    check_complete(plan, done)
    report = a_report(plan, done)
    assert isinstance(report.transform, TransformReport)
    sources = {name: source for source, name in NAMES.items()}
    assert report.transform.left_out == {sources["o"]: 50}
    assert report.transform.sentence.startswith("left out by the transform mask.py:mask: 50 records (")
    with pytest.raises(KbackupError, match="r has 350 records in its offset map, 360 were to be restored"):
        check_complete(plan, restored(plan, written, []))


def test_a_topic_that_came_in_part_is_not_counted_by_what_a_transform_left_out() -> None:
    plan = msgspec.structs.replace(plan_of(content()), transform=MASK)
    done = restored(plan, WrittenMap({"o": 200, "p": 7}, Cut(left_out=(("p", 3),)), {}), [], {"p"})
    check_complete(plan, done, {"p"})


def test_a_report_without_a_transform_has_no_member_for_it() -> None:
    plan = plan_of(content())
    done = restored(plan, WrittenMap({"o": 200, "p": 200}, Cut(), {}), [])
    assert b'"transform"' not in dump(a_report(plan, done))
    assert b'"transform"' not in dump(plan)


@pytest.mark.parametrize("mapped", [29, 31])
def test_with_a_window_it_must_be_what_the_tasks_selected(mapped: int) -> None:
    made = narrowed(
        content(), lambda *_: Window(from_time=10, ranges=((0, 20),)), {}, Choice(left_out=("x is left out",))
    )
    plan = plan_of(made)
    assert (plan.records, planned(plan).records) == (80, 80)
    written = WrittenMap({"o": 30}, Cut(10, 500, 1), {})
    done = restored(plan, written, [Cut(), Cut(20, 800, 2)])
    check_complete(plan, done)
    assert (done.records, done.bytes) == (30, 1300)
    (late,) = late_warnings(done, 0)
    assert late.startswith("at least 3 record(s) without a timestamp were left out")
    report = a_report(plan, done, warnings=["more"], hidden=[TopicPartition("o", 1)])
    assert [each.split(":")[0] for each in report.missing] == ["consumers can't see all of o-1 yet"]
    assert [(t.target, t.records) for t in report.topics] == [("o", 30), ("p", 0)]
    assert (report.choice, report.warnings) == (made.choice, ("x is left out", "more"))
    other = restored(plan, written._replace(records={"o": mapped}), [Cut(20, 800, 2)])
    with pytest.raises(KbackupError, match=f"r has {mapped} records in its offset map, 30 were to be restored"):
        check_complete(plan, other)


def test_a_plan_keeps_its_windows() -> None:
    made = narrowed(content(), lambda t, p: Window(ranges=((p, 9),)), {}, Choice(notes=("why",), to_time=7))
    store, plan = MemoryStore(), plan_of(made)
    write_plan(store, plan, 0)
    again = with_segments(store, load(RestorePlan, store.get("restores/r/plan.json"), "plan.json"))
    assert (again.units, again.groups, again.topics) == (plan.units, plan.groups, plan.topics)
    assert (again.choice, len(again.groups)) == (made.choice, 1)
    assert {part.window for unit in again.units for part in unit} == {
        Window(ranges=((0, 9),)),
        Window(ranges=((1, 9),)),
    }


@pytest.mark.parametrize("inline", [0, 99])
def test_a_stored_plan_has_many_segments_in_a_table(inline: int) -> None:
    store, plan = MemoryStore(), plan_of(content())
    write_plan(store, plan, inline)
    data = store.get("restores/r/plan.json")
    stored = load(RestorePlan, data, "plan.json")
    assert (b'"index_crc"' in data, isinstance(stored.segments, TableRef)) == (inline > 0, inline == 0)
    assert with_segments(store, stored).units == plan.units
    with pytest.raises(AlreadyExistsError):
        write_plan(store, plan, inline)
    if isinstance(stored.segments, TableRef):
        store.put(stored.segments.key, store.get(stored.segments.key)[:-1])
        with pytest.raises(CorruptError, match=f"{stored.segments.key} is not what the plan of restore r says"):
            with_segments(store, stored)


PLACE = TopicPartition("copy", 1)
ASKED = Restore(topics=("b", "a"), map_regex=("^=x.", "a=b"), map={"a": "copy"}, topic_config={"x": "1"})


def plan(options: Restore | None = ASKED) -> RestorePlan:
    given = None if options is None else given_options(options)
    return restore_plan(topics=(planned_topic("a", "copy"),), options=given)


@pytest.mark.parametrize(
    "same",
    [
        {},
        {"topics": ("a", "b")},
        {"state": "elsewhere", "restore_id": "r", "transactions": False, "transaction_bytes": 5},
        {"topic_config": {"cleanup.policy": "delete"}, "replication_factor": 1, "exclude_topics": ("c",)},
    ],
)
def test_equal_options_and_those_that_mend_the_target_are_accepted(same: dict[str, Any]) -> None:
    check_same_options(plan(), RestoreRequest.of(msgspec.structs.replace(ASKED, **same)))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"topics": ("a",)}, r'topics was \["a","b"\], now \["a"\]'),
        ({"map_regex": ("a=b", "^=x.")}, "map_regex was"),
        ({"skip": ("a:0:1",)}, r'skip was unset, now \["a:0:1"\]'),
        ({"into_existing": True}, "into_existing was unset, now true"),
        ({"no_groups": True, "to_time": "2h ago"}, 'to_time was unset, now "2h ago"; no_groups was unset, now true'),
    ],
)
def test_other_options_are_refused_by_their_names(other: dict[str, Any], message: str) -> None:
    with pytest.raises(MismatchError, match=f"restore r was begun with other options: {message}"):
        check_same_options(plan(), RestoreRequest.of(msgspec.structs.replace(ASKED, **other)))


def test_a_time_may_be_written_in_another_way_when_a_restore_goes_on() -> None:
    begun = msgspec.structs.replace(ASKED, to_time="2026-01-31T14:05:00+01:00")
    choice = Choice(to_time=1_769_864_700_000)
    planned = msgspec.structs.replace(plan(begun), choice=choice)
    same = msgspec.structs.replace(ASKED, to_time="2026-01-31 13:05Z")
    check_same_options(planned, RestoreRequest.of(same))
    later = msgspec.structs.replace(ASKED, to_time="2026-01-31 13:06Z")
    with pytest.raises(MismatchError, match=r'to_time was "2026-01-31T14:05:00\+01:00", now "2026-01-31 13:06Z"'):
        check_same_options(planned, RestoreRequest.of(later))


MASK = a_transform("return batch").ref


def test_a_restore_goes_on_with_the_same_transform_from_wherever_its_file_is() -> None:
    begun = msgspec.structs.replace(plan(), transform=MASK)
    check_same_transform(begun, a_transform("return batch", file="moved.py"))
    check_same_transform(plan(), None)


@pytest.mark.parametrize(
    ("begun", "now", "words"),
    [
        (MASK, None, r"with transform mask.py:mask \(sha256 \w{12}\), now without one"),
        (MASK, a_transform("return batch.slice(0)"), r"with transform mask.py:mask \(.*\), now mask.py:mask \(sha"),
        (msgspec.UNSET, a_transform("return batch"), r"without a transform, now one is given: mask.py:mask \(sha"),
        (TransformRef(name="mask.py:other", sha256=MASK.sha256), a_transform("return batch"), "mask.py:other"),
    ],
)
def test_another_transform_is_refused_by_its_name(
    begun: TransformRef | msgspec.UnsetType, now: Transform | None, words: str
) -> None:
    with pytest.raises(MismatchError, match=f"restore r was .*{words}"):
        check_same_transform(msgspec.structs.replace(plan(), transform=begun), now)


def test_a_plan_of_an_older_version_may_have_no_options_or_the_former_name_of_one() -> None:
    check_same_options(plan(None), RestoreRequest.of(Restore()))
    given = given_options(ASKED)
    older = msgspec.structs.replace(plan(), options={"backup": given.pop("restore_point"), **given})
    check_same_options(older, RestoreRequest.of(ASKED))
    with pytest.raises(MismatchError, match='restore_point was "latest", now 1'):
        check_same_options(older, RestoreRequest.of(msgspec.structs.replace(ASKED, restore_point=1)))


@dataclass
class FakeTarget:
    """Topic copy with `partitions`, whose partition 1 has the offsets [start, end)."""

    partitions: tuple[int, ...] = (0, 1)
    start: int = 0
    end: int = 20
    names: set[str] = field(default_factory=lambda: {"copy"})

    def topics(self, names: Any) -> dict[str, Topic]:
        return {n: Topic(n, "", False, self.partitions, 1) for n in names if n in self.names}

    def log_starts(self, partitions: Any) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, self.start)

    def log_ends(self, partitions: Any, isolation: str) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, self.end)


@pytest.fixture
def state(tmp_path: Path) -> Store:
    """Of restore r, which put records at offsets 2 to 4 and 10 to 16 of copy-1."""
    store = FileStore(tmp_path)
    store.put(layout.restore_key("r", layout.PLAN), dump(plan()))
    runs = tuple(np.array(column, np.int64) for column in ([0, 50], [2, 10], [3, 7]))
    write_map(store, "r", [MapPart(runs_table({PLACE: cast(Any, runs)}))])
    return store


def check(state: Store, target: FakeTarget) -> None:
    check_still_there(cast(Cluster, target), RestoreJournal(state, "r"), plan())


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (FakeTarget(names=set()), "topic copy of finished restore r is not in the target"),
        (FakeTarget(partitions=(0,)), "topic copy of finished restore r has fewer partitions"),
        (FakeTarget(start=3), r"offsets 2 to 17 \(exclusive\) of copy-1, which has 3 to 20 now"),
        (FakeTarget(end=16), r"offsets 2 to 17 \(exclusive\) of copy-1, which has 0 to 16 now"),
    ],
)
def test_deleted_records_are_reported(state: Store, target: FakeTarget, message: str) -> None:
    check(state, FakeTarget())
    check(state, FakeTarget(start=2, end=17))
    with pytest.raises(MismatchError, match=message):
        check(state, target)


DAY = "86400000"
NONE = str((1 << 63) - 1)


@pytest.mark.parametrize(
    ("defaults", "limit"),
    [
        ({}, (int(NONE), "message.timestamp.after.max.ms")),
        ({"log.message.timestamp.after.max.ms": "3600000"}, (3_600_000, "message.timestamp.after.max.ms")),
        ({"log.message.timestamp.difference.max.ms": DAY}, (int(DAY), "message.timestamp.difference.max.ms")),
        (
            {"log.message.timestamp.difference.max.ms": DAY, "log.message.timestamp.after.max.ms": NONE},
            (int(DAY), "message.timestamp.after.max.ms"),
        ),
        (
            {"log.message.timestamp.difference.max.ms": DAY, "log.message.timestamp.after.max.ms": "3600000"},
            (3_600_000, "message.timestamp.after.max.ms"),
        ),
    ],
    ids=["none", "after", "before-3.6", "3.6-default", "3.6-both"],
)
def test_a_new_topic_has_the_limit_of_its_broker(defaults: dict[str, str], limit: tuple[int, str]) -> None:
    assert time_limit(effective_configs({}, defaults), "after") == limit
    own = {"message.timestamp.after.max.ms": "5"}
    own_limit, _ = time_limit(effective_configs(own, defaults), "after")
    assert own_limit == 5, "the topic's own wins"


@pytest.mark.parametrize(
    ("defaults", "keep"),
    [
        ({}, None),
        ({"log.retention.hours": "168"}, "604800000"),
        ({"log.retention.hours": "168", "log.retention.minutes": "5"}, "300000"),
        ({"log.retention.minutes": "5", "log.retention.ms": "7"}, "7"),
        ({"log.retention.hours": "168", "log.retention.minutes": "-1"}, "-1"),
    ],
)
def test_a_new_topic_keeps_records_as_long_as_its_broker_says(defaults: dict[str, str], keep: str | None) -> None:
    assert effective_configs({}, defaults).get("retention.ms") == keep
    assert effective_configs({"retention.ms": "1"}, defaults)["retention.ms"] == "1"


def test_schemas_may_be_unset_and_not_others_than_before() -> None:
    begun = plan(msgspec.structs.replace(ASKED, schemas="map"))
    check_same_options(begun, RestoreRequest.of(ASKED))
    with pytest.raises(MismatchError, match='schemas was "map", now "same"'):
        check_same_options(begun, RestoreRequest.of(msgspec.structs.replace(ASKED, schemas="same")))


def test_what_is_left_out_may_grow_and_not_shrink() -> None:
    begun = plan(msgspec.structs.replace(ASKED, exclude_topics=("c",)))
    check_same_options(begun, RestoreRequest.of(msgspec.structs.replace(ASKED, exclude_topics=("d", "c"))))
    with pytest.raises(MismatchError, match=r'exclude_topics was \["c"\], now \["d"\]'):
        check_same_options(begun, RestoreRequest.of(msgspec.structs.replace(ASKED, exclude_topics=("d",))))


class FakeTopics:
    """Brokers that refuse to create some topics and to alter others, and give us no right on a third kind."""

    def __init__(self, refused: Iterable[str] = (), unaltered: Iterable[str] = (), denied: Iterable[str] = ()) -> None:
        self._refused, self._unaltered, self._denied = set(refused), set(unaltered), set(denied)
        self.awaited: dict[str, int] = {}

    def create(self, topics: Iterable[TopicToCreate]) -> dict[str, KbackupError]:
        names = {topic.name for topic in topics}
        return {name: ClusterError(f"failed creating topic {name}", "mend it") for name in names & self._refused}

    def wait_visible(self, totals: dict[str, int]) -> dict[str, KbackupError]:
        self.awaited |= totals
        return {}

    def alter_configs(self, changes: dict[str, dict[str, str]]) -> dict[str, KbackupError]:
        return {name: ClusterError(f"failed altering {name}", "mend it") for name in changes.keys() & self._unaltered}

    def missing_rights(self, names: Iterable[str], rights: Iterable[str]) -> dict[str, list[str]]:
        return {name: [*rights] for name in set(names) & self._denied}


def test_topics_that_can_not_be_written_to_are_named_and_the_others_are_created() -> None:
    topics = FakeTopics(refused="b", unaltered="d", denied="c")
    cluster = cast(Cluster, SimpleNamespace(topic_admin=topics, missing_rights=topics.missing_rights))
    begun = restore_plan(topics=tuple(planned_topic(name, name) for name in "abcde"))
    findings = PreflightFindings(create=["a", "b", "c", "e"], alter={"d": {"cleanup.policy": "delete"}})
    failed = create_topics(cluster, begun, begun.topics[:4], findings)
    assert {each.target: each.reason for each in failed} == {
        "b": "failed creating topic b",
        "c": "our user may not restore into target topic c: it lacks Write and Read on the topic",
        "d": "failed altering d",
    }
    assert topics.awaited == {"a": 2, "c": 2}
    with pytest.raises(UnreachableError, match="it lacks Write and Read on the topic"):
        create_topics(cluster, begun, begun.topics[2:3], findings)


@pytest.mark.parametrize(("excluded", "more"), [((), "; 1 more topic failed likewise"), (("b",), "")])
def test_nothing_is_done_where_every_topic_is_refused(excluded: tuple[str, ...], more: str) -> None:
    begun = restore_plan(topics=(planned_topic("a", "a"), planned_topic("b", "b")))
    failed = [FailedTopic(name, f"no to {name}", "mend it") for name in "ab"]
    check_any_restored(begun, (), not_restored_topics(begun, failed[:1]))
    with pytest.raises(ClusterError) as raised:
        check_any_restored(begun, excluded, not_restored_topics(begun, failed))
    assert (raised.value.message, raised.value.hint) == (f"no to a{more}", "mend it")


def test_records_of_a_topic_that_failed_are_not_missed_in_the_map() -> None:
    plan = plan_of(content())
    done = restored(plan, WrittenMap({"o": 200, "p": 7}, Cut(), {}), [], {"p"})
    check_complete(plan, done, {"p"})
    with pytest.raises(KbackupError, match="r has 200 records in its offset map, 400 were to be restored"):
        check_complete(plan, restored(plan, WrittenMap({"o": 200}, Cut(), {}), []))


def test_a_report_names_what_failed_and_what_was_left_out() -> None:
    plan = plan_of(content())
    done = restored(plan, WrittenMap({"o": 200, "p": 7}, Cut(), {}), [], {"p"})
    (failed,) = not_restored_topics(plan, [FailedTopic("p", "it has no room", "make room")])
    report = a_report(plan, done, status="incomplete", failed=[failed])
    assert report.missing == ("topic pay is not restored: it has no room; make room",)
    assert {t.source: t.records for t in report.topics} == {"orders": 200, "pay": 7}
    without_one = a_report(plan, done, excluded=["pay"])
    assert [topic.source for topic in without_one.topics] == ["orders"]


def test_folders_of_topics_are_listed_side_by_side() -> None:
    """One after the other, 500 topics took 15 s where a request takes 30 ms."""
    both = threading.Barrier(2, timeout=10)

    class Slow(MemoryStore):
        def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
            both.wait()
            return super().list(prefix, start_after)

    with pytest.raises(RefusedError) as raised:
        check_segments(Slow(), [[replace(segment(name, 0), key=f"topics/{name}/0")] for name in "ab"])
    assert raised.value.message.count("is missing") == 2
