"""The apply half between its rounds, its status, and a round's report. The rounds or the target are scripted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from kbackup.archive.models import Groups, Manifest
from kbackup.archive.reader import Archive
from kbackup.archive.run import open_or_create
from kbackup.errors import CorruptError, FencedError, KbackupError, NoArchiveError, StoreError, UnreachableError
from kbackup.jobs import common as pauses
from kbackup.jobs.common import Stop
from kbackup.metrics.registry import Silent, counted
from kbackup.mirror import round as round_module
from kbackup.mirror import status_keeper, writer
from kbackup.mirror.apply.pending import Applied, Lost, Recreated
from kbackup.mirror.flow import AppliedPosition, Clock, Flow, FlowStatus, RemoteTopic, read_flow_status, write_status
from kbackup.mirror.internal import Emitted
from kbackup.mirror.positions import GroupSync
from kbackup.mirror.records import Checkpoint
from kbackup.mirror.round import FlowRounds, RoundReport
from kbackup.mirror.schemas import MirrorSchemas
from kbackup.mirror.settings import AclsReport, ConfigsReport, TopicsReport
from kbackup.mirror.status import flow_holds, flows_of
from kbackup.mirror.timetable import Timetable
from kbackup.mirror.topics import MirrorTopicPlan
from kbackup.mirror.writer import MirrorWriter
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from kbackup.util.times import now
from tests.support.archives import History, group_at, make_archive
from tests.support.flow_maps import flow_of
from tests.support.memory_store import MemoryStore

ORDERS = RemoteTopic("orders", "A.orders", 3)
LOST = Lost("orders", 1, 0, "A.orders", 0, 5, "5 records came too late")


@dataclass
class Script:
    """Outcomes of rounds, one after the other; the last one asks to stop. The script is the reporter, too. `meanwhile`
    is done while a round runs, and `when_waiting` when the archive is waited for."""

    stop: Stop
    outcomes: list[Exception | tuple[Lost, ...]]
    events: list[str] = field(default_factory=list)
    opened: int = 0
    held_back: tuple[Recreated, ...] = ()
    meanwhile: Callable[[], None] = lambda: None
    when_waiting: Callable[[str], None] | None = None

    def run(self, archive: Archive, point: Manifest, plan: MirrorTopicPlan) -> RoundReport:
        self.meanwhile()
        outcome = self.outcomes.pop(0)
        if not self.outcomes:
            self.stop.ask()
        if isinstance(outcome, Exception):
            raise outcome
        positions = {TopicPartition("A.orders", 0): AppliedPosition(1, 7)}
        applied = Applied(
            point=point.number, records=2, bytes=20, positions=positions, too_late=outcome, held_back=self.held_back
        )
        return RoundReport("A->B", point.number, (ORDERS,), (), applied)

    def waiting(self, flow: Flow, why: str) -> None:
        if self.when_waiting is not None:
            self.when_waiting(why)
            return
        self.events.append(f"waits: {why}")
        self.stop.ask()

    def warned(self, text: str) -> None:
        self.events.append(text)

    def applied(self, flow: Flow, report: RoundReport) -> None:
        self.events.append(f"applied {report.restore_point}")

    def record_success(self) -> None:
        self.events.append("well")

    def failed(self, error: KbackupError, pause: float) -> None:
        self.events.append(f"failed: {error.message}")


def use_target(monkeypatch: pytest.MonkeyPatch, **clients: object) -> None:
    """Give writers these clients of the target, by the names of their classes."""
    for name, client in clients.items():
        monkeypatch.setattr(writer, name, lambda *_, client=client: client)


def half_of(script: Script, store: Store, monkeypatch: pytest.MonkeyPatch) -> MirrorWriter:
    def rounds(*_: Any) -> Any:
        script.opened += 1
        plan = MirrorTopicPlan((ORDERS,), ())
        return SimpleNamespace(
            plan=lambda *_: plan, apply_point=script.run, clocks={}, internal=SimpleNamespace(warnings=[])
        )

    monkeypatch.setattr(pauses, "_FIRST_PAUSE", 0.001)
    use_target(
        monkeypatch,
        Cluster=SimpleNamespace(connect=lambda: None),
        InternalTopics=nullcontext(),
        Applier=nullcontext(),
        HeartbeatClock=nullcontext(),
    )
    monkeypatch.setattr(writer, "FlowRounds", rounds)
    monkeypatch.setattr(MirrorWriter, "_wait_for_work", lambda *_: None)
    counted.begin("mirror")
    half = MirrorWriter(flow_of(), store, store, lambda: pytest.fail("Spark"), Silent(), script, script.stop)
    half.look_seconds = 0.001
    return half


def gauge(name: str) -> float | None:
    return counted.snapshot().values.get((f"kbackup_mirror_{name}", ("A", "B")))


@pytest.fixture
def stop() -> Iterator[Stop]:
    with closing(Stop()) as made:
        yield made


def status_in(store: Store) -> FlowStatus:
    status = read_flow_status(store, "A", "B")
    assert status is not None
    return status


def test_rounds_are_tried_again_on_new_connections(stop: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    newest = make_archive(store).restore_point("latest").number
    script = Script(stop, [(), UnreachableError("target is away", ""), (LOST,), ()])
    report = half_of(script, store, monkeypatch).apply_archive()
    assert script.events == [
        *(f"applied {newest}", "well", "failed: target is away", f"applied {newest}", "well"),
        *(f"applied {newest}", "well"),
    ]
    assert script.opened == 2
    assert (report.rounds, report.retries, report.records, report.is_loss) == (3, 1, 6, True)
    status = status_in(store)
    assert (status.restore_point, status.records, status.error) == (newest, 6, "")
    assert [incident.message for incident in status.incidents] == [LOST.message]
    assert counted.snapshot().values["kbackup_retries_total", ()] == 1
    assert counted.snapshot().values["kbackup_mirror_rounds_total", ("A", "B", "applied")] == 3


QUIET = "".join(
    f"{key}.enabled = false\n"
    for key in ("sync.topic.configs", "sync.topic.acls", "emit.offset-syncs", "refresh.topics", "refresh.groups")
)


def test_topics_and_groups_are_known_after_an_error(stop: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the real rounds: a new connection knows what the one before knew, though nothing is refreshed. A share group
    gets no checkpoint."""
    store = MemoryStore()
    make_archive(store)
    served: list[tuple[str, ...]] = []
    groups: list[tuple[bool, bool]] = []

    class Target:
        map = None

        def apply(self, _: Archive, point: Manifest, topics: tuple[RemoteTopic, ...], *_made: object) -> Applied:
            served.append(tuple(topic.source for topic in topics))
            if len(served) == 1:
                raise UnreachableError("target is away", "")
            if len(served) == 4:
                stop.ask()
            return Applied(point.number)

    def checkpoints(*given: Any) -> Emitted:
        selected = given[-1]
        groups.append(("billing" in selected, "share" in selected))
        if len(groups) == 2:
            raise UnreachableError("target is away", "")
        return Emitted([], [])

    def groups_of(archive: Archive, point: Manifest) -> Groups:
        return Groups(captured_at=now(), groups=(group_at("billing"), group_at("share")))

    real = FlowRounds
    half = half_of(Script(stop, []), store, monkeypatch)
    half.flow = flow_of(QUIET + "emit.checkpoints.interval.seconds = 0\n")
    cluster = SimpleNamespace(connect=lambda: None, topic_names=lambda: frozenset())
    use_target(
        monkeypatch,
        Cluster=cluster,
        InternalTopics=nullcontext(SimpleNamespace(warnings=[])),
        Applier=nullcontext(Target()),
        HeartbeatClock=nullcontext(SimpleNamespace(check=lambda: None)),
    )
    monkeypatch.setattr(writer, "FlowRounds", real)
    monkeypatch.setattr(round_module, "sync_topics", lambda *_: TopicsReport((), {}, {}))
    monkeypatch.setattr(round_module, "emit_checkpoints", checkpoints)
    monkeypatch.setattr(Archive, "groups", groups_of)
    assert half.apply_archive().retries == 2
    assert served == [("orders",)] * 4
    assert groups == [(True, False)] * 3


def test_rounds_go_on_without_heartbeats(stop: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each error is told once."""
    store = MemoryStore()
    newest = make_archive(store).restore_point("latest").number

    def check() -> None:
        raise UnreachableError("target denies writing", "allow it")

    script = Script(stop, [(), ()])
    half = half_of(script, store, monkeypatch)
    use_target(monkeypatch, HeartbeatClock=nullcontext(SimpleNamespace(check=check)))
    assert half.apply_archive().retries == 0
    warning = "heartbeats of A->B are not written: target denies writing; allow it"
    applied = f"applied {newest}"
    assert script.events == [applied, warning, "well", applied, "well"]


def test_rounds_that_follow_one_another_share_a_status(stop: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss is written at once, mere progress later."""
    store = MemoryStore()
    make_archive(store)
    written: list[tuple[int, int]] = []
    script = Script(stop, [(), (), (LOST,), (), ()])
    half = half_of(script, store, monkeypatch)

    def write(state: Store, status: FlowStatus) -> None:
        written.append((status.rounds, len(status.incidents)))
        write_status(state, status)

    monkeypatch.setattr(status_keeper, "write_status", write)
    half.apply_archive()
    # the start, the topics of the first round, its incarnations, the loss, and the end
    assert written == [(0, 0), (0, 0), (1, 0), (3, 1), (5, 1)]


def test_another_apply_half_ends_this_one(stop: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    make_archive(store)
    script = Script(stop, [(), FencedError("another process applies this flow", ""), ()])
    with pytest.raises(FencedError):
        half_of(script, store, monkeypatch).apply_archive()
    assert status_in(store).error == "", "the status is that of the other process"


def test_waits_for_its_archive(stop: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(stop, [()])
    assert half_of(script, MemoryStore(), monkeypatch).apply_archive().rounds == 0
    assert [text.partition(" at ")[0] for text in script.events] == ["waits: there is no archive"]


def test_the_target_stays_connected_until_the_first_restore_point(stop: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    open_or_create(store)
    script = Script(stop, [()])
    looks: list[str] = []

    def pause() -> bool:
        looks.append("look")
        if len(looks) == 4:
            make_archive(store)
        return stop.asked

    script.when_waiting = lambda why: looks.append(why.partition(" ")[0])
    half = half_of(script, store, monkeypatch)
    monkeypatch.setattr(half, "_pause", pause)
    assert half.apply_archive().rounds == 1
    assert looks == ["archive", *["look"] * 3]
    assert script.opened == 1


def test_a_bell_ends_the_wait_for_the_next_look(stop: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    half = half_of(Script(stop, []), MemoryStore(), monkeypatch)
    half.look_seconds = 60
    for ring in (half.wakeup.set, stop.ask):
        threading.Timer(0.01, ring).start()
        began = time.monotonic()
        assert half._pause() is stop.asked
        assert time.monotonic() - began < 30, ring
    assert stop.asked


def test_once_is_one_round_of_an_archive_that_is_there(stop: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    script = Script(stop, [(), ()])
    script.stop.ask()
    with pytest.raises(NoArchiveError):
        half_of(script, store, monkeypatch).apply_archive()
    make_archive(store)
    assert half_of(script, store, monkeypatch).apply_archive().rounds == 1
    assert gauge("last_round_timestamp_seconds")
    assert gauge("follow_start_timestamp_seconds") is None, "no alert waits for the next round"


def test_finish_applies_the_last_restore_point(stop: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The take half of the same process committed one more restore point."""
    for finish, rounds in ((False, 1), (True, 2)):
        store = MemoryStore()
        archive = make_archive(store)
        points = iter([archive.restore_point(1), archive.restore_point("latest")])
        monkeypatch.setattr(Archive, "restore_point", lambda *_, points=points: next(points))
        script = Script(Stop(), [(), ()])
        half = half_of(script, store, monkeypatch)
        half.finish = finish
        monkeypatch.setattr(MirrorWriter, "_wait_for_work", lambda half, *_: half.stop.ask())
        with closing(script.stop):
            assert half.apply_archive().rounds == rounds
        monkeypatch.undo()


# The status of an apply half while its rounds run and fail. The rounds themselves are scripted.


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (CorruptError("file x is damaged", "repair it"), "file x is damaged; repair it"),
        (RuntimeError("password"), "internal error: RuntimeError"),
    ],
)
def test_status_names_what_ended_the_process(
    error: Exception, message: str, stop: Stop, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    make_archive(store)
    with pytest.raises(type(error)):
        half_of(Script(stop, [(), error]), store, monkeypatch).apply_archive()
    status = status_in(store)
    assert (status.error, status.rounds) == (message, 1)


def test_status_names_why_the_target_is_not_reached(stop: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no round has begun yet. What is behind is counted."""
    store = MemoryStore()
    make_archive(store)

    def connect() -> None:
        stop.ask()
        raise UnreachableError("target is away", "")

    half = half_of(Script(stop, []), store, monkeypatch)
    use_target(monkeypatch, Cluster=SimpleNamespace(connect=connect))
    half.apply_archive()
    assert status_in(store).error == "target is away"
    assert gauge("seconds_behind")
    assert gauge("records_behind") is None, "the topics are not known yet"


def test_first_round_has_its_topics_in_the_status(stop: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it runs: their records are behind, and `expire` keeps them."""
    store = MemoryStore()
    archive = make_archive(store)
    script = Script(stop, [()])
    half = half_of(script, store, monkeypatch)

    def look() -> None:
        (flow,) = flows_of(archive, store)
        assert [(t.remote, t.incarnation, t.records_behind) for t in flow.topics] == [("A.orders", -1, 46)]
        (hold,) = flow_holds(store, archive.info.id, timedelta(days=1))
        assert hold.holds("orders", 1, 0, 0, 1)

    script.meanwhile = look
    assert half.apply_archive().rounds == 1
    assert flows_of(archive, store)[0].topics[0].incarnation == 1


def test_topic_that_is_held_back_is_told_once(stop: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by the next process. The topic stays held back, and the exit code stays 3."""
    store = MemoryStore()
    make_archive(store)
    recreated = Recreated("orders", "A.orders", 2, held_back=True)
    totals: list[float] = []
    for _ in range(2):
        with closing(Stop()) as own:
            script = Script(own, [(), ()], held_back=(recreated,))
            report = half_of(script, store, monkeypatch).apply_archive()
        assert report.is_loss
        assert gauge("held_back_topics") == 1
        key = "kbackup_mirror_incidents_total", ("A", "B", "recreated")
        totals.append(counted.snapshot().values[key])
    assert totals == [1, 0]
    status = status_in(store)
    assert [incident.message for incident in status.incidents] == [recreated.message]
    assert [topic.held_back for topic in status.topics] == [recreated.message]


@pytest.mark.parametrize("error", [None, StoreError, CorruptError])
def test_a_long_round_gives_signs_of_life(
    error: type[KbackupError] | None, stop: Stop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`expire` sees them in the middle of the round; a store that takes none is told of."""
    refused = error is not None
    store, beaten = MemoryStore(), threading.Event()
    make_archive(store)
    script = Script(stop, [(LOST,)])
    half = half_of(script, store, monkeypatch)
    monkeypatch.setattr(status_keeper, "ALIVE", Clock(True, 0.001))
    write, begun = write_status, list[str]()

    def beat(state: Store, status: FlowStatus) -> None:
        if threading.current_thread() is not threading.main_thread():
            beaten.set()
            if error is not None:
                raise error("no room", "make some")
        else:
            begun.append(status.written_at)
        write(state, status)

    def wait_for_two_signs() -> None:
        assert beaten.wait(30)
        beaten.clear()
        assert beaten.wait(30)  # the one before is written
        assert (status_in(store).written_at > begun[-1]) is not refused

    monkeypatch.setattr(status_keeper, "write_status", beat)
    script.meanwhile = wait_for_two_signs
    assert half.apply_archive().rounds == 1
    assert [incident.message for incident in status_in(store).incidents] == [LOST.message]
    assert [text for text in script.events if "no room" in text] == [
        "flow A->B: the status was not written: no room; make some"
    ][:refused]
    assert not [thread for thread in threading.enumerate() if "sign-of-life" in thread.name]


def test_points_that_a_round_lets_wait_are_behind(stop: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The restore point that comes while a round runs is behind at its end."""
    history = History(MemoryStore())
    history.run(1, {"orders": 1})
    script = Script(stop, [()])
    half = half_of(script, history.store, monkeypatch)
    script.meanwhile = lambda: history.run(2, {"orders": 1})
    assert half.apply_archive().restore_point == 1
    behind = gauge("seconds_behind")
    assert behind is not None
    assert behind > 900, "KbackupMirrorBehind fires"


def test_a_round_that_fails_is_behind(stop: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    history = History(MemoryStore())
    history.run(1, {"orders": 1})
    script = Script(stop, [UnreachableError("target is away", "")])
    half = half_of(script, history.store, monkeypatch)
    half.apply_archive()
    behind = gauge("seconds_behind")
    assert behind is not None
    assert behind > 900
    assert gauge("last_round_timestamp_seconds") is None
    assert gauge("follow_start_timestamp_seconds"), "KbackupMirrorStale counts from here"


# The report of a round of the apply half. The target is scripted.


ONLY_CHECKPOINTS = "".join(
    f"{key}.enabled = false\n" for key in ("sync.topic.configs", "sync.topic.acls", "emit.offset-syncs")
)


def test_checkpoint_latency_does_not_grow_while_nothing_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    archive = make_archive(MemoryStore())
    point = archive.restore_point("latest")
    checkpoint = Checkpoint("billing", TopicPartition("A.orders", 0), 1, 1, "")
    emitted = iter([Emitted([checkpoint], [checkpoint]), Emitted([checkpoint], [])])
    monkeypatch.setattr(round_module, "emit_checkpoints", lambda *_: next(emitted))
    monkeypatch.setattr(round_module, "sync_topics", lambda *_: TopicsReport((), {}, {}))
    cluster: Any = SimpleNamespace(topic_names=lambda: [])
    applier: Any = SimpleNamespace(apply=lambda *_: Applied(point.number), map=None)
    internal: Any = None
    flow = flow_of(ONLY_CHECKPOINTS + "emit.checkpoints.interval.seconds = 0\n")
    rounds = FlowRounds(flow, cluster, internal, applier, Timetable(), MirrorSchemas(flow, MemoryStore()))
    captured_at = datetime.fromisoformat(archive.groups(point).captured_at).timestamp()
    counted.begin("mirror")
    written: list[int] = []
    for seconds in (7, 700):
        monkeypatch.setattr(time, "time", lambda seconds=seconds: captured_at + seconds)
        written.append(rounds.apply_point(archive, point, rounds.plan(archive, point)).checkpoints)
        key = "kbackup_mirror_checkpoint_latency_seconds", ("A", "B", "billing")
        assert counted.snapshot().values[key] == 7
    assert written == [1, 0]


def test_a_round_goes_from_topics_to_acls_in_the_order_of_the_design(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records have their topics, checkpoints the offset syncs by which they may be translated."""
    archive = make_archive(MemoryStore())
    point = archive.restore_point("latest")
    phases: list[str] = []

    def phase(name: str, result: object) -> Any:
        def run(*_: object) -> object:
            phases.append(name)
            return result

        return run

    for function, result in (
        ("sync_topics", TopicsReport((), {}, {})),
        ("sync_configs", ConfigsReport({}, {})),
        ("emit_offset_syncs", 0),
        ("emit_checkpoints", Emitted([], [])),
        ("sync_group_offsets", GroupSync({}, {})),
        ("sync_acls", AclsReport((), ())),
    ):
        monkeypatch.setattr(round_module, function, phase(function, result))
    cluster: Any = SimpleNamespace(topic_names=lambda: [])
    applier: Any = SimpleNamespace(apply=phase("apply records", Applied(point.number)), map=None)
    internal: Any = None
    flow = flow_of("sync.group.offsets.enabled = true\n")
    rounds = FlowRounds(flow, cluster, internal, applier, Timetable(), MirrorSchemas(flow, MemoryStore()))
    report = rounds.apply_point(archive, point, rounds.plan(archive, point))
    assert phases == [
        "sync_topics",
        "sync_configs",
        "apply records",
        "emit_offset_syncs",
        "emit_checkpoints",
        "sync_group_offsets",
        "sync_acls",
    ]
    assert set(report.refused) == {"topics", "configs", "schemas", "groups", "acls"}
