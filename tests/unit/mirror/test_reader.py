"""The sources of a take half and its heartbeats, when duties are due, and halves side by side."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Self, cast

import pytest

from kbackup.archive.query.selection import Selection
from kbackup.config.models import Backup, Follow
from kbackup.errors import KbackupError, UnreachableError, UsageError
from kbackup.jobs.backup.follow import Follower, FollowReport, FollowReporter
from kbackup.jobs.backup.job import BackupReport
from kbackup.jobs.common import Stop
from kbackup.kafka.control.cluster import Cluster
from kbackup.kafka.control.topics import TopicToCreate
from kbackup.metrics.registry import counted
from kbackup.mirror import job, reader
from kbackup.mirror.flow import Clock, Flow
from kbackup.mirror.internal import InternalTopics
from kbackup.mirror.job import run_once, run_until_stopped
from kbackup.mirror.properties.flows import load_flows
from kbackup.mirror.reader import mirror_selections, rhythm_of, sources_of
from kbackup.mirror.timetable import Timetable
from tests.support.flow_maps import CLUSTERS, flow_of

TO_C = "C.bootstrap.servers = c:1\nA->C.enabled = true\n"
THREE = CLUSTERS.replace("A, B", "A, B, C") + TO_C


def test_take_half_selects_what_its_flows_do() -> None:
    flow = flow_of("topics = orders.*, pay\ntopics.exclude = .*-old\ngroups = app-.*\n")
    topics, groups = mirror_selections(Backup(), [flow])
    names = ["A.pay", "B.orders.1", "heartbeats", "C.heartbeats", "orders.1", "orders.1-old", "pay", "pays"]
    assert topics.topics(names) == ["C.heartbeats", "heartbeats", "orders.1", "pay"]
    assert [name for name in ("app-1", "other", "app-\xe9") if groups.matches(name)] == ["app-1", "app-\xe9"]


def test_topics_from_the_target_are_left_out() -> None:
    """The target has them already; another target of the same source may want them."""
    names = ["B.orders", "C.B.orders", "C.orders", "Bx.orders", "orders"]
    to_b, to_c = load_flows(THREE).flows
    for flows, expected in (
        ([to_b], ["Bx.orders", "C.orders", "orders"]),
        ([to_b, to_c], sorted(names[:1] + names[2:])),
    ):
        assert mirror_selections(Backup(), flows).topics.topics(names) == expected


def test_configuration_goes_before_flows() -> None:
    selections = mirror_selections(Backup(topics=("all",), groups=("g",)), [flow_of()])
    assert selections == (Selection(("all",)), Selection(("g",)))


def test_nothing_waits_unless_asked_to() -> None:
    keys = ("follow.interval_seconds", "follow.max_age_seconds", "follow.small_bytes")
    rhythm = rhythm_of(Follow(), keys)
    assert (rhythm.interval_seconds, rhythm.max_age_seconds, rhythm.small_bytes) == (5, 5, 0)
    rhythm = rhythm_of(Follow(interval_seconds=20, max_age_seconds=300), keys[2:])
    assert (rhythm.interval_seconds, rhythm.max_age_seconds, rhythm.small_bytes) == (20, 300, 1 << 20)


def test_one_source_serves_all_its_flows() -> None:
    flows = load_flows(THREE, archive="/tmp/{source}").flows
    (source,) = sources_of(flows)
    assert (source.alias, source.archive, source.flows) == ("A", "/tmp/A", flows)


@pytest.mark.parametrize(
    ("text", "archive", "hint"),
    [
        (THREE, None, "kbackup.archive"),
        ("clusters = A, B\nB.bootstrap.servers = b:1\nA->B.enabled = true\n", "/tmp/x", "--apply"),
    ],
)
def test_sources_that_cannot_be_taken(text: str, archive: str | None, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        sources_of(load_flows(text, archive=archive).flows)
    assert hint in refused.value.hint


def test_duties_are_due_on_clocks_of_their_own() -> None:
    now = 100.0
    timetable = Timetable(lambda: now)
    clocks = {"topics": Clock(True, 10), "configs": Clock(True, 20), "acls": Clock(False, 1)}
    assert [duty for duty, clock in clocks.items() if timetable.is_due(duty, clock)] == ["topics", "configs"]
    assert timetable.is_due("acls", clocks["acls"], once=True)
    for duty in clocks:
        timetable.done(duty)
    assert timetable.seconds_idle(clocks, 60) == 10
    now += 12
    assert [duty for duty, clock in clocks.items() if timetable.is_due(duty, clock, once=True)] == ["topics"]
    assert timetable.seconds_idle(clocks, 60) == 0
    timetable.done("topics")
    assert timetable.seconds_idle(clocks, 5) == 5
    assert timetable.seconds_idle({}, 60) == 60


@pytest.fixture
def stop() -> Iterator[Stop]:
    with closing(Stop()) as made:
        yield made


@pytest.fixture
def last() -> Iterator[Stop]:
    with closing(Stop()) as made:
        yield made


@dataclass
class ScriptedHalf:
    """A half that runs until `end` is asked for, or that fails, or that ends by itself. `ended` has the names of the
    halves that ran to their end."""

    name: str
    end: Stop | None
    ended: list[str]
    fails: bool = False

    def run(self) -> FollowReport:
        if self.fails:
            raise UsageError("no such thing", "")
        if self.end is not None:
            assert self.end.wait(60)
        self.ended.append(self.name)
        return FollowReport(f"report of {self.name}")


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Halves are scripts."""
    monkeypatch.setattr(job, "run_half", lambda half: half.run())


def script(name: str, end: Stop | None, ended: list[str], *, fails: bool = False) -> Any:
    return ScriptedHalf(name, end, ended, fails)


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("failing", ["take", "apply"])
def test_half_that_fails_ends_the_other(failing: str, stop: Stop, last: Stop) -> None:
    ended: list[str] = []
    source = script("take", stop, ended, fails=failing == "take")
    target = script("apply", last, ended, fails=failing == "apply")
    with pytest.raises(UsageError, match="no such thing"):
        run_until_stopped({"take": source}, stop, {"apply": target}, last)
    assert ended == [{"take": "apply", "apply": "take"}[failing]]


@pytest.mark.usefixtures("scripted")
def test_apply_halves_end_after_take_halves(stop: Stop, last: Stop) -> None:
    ended: list[str] = []
    source, target = script("take", stop, ended), script("apply", last, ended)
    stop.ask()
    reports = run_until_stopped({"take": source}, stop, {"apply": target}, last)
    assert ended == ["take", "apply"]
    assert reports == {name: FollowReport(f"report of {name}") for name in ended}


@pytest.mark.usefixtures("scripted")
def test_apply_halves_alone_run_until_they_are_asked(stop: Stop) -> None:
    class PatientHalf(ScriptedHalf):
        def run(self) -> FollowReport:
            assert not stop.wait(0.2), "nobody asks"
            return super().run()

    ended: list[str] = []
    patient: Any = PatientHalf("apply", None, ended)
    run_until_stopped({}, stop, {"apply": patient}, stop)
    assert ended == ["apply"]


@pytest.mark.usefixtures("scripted")
def test_halves_that_end_by_themselves_stop_nobody(stop: Stop, last: Stop) -> None:
    ended: list[str] = []
    source, target = script("a", None, ended), script("b", None, ended)
    run_until_stopped({"a": source}, stop, {"b": target}, last)
    assert sorted(ended) == ["a", "b"]
    assert not stop.asked


@pytest.mark.usefixtures("scripted")
def test_one_round_of_each_half_runs_in_the_order_of_the_halves() -> None:
    ended: list[str] = []
    halves = {name: script(name, None, ended) for name in ("take A", "apply A->B", "take B")}
    assert [*run_once(halves)] == ended == [*halves]


# The take half writes heartbeats for pairs of clusters that are not enabled, as MirrorMaker 2 does.


class Brokers:
    """A source that notes the topics that are made in it."""

    def __init__(self, properties: object, role: str) -> None:
        self.made: list[str] = []

    def connect(self) -> None:
        """Succeed."""

    def topics(self, names: object) -> dict[str, object]:
        return {}

    @property
    def topic_admin(self) -> Brokers:
        return self

    def create(self, topics: Iterable[TopicToCreate], **_: object) -> dict[str, KbackupError]:
        self.made += [topic.name for topic in topics]
        return {}


@dataclass
class BadClock:
    """A clock whose heartbeats fail."""

    flow: Flow
    target: InternalTopics

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing runs."""

    def check(self) -> None:
        raise UnreachableError("no brokers", "start them")


@dataclass
class Events:
    seen: list[str] = field(default_factory=list)

    def committed(self, report: BackupReport) -> None:
        self.seen.append("committed")

    def record_success(self) -> None:
        self.seen.append("well")

    def failed(self, error: KbackupError, pause: float) -> None:
        self.seen.append(f"failed {pause}")


class ScriptedFollower:
    """A follower of three rounds that end well, and one that fails."""

    def follow_until_stopped(self, reporter: FollowReporter) -> FollowReport:
        for _ in range(3):
            reporter.committed(cast(Any, None))
            reporter.record_success()
        reporter.failed(UnreachableError("away"), 2.0)
        return FollowReport("file:///tmp/A", rounds=4)


def test_a_half_counts_for_its_own_archive() -> None:
    counted.begin("mirror")
    (source,) = reader.sources_of(load_flows(CLUSTERS, archive="/tmp/{source}").flows)

    class CountingFollower(ScriptedFollower):
        store = SimpleNamespace(url="file:///tmp/A")

        def follow_until_stopped(self, reporter: FollowReporter) -> FollowReport:
            counted.add("kbackup_retries_total")
            return super().follow_until_stopped(reporter)

    follower = cast(Follower, CountingFollower())
    run_once({"take": reader.MirrorReader(source, (), follower, Events())})
    assert counted.snapshot().by_archive["file:///tmp/A"] == {("kbackup_retries_total", ()): 1}


def test_heartbeats_of_a_pair_that_is_not_enabled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They have one topic and no more. Where they fail, backups go on, and the error is logged once."""
    clusters: list[Brokers] = []

    def cluster(given: object, role: str) -> Cluster:
        clusters.append(Brokers(given, role))
        return cast(Cluster, clusters[-1])

    monkeypatch.setattr(reader, "HeartbeatClock", BadClock)
    monkeypatch.setattr(reader, "Cluster", cluster)
    check_rounds(caplog, "no brokers; start them")
    assert [c.made for c in clusters] == [["heartbeats"]]


def check_rounds(caplog: pytest.LogCaptureFixture, error: str) -> None:
    """Run a take half: its rounds are told, and one error of its heartbeats."""
    properties = load_flows(CLUSTERS, archive="/tmp/{source}")
    (source,) = reader.sources_of(properties.flows)
    events = Events()
    follower = cast(Follower, ScriptedFollower())
    half = reader.MirrorReader(source, properties.heartbeat_flows, follower, events)
    with caplog.at_level(logging.WARNING, reader.__name__):
        assert half.back_up_source().rounds == 4
    assert events.seen == ["committed", "well"] * 3 + ["failed 2.0"]
    assert caplog.messages == [f"heartbeats of B->A are not written: {error}"]


def test_each_flow_whose_heartbeats_fail_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    def clock(name: str, error: str) -> Any:
        def check() -> None:
            raise UnreachableError(error)

        return SimpleNamespace(flow=SimpleNamespace(name=name), check=check)

    clocks = [clock("A->B", "no brokers"), clock("A->C", "no brokers"), clock("A->D", "denied")]
    reporter = reader.SourceReporter(Events(), clocks, ())
    for _ in range(2):
        reporter.record_success()
    failed = [("A->B", "no brokers"), ("A->C", "no brokers"), ("A->D", "denied")]
    assert caplog.messages == [f"heartbeats of {flow} are not written: {error}" for flow, error in failed]


def test_a_source_that_refuses_heartbeats_is_backed_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With the rights of a backup alone, or with fewer brokers than the topic asks for."""

    class Refusing(Brokers):
        def create(self, topics: Iterable[TopicToCreate], **_: object) -> dict[str, KbackupError]:
            denied = UnreachableError("source denies creating topic heartbeats", "allow it")
            return {topic.name: denied for topic in topics}

    monkeypatch.setattr(reader, "Cluster", Refusing)
    check_rounds(caplog, "source denies creating topic heartbeats; allow it")
