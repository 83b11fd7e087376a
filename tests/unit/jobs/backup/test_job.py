"""The start of a backup, what it hands to its tasks, and the rounds of a follower."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from kbackup.archive.catalog.state import State
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import PartitionState
from kbackup.archive.run import open_or_create
from kbackup.config.models import Backup, Follow
from kbackup.errors import KbackupError, MismatchError, UnreachableError
from kbackup.jobs.backup import follow, job
from kbackup.jobs.backup.compaction import CheckedDeletions
from kbackup.jobs.backup.follow import Follower
from kbackup.jobs.backup.job import BackupReport, archive_records, begin
from kbackup.jobs.backup.plan import Plan, TopicPlan, make_plan
from kbackup.jobs.backup.task import BackupWork
from kbackup.jobs.capture import BackupSession, Live, LiveTopic
from kbackup.jobs.common import Stop
from kbackup.metrics.registry import ROUNDS, Phases, Silent, counted
from tests.support.archives import make_archive
from tests.support.memory_store import MemoryStore


def begun(store: MemoryStore, cluster_id: str, *, adopt: bool = False) -> BackupSession:
    source: Any = SimpleNamespace(id=cluster_id, isolation_level="read_committed")
    with HeldLease(store, "kbackup backup", 60) as lease:
        open_or_create(store)
        return begin(store, lease, source, adopt)


def test_another_cluster_is_refused_before_anything_is_written() -> None:
    store = MemoryStore()
    make_archive(store)
    before = {e.key: store.get(e.key) for e in store.list() if e.key != "lock.json"}
    with pytest.raises(MismatchError, match="is of cluster source, the source is cluster other") as raised:
        begun(store, "other")
    assert raised.value.exit_code == 10
    assert "--adopt-cluster" in raised.value.hint
    store.delete(["lock.json"])
    assert {e.key: store.get(e.key) for e in store.list()} == before


def test_same_and_rebuilt_clusters_continue_the_archive() -> None:
    store = MemoryStore()
    make_archive(store)
    assert begun(store, "source").run.next_point == 3
    assert begun(store, "other", adopt=True).run.next_point == 3
    assert begun(store, "").run.next_point == 3, "a source that tells no id"
    assert begun(MemoryStore(), "other").run.next_point == 1, "an archive without a restore point"


def test_tasks_are_told_of_the_topics_they_read_alone_and_ask_a_far_cluster_for_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 100,000 topics a round may read three: each task gets all of this."""
    sent: list[BackupWork] = []

    def run_tasks(spark: object, tasks: object, work: BackupWork, show: object) -> list[Any]:
        sent.append(work)
        return []

    monkeypatch.setattr("kbackup.spark.tasks.run_tasks", run_tasks)
    options: Any = SimpleNamespace(segment_bytes=1, compression="none", split_records=100, pack_records=10)
    run: Any = SimpleNamespace(
        plain=MemoryStore(),
        store=MemoryStore(),
        run="r",
        since=0.0,
        interrupted=False,
        archive=SimpleNamespace(state=State("id")),
        commit=lambda *_: None,
    )
    cluster = SimpleNamespace(round_trip=lambda _: 0.1)
    source: Any = SimpleNamespace(cluster=cluster, properties={}, isolation_level="read_committed", poll_timeout=1.0)
    topics = [LiveTopic(name, name, {0: Live(0, end, end)}) for name, end in (("busy", 50), ("idle", 0))]
    plan = make_plan(None, topics, ["busy", "idle"], lambda name, topic_id: 1)
    spark: Any = object
    archive_records(source, BackupSession(run), plan, options, spark, Phases(Silent()))
    assert [(work.incarnations, work.far) for work in sent] == [({"busy": 1}, 2)]


NOTHING: Any = SimpleNamespace(ends=SimpleNamespace(written=()), started_at="")


class QuietReporter:
    """The reporter of a follower. It asks to stop at the end of the round in which `is_last` says so."""

    def __init__(self, stop: Stop, is_last: Callable[[], bool] = lambda: True, commits: bool = False) -> None:
        self.stop, self.is_last, self.commits = stop, is_last, commits

    def committed(self, report: BackupReport) -> None:
        assert self.commits, "nothing is new"

    def record_success(self) -> None:
        if self.is_last():
            self.stop.ask()

    def failed(self, error: KbackupError, pause: float) -> None:
        pytest.fail(str(error))


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stop]:
    """Of rounds that find nothing new."""
    lease = SimpleNamespace(check=lambda: None)
    session = SimpleNamespace(
        run=SimpleNamespace(end=lambda: None),
        archive=None,
        head=SimpleNamespace(number=41),
        schemas=None,
        compared={},
        looks={},
    )
    monkeypatch.setattr(follow, "connect", lambda *_: SimpleNamespace(id="c", whole_within=None))
    monkeypatch.setattr(follow, "open_or_create", lambda *_: None)
    monkeypatch.setattr(follow, "HeldLease", lambda *_, **__: nullcontext(lease))
    monkeypatch.setattr(job, "begin", lambda *_: session)
    monkeypatch.setattr(job, "capture_cluster", lambda *_, **__: NOTHING)
    monkeypatch.setattr(job, "plan_records", lambda *_: Plan((), (), (), ()))
    monkeypatch.setattr(job, "has_news", lambda *_: False)
    counted.begin("mirror")
    with closing(Stop()) as made:
        yield made
    counted.begin("")


def follower(stop: Stop) -> Follower:
    more: Any = {"source": {}, "spark": lambda: pytest.fail("Spark"), "listener": Silent()}
    return Follower(Backup(), Follow(), store=MemoryStore(), stop=stop, **more)


def rounds(stop: Stop) -> float | None:
    follower(stop).follow_until_stopped(QuietReporter(stop))
    return counted.snapshot().values.get(("kbackup_rounds_total", ("unchanged",)))


def test_rounds_of_a_follower_are_counted(stop: Stop) -> None:
    assert rounds(stop) == 2, "one, and the last one"


def test_the_report_names_the_newest_restore_point_without_a_new_one(stop: Stop) -> None:
    report = follower(stop).follow_until_stopped(QuietReporter(stop))
    assert (report.restore_point, report.restore_points) == (41, 0)


def test_a_follower_is_counted_before_its_first_round(stop: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The alert on silence sees a follower whose cluster is absent at the start."""

    def connect(*_: Any) -> None:
        raise UnreachableError("source is away", "")

    monkeypatch.setattr(follow, "connect", connect)
    with pytest.raises(UnreachableError):
        rounds(stop)
    values = counted.snapshot().values
    assert [values["kbackup_rounds_total", (result,)] for result in ROUNDS] == [0, 0, 0]
    assert ("kbackup_last_success_timestamp_seconds", ()) not in values


def test_rounds_in_quick_succession_capture_the_logs_alone(stop: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    captures: list[str] = []

    def capture(name: str) -> Any:
        return lambda *_, **__: captures.append(name) or NOTHING  # type: ignore[func-returns-value]

    monkeypatch.setattr(job, "capture_cluster", capture("whole"))
    monkeypatch.setattr(job, "capture_ends", capture("ends"))
    half = follower(stop)
    half.rhythm, half.clock = Follow(interval_seconds=0), lambda: 2.0 * len(captures)  # a round every 2 s
    half.follow_until_stopped(QuietReporter(stop, lambda: len(captures) == 5))
    assert captures == ["whole", "ends", "ends", "whole", "ends", "whole"]


def test_a_partition_without_a_leader_is_named_when_it_goes_and_when_it_is_back(
    stop: Stop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the two is a restore point, though nothing is new; and there is no wait for it between them."""
    lost = PartitionState(partition=1, start=0, end=0, log_start=0, log_end=0, records=0, bytes=0)
    seen, known, committed = iter([(), (lost,), (lost,), (), ()]), [], []
    monkeypatch.setattr(job, "capture_cluster", lambda *given: known.append(given[-1]) or NOTHING)  # type: ignore[func-returns-value]
    monkeypatch.setattr(
        job, "plan_records", lambda *_: Plan((TopicPlan("orders", "id", 1, (), next(seen)),), (), (), ())
    )
    for phase in ("archive_records", "report_of", "backed_up", "refresh"):
        monkeypatch.setattr(job, phase, lambda *_, **__: None)
    monkeypatch.setattr(job, "check_deletions", lambda *_: CheckedDeletions((), None))
    monkeypatch.setattr(job, "commit", lambda *_, **__: committed.append(len(known)))
    half = follower(stop)
    half.rhythm, half.clock = Follow(interval_seconds=0), lambda: 9.0 * len(known)
    monkeypatch.setattr(half.report, "add", lambda _: None)
    half.follow_until_stopped(QuietReporter(stop, lambda: len(known) == 4, commits=True))
    assert committed == [2, 4]
    assert known == [set(), set(), {("orders", 1)}, {("orders", 1)}, set()]


def test_one_restore_point_is_no_following(stop: Stop) -> None:
    """`kbackup mirror --once` by night: no alert must wait for its next round."""
    stop.ask()
    assert rounds(stop) is None
